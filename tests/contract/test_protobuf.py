"""Values in Protobuf: columns, evolution, messages of one schema, neighbours of other formats, ids that change."""

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from headrace.writer.formats.value_rules import ValueRules
from headrace.writer.framing.message_indexes import write_indexes
from headrace.writer.framing.wire_format import Wire
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.preflight.samples import preview
from headrace.writer.protobuf.registered_schema import wrap_schema
from headrace.writer.schemas import saved_sample
from headrace.writer.schemas.meaning_acceptance import compare_meaning
from headrace.writer.schemas.record_source import RecordSource
from headrace.writer.schemas.registry import SchemaNotFound
from headrace.writer.schemas.registry_client import UnreadableSchema
from headrace.writer.table.log.schema_ids import SchemaChanged
from tests.support import oracle
from tests.support.format_features import Order, ProtobufCase, carry_routed, run_command
from tests.support.local_driver import Driver, log
from tests.support.protobuf_orders import MANY, ORDER, encode
from tests.support.record_columns import check_sound
from tests.support.sample_records import EVENT, NOW, event

WIDER = ORDER[:-1] + " optional string coupon = 4; repeated string tags = 5; }"
RENAMED = ORDER.replace("note = 3", "remark = 3")
OTHER_TYPE = ORDER.replace("optional string note = 3", "optional int64 note = 3")
OTHER_NUMBER = ORDER.replace("note = 3", "note = 9")
JSON_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "at": {"type": "string", "format": "date-time"}},
}


class Texts:
    """A registry with schemas as texts by id; all of `registered` are under the topic's subject."""

    def __init__(self, texts: Mapping[int, str], registered: tuple[int, ...] = ()) -> None:
        self._texts = texts
        self._registered = registered
        self.asked: list[int] = []

    def schema(self, schema_id: int) -> str:
        self.asked.append(schema_id)
        if schema_id not in self._texts:
            raise SchemaNotFound(f"schema id {schema_id} is not here")
        return self._texts[schema_id]

    def topic_schemas(self, topic: str) -> dict[int, str]:  # noqa: ARG002 - one subject serves all
        return {schema_id: self._texts[schema_id] for schema_id in self._registered}


def framed(schema_id: int, body: bytes, indexes: tuple[int, ...] = (0,)) -> bytes:
    return struct.pack(">bI", 0, schema_id) + write_indexes(indexes) + body


def json_order(schema_id: int, number: int) -> bytes:
    """Return a value of JSON_SCHEMA."""
    return struct.pack(">bI", 0, schema_id) + json.dumps({"id": number, "at": NOW.isoformat()}).encode()


def start(root: Path, form: str, schemas: Any, **settings: Any) -> Driver:
    driver = Driver(
        root, form, schemas=schemas, **{"formats": "protobuf", "limits": {"max_failed_ratio": 1}, **settings}
    )
    driver.start()
    return driver


def reasons(driver: Driver) -> dict[int, str]:
    return {int(str(offset)): str(error) for offset, error in oracle.rows(Path(driver.dead_letters), "_offset, error")}


def test_fields_become_columns(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form, Texts({7: ORDER}, (7,)))
    assert [field.name for field in driver._pipeline.plan.columns] == ["id", "at", "note"]
    values = {0: framed(7, encode(ORDER, id=1, note="n")), 1: framed(7, encode(ORDER, id=2))}
    driver.carry([log(values)], {0: 2})
    assert oracle.rows(Path(driver.lake), "id, note", "ORDER BY 1") == [(1, "n"), (2, None)]
    check_sound(driver)


def test_a_field_keeps_its_column_by_its_number(tmp_path: Path, form: str) -> None:
    """A rename keeps the column; a later field adds one; what does not fit parks its own records."""
    schemas = Texts({7: ORDER, 8: WIDER, 9: RENAMED, 10: OTHER_TYPE, 11: OTHER_NUMBER}, (7,))
    driver = start(tmp_path, form, schemas)
    values = {
        0: framed(7, encode(ORDER, id=0, note="a")),
        1: framed(8, encode(WIDER, id=1, note="b", coupon="c", tags=["x"])),
        2: framed(9, encode(RENAMED, id=2, remark="d")),
        3: framed(10, encode(OTHER_TYPE, id=3, note=5)),
        4: framed(11, encode(OTHER_NUMBER, id=4, note="e")),
        5: framed(7, encode(ORDER, id=5)),
    }
    driver.carry([log(values)], {0: 6})
    assert oracle.rows(Path(driver.lake), "id, note, coupon, tags", "ORDER BY 1") == [
        (0, "a", None, None),
        (1, "b", "c", ["x"]),
        (2, "d", None, None),
        (5, None, None, None),
    ]
    assert sorted(reasons(driver)) == [3, 4]
    assert all(reason.startswith("schema id ") for reason in reasons(driver).values())
    check_sound(driver)


