"""What every table format promises of the marks of logs: each is of its frontier, whatever moves that."""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from headrace.writer.core.errors import Fenced
from headrace.writer.core.files import StagedFile
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.offsets.log_continuity import EarlierCommit, read_part_history
from headrace.writer.table.gap_records import read_history
from headrace.writer.table.ledger.segment_store import LedgerStore
from headrace.writer.table.log.commits.starts import Adoption, LogCut
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.operations.rewinds import Rewind
from headrace.writer.table.table import PipelineTable
from tests.support.tables import P0, P1, batch, begin, stage, table

__all__ = ["stage", "table"]
FIRST, SECOND = LogMark(3, 2**63 - 1), LogMark(0, 0)
NEXT = replace(P0, incarnation=2)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


def filled(table: PipelineTable, stage: Callable[[int], StagedFile]) -> int:
    """Commit 100 and 50 offsets of the first partition. Returns the epoch."""
    epoch = begin(table)
    table.append(replace(batch(epoch, 0, 100, stage(100)), marks={P0: FIRST}), table.snapshot())
    table.append(replace(batch(epoch, 100, 150, stage(50)), marks={P0: SECOND}), table.snapshot())
    return epoch


def test_a_commit_keeps_what_the_log_is_known_by_and_the_next_one_replaces_it(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    assert table.snapshot().mark(P0) is None
    table.append(replace(batch(epoch, 0, 100, stage(100)), marks={P0: FIRST}), table.snapshot())
    assert (table.snapshot().mark(P0), table.snapshot().mark(P1)) == (FIRST, None)
    table.append(replace(batch(epoch, 100, 150, stage(50)), marks={P0: SECOND}), table.snapshot())
    assert table.snapshot().mark(P0) == SECOND
    table.append(batch(epoch, 150, 151, stage(1)), table.snapshot())
    assert table.snapshot().mark(P0) is None, "of another offset"
    entries = table.entries(-1)
    assert read_part_history(entries, "events", P0, 151).commits == (
        EarlierCommit(150, SECOND),
        EarlierCommit(100, FIRST),
    )
    assert read_part_history(entries, "events", P0, 151).begin == 0


def test_marks_outlive_the_entries_that_set_them(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    epoch = filled(table, stage)
    for offset in range(12):
        table.append(batch(epoch, offset, offset + 1, stage(1), part=P1), table.snapshot())
    table._checkpoint_interval = 1
    table._tidied_version = -1
    table.tidy()
    assert table.snapshot().mark(P0) == SECOND


def test_a_gap_and_a_skip_lose_the_mark(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    epoch = filled(table, stage)
    table.append(Gap(uuid4().hex, epoch, [OffsetRange(P0, 150, 170)], "retention"), table.snapshot())
    assert (table.snapshot().frontier(P0), table.snapshot().mark(P0)) == (170, None)


@pytest.mark.parametrize("known", [True, False])
def test_a_rewind_has_the_mark_of_the_earlier_version_or_none(
    table: PipelineTable, stage: Callable[[int], StagedFile], known: bool
) -> None:
    filled(table, stage)
    snapshot = table.snapshot()
    facts = {"at": datetime.now(UTC).isoformat()}
    marks = {P0: FIRST} if known else {}
    taken = Rewind(uuid4().hex, 2, [OffsetRange(P0, 100, 150)], [], [], {}, facts=facts, marks=marks)
    table.append(taken, snapshot)
    assert (table.snapshot().frontier(P0), table.snapshot().mark(P0)) == (100, FIRST if known else None)


def test_an_adoption_under_another_id_loses_the_marks_of_that_topic(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    filled(table, stage)
    table.adopt(table.snapshot(), Adoption({"clicks": ["uuid-1"], "other": ["x"]}, {}))
    assert table.snapshot().mark(P0) == SECOND
    table.adopt(table.snapshot(), Adoption({"clicks": ["uuid-2"], "other": ["x"]}, {}))
    assert (table.snapshot().frontier(P0), table.snapshot().mark(P0)) == (150, None)


def test_no_part_begins_in_the_ledger_where_an_adoption_took_its_mark(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    filled(table, stage)
    table.adopt(table.snapshot(), Adoption({"clicks": ["uuid-2"], "other": ["x"]}, {}))
    _, segments = read_history(table, "events", table.rows_at)
    begins = [segment.first_offsets for segment in segments if segment.first_offsets]
    assert begins == [{P0: 0, P1: 0}]


def test_a_cut_begins_an_incarnation_and_the_other_partitions_take_their_marks_along(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = filled(table, stage)
    seen = {P0: 5, P1: 7}
    table.append(
        replace(batch(epoch, 0, 10, stage(10), part=P1), marks={P1: FIRST}, newest_event_times=seen), table.snapshot()
    )
    cut = LogCut(OffsetRange(P0, 120, 150), 2, is_proven=True)
    other = TopicPartition("clicks", 2, 1)
    ids = {"clicks": ["uuid-1", "uuid-1"]}
    stale = replace(cut, range=OffsetRange(P0, 120, 140))
    with pytest.raises(Fenced, match="another writer runs"):
        table.begin({NEXT: 120, other: 10}, ids, cuts=[stale])
    table.begin({NEXT: 120, other: 10}, ids, cuts=[cut])
    snapshot = table.snapshot()
    assert snapshot.incarnations() == ids
    assert snapshot.parts() == {P0: 150, P1: 10, NEXT: 120, other: 10}
    assert (snapshot.mark(NEXT), snapshot.newest_event_time(NEXT)) == (None, None)
    assert (snapshot.mark(other), snapshot.newest_event_time(other)) == (FIRST, 7)
    assert snapshot.orphans() == [OffsetRange(P0, 120, 150)]
    _, segments = read_history(table, "events", table.rows_at)
    cut_ranges = [cut_range for segment in segments for cut_range in segment.cut_ranges]
    assert [(cut_range.range, cut_range.successor, cut_range.is_proven) for cut_range in cut_ranges] == [
        (OffsetRange(P0, 120, 150), 2, True)
    ]


def test_of_two_starts_that_meet_a_cut_one_enters_it(table: PipelineTable) -> None:
    begin(table, p0=10)
    cut = LogCut(OffsetRange(P0, 5, 10), 2, is_proven=False)
    ids = {"clicks": ["uuid-1", "uuid-1"]}
    epochs = [table.begin({NEXT: 5}, ids, cuts=[cut]) for _ in range(2)]
    assert epochs[0] + 1 == epochs[1] == table.snapshot().epoch
    _, segments = read_history(table, "events", table.rows_at)
    assert [cut_range.range.start for segment in segments for cut_range in segment.cut_ranges] == [5]


def test_a_cut_stands_in_the_ledger(table: PipelineTable) -> None:
    begin(table, p0=10)
    table.begin({NEXT: 5}, {"clicks": ["uuid-1", "uuid-1"]}, cuts=[LogCut(OffsetRange(P0, 5, 10), 2, is_proven=False)])
    table._checkpoint_interval = 1
    table._tidied_version = -1
    table.tidy()
    pages = LedgerStore(table.store, table.snapshot().state.metadata["id"], "events").pages()
    assert [cut_range.range.start for segment in pages for cut_range in segment.cut_ranges] == [5]
