"""Makes the columns of the table from arrays of the plain form, and names the rows that google.protobuf is to judge.

What ptars leaves undecided shows in its arrays: two members of a oneof, a key twice in a map, an entry of a map without
its message, a time that no table holds, and bytes that are no JSON value.
"""

from collections.abc import Callable
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.message import DecodeError

from headrace.writer.avro import schema as avro
from headrace.writer.decoding.block import Mask
from headrace.writer.protobuf.json_values import NoJson, write_json
from headrace.writer.protobuf.message_tree import (
    Enum,
    Instant,
    JsonText,
    Kind,
    Member,
    Message,
    MessageBytes,
    Scalar,
    TimeSpan,
    Wrapper,
)
from headrace.writer.protobuf.wire_schema import wire_name

MICROSECONDS = 1_000_000
NANOSECONDS = 1_000_000_000
# Years 1 to 9999.
INSTANT_SECONDS = (-62_135_596_800, 253_402_300_799)
# 10,000 years (google/protobuf/duration.proto).
TIME_SPAN_SECONDS = (-315_576_000_000, 315_576_000_000)
# Marks values of an array that are to be judged.
Blame = Callable[[Mask], None]


class Suspects:
    """The rows of a block that are to be judged, one by one."""

    def __init__(self) -> None:
        self.mask: Mask | None = None

    def blame(self, mask: Mask) -> None:
        """Mark rows."""
        self.mask = mask if self.mask is None else self.mask | mask


def make_columns(
    message: Message, arrays: dict[str, pa.Array], types: dict[str, pa.DataType], blame: Blame
) -> list[pa.Array]:
    """Return the columns of a message. `arrays`: by the names of the plain form; `types`: of the columns.

    Values that `blame` gets are of no meaning.
    """
    _check_oneofs(message, arrays, blame)
    return [
        _convert_member(member, arrays[wire_name(member.number)], types[member.name], blame)
        for member in message.columns
    ]


def _check_oneofs(message: Message, arrays: dict[str, pa.Array], blame: Blame) -> None:
    """Blame the rows that have several members of one oneof."""
    for numbers in message.oneofs:
        members = [arrays[wire_name(number)] for number in numbers]
        set_members = np.zeros(len(members[0]), np.uint16)
        for array in members:
            if array.null_count < len(array):
                set_members += _is_valid(array)
        if set_members.size and set_members.max() > 1:
            blame(set_members > 1)


def _convert_member(member: Member, array: pa.Array, target: pa.DataType, blame: Blame) -> pa.Array:
    match member.shape:
        case "list":
            return _convert_list(member, array, target, blame)
        case "map":
            return _convert_map(member, array, target, blame)
    return _convert(member.kind, array, target, blame)


def _convert_list(member: Member, array: pa.ListArray, target: pa.DataType, blame: Blame) -> pa.Array:
    items = _convert(member.kind, array.values, target.value_type, _blame_rows(array, blame))
    if items is array.values and array.type == target:
        return array
    return pa.ListArray.from_arrays(array.offsets, items, type=target)


def _convert_map(member: Member, array: pa.ListArray, target: pa.DataType, blame: Blame) -> pa.Array:
    entries = array.values
    keys = entries.field(0)
    values = entries.field(1)
    _check_keys(array.offsets, keys, blame)
    blame_entries = _blame_rows(array, blame)
    if values.null_count:
        # The entry has no value; google.protobuf reads an empty message.
        blame_entries(~_is_valid(values))
    items = _convert(member.kind, values, target.item_type, blame_entries)
    return pa.MapArray.from_arrays(array.offsets, keys.cast(pa.string()), items, type=target)


def _convert(kind: Kind, array: pa.Array, target: pa.DataType, blame: Blame) -> pa.Array:
    match kind:
        case Scalar():
            return array if array.type == target else array.cast(target)
        case Wrapper():
            (value,) = array.flatten()
            return value if value.type == target else value.cast(target)
        case Enum():
            return enum_names(kind, array)
        case Instant():
            return _convert_instants(array, blame)
        case TimeSpan():
            return _convert_time_spans(array, blame)
        case JsonText():
            return _convert_json(kind, array, blame)
        case MessageBytes():
            _check_messages(kind, array, blame)
            return array
        case Message():
            return _convert_message(kind, array, target, blame)


def _convert_message(message: Message, array: pa.StructArray, target: pa.DataType, blame: Blame) -> pa.Array:
    arrays = {part.name: array.field(index) for index, part in enumerate(array.type)}
    types = {part.name: part.type for part in target}
    columns = make_columns(message, arrays, types, blame)
    mask = array.is_null() if array.null_count else None
    return pa.StructArray.from_arrays(columns, fields=list(target), mask=mask)


