"""Which formats the values of a sample have: Avro or JSON by schemas that they name, JSON without one, or raw."""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.writer.avro.schema_text import NAMED, UnsupportedSchema, read_json
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.formats.formats import FORMAT
from headrace.writer.formats.value_rules import FormatName
from headrace.writer.framing.wire_format import Wire, detect_wire, looks_like_json, values_with_headers
from headrace.writer.preflight.proposal.member_statistics import parse_object
from headrace.writer.protobuf.registered_schema import read_schema
from headrace.writer.schemas.format_detection import MixedWire, UnclearWire, Verdict, judge

# Returns the text of a schema by its id in a wire format; None where it cannot be had.
FindSchema = Callable[[Wire, int], str | None]
WITH_SCHEMAS: tuple[FormatName, ...] = ("avro", "json_schema", "protobuf")
ASK_RAW = "To keep the values as they are, undecoded, give --format raw"
# A smaller share of the values is no format of the topic.
_STRAYS = 0.01
# Ids whose schemas are looked at.
_IDS_MAX = 8
_JSON_SCHEMA_WORDS = frozenset(
    ["$schema", "$id", "$ref", "$defs", "definitions", "properties", "allOf", "anyOf", "oneOf", "not", "const"]
)
# Types that Avro does not know.
_JSON_SCHEMA_TYPES = frozenset(["object", "integer", "number"])
_HEADS: Mapping[bytes, str] = {
    b"{": "like a JSON object that is none",
    b"[": "like a JSON array",
    b'"': "like a JSON text",
    b"<": "like XML",
    b"Obj\x01": "like Avro files",
    b"\x1f\x8b": "compressed by gzip",
    b"\x28\xb5\x2f\xfd": "compressed by zstd",
    b"PAR1": "like Parquet files",
}


@dataclass(frozen=True)
class SampleFormats:
    """The formats of a sample's values.

    `wire`: of the values that name schemas; None: none does, or no value shows it. `objects`: the JSON objects that
    name none, as `parse_object` returns them.
    """

    formats: tuple[FormatName, ...]
    wire: Wire | None
    objects: Sequence[Mapping[str, Any]]
    reason: str


def schema_format(text: str) -> FormatName | None:
    """Return the format of values of a schema; None where it is none of Avro, JSON Schema and Protobuf."""
    if read_schema(text) is not None:
        return "protobuf"
    try:
        document = read_json(text)
    except UnsupportedSchema:
        return None
    if not isinstance(document, dict):
        return "avro" if isinstance(document, str | list) else None
    if FORMAT in document:
        return "json_schema" if document[FORMAT] == "json_schema" else "avro"
    kind = document.get("type")
    if isinstance(kind, str) and kind in NAMED:
        return "avro"
    types = {name for name in (kind if isinstance(kind, list) else [kind]) if isinstance(name, str)}
    if _JSON_SCHEMA_TYPES.isdisjoint(types) and _JSON_SCHEMA_WORDS.isdisjoint(document):
        return "avro"
    return "json_schema"


def find_formats(values: pa.Table, find_schema: FindSchema, asked: Collection[FormatName] = ()) -> SampleFormats:
    """Return the formats of a sample, or those that are asked for. Raises UnclearWire, RegistryUnreachable.

    `values`: records of schema `kafka_sample.RECORDS`, of which each has a value, and there are some.
    """
    if tuple(asked) == ("raw",):
        return SampleFormats(("raw",), None, [], "as asked, values are not looked into")
    if asked and "json" not in asked:
        verdict = judge(values, _knows(find_schema))
        return SampleFormats(tuple(asked), verdict.wire, [], _reason(len(values), verdict.wire, 0, 0))
    objects, others = _split_objects(values)
    if asked:
        return _asked_formats(tuple(asked), objects, others, find_schema)
    if len(objects) <= _STRAYS * len(values):
        return _schema_formats(values, others, find_schema)
    wire = None
    problem = ""
    if len(others) > _STRAYS * len(values):
        wire, problem = _judge_others(others, find_schema)
    if wire is not None:
        formats = _formats_of_schemas(others, wire, find_schema)
        return SampleFormats((*formats, "json"), wire, objects, _reason(len(values), wire, len(others), len(objects)))
    if 2 * len(others) > len(values):
        raise UnclearWire(
            f"of {plural(len(values), 'sampled value')}, {len(objects):,} are JSON objects that name no schema. Of the "
            f"others, {problem}. These others: {describe_values(others)}. To take JSON objects alone, give --format "
            f"json. {ASK_RAW}"
        )
    return SampleFormats(("json",), None, objects, _reason(len(values), None, 0, len(objects)))


def _judge_wires(values: pa.Table, find_schema: FindSchema) -> Verdict:
    """Find the wire formats of values: all that known schemas show. Raises UnclearWire."""
    try:
        return judge(values, _knows(find_schema))
    except MixedWire as error:
        first, *others = error.wires
        return Verdict(replace(first, others=tuple(others)), is_sure=True, message=str(error))


