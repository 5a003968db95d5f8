"""Transactions of other clients on an Iceberg table."""

import re
from collections import Counter
from collections.abc import Callable

import pyarrow as pa
import pytest
from pyiceberg.expressions import In
from pyiceberg.table import Table
from pyiceberg.types import LongType

from headrace.writer.audit.audit import audit
from headrace.writer.table.log.foreign_writes import ForeignChange
from tests.support.iceberg_clients import client_table
from tests.support.local_driver import Driver
from tests.support.small_files import carry

Theirs = Callable[[Table], None]


Row = tuple[int | None, str | None]  # offset and note


def read_rows(driver: Driver) -> Counter[Row]:
    """Return what a reader of the catalog sees."""
    rows = client_table(driver).scan().to_arrow()
    return Counter(zip(rows["_offset"].to_pylist(), rows["note"].to_pylist(), strict=True))


def tag_rows(table: Table, offsets: list[int], note: str = "x") -> pa.Table:
    """Return the rows at some offsets with another note."""
    rows = table.scan(In("_offset", offsets)).to_arrow()
    field = rows.schema.field("note")
    return rows.set_column(rows.schema.get_field_index("note"), field, pa.array([note] * rows.num_rows, field.type))


def upsert(table: Table) -> None:
    table.upsert(tag_rows(table, [3, 4, 5]), join_cols=["_offset"], when_not_matched_insert_all=False)


def upsert_and_insert(table: Table) -> None:
    rows = tag_rows(table, [3, 4])
    new = rows.set_column(
        rows.schema.get_field_index("_offset"), rows.schema.field("_offset"), pa.array([4, 900], pa.int64())
    )
    table.upsert(new, join_cols=["_offset"])


def overwrite_some(table: Table) -> None:
    table.overwrite(tag_rows(table, [3, 4, 5]), overwrite_filter=In("_offset", [3, 4, 5]))


def overwrite_some_with_fewer(table: Table) -> None:
    """The row that stays has the offset of one that goes: bounds of offsets do not tell it."""
    table.overwrite(tag_rows(table, [4]), overwrite_filter=In("_offset", [3, 4, 5]))


def overwrite_all(table: Table) -> None:
    table.overwrite(tag_rows(table, [*range(30)]))


def overwrite_partition(table: Table) -> None:
    table.dynamic_partition_overwrite(tag_rows(table, [1, 2]))


def delete_and_append(table: Table) -> None:
    rows = tag_rows(table, [7, 8])
    with table.transaction() as change:
        change.delete(In("_offset", [7, 8]))
        change.append(rows)


def append_and_delete(table: Table) -> None:
    rows = tag_rows(table, [7, 8])
    with table.transaction() as change:
        change.append(rows)
        change.delete(In("_offset", [1, 7]))


def column_delete_and_append(table: Table) -> None:
    rows = tag_rows(table, [7, 8])
    with table.transaction() as change:
        with change.update_schema() as schema:
            schema.add_column("extra", LongType())
        change.delete(In("_offset", [7, 8]))
        change.append(rows)
        change.set_properties({"owner": "someone"})


def tagged_upsert(table: Table) -> None:
    upsert(table)
    table.manage_snapshots().create_tag(table.metadata.current_snapshot_id or 0, "theirs").commit()


REPLACING: list[Theirs] = [
    upsert,
    upsert_and_insert,
    overwrite_some,
    overwrite_some_with_fewer,
    overwrite_all,
    overwrite_partition,
    delete_and_append,
    append_and_delete,
    column_delete_and_append,
    tagged_upsert,
]


def refusal(driver: Driver, n: int) -> tuple[str, int]:
    """Return the sentence by which the next batch is refused, and the version that it says to rewind to."""
    with pytest.raises(ForeignChange) as refused:
        carry(driver, n)
    match = re.search(r"rewind --to (\d+)", str(refused.value))
    assert match is not None, refused.value
    return str(refused.value), int(match[1])


def check_sound(driver: Driver) -> None:
    for deep in (False, True):
        result = audit(driver.config, "clicks", since=None, deep=deep)
        assert result.adds_up, result.problems
