"""What a commit sends becomes what a million events send, by the delay of commits."""

from datetime import timedelta

import pytest

from headrace.bench.features.store_requests import DELAYS, CommitRequests, Requests, commit_lines, main, table_lines

SEEN = CommitRequests(
    "delta",
    Requests({"GET": 12, "PUT": 1.5}, 1_000, 2_000),
    {600.0: Requests({"UPLOAD_PART": 4}, 40e6), 60.0: Requests({"PUT": 1}, 4e6)},
)


@pytest.mark.parametrize(("minutes", "commits"), [(10, 1_000 / 600), (1, 1_000 / 60)])
def test_a_million_events_are_so_many_commits(minutes, commits):
    found = SEEN.per_million(timedelta(minutes=minutes), 1_000)
    data = SEEN.of_data[60.0 * minutes]
    for kind in ("GET", "PUT", "UPLOAD_PART"):
        expected = commits * (SEEN.of_log.counts.get(kind, 0) + data.counts.get(kind, 0))
        assert found.counts.get(kind, 0) == pytest.approx(expected)
    assert found.sent == pytest.approx(commits * (1_000 + data.sent))
    assert found.received == pytest.approx(commits * 2_000)


def test_the_table_has_a_row_for_each_format_and_delay():
    head, _, *rows = table_lines([SEEN], 1_000)
    assert head == ("| format | `commit.max_delay` | commits | all | GET | PUT | UPLOAD_PART | MB sent | MB received |")
    assert rows == [
        "| delta | 10 min | 1.7 | 29 | 20.0 | 2.5 | 6.7 | 66.7 | 0.0 |",
        "| delta | 1 min | 16.7 | 242 | 200.0 | 41.7 |  | 66.7 | 0.0 |",
    ]
    assert len(rows) == len(DELAYS)
    assert commit_lines([SEEN]) == ["delta: 13.5 requests a commit beside its data file: GET 12.00, PUT 1.50"]


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--commits", "10"], "10 is below 50"), (["--formats", "orc"], "orc: known are iceberg")]
)
def test_what_cannot_be_counted_is_refused(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(["--s3", "s3://lake/empty", "--endpoint", "http://127.0.0.1:1", *arguments])
    assert said in capsys.readouterr().err
