"""Ranges and accounts of a commit."""

import pytest

from writer import commit
from writer.errors import CheckpointUnusable
from writer.report import Counts, Report
from writer.tables.base import Part, Range

A, B = ("clicks", 0), ("clicks", 1)
PARTS = {A: Part("clicks", 1, 0), B: Part("clicks", 1, 1)}


def test_a_batch_commits_from_the_frontier_to_its_end() -> None:
    found = commit.ranges({A: 5, B: 7}, {A: 9, B: 12}, {PARTS[A]: 6, PARTS[B]: 7}, PARTS)
    assert found == [Range(PARTS[A], 6, 9), Range(PARTS[B], 7, 12)]


def test_what_the_table_has_is_not_committed_again() -> None:
    assert commit.ranges({A: 5}, {A: 9}, {PARTS[A]: 9}, PARTS) == []
    assert commit.ranges({A: 5}, {A: 9}, {PARTS[A]: 30}, PARTS) == []


def test_a_new_part_begins_where_the_batch_begins() -> None:
    assert commit.ranges({A: 0}, {A: 0}, {PARTS[A]: None}, PARTS) == [Range(PARTS[A], 0, 0)]


def test_a_batch_above_the_frontier_is_refused_with_the_loss() -> None:
    with pytest.raises(CheckpointUnusable, match="the batch starts at 9: 4 records would be lost"):
        commit.ranges({A: 9}, {A: 12}, {PARTS[A]: 5}, PARTS)


def test_a_range_is_half_open_and_forward() -> None:
    with pytest.raises(ValueError, match="0 <= start <= end"):
        Range(PARTS[A], 5, 4)


def report(low: int, high: int, **outcomes: int) -> Report:
    return Report(counts={A: Counts(offset_min=low, offset_max=high, **outcomes)}, seconds={"decode": 0.5})


def test_reports_of_tasks_add_up() -> None:
    total = commit.merged([report(5, 7, read=3, rows=2, dead_letters=1), report(8, 9, read=2, rows=2)])
    assert total.counts[A] == Counts(read=5, rows=4, dead_letters=1, offset_min=5, offset_max=9)
    assert total.seconds == {"decode": 1.0}


@pytest.mark.parametrize(("low", "high"), [(4, 8), (5, 9)])
def test_an_offset_outside_the_range_is_a_bug_and_commits_nothing(low: int, high: int) -> None:
    with pytest.raises(AssertionError, match="lies"):
        commit.batch(
            report(low, high, read=1, rows=1), [Range(PARTS[A], 5, 9)], epoch=1, settled=0, dead_letters="", facts={}
        )


def test_a_commit_carries_the_account_of_each_range() -> None:
    made = commit.batch(
        report(5, 8, read=4, rows=3, tombstones=1),
        [Range(PARTS[A], 5, 9), Range(PARTS[B], 0, 0)],
        epoch=3, settled=2, dead_letters="", facts={"run": 1},
    )  # fmt: skip
    (first, second) = made.facts["ranges"]
    assert (first["start"], first["end"], first["read"], first["rows"], first["tombstones"]) == (5, 9, 4, 3, 1)
    assert (second["partition"], second["read"]) == (1, 0)
    assert commit.totals([made.facts])["read"] == 4


def test_bytes_per_row_is_seen_in_commits_with_rows() -> None:
    assert commit.bytes_per_row([{"rows": 0, "bytes": 0}]) is None
    assert commit.bytes_per_row([{"rows": 10, "bytes": 500}, {"rows": 30, "bytes": 500}, {"rows": 0}]) == 25
