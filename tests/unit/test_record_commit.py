"""What a commit of records leaves behind, wherever it ends: nothing, or an entry with all of its files."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import NoReturn
from uuid import uuid4

import pyarrow as pa
import pytest

from headrace.writer.batch.task import Piece
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.commit.builder import StagedTooLongAgo
from headrace.writer.core.errors import SchemaChanged
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.maintenance.record_commit import RecordCommit, RecordTable
from headrace.writer.storage.base import OutcomeUnknown, StoreError
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.log.appender import LostRace, TableConverted, TableSuperseded
from headrace.writer.table.log.foreign_writes import (
    CommitFailed,
    FilesGone,
    ForeignChange,
    LiveDeleteFiles,
    Overtaken,
    TableUnwritable,
)
from headrace.writer.table.log.operations.rows import Replay
from headrace.writer.table.row_removal import count_rows, mask_offsets
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, event, value

P0 = TopicPartition("clicks", 1, 0)
UNKNOWN = OutcomeUnknown("put", "the log", "no answer", "Look.")
# By these the log refuses an entry.
REFUSALS = [
    FilesGone("gone"), LiveDeleteFiles("live"), LostRace("lost"), Overtaken("overtaken"), SchemaChanged("another"),
    TableConverted("to another"), TableSuperseded("by another"), TableUnwritable("protocol"),
]  # fmt: skip
# After these an entry may be there.
UNCLEAR = [UNKNOWN, CommitFailed("none"), ForeignChange("dropped"), KeyboardInterrupt(), RuntimeError("unforeseen")]
STEPS = ["while records are read", "after the task", "in a second task", "once rows are removed", "as it is built"]


def name_error(error: BaseException) -> str:
    return type(error).__name__


def wider(number: int) -> bytes:
    return value(2, WIDER, {"id": number, "at": NOW, "note": None, "extra": number})


@dataclass
class Lake:
    """A table with 20 rows, and records that come again: rows, one with a new column, and a dead letter."""

    driver: Driver
    schemas: Schemas = field(default_factory=lambda: Schemas({1: EVENT, 2: WIDER}, [1]))

    def __post_init__(self) -> None:
        driver = self.driver
        driver.start()
        driver.carry([log({offset: event(offset) for offset in range(20)})], {0: 20})
        self.files_before = self.files()
        self.snapshot = driver.table.snapshot()
        self.pipeline = open_local_pipeline("clicks", driver.config, self.schemas, tables=driver.tables)

    def files(self) -> set[Path]:
        """Return the files of rows and dead letters, also those that wait for a commit."""
        root = Path(self.driver.lake).parent
        paths = (path for suffix in ("parquet", "staged") for path in root.rglob(f"*.{suffix}"))
        return {path for path in paths if "_delta_log" not in path.parts}

    def entries(self) -> list[str]:
        """Return the kinds of the entries since, those of columns left out."""
        entries = self.driver.table.history()
        return [entry.kind for entry in entries if entry.version > self.snapshot.version and entry.kind != "columns"]

    def commit(self, start: datetime | None = None) -> RecordCommit:
        return RecordCommit(self.driver.tables, self.pipeline, start=start)

    def run_task(self, commit: RecordCommit, then: Callable[[], None] = lambda: None, incarnation: int = 1) -> None:
        """Run a task on the records. `then` is called once they were read."""
        values = {30: event(30), 31: wider(31), 32: b"\0\0\0\0\1cut"}

        def read(_: SchemaPlan) -> Iterator[Piece]:
            yield Piece(log(values))
            then()

        incarnations = {"clicks": incarnation}
        commit.run_task(incarnations, read, lambda _: self.pipeline.task_plan(NOW, "again", incarnations))

    def remove_rows(self, commit: RecordCommit) -> None:
        """Stage what is left of the files without the row at offset 3."""
        table = self.driver.table
        offsets = OffsetSet({P0: [(3, 4)]})
        removal = commit.remove_rows(
            table.bucket_files(self.snapshot),
            partial(count_rows, table.store, offsets=offsets),
            partial(mask_offsets, offsets=offsets),
            columns=self.driver.columns,
            prefix="again",
            rule=self.pipeline.time_rule,
        )
        assert removal.rows == 1
        assert removal.rewritten

    def build_operation(self, commit: RecordCommit) -> Replay:
        moves = commit.moves({part: {"rows": 0, "dead_letters": 3} for part in commit.counts})
        facts = {
            "started": NOW.isoformat(),
            "moves": [{**vars(part), **exits} for part, exits in moves.items()],
            "letters": 3,
            **commit.row_facts(),
        }
        replays = self.snapshot.replays
        files = commit.report.files
        return Replay(
            uuid4().hex, replays, files, commit.side_files, {}, facts, commit.meanings, commit.privacy_version
        )

    def append(self, commit: RecordCommit) -> int:
        return commit.append(partial(self.build_operation, commit), self.snapshot)

    def commit_records(
        self,
        *,
        start: datetime | None = None,
        before_append: Callable[[], None] = lambda: None,
        after_append: Callable[[], None] = lambda: None,
    ) -> None:
        """Take the steps of a commit."""
        with self.commit(start) as commit:
            self.run_task(commit)
            before_append()
            self.append(commit)
            after_append()

    def rows(self) -> int:
        return self.driver.table.rows().count_rows()

    def dead_letters(self) -> int:
        return self.driver.side(self.driver.dead_letters).rows().count_rows()


@pytest.fixture(params=["delta", "parquet"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    return Lake(Driver(tmp_path, request.param))


@pytest.fixture(scope="module", params=["delta", "parquet"])
def unchanged_lake(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Return the lake of all tests that leave it as it is, which each of them checks at its end."""
    return Lake(Driver(tmp_path_factory.mktemp("unchanged"), request.param))


