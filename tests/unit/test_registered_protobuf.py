"""Protobuf schemas as sources hand them over: what their text says without protoc, and what their fingerprint is."""

import base64
import json

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.core.errors import ConfigError
from headrace.writer.formats.value_rules import OtherFormat, ValueRules
from headrace.writer.framing.message_indexes import write_indexes
from headrace.writer.framing.wire_format import CONFLUENT, Wire, with_message
from headrace.writer.protobuf.attributes import FINGERPRINT
from headrace.writer.protobuf.message_types import compile_types, read_types
from headrace.writer.protobuf.proto_files import read_schema_file
from headrace.writer.protobuf.registered_schema import (
    RegisteredSchema,
    imported_names,
    message_of,
    read_schema,
    wrap_schema,
)
from headrace.writer.protobuf.schema_files import compile_files
from headrace.writer.schemas.record_source import RecordSource
from headrace.writer.schemas.registry_client import UnreadableSchema
from headrace.writer.schemas.schema_id_check import fingerprint_of, registered_fingerprint

TEXT = """
// message Comment { }
syntax = "proto3";
package com.shop;  /* message Other { */
import "a.proto"; import public 'dir/b.proto';
option java_package = "message Text { }";
message Click { message Inner { int64 id = 1; } enum Kind { A = 0; } map<string, Inner> inner = 1; }
message Install { string id = 1; }
"""
PLAIN = """syntax = "proto3";
message A { int64 id = 1; map<string, B> m = 2; message B { C c = 1; message C { bool x = 1; } } }
"""
RULES = ValueRules(("protobuf",))


