"""Reads the schema id of a record: before the value, in a Kafka header, or from the configuration.

Pure. No two of the formats can be seen in one record: Confluent's ids begin at 1, and Apicurio's 8-byte ids are counted
up from 1 as well, so four zero bytes after the magic byte tell them apart. Sources: the serializers of Confluent,
Apicurio and AWS Glue; Avro 1.12, "Single-object encoding".
"""

import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous
from headrace.writer.framing.message_indexes import read_indexes, write_indexes
from headrace.writer.framing.message_marks import ZLIB, Style, describe_mark, read_name

Format = Literal["confluent", "apicurio", "glue", "header", "single_object", "bare", "none"]
Ids = Literal["confluent", "global", "content", "glue", "fingerprint"]
# Of a record.
Part = Literal["value", "key"]

# Kafka's headers as Spark hands them over.
HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))
ID_HEADERS: Mapping[str, Ids] = {
    "__value_schema_id": "confluent",
    "apicurio.value.globalId": "global",
    "apicurio.value.contentId": "content",
}
KEY_ID_HEADERS: Mapping[str, Ids] = {name.replace("value", "key"): ids for name, ids in ID_HEADERS.items()}
WIDTHS: Mapping[Format, int] = {
    "confluent": 5,
    "apicurio": 9,
    "glue": 18,
    "header": 0,
    "single_object": 10,
    "bare": 0,
    "none": 0,
}
# Stands for the id of the schema that the configuration gives to values which name none. No registry has it.
UNNAMED = 0
_SINGLE_OBJECT = b"\xc3\x01"
# AWS Glue's version of its header, and the byte behind it: the value is as it is, or one zlib stream.
_GLUE_VERSION = 3
GLUE_PLAIN = 0
GLUE_ZLIB = ZLIB
# A registry counts its ids up from 1; none comes near.
_IDS_END = 2**32
_GUID_BYTES = 17
_INT64_MAX = 2**63 - 1
# Fingerprints are signed numbers of 64 bits, GUIDs have 128.
_FINGERPRINTS_BELOW = 2**64
_FORMAT_IDS = 2**132
# More than all formats have.
_MESSAGE_IDS = 2**160
# Their order is of no log: what stands for message types lives as long as a process.
_STYLES: tuple[Style, ...] = ("indexes", "place", "name", "header_name")


