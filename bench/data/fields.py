"""Kinds of fields in the data sets: an Avro type, and the encoded column for any events in any format."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.bench.data import encode
from headrace.bench.data.draw import Draw
from headrace.bench.data.encode import Bytes, Doubles, Longs, Mask

# Where the stream stands at its first event. Fixed, so that every run buckets the same hours.
ANCHOR = datetime(2026, 11, 20, 12, 40, tzinfo=UTC)
_EVENTS_PER_MS = 20
# The share of recent events; the others come from phones that were offline.
_RECENT_SHARE = 0.95
_RECENT_MS = 3_600_000
_TAIL_MS = 7 * 3_600_000

_TOKEN_BITS = 10
_TOKENS_PER_DRAW = 6
_TOKEN_BYTES = 8


class Columns(Protocol):
    """A format whose values are encoded in whole columns. `present`: which are not null."""

    def longs(self, values: Longs) -> pa.BinaryArray: ...  # noqa: D102 - the formats say it
    def times(self, milliseconds: Longs) -> pa.BinaryArray: ...  # noqa: D102
    def symbols(self, symbols: Sequence[str], codes: Longs) -> pa.BinaryArray: ...  # noqa: D102
    def doubles(self, values: Doubles, present: Mask | None = None) -> pa.BinaryArray: ...  # noqa: D102
    def booleans(self, values: Mask) -> pa.BinaryArray: ...  # noqa: D102
    def text(self, content: Bytes, present: Mask | None = None) -> pa.BinaryArray: ...  # noqa: D102
    def prose(self, words: npt.NDArray[np.uint64], counts: Longs) -> pa.BinaryArray: ...  # noqa: D102
    def words(self, values: Sequence[str | None], codes: Longs) -> pa.BinaryArray: ...  # noqa: D102
    def array(self, items: pa.BinaryArray, counts: Longs) -> pa.BinaryArray: ...  # noqa: D102
    def mapping(self, keys: pa.BinaryArray, values: pa.BinaryArray, counts: Longs) -> pa.BinaryArray: ...  # noqa: D102
    def record(self, names: Sequence[str], columns: Sequence[pa.BinaryArray]) -> pa.BinaryArray: ...  # noqa: D102
    def optional(self, column: pa.BinaryArray, present: Mask) -> pa.BinaryArray: ...  # noqa: D102


Encoder = Callable[[Draw, Columns], pa.BinaryArray]


@dataclass(frozen=True)
class Field:
    """One field of a record: its name, its Avro type, and its encodings for the events of a draw in a format."""

    name: str
    kind: Any
    encode: Encoder

    def schema(self) -> dict[str, Any]:
        """Write the field as Avro's JSON has it; a nullable one has null as its default."""
        nullable = isinstance(self.kind, list) and self.kind[0] == "null"
        return {"name": self.name, "type": self.kind, **({"default": None} if nullable else {})}


