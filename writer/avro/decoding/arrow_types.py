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

from bucketers.arrow import floor_divide
from writer.avro import schema as avro

_PER_UNIT = {"s": 1_000_000, "ms": 1_000, "us": 1}
# Years 1 to 9999, first and last value: what Delta's and every engine's timestamp can hold.
TIMESTAMP_RANGE_US = (-62_135_596_800_000_000, 253_402_300_799_999_999)
DATE_RANGE_DAYS = (-719_162, 2_932_896)
NO_DECIMAL = "a decimal of no bytes"
_SIGN = 0x80
_ALL_BITS = np.uint8(0xFF)
NOT_A_TIME = "a date or timestamp outside the years 1 to 9999"


@dataclass(frozen=True)
class Normalised:
    """A column in its table type, and per row why its value could not be held: null where it could; None: all could."""

    values: pa.Array
    bad: pa.StringArray | None = None


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
        bad = _outside(array, *DATE_RANGE_DAYS, NOT_A_TIME)
        return Normalised(_without(array, bad).cast(target), bad)
    digits = avro.decimal_digits(schema)
    if digits is not None:
        if not pa.types.is_decimal(array.type):
            return _decimal(array, digits, target)
        last = pa.scalar(decimal_value(10 ** digits[0] - 1, digits[1]), array.type)
        bad = _outside(array, pc.negate(last), last, too_many_digits(digits[0]))
        return Normalised(_without(array, bad).cast(target), bad)
    if avro.is_uuid(schema):
        return Normalised(uuid_text(array))
    if pa.types.is_struct(target):
        return _struct(record, schema, array, target)
    if pa.types.is_list(target):
        return _items(array, [normalise(record, schema["items"], array.values)], _list)
    if pa.types.is_map(target):
        array = _one_value_a_key(array)
        return _items(array, [Normalised(array.keys), normalise(record, schema["values"], array.items)], _map)
    return Normalised(array if array.type == target else array.cast(target))


def any_bad(columns: list[Normalised]) -> pa.StringArray | None:
    """Per row the first column's reason to call it bad; None when no row is."""
    found = [column.bad for column in columns if column.bad is not None]
    return pc.coalesce(*found) if found else None


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
    digits = memoryview(raw.buffers()[1])[raw.offset * 16 : (raw.offset + len(raw)) * 16].hex().encode()
    offsets = pa.array(range(0, 32 * len(raw) + 1, 32), pa.int32())
    text = pa.StringArray.from_buffers(len(raw), offsets.buffers()[1], pa.py_buffer(digits))
    parts = [pc.utf8_slice_codeunits(text, a, b) for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32))]
    return pc.if_else(array.is_null(), None, pc.binary_join_element_wise(*parts, "-"))


def _decimal(array: pa.Array, digits: tuple[int, int], target: pa.DataType) -> Normalised:
    """Turn two's complements, most significant byte first, into decimals. Raises ArrowInvalid for too many digits."""
    precision, scale = digits
    widest = pa.decimal128(38, scale) if precision <= avro.DECIMAL_DIGITS_MAX else pa.decimal256(76, scale)
    if precision > widest.precision:
        raise pa.ArrowInvalid(f"no decimal has {precision} digits")
    numbers, is_whole = _sign_extended(array, widest.bit_width // 8)
    decimals = pa.Array.from_buffers(widest, len(array), [None, pa.py_buffer(numbers)])
    decimals = pc.if_else(array.is_valid(), decimals, None)
    last = pa.scalar(decimal_value(10**precision - 1, scale), widest)
    bad = _outside(decimals, pc.negate(last), last, too_many_digits(precision))
    if not is_whole.all():
        bad = _first_of(_where(pa.array(~is_whole), too_many_digits(precision)), bad)
    is_empty = pc.equal(pc.binary_length(array), 0)
    if pc.any(is_empty).as_py():
        bad = _first_of(_where(is_empty, NO_DECIMAL), bad)
    return Normalised(_without(decimals, bad).cast(target), bad)


def _sign_extended(array: pa.Array, width: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.bool_]]:
    """Return integers of `width` bytes, least significant byte first, and which of them are the numbers as written."""
    count = len(array)
    offsets = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + count + 1]
    content = np.frombuffer(array.buffers()[2] or b"\0", np.uint8)
    lengths = np.diff(offsets)
    is_negative = (content.take(offsets[:-1], mode="clip") >= _SIGN) & (lengths > 0)
    fill = is_negative * _ALL_BITS
    numbers = np.empty((count, width), np.uint8)
    numbers[:] = fill[:, None]
    for place in range(min(int(lengths.max(initial=0)), width)):
        byte = content.take(offsets[1:] - (place + 1), mode="clip")
        numbers[:, place] = np.where(lengths > place, byte, fill)
    is_whole = (numbers[:, -1] >= _SIGN) == is_negative
    for row in np.flatnonzero(lengths > width):  # cold: no such number needs so many bytes
        surplus = content[offsets[row] : offsets[row + 1] - width]
        is_whole[row] &= (surplus == fill[row]).all()
    return numbers, is_whole


