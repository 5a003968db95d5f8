"""What a commit sends becomes what a million events send, by the delay of commits."""

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from headrace.bench.features.store_requests import DELAYS, CommitRequests, Requests, commit_lines, main, table_lines
from headrace.writer.preflight.capacity.prices import Prices

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
    (line,) = commit_lines([SEEN])
    assert line == (
        "delta: 13.5 requests a commit: GET 12.00, PUT 1.50; 1.0 kB sent, 2.0 kB received; "
        "and for its data file 4 (40.0 MB), 1 (4.0 MB)"
    )


def test_with_prices_the_table_has_dollars_for_a_tb_of_rows():
    prices = Prices(storage_gb_month=0.02, put_list_per_1000=0.01, get_per_1000=0.001)
    head, aligned, _, row = table_lines([SEEN], 1_000, 100.0, prices)
    assert head.endswith("| MB received | dollars a TB |")
    assert aligned.count("---:") == head.count("|") - 3
    # 10,000 million events of 100 B are a TB: 200 GETs and 41.7 PUTs for each million.
    assert row.endswith(f"| {10_000 * (200 * 0.001 + 2.5 * 1_000 / 60 * 0.01) / 1_000:.2f} |")


@given(
    counts=st.dictionaries(
        st.sampled_from(["GET", "HEAD", "PUT", "LIST", "COPY", "DELETE", "UPLOAD_PART"]), st.floats(0, 1e6)
    ),
    put=st.floats(0, 10),
    get=st.floats(0, 10),
)
def test_each_request_has_one_price_and_deletes_have_none(counts, put, get):
    prices = Prices(storage_gb_month=0, put_list_per_1000=put, get_per_1000=get)
    price_of = {"GET": get, "HEAD": get, "DELETE": 0.0}
    expected = sum(count * price_of.get(kind, put) / 1_000 for kind, count in counts.items())
    assert Requests(counts).dollars(prices) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"), [(["--commits", "10"], "10 is below 50"), (["--formats", "orc"], "orc: known are iceberg")]
)
def test_what_cannot_be_counted_is_refused(arguments, said, capsys):
    with pytest.raises(SystemExit):
        main(["--location", "s3://lake/empty", "--endpoint", "http://127.0.0.1:1", *arguments])
    assert said in capsys.readouterr().err
