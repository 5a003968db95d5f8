"""Reads the schema id of a record: before the value, in a Kafka header, or from the configuration.

Pure. No two of the formats can be seen in one record: Confluent's ids begin at 1, and Apicurio's 8-byte ids are counted
up from 1 as well, so four zero bytes after the magic byte tell them apart. Sources: Confluent's and Apicurio's
serializers; Avro 1.12, "Single-object encoding".
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous

Format = Literal["confluent", "apicurio", "header", "single_object", "bare"]
Ids = Literal["confluent", "global", "content", "fingerprint"]
Part = Literal["value", "key"]  # of a record

# Kafka's headers as Spark hands them over.
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
ID_HEADERS: Mapping[str, Ids] = {
    "__value_schema_id": "confluent", "apicurio.value.globalId": "global", "apicurio.value.contentId": "content",
}  # fmt: skip
KEY_ID_HEADERS: Mapping[str, Ids] = {name.replace("value", "key"): ids for name, ids in ID_HEADERS.items()}
WIDTHS: Mapping[Format, int] = {"confluent": 5, "apicurio": 9, "header": 0, "single_object": 10, "bare": 0}
_SINGLE_OBJECT = b"\xc3\x01"
_IDS_END = 2**32  # a registry counts its ids up from 1; none comes near
_GUID_BYTES = 17
_INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Wire:
    """A wire format: where the schema id is, and which kind of id it is."""

    format: Format
    ids: Ids = "confluent"
    header: str | None = None  # name of the Kafka header that carries the id
    schema_id: int | None = None  # of every value, where the record does not say
    origin: str = field(default="", compare=False)  # the setting, or the detection, that made it; for a person

    def __post_init__(self) -> None:
        if (self.format == "header") != (self.header is not None):
            raise ValueError(f"format {self.format} with header {self.header!r}: only 'header' has one, and needs it")
        if (self.format == "bare") != (self.schema_id is not None):
            raise ValueError(f"format {self.format} with schema id {self.schema_id}: only 'bare' has one, and needs it")

    @property
    def header_bytes(self) -> int:
        """Number of bytes before each Avro value."""
        return WIDTHS[self.format]

    @property
    def words(self) -> str:
        """Return what a record of this format has."""
        match self.format:
            case "confluent":
                return "Confluent header (magic byte 0 and a 4-byte schema id)"
            case "apicurio":
                return f"header of Apicurio (magic byte 0 and an 8-byte {self.ids} id)"
            case "single_object":
                return "single-object header (C3 01 and an 8-byte fingerprint)"
            case "header":
                return f"Kafka header {self.header} with a schema id"
            case "bare":
                return f"schema that the configuration gives them (id {self.schema_id})"

    def head(self, schema_id: int) -> bytes:
        """Return the bytes before each value of this schema."""
        match self.format:
            case "confluent":
                return struct.pack(">bI", 0, schema_id)
            case "apicurio":
                return struct.pack(">bq", 0, schema_id)
            case "single_object":
                return _SINGLE_OBJECT + struct.pack("<q", schema_id)
            case _:
                return b""

    def beside(self, schema_id: int) -> bytes | None:
        """Return the value of the Kafka header for this schema; None where the format has none."""
        if self.format != "header":
            return None
        if self.ids != "confluent":
            return struct.pack(">q", schema_id)
        return b"\1" + UUID(int=schema_id).bytes if is_guid(schema_id) else struct.pack(">bI", 0, schema_id)

    def read(self, mark: bytes | None) -> int | None:
        """Return the schema id in the bytes before a value, or of the Kafka header; None where they hold none."""
        if mark is None or self.format == "bare":
            return self.schema_id
        match self.format, len(mark):
            case "confluent", 5:
                return _confluent(mark)
            case "apicurio", 9 if mark[0] == 0:
                return _long(mark[1:])
            case "single_object", 10 if mark.startswith(_SINGLE_OBJECT):
                return int(struct.unpack("<q", mark[2:])[0])
            case "header", size if self.ids == "confluent":
                return int(UUID(bytes=mark[1:])) if size == _GUID_BYTES and mark[0] == 1 else _confluent(mark)
            case "header", 8:
                return _long(mark)
        return None

    def found(self, value: bytes, headers: Mapping[str, bytes]) -> int | None:
        """Return the schema id of one record; None where it has not this format."""
        return self.read(value[: self.header_bytes] if self.header is None else headers.get(self.header))

    def facts(self) -> dict[str, Any]:
        """Write the format as JSON values, without what is not set. `Wire(**facts)` reads it."""
        return {key: value for key, value in asdict(self).items() if value is not None and key != "origin"}


CONFLUENT = Wire("confluent")
_INSIDE = (Wire("single_object", "fingerprint"), CONFLUENT, Wire("apicurio", "global"))
_SEEN: Mapping[Part, tuple[Wire, ...]] = {
    "value": (*(Wire("header", ids, name) for name, ids in ID_HEADERS.items()), *_INSIDE),
    "key": (*(Wire("header", ids, name) for name, ids in KEY_ID_HEADERS.items()), *_INSIDE),
}


def header(schema_id: int) -> bytes:
    """Return the bytes before each value of this schema in Confluent's format."""
    return CONFLUENT.head(schema_id)


def is_guid(schema_id: int) -> bool:
    """Tell a GUID, which is a number of up to 128 bits, from other ids."""
    return schema_id > _INT64_MAX


