"""Converts the native decoder's Arrow arrays to the table's types.

Whole columns at a time. A value that the table's type cannot hold (a timestamp in the year 300,000) marks its record as
bad instead of failing its neighbours.
"""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import floor_divide
from headrace.writer.avro import schema as avro

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
# Years 1 to 9999, first and last value: what Delta's and every engine's timestamp can hold.
TIMESTAMP_RANGE_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
DATE_RANGE_DAYS = (-719_162, 2_932_896)
NO_DECIMAL = "a decimal of no bytes"
_SIGN = 0x80
_ALL_BITS = np.uint8(0xFF)
NOT_A_TIME = "a date or timestamp outside the years 1 to 9999"
# Taken from an array: `pa.scalar` imports pandas, half a second of each start.
_NO_REASON = pa.nulls(1, pa.string())[0]


@dataclass(frozen=True)
class TableColumn:
    """A column in its table type, and the reason per row why its value could not be held.

    `reasons` is null where the value could be held; None: all could.
    """

    values: pa.Array
    reasons: pa.StringArray | None = None


def convert_column(record: avro.Record, schema: avro.Schema, array: pa.Array) -> TableColumn | None:
    """Convert one decoded column (offset 0) to its table type. None when the table stores nothing for it."""
    schema = record.resolve(schema)
    target = avro.table_type(record, schema)
    if target is None:
        return None
    if isinstance(schema, list):
        return _convert_union(record, schema, array, target)
    unit = avro.timestamp_unit(schema)
    if unit is not None:
        return _convert_timestamp(array, unit)
    if pa.types.is_date32(target):
        reasons = _reasons_outside(array, *DATE_RANGE_DAYS, NOT_A_TIME)
        return TableColumn(_without_bad(array, reasons).cast(target), reasons)
    digits = avro.decimal_digits(schema)
    if digits is not None:
        return _convert_decimal(array, digits, target)
    if avro.is_uuid(schema):
        return TableColumn(uuid_text(array))
    if pa.types.is_struct(target):
        return _convert_struct(record, schema, array, target)
    if pa.types.is_list(target):
        return _convert_items(array, [convert_column(record, schema["items"], array.values)], _list_array)
    if pa.types.is_map(target):
        array = _keep_last_values(array)
        values = convert_column(record, schema["values"], array.items)
        return _convert_items(array, [TableColumn(array.keys), values], _map_array)
    if array.type == target:
        return TableColumn(array)
    return TableColumn(array.cast(target))


def first_reasons(columns: list[TableColumn]) -> pa.StringArray | None:
    """Return per row the first column's reason to call it bad; None when no row is."""
    reasons = [column.reasons for column in columns if column.reasons is not None]
    return pc.coalesce(*reasons) if reasons else None


def decimal_value(unscaled: int, scale: int) -> Decimal:
    """Return `unscaled` / 10^`scale`, exactly."""
    # A number has fewer digits than bits. A schema may have any scale.
    context = Context(prec=unscaled.bit_length() + 1, Emin=MIN_EMIN, Emax=MAX_EMAX)
    return Decimal(unscaled).scaleb(-scale, context)


def too_many_digits(precision: int) -> str:
    """Return the reason why a decimal is bad."""
    return f"a decimal of more than {precision} digits"


def uuid_text(array: pa.Array) -> pa.Array:
    """Write 16-byte values as `8-4-4-4-12` lower-case hexadecimal text."""
    raw = array.cast(pa.binary(16)).fill_null(bytes(16))
    content = memoryview(raw.buffers()[1])[raw.offset * 16 : (raw.offset + len(raw)) * 16]
    digits = content.hex().encode()
    offsets = pa.array(range(0, 32 * len(raw) + 1, 32), pa.int32())
    text = pa.StringArray.from_buffers(len(raw), offsets.buffers()[1], pa.py_buffer(digits))
    groups = ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))
    parts = [pc.utf8_slice_codeunits(text, start, stop) for start, stop in groups]
    return pc.if_else(array.is_null(), None, pc.binary_join_element_wise(*parts, "-"))


def _convert_decimal(array: pa.Array, digits: tuple[int, int], target: pa.DataType) -> TableColumn:
    """Convert decimals of Arrow, or two's complements, most significant byte first, to decimals of the table.

    Raises ArrowInvalid for too many digits.
    """
    if not pa.types.is_decimal(array.type):
        return _convert_complements(array, digits, target)
    precision, scale = digits
    largest = pa.scalar(decimal_value(10**precision - 1, scale), array.type)
    reasons = _reasons_outside(array, pc.negate(largest), largest, too_many_digits(precision))
    return TableColumn(_without_bad(array, reasons).cast(target), reasons)


