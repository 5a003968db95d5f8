"""Columns of Protobuf's fields: a number is the identity of a field, and a rename keeps its column and its policy."""

import hmac
import json
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.avro import schema as avro
from headrace.writer.columns.former_names import add_former_names
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, conform
from headrace.writer.formats.formats import FORMATS
from headrace.writer.privacy.keyring import KeySource
from headrace.writer.protobuf.record_schema import protobuf_record
from headrace.writer.protobuf.schema_files import compile_files
from tests.support.json_rows import HASH_KEY, privacy_of, write_keyring
from tests.support.protobuf_schemas import message_class


def text_of(body: str, message: str = "Order") -> str:
    text = f'syntax = "proto3"; import "confluent/meta.proto"; message {message} {{ {body} }}'
    return protobuf_record(compile_files({"order.proto": text}, "order.proto"), message)


def admit(*texts: str, plan: SchemaPlan | None = None) -> SchemaPlan:
    plan = plan or SchemaPlan(pa.schema([]))
    for schema_id, text in enumerate(texts, 1):
        plan = plan.extend(schema_id, text)
    return plan


def columns_of(plan: SchemaPlan, schema_id: int) -> dict[str, str]:
    schema = plan.schemas[schema_id]
    assert isinstance(schema, WriterSchema), schema
    return dict(schema.columns)


def reason_of(plan: SchemaPlan, schema_id: int) -> str:
    schema = plan.schemas[schema_id]
    assert isinstance(schema, RejectedSchema)
    return schema.reason


def test_a_rename_keeps_the_column() -> None:
    plan = admit(text_of("string email = 3; int32 n = 1;"), text_of("int32 count = 1; string mail = 3;"))
    assert columns_of(plan, 2) == {"count": "n", "mail": "email"}
    assert plan.columns.names == ["email", "n"]


def test_two_fields_may_change_their_names_for_one_another() -> None:
    plan = admit(text_of("int32 a = 1; int32 b = 2;"), text_of("int32 b = 1; int32 a = 2;"))
    assert columns_of(plan, 2) == {"b": "a", "a": "b"}


def test_a_new_number_with_the_name_of_another_is_refused() -> None:
    before = text_of("string email = 3;")
    expected = (
        "schema id 2: field 'email' has the number 5, but column 'email' holds the field of number 3; "
        "give the new field another name"
    )
    assert reason_of(admit(before, text_of("string email = 5;")), 2) == expected
    assert reason_of(admit(before, text_of("string mail = 3; string email = 5;")), 2) == expected
    plan = admit(before, text_of("string mail = 3;"), text_of("string contact = 3; string mail = 5;"))
    assert columns_of(plan, 3) == {"contact": "email", "mail": "mail"}


def test_another_type_of_a_number_is_refused() -> None:
    plan = admit(text_of("string email = 3;"), text_of("int64 mail = 3;"), text_of("repeated string email = 3;"))
    assert reason_of(plan, 2) == "schema id 2: field 'mail' is int64, but column 'email' holds string"
    assert "list<element: string>" in reason_of(plan, 3)


def test_a_number_may_become_wider() -> None:
    plan = admit(text_of("int32 a = 1;"), text_of("sint64 b = 1;"))
    assert columns_of(plan, 2) == {"b": "a"}
    assert plan.columns.field("a").type == pa.int64()


def test_fields_of_messages_inside_are_found_by_their_numbers() -> None:
    plan = admit(
        text_of("message In { int32 a = 1; } In one = 1; repeated In many = 2; map<string, In> named = 3;"),
        text_of("message Is { int32 b = 1; int32 c = 2; } Is first = 1; repeated Is all = 2; map<string, Is> by = 3;"),
    )
    kind = pa.struct([("a", pa.int32()), ("c", pa.int32())])
    assert [column.type for column in plan.columns] == [
        kind,
        pa.list_(pa.field("element", kind)),
        pa.map_(pa.string(), kind),
    ]
    newest = "message Order { message Is { int32 b = 1; int32 c = 2; } repeated Is all = 2; }"
    file_set = compile_files({"o.proto": f'syntax = "proto3"; {newest}'}, "o.proto")
    text = protobuf_record(file_set, "Order")
    plan = plan.extend(3, text)
    schema = plan.schemas[3]
    assert isinstance(schema, WriterSchema)
    decoder = FORMATS["protobuf"].open_decoder(avro.parse(text), native=True, header_bytes=0, scratch="")
    value = message_class(file_set, "Order")(all=[{"b": 5, "c": 6}]).SerializeToString()
    rows = conform(decoder.decode(pa.array([value], pa.binary())).rows, schema, plan)
    assert rows.column("many").to_pylist() == [[{"a": 5, "c": 6}]]
    assert rows.column("one").to_pylist() == [None]


def test_numbers_of_two_messages_have_nothing_in_common() -> None:
    plan = admit(text_of("string a = 1; string b = 2;"), text_of("string b = 1; string c = 2;", "Refund"))
    assert columns_of(plan, 2) == {"b": "b", "c": "c"}
    assert plan.columns.names == ["a", "b", "c"]


def test_a_field_without_a_number_goes_by_its_name() -> None:
    in_avro = {"type": "record", "name": "E", "fields": [{"name": "email", "type": "string", "headrace.number": 9}]}
    plan = admit(text_of("string email = 3;"), json.dumps(in_avro), text_of("string mail = 3;"))
    assert columns_of(plan, 2) == {"email": "email"}
    assert columns_of(plan, 3) == {"mail": "email"}
    assert columns_of(admit(json.dumps(in_avro), text_of("string email = 3;")), 2) == {"email": "email"}