def show_id(schema_id: int) -> str:
    """Write a schema id for a person: a GUID as such, all others as numbers."""
    return str(UUID(int=schema_id)) if is_guid(schema_id) else str(schema_id)


def stored(schema_id: int | None) -> int | None:
    """Return a schema id as 64 bits hold it; a GUID, which they do not, is None."""
    return None if schema_id is None or is_guid(schema_id) else schema_id


def split(records: pa.Table, wire: Wire) -> Iterator[tuple[int | None, pa.Table]]:
    """Split records by schema id; None where a record does not have the format. Groups share no memory.

    `records` have a `value` in each row, and `headers` (type HEADERS) where the format needs them.
    """
    if records.num_rows == 0:
        return
    if wire.format == "bare":
        yield wire.schema_id, records
        return
    if wire.header is None:
        values = records.column("value")
        first = values[0].as_py()[: wire.header_bytes]
        if pc.all(pc.starts_with(values, pattern=first)).as_py() and len(first) == wire.header_bytes:  # nearly always
            yield wire.read(first), records
            return
        marks = contiguous(pc.binary_slice(values, 0, wire.header_bytes))
    else:
        marks = kafka_header(contiguous(records.column("headers")), wire.header)
    marks = marks.dictionary_encode(null_encoding="encode")
    groups: defaultdict[int | None, list[int]] = defaultdict(list)
    for code, mark in enumerate(marks.dictionary.to_pylist()):  # one turn a distinct mark
        groups[wire.read(mark)].append(code)
    if len(groups) == 1:
        yield next(iter(groups)), records
        return
    number_of = np.empty(len(marks.dictionary), np.int32)
    for number, codes in enumerate(groups.values()):
        number_of[codes] = number
    numbers = number_of[marks.indices.to_numpy()]
    order = pc.array_sort_indices(pa.array(numbers))  # stable, and one turn for all ids
    ends = np.cumsum(np.bincount(numbers)).tolist()
    for schema_id, start, end in zip(groups, [0, *ends], ends, strict=False):
        yield schema_id, records.take(order[start:end])  # a slice of sorted records would keep all of them in memory


def kafka_header(headers: pa.ListArray, name: str) -> pa.BinaryArray:
    """Return the value of each record's Kafka header of this name, null without one; of several, the last."""
    entries, rows = pc.list_flatten(headers), pc.list_parent_indices(headers).cast(pa.int64())
    named = pc.equal(pc.struct_field(entries, "key"), name)
    rows, values = rows.filter(named), pc.struct_field(entries, "value").filter(named)
    every = pa.arange(0, len(headers))
    if rows.equals(every):  # nearly always
        return values
    return values[::-1].take(pc.index_in(every, value_set=rows[::-1]))


def recognised(value: bytes, headers: Mapping[str, bytes], part: Part = "value") -> tuple[Wire, int] | None:
    """Return the format that one record's value or key has, and its schema id; None when it has none to be seen."""
    for wire in _SEEN[part]:
        found = wire.found(value, headers)
        if found is not None:
            return wire, found
    return None


def each(records: pa.Table) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Yield each record's value and Kafka headers, one by one: for a sample, or for what became no row."""
    values = records.column("value").to_pylist()
    beside = records.column("headers").to_pylist() if "headers" in records.column_names else [None] * len(values)
    for value, headers in zip(values, beside, strict=True):
        yield value, {entry["key"]: entry["value"] for entry in headers or [] if entry["value"] is not None}


def keys_as_values(records: pa.Table) -> pa.Table:
    """Return the records that have a key, each key in the place of its value; `headers` are there, if only null.

    Beside these, the column `at` has the position of each among the records, and `timestamp` its time.
    """
    keys = contiguous(records.column("key"))
    with_headers = "headers" in records.column_names  # records of an archive may come without
    headers = contiguous(records.column("headers")).cast(HEADERS) if with_headers else pa.nulls(len(keys), HEADERS)
    whole = pa.table({
        "at": pa.arange(0, len(keys)), "value": keys, "headers": headers, "timestamp": records.column("timestamp"),
    })  # fmt: skip
    return whole.filter(keys.is_valid()) if keys.null_count else whole


def refusals(records: pa.Table, wire: Wire, part: Part = "value") -> list[str]:
    """Return for each record why it has not the format, and what to set if it is meant to have the one that it has."""
    return [_refusal(wire, value, recognised(value, headers, part), part) for value, headers in each(records)]


def _refusal(wire: Wire, value: bytes, other: tuple[Wire, int] | None, part: Part) -> str:
    setting = "wire" if part == "value" else "columns.key.wire"
    why = f"no {wire.words}, for the {part} is empty" if not value and wire.header is None else f"no {wire.words}"
    if wire.origin:
        why += f" ({wire.origin})"
    if other is None or other[0] == wire:
        return why
    return f"{why}, but it has a {other[0].words}: a topic of such records needs `{setting}: {other[0].format}`"


def _confluent(mark: bytes) -> int | None:
    return struct.unpack(">I", mark[1:])[0] or None if len(mark) == WIDTHS["confluent"] and mark[0] == 0 else None


def _long(mark: bytes) -> int | None:
    found = int(struct.unpack(">q", mark)[0])
    return found if 0 < found < _IDS_END else None