def _convert_complements(array: pa.Array, digits: tuple[int, int], target: pa.DataType) -> TableColumn:
    """Convert two's complements to decimals. Raises ArrowInvalid for a precision that no decimal has.

    With 2 digits, 1 of them behind the point, `0C` gives 1.2, `FF F4` gives -1.2, and `64` is bad: it has 3 digits.
    """
    precision, scale = digits
    widest: pa.DataType = pa.decimal128(38, scale)
    if precision > widest.precision:
        widest = pa.decimal256(76, scale)
    if precision > widest.precision:
        raise pa.ArrowInvalid(f"no decimal has {precision} digits")
    numbers, is_whole = _extend_sign(array, widest.bit_width // 8)
    decimals = pa.Array.from_buffers(widest, len(array), [None, pa.py_buffer(numbers)])
    decimals = pc.if_else(array.is_valid(), decimals, None)
    largest = pa.scalar(decimal_value(10**precision - 1, scale), widest)
    reasons = _reasons_outside(decimals, pc.negate(largest), largest, too_many_digits(precision))
    if not is_whole.all():
        reasons = _coalesce_reasons(_reasons_where(pa.array(~is_whole), too_many_digits(precision)), reasons)
    is_empty = pc.equal(pc.binary_length(array), 0)
    if pc.any(is_empty).as_py():
        reasons = _coalesce_reasons(_reasons_where(is_empty, NO_DECIMAL), reasons)
    return TableColumn(_without_bad(decimals, reasons).cast(target), reasons)


def _extend_sign(array: pa.Array, width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return integers of `width` bytes, least significant byte first, and which of them are the numbers as written.

    For a width of 2, the values `05`, `FF`, `01 02`, `01 02 03` give `05 00`, `FF FF`, `02 01`, `03 02`, of which the
    last is not the number as written.
    """
    count = len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1]
    content = np.frombuffer(array.buffers()[2] or b"\0", np.uint8)
    lengths = np.diff(offsets)
    is_negative = (content.take(offsets[:-1], mode="clip") >= _SIGN) & (lengths > 0)
    fill = is_negative * _ALL_BITS
    numbers = np.empty((count, width), np.uint8)
    numbers[:] = fill[:, None]
    for byte_index in range(min(int(lengths.max(initial=0)), width)):
        byte = content.take(offsets[1:] - (byte_index + 1), mode="clip")
        numbers[:, byte_index] = np.where(lengths > byte_index, byte, fill)
    is_whole = (numbers[:, -1] >= _SIGN) == is_negative
    # Rare: a number of the schema needs no such length.
    for row in np.flatnonzero(lengths > width):
        surplus = content[offsets[row] : offsets[row + 1] - width]
        is_whole[row] &= (surplus == fill[row]).all()
    return numbers, is_whole


def _convert_timestamp(array: pa.Array, unit: str) -> TableColumn:
    if unit == "ns":
        return TableColumn(floor_divide(array, 1000).cast(avro.TIMESTAMP))
    factor = _PER_UNIT[unit]
    first, last = TIMESTAMP_RANGE_US
    reasons = _reasons_outside(array, -(-first // factor), last // factor, NOT_A_TIME)
    return TableColumn(pc.multiply(_without_bad(array, reasons), factor).cast(avro.TIMESTAMP), reasons)


def _reasons_where(is_bad: pa.Array, reason: str) -> pa.StringArray:
    return pc.if_else(is_bad, reason, _NO_REASON)


def _coalesce_reasons(reasons: pa.StringArray, others: pa.StringArray | None) -> pa.StringArray:
    return reasons if others is None else pc.coalesce(reasons, others)


def _reasons_outside(array: pa.Array, least: Any, most: Any, reason: str) -> pa.StringArray | None:
    """Return the reason for each value outside a range; None when all are inside."""
    if len(array) == array.null_count:
        return None
    is_outside = pc.or_(pc.less(array, least), pc.greater(array, most))
    if not pc.any(is_outside).as_py():
        return None
    return _reasons_where(is_outside, reason)


def _without_bad(array: pa.Array, reasons: pa.StringArray | None) -> pa.Array:
    """Return an array with null in place of the values that have a reason."""
    return array if reasons is None else pc.if_else(reasons.is_valid(), None, array)


def _convert_struct(record: avro.Record, schema: avro.Schema, array: pa.Array, target: pa.DataType) -> TableColumn:
    converted = [convert_column(record, field["type"], array.field(i)) for i, field in enumerate(schema["fields"])]
    columns = [column for column in converted if column is not None]
    fields = list(target)
    values = pa.StructArray.from_arrays([column.values for column in columns], fields=fields, mask=array.is_null())
    reasons = first_reasons(columns)
    if reasons is None:
        return TableColumn(values)
    # What lies behind a null is no value.
    reasons = pc.if_else(array.is_valid(), reasons, None)
    if reasons.null_count == len(reasons):
        return TableColumn(values)
    return TableColumn(values, reasons)


def _convert_items(array: pa.Array, children: list[TableColumn | None], build: Callable[..., pa.Array]) -> TableColumn:
    """Rebuild a list or map around its converted children; a bad child marks the row that has it.

    The lists [1, 2], [], [3], where the items have the reasons null, "x", null, get the reasons "x", null, null.
    """
    columns = [child for child in children if child is not None]
    values = build(array, *(column.values for column in columns))
    reasons = first_reasons(columns)
    if reasons is None:
        return TableColumn(values)
    lists = pa.ListArray.from_arrays(array.offsets, reasons, mask=array.is_null())
    item_rows = pc.list_parent_indices(lists)
    item_reasons = pc.list_flatten(lists)
    bad_rows = item_rows.filter(item_reasons.is_valid()).cast(pa.int64())
    bad_reasons = item_reasons.drop_null()
    first_of_row = pc.index_in(pa.arange(0, len(array)), value_set=bad_rows)
    return TableColumn(values, bad_reasons.take(first_of_row))


def _list_array(array: pa.Array, values: pa.Array) -> pa.Array:
    kind = pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


def _map_array(array: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    kind = pa.map_(keys.type, values.type)
    return pa.MapArray.from_arrays(array.offsets, keys, values, type=kind, mask=array.is_null())


def _keep_last_values(array: pa.MapArray) -> pa.MapArray:
    """Keep the last value of a key that one map has twice, as every reader into a dictionary does.

    The maps [(a, 1), (b, 2), (a, 3)] and [(a, 4)] become [(a, 3), (b, 2)] and [(a, 4)].
    """
    keys = array.keys.dictionary_encode()
    # As lists: Arrow aborts the process on a map of these.
    lists = pa.ListArray.from_arrays(array.offsets, keys.indices, mask=array.is_null())
    rows = pc.list_parent_indices(lists)
    key_codes = pc.list_flatten(lists).cast(pa.int64())
    pairs = pc.add(pc.multiply(rows, len(keys.dictionary)), key_codes)
    if pc.count_distinct(pairs).as_py() == len(pairs):
        return array
    entries = pa.table({"pair": pairs, "entry": pa.arange(0, len(pairs))})
    by_pair = entries.group_by("pair", use_threads=False).aggregate([("entry", "min"), ("entry", "max")])
    last_entries = by_pair.sort_by("entry_min")["entry_max"].combine_chunks()
    offsets = pc.search_sorted(rows.take(last_entries), pa.arange(0, len(array) + 1)).cast(pa.int32())
    last_keys = array.keys.take(last_entries)
    last_values = array.items.take(last_entries)
    return pa.MapArray.from_arrays(offsets, last_keys, last_values, type=array.type, mask=array.is_null())


def _convert_union(record: avro.Record, schema: list[Any], array: pa.Array, target: pa.DataType) -> TableColumn:
    branches = [(code, branch) for code, branch in enumerate(schema) if record.resolve(branch) != "null"]
    # [null, T] arrives as a nullable T.
    if not pa.types.is_union(array.type):
        _, branch = branches[0]
        return convert_column(record, branch, array) or TableColumn(pa.nulls(len(array), target))
    converted = [convert_column(record, branch, _branch_values(array, code)) for code, branch in branches]
    members = [column for column in converted if column is not None]
    reasons = first_reasons(members)
    if not pa.types.is_struct(target) or len(branches) == 1:
        return TableColumn(pc.coalesce(*(member.values.cast(target) for member in members)), reasons)
    null_codes = [code for code, branch in enumerate(schema) if record.resolve(branch) == "null"]
    is_null = None
    if null_codes:
        is_null = pc.is_in(array.type_codes, value_set=pa.array(null_codes, pa.int8()))
    values = pa.StructArray.from_arrays([member.values for member in members], fields=list(target), mask=is_null)
    return TableColumn(values, reasons)


def _branch_values(array: pa.Array, code: int) -> pa.Array:
    """Return one branch of a dense union as a column: its value where the row took that branch, null elsewhere."""
    indexes = pc.if_else(pc.equal(array.type_codes, code), array.offsets, None)
    return array.field(code).take(indexes)