def test_messages_of_one_schema_are_split_by_their_indexes(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form, Texts({7: MANY}, (7,)))
    assert driver._pipeline.plan.columns.names == [], "which of the messages the topic has is not known"
    line = encode(MANY, "acme.Order.Line", id=1, sku="s")
    values = {}
    for number in range(0, 60, 6):
        values |= {
            number: framed(7, encode(MANY, "acme.Order", id=number)),
            number + 1: framed(7, encode(MANY, "acme.Order.Line", id=number + 1, sku="s"), (0, 0)),
            number + 2: framed(7, encode(MANY, "acme.Refund", id=number + 2, why="w"), (1,)),
            number + 3: framed(7, line, (2,)),
            number + 4: framed(7, b"")[:5] + b"\1" + line,
            # The other spelling of the first message.
            number + 5: struct.pack(">bI", 0, 7) + b"\2\0" + encode(MANY, "acme.Order", id=number + 5),
        }
    driver.carry([log(values)], {0: 60})
    rows = oracle.rows(Path(driver.lake), "id, sku, why", "ORDER BY 1")
    expected: list[tuple[object, ...]] = []
    for number in range(0, 60, 6):
        expected += [(number, None, None), (number + 1, "s", None), (number + 2, None, "w"), (number + 5, None, None)]
    assert rows == expected
    names = "its messages are acme.Order, acme.Refund, acme.Order.Line"
    assert set(reasons(driver).values()) == {
        f"schema id 7 is Protobuf, and no message has the indexes [2]; {names}",
        f"schema id 7 is Protobuf, and no message indexes stand behind the schema id; {names}",
    }
    meanings = [name.partition("confluent/")[2] for name in driver.table.transactions() if "/schema/" in name]
    messages = ["7/message/acme.Order", "7/message/acme.Order.Line", "7/message/acme.Refund"]
    assert sorted(meanings) == ["7", *messages], "an id has one meaning, whatever messages it has"
    assert {schema_id for (schema_id,) in oracle.rows(Path(driver.dead_letters), "schema_id")} == {7}
    check_sound(driver)


def test_indexes_that_no_message_has_cost_the_registry_nothing(tmp_path: Path) -> None:
    schemas = Texts({7: ORDER}, (7,))
    driver = start(tmp_path, "delta", schemas)
    values = {number: framed(7, encode(ORDER, id=number), (number,)) for number in range(1, 400)}
    driver.carry([log({**values, 0: framed(7, encode(ORDER, id=0))})], {0: 400})
    assert len(schemas.asked) < 5
    assert len(reasons(driver)) == 399
    check_sound(driver)


def test_messages_have_tables_by_their_names_and_start_again(tmp_path: Path) -> None:
    """A start knows no message of a schema with several until a record names it; the columns of the table stay."""
    for round_ in range(2):
        driver = start(tmp_path, "delta", Texts({7: MANY}, (7,)))
        offset = 2 * round_
        values = {
            offset: framed(7, encode(MANY, "acme.Order", id=offset)),
            offset + 1: framed(7, encode(MANY, "acme.Refund", id=offset + 1, why="w"), (1,)),
        }
        driver.carry([log(values)], {0: offset + 2})
        check_sound(driver)
    assert oracle.rows(Path(driver.lake), "id, why", "ORDER BY 1") == [(0, None), (1, "w"), (2, None), (3, "w")]


def test_a_field_keeps_its_column_by_its_number_after_a_start_also_of_one_of_several_messages(tmp_path: Path) -> None:
    renamed = MANY.replace("string why = 3", "string cause = 3")
    driver = start(tmp_path, "delta", Texts({7: MANY}, (7,)))
    driver.carry([log({0: framed(7, encode(MANY, "acme.Refund", id=0, why="a"), (1,))})], {0: 1})
    later = start(tmp_path, "delta", Texts({7: MANY, 8: renamed}, (7, 8)))
    assert later._pipeline.plan.columns.names == ["id", "at", "why"]
    later.carry([log({1: framed(8, encode(renamed, "acme.Refund", id=1, cause="b"), (1,))})], {0: 2})
    assert oracle.rows(Path(later.lake), "id, why", "ORDER BY 1") == [(0, "a"), (1, "b")]
    check_sound(later)