def raise_error(error: BaseException) -> NoReturn:
    raise error


def fail_before_the_entry(lake: Lake, actions: Mapping[str, Callable[[], None]], error: BaseException) -> None:
    """Take the actions of the steps before the entry; its operation cannot be built."""
    with lake.commit() as commit:
        lake.run_task(commit, actions["while records are read"])
        actions["after the task"]()
        lake.run_task(commit, actions["in a second task"], incarnation=2)
        lake.remove_rows(commit)
        actions["once rows are removed"]()
        commit.append(partial(raise_error, error), lake.snapshot)


def check_nothing_is_left(lake: Lake) -> None:
    assert lake.files() == lake.files_before
    assert lake.entries() == []


def test_rows_columns_and_dead_letters_come_with_one_entry(lake: Lake) -> None:
    with lake.commit() as commit:
        lake.run_task(commit)
        assert lake.append(commit) > lake.snapshot.version
    assert lake.entries() == ["replay"]
    assert (lake.rows(), lake.dead_letters()) == (22, 1)
    assert "extra" in lake.driver.table.snapshot().columns().names
    assert commit.moves({P0: {"rows": 0, "dead_letters": 3}}) == {P0: {"rows": 2, "dead_letters": -2}}


def test_files_without_a_commit_are_removed(unchanged_lake: Lake) -> None:
    with unchanged_lake.commit() as commit:
        unchanged_lake.run_task(commit)
        unchanged_lake.remove_rows(commit)
        assert len(unchanged_lake.files()) >= len(unchanged_lake.files_before) + 3
    check_nothing_is_left(unchanged_lake)


@pytest.mark.parametrize(
    "error", [RuntimeError("failed"), KeyboardInterrupt(), CommitFailed("none"), UNKNOWN], ids=name_error
)
@pytest.mark.parametrize("step", STEPS)
def test_a_failure_before_the_entry_is_written_leaves_no_file(
    unchanged_lake: Lake, step: str, error: BaseException
) -> None:
    actions: dict[str, Callable[[], None]] = dict.fromkeys(STEPS, lambda: None)
    actions[step] = partial(raise_error, error)
    with pytest.raises(type(error)):
        fail_before_the_entry(unchanged_lake, actions, error)
    check_nothing_is_left(unchanged_lake)


def test_files_that_a_vacuum_may_remove_are_not_committed(unchanged_lake: Lake) -> None:
    orphan_retention = unchanged_lake.driver.settings.table.orphan_retention
    start = datetime.now(UTC) - orphan_retention / 2 - timedelta(seconds=1)
    with pytest.raises(StagedTooLongAgo):
        unchanged_lake.commit_records(start=start)
    check_nothing_is_left(unchanged_lake)


