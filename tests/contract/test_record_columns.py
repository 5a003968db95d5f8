"""Keys and headers of records are columns: in the stream and at every other exit, in each format."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pydantic import ValidationError

from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.table.log.operations.seals import Closing
from tests.support import oracle
from tests.support.backfill_gaps import fill_from_archives, skip_offsets
from tests.support.local_driver import Driver, log
from tests.support.record_columns import check_sound, start_driver
from tests.support.sample_records import NOW, event
from tests.support.small_files import compactor

COLUMNS = {
    "key": "string", "headers": "_headers",
    "header_columns": {"trace": "trace-id", "size": {"header": "n", "type": "long"}},
}  # fmt: skip
OLD = NOW - timedelta(days=99)


def shown(location: str) -> list[tuple[object, ...]]:
    result_rows = oracle.rows(Path(location), "_offset, _key, _headers['trace-id'], trace, size", "ORDER BY 1")
    return [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in result_rows]


def test_a_table_that_exists_has_them_from_the_next_commit_on(tmp_path: Path, form: str) -> None:
    start_driver(tmp_path, form).carry([log({0: event(0)})], {0: 1})
    driver = start_driver(tmp_path, form, COLUMNS)
    driver.carry([log({1: event(1), 2: event(2)}, headers={1: {"trace-id": b"t", "n": b"7"}})], {0: 3})
    assert shown(driver.lake) == [(0, None, None, None, None), (1, "k1", b"t", "t", 7), (2, "k2", None, None, None)]
    check_sound(driver)
    without = start_driver(tmp_path, form)
    without.carry([log({3: event(3)})], {0: 4})
    assert shown(driver.lake)[-1] == (3, None, None, None, None), "a column that is not asked for any more stays"
    check_sound(without)


def test_a_record_without_the_type_of_its_column_is_a_dead_letter_with_its_headers(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, COLUMNS)
    driver.carry([log({0: event(0), 1: event(1)}, headers={1: {"n": b"many", "trace-id": b"t"}})], {0: 2})
    assert shown(driver.lake) == [(0, "k0", None, None, None)]
    result_rows = oracle.rows(Path(driver.dead_letters), "_offset, key, error, headers[1].key, headers[2].value")
    assert result_rows == [(1, b"k1", "the header 'n' is no long", "n", b"t")]
    check_sound(driver)
    lenient = start_driver(tmp_path, form, {**COLUMNS, "undecodable": "null"})
    assert DeadLetterReplay("clicks", lenient.config, lenient.schemas).run(Selection(), NOW).rows == 1
    assert shown(driver.lake)[1] == (1, "k1", b"t", "t", None)
    check_sound(lenient)


def test_a_replayed_dead_letter_has_its_key_and_its_headers(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, COLUMNS)
    driver.carry([log({0: event(0, event_time=OLD)}, headers={0: {"trace-id": b"t"}})], {0: 1})
    assert shown(driver.lake) == []
    assert DeadLetterReplay("clicks", driver.config, driver.schemas).run(Selection(), OLD).rows == 1
    assert shown(driver.lake) == [(0, "k0", b"t", "t", None)]
    check_sound(driver)


def test_rows_and_dead_letters_are_deleted_by_key(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, COLUMNS)
    driver.carry([log({0: event(0), 1: event(1), 2: event(2, event_time=OLD), 3: event(3, event_time=OLD)})], {0: 4})
    for key in ("k1", "k2"):
        run_deletion(
            driver.config, DeletionRequest("clicks", where(f"_key = '{key}'"), NOW), driver.schemas, write=True
        )
    assert [row[1] for row in shown(driver.lake)] == ["k0"]
    assert oracle.rows(Path(driver.dead_letters), "key") == [(b"k3",)]
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_late_rows_have_them_in_their_table(tmp_path: Path, form: str) -> None:
    seal = {"late": "late_table"}
    driver = start_driver(tmp_path, form, COLUMNS, seal=seal)
    driver.carry([log({0: event(0)})], {0: 1})
    closing = Closing("c", NOW + timedelta(days=1), {"reason": "command"})
    driver.table.append(closing, driver.table.snapshot())
    driver.carry([log({1: event(1)}, headers={1: {"trace-id": b"late"}})], {0: 2})
    assert shown(str(driver.settings.late_table)) == [(1, "k1", b"late", "late", None)]
    check_sound(driver)


def with_gap(root: Path, form: str) -> Driver:
    """A table that ends at 1, and a gap up to 3."""
    driver = start_driver(root, form, COLUMNS)
    driver.carry([log({0: event(0)})], {0: 1})
    skip_offsets(driver, 3)
    return driver


def test_a_copy_of_such_a_table_brings_them_to_a_gap(tmp_path: Path, form: str) -> None:
    driver, other = with_gap(tmp_path, form), start_driver(tmp_path / "other", form, COLUMNS)
    other.carry([log({n: event(n) for n in range(3)}, headers={2: {"trace-id": b"t", "n": b"2"}})], {0: 3})
    fill_from_archives(driver, Path(other.lake))
    assert shown(driver.lake)[1:] == [(1, "k1", None, None, None), (2, "k2", b"t", "t", 2)]
    check_sound(driver)


def test_an_archive_of_records_brings_them_to_a_gap(tmp_path: Path, form: str) -> None:
    driver = with_gap(tmp_path, form)
    (tmp_path / "archive").mkdir()
    records = log({1: event(1), 2: event(2)}, headers={1: {"n": b"1"}, 2: {"trace-id": b"t"}})
    pq.write_table(pa.Table.from_batches([records]), tmp_path / "archive" / "part-0.parquet")
    fill_from_archives(driver, tmp_path / "archive")
    assert shown(driver.lake)[1:] == [(1, "k1", None, None, 1), (2, "k2", b"t", "t", None)]
    check_sound(driver)


def test_a_merged_bucket_keeps_them(tmp_path: Path, form: str) -> None:
    driver = start_driver(tmp_path, form, COLUMNS)
    for n in range(3):
        driver.carry([log({n: event(n, event_time=NOW)}, headers={n: {"trace-id": b"t"}})], {0: n + 1})
    before = shown(driver.lake)
    snapshot = driver.table.snapshot()
    (bucket,) = {file.bucket for file in driver.table.bucket_files(snapshot)}
    pieces = compactor(driver).plan(snapshot, [bucket], open_too=True)[bucket]
    (result,) = compactor(driver).carry_out(snapshot, pieces, here)
    assert (result.removed, result.files, result.rows) == (3, 1, 3)
    assert shown(driver.lake) == before
    check_sound(driver)


def test_preview_shows_them(tmp_path: Path) -> None:
    driver = start_driver(tmp_path, "delta", COLUMNS)
    sample = open_local_pipeline("clicks", driver.config, driver.schemas).assign_buckets(
        log({0: event(0)}, headers={0: {"n": b"7"}}), NOW
    )
    (group,) = sample.groups
    assert group.rows.select(["_key", "_headers", "trace", "size"]).to_pylist() == [
        {"_key": "k0", "_headers": [("n", b"7")], "trace": None, "size": 7}
    ]


@pytest.mark.parametrize(
    ("columns", "problem"),
    [
        ({"key": "text"}, "columns.key.type"),
        ({"headers": "_offset"}, "'_offset' is the name of two columns"),
        ({"key": "string", "header_columns": {"_KEY": "k"}}, "'_key' is the name of two columns"),
        ({"header_columns": {"n": {"header": "n", "type": "int"}}}, "columns.header_columns.n.type"),
    ],
)
def test_a_column_that_cannot_be_is_a_sentence(tmp_path: Path, columns: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(problem)):
        Driver(tmp_path, columns=columns)