def test_avro_json_schema_protobuf_json_and_garbage_of_one_topic_are_split(tmp_path: Path, form: str) -> None:
    settings = {
        "formats": ["avro", "json_schema", "protobuf", "json"],
        "columns": {"declared": {"id": "long", "at": "timestamp", "note": "string"}},
    }
    texts = {1: json.dumps(EVENT), 7: json.dumps(JSON_SCHEMA), 8: ORDER}
    driver = start(tmp_path, form, Texts(texts, (1, 7, 8)), **settings)
    values: dict[int, bytes | None] = {}
    sound = []
    for number in range(0, 120, 6):
        body = encode(ORDER, id=number + 2, note="n")
        values |= {
            number: event(number),
            number + 1: json_order(7, number + 1),
            number + 2: framed(8, body),
            number + 3: json_order(7, number + 3)[5:],
            number + 4: b"\x01garbage",
            # Protobuf behind the id of Avro, of JSON Schema, cut, and behind damaged indexes.
            number + 5: (framed(1, body), framed(7, body), framed(8, body)[:-1], b"\0\0\0\0\10\xff" + body)[number % 4],
        }
        sound += [number, number + 1, number + 2, number + 3]
    driver.carry([log(values)], {0: 120})
    assert [number for (number,) in oracle.rows(Path(driver.lake), "id", "ORDER BY 1")] == sound
    assert sorted(reasons(driver)) == sorted(set(range(120)) - set(sound))
    check_sound(driver)


@pytest.mark.parametrize(
    ("formats", "text", "reason"),
    [
        (["avro"], ORDER, "schema id 1: it is a Protobuf schema, and the pipeline reads avro"),
        (["protobuf"], '{"type": "object"}', "schema id 1: it is a JSON Schema, and the pipeline reads protobuf"),
        (["protobuf"], 'syntax = "proto3"; message A { B b = 1; }', "schema id 1: protoc refuses it: "),
        (["protobuf"], 'syntax = "proto3"; import "b.proto"; message A {}', "schema id 1: protoc refuses it: "),
        (["protobuf"], 'syntax = "proto3"; enum A { B = 0; }', "schema id 1: its file defines no message"),
        (["protobuf"], 'syntax = "proto3"; message A { }', "schema id 1: message A has no field"),
    ],
)
def test_a_schema_that_is_not_read_parks_its_own_records(
    tmp_path: Path, formats: list[str], text: str, reason: str
) -> None:
    good = {"avro": (json.dumps(EVENT), event(1, schema_id=2)), "protobuf": (ORDER, framed(2, encode(ORDER, id=1)))}
    good_text, good_value = good[formats[0]]
    driver = start(tmp_path, "delta", Texts({1: text, 2: good_text}, (2,)), formats=formats)
    driver.carry([log({0: framed(1, b"\x08\x01"), 1: good_value})], {0: 2})
    assert list(reasons(driver)) == [0]
    assert reasons(driver)[0].startswith(reason)
    assert oracle.rows(Path(driver.lake), "_offset") == [(1,)]
    check_sound(driver)


def test_an_id_that_means_another_schema_stops_the_pipeline(tmp_path: Path) -> None:
    driver = start(tmp_path, "delta", Texts({7: ORDER}, (7,)))
    driver.carry([log({0: framed(7, encode(ORDER, id=1))})], {0: 1})
    # The same schema, with other spaces and a comment, means the same.
    start(tmp_path, "delta", Texts({7: ORDER.replace("{", " {\n // a comment\n")}, (7,)))
    with pytest.raises(SchemaChanged):
        start(tmp_path, "delta", Texts({7: WIDER}, (7,)))


def test_a_schema_has_its_references(tmp_path: Path, form: str) -> None:
    money = 'syntax = "proto3"; package acme; message Money { int64 units = 1; string currency = 2; }'
    text = ORDER.replace('import "google', 'import "common/money.proto"; import "google')[:-1] + " Money price = 7; }"
    texts = {7: wrap_schema(text, {"common/money.proto": money})}
    driver = start(tmp_path, form, Texts(texts, (7,)))
    # As if it were sent: 7: {1: 5, 2: "eur"}.
    body = encode(ORDER, id=1) + b"\x3a\x07\x08\x05\x12\x03eur"
    driver.carry([log({0: framed(7, body)})], {0: 1})
    assert oracle.rows(Path(driver.lake), "id, price.units, price.currency") == [(1, 5, "eur")]
    check_sound(driver)