@dataclass(frozen=True)
class Wire:
    """A wire format: where the schema id is, and which kind of id it is."""

    format: Format
    ids: Ids = "confluent"
    # Name of the Kafka header that carries the id.
    header: str | None = None
    # The schema id of every value, where the record does not say.
    schema_id: int | None = None
    # Formats that values may have as well. Their ids are those of `framed_id`.
    others: tuple["Wire", ...] = ()
    # The setting, or the detection, that made the format; for a person.
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if (self.format == "header") != (self.header is not None):
            raise ValueError(f"format {self.format} with header {self.header!r}: only 'header' has one, and needs it")
        if (self.format == "bare") != (self.schema_id is not None):
            raise ValueError(f"format {self.format} with schema id {self.schema_id}: only 'bare' has one, and needs it")

    @property
    def all(self) -> tuple["Wire", ...]:
        """The formats that values may have: this one, and the others."""
        return (replace(self, others=()), *self.others)

    @property
    def reads_headers(self) -> bool:
        """Whether the schema ids of some values are in Kafka's headers."""
        return any(wire.header is not None for wire in self.all)

    def of_id(self, schema_id: int) -> tuple["Wire", int]:
        """Return the format by which an id was read, and the id that the record has."""
        number, own_id = own_schema_id(schema_id)
        return self.all[number], own_id

    def show_format(self, schema_id: int) -> str:
        """Name the format by which an id was read, behind the id: ` (apicurio)`; nothing where it is the first one.

        The same number may be an id of each format.
        """
        wire, _ = self.of_id(schema_id)
        if wire == self.all[0]:
            return ""
        return f" ({wire.header or wire.format})"

    def bytes_before(self, schema_id: int) -> int:
        """Return the number of bytes before each value of an id, with those that name its message."""
        wire, _ = self.of_id(schema_id)
        mark = message_mark(schema_id)
        if mark is None:
            return wire.header_bytes
        # A header that names the message does so alone, or as well as the value does.
        is_in_value = wire.header is None or (message_style(schema_id) == "header_name" and read_name(mark) is not None)
        return wire.header_bytes + is_in_value * len(mark)

    @property
    def message_style(self) -> Style | None:
        """How values name their message of a Protobuf schema; None: in no way that is read."""
        match self.format, self.ids:
            case "glue", _:
                return "place"
            case "confluent" | "header", "confluent":
                return "indexes"
            case "confluent" | "apicurio", "global" | "content":
                return "name"
            case "header", "global" | "content":
                return "header_name"
        return None

    @property
    def header_bytes(self) -> int:
        """Number of bytes before each Avro value."""
        return WIDTHS[self.format]

    @property
    def description(self) -> str:
        """Return what a record of this format has."""
        match self.format:
            case "confluent" if self.ids != "confluent":
                return f"header of Apicurio (magic byte 0 and a 4-byte {self.ids} id)"
            case "confluent":
                return "Confluent header (magic byte 0 and a 4-byte schema id)"
            case "apicurio":
                return f"header of Apicurio (magic byte 0 and an 8-byte {self.ids} id)"
            case "glue":
                return "header of AWS Glue (03, 00 or 05, and a 16-byte id of a schema version)"
            case "single_object":
                return "single-object header (C3 01 and an 8-byte fingerprint)"
            case "header":
                return f"Kafka header {self.header} with a schema id"
            case "bare":
                return f"schema that the configuration gives them (id {self.schema_id})"
            case "none":
                return "value that names no schema"

    def value_header(self, schema_id: int) -> bytes:
        """Return the bytes before each value of this schema."""
        match self.format:
            case "confluent":
                return struct.pack(">bI", 0, schema_id)
            case "apicurio":
                return struct.pack(">bq", 0, schema_id)
            case "glue":
                return bytes([_GLUE_VERSION, GLUE_PLAIN]) + UUID(int=schema_id).bytes
            case "single_object":
                return _SINGLE_OBJECT + struct.pack("<q", schema_id)
            case _:
                return b""

    def kafka_header_value(self, schema_id: int) -> bytes | None:
        """Return the value of the Kafka header for this schema; None where the format has none."""
        if self.format != "header":
            return None
        if self.ids != "confluent":
            return struct.pack(">q", schema_id)
        if is_guid(schema_id):
            return b"\1" + UUID(int=schema_id).bytes
        return struct.pack(">bI", 0, schema_id)

    def parse_id(self, mark: bytes | None) -> int | None:
        """Return the schema id in the bytes before a value, or of the Kafka header; None where they hold none."""
        if self.format == "none":
            return UNNAMED
        if mark is None or self.format == "bare":
            return self.schema_id
        match self.format, len(mark):
            case "confluent", 5:
                return _parse_confluent_id(mark)
            case "apicurio", 9 if mark[0] == 0:
                return _parse_int64_id(mark[1:])
            case "glue", 18 if mark[0] == _GLUE_VERSION and mark[1] in (GLUE_PLAIN, GLUE_ZLIB):
                return _parse_guid(mark[2:])
            case "single_object", 10 if mark.startswith(_SINGLE_OBJECT):
                return int(struct.unpack("<q", mark[2:])[0])
            case "header", _ if self.ids == "confluent":
                return _parse_confluent_header(mark)
            case "header", 8:
                return _parse_int64_id(mark)
        return None

    def find_schema_id(self, value: bytes, headers: Mapping[str, bytes]) -> int | None:
        """Return the schema id of one record; None where it has none of the formats."""
        for number, wire in enumerate(self.all):
            mark = value[: wire.header_bytes]
            if wire.header is not None:
                mark = headers.get(wire.header, b"")
            own_id = wire.parse_id(mark)
            if own_id is not None:
                return framed_id(number, own_id)
        return None

    def facts(self) -> dict[str, Any]:
        """Write the format as JSON values, without what is not set. `Wire(**facts)` reads it."""
        # The others are configured, and never detected.
        own = asdict(replace(self, others=()))
        return {key: value for key, value in own.items() if value is not None and key not in ("origin", "others")}


