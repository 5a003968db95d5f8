"""What every table format promises. One suite, every adapter."""

from collections.abc import Callable
from datetime import timedelta
from uuid import uuid4

import pyarrow as pa
import pytest
from deltalake import Field

from headrace.writer.core.errors import Fenced
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.storage.locations import store_at
from headrace.writer.table.log.entries import SideEntry
from headrace.writer.table.log.foreign_writes import CommitFailed, ForeignChange
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.table import PipelineTable
from tests.support.sample_records import GAP_FACTS
from tests.support.table_formats import OPENED
from tests.support.tables import (
    COLUMNS,
    P0,
    P1,
    add,
    batch,
    begin,
    delta,
    delta_client,
    location,
    rows,
    stage,
    table,
    write_file,
)

__all__ = ["add", "delta", "location", "stage", "table"]


def test_a_restore_before_an_unanswered_commit_is_still_found_by_the_next_start(
    delta: PipelineTable, add: Callable[[int], StagedFile]
) -> None:
    epoch = begin(delta)
    looked = delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    delta_client(delta.location).restore(looked - 1)
    last = Batch(uuid4().hex, epoch, [OffsetRange(P0, 10, 20)], [add(10)], facts={"ranges": []}, settled=looked)
    delta.append(last, delta.snapshot())
    with pytest.raises(ForeignChange):
        delta.commits_since(delta.snapshot().settled)


def test_a_commit_moves_files_and_frontier_together(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    epoch = begin(table)
    version = table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.frontier(P0), rows(table)) == (version, 10, 10)
    (found,) = table.commits_since(version - 1)
    assert found.version == version


