"""Which formats `headrace init` finds in a sample of values."""

import json
import struct

import pyarrow as pa
import pytest

from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.core.errors import ConfigError
from headrace.writer.framing.wire_format import CONFLUENT, Wire
from headrace.writer.json.declared import declared_record
from headrace.writer.preflight.proposal.value_formats import find_formats, schema_format
from headrace.writer.schemas.format_detection import UnclearWire

AVRO = json.dumps({"type": "record", "name": "R", "fields": []})
JSON_SCHEMA = json.dumps({"$schema": "http://json-schema.org/draft-07/schema#", "type": "object"})
SCHEMAS = {1: AVRO, 2: JSON_SCHEMA, 3: 'syntax = "proto3";'}
OBJECT = b' {"a": 1}'


def records(values, headers=None):
    columns = {
        "value": values, "headers": [headers] * len(values), "topic": ["t"] * len(values),
        "partition": [0] * len(values), "offset": list(range(len(values))), "timestamp": [None] * len(values),
        "key": [None] * len(values),
    }  # fmt: skip
    return pa.table({field.name: pa.array(columns[field.name], field.type) for field in RECORDS}, schema=RECORDS)


def framed(schema_id, count=1):
    return [struct.pack(">bI", 0, schema_id) + b"\x02"] * count


def found(values, asked=(), headers=None):
    return find_formats(records(values, headers), lambda _, schema_id: SCHEMAS.get(schema_id), asked)


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (AVRO, "avro"),
        ('"string"', "avro"),
        ('["null", "long"]', "avro"),
        ('{"type": "long", "logicalType": "timestamp-millis"}', "avro"),
        ('{"type": "map", "values": "long"}', "avro"),
        ('{"type": "record", "name": "R", "properties": {}, "fields": []}', "avro"),
        (declared_record({"a": "long"}, "rest", "null"), "avro"),
        (JSON_SCHEMA, "json_schema"),
        ('{"type": "object"}', "json_schema"),
        ('{"type": ["object", "null"]}', "json_schema"),
        ('{"properties": {"a": {}}}', "json_schema"),
        ('{"oneOf": [{"$ref": "a.json"}]}', "json_schema"),
        (json.dumps({"headrace.format": "json_schema", "schema": JSON_SCHEMA, "references": {}}), "json_schema"),
        ('syntax = "proto3"; message M {}', "protobuf"),
        ("", None),
        ("7", None),
    ],
)
def test_the_format_of_values_by_the_text_of_their_schema(text, form):
    assert schema_format(text) == form


@pytest.mark.parametrize(
    ("values", "formats", "wire", "reason"),
    [
        (framed(1, 30), ("avro",), CONFLUENT, "30 sampled values: Confluent header (magic byte 0 and a 4-byte"),
        (framed(2, 30), ("json_schema",), CONFLUENT, "30 sampled values: Confluent header"),
        (framed(3, 30), ("protobuf",), CONFLUENT, "30 sampled values: Confluent header"),
        ([*framed(1, 5), *framed(2, 30)], ("avro", "json_schema"), CONFLUENT, "35 sampled values: Confluent header"),
        ([OBJECT] * 30, ("json",), None, "30 sampled values: JSON objects that name no schema"),
        ([OBJECT], ("json",), None, "1 sampled value: JSON objects that name no schema"),
        ([*framed(2, 5), OBJECT], ("json_schema", "json"), CONFLUENT, "6 sampled values: 5 with a Confluent header"),
        ([*framed(1, 9), *[OBJECT] * 30], ("avro", "json"), CONFLUENT, "39 sampled values: 9 with a Confluent header"),
        (
            [*[OBJECT] * 30, b"", b"x"],
            ("json",),
            None,
            "32 sampled values: JSON objects that name no schema, but for 2",
        ),
        ([OBJECT, *framed(1, 100)], ("avro",), CONFLUENT, "101 sampled values: Confluent header"),
        ([*[OBJECT] * 100, *framed(1)], ("json",), None, "101 sampled values: JSON objects that name no schema, but"),
        # As before: too few values to tell, or ids that the registry does not know.
        ([b"x"] * 3, ("avro",), CONFLUENT, "3 sampled values: Confluent header"),
        (framed(9, 30), ("avro",), CONFLUENT, "30 sampled values: Confluent header"),
    ],
)
def test_the_sample_decides_over_the_formats(values, formats, wire, reason):
    sample_formats = found(values)
    assert (sample_formats.formats, sample_formats.wire) == (formats, wire)
    assert sample_formats.reason.startswith(reason)


def test_objects_are_those_that_name_no_schema():
    sample_formats = found([*framed(1, 3), OBJECT, b'{"b": 2', b'{"c": true}'])
    assert [list(members) for members in sample_formats.objects] == [["a"], ["c"]]


def test_json_whose_schema_a_kafka_header_names_is_read_by_it():
    headers = [{"key": "__value_schema_id", "value": struct.pack(">bI", 0, 2)}]
    sample_formats = found([OBJECT] * 30, headers=headers)
    assert (sample_formats.formats, sample_formats.objects) == (("json_schema",), [])
    assert sample_formats.wire == Wire("header", "confluent", "__value_schema_id")


def test_values_of_no_format_are_described_without_their_text_and_raw_is_named():
    values = [*[b"[1, 2]"] * 20, *[b"<secret/>"] * 3, b"", b"Anna Schmidt", b"\xff\xfe", b'{"a": secret}']
    with pytest.raises(UnclearWire) as caught:
        found(values)
    message = str(caught.value)
    assert (
        "The values: 20 like a JSON array, 3 like XML, 1 empty, 1 text, 1 other bytes, 1 like a JSON object" in message
    )
    assert "--format raw" in message
    assert "secret" not in message
    assert "Anna" not in message


def test_json_beside_more_values_of_no_known_schema_needs_a_choice():
    with pytest.raises(UnclearWire) as caught:
        found([*[OBJECT] * 30, *framed(9, 60)])
    message = str(caught.value)
    assert message.startswith("of 90 sampled values, 30 are JSON objects that name no schema. Of the others, ")
    assert "no schema that they name is known" in message
    assert "--format json. " in message
    assert message.endswith("--format raw")


def test_values_with_two_headers_are_read_by_both():
    formats = found([*framed(1, 11), *[b"\xc3\x01" + struct.pack("<q", 1)] * 10, *[OBJECT] * 5])
    assert formats.wire is not None
    assert [wire.format for wire in formats.wire.all] == ["confluent", "single_object"]
    assert formats.formats == ("avro", "json")


def test_formats_that_are_asked_for_are_taken():
    assert found([b"x"] * 30, ["raw"]).formats == ("raw",)
    mixed = [*framed(1, 30), *[OBJECT] * 30]
    assert found(mixed, ["json"]).formats == ("json",)
    assert found(mixed, ["json"]).wire is None
    assert len(found(mixed, ["json"]).objects) == 30
    assert found(mixed, ["json", "avro"]).formats == ("json", "avro")
    assert found(mixed, ["json", "avro"]).wire == CONFLUENT
    assert found(framed(1, 30), ["json_schema"]).formats == ("json_schema",)
    with pytest.raises(
        ConfigError, match="none of 30 sampled values is a JSON object that names no schema: 30 other bytes"
    ):
        found(framed(1, 30), ["json"])