CONFLUENT = Wire("confluent")
# No value names a schema.
NO_WIRE = Wire("none")
GLUE = Wire("glue", "glue")
_BEFORE_VALUE = (Wire("single_object", "fingerprint"), CONFLUENT, Wire("apicurio", "global"), GLUE)
# The formats that a record shows, in the order in which they are looked for.
_DETECTABLE: Mapping[Part, tuple[Wire, ...]] = {
    "value": (*(Wire("header", ids, name) for name, ids in ID_HEADERS.items()), *_BEFORE_VALUE),
    "key": (*(Wire("header", ids, name) for name, ids in KEY_ID_HEADERS.items()), *_BEFORE_VALUE),
}


def header(schema_id: int) -> bytes:
    """Return the bytes before each value of this schema in Confluent's format."""
    return CONFLUENT.value_header(schema_id)


def framed_id(number: int, own_id: int) -> int:
    """Return what stands for the schema id of a record in the format of a number: its own in the first, format 0.

    The same number may mean another schema in each format.
    """
    if number == 0:
        return own_id
    return number * _FORMAT_IDS + own_id + _FINGERPRINTS_BELOW


def own_schema_id(schema_id: int) -> tuple[int, int]:
    """Return the number of the format of an id, and the id that the record has, without its message."""
    schema_id = without_message(schema_id)
    number = schema_id // _FORMAT_IDS
    if schema_id < _FORMAT_IDS:
        return 0, schema_id
    return number, schema_id - number * _FORMAT_IDS - _FINGERPRINTS_BELOW


def with_message(schema_id: int, mark: bytes, style: Style = "indexes") -> int:
    """Return what stands for one message type of the schema with an id. `mark`: the bytes by which values name it."""
    return int.from_bytes(bytes([_STYLES.index(style) + 1]) + mark, "big") * _MESSAGE_IDS + schema_id


def without_message(schema_id: int) -> int:
    """Return the id of the schema, whichever of its message types an id stands for."""
    return schema_id if schema_id < _MESSAGE_IDS else schema_id % _MESSAGE_IDS


def message_mark(schema_id: int) -> bytes | None:
    """Return the bytes by which values name the message type that an id stands for; None where it is of no type."""
    if schema_id < _MESSAGE_IDS:
        return None
    return _styled_mark(schema_id)[1:]


def message_style(schema_id: int) -> Style:
    """Return how values name the message type that an id stands for."""
    return _STYLES[_styled_mark(schema_id)[0] - 1]