def time(name: str) -> Field:
    """Event times of a live stream: mostly the last hour, the recent minutes most, and a tail of some hours."""

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        arrival = int(ANCHOR.timestamp() * 1000) + (draw.positions // np.uint64(_EVENTS_PER_MS)).astype(np.int64)
        age = draw.unit(name)
        recent = age * age * age * _RECENT_MS
        delay = np.where(draw.happens(name + "/recent", _RECENT_SHARE), recent, draw.unit(name + "/tail") * _TAIL_MS)
        return columns.times(arrival - delay.astype(np.int64))

    return Field(name, {"type": "long", "logicalType": "timestamp-millis"}, encode_events)


def identity(name: str, *, word_count: int, by: int = 1) -> Field:
    """Hexadecimal ids of 16 digits a word, a new one for each `by` events."""

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        group = draw.group_draw(by)
        parts = [encode.hexadecimal(group.bits(f"{name}/{word}")) for word in range(word_count)]
        return columns.text(np.hstack(parts))

    return Field(name, "string", encode_events)


def person(name: str, people: int) -> Field:
    """Ids of people, such as `u000012345678`: most of a batch are seen once in it."""

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        numbers = encode.decimal(draw.below(name, people))
        return columns.text(np.hstack([np.full((len(draw), 1), ord("u"), np.uint8), numbers]))

    return Field(name, "string", encode_events)


def url(name: str, host: str, *, word_count: int = 1, share: float = 1.0) -> Field:
    """Addresses, every one of its own; `share` of them are not null."""
    head = np.frombuffer(f"https://{host}/".encode(), np.uint8)

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        parts = [encode.hexadecimal(draw.bits(f"{name}/{word}")) for word in range(word_count)]
        content = np.hstack([np.broadcast_to(head, (len(draw), len(head))), *parts])
        return columns.text(content, draw.happens(f"{name}/present", share))

    return Field(name, ["null", "string"], encode_events)


def word(name: str, values: Sequence[str | None]) -> Field:
    """One text of few, the first ones most; nullable where None is one of them."""
    kind = ["null", "string"] if None in values else "string"
    return Field(name, kind, lambda draw, columns: columns.words(values, draw.few(name, len(values))))


def enum(name: str, symbols: Sequence[str]) -> Field:
    """One symbol of an enum, the first ones most."""
    kind = {"type": "enum", "name": f"{name.title().replace('_', '')}Enum", "symbols": list(symbols)}
    return Field(name, kind, lambda draw, columns: columns.symbols(symbols, draw.few(name, len(symbols))))


def number(name: str, limit: int, *, kind: str = "int") -> Field:
    """Whole numbers in [0, limit), all alike."""
    return Field(name, kind, lambda draw, columns: columns.longs(draw.below(name, limit)))


def counter(name: str, limit: int) -> Field:
    """Whole numbers in [0, limit), the small ones most."""
    return Field(name, "int", lambda draw, columns: columns.longs(draw.few(name, limit)))


def degrees(name: str, limit: int) -> Field:
    """Positions in [-limit, limit), every one of its own."""
    return Field(name, "double", lambda draw, columns: columns.doubles((draw.unit(name) * 2 - 1) * limit))


def amount(name: str, *, share: float) -> Field:
    """Money in cents of a unit; `share` of the events have some."""

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        return columns.doubles(draw.below(name, 100_000) / 100, draw.happens(f"{name}/present", share))

    return Field(name, ["null", "double"], encode_events)


def flag(name: str, share: float) -> Field:
    """Booleans, `share` of them true."""
    return Field(name, "boolean", lambda draw, columns: columns.booleans(draw.happens(name, share)))


def prose(name: str, mean: int) -> Field:
    """Texts of half to one and a half times `mean` bytes, of a thousand words: zstd makes a third of them."""
    vocabulary = _words()

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        groups_mean = mean // (_TOKENS_PER_DRAW * _TOKEN_BYTES)
        counts = groups_mean // 2 + draw.below(f"{name}/length", groups_mean + 1)
        bits = draw.items(counts, 2 * groups_mean).bits(name)
        shifts = np.arange(0, _TOKEN_BITS * _TOKENS_PER_DRAW, _TOKEN_BITS, dtype=np.uint64)
        codes = (bits[:, None] >> shifts) & np.uint64(2**_TOKEN_BITS - 1)
        return columns.prose(vocabulary[codes.reshape(-1)], counts * _TOKENS_PER_DRAW)

    return Field(name, "string", encode_events)


def record(name: str, fields: Sequence[Field], *, share: float = 1.0) -> Field:
    """A record inside the record; nullable where `share` is below 1."""
    kind = {"type": "record", "name": f"{name.title().replace('_', '')}Record", "fields": [f.schema() for f in fields]}

    names = [field.name for field in fields]

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        return columns.record(names, [field.encode(draw, columns) for field in fields])

    def nullable(draw: Draw, columns: Columns) -> pa.BinaryArray:
        return columns.optional(encode_events(draw, columns), draw.happens(f"{name}/present", share))

    if share == 1:
        return Field(name, kind, encode_events)
    return Field(name, ["null", kind], nullable)


def array(name: str, item: Field, most: int) -> Field:
    """None to `most` items."""

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        counts = _draw_counts(draw, name, most)
        return columns.array(item.encode(draw.items(counts, most), columns), counts)

    return Field(name, {"type": "array", "items": item.kind}, encode_events)


def mapping(name: str, keys: Sequence[str], value: Field) -> Field:
    """Some of the keys, each at most once, in their order."""

    def encode_events(draw: Draw, columns: Columns) -> pa.BinaryArray:
        counts = _draw_counts(draw, name, len(keys))
        items = draw.items(counts, len(keys))
        codes = (items.positions % np.uint64(len(keys))).astype(np.int64)
        return columns.mapping(columns.words(keys, codes), value.encode(items, columns), counts)

    return Field(name, {"type": "map", "values": value.kind}, encode_events)


def _draw_counts(draw: Draw, name: str, most: int) -> Longs:
    return draw.below(f"{name}/count", most + 1)


def _words() -> "np.ndarray[Any, np.dtype[np.uint64]]":
    """Return words of seven letters and a space: a thousand, pinned."""
    letters = np.frombuffer(b"eeeetttaaaooiinnsshhrrddlucm", np.uint8)
    from headrace.bench.data.draw import draw

    codes = np.stack(
        [draw(0, 2**_TOKEN_BITS, seed=1).below(f"letter/{position}", len(letters)) for position in range(7)], axis=1
    )
    spaced = np.hstack([letters[codes], np.full((2**_TOKEN_BITS, 1), ord(" "), np.uint8)])
    return np.ascontiguousarray(spaced).view(np.uint64).reshape(-1)


def schema_text(name: str, fields: Sequence[Field]) -> str:
    """Write the schema of a record of these fields as JSON."""
    root: Mapping[str, Any] = {
        "type": "record",
        "name": name,
        "namespace": "headrace.bench",
        "fields": [field.schema() for field in fields],
    }
    return json.dumps(root)


def declared_type(kind: Any) -> Any:
    """Return what `columns.declared` says of an Avro type of these fields as JSON."""
    match kind:
        case ["null", branch]:
            return declared_type(branch)
        case {"type": "long", "logicalType": "timestamp-millis"}:
            return "timestamp"
        case {"type": "enum"}:
            return "string"
        case {"type": "record", "fields": fields}:
            return {field["name"]: declared_type(field["type"]) for field in fields}
        case {"type": "array", "items": item}:
            return [declared_type(item)]
        case {"type": "map", "values": value}:
            return {"*": declared_type(value)}
        case str():
            return kind
    raise ValueError(f"no field has the type {kind}")