def _judge_others(others: pa.Table, find_schema: FindSchema) -> tuple[Wire | None, str]:
    """Return the wire format of values whose schemas are known, or else None and what was seen."""
    try:
        verdict = _judge_wires(others, find_schema)
    except UnclearWire as error:
        message, _, _ = str(error).partition(". ")
        return None, message
    if verdict.is_sure:
        return verdict.wire, ""
    return None, f"{verdict.message}, and no schema that they name is known"


def _asked_formats(
    asked: tuple[FormatName, ...], objects: Sequence[Mapping[str, Any]], others: pa.Table, find_schema: FindSchema
) -> SampleFormats:
    """Return formats that are asked for, JSON without a schema among them."""
    total = len(objects) + len(others)
    if not objects:
        raise ConfigError(
            f"none of {plural(total, 'sampled value')} is a JSON object that names no schema: "
            f"{describe_values(others)}. Leave --format json out, or give a larger --sample"
        )
    wire = None
    if len(others) and asked != ("json",):
        wire = _judge_wires(others, find_schema).wire
    return SampleFormats(asked, wire, objects, _reason(total, wire, len(others), len(objects)))


def _schema_formats(values: pa.Table, others: pa.Table, find_schema: FindSchema) -> SampleFormats:
    """Return the formats of values that name schemas; Avro where none of these is known."""
    try:
        verdict = _judge_wires(others, find_schema)
    except UnclearWire as error:
        raise UnclearWire(f"{error} The values: {describe_values(others)}. {ASK_RAW}") from error
    formats: tuple[FormatName, ...] = ("avro",)
    if verdict.is_sure:
        formats = _formats_of_schemas(others, verdict.wire, find_schema)
    return SampleFormats(formats, verdict.wire, [], _reason(len(values), verdict.wire, len(values), 0))


def _formats_of_schemas(values: pa.Table, wire: Wire, find_schema: FindSchema) -> tuple[FormatName, ...]:
    """Return the formats of the schemas that most of the values name."""
    formats: set[FormatName | None] = set()
    for schema_id in _common_ids(values, wire):
        text = find_schema(wire, schema_id)
        if text is not None:
            formats.add(schema_format(text))
    # A schema of another format is one that no format reads, which `validate` says.
    return tuple(name for name in WITH_SCHEMAS if name in formats) or ("avro",)


def _common_ids(values: pa.Table, wire: Wire) -> list[int]:
    """Return the schema ids that most values name in a wire format."""
    counts: Counter[int] = Counter()
    for value, headers in values_with_headers(values):
        detected = detect_wire(value, headers)
        if detected is not None and detected[0] == wire:
            counts[detected[1]] += 1
    return [schema_id for schema_id, _ in counts.most_common(_IDS_MAX)]


def _split_objects(values: pa.Table) -> tuple[list[dict[str, Any]], pa.Table]:
    """Return the JSON objects that name no schema, and the records of all other values."""
    objects: list[dict[str, Any]] = []
    others: list[int] = []
    for index, (value, headers) in enumerate(values_with_headers(values)):
        members = None
        if looks_like_json(value) and detect_wire(value, headers) is None:
            members = parse_object(value)
        if members is None:
            others.append(index)
        else:
            objects.append(members)
    return objects, values.take(pa.array(others, pa.int64()))


def describe_values(values: pa.Table) -> str:
    """Return what values begin like, with counts: 3 empty, 2 like XML."""
    counts: Counter[str] = Counter()
    for value in values.column("value").to_pylist():
        counts[_describe_value(value)] += 1
    return ", ".join(f"{count:,} {description}" for description, count in counts.most_common())


def _describe_value(value: bytes) -> str:
    if not value:
        return "empty"
    start = value.lstrip(b" \t\r\n")
    for head, description in _HEADS.items():
        if start.startswith(head):
            return description
    try:
        is_text = value.decode().isprintable()
    except UnicodeDecodeError:
        is_text = False
    return "text" if is_text else "other bytes"


def _knows(find_schema: FindSchema) -> Callable[[Wire, int], bool]:
    return lambda wire, schema_id: find_schema(wire, schema_id) is not None


def _reason(total: int, wire: Wire | None, framed: int, objects: int) -> str:
    """Say what the values are. `framed`: those that are no JSON objects, of which most have the wire format."""
    sampled = plural(total, "sampled value")
    if wire is not None and not objects:
        return f"{sampled}: {wire.description}"
    if wire is not None:
        return f"{sampled}: {framed:,} with a {wire.description}, {objects:,} JSON objects that name no schema"
    reason = f"{sampled}: JSON objects that name no schema"
    if objects < total:
        reason += f", but for {total - objects:,}, which become dead letters"
    return reason