def _where(which: pa.Array, why: str) -> pa.StringArray:
    return pc.if_else(which, why, pa.scalar(None, pa.string()))


def _first_of(reasons: pa.StringArray, others: pa.StringArray | None) -> pa.StringArray:
    return reasons if others is None else pc.coalesce(reasons, others)


def _timestamp(array: pa.Array, unit: str) -> Normalised:
    if unit == "ns":
        return Normalised(floor_divide(array, 1000).cast(avro.TIMESTAMP))
    factor = _PER_UNIT[unit]
    first, last = TIMESTAMP_RANGE_US
    bad = _outside(array, -(-first // factor), last // factor, NOT_A_TIME)
    return Normalised(pc.multiply(_without(array, bad), factor).cast(avro.TIMESTAMP), bad)


def _outside(array: pa.Array, low: Any, high: Any, why: str) -> pa.StringArray | None:
    if len(array) == array.null_count:
        return None
    beyond = pc.or_(pc.less(array, low), pc.greater(array, high))
    return pc.if_else(beyond, why, pa.scalar(None, pa.string())) if pc.any(beyond).as_py() else None


def _without(array: pa.Array, bad: pa.StringArray | None) -> pa.Array:
    return array if bad is None else pc.if_else(bad.is_valid(), None, array)


def _struct(record: avro.Record, schema: avro.Schema, array: pa.Array, target: pa.DataType) -> Normalised:
    decoded = [normalise(record, f["type"], array.field(i)) for i, f in enumerate(schema["fields"])]
    kept = [column for column in decoded if column is not None]
    bad = any_bad(kept)
    values = pa.StructArray.from_arrays([c.values for c in kept], fields=list(target), mask=array.is_null())
    if bad is not None:  # what a null holds is no value
        bad = pc.if_else(array.is_valid(), bad, None)
    return Normalised(values, bad if bad is not None and bad.null_count < len(bad) else None)


def _items(array: pa.Array, children: list[Normalised | None], build: Callable[..., pa.Array]) -> Normalised:
    """Rebuild a list or map around its normalised children; a bad child marks the row that holds it."""
    kept = [child for child in children if child is not None]
    bad = any_bad(kept)
    if bad is not None:
        lists = pa.ListArray.from_arrays(array.offsets, bad, mask=array.is_null())
        rows, reasons = pc.list_parent_indices(lists), pc.list_flatten(lists)
        rows, reasons = rows.filter(reasons.is_valid()), reasons.drop_null()
        bad = reasons.take(pc.index_in(pa.arange(0, len(array)), value_set=rows.cast(pa.int64())))
    return Normalised(build(array, *(child.values for child in kept)), bad)


def _list(array: pa.Array, values: pa.Array) -> pa.Array:
    kind = pa.list_(pa.field("element", values.type))
    return pa.ListArray.from_arrays(array.offsets, values, type=kind, mask=array.is_null())


def _map(array: pa.Array, keys: pa.Array, values: pa.Array) -> pa.Array:
    entries = pa.map_(keys.type, values.type)
    return pa.MapArray.from_arrays(array.offsets, keys, values, type=entries, mask=array.is_null())


def _one_value_a_key(array: pa.MapArray) -> pa.MapArray:
    """Keep the last value of a key that one map holds twice, as every reader into a dictionary does."""
    keys = array.keys.dictionary_encode()
    lists = pa.ListArray.from_arrays(array.offsets, keys.indices, mask=array.is_null())  # no map: Arrow would abort
    rows, codes = pc.list_parent_indices(lists), pc.list_flatten(lists).cast(pa.int64())
    pairs = pc.add(pc.multiply(rows, len(keys.dictionary)), codes)
    if pc.count_distinct(pairs).as_py() == len(pairs):
        return array
    table = pa.table({"pair": pairs, "at": pa.arange(0, len(pairs))})
    found = table.group_by("pair", use_threads=False).aggregate([("at", "min"), ("at", "max")]).sort_by("at_min")
    last = found["at_max"].combine_chunks()
    offsets = pc.search_sorted(rows.take(last), pa.arange(0, len(array) + 1)).cast(pa.int32())
    return pa.MapArray.from_arrays(
        offsets, array.keys.take(last), array.items.take(last), type=array.type, mask=array.is_null()
    )


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