def enum_names(enum: Enum, numbers: pa.Array) -> pa.Array:
    """Return the names of an enum's numbers (int32); of one without a name, its digits."""
    known_numbers, names = _enum_table(tuple(enum.names.items()))
    indexes = pc.index_in(numbers, known_numbers)
    texts = names.take(indexes)
    if texts.null_count > numbers.null_count:
        texts = pc.coalesce(texts, numbers.cast(pa.string()))
    return texts


@lru_cache(maxsize=1024)
def _enum_table(names: tuple[tuple[int, str], ...]) -> tuple[pa.Array, pa.Array]:
    return pa.array([number for number, _ in names], pa.int32()), pa.array([name for _, name in names], pa.string())


def _convert_instants(array: pa.StructArray, blame: Blame) -> pa.Array:
    seconds, nanos, is_set = _times(array)
    lowest, highest = INSTANT_SECONDS
    is_sound = (seconds >= lowest) & (seconds <= highest) & (nanos >= 0) & (nanos < NANOSECONDS)
    _blame_unsound(is_sound, is_set, blame)
    # Nanoseconds that wrap around are of rows that are blamed.
    microseconds = seconds * MICROSECONDS + nanos // 1_000
    return pa.array(microseconds, pa.int64(), mask=None if is_set is None else ~is_set).view(avro.TIMESTAMP)


def _convert_time_spans(array: pa.StructArray, blame: Blame) -> pa.Array:
    seconds, nanos, is_set = _times(array)
    lowest, highest = TIME_SPAN_SECONDS
    is_sound = (seconds >= lowest) & (seconds <= highest) & (np.abs(nanos) < NANOSECONDS)
    is_sound &= np.sign(seconds) * np.sign(nanos) >= 0
    _blame_unsound(is_sound, is_set, blame)
    # Towards zero, as google.protobuf does.
    microseconds = seconds * MICROSECONDS + np.trunc(nanos / 1_000).astype(np.int64)
    return pa.array(microseconds, pa.int64(), mask=None if is_set is None else ~is_set)


def _times(array: pa.StructArray) -> tuple[np.ndarray, np.ndarray, Mask | None]:
    """Return seconds, nanoseconds, and which of them are set; None: all."""
    seconds = pc.fill_null(array.field(0), 0).to_numpy(zero_copy_only=False)
    nanos = pc.fill_null(array.field(1), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    is_set = _is_valid(array) if array.null_count else None
    return seconds, nanos, is_set


def _blame_unsound(is_sound: Mask, is_set: Mask | None, blame: Blame) -> None:
    if is_sound.all():
        return
    mask = ~is_sound if is_set is None else ~is_sound & is_set
    if mask.any():
        blame(mask)


def _convert_json(kind: JsonText, array: pa.Array, blame: Blame) -> pa.Array:
    texts: list[str | None] = []
    is_unsound = np.zeros(len(array), bool)
    for position, content in enumerate(array.to_pylist()):
        text = None
        if content is not None:
            try:
                text = write_json(kind.message, content)
            except NoJson:
                is_unsound[position] = True
        texts.append(text)
    if is_unsound.any():
        blame(is_unsound)
    return pa.array(texts, pa.string())


def _check_messages(kind: MessageBytes, array: pa.Array, blame: Blame) -> None:
    """Blame bytes that are no message."""
    is_unsound = np.zeros(len(array), bool)
    for position, content in enumerate(array.to_pylist()):
        if content:
            try:
                kind.parse(content)
            except DecodeError:
                is_unsound[position] = True
    if is_unsound.any():
        blame(is_unsound)


def _check_keys(offsets: pa.Array, keys: pa.Array, blame: Blame) -> None:
    """Blame the maps that have a key twice.

    The maps {a: 1, b: 2}, {}, {a: 1, a: 3} have the keys 0, 1, 0, 0 in the rows 0, 0, 2, 2: row 2 is blamed.
    """
    counts = np.diff(offsets.to_numpy())
    if not counts.size or counts.max() < 2:  # noqa: PLR2004 - a key twice
        return
    encoded = keys.dictionary_encode()
    key_count = len(encoded.dictionary)
    rows = np.repeat(np.arange(counts.size), counts)
    pairs = np.sort(rows * key_count + encoded.indices.to_numpy())
    repeated = pairs[1:][pairs[1:] == pairs[:-1]]
    if repeated.size:
        mask = np.zeros(counts.size, bool)
        mask[repeated // key_count] = True
        blame(mask)


def _blame_rows(array: pa.Array, blame: Blame) -> Blame:
    """Return what blames the lists, or maps, of items."""

    def blame_items(mask: Mask) -> None:
        rows = np.repeat(np.arange(len(array)), np.diff(array.offsets.to_numpy()))
        row_mask = np.zeros(len(array), bool)
        row_mask[rows[mask]] = True
        blame(row_mask)

    return blame_items


def _is_valid(array: pa.Array) -> Mask:
    mask: Mask = array.is_valid().to_numpy(zero_copy_only=False)
    return mask