def test_a_commit_that_does_not_start_at_the_frontier_is_fenced(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    with pytest.raises(Fenced, match="offset 10 of clicks/0 is committed, this batch starts at 4"):
        table.append(batch(epoch, 4, 14, stage(10)), table.snapshot())
    assert rows(table) == 10


def gap(epoch: int, *ranges: OffsetRange) -> Gap:
    return Gap(uuid4().hex, epoch, ranges, "retention", GAP_FACTS)


def test_a_gap_moves_the_frontier_without_files_and_keeps_its_record(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    lost = gap(epoch, OffsetRange(P0, 10, 25), OffsetRange(P1, 0, 3))
    version = table.append(lost, table.snapshot())
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.frontier(P0), snapshot.frontier(P1), rows(table)) == (version, 25, 3, 10)
    assert (snapshot.epoch, snapshot.gaps) == (epoch, (1, 18))
    entry = table.history(1)[0]
    assert (entry.kind, entry.version) == ("gap", version)
    assert entry.facts == {
        "kind": "gap", "id": lost.id, "cause": "retention", **GAP_FACTS,
        "ranges": [
            {"topic": "clicks", "incarnation": 1, "partition": 0, "start": 10, "end": 25},
            {"topic": "clicks", "incarnation": 1, "partition": 1, "start": 0, "end": 3},
        ],
    }  # fmt: skip
    table.append(batch(epoch, 25, 30, stage(5)), table.snapshot())
    table.append(gap(epoch, OffsetRange(P1, 3, 4)), table.snapshot())
    assert table.snapshot().gaps == (2, 19)
    assert len(table.commits_since(-1)) == 4


def test_a_gap_that_does_not_begin_at_the_frontier_is_fenced(table: PipelineTable) -> None:
    epoch = begin(table, p0=10)
    for start in (4, 11):
        with pytest.raises(Fenced, match=f"offset 10 of clicks/0 is committed, this batch starts at {start}"):
            table.append(gap(epoch, OffsetRange(P0, start, 25)), table.snapshot())
    assert (table.snapshot().frontier(P0), table.snapshot().gaps) == (10, (0, 0))


def test_a_later_start_fences_a_gap(table: PipelineTable) -> None:
    old = begin(table)
    stale = table.snapshot()
    table.begin({}, {"clicks": ["uuid-1"]})
    for snapshot in (stale, table.snapshot()):
        with pytest.raises(Fenced, match="started again"):
            table.append(gap(old, OffsetRange(P0, 0, 10)), snapshot)
    assert table.snapshot().frontier(P0) == 0


def test_a_gap_whose_answer_was_lost_is_found_in_the_log(table: PipelineTable, monkeypatch: pytest.MonkeyPatch) -> None:
    epoch = begin(table)
    write = table.write

    def silent(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        raise OSError("the line went dead")

    monkeypatch.setattr(table, "write", silent)
    version = table.append(gap(epoch, OffsetRange(P0, 0, 10)), table.snapshot())
    assert (table.snapshot().version, table.snapshot().frontier(P0)) == (version, 10)
    assert table.snapshot().gaps == (1, 10)


def test_rows_are_what_any_reader_finds(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 3, stage(3)), table.snapshot())
    table.grow([pa.field("price", pa.float64())], epoch)
    rows = table.rows().to_table()
    assert rows.schema.names == ["id", "hour", "price"]
    assert rows.to_pylist() == [{"id": n, "hour": "2026-11-20T05", "price": None} for n in range(3)]


def test_of_two_commits_on_one_snapshot_the_second_is_fenced(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    snapshot, other = table.snapshot(), table.snapshot()
    table.append(batch(epoch, 0, 10, stage(10)), snapshot)
    with pytest.raises(Fenced):
        table.append(batch(epoch, 0, 12, stage(12)), other)
    assert rows(table) == 10


def test_an_answer_lost_in_flight_is_found_in_the_log(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = begin(table)
    write = table.write

    def lost(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        raise OSError("connection reset")

    monkeypatch.setattr(table, "write", lost)
    version = table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    assert (table.snapshot().version, rows(table)) == (version, 10)


def test_a_storage_that_fails_twice_and_recovers_holds_one_commit(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = begin(table)
    write, failures = table.write, iter(["503", "503"])

    def flaky(*args: object) -> None:
        if next(failures, None):
            raise OSError("503 slow down")
        write(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(table, "write", flaky)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    assert rows(table) == 10


def test_a_storage_that_keeps_failing_is_a_clear_failure(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    epoch = begin(table)

    def down(*_: object) -> None:
        raise OSError("503 slow down")

    monkeypatch.setattr(table, "write", down)
    monkeypatch.setattr(table, "_retry_timeout", timedelta(seconds=1))
    with pytest.raises(CommitFailed, match=r"503 slow down\. The next start looks"):
        table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    assert rows(table) == 0


def test_columns_added_between_snapshot_and_commit_do_not_stop_it(
    delta: PipelineTable, add: Callable[[int], StagedFile]
) -> None:
    epoch = begin(delta)
    snapshot = delta.snapshot()
    delta_client(delta.location).alter.add_columns([Field("theirs", "string")])
    delta.append(batch(epoch, 0, 10, add(10)), snapshot)
    assert rows(delta) == 10
    assert "theirs" in delta.snapshot().columns().names


def test_a_restore_by_another_client_is_told(delta: PipelineTable, add: Callable[[int], StagedFile]) -> None:
    epoch = begin(delta)
    first = delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    delta.append(batch(epoch, 10, 20, add(10)), delta.snapshot())
    delta_client(delta.location).restore(first)
    with pytest.raises(ForeignChange, match="another client ran RESTORE"):
        delta.commits_since(first)


def test_columns_are_added_once(table: PipelineTable) -> None:
    epoch = begin(table)
    new = [pa.field("price", pa.float64()), pa.field("ID", pa.int64())]
    table.grow(new, epoch)
    version = table.snapshot().version
    table.grow(new, epoch)
    assert table.snapshot().version == version
    assert table.snapshot().columns().names == ["id", "hour", "price"]


def test_history_and_buckets_say_what_was_committed(
    table: PipelineTable, location: str, form: str, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    files = [stage(3), write_file(location, "2026-11-20T06", 4, form)]
    version = table.append(batch(epoch, 0, 7, *files), table.snapshot())
    assert sorted(table.buckets()) == [("2026-11-20T05",), ("2026-11-20T06",)]
    assert [(entry.version, entry.kind) for entry in table.history()] == [
        (version, "batch"), (version - 1, "start"), (version - 2, "create")
    ]  # fmt: skip
    assert [facts["rows"] for facts in table.recent_commits(5)] == [7]


def test_side_files_are_applied_once(location: str, form: str, stage: Callable[[int], StagedFile]) -> None:
    file = stage(5)
    bare = StagedFile(file.path, (), 5, file.bytes, file.statistics, file.event_time_min, file.event_time_max, {})
    dead_letters = OPENED[form](location, "events")
    columns = pa.schema([("id", pa.int64())])
    dead_letters.create(columns, [])
    assert dead_letters.snapshot().applied == -1
    for _ in range(2):
        dead_letters.apply_side(SideEntry(7, [bare]))
    assert (dead_letters.snapshot().applied, rows(dead_letters)) == (7, 5)


def test_the_log_is_checkpointed_at_the_set_interval(
    location: str, form: str, stage: Callable[[int], StagedFile]
) -> None:
    table = OPENED[form](location, "events", checkpoint_interval=5)
    table.create(COLUMNS, ["hour"])
    epoch = begin(table)
    for n in range(8):
        table.append(batch(epoch, n * 10, n * 10 + 10, stage(10)), table.snapshot())
        table.tidy()
    assert [name for name in store_at(table.log_location).list() if ".checkpoint." in name]
    assert (rows(table), table.snapshot().frontier(P0), table.snapshot().epoch) == (80, 80, 1)
    fresh = OPENED[form](location, "events").snapshot()
    assert (fresh.frontier(P0), fresh.epoch, fresh.version) == (80, 1, table.snapshot().version)


def test_the_protocol_stays_where_every_engine_reads(delta: PipelineTable) -> None:
    protocol = delta_client(delta.location).protocol()
    assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
