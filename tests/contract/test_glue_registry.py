"""Topics with the frames of AWS Glue's serializers: rows, dead letters, keys, and a second registry beside Glue's."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import boto3
import pytest

from headrace.writer.audit.audit import audit
from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.config.pipelines import Config
from headrace.writer.framing.wire_format import GLUE
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.schemas.registry import GlueRegistry, SchemaNotFound, SchemaSource, source
from headrace.writer.schemas.saved_sample import SavedSample, SavedSchemas, SchemaRecorder, load, save
from headrace.writer.table.log.schema_ids import SchemaChanged
from tests.servers.confluent_api import ConfluentApi
from tests.servers.glue_api import GlueApi
from tests.servers.objects import CREDENTIALS, ObjectServer
from tests.servers.scripted import serve_script
from tests.support import oracle
from tests.support.glue_values import bomb, compressed, plain
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.protobuf_orders import MANY, ORDER as PROTO_ORDER, encode
from tests.support.record_columns import check_sound
from tests.support.sample_records import EVENT, NOW, WIDER, event, value

ORDER: dict[str, Any] = {
    "title": "com.acme.Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "note": {"type": "string"},
    },
}
AT = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"
FORMATS = ["avro", "json_schema"]


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> GlueApi:
    for name, text in CREDENTIALS.items():
        monkeypatch.setenv(name, text)
    return GlueApi()


@pytest.fixture
def endpoint(api: GlueApi) -> Iterator[str]:
    with serve_script(api) as server:
        yield server.url


def avro(number: int) -> bytes:
    return event(number)[5:]


def order(number: Any) -> bytes:
    return json.dumps({"id": number, "at": AT}).encode()


class GlueDriver(Driver):
    """One start of pipeline `clicks`, whose schemas are those of a configured registry."""

    def __init__(self, root: Path, form: str, registry: dict[str, Any], **settings: Any) -> None:
        limits = {"max_failed_ratio": 1}
        configuration = make_config(root, form, registry, **{"limits": limits, "wire": "glue", **settings})
        super().__init__(root, form, configuration=configuration, schemas=source(configuration.registry))  # type: ignore[arg-type]
        self.start()


def make_config(root: Path, form: str, registry: dict[str, Any], **settings: Any) -> Config:
    return pipeline_config(root, form, sections={"registry": registry}, **settings)


def rows(driver: Driver, columns: str = "id") -> list[Any]:
    return oracle.rows(Path(driver.lake), columns, "ORDER BY 1")


def dead_letters(driver: Driver) -> dict[int, str]:
    return dict(oracle.rows(Path(driver.dead_letters), "_offset, error"))  # type: ignore[arg-type]


def test_avro_and_json_schema_of_one_registry_fill_a_table(
    tmp_path: Path, form: str, api: GlueApi, endpoint: str
) -> None:
    event_id = api.add("clicks", EVENT)
    order_id = api.add("orders", ORDER, "JSON")
    driver = GlueDriver(tmp_path, form, {"glue": {"endpoint": endpoint}}, formats=FORMATS)
    values = {
        0: plain(event_id, avro(0)),
        1: compressed(event_id, avro(1)),
        2: plain(order_id, order(2)),
        3: compressed(order_id, order(3)),
        4: plain(order_id, order("four")),
        5: compressed(event_id, avro(5))[:-1],
        6: bomb(event_id, 80 * 2**20),
        7: compressed(order_id, order(7)) + b"x",
        8: compressed(event_id, avro(8)),
        9: b"\3\1" + event_id.bytes + avro(9),
        10: plain(uuid4(), avro(10)),
        11: event(11),
    }
    driver.carry([log(values)], {0: 12})
    assert [number for (number,) in rows(driver)] == [0, 1, 2, 3, 8]
    reasons = dead_letters(driver)
    assert {offset: reasons[offset] for offset in (4, 5, 6, 7)} == {
        4: "$.id: expected an integer, not text",
        5: "the zlib stream is cut off",
        6: "the zlib stream holds more than 64.0 MiB",
        7: "bytes follow the zlib stream",
    }
    assert reasons[9].startswith("no header of AWS Glue (03, 00 or 05, and a 16-byte id of a schema version)")
    assert "is unknown to the registry" in reasons[10]
    assert "but it has a Confluent header" in reasons[11]
    # A dead letter has the bytes of its record, compressed as they were.
    kept = dict(oracle.rows(Path(driver.dead_letters), "_offset, value"))
    assert {offset: bytes(kept[offset]) for offset in reasons} == {offset: values[offset] for offset in reasons}
    check_sound(driver)
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_ids_of_two_registries_stand_in_one_topic(tmp_path: Path, form: str, api: GlueApi, endpoint: str) -> None:
    glue_id = api.add("clicks", EVENT)
    confluent = ConfluentApi()
    confluent_id = confluent.add("clicks-value", ORDER, kind="JSON")
    with serve_script(confluent) as server:
        registry = {"url": server.url, "glue": {"endpoint": endpoint}}
        driver = GlueDriver(tmp_path, form, registry, formats=FORMATS, wire=["confluent", "glue"])
        values: dict[int, bytes | None] = {}
        for number in range(0, 60, 4):
            values |= {
                number: plain(glue_id, avro(number)),
                number + 1: struct.pack(">bI", 0, confluent_id) + order(number + 1),
                number + 2: compressed(glue_id, avro(number + 2)),
                number + 3: b"\3\5garbage",
            }
        driver.carry([log(values)], {0: 60})
        assert [number for (number,) in rows(driver)] == [number for number in range(60) if number % 4 != 3]
        assert sorted(dead_letters(driver)) == [number for number in range(60) if number % 4 == 3]
        meanings = {name.rpartition("/")[2] for name in driver.table.transactions() if "/schema/" in name}
        assert meanings == {str(confluent_id), str(glue_id)}
        check_sound(driver)
        # A second start holds both ids against the log.
        GlueDriver(tmp_path, form, registry, formats=FORMATS, wire=["confluent", "glue"])


def test_a_later_version_adds_a_column_and_an_id_that_means_another_stops_the_pipeline(
    tmp_path: Path, api: GlueApi, endpoint: str
) -> None:
    first = api.add("clicks", EVENT)
    settings = {"glue": {"endpoint": endpoint}}
    driver = GlueDriver(tmp_path, "delta", settings)
    wider = api.add("clicks", WIDER)
    wide = value(1, WIDER, {"id": 1, "at": NOW, "note": None, "extra": 7})[5:]
    driver.carry([log({0: plain(first, avro(0)), 1: compressed(wider, wide)})], {0: 2})
    assert rows(driver, "id, extra") == [(0, None), (1, 7)]
    api.version(wider).text = json.dumps(EVENT)
    with pytest.raises(SchemaChanged, match=rf"schema id {wider} at glue\.us-east-1 is another schema"):
        GlueDriver(tmp_path, "delta", settings)


def test_dead_letters_of_a_pending_version_become_rows_once_it_is_available(
    tmp_path: Path, form: str, api: GlueApi, endpoint: str
) -> None:
    event_id = api.add("clicks", EVENT)
    pending = api.add("clicks", WIDER, status="PENDING")
    driver = GlueDriver(tmp_path, form, {"glue": {"endpoint": endpoint}})
    wide = [value(1, WIDER, {"id": number, "at": NOW, "note": None, "extra": 7})[5:] for number in range(2)]
    driver.carry(
        [log({0: plain(event_id, avro(5)), 1: plain(pending, wide[0]), 2: compressed(pending, wide[1])})], {0: 3}
    )
    assert dead_letters(driver).keys() == {1, 2}
    assert f"schema id {pending} cannot be read by: AWS Glue still checks" in dead_letters(driver)[1]
    api.version(pending).status = "AVAILABLE"
    replay = DeadLetterReplay("clicks", driver.config, source(driver.config.registry))
    assert replay.run(Selection(), NOW).rows == 2
    assert rows(driver, "id, extra") == [(0, 7), (1, 7), (5, None)]
    oracle.check(Path(driver.lake), "clicks", {("clicks", 0): 3})


def test_keys_of_glue_fill_their_column_and_a_bomb_among_them_fails_alone(
    tmp_path: Path, form: str, api: GlueApi, endpoint: str
) -> None:
    event_id = api.add("clicks", EVENT)
    key_id = api.add("clicks-key", '"string"')
    columns = {"key": {"type": "avro", "name": "user", "wire": "glue"}}
    driver = GlueDriver(tmp_path, form, {"glue": {"endpoint": endpoint}}, columns=columns)
    count = 3_000
    keys: dict[int, bytes | None] = {
        number: (compressed if number % 2 else plain)(key_id, b"\2" + b"abc"[number % 3 : number % 3 + 1])
        for number in range(count)
    }
    keys |= {5: bomb(key_id, 2**20), 6: None, 7: compressed(key_id, b"\2a")[:-2]}
    values = {number: plain(event_id, avro(number)) for number in range(count)}
    driver.carry([log(values, keys=keys)], {0: count})
    assert dead_letters(driver) == {
        5: "the key: the zlib stream holds more than 64.0 KiB",
        7: "the key: the zlib stream is cut off",
    }
    expected = [(number, None if number == 6 else "abc"[number % 3]) for number in range(count) if number not in (5, 7)]
    assert rows(driver, 'id, "user"') == expected
    check_sound(driver)


def test_the_format_is_found_in_records_and_a_sample_can_be_kept(tmp_path: Path, api: GlueApi, endpoint: str) -> None:
    event_id = api.add("clicks", EVENT)
    configuration = make_config(tmp_path, "delta", {"glue": {"endpoint": endpoint}})
    batch = log({number: (compressed if number % 2 else plain)(event_id, avro(number)) for number in range(30)})
    recorder = SchemaRecorder(source(configuration.registry))

    def decoded_ids(schemas: SchemaSource) -> list[int]:
        local_pipeline = open_local_pipeline("clicks", configuration, schemas, with_table=False)
        local_pipeline.settle_wire(batch)
        assert local_pipeline.schemas.wire == GLUE
        return [row["id"] for group in local_pipeline.decode(batch).groups for row in group.rows.to_pylist()]

    assert decoded_ids(recorder) == list(range(30))
    path = tmp_path / "sample.jsonl"
    save(path, SavedSample("clicks", ["clicks"], batch, SavedSchemas(recorder.saved)))
    sample = load(path)
    assert sample.records.schema == RECORDS
    assert decoded_ids(sample.schemas) == list(range(30))


@pytest.mark.parametrize("kind", ["stub", "moto"])
def test_a_producer_s_schema_is_found_by_its_id(kind: str, endpoint: str, s3: ObjectServer) -> None:
    url = endpoint if kind == "stub" else s3.url
    client = boto3.client("glue", endpoint_url=url, region_name="us-east-1")
    name = f"clicks-{uuid4().hex[:8]}"
    registry_name = "default-registry"
    if kind == "moto":
        registry_name = f"registry-{uuid4().hex[:8]}"
        client.create_registry(RegistryName=registry_name)
    created = client.create_schema(
        RegistryId={"RegistryName": registry_name},
        SchemaName=name,
        DataFormat="AVRO",
        Compatibility="NONE",
        SchemaDefinition=json.dumps(EVENT),
    )
    later = client.register_schema_version(
        SchemaId={"RegistryName": registry_name, "SchemaName": name}, SchemaDefinition=json.dumps(WIDER)
    )
    order_id = client.create_schema(
        RegistryId={"RegistryName": registry_name},
        SchemaName=f"{name}-orders",
        DataFormat="JSON",
        Compatibility="NONE",
        SchemaDefinition=json.dumps(ORDER),
    )["SchemaVersionId"]
    section = make_config(Path("/tmp"), "delta", {"glue": {"endpoint": url, "name": registry_name}}).registry
    registry = source(section)
    assert isinstance(registry, GlueRegistry)
    assert json.loads(registry.schema(UUID(created["SchemaVersionId"]).int)) == EVENT
    assert json.loads(registry.schema(UUID(later["SchemaVersionId"]).int)) == WIDER
    assert "com.acme.Order" in registry.schema(UUID(order_id).int)
    with pytest.raises(SchemaNotFound):
        registry.schema(uuid4().int)
    # moto does not list versions.
    if kind == "stub":
        assert [json.loads(text) for text in registry.topic_schemas(name).values()] == [EVENT, WIDER]


def test_messages_of_protobuf_are_told_by_their_places(tmp_path: Path, form: str, api: GlueApi, endpoint: str) -> None:
    many = api.add("clicks", MANY, "PROTOBUF")
    settings = {"formats": ["protobuf"], "columns": {"undecodable": "dead_letter"}}
    driver = GlueDriver(tmp_path, form, {"glue": {"endpoint": endpoint}}, **settings)
    order = encode(MANY, "acme.Order", id=1)
    line = encode(MANY, "acme.Order.Line", id=2, sku="s")
    refund = encode(MANY, "acme.Refund", id=3, why="w" * 500)
    values = {
        0: plain(many, b"\0" + order),
        1: compressed(many, b"\1" + line),
        2: plain(many, b"\2" + refund),
        3: compressed(many, b"\2" + refund),
        4: plain(many, b"\3" + order),
        5: compressed(many, b"\2" + refund)[:-1],
        6: b"\3\5" + many.bytes + b"garbage",
        7: plain(many, b""),
        8: compressed(many, b"\x80\0" + order),
        9: plain(many, b"\2" + refund[:-1]),
    }
    driver.carry([log(values)], {0: len(values)})
    expected = [(1, None, None), (2, "s", None), (3, None, "w" * 500), (3, None, "w" * 500)]
    assert rows(driver, "id, sku, why") == expected
    reasons = dead_letters(driver)
    assert sorted(reasons) == [4, 5, 6, 7, 8, 9]
    messages = "its messages are acme.Order, acme.Order.Line, acme.Refund"
    assert reasons[4] == f"schema id {many} is Protobuf, and no message has the place 3 by name; {messages}"
    assert reasons[5] == "the zlib stream is cut off"
    for offset in (6, 7, 8):
        assert reasons[offset].startswith(f"schema id {many} is Protobuf, and no place of a message stands behind")
    kept = dict(oracle.rows(Path(driver.dead_letters), "_offset, value"))
    assert {offset: bytes(kept[offset]) for offset in reasons} == {offset: values[offset] for offset in reasons}
    check_sound(driver)


def test_protobuf_of_two_registries_stands_in_one_topic(tmp_path: Path, form: str, api: GlueApi, endpoint: str) -> None:
    glue_id = api.add("clicks", PROTO_ORDER, "PROTOBUF")
    confluent = ConfluentApi()
    confluent_id = confluent.add("clicks-value", MANY, kind="PROTOBUF")
    with serve_script(confluent) as server:
        registry = {"url": server.url, "glue": {"endpoint": endpoint}}
        driver = GlueDriver(tmp_path, form, registry, formats=["protobuf"], wire=["glue", "confluent"])
        values: dict[int, bytes | None] = {}
        for number in range(0, 60, 3):
            values |= {
                number: compressed(glue_id, b"\0" + encode(PROTO_ORDER, id=number, note="n")),
                # Of Confluent's indexes [1] is the third by name.
                number + 1: struct.pack(">bI", 0, confluent_id) + b"\2\2" + encode(MANY, "acme.Refund", id=number + 1),
                number + 2: plain(glue_id, b"\0" + encode(PROTO_ORDER, id=number + 2)),
            }
        driver.carry([log(values)], {0: 60})
        assert [number for (number,) in rows(driver)] == list(range(60))
        assert dead_letters(driver) == {}
        check_sound(driver)