def test_a_start_comes_to_the_same_columns() -> None:
    texts = [
        text_of("string email = 3; int32 n = 1;"),
        text_of("string mail = 3; int32 email = 4;"),
        text_of("string mail = 3; int64 n = 1; message In { int32 a = 1; } In in = 7;"),
        text_of("string contact = 3; string mail = 8; message In { int32 z = 1; int32 a = 2; } In in = 7;"),
        text_of("string contact = 3; message In { int32 z = 1; int32 y = 2; } In in = 7;"),
    ]
    plan = admit(*texts)
    again = admit(*texts, plan=SchemaPlan(plan.columns))
    assert again == plan
    assert isinstance(plan.schemas[2], RejectedSchema)
    assert isinstance(plan.schemas[4], RejectedSchema)
    assert columns_of(plan, 5) == {"contact": "email", "in": "in"}


def test_a_preview_of_a_schema_names_all_that_does_not_fit() -> None:
    plan = admit(text_of("string a = 1; int32 b = 2;"))
    assert plan.find_problems(text_of("string a = 5; string b = 2;")) == [
        "field 'a' has the number 5, but column 'a' holds the field of number 1; give the new field another name",
        "field 'b' is string, but column 'b' holds int32",
    ]


# ---- privacy ----


@pytest.fixture(scope="module", name="keys")
def _keys(tmp_path_factory: pytest.TempPathFactory) -> KeySource:
    return write_keyring(tmp_path_factory.mktemp("keys"))


def protected_plan(keys: KeySource, *texts: str, **policies: Any) -> SchemaPlan:
    plan = SchemaPlan(pa.schema([]), privacy=privacy_of(keys, policies.get("fields", {}), policies.get("tags", {})))
    return admit(*texts, plan=plan)


def protected_paths(plan: SchemaPlan, schema_id: int) -> set[str]:
    schema = plan.schemas[schema_id]
    assert isinstance(schema, WriterSchema), schema
    if schema.protection is None:
        return set()
    return {".".join(path) for path in schema.protection.actions}


TAGGED = 'string email = 3 [(confluent.field_meta).tags = "PII"]; int32 n = 1;'


def test_a_tag_of_a_field_protects_its_values(keys: KeySource) -> None:
    plan = protected_plan(keys, text_of(TAGGED), tags={"PII": "hash"})
    assert protected_paths(plan, 1) == {"email"}
    schema = plan.schemas[1]
    assert isinstance(schema, WriterSchema)
    assert schema.protection is not None
    rows = pa.table({"email": pa.array(["a@b"]), "n": pa.array([1], pa.int32())})
    protected = schema.protection.apply(rows).to_pylist()
    assert protected == [{"email": hmac.digest(HASH_KEY, b"a@b", "sha256").hex(), "n": 1}]


def test_a_field_keeps_its_policy_under_another_name(keys: KeySource) -> None:
    plan = protected_plan(keys, text_of(TAGGED), text_of("string mail = 3;"), tags={"PII": "hash"})
    assert protected_paths(plan, 2) == {"mail"}
    assert columns_of(plan, 2) == {"mail": "email"}


def test_a_tag_protects_what_the_field_was_called_before(keys: KeySource) -> None:
    clear = text_of("string mail = 3; int32 n = 1;")
    plan = protected_plan(keys, clear, text_of(TAGGED), tags={"PII": "hash"})
    assert protected_paths(plan, 1) == {"mail"}
    assert protected_paths(plan, 2) == {"email"}


def test_a_path_of_the_configuration_protects_the_field_under_its_other_names(keys: KeySource) -> None:
    bodies = [
        "message In { string email = 1; } repeated In users = 2;",
        "message In { string mail = 1; } repeated In people = 2;",
    ]
    plan = protected_plan(keys, *map(text_of, bodies), fields={"users.email": "hash"})
    assert protected_paths(plan, 1) == {"users.element.email"}
    assert protected_paths(plan, 2) == {"people.element.mail"}


def test_policies_are_the_same_whatever_schema_comes_first(keys: KeySource) -> None:
    texts = [text_of(TAGGED), text_of("string mail = 3;"), text_of("string contact = 3; string other = 4;")]
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        plan = protected_plan(keys, *(texts[index] for index in order), tags={"PII": "hash"})
        assert [protected_paths(plan, order.index(index) + 1) for index in range(3)] == [
            {"email"},
            {"mail"},
            {"contact"},
        ]


def test_members_of_a_json_text_have_policies(keys: KeySource) -> None:
    text = protobuf_record(
        compile_files(
            {"o.proto": 'syntax = "proto3"; import "google/protobuf/struct.proto"; '
             "message Order { google.protobuf.Struct payload = 1; }"},
            "o.proto",
        ),
        "Order",
    )  # fmt: skip
    plan = protected_plan(keys, text, fields={"payload.email": "drop"})
    schema = plan.schemas[1]
    assert isinstance(schema, WriterSchema)
    assert schema.protection is not None
    rows = schema.protection.apply(pa.table({"payload": pa.array(['{"email":"x","id":1}'])})).to_pylist()
    assert json.loads(rows[0]["payload"]) == {"id": 1}


def test_other_names_become_aliases() -> None:
    old = text_of("string email = 3; int32 n = 1;")
    new = text_of("string mail = 3; int32 n = 1;")
    fields = json.loads(add_former_names(new, [old, "{}", "no JSON, headrace.number"]))["fields"]
    assert [field.get("aliases") for field in fields] == [["email"], None]
    assert add_former_names(old, [old]) is old
    assert add_former_names(old, [text_of("string other = 3;", "Refund")]) is old


def test_a_schema_without_a_format_stays() -> None:
    text = '{"type": "record", "headrace.number": 3}'
    assert add_former_names(text, [text_of("string email = 3;")]) == text
