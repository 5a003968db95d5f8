"""What other clients do to an Iceberg table that headrace cannot see through, and rewinds that take it back."""

from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import And, EqualTo, LessThan, NotEqualTo
from pyiceberg.io.pyarrow import _dataframe_to_data_files
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, FileFormat
from pyiceberg.table import Table

from headrace.recovery.rewind.execution import RewindExecution
from headrace.writer.audit.audit import audit
from headrace.writer.table.log.foreign_writes import ForeignChange, LiveDeleteFiles
from headrace.writer.table.log.operations.rows import RemovedRows, Rewrite
from tests.support.foreign_iceberg import delete_rows_by_file
from tests.support.iceberg_clients import client_table, overwrite_rows
from tests.support.local_driver import Driver
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import NOW
from tests.support.small_files import carry, fill_table


def test_changes_whose_snapshots_expired_are_no_rollback(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    for offset in (1, 2):
        client_table(driver).delete(EqualTo("_offset", offset))
    other = client_table(driver)
    other.maintenance.expire_snapshots().by_id(other.metadata.snapshots[-2].snapshot_id).commit()
    with pytest.raises(ForeignChange, match="changes whose snapshots expired"):
        carry(driver, 6)


def position_deletes(table: Table, offset: int) -> None:
    """Delete one row as a client does that writes no file anew."""
    (task,) = table.scan(EqualTo("_offset", offset)).plan_files()
    path = f"{table.location().removeprefix('file://')}/data/deletes-{offset}.parquet"
    Path(path).parent.mkdir(exist_ok=True)
    rows = pq.read_table(task.file.file_path.removeprefix("file://"), columns=["_offset"])["_offset"].to_pylist()
    fields = [
        pa.field("file_path", pa.string(), metadata={"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), metadata={"PARQUET:field_id": "2147483545"}),
    ]
    pq.write_table(pa.table([[task.file.file_path], [rows.index(offset)]], schema=pa.schema(fields)), path)
    named = task.file.file_path.encode()
    bounds = {"lower_bounds": {2147483546: named}, "upper_bounds": {2147483546: named}}
    delete_rows_by_file(
        table, file_path=path, file_size_in_bytes=Path(path).stat().st_size, partition=task.file.partition, **bounds
    )


def seen(driver: Driver) -> list[int]:
    return sorted(client_table(driver).scan().to_arrow()["_offset"].to_pylist())


def rewound(driver: Driver, to: int) -> None:
    way = RewindExecution(driver.config, "clicks", Cluster(100))
    way.write(way.preview(to), NOW)


def test_a_row_that_was_deleted_before_does_not_come_back_with_the_file_that_a_rewind_restores(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    position_deletes(client_table(driver), 3)
    carry(driver, 6)
    version = driver.table.snapshot().version
    left = [offset for offset in range(70) if offset != 3]
    assert seen(driver) == left
    overwrite_rows(driver, 0, None)
    with pytest.raises(ForeignChange, match="another client ran UPDATE"):
        carry(driver, 7)
    with pytest.raises(
        ForeignChange, match=r"took rows of .*rollback_to_snapshot\('headrace.clicks', (\d+)\)"
    ) as refused:
        rewound(driver, version)
    before = int(str(refused.value).rpartition("', ")[2].partition(")")[0])
    client_table(driver).manage_snapshots().set_current_snapshot(before).commit()
    rewound(driver, version)
    assert seen(driver) == left
    driver.start()
    carry(driver, 7)
    assert seen(driver) == [*left, *range(70, 80)]
    assert audit(driver.config, "clicks", since=None, deep=False).adds_up


def test_rows_that_delete_files_take_after_a_rollback_are_not_left_out_by_a_rewind(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    version = driver.table.snapshot().version
    table = client_table(driver)
    table.manage_snapshots().set_current_snapshot(table.metadata.snapshots[-2].snapshot_id).commit()
    position_deletes(client_table(driver), 3)
    with pytest.raises(ForeignChange):
        carry(driver, 6)
    with pytest.raises(ForeignChange, match=r"would stay away\. .*rollback_to_snapshot"):
        rewound(driver, version)


def test_no_row_is_taken_as_the_repeat_of_one_that_a_delete_file_takes(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    by, repeats, *_ = driver.table.bucket_files(driver.table.snapshot())
    (deleted, *_) = pq.read_table(f"{driver.lake}/{by.path}", columns=["_offset"])["_offset"].to_pylist()
    position_deletes(client_table(driver), deleted)
    wanted = Rewrite(uuid4().hex, [repeats], [], RemovedRows("dedupe", repeats.rows or 0), by=[by])
    with pytest.raises(LiveDeleteFiles, match="by delete files"):
        driver.table.append(wanted, driver.table.snapshot())
    assert len(seen(driver)) == 59


def moved(driver: Driver) -> None:
    """Delete a row by a file that lies elsewhere."""
    with client_table(driver).transaction() as change:
        change.set_properties({"write.data.path": f"{driver.lake}_elsewhere"})
    client_table(driver).delete(EqualTo("_offset", 3))


def in_orc(driver: Driver) -> None:
    """Delete a row by a file of another format."""
    table = client_table(driver)
    (task,) = table.scan(EqualTo("_offset", 3)).plan_files()
    rows = table.scan(And(LessThan("_offset", 10), NotEqualTo("_offset", 3))).to_arrow()
    (file,) = _dataframe_to_data_files(table.metadata, rows, table.io)
    fields = {field.name: file[index] for index, field in enumerate(DATA_FILE_TYPE[2].fields)}
    orc = DataFile.from_args(**{**fields, "file_format": FileFormat.ORC})
    orc.spec_id = table.spec().spec_id
    with table.transaction() as change, change.update_snapshot().overwrite() as snapshot:
        snapshot.delete_data_file(task.file)
        snapshot.append_data_file(orc)


@pytest.mark.parametrize(("theirs", "why"), [(moved, "does not lie below"), (in_orc, "is ORC")])
def test_a_file_that_headrace_does_not_read_stops_it_until_it_is_written_anew(
    tmp_path: Path, theirs: Callable[[Driver], None], why: str
) -> None:
    driver = fill_table(tmp_path, "iceberg")
    theirs(driver)
    with pytest.raises(ForeignChange, match=f"{why}.*rewrite_data_files"):
        carry(driver, 6)
    if "write.data.path" in (table := client_table(driver)).properties:
        with table.transaction() as change:
            change.remove_properties("write.data.path")
    client_table(driver).delete(LessThan("_offset", 10))
    carry(driver, 6)
    assert seen(driver) == list(range(10, 70))


def test_a_version_that_another_client_sets_changes_nothing(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    before = driver.table.snapshot().version
    with client_table(driver).transaction() as change:
        change.set_properties({"headrace.version": "2"})
    assert driver.table.snapshot().version == before
    carry(driver, 6)
    assert seen(driver) == list(range(70))


def test_a_property_that_holds_no_number_is_told_like_one_that_is_gone(tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "iceberg")
    with client_table(driver).transaction() as change:
        change.set_properties({"headrace.version": "seven"})
    with pytest.raises(ForeignChange, match=r"has no property headrace\.version.*'headrace\.version'='7'"):
        driver.table.snapshot()
