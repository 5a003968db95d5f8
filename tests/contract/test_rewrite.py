"""What every table format promises of rewrites: rows exact, whoever else writes, and whenever the writer dies."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa
import pytest

from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.table.log.foreign_writes import FilesGone, ForeignChange
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from headrace.writer.table.table import PipelineTable
from tests.support.table_formats import OPENED
from tests.support.tables import (
    P0,
    add,
    batch,
    begin,
    create_table,
    delta,
    delta_client,
    location,
    rows,
    table,
    write_file,
)

__all__ = ["add", "delta", "location", "table"]
FIVE, SIX = ("2026-11-20T05",), ("2026-11-20T06",)
Stage = Callable[..., StagedFile]


@pytest.fixture
def stage(location: str, form: str) -> Stage:
    return lambda rows, hour=FIVE[0]: write_file(location, hour, rows, form)


def rewrite(removed: list[BucketFile], *files: StagedFile, taken: RemovedRows | None = None) -> Rewrite:
    return Rewrite(uuid4().hex, removed, files, taken, {"why": "compact"})


def filled(table: PipelineTable, stage: Stage) -> int:
    """Three files of one bucket, one of another. Returns the epoch."""
    epoch = begin(table)
    for n in range(3):
        table.append(batch(epoch, 10 * n, 10 * n + 10, stage(10)), table.snapshot())
    table.append(batch(epoch, 30, 35, stage(5, SIX[0])), table.snapshot())
    return epoch


def test_the_files_of_a_bucket_are_listed_from_the_log(table: PipelineTable, stage: Stage) -> None:
    filled(table, stage)
    snapshot = table.snapshot()
    bucket_files = table.bucket_files(snapshot, FIVE)
    assert [(file.bucket, file.rows) for file in bucket_files] == [(FIVE, 10)] * 3
    assert all(file.path.startswith("hour=2026-11-20T05/") and file.bytes > 0 for file in bucket_files)
    noon = datetime(2026, 11, 20, 5, tzinfo=UTC)
    assert {(file.event_time_min, file.event_time_max) for file in bucket_files} == {(noon, noon)}
    assert [file.rows for file in table.bucket_files(snapshot, SIX)] == [5]
    assert sorted(table.bucket_files(snapshot), key=lambda f: f.path) == sorted(
        [*bucket_files, *table.bucket_files(snapshot, SIX)], key=lambda f: f.path
    )
    assert table.bucket_files(snapshot, ("2026-11-20T07",)) == []


def test_files_are_listed_at_the_version_of_the_snapshot(table: PipelineTable, stage: Stage) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    looked = table.snapshot()
    (old,) = table.bucket_files(looked, FIVE)
    table.append(rewrite([old], stage(10)), looked)
    (new,) = table.bucket_files(table.snapshot(), FIVE)
    assert table.bucket_files(looked, FIVE) == [old] != [new]


def test_a_checkpoint_changes_nothing_about_the_list(location: str, form: str, stage: Stage) -> None:
    table = OPENED[form](location, "events", checkpoint_interval=1)
    table.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
    epoch = begin(table)
    for n in range(4):
        files = [stage(10), stage(5, SIX[0])]
        table.append(batch(epoch, 10 * n, 10 * n + 10, *files), table.snapshot())
        if n == 2:
            before = table.bucket_files(table.snapshot())
            table.tidy()
            fresh = OPENED[form](location, "events")
            assert fresh.bucket_files(fresh.snapshot()) == before
    again = OPENED[form](location, "events")
    assert again.bucket_files(again.snapshot()) == table.bucket_files(table.snapshot())
    assert [file.rows for file in again.bucket_files(again.snapshot(), FIVE)] == [10] * 4


def test_a_bucket_without_a_value_is_listed(location: str, form: str) -> None:
    table = create_table(location, form)
    epoch = begin(table)
    file = write_file(location, "x", 3, form)
    null = StagedFile(file.path, (None,), 3, file.bytes, file.statistics, file.event_time_min, file.event_time_max, {})
    table.append(batch(epoch, 0, 3, null), table.snapshot())
    if form == "delta":
        delta_client(location).create_checkpoint()
    assert [file.rows for file in table.bucket_files(table.snapshot(), (None,))] == [3]


def test_a_rewrite_swaps_files_and_moves_no_offset(table: PipelineTable, stage: Stage) -> None:
    filled(table, stage)
    before = table.snapshot()
    version = table.append(rewrite(table.bucket_files(before, FIVE), stage(30)), before)
    snapshot = table.snapshot()
    assert (snapshot.version, rows(table)) == (version, 35)
    assert [file.rows for file in table.bucket_files(snapshot, FIVE)] == [30]
    assert (snapshot.frontier(P0), snapshot.epoch) == (before.frontier(P0), before.epoch)


def test_only_a_rewrite_that_takes_rows_changes_data(table: PipelineTable, stage: Stage) -> None:
    filled(table, stage)

    def changes() -> set[tuple[str, bool]]:
        ((_, actions),) = table.entries(table.snapshot().version - 1)
        return {(kind, a[kind]["dataChange"]) for a in actions for kind in ("add", "remove") if kind in a}

    table.append(rewrite(table.bucket_files(table.snapshot(), FIVE), stage(30)), table.snapshot())
    assert changes() == {("add", False), ("remove", False)}
    some = rewrite(table.bucket_files(table.snapshot(), FIVE), stage(28), taken=RemovedRows("dedupe", 2))
    table.append(some, table.snapshot())
    assert changes() == {("add", True), ("remove", True)}
    table.append(rewrite(table.bucket_files(table.snapshot()), taken=RemovedRows("retention", 33)), table.snapshot())
    assert changes() == {("remove", True)}
    assert rows(table) == 0


def test_a_rewrite_whose_rows_do_not_add_up_cannot_be_made() -> None:
    there = [BucketFile("a", FIVE, 10, 1)]
    with pytest.raises(ValueError, match="10 rows leaves 0 and takes 9"):
        Rewrite("1", there, (), RemovedRows("dedupe", 9))
    with pytest.raises(ValueError, match="at least one file"):
        Rewrite("1", [])
    Rewrite("1", [BucketFile("a", FIVE, None, 1)], (), RemovedRows("dedupe", 9))  # nobody knows


def test_of_two_rewrites_of_one_bucket_the_second_is_refused(table: PipelineTable, stage: Stage) -> None:
    filled(table, stage)
    snapshot = other = table.snapshot()
    files = table.bucket_files(snapshot, FIVE)
    version = table.append(rewrite(files, stage(30)), snapshot)
    with pytest.raises(FilesGone, match=f"version {version} of .* removed"):
        table.append(rewrite(files[:2], stage(20)), other)
    assert rows(table) == 35


def test_rewrites_of_other_files_appends_and_columns_in_between_do_no_harm(table: PipelineTable, stage: Stage) -> None:
    epoch = filled(table, stage)
    looked = table.snapshot()
    files = table.bucket_files(looked, FIVE)
    table.append(rewrite(files[:1], stage(10)), looked)
    table.append(rewrite(table.bucket_files(looked, SIX), stage(5, SIX[0])), looked)
    table.append(batch(epoch, 35, 45, stage(10)), table.snapshot())
    table.grow([pa.field("price", pa.float64())], epoch)
    table.append(rewrite(files[1:], stage(20)), looked)
    assert rows(table) == 45
    assert sorted(file.rows or 0 for file in table.bucket_files(table.snapshot(), FIVE)) == [10, 10, 20]


def test_a_rewrite_in_between_does_not_stop_a_commit(table: PipelineTable, stage: Stage) -> None:
    epoch = filled(table, stage)
    looked = table.snapshot()
    table.append(rewrite(table.bucket_files(looked, FIVE), stage(30)), looked)
    table.append(batch(epoch, 35, 45, stage(10)), looked)
    assert rows(table) == 45
    assert table.commits_since(looked.version)[0].facts["kind"] == "rewrite"


def test_a_later_start_does_not_stop_a_rewrite(table: PipelineTable, stage: Stage) -> None:
    filled(table, stage)
    looked = table.snapshot()
    table.begin({}, {"clicks": ["uuid-1"]})
    table.append(rewrite(table.bucket_files(looked, FIVE), stage(30)), looked)
    assert rows(table) == 35


def test_a_rewrite_whose_answer_was_lost_stands_once(
    table: PipelineTable, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(table, stage)
    write = table.write

    def lost(*args: object) -> None:
        write(*args)  # type: ignore[arg-type]
        raise OSError("connection reset")

    monkeypatch.setattr(table, "write", lost)
    version = table.append(rewrite(table.bucket_files(table.snapshot(), FIVE), stage(30)), table.snapshot())
    assert (table.snapshot().version, rows(table)) == (version, 35)


def test_a_table_made_anew_takes_no_rewrite_of_the_old_one(delta: PipelineTable, add: Stage) -> None:
    epoch = begin(delta)
    delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    looked = delta.snapshot()
    files, store = delta.bucket_files(looked), OPENED["delta"](delta.location, "events")._log._store  # type: ignore[attr-defined]
    for name in list(store.list()):
        store.delete(name)
    other = create_table(delta.location, "delta")
    for _ in range(4):
        begin(other)
    with pytest.raises(FilesGone, match="made again"):
        delta.append(rewrite(files, add(10)), looked)


def test_a_delete_of_another_client_comes_before_a_rewrite(delta: PipelineTable, add: Stage) -> None:
    epoch = begin(delta)
    delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    looked = delta.snapshot()
    files = delta.bucket_files(looked)
    delta_client(delta.location).delete("id < 4")
    with pytest.raises(FilesGone):
        delta.append(rewrite(files, add(10)), looked)
    assert rows(delta) == 6


def test_an_optimize_of_another_client_comes_before_a_rewrite(delta: PipelineTable, add: Stage) -> None:
    epoch = begin(delta)
    for n in range(3):
        delta.append(batch(epoch, 10 * n, 10 * n + 10, add(10)), delta.snapshot())
    looked = delta.snapshot()
    files = delta.bucket_files(looked)
    delta_client(delta.location).optimize.compact()
    with pytest.raises(FilesGone):
        delta.append(rewrite(files, add(30)), looked)
    (theirs,) = delta.bucket_files(delta.snapshot())
    assert (rows(delta), theirs.rows, theirs.event_time_min) == (30, 30, None)
    delta.append(rewrite([theirs], add(30)), delta.snapshot())
    assert rows(delta) == 30


def test_of_a_rewrite_and_a_delete_of_another_client_the_delete_is_refused(delta: PipelineTable, add: Stage) -> None:
    from deltalake.exceptions import CommitFailedError

    epoch = begin(delta)
    delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    theirs = delta_client(delta.location)
    delta.append(rewrite(delta.bucket_files(delta.snapshot()), add(10)), delta.snapshot())
    with pytest.raises(CommitFailedError):
        theirs.delete("id < 4")
    assert rows(delta) == 10


def test_a_restore_in_between_stops_a_rewrite(delta: PipelineTable, add: Stage) -> None:
    epoch = begin(delta)
    first = delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    delta.append(batch(epoch, 10, 20, add(10)), delta.snapshot())
    looked = delta.snapshot()
    files = delta.bucket_files(looked)
    delta_client(delta.location).restore(first)
    with pytest.raises((FilesGone, ForeignChange)):
        delta.append(rewrite(files, add(20)), looked)
    assert rows(delta) == 10


def test_the_log_that_was_cleaned_up_takes_no_rewrite(delta: PipelineTable, add: Stage) -> None:
    """What was removed meanwhile cannot be known any more."""
    epoch = begin(delta)
    delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    looked = delta.snapshot()
    files = delta.bucket_files(looked)
    delta.append(batch(epoch, 10, 20, add(10)), delta.snapshot())
    delta.append(batch(epoch, 20, 30, add(10)), delta.snapshot())
    delta_client(delta.location).create_checkpoint()
    delta._log._store.delete(f"{looked.version + 1:020}.json")
    with pytest.raises(FilesGone, match="has lost versions"):
        delta.append(rewrite(files, add(10)), looked)


def test_an_entry_of_a_rewrite_has_its_facts(table: PipelineTable, stage: Stage) -> None:
    filled(table, stage)
    some = rewrite(table.bucket_files(table.snapshot(), FIVE), stage(28), taken=RemovedRows("dedupe", 2))
    version = table.append(some, table.snapshot())
    ((_, actions),) = table.entries(version - 1)
    about = json.loads(actions[0]["commitInfo"]["headrace"])
    assert about == {"kind": "rewrite", "id": some.id, "taken": {"why": "dedupe", "rows": 2}, "why": "compact"}


def test_times_of_files_outlive_the_log(delta: PipelineTable, add: Stage) -> None:
    epoch = begin(delta)
    delta.append(batch(epoch, 0, 10, add(10)), delta.snapshot())
    delta_client(delta.location).create_checkpoint()
    (file,) = OPENED["delta"](delta.location, "events").bucket_files(delta.snapshot())
    assert file.event_time_min == datetime(2026, 11, 20, 5, tzinfo=UTC)
    assert file.event_time_max - file.event_time_min == timedelta(0)  # type: ignore[operator]
