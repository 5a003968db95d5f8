"""Rows that are removed from files: what was staged goes where no entry can name it, and stays where one may."""

from pathlib import Path
from timeit import repeat

import pytest
from deltalake import DeltaTable

from headrace.writer.core.errors import SchemaChanged
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from headrace.writer.storage.base import OutcomeUnknown, StoreError
from headrace.writer.table.log.appender import LostRace, TableConverted, TableSuperseded
from headrace.writer.table.log.entries import SideEntry
from headrace.writer.table.log.foreign_writes import (
    CommitFailed,
    FilesGone,
    ForeignChange,
    LiveDeleteFiles,
    Overtaken,
    TableUnwritable,
)
from headrace.writer.table.row_removal import discard_on_failure, discard_on_refusal, reaches_offsets
from tests.support.local_driver import Driver, log
from tests.support.sample_records import event

OFFSETS = OffsetSet({TopicPartition("clicks", 1, 0): [(3, 4)]})
REFUSALS = [
    FilesGone, LiveDeleteFiles, LostRace, Overtaken, SchemaChanged, TableConverted, TableSuperseded, TableUnwritable,
]  # fmt: skip
UNCLEAR = [
    OutcomeUnknown("put", "the log", "no answer", "Look."), CommitFailed("none"), ForeignChange("dropped"),
    KeyboardInterrupt(), RuntimeError("unforeseen"),
]  # fmt: skip


def fill_table(root: Path, form: str) -> Driver:
    """Make a table with 20 rows."""
    driver = Driver(root, form)
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(20)})], {0: 20})
    return driver


@pytest.fixture(params=["delta", "parquet"])
def driver(request: pytest.FixtureRequest, tmp_path: Path) -> Driver:
    return fill_table(tmp_path, request.param)


def staged_files(driver: Driver) -> set[Path]:
    return set(Path(driver.lake).rglob("again-*"))


def fail_with_the_entry(driver: Driver, error: BaseException) -> None:
    """Remove a row, in an entry that fails."""
    table = driver.table
    with table.stage_without_offsets(table.snapshot(), OFFSETS, "again") as removal:
        assert (removal.rows, len(staged_files(driver))) == (1, 1)
        raise error


@pytest.mark.parametrize("error", [error("refused") for error in REFUSALS], ids=lambda error: type(error).__name__)
def test_rewritten_files_go_where_the_log_refuses_the_entry(driver: Driver, error: Exception) -> None:
    with pytest.raises(type(error)):
        fail_with_the_entry(driver, error)
    assert staged_files(driver) == set()


@pytest.mark.parametrize("error", UNCLEAR, ids=lambda error: type(error).__name__)
def test_rewritten_files_stay_where_an_entry_may_name_them(driver: Driver, error: BaseException) -> None:
    with pytest.raises(type(error)):
        fail_with_the_entry(driver, error)
    assert len(staged_files(driver)) == 1


@pytest.mark.parametrize("error", [FilesGone("gone"), *UNCLEAR], ids=lambda error: type(error).__name__)
def test_staged_files_go_where_a_step_before_the_entry_fails(error: BaseException) -> None:
    discarded = []
    with pytest.raises(type(error)), discard_on_failure(lambda: discarded.append(1)):
        raise error
    assert discarded == [1]


def test_a_table_that_takes_no_entry_gets_no_files_however_often_it_is_tried(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta")
    DeltaTable(driver.lake).alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 7 days"})
    files = set(Path(driver.lake).rglob("*.parquet"))
    for _ in range(3):
        with pytest.raises(ForeignChange, match="setTransactionRetentionDuration"):
            driver.table.apply_side(SideEntry(1, withdrawn=OFFSETS))
    assert set(Path(driver.lake).rglob("*.parquet")) == files


def test_a_file_that_reaches_the_first_of_many_spans_is_told_at_once() -> None:
    offsets = OffsetSet({TopicPartition("clicks", 1, 0): [(10 * i, 10 * i + 1) for i in range(50_000)]})
    near = BucketFile("near", ("a",), 10, 100, offset_min=0, offset_max=9)
    beyond = BucketFile("beyond", ("a",), 10, 100, offset_min=600_000, offset_max=700_000)
    assert reaches_offsets(near, offsets)
    assert not reaches_offsets(beyond, offsets)
    near_s = min(repeat(lambda: reaches_offsets(near, offsets), number=1, repeat=5))
    beyond_s = min(repeat(lambda: reaches_offsets(beyond, offsets), number=1, repeat=5))
    assert near_s < beyond_s / 10


def test_a_storage_that_removes_nothing_does_not_hide_what_failed() -> None:
    def refuse() -> None:
        raise StoreError("delete", "a file", "it is read-only", "Look.")

    with pytest.raises(KeyboardInterrupt), discard_on_failure(refuse):
        raise KeyboardInterrupt
    with pytest.raises(FilesGone), discard_on_refusal(refuse):
        raise FilesGone("gone")
