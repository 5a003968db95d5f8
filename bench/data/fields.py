"""Kinds of fields in the data sets: an Avro type, and the encoded column for any events."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from headrace.bench.data import encode
from headrace.bench.data.draw import Draw

# Where the stream stands at its first event. Fixed, so that every run buckets the same hours.
ANCHOR = datetime(2026, 11, 20, 12, 40, tzinfo=UTC)
_EVENTS_PER_MS = 20
# The share of recent events; the others come from phones that were offline.
_RECENT_SHARE = 0.95
_RECENT_MS = 3_600_000
_TAIL_MS = 7 * 3_600_000

Encoder = Callable[[Draw], pa.BinaryArray]
_TOKEN_BITS = 10
_TOKENS_PER_DRAW = 6
_TOKEN_BYTES = 8


@dataclass(frozen=True)
class Field:
    """One field of a record: its name, its Avro type, and its encodings for the events of a draw."""

    name: str
    kind: Any
    encode: Encoder

    def schema(self) -> dict[str, Any]:
        """Write the field as Avro's JSON has it; a nullable one has null as its default."""
        nullable = isinstance(self.kind, list) and self.kind[0] == "null"
        return {"name": self.name, "type": self.kind, **({"default": None} if nullable else {})}


def time(name: str) -> Field:
    """Event times of a live stream: mostly the last hour, the recent minutes most, and a tail of some hours."""

    def encode_events(draw: Draw) -> pa.BinaryArray:
        arrival = int(ANCHOR.timestamp() * 1000) + (draw.positions // np.uint64(_EVENTS_PER_MS)).astype(np.int64)
        age = draw.unit(name)
        recent = age * age * age * _RECENT_MS
        delay = np.where(draw.happens(name + "/recent", _RECENT_SHARE), recent, draw.unit(name + "/tail") * _TAIL_MS)
        return encode.longs(arrival - delay.astype(np.int64))

    return Field(name, {"type": "long", "logicalType": "timestamp-millis"}, encode_events)


def identity(name: str, *, word_count: int, by: int = 1) -> Field:
    """Hexadecimal ids of 16 digits a word, a new one for each `by` events."""

    def encode_events(draw: Draw) -> pa.BinaryArray:
        group = draw.group_draw(by)
        parts = [encode.hexadecimal(group.bits(f"{name}/{word}")) for word in range(word_count)]
        return encode.text(np.hstack(parts))

    return Field(name, "string", encode_events)


def person(name: str, people: int) -> Field:
    """Ids of people, such as `u000012345678`: most of a batch are seen once in it."""

    def encode_events(draw: Draw) -> pa.BinaryArray:
        numbers = encode.decimal(draw.below(name, people))
        return encode.text(np.hstack([np.full((len(draw), 1), ord("u"), np.uint8), numbers]))

    return Field(name, "string", encode_events)


def url(name: str, host: str, *, word_count: int = 1, share: float = 1.0) -> Field:
    """Addresses, every one of its own; `share` of them are not null."""
    head = np.frombuffer(f"https://{host}/".encode(), np.uint8)

    def encode_events(draw: Draw) -> pa.BinaryArray:
        parts = [encode.hexadecimal(draw.bits(f"{name}/{word}")) for word in range(word_count)]
        content = np.hstack([np.broadcast_to(head, (len(draw), len(head))), *parts])
        return encode.text(content, draw.happens(f"{name}/present", share))

    return Field(name, ["null", "string"], encode_events)


def word(name: str, values: Sequence[str | None]) -> Field:
    """One text of few, the first ones most; nullable where None is one of them."""
    if None in values:
        encodings = [encode.one_optional_text(value) for value in values]
        kind = ["null", "string"]
        return Field(name, kind, lambda draw: encode.pick_encodings(draw.few(name, len(values)), encodings))
    encodings = [encode.one_text(value) for value in values if value is not None]
    return Field(name, "string", lambda draw: encode.pick_encodings(draw.few(name, len(values)), encodings))


def enum(name: str, symbols: Sequence[str]) -> Field:
    """One symbol of an enum, the first ones most."""
    kind = {"type": "enum", "name": f"{name.title().replace('_', '')}Enum", "symbols": list(symbols)}
    return Field(name, kind, lambda draw: encode.longs(draw.few(name, len(symbols))))


def number(name: str, limit: int, *, kind: str = "int") -> Field:
    """Whole numbers in [0, limit), all alike."""
    return Field(name, kind, lambda draw: encode.longs(draw.below(name, limit)))


def counter(name: str, limit: int) -> Field:
    """Whole numbers in [0, limit), the small ones most."""
    return Field(name, "int", lambda draw: encode.longs(draw.few(name, limit)))


def degrees(name: str, limit: int) -> Field:
    """Positions in [-limit, limit), every one of its own."""
    return Field(name, "double", lambda draw: encode.doubles((draw.unit(name) * 2 - 1) * limit))


def amount(name: str, *, share: float) -> Field:
    """Money in cents of a unit; `share` of the events have some."""

    def encode_events(draw: Draw) -> pa.BinaryArray:
        return encode.doubles(draw.below(name, 100_000) / 100, draw.happens(f"{name}/present", share))

    return Field(name, ["null", "double"], encode_events)


def flag(name: str, share: float) -> Field:
    """Booleans, `share` of them true."""
    return Field(name, "boolean", lambda draw: encode.booleans(draw.happens(name, share)))


def prose(name: str, mean: int) -> Field:
    """Texts of half to one and a half times `mean` bytes, of a thousand words: zstd makes a third of them."""
    vocabulary = _words()

    def encode_events(draw: Draw) -> pa.BinaryArray:
        groups_mean = mean // (_TOKENS_PER_DRAW * _TOKEN_BYTES)
        counts = groups_mean // 2 + draw.below(f"{name}/length", groups_mean + 1)
        bits = draw.items(counts, 2 * groups_mean).bits(name)
        shifts = np.arange(0, _TOKEN_BITS * _TOKENS_PER_DRAW, _TOKEN_BITS, dtype=np.uint64)
        codes = (bits[:, None] >> shifts) & np.uint64(2**_TOKEN_BITS - 1)
        return encode.prose(vocabulary[codes.reshape(-1)], counts * _TOKENS_PER_DRAW)

    return Field(name, "string", encode_events)


def record(name: str, fields: Sequence[Field], *, share: float = 1.0) -> Field:
    """A record inside the record; nullable where `share` is below 1."""
    kind = {"type": "record", "name": f"{name.title().replace('_', '')}Record", "fields": [f.schema() for f in fields]}

    def encode_events(draw: Draw) -> pa.BinaryArray:
        return encode.join_parts([field.encode(draw) for field in fields])

    def nullable(draw: Draw) -> pa.BinaryArray:
        present = draw.happens(f"{name}/present", share)
        present_values = encode.join_parts([pa.scalar(b"\2", pa.binary()), encode_events(draw)])
        return pa.compute.if_else(pa.array(present), present_values, pa.scalar(b"\0", pa.binary()))

    if share == 1:
        return Field(name, kind, encode_events)
    return Field(name, ["null", kind], nullable)


def array(name: str, item: Field, most: int) -> Field:
    """None to `most` items."""
    return Field(name, {"type": "array", "items": item.kind}, _blocks(name, [item.encode], most))


def mapping(name: str, keys: Sequence[str], value: Field) -> Field:
    """Some of the keys, each at most once, in their order."""
    ready = [encode.one_text(key) for key in keys]

    def key(draw: Draw) -> pa.BinaryArray:
        return encode.pick_encodings((draw.positions % np.uint64(len(keys))).astype(np.int64), ready)

    return Field(name, {"type": "map", "values": value.kind}, _blocks(name, [key, value.encode], len(keys)))


def _blocks(name: str, parts: Sequence[Encoder], most: int) -> Encoder:
    def encode_events(draw: Draw) -> pa.BinaryArray:
        counts = draw.below(f"{name}/count", most + 1)
        items = draw.items(counts, most)
        return encode.blocks(encode.join_parts([part(items) for part in parts]), counts)

    return encode_events


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
