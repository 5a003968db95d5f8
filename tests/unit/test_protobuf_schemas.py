"""Files of a Protobuf schema, the record schemas of its messages, and what its options say."""

import json
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2

from headrace.writer.avro import schema as avro
from headrace.writer.avro.schema_text import UnsupportedSchema
from headrace.writer.formats import protobuf_format
from headrace.writer.protobuf.envelope import read_message, wrap_message
from headrace.writer.protobuf.fingerprint import message_fingerprint
from headrace.writer.protobuf.record_schema import protobuf_record
from headrace.writer.protobuf.schema_files import (
    compile_files,
    message_at,
    message_by_order,
    open_pool,
    read_serialized,
)
from tests.support.protobuf_values import compile_text, record_of

MONEY = 'syntax = "proto3"; package shared; message Money { int64 units = 1; string currency = 2; }'
ORDER = """syntax = "proto3"; package shop;
import "shared/money.proto"; import "google/protobuf/timestamp.proto";
message Order { string id = 1; shared.Money total = 2; google.protobuf.Timestamp at = 3; message Line { int32 n = 1; } }
message Refund { message Why { string text = 1; message Code { int32 n = 1; } } map<string, Why> reasons = 1; }
"""
FILES = {"order.proto": ORDER, "shared/money.proto": MONEY}


def columns(record: avro.Record) -> dict[str, str]:
    return {name: str(kind) for name, kind in avro.table_fields(record).items()}


def field_of(record: avro.Record, name: str) -> Any:
    return next(spec for spec in record.fields if spec["name"] == name)


def test_an_envelope_is_read_as_it_was_wrapped() -> None:
    text = wrap_message(b"\x00files\xff", "shop.Order")
    assert json.loads(text).keys() == {"headrace.protobuf"}
    assert read_message(text) == (b"\x00files\xff", "shop.Order")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "headrace.protobuf",
        '{"type": "record"}',
        '["headrace.protobuf"]',
        '{"headrace.protobuf": 5}',
        '{"headrace.protobuf": {"files": "AA=="}}',
        '{"headrace.protobuf": {"files": "!", "message": "x"}}',
        '{"headrace.protobuf": {"files": "AA==", "message": 5}}',
    ],
)
def test_another_text_is_no_envelope(text: str) -> None:
    assert read_message(text) is None


def test_files_are_compiled_with_what_they_import_first() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(compile_files(FILES, "order.proto")).file
    names = [file.name for file in files]
    assert names[-1] == "order.proto"
    assert set(names) == {"shared/money.proto", "google/protobuf/timestamp.proto", "order.proto"}
    assert open_pool(compile_files(FILES, "order.proto")).FindMessageTypeByName("shop.Order") is not None