GUID = UUID("89791762-2336-4186-9674-299b90a802e2")


@pytest.mark.parametrize("mark", [b"\0\0\0\0\7", b"\1" + GUID.bytes])
def test_a_header_names_the_schema_and_the_message(tmp_path: Path, form: str, mark: bytes) -> None:
    schema_id = 7 if mark[0] == 0 else GUID.int
    wire = {"format": "header", "header": "__value_schema_id"}
    driver = start(tmp_path, form, Texts({schema_id: MANY}), wire=wire)
    bodies = {0: encode(MANY, "acme.Order", id=0), 1: encode(MANY, "acme.Refund", id=1, why="w"), 2: b"\x08\x01"}
    # The last one has an id alone, and the one before it indexes that are cut.
    indexes = {0: write_indexes([0]), 1: write_indexes([1]), 2: b"\2", 3: b"", 4: write_indexes([5])}
    headers = {offset: {"__value_schema_id": mark + marks} for offset, marks in indexes.items()}
    driver.carry([log({**bodies, 3: b"\x08\x01", 4: b"\x08\x01"}, headers=headers)], {0: 5})
    assert oracle.rows(Path(driver.lake), "id, why", "ORDER BY 1") == [(0, None), (1, "w")]
    assert {offset: text.partition("; ")[0] for offset, text in reasons(driver).items()} == {
        2: "no Kafka header __value_schema_id with a schema id",
        3: f"schema id {GUID if mark[0] else 7} is Protobuf, and no message indexes stand behind the schema id",
        4: f"schema id {GUID if mark[0] else 7} is Protobuf, and no message has the indexes [5]",
    }
    check_sound(driver)


def test_protobuf_behind_the_frame_of_others_is_refused_by_a_sentence() -> None:
    # A file of `registry.files` may stand under the number of a fingerprint.
    source = RecordSource(Texts({7: ORDER}), ValueRules(("protobuf",)), Wire("single_object", "fingerprint"))
    with pytest.raises(UnreadableSchema) as refused:
        source.schema(7)
    assert str(refused.value) == (
        "schema id 7: Protobuf values are read by the ids that serializers of Confluent, Apicurio and AWS Glue write, "
        "and these have a single-object header (C3 01 and an 8-byte fingerprint)"
    )


def test_values_without_a_header_are_of_the_only_message(tmp_path: Path) -> None:
    wire = {"format": "bare", "schema_id": 7}
    driver = start(tmp_path, "delta", Texts({7: ORDER}), wire=wire)
    driver.carry([log({0: encode(ORDER, id=1)})], {0: 1})
    assert oracle.rows(Path(driver.lake), "id") == [(1,)]
    check_sound(driver)


class TwoMessages(ProtobufCase):
    """Orders as two messages of one schema: those of odd numbers are refunds."""

    def documents(self) -> dict[int, Any]:
        return {1: json.loads(wrap_schema(MANY, {}))}

    def value(self, order: Order) -> bytes:
        if order.id % 2:
            return framed(1, encode(MANY, "acme.Refund", id=order.id, why="w"), (1,))
        return framed(1, encode(MANY, "acme.Order", id=order.id))


def test_messages_of_one_schema_have_tables_of_their_own(tmp_path: Path) -> None:
    shown = carry_routed(TwoMessages(), tmp_path, "record", ["acme.Order", "acme.Refund"])
    assert shown == {"acme.Order": [0, 2, 4], "acme.Refund": [1, 3, 5]}