def test_a_column_that_does_not_fit_leaves_no_file(lake: Lake) -> None:
    other_client = partial(lake.driver.table.grow, [pa.field("extra", pa.string())])
    with pytest.raises(CommitFailed, match="extra"):
        lake.commit_records(before_append=other_client)
    check_nothing_is_left(lake)


def test_of_two_commits_on_the_same_records_the_second_leaves_no_file(lake: Lake) -> None:
    lake.commit_records()
    files = lake.files()
    with pytest.raises(Overtaken):
        lake.commit_records()
    assert lake.files() == files
    assert lake.entries() == ["replay"]
    assert (lake.rows(), lake.dead_letters()) == (22, 1)


@pytest.mark.parametrize("error", REFUSALS, ids=name_error)
def test_an_entry_that_the_log_refuses_leaves_no_file(
    unchanged_lake: Lake, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unchanged_lake.driver.table, "append", lambda *_: raise_error(error))
    with pytest.raises(type(error)):
        unchanged_lake.commit_records()
    check_nothing_is_left(unchanged_lake)


@pytest.mark.parametrize("is_written", [True, False], ids=["written", "not-written"])
@pytest.mark.parametrize("error", UNCLEAR, ids=name_error)
def test_files_that_an_entry_may_name_stay(
    lake: Lake, error: BaseException, is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = lake.driver.table.append

    def lose_answer(*arguments: object) -> None:
        if is_written:
            append(*arguments)  # type: ignore[arg-type]
        raise error

    monkeypatch.setattr(lake.driver.table, "append", lose_answer)
    with pytest.raises(type(error)):
        lake.commit_records()
    assert len(lake.files()) >= len(lake.files_before) + 2
    assert lake.entries() == ["replay"] * is_written
    lake.driver.tables.apply_side_files()
    assert (lake.rows(), lake.dead_letters()) == ((22, 1) if is_written else (20, 0))


@pytest.mark.parametrize("error", [*REFUSALS, *UNCLEAR], ids=name_error)
def test_an_entry_keeps_its_files_where_side_files_are_not_applied(
    lake: Lake, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(lake.driver.tables, "apply_side_files", partial(raise_error, error))
        with pytest.raises(type(error)):
            lake.commit_records()
    assert (lake.rows(), lake.dead_letters()) == (22, 0)
    lake.driver.tables.apply_side_files()
    assert (lake.rows(), lake.dead_letters()) == (22, 1)
    assert lake.entries() == ["replay"]


@pytest.mark.parametrize("error", [*REFUSALS, *UNCLEAR], ids=name_error)
def test_an_entry_keeps_its_files_where_the_block_fails_after_it(lake: Lake, error: BaseException) -> None:
    with pytest.raises(type(error)):
        lake.commit_records(after_append=partial(raise_error, error))
    lake.driver.tables.apply_side_files()
    assert (lake.rows(), lake.dead_letters()) == (22, 1)


def test_a_storage_that_removes_nothing_does_not_hide_the_failure(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StoreError("delete", "a file", "it is read-only", "Look.")

    monkeypatch.setattr(LocalStore, "delete", refuse)
    with pytest.raises(RuntimeError, match="the first"):
        lake.commit_records(before_append=partial(raise_error, RuntimeError("the first")))


def test_a_table_that_cannot_be_opened_does_not_hide_the_failure(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    unreadable = partial(raise_error, CommitFailed("cannot read the table"))
    monkeypatch.setattr(lake.driver.tables, "side", lambda _: unreadable())
    with pytest.raises(KeyboardInterrupt):
        lake.commit_records(before_append=partial(raise_error, KeyboardInterrupt()))


def test_side_files_that_are_discarded_are_in_no_entry(lake: Lake) -> None:
    with lake.commit() as commit:
        lake.run_task(commit)
        commit.discard_side_files()
        lake.append(commit)
    assert (lake.rows(), lake.dead_letters()) == (22, 0)
    assert not {path for path in lake.files() - lake.files_before if "dead_letters" in str(path)}


def test_a_pipeline_is_opened_anew_where_its_log_has_other_columns(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start()
    record_table = RecordTable("clicks", driver.config, driver.schemas)
    pipeline = record_table.pipeline
    record_table.refresh()
    assert record_table.pipeline is pipeline
    driver.table.grow([pa.field("extra", pa.int64())])
    record_table.refresh()
    assert record_table.pipeline is not pipeline
    assert "extra" in record_table.pipeline.schemas.columns().names