def test_files_that_confluents_registry_knows_need_no_reference() -> None:
    text = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
    import "google/type/date.proto"; message A { confluent.type.Decimal price = 1; google.type.Date day = 2; }"""
    record = avro.parse(protobuf_record(compile_files({"a.proto": text}, "a.proto"), "A"))
    assert columns(record) == {
        "price": "struct<value: binary, precision: int64, scale: int32>",
        "day": "struct<year: int32, month: int32, day: int32>",
    }


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.proto": "message"}, "protoc refuses it: a.proto:0:7: Expected message name"),
        ({"a.proto": 'syntax = "proto3"; message A { Money m = 1; }'}, '"Money" is not defined'),
        ({"a.proto": 'syntax = "proto3"; import "shared/money.proto";'}, "shared/money.proto"),
        ({"a.proto": 'syntax = "proto3"; import "/etc/passwd";'}, "/etc/passwd"),
        ({"a.proto": 'syntax = "proto3"; import "../b.proto";'}, "../b.proto"),
        ({"a.proto": "", "../b.proto": ""}, "may not be imported as '../b.proto'"),
        ({"a.proto": "", "/etc/b.proto": ""}, "may not be imported as '/etc/b.proto'"),
        ({"a.proto": "", "a.proto/b.proto": ""}, "cannot be written"),
        ({"a.proto": "x" * (2**24 + 1)}, "16,777,216 characters"),
    ],
)
def test_files_that_protoc_refuses_are_refused_by_a_sentence(files: dict[str, str], reason: str) -> None:
    with pytest.raises(UnsupportedSchema) as error:
        compile_files(files, "a.proto")
    assert reason in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_of_a_compilation_stays(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    compile_files(FILES, "order.proto")
    assert list(tmp_path.iterdir()) == []


def test_serialized_files_are_put_in_order_and_googles_are_added() -> None:
    compiled = descriptor_pb2.FileDescriptorSet.FromString(compile_files(FILES, "order.proto")).file
    files = {file.name: file.SerializeToString() for file in compiled if not file.name.startswith("google/")}
    again = read_serialized(dict(reversed(files.items())), "order.proto")
    assert protobuf_record(again, "shop.Order")
    names = [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(again).file]
    assert names[-1] == "order.proto"
    assert "google/protobuf/timestamp.proto" in names


def test_serialized_files_that_confluents_registry_knows_need_no_reference() -> None:
    imports = ("google/type/date.proto", "confluent/meta.proto", "google/protobuf/any.proto")
    main = descriptor_pb2.FileDescriptorProto(dependency=imports, syntax="proto3").SerializeToString()
    names = [file.name for file in descriptor_pb2.FileDescriptorSet.FromString(read_serialized({"a": main}, "a")).file]
    assert {*imports, "google/protobuf/descriptor.proto"} <= set(names)
    for name in ("google/type/os.proto", "google/other/date.proto", "os.proto"):
        main = descriptor_pb2.FileDescriptorProto(dependency=[name], syntax="proto3").SerializeToString()
        with pytest.raises(UnsupportedSchema, match="is missing; register it as a reference"):
            read_serialized({"a": main}, "a")


def test_a_serialized_file_has_the_name_by_which_it_is_imported() -> None:
    compiled = descriptor_pb2.FileDescriptorSet.FromString(compile_files({"m.proto": MONEY}, "m.proto")).file[0]
    compiled.name = "default.proto"
    main = descriptor_pb2.FileDescriptorProto(name="x", dependency=["shared/money.proto"], syntax="proto3")
    files = {"main.proto": main.SerializeToString(), "shared/money.proto": compiled.SerializeToString()}
    names = [
        file.name for file in descriptor_pb2.FileDescriptorSet.FromString(read_serialized(files, "main.proto")).file
    ]
    assert names == ["shared/money.proto", "main.proto"]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a.proto": b"\xff\xff"}, "file 'a.proto' is no serialized FileDescriptorProto"),
        ({}, "file 'a.proto' is missing"),
        (
            {"a.proto": descriptor_pb2.FileDescriptorProto(dependency=["b.proto"]).SerializeToString()},
            "file 'b.proto', which 'a.proto' imports is missing; register it as a reference",
        ),
        (
            {"a.proto": descriptor_pb2.FileDescriptorProto(dependency=["a.proto"]).SerializeToString()},
            "imports itself",
        ),
    ],
)
def test_serialized_files_that_are_not_whole_are_refused(files: dict[str, bytes], reason: str) -> None:
    with pytest.raises(UnsupportedSchema) as error:
        read_serialized(files, "a.proto")
    assert reason in str(error.value)


def test_a_message_is_found_by_its_places() -> None:
    file_set = compile_files(FILES, "order.proto")
    assert message_at(file_set, []) == "shop.Order"
    assert message_at(file_set, [0]) == "shop.Order"
    assert message_at(file_set, [0, 0]) == "shop.Order.Line"
    assert message_at(file_set, [1, 0, 0]) == "shop.Refund.Why.Code"
    for indexes in ([2], [-1], [0, 1], [0, 0, 0]):
        with pytest.raises(UnsupportedSchema, match="no message at index"):
            message_at(file_set, indexes)


def test_a_message_is_found_by_its_order() -> None:
    file_set = compile_files(FILES, "order.proto")
    names = [message_by_order(file_set, place) for place in range(6)]
    assert names == [
        "shop.Order",
        "shop.Order.Line",
        "shop.Refund",
        "shop.Refund.ReasonsEntry",
        "shop.Refund.Why",
        "shop.Refund.Why.Code",
    ]
    with pytest.raises(UnsupportedSchema, match="no message at index 6"):
        message_by_order(file_set, 6)


@pytest.mark.parametrize(
    ("declaration", "column"),
    [
        ("int32 x = 1;", "int32"),
        ("sint32 x = 1;", "int32"),
        ("sfixed32 x = 1;", "int32"),
        ("int64 x = 1;", "int64"),
        ("sint64 x = 1;", "int64"),
        ("sfixed64 x = 1;", "int64"),
        ("uint32 x = 1;", "int64"),
        ("fixed32 x = 1;", "int64"),
        ("uint64 x = 1;", "decimal128(20, 0)"),
        ("fixed64 x = 1;", "decimal128(20, 0)"),
        ("float x = 1;", "float"),
        ("double x = 1;", "double"),
        ("bool x = 1;", "bool"),
        ("string x = 1;", "string"),
        ("bytes x = 1;", "binary"),
        ("enum E { A = 0; } E x = 1;", "string"),
        ("google.protobuf.Timestamp x = 1;", "timestamp[us, tz=UTC]"),
        ("google.protobuf.Duration x = 1;", "int64"),
        ("google.protobuf.Int32Value x = 1;", "int32"),
        ("google.protobuf.UInt64Value x = 1;", "decimal128(20, 0)"),
        ("google.protobuf.StringValue x = 1;", "string"),
        ("google.protobuf.Struct x = 1;", "string"),
        ("google.protobuf.Value x = 1;", "string"),
        ("google.protobuf.ListValue x = 1;", "string"),
        ("google.protobuf.Any x = 1;", "struct<type_url: string, value: binary>"),
        ("repeated int32 x = 1;", "list<element: int32>"),
        ("repeated google.protobuf.Timestamp x = 1;", "list<element: timestamp[us, tz=UTC]>"),
        ("map<string, int32> x = 1;", "map<string, int32>"),
        ("map<uint64, bool> x = 1;", "map<string, bool>"),
        ("message N { string s = 1; } N x = 1;", "struct<s: string>"),
        ("message N { string s = 1; } map<bool, N> x = 1;", "map<string, struct<s: string>>"),
        ("message N { N n = 1; int32 i = 2; } N x = 1;", "struct<n: binary, i: int32>"),
        ("Order x = 1;", "binary"),
        ("repeated Order x = 1;", "list<element: binary>"),
        ("message N { repeated Order o = 1; } N x = 1;", "struct<o: list<element: binary>>"),
    ],
)
def test_a_field_has_its_column(declaration: str, column: str) -> None:
    record = record_of(f"message Order {{ {declaration} }}")
    assert columns(record) == {"x": column}


def test_each_member_of_a_oneof_is_a_column_that_may_be_null() -> None:
    record = record_of(
        "message Order { oneof pay { string card = 1; bool cash = 2; } int32 n = 3; optional int32 m = 4; }"
    )
    assert columns(record) == {"card": "string", "cash": "bool", "n": "int32", "m": "int32"}
    assert [isinstance(spec["type"], list) for spec in record.fields] == [True, True, False, True]


def test_fields_have_their_numbers_at_any_depth() -> None:
    record = record_of(
        "message Order { string id = 7; message N { int32 a = 3; } repeated N n = 300; map<int32, N> m = 2; }"
    )
    assert {spec["name"]: spec["headrace.number"] for spec in record.fields} == {"id": 7, "n": 300, "m": 2}
    item = record.resolve(field_of(record, "n")["type"]["items"])
    assert [(spec["name"], spec["headrace.number"]) for spec in item["fields"]] == [("a", 3)]


def test_a_message_without_fields_has_no_column() -> None:
    record = record_of("""message Nothing {} message Less { Nothing n = 1; map<string, Nothing> m = 2; }
    message Order { Nothing a = 1; repeated google.protobuf.Empty b = 2; Less c = 3; int32 d = 4; }""")
    assert columns(record) == {"d": "int32"}


def test_a_message_with_no_columns_at_all_is_refused() -> None:
    with pytest.raises(
        UnsupportedSchema, match=r"message shop\.Order has no field that a column can hold; give it one"
    ):
        record_of("message Order { google.protobuf.Empty nothing = 1; }")


def test_one_message_at_two_places_has_two_records() -> None:
    record = record_of("""message N { int32 a = 1; Order o = 2; } message Order { N x = 1; N y = 2; }""")
    assert columns(record) == dict.fromkeys(("x", "y"), "struct<a: int32, o: binary>")


def test_a_message_that_unfolds_without_end_is_refused() -> None:
    levels = " ".join(f"message L{n} {{ L{n + 1} a = 1; L{n + 1} b = 2; }}" for n in range(20))
    with pytest.raises(UnsupportedSchema, match="unfolds to more than 20,000 parts; split it"):
        record_of(f"{levels} message L20 {{ int32 x = 1; }}", "shop.L0")
    levels = " ".join(f"message L{n} {{ L{n + 1} a = 1; }}" for n in range(80))
    with pytest.raises(UnsupportedSchema, match="more than 64 levels deep; flatten it"):
        record_of(f"{levels} message L80 {{ int32 x = 1; }}", "shop.L0")


def test_a_message_that_is_not_there_is_refused() -> None:
    with pytest.raises(UnsupportedSchema, match=r"the schema has no message shop\.Other"):
        protobuf_record(compile_text("message Order { int32 a = 1; }"), "shop.Other")
    with pytest.raises(UnsupportedSchema, match="no serialized FileDescriptorSet"):
        protobuf_record(b"\xff", "shop.Other")


@pytest.mark.parametrize(
    ("syntax", "is_nullable"),
    [('syntax = "proto2";', True), ('syntax = "proto3";', False), ('edition = "2023";', True)],
)
def test_a_field_without_presence_is_never_null(syntax: str, is_nullable: bool) -> None:
    label = "optional " if "proto2" in syntax else ""
    record = record_of(f"message Order {{ {label}int32 a = 1; }}", syntax=syntax)
    assert isinstance(field_of(record, "a")["type"], list) is is_nullable


def test_options_of_fields_become_attributes() -> None:
    text = """syntax = "proto3"; package shop;
    import "confluent/meta.proto"; import "google/protobuf/descriptor.proto";
    extend google.protobuf.FieldOptions { bool pii = 50001; string level = 50002; int32 rank = 50003; }
    message Order {
      string a = 1 [(confluent.field_meta).tags = "PII", (confluent.field_meta).tags = "GDPR"];
      string b = 2 [debug_redact = true, (pii) = true, (level) = "mask", (rank) = 5, deprecated = true];
      message N { string c = 1 [(confluent.field_meta) = { doc: "text", tags: ["PII"] }]; }
      N n = 3;
      string d = 4 [(pii) = false];
    }"""
    record = avro.parse(protobuf_record(compile_files({"a.proto": text}, "a.proto"), "shop.Order"))
    assert field_of(record, "a")["confluent:tags"] == ["PII", "GDPR"]
    b = field_of(record, "b")
    assert (b["debug_redact"], b["shop.pii"], b["shop.level"]) == (True, True, "mask")
    assert "shop.rank" not in b
    assert "deprecated" not in b
    n = record.resolve(field_of(record, "n")["type"][1])
    assert n["fields"][0]["confluent:tags"] == ["PII"]
    assert set(field_of(record, "d")) == {"name", "type", "headrace.number"}


def test_the_root_names_its_format_and_has_the_descriptors() -> None:
    file_set = compile_text("message Order { int32 a = 1; }")
    document = json.loads(protobuf_record(file_set, "shop.Order"))
    assert document["name"] == "shop.Order"
    assert document["headrace.format"] == "protobuf"
    assert document["headrace.descriptors"]


def test_a_fingerprint_is_of_what_a_message_type_means() -> None:
    base = "string a = 1; optional int32 b = 2; message N { E e = 1; enum E { A = 0; B = 1; } } repeated N n = 3;"
    fingerprint = message_fingerprint(compile_text(f"message Order {{ {base} }}"), "shop.Order")
    # Tables keep it: it must never change.
    assert fingerprint == 400_874_925_848_535_180
    options = base.replace("a = 1", "a = 1 [deprecated = true, json_name = 'z']")
    same = [
        f"/* text */ message Other {{}} message Order {{ {base} reserved 9; }} message More {{ int32 a = 1; }}",
        f"message Order {{ {options} }}",
    ]
    others = [
        base.replace("string a", "string z"),
        base.replace("string a = 1", "string a = 4"),
        base.replace("string", "bytes"),
        base.replace("optional ", ""),
        base.replace("B = 1", "C = 1"),
        base.replace("repeated N", "N"),
        base.replace("optional int32 b = 2;", "oneof o { int32 b = 2; int32 c = 4; }"),
    ]
    for text in same:
        assert message_fingerprint(compile_text(text), "shop.Order") == fingerprint
    fingerprints = {message_fingerprint(compile_text(f"message Order {{ {other} }}"), "shop.Order") for other in others}
    assert len(fingerprints - {fingerprint}) == len(others)


def test_a_fingerprint_is_the_same_of_text_and_of_descriptors() -> None:
    compiled = compile_files(FILES, "order.proto")
    files: dict[str, bytes] = {}
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled).file:
        for message in file.message_type:
            for field in message.field:
                field.ClearField("json_name")
        files[file.name] = file.SerializeToString()
    again = read_serialized(files, "order.proto")
    assert message_fingerprint(again, "shop.Order") == message_fingerprint(compiled, "shop.Order")


def test_a_pipeline_without_the_extra_is_told_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert protobuf_format.missing_extra() is None
    monkeypatch.setattr(protobuf_format, "find_spec", lambda module: None if module == "ptars" else object())
    assert protobuf_format.missing_extra() == "formats: protobuf needs the module ptars; install headrace[protobuf]"


def test_a_wide_type_has_its_columns() -> None:
    fields = " ".join(f"optional int32 f{n} = {n};" for n in range(1, 1_001))
    record = record_of(f"message Order {{ {fields} }}")
    assert pa.schema(list(avro.table_fields(record).items())).names[-1] == "f1000"