def test_a_test_file_names_the_message_of_a_schema_with_several(tmp_path: Path) -> None:
    """The schema is a .proto file, which imports another of its folder."""
    case = TwoMessages()
    file = case.config_file(tmp_path)
    (tmp_path / "common").mkdir()
    (tmp_path / "common" / "reason.proto").write_text(
        'syntax = "proto3"; package acme; message Reason { string text = 1; }'
    )
    text = MANY.replace('import "google', 'import "common/reason.proto"; import "google')
    (tmp_path / "orders.proto").write_text(text.replace("string why = 3", "Reason why = 3"))
    records = {
        "order": {"value": {"id": 1, "at": NOW}},
        "refund": {"message": "acme.Refund", "value": {"id": 2, "at": NOW, "why": {"text": "w"}}},
        "line": {"hex": framed(1, encode(MANY, "acme.Order.Line", id=3, sku="s"), (0, 0)).hex()},
        "odd": {"hex": framed(1, b"", (9,)).hex()},
    }
    expect = {
        "order": {"row": {"id": 1}},
        "refund": {"row": {"id": 2, "why": {"text": "w"}}},
        "line": {"row": {"id": 3, "sku": "s"}},
        "odd": {"exit": "dead_letter", "reason": "no message has the indexes [9]"},
    }
    document = {"config": file.name, "now": NOW.isoformat(), "schema": "orders.proto", "expect": expect}
    test = tmp_path / "orders.test.yaml"
    test.write_text(yaml.safe_dump({**document, "message": "acme.Order", "records": records}))
    assert "4 passed" in run_command("test", test)
    for broken, why in (
        ({"value": {"id": 1}}, "it defines 2 messages, acme.Order, acme.Refund; nothing says which is meant"),
        ({"message": "acme.None", "value": {"id": 1}}, "it has no message 'acme.None'"),
        ({"message": "acme.Order", "value": {"id": "x"}}, "Failed to parse id field"),
        ({"message": "acme.Order", "value": {"other": 1}}, 'has no field named "other"'),
        ({"message": "acme.Order", "value": 5}, "5 is no object, as a message is"),
    ):
        test.write_text(yaml.safe_dump({**document, "records": {"order": broken}, "expect": {"order": "row"}}))
        assert why in " ".join(run_command("test", test, code=2).split())


def test_a_schema_with_several_messages_is_planned_by_one(tmp_path: Path) -> None:
    file = TwoMessages().config_file(tmp_path)
    (tmp_path / "orders.proto").write_text(MANY)
    plan = ("schema", "plan", file, "--file", tmp_path / "orders.proto", "--json")
    shown = json.loads(run_command(*plan, "--message", "acme.Refund"))
    assert [effect["column"] for effect in shown["effects"]] == ["id", "at", "why"]
    shown = json.loads(run_command(*plan, code=1))
    assert "it defines 2 messages, acme.Order, acme.Refund; nothing says which is meant" in shown["reason"]


def test_a_saved_sample_is_shown_without_a_registry(tmp_path: Path) -> None:
    case = TwoMessages()
    configuration = case.config(tmp_path)
    batch = case.records({0: Order(0), 1: Order(1), 2: b"\0\0\0\0\1\2\x12odd"})
    sample = preview.record_sample(configuration, "clicks", ["clicks"], batch, case.schemas())
    file = tmp_path / "sample.jsonl"
    saved_sample.save(file, sample)
    loaded = saved_sample.load(file)
    pipeline = open_local_pipeline("clicks", configuration, loaded.schemas, topics=["clicks"], with_table=False)
    shown = preview.describe_rows(pipeline, loaded.records)
    assert [(record["schema_id"], record["outcome"]) for record in shown] == [
        (1, "row"),
        (1, "row"),
        (1, "dead_letter"),
    ]
    assert [record["row"]["id"] for record in shown[:2]] == [0, 1]
    summary = run_command("preview", case.config_file(tmp_path), "--file", file, "--at", "decoded")
    assert "schema 1: 2 fields, decoded natively and 3 fields, decoded natively" in " ".join(summary.split())


def test_another_schema_of_an_id_is_accepted(tmp_path: Path) -> None:
    driver = start(tmp_path, "delta", Texts({7: ORDER}, (7,)))
    driver.carry([log({0: framed(7, encode(ORDER, id=1))})], {0: 1})
    (name,) = [name for name in driver.table.transactions() if name.endswith("/7")]
    recorded = driver.table.transactions()[name]
    for text, state, shown in (
        (ORDER, "same", "Protobuf acme.Order, 1 message, 0 references"),
        (wrap_schema(MANY, {"a.proto": ""}), "other", "Protobuf acme.Order, 2 messages, 1 reference"),
        ('syntax = "proto3"; message A { B b = 1; }', "no_avro", ""),
    ):
        meaning = compare_meaning(Texts({7: text}), "confluent", 7, recorded)
        assert (meaning.state, meaning.name) == (state, shown)
