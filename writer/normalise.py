"""Arrow arrays as the native decoder hands them over, turned into the types of the table.

Whole columns at a time. A value that the table's type cannot hold (a timestamp in the year 300,000) marks its record as
bad instead of failing its neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from writer import avro

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
# Years 1 to 9999, first and last value: what Delta's and every engine's timestamp can hold.
TIMESTAMP_RANGE_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
DATE_RANGE_DAYS = (-719_162, 2_932_896)
NOT_A_TIME = "a date or timestamp outside the years 1 to 9999"


@dataclass(frozen=True)
class Normalised:
    """A column in its table type, and per row whether its value could not be held (None: all could)."""

    values: pa.Array
    bad: pa.BooleanArray | None = None


def normalise(record: avro.Record, schema: avro.Schema, array: pa.Array) -> Normalised | None:
    """Turn one decoded column (length n, offset 0) into its table type. None when the table stores nothing for it."""
    schema = record.resolve(schema)
    target = avro.table_type(record, schema)
    if target is None:
        return None
    if isinstance(schema, list):
        return _union(record, schema, array, target)
    if avro.timestamp_unit(schema) is not None:
        return _timestamp(array, str(avro.timestamp_unit(schema)))
    if pa.types.is_date32(target):
        bad = _outside(array, *DATE_RANGE_DAYS)
        return Normalised(_without(array, bad).cast(target), bad)
    if avro.is_uuid(schema):
        return Normalised(uuid_text(array))
    if pa.types.is_struct(target):
        return _struct(record, schema, array, target)
    if pa.types.is_list(target):
        return _items(array, [normalise(record, schema["items"], array.values)], _list)
    if pa.types.is_map(target):
        return _items(array, [Normalised(array.keys), normalise(record, schema["values"], array.items)], _map)
    return Normalised(array if array.type == target else array.cast(target))


def any_bad(columns: list[Normalised]) -> pa.BooleanArray | None:
    """Rows that are bad in at least one column; None when no row is."""
    found: pa.BooleanArray | None = None
    for column in columns:
        if column.bad is not None:
            found = column.bad if found is None else pc.or_(found, column.bad)
    return found


def uuid_text(array: pa.Array) -> pa.Array:
    """Write 16-byte values as `8-4-4-4-12` lower-case hexadecimal text."""
    raw = array.cast(pa.binary(16)).fill_null(bytes(16))
    digits = memoryview(raw.buffers()[1])[raw.offset * 16 : (raw.offset + len(raw)) * 16].hex().encode()
    offsets = pa.array(range(0, 32 * len(raw) + 1, 32), pa.int32())
    text = pa.StringArray.from_buffers(len(raw), offsets.buffers()[1], pa.py_buffer(digits))
    parts = [pc.utf8_slice_codeunits(text, a, b) for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))]
    return pc.if_else(array.is_null(), None, pc.binary_join_element_wise(*parts, "-"))


def _timestamp(array: pa.Array, unit: str) -> Normalised:
    if unit == "ns":
        floored = pc.divide(array, 1000)
        below = pc.and_(pc.less(array, 0), pc.not_equal(pc.multiply(floored, 1000), array))
        micros = pc.subtract(floored, below.cast(pa.int64()))
        return Normalised(micros.cast(avro.TIMESTAMP))
    factor = _PER_UNIT[unit]
    first, last = TIMESTAMP_RANGE_US
    bad = _outside(array, -(-first // factor), last // factor)
    return Normalised(pc.multiply(_without(array, bad), factor).cast(avro.TIMESTAMP), bad)


def _outside(array: pa.Array, low: int, high: int) -> pa.BooleanArray | None:
    extremes = pc.min_max(array)
    if extremes["min"].as_py() is None or (extremes["min"].as_py() >= low and extremes["max"].as_py() <= high):
        return None
    return pc.fill_null(pc.or_(pc.less(array, low), pc.greater(array, high)), False)


def _without(array: pa.Array, bad: pa.BooleanArray | None) -> pa.Array:
    return array if bad is None else pc.if_else(bad, None, array)


def _struct(record: avro.Record, schema: avro.Schema, array: pa.Array, target: pa.DataType) -> Normalised:
    decoded = [normalise(record, f["type"], array.field(i)) for i, f in enumerate(schema["fields"])]
    kept = [column for column in decoded if column is not None]
    bad = any_bad(kept)
    values = pa.StructArray.from_arrays([c.values for c in kept], fields=list(target), mask=array.is_null())
    return Normalised(values, None if bad is None else pc.and_not(bad, array.is_null()))


def _items(array: pa.Array, children: list[Normalised | None], build: Callable[..., pa.Array]) -> Normalised:
    """Rebuild a list or map around its normalised children; a bad child marks the row that holds it."""
    kept = [child for child in children if child is not None]
    bad = any_bad(kept)
    if bad is not None:
        lists = pa.ListArray.from_arrays(array.offsets, bad, mask=array.is_null())
        rows = pc.unique(pc.list_parent_indices(lists).filter(pc.list_flatten(lists)))
        bad = pc.is_in(pa.array(range(len(array)), pa.int64()), value_set=rows.cast(pa.int64()))
    return Normalised(build(array, *(child.values for child in kept)), bad)


def _list(array: pa.Array, values: pa.Array) -> pa.Array:
    kind = pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


def _map(array: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    entries = pa.map_(keys.type, values.type)
    return pa.MapArray.from_arrays(array.offsets, keys, values, type=entries, mask=array.is_null())


def _union(record: avro.Record, schema: list[Any], array: pa.Array, target: pa.DataType) -> Normalised:
    branches = [(i, branch) for i, branch in enumerate(schema) if record.resolve(branch) != "null"]
    if not pa.types.is_union(array.type):  # [null, T] arrives as a nullable T
        (_, branch), *_ = branches
        return normalise(record, branch, array) or Normalised(pa.nulls(len(array), target))
    members = [normalise(record, branch, _member(array, i)) for i, branch in branches]
    kept = [member for member in members if member is not None]
    codes = array.type_codes
    nulls = [code for code, branch in enumerate(schema) if record.resolve(branch) == "null"]
    is_null = pc.is_in(codes, value_set=pa.array(nulls, pa.int8())) if nulls else None
    bad = any_bad(kept)
    if not pa.types.is_struct(target) or len(branches) == 1:
        return Normalised(pc.coalesce(*(m.values.cast(target) for m in kept)), bad)
    fields = list(target)
    return Normalised(pa.StructArray.from_arrays([m.values for m in kept], fields=fields, mask=is_null), bad)


def _member(array: pa.Array, code: int) -> pa.Array:
    """One branch of a dense union as a column: its value where the row took that branch, null elsewhere."""
    at = pc.if_else(pc.equal(array.type_codes, code), array.offsets, None)
    return array.field(code).take(at)