class Source:
    """One schema, under the id 7."""

    def __init__(self, text: str) -> None:
        self.text = text

    def schema(self, schema_id: int) -> str:
        assert schema_id == 7, "a source is asked for ids of schemas alone"
        return self.text

    def topic_schemas(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - of one topic
        return {7: self.text}


def test_a_text_tells_its_messages_and_imports_whatever_comments_and_texts_hold():
    schema = RegisteredSchema(TEXT)
    assert schema.messages == ["com.shop.Click", "com.shop.Install"]
    assert imported_names(TEXT) == ["a.proto", "dir/b.proto"]


@pytest.mark.timeout(20)
def test_comments_without_an_end_cost_time_by_their_length():
    text = f"{TEXT} {'/* ' * 300_000}"
    assert RegisteredSchema(text).messages == ["com.shop.Click", "com.shop.Install"]
    with pytest.raises(UnsupportedSchema, match="protoc refuses it"):
        compile_types(text)


@pytest.mark.parametrize(
    ("text", "is_protobuf"),
    [
        (TEXT, True), ("message A {}", True), ('edition = "2023";', True), ("\ufeff", False), ("", False),
        ('{"type": "record"}', False), ('"string"', False), ("{broken", False), ("a page", False),
        ('{"headrace.format": "protobuf"}', False), ('{"headrace.format": "protobuf", "schema": 5}', False),
        (wrap_schema(TEXT, {"a.proto": "b"}), True),
    ],
)  # fmt: skip
def test_a_text_is_protobuf_or_is_not(text, is_protobuf):
    assert (read_schema(text) is not None) == is_protobuf


def test_a_wrapped_schema_is_read_as_it_was():
    assert read_schema(wrap_schema("a", {"b.proto": "c"})) == RegisteredSchema("a", {"b.proto": "c"})


def test_a_fingerprint_is_of_what_the_messages_mean_not_of_their_spelling():
    """It stands in tables for good: this number must never change."""
    fingerprint = compile_types(PLAIN).fingerprint
    assert fingerprint == 868920425902508210
    assert compile_types(PLAIN.replace("; ", ";\n// a comment\n")).fingerprint == fingerprint
    assert compile_types(wrap_schema(PLAIN, {"unused.proto": "message U {}"})).fingerprint == fingerprint
    for other in (PLAIN.replace("id = 1", "id = 9"), PLAIN.replace("bool x", "bool y"), PLAIN + "message Z { }"):
        assert compile_types(other).fingerprint != fingerprint
    assert registered_fingerprint('syntax = "proto3"; message A { B b = 1; }') is None


def test_a_record_schema_has_the_fingerprint_of_its_schema():
    source = RecordSource(Source(PLAIN), RULES)
    for indexes, name in compile_types(PLAIN).names.items():
        text = source.schema(with_message(7, write_indexes(indexes)))
        assert message_of(text) == name
        assert json.loads(text)[FINGERPRINT] == fingerprint_of(text) == registered_fingerprint(PLAIN)
    assert message_of(PLAIN) is None
    assert message_of(wrap_schema(PLAIN, {})) is None


def test_entries_of_maps_count_among_messages_and_are_none():
    types = compile_types(PLAIN)
    assert types.names == {(0,): "A", (0, 1): "A.B", (0, 1, 0): "A.B.C"}
    assert types.only_name == "A"
    assert read_types(types.text) == {write_indexes(indexes): name for indexes, name in types.names.items()}
    assert read_types(PLAIN) is None
    assert read_types('{"headrace.message_types": {}, "more": 1}') is None


def test_ids_that_no_message_has_are_refused_by_a_sentence():
    source = RecordSource(Source(PLAIN), RULES)
    with pytest.raises(UnreadableSchema, match=r"^schema id 7: no message has the indexes \[9\]$"):
        source.schema(with_message(7, write_indexes([9])))
    avro = RecordSource(Source('{"type": "record", "name": "R", "fields": []}'), ValueRules(("avro", "protobuf")))
    with pytest.raises(UnreadableSchema, match="its values name one of several messages, and it is no Protobuf"):
        avro.schema(with_message(7, write_indexes([0])))


def test_values_without_a_frame_need_one_message():
    bare = Wire("bare", schema_id=7)
    assert message_of(RecordSource(Source(PLAIN), RULES, bare).schema(7)) == "A"
    two = 'syntax = "proto3"; message A { int64 id = 1; } message B { int64 id = 1; }'
    with pytest.raises(UnreadableSchema, match="it defines 2 messages, A, B; nothing says which is meant"):
        RecordSource(Source(two), RULES, bare).schema(7)


def test_a_start_knows_the_only_message_and_those_that_the_table_has_rows_of():
    assert list(RecordSource(Source(PLAIN), RULES).topic_schemas("t")) == [7, with_message(7, b"\0")]
    two = 'syntax = "proto3"; message A { int64 id = 1; } message B { int64 id = 1; }'
    assert list(RecordSource(Source(two), RULES).topic_schemas("t")) == [7]
    used = RecordSource(Source(two), RULES, CONFLUENT, lambda: {"B", "Gone"}).topic_schemas("t")
    assert list(used) == [7, with_message(7, write_indexes([1]))]
    # What cannot be compiled, or is of another format, says why.
    refused = RecordSource(Source('syntax = "proto3"; message A { B b = 1; }'), RULES).topic_schemas("t")
    assert "protoc refuses it" in refused[7]
    refused = RecordSource(Source(PLAIN), ValueRules()).topic_schemas("t")
    assert "it is a Protobuf schema, and the pipeline reads avro" in refused[7]


def test_a_schema_whose_values_producers_encrypt_is_refused_by_a_sentence():
    encrypted = Source(wrap_schema(PLAIN, {}, "PII"))
    reason = "producers encrypt its values by the rule 'PII', and those of Protobuf schemas are not decrypted"
    with pytest.raises(UnreadableSchema, match=f"^schema id 7: {reason}"):
        RecordSource(encrypted, RULES).schema(with_message(7, b"\0"))
    refused = RecordSource(encrypted, RULES).topic_schemas("t")
    assert reason in refused[7]


def test_a_pipeline_of_other_formats_says_what_the_schema_is():
    with pytest.raises(OtherFormat, match="it is a Protobuf schema, and the pipeline reads avro and json"):
        ValueRules(("avro", "json")).check_reads("protobuf")
    with pytest.raises(UnsupportedSchema, match="it is no Protobuf schema"):
        compile_types("a page")


def test_a_pipeline_of_protobuf_without_the_extra_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr("headrace.writer.schemas.record_source.missing_extra", lambda: "formats: protobuf needs ptars")
    with pytest.raises(ConfigError, match="formats: protobuf needs ptars, where the driver runs and where tasks do"):
        RecordSource(Source(PLAIN), RULES)
    refused = RecordSource(Source(PLAIN), ValueRules()).topic_schemas("t")
    assert "it is a Protobuf schema, and the pipeline reads avro" in refused[7]


def test_a_schema_may_be_serialized_as_confluents_clients_register_it():
    shared = 'syntax = "proto3"; package com.shop; message Money { int64 units = 1; }'
    text = 'syntax = "proto3"; package com.shop; import "a.proto"; message Click { Money price = 1; }'
    files = FileDescriptorSet.FromString(compile_files({"main.proto": text, "a.proto": shared}, "main.proto")).file
    money, click = (base64.b64encode(file.SerializeToString()).decode() for file in files)
    wrapped = wrap_schema(click, {"a.proto": money})
    assert read_schema(wrapped).messages == ["com.shop.Click"]
    assert compile_types(wrapped).names == {(0,): "com.shop.Click"}
    assert registered_fingerprint(wrapped) == registered_fingerprint(wrap_schema(text, {"a.proto": shared}))
    with pytest.raises(UnsupportedSchema, match=r"^schema.proto is a serialized descriptor, and a.proto is text; "):
        compile_types(wrap_schema(click, {"a.proto": shared}))
    with pytest.raises(UnsupportedSchema, match=r"file 'schema.proto' is no serialized FileDescriptorProto"):
        compile_types(wrap_schema("////", {}))
    assert RegisteredSchema("////").messages == []


@pytest.mark.parametrize("text", ["", " ", "// a comment", "/* a comment that nothing closes", ";"])
def test_a_text_without_a_word_has_no_message(text):
    assert RegisteredSchema(text).messages == []


def test_a_proto_file_brings_those_that_it_imports_from_its_folder(tmp_path):
    (tmp_path / "dir").mkdir()
    (tmp_path / "dir" / "b.proto").write_text('import "dir/c.proto"; import "../d.proto"; import "/etc/hosts";')
    (tmp_path / "dir" / "c.proto").write_text('import "dir/b.proto";')
    (tmp_path / "d.proto").write_text("message D {}")
    path = tmp_path / "main.proto"
    path.write_text(TEXT)
    schema = read_schema(read_schema_file(path))
    assert schema is not None
    assert (schema.text, set(schema.references)) == (TEXT, {"dir/b.proto", "dir/c.proto"})
    (tmp_path / "plain.avsc").write_text('"string"')
    assert read_schema_file(tmp_path / "plain.avsc") == '"string"'