def _styled_mark(schema_id: int) -> bytes:
    number = schema_id // _MESSAGE_IDS
    return number.to_bytes((number.bit_length() + 7) // 8, "big")


def canonical_mark(mark: bytes, style: Style) -> bytes:
    """Return the one spelling of the bytes by which values name a message type."""
    if style == "header_name":
        name = read_name(mark)
        return mark if name is None else name.encode()
    indexes = read_indexes(mark)
    return mark if indexes is None else write_indexes(indexes)


def is_guid(schema_id: int) -> bool:
    """Tell a GUID, which is a number of up to 128 bits, from other ids."""
    _, own_id = own_schema_id(schema_id)
    return own_id > _INT64_MAX


def show_id(schema_id: int) -> str:
    """Write a schema id for a person: a GUID as such, all others as numbers."""
    _, own_id = own_schema_id(schema_id)
    return str(UUID(int=own_id)) if is_guid(own_id) else str(own_id)


def parse_id(text: str) -> int:
    """Read what `show_id` wrote. Raises ValueError."""
    if "-" in text:
        return UUID(text).int
    return int(text)


def show_message(schema_id: int) -> str:
    """Name the message type that an id stands for, behind the id: `, message [1, 0]`; nothing where it is of none.

    No two ids of a schema have one name: another spelling is written out.
    """
    mark = message_mark(schema_id)
    if mark is None:
        return ""
    style = message_style(schema_id)
    spelling = ""
    if canonical_mark(mark, style) != mark:
        spelling = f", written {mark.hex()}"
    return f", message {describe_mark(mark, style)}{spelling}"


def id_facts(schema_id: int) -> dict[str, Any]:
    """Return a schema id for a log line, with the indexes of the message type that it stands for, if it is of one."""
    facts: dict[str, Any] = {"schema_id": own_schema_id(schema_id)[1]}
    mark = message_mark(schema_id)
    if mark is not None:
        style = message_style(schema_id)
        facts["message"] = describe_mark(mark, style)
        if style == "indexes":
            facts["message"] = list(read_indexes(mark) or ())
    return facts


def named_id(schema_id: int | None) -> int | None:
    """Return a schema id, without its message; None for what stands for the schema of values that name none."""
    return None if schema_id in (None, UNNAMED) else without_message(schema_id)


def int64_id(schema_id: int | None) -> int | None:
    """Return a schema id as 64 bits hold it; a GUID, which they do not, is None, and so is what stands for none."""
    named = named_id(schema_id)
    if named is None or is_guid(named):
        return None
    return own_schema_id(named)[1]


def split_by_schema_id(records: pa.Table, wire: Wire) -> Iterator[tuple[int | None, pa.Table]]:
    """Split records by schema id; None where a record has none of the formats. Groups share no memory.

    `records` have a `value` in each row, and `headers` (type HEADERS) where the format needs them.

    Values with the ids 7, 9, 7 give (7, rows 0 and 2), then (9, row 1): groups in the order of their first records.
    """
    remaining = records
    for number, single_wire in enumerate(wire.all):
        groups = dict(_split_by_own_id(remaining, single_wire))
        remaining = groups.pop(None, remaining.slice(0, 0))
        for own_id, group in groups.items():
            assert own_id is not None, "those without an id remain"
            yield framed_id(number, own_id), group
    if remaining.num_rows:
        yield None, remaining


def _split_by_own_id(records: pa.Table, wire: Wire) -> Iterator[tuple[int | None, pa.Table]]:
    """Split records by the schema id that they have in one format."""
    if records.num_rows == 0:
        return
    if wire.format in ("bare", "none"):
        yield wire.parse_id(None), records
        return
    if wire.header is None:
        values = records.column("value")
        first = values[0].as_py()[: wire.header_bytes]
        # Nearly always all records have one schema.
        if pc.all(pc.starts_with(values, pattern=first)).as_py() and len(first) == wire.header_bytes:
            yield wire.parse_id(first), records
            return
        marks = contiguous(pc.binary_slice(values, 0, wire.header_bytes))
    else:
        marks = kafka_header(contiguous(records.column("headers")), wire.header)
    marks = marks.dictionary_encode(null_encoding="encode")
    codes_by_id: defaultdict[int | None, list[int]] = defaultdict(list)
    # The loop takes one turn for each distinct mark.
    for code, mark in enumerate(marks.dictionary.to_pylist()):
        codes_by_id[wire.parse_id(mark)].append(code)
    if len(codes_by_id) == 1:
        yield next(iter(codes_by_id)), records
        return
    group_of_code = np.empty(len(marks.dictionary), np.int32)
    for group, codes in enumerate(codes_by_id.values()):
        group_of_code[codes] = group
    groups = group_of_code[marks.indices.to_numpy()]
    yield from zip(codes_by_id, take_groups(records, groups), strict=True)


def take_groups(records: pa.Table, groups: np.ndarray) -> Iterator[pa.Table]:
    """Yield the records of each group by the number of its group: of 0, of 1, and so on. Groups share no memory.

    Records of the groups 0, 1, 0 give rows 0 and 2, then row 1.
    """
    # The sort is stable, and one for all groups.
    order = pc.array_sort_indices(pa.array(groups))
    stops = np.cumsum(np.bincount(groups)).tolist()
    # Of several chunks, each `take` would make one first, of all values.
    records = records.combine_chunks()
    for start, stop in zip([0, *stops], stops, strict=False):
        # A slice of sorted records would keep all of them in memory.
        yield records.take(order[start:stop])


def looks_like_json(value: bytes) -> bool:
    """Return whether a value begins as a JSON object does; no header of a wire format does."""
    return value.lstrip(b" \t\r\n").startswith(b"{")


def split_json(records: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the records whose values begin as a JSON object does, and the others."""
    values = contiguous(records.column("value"))
    is_json = pc.starts_with(values, pattern=b"{")
    others = pc.indices_nonzero(pc.invert(is_json))
    if len(others):
        # Few values begin with a space.
        spaced = [position for position in others.to_pylist() if looks_like_json(values[position].as_py())]
        is_json = pc.or_(is_json, pc.is_in(pa.arange(0, len(values)), value_set=pa.array(spaced, pa.int64())))
    return records.filter(is_json), records.filter(pc.invert(is_json))


def kafka_header(headers: pa.ListArray, name: str) -> pa.BinaryArray:
    """Return the value of each record's Kafka header of this name, null without one; of several, the last.

    For the name `id`, the headers [(id, 1), (id, 2)], [], [(x, 3), (id, 4)] give 2, null, 4.
    """
    entries = pc.list_flatten(headers)
    rows = pc.list_parent_indices(headers).cast(pa.int64())
    has_name = pc.equal(pc.struct_field(entries, "key"), name)
    rows = rows.filter(has_name)
    values = pc.struct_field(entries, "value").filter(has_name)
    all_rows = pa.arange(0, len(headers))
    # Nearly always each record has the header once.
    if rows.equals(all_rows):
        return values
    return values[::-1].take(pc.index_in(all_rows, value_set=rows[::-1]))


def detect_wire(value: bytes, headers: Mapping[str, bytes], part: Part = "value") -> tuple[Wire, int] | None:
    """Return the format that one record's value or key has, and its schema id; None when it shows none."""
    for wire in _DETECTABLE[part]:
        schema_id = wire.find_schema_id(value, headers)
        if schema_id is not None:
            return wire, without_message(schema_id)
    return None


def values_with_headers(records: pa.Table) -> Iterator[tuple[bytes, dict[str, bytes]]]:
    """Yield each record's value and Kafka headers, one by one: for a sample, or for what became no row."""
    values = records.column("value").to_pylist()
    lists: list[Any] = [None] * len(values)
    if "headers" in records.column_names:
        lists = records.column("headers").to_pylist()
    for value, headers in zip(values, lists, strict=True):
        yield value, {entry["key"]: entry["value"] for entry in headers or [] if entry["value"] is not None}


def keys_as_values(records: pa.Table) -> pa.Table:
    """Return the records that have a key, each key in the place of its value; `headers` are there, if only null.

    The column `position` has the position of each among the records, and `timestamp` its time.
    """
    keys = contiguous(records.column("key"))
    # Records of an archive may come without headers.
    if "headers" in records.column_names:
        headers = contiguous(records.column("headers")).cast(HEADERS)
    else:
        headers = pa.nulls(len(keys), HEADERS)
    columns = {
        "position": pa.arange(0, len(keys)),
        "value": keys,
        "headers": headers,
        "timestamp": records.column("timestamp"),
    }
    table = pa.table(columns)
    if keys.null_count == 0:
        return table
    return table.filter(keys.is_valid())


def refusal_reasons(records: pa.Table, wire: Wire, part: Part = "value") -> list[str]:
    """Return for each record why it has not the format, and what to set if it is meant to have the one that it has."""
    return [
        _refusal_reason(wire, value, detect_wire(value, headers, part), part)
        for value, headers in values_with_headers(records)
    ]


def _refusal_reason(wire: Wire, value: bytes, detected: tuple[Wire, int] | None, part: Part) -> str:
    reason = "no " + ", no ".join(single_wire.description for single_wire in wire.all)
    if not value and wire.header is None:
        reason += f", for the {part} is empty"
    if wire.origin:
        reason += f" ({wire.origin})"
    if detected is None or detected[0] in wire.all:
        return reason
    other, _ = detected
    setting = "wire" if part == "value" else "columns.key.wire"
    return f"{reason}, but it has a {other.description}: a topic of such records needs `{setting}: {other.format}`"


def _parse_confluent_id(mark: bytes) -> int | None:
    if len(mark) != WIDTHS["confluent"] or mark[0] != 0:
        return None
    return struct.unpack(">I", mark[1:])[0] or None


def _parse_guid(mark: bytes) -> int | None:
    """Return the number that a GUID is; None where all of its bits are 0, which is the GUID of nothing."""
    return UUID(bytes=mark).int or None


def _parse_confluent_header(mark: bytes) -> int | None:
    """Return the schema id of Confluent's Kafka header: 0 and an id, or 1 and a GUID; then a message, or nothing."""
    schema_id: int | None = None
    width = WIDTHS["confluent"]
    if mark[:1] != b"\1":
        schema_id = _parse_confluent_id(mark[:width])
    elif len(mark) >= _GUID_BYTES:
        width = _GUID_BYTES
        schema_id = _parse_guid(mark[1:width])
    message = mark[width:]
    if schema_id is None or not message:
        return schema_id
    if read_indexes(message) is None:
        return None
    return with_message(schema_id, message)


def _parse_int64_id(mark: bytes) -> int | None:
    schema_id = int(struct.unpack(">q", mark)[0])
    return schema_id if 0 < schema_id < _IDS_END else None
