"""JSON values that name a JSON Schema: columns, evolution, neighbours of another format, and ids that change."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.table.log.schema_ids import SchemaChanged
from tests.support import oracle
from tests.support.local_driver import Driver, log
from tests.support.record_columns import check_sound
from tests.support.sample_records import EVENT, NOW, Schemas, event

ORDER: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "com.acme.Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "at": {"type": "string", "format": "date-time"},
        "user": {"$ref": "#/definitions/user"},
        "extra": {"type": ["string", "integer"]},
    },
    "definitions": {"user": {"type": "object", "properties": {"name": {"type": "string"}}}},
}
WIDER = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
OTHER = {**ORDER, "properties": {**ORDER["properties"], "id": {"type": "string"}}}
AT = f"{NOW:%Y-%m-%dT%H:%M:%SZ}"


def order(schema_id: int, number: Any, **members: Any) -> bytes:
    return struct.pack(">bI", 0, schema_id) + json.dumps({"id": number, "at": AT, **members}).encode()


def start(root: Path, form: str, schemas: Schemas, **settings: Any) -> Driver:
    driver = Driver(
        root, form, schemas=schemas, **{"formats": "json_schema", "limits": {"max_failed_ratio": 1}, **settings}
    )
    driver.start()
    return driver


def test_members_become_columns_by_their_schema(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form, Schemas({7: ORDER}, [7]))
    values = {0: order(7, 1, user={"name": "a", "zip": 5}, extra=5), 1: order(7, 2, extra="x", new=[1.0])}
    driver.carry([log(values)], {0: 2})
    columns = 'id, "user".name, "user".rest, extra, rest'
    assert oracle.rows(Path(driver.lake), columns, "ORDER BY 1") == [
        (1, "a", '{"zip":5}', "5", None),
        (2, None, None, '"x"', '{"new":[1.0]}'),
    ]
    check_sound(driver)


def test_a_later_schema_adds_columns_and_one_that_does_not_fit_parks_its_own_records(tmp_path: Path, form: str) -> None:
    driver = start(tmp_path, form, Schemas({7: ORDER, 8: WIDER, 9: OTHER}, [7]))
    values = {0: order(7, 1), 1: order(8, 2, note="n"), 2: order(9, "three"), 3: order(7, 4)}
    driver.carry([log(values)], {0: 4})
    assert oracle.rows(Path(driver.lake), "id, note", "ORDER BY 1") == [(1, None), (2, "n"), (4, None)]
    ((error,),) = oracle.rows(Path(driver.dead_letters), "error")
    assert error == "schema id 9: field 'id' is string, but column 'id' holds int64"
    check_sound(driver)


def test_avro_json_schema_json_and_garbage_of_one_topic_are_split(tmp_path: Path, form: str) -> None:
    settings = {
        "formats": ["avro", "json_schema", "json"],
        "columns": {"declared": {"id": "long", "at": "timestamp", "note": "string"}},
    }
    driver = start(tmp_path, form, Schemas({1: EVENT, 7: ORDER}, [1, 7]), **settings)
    values = {}
    for number in range(0, 80, 4):
        values |= {
            number: event(number),
            number + 1: order(7, number + 1),
            number + 2: order(7, number + 2)[5:],
            number + 3: b"\x01garbage",
        }
    driver.carry([log(values)], {0: 80})
    ids = [number for (number,) in oracle.rows(Path(driver.lake), "id", "ORDER BY 1")]
    assert ids == [number for number in range(80) if number % 4 != 3]
    check_sound(driver)


@pytest.mark.parametrize(
    ("formats", "schema", "reason"),
    [
        (["json_schema"], EVENT, "schema id 1: it is an Avro schema, and the pipeline reads json_schema"),
        (["avro"], ORDER, "schema id 1: it is a JSON Schema, and the pipeline reads avro"),
        (
            ["json_schema"],
            {"type": "object", "properties": {"a": {"$ref": "b.json"}}},
            "schema id 1: $.a: $ref 'b.json' is neither in the schema nor among its references",
        ),
    ],
)
def test_a_schema_that_is_not_read_parks_its_own_records(
    tmp_path: Path, formats: list[str], schema: Any, reason: str
) -> None:
    other = {"avro": EVENT, "json_schema": ORDER}[formats[0]]
    good = {"avro": event(1, schema_id=2), "json_schema": order(2, 1)}[formats[0]]
    driver = start(tmp_path, "delta", Schemas({1: schema, 2: other}, [2]), formats=formats)
    driver.carry([log({0: order(1, 5), 1: good})], {0: 2})
    ((offset, error),) = oracle.rows(Path(driver.dead_letters), "_offset, error")
    assert offset == 0
    assert error.startswith(reason)
    assert oracle.rows(Path(driver.lake), "_offset") == [(1,)]
    check_sound(driver)


def test_an_id_that_means_another_json_schema_stops_the_pipeline(tmp_path: Path) -> None:
    driver = start(tmp_path, "delta", Schemas({7: ORDER}, [7]))
    driver.carry([log({0: order(7, 1)})], {0: 1})
    # The same schema, written otherwise, means the same.
    start(tmp_path, "delta", Schemas({7: dict(reversed(ORDER.items()))}, [7]))
    with pytest.raises(SchemaChanged):
        start(tmp_path, "delta", Schemas({7: WIDER}, [7]))


class OfTwoRegistries(Schemas):
    """One number means a JSON Schema as Confluent's id, and an Avro schema as Apicurio's."""

    def with_ids(self, ids: str) -> Schemas:
        return Schemas({7: ORDER if ids == "confluent" else EVENT}, [7])


def test_two_wire_formats_of_one_topic_are_split_though_their_ids_are_the_same(tmp_path: Path, form: str) -> None:
    settings = {"formats": ["avro", "json_schema"], "wire": ["confluent", "apicurio"]}
    driver = start(tmp_path, form, OfTwoRegistries({}, []), **settings)
    values = {}
    for number in range(0, 60, 3):
        apicurio = struct.pack(">bq", 0, 7) + event(number + 1)[5:]
        values |= {number: order(7, number), number + 1: apicurio, number + 2: b"\x01garbage"}
    driver.carry([log(values)], {0: 60})
    ids = [number for (number,) in oracle.rows(Path(driver.lake), "id", "ORDER BY 1")]
    assert ids == [number for number in range(60) if number % 3 != 2]
    assert {schema_id for (schema_id,) in oracle.rows(Path(driver.dead_letters), "schema_id")} == {None}
    meanings = [name for name in driver.table.transactions() if name.endswith("/7")]
    assert len(meanings) == 2
    check_sound(driver)
    start(tmp_path, form, OfTwoRegistries({}, []), **settings).carry([log({60: order(7, 60)})], {0: 61})


def test_an_avro_schema_that_claims_to_be_read_otherwise_is_read_as_avro(tmp_path: Path) -> None:
    claims = {**EVENT, "headrace.format": "json", "headrace.fingerprint": 5}
    schemas = Schemas({1: claims}, [1])
    driver = start(tmp_path, "delta", schemas, formats=["avro", "json_schema"])
    driver.carry([log({0: event(0)})], {0: 1})
    assert oracle.rows(Path(driver.lake), "id") == [(0,)]
    start(tmp_path, "delta", schemas, formats=["avro", "json_schema"]).carry([log({1: event(1)})], {0: 2})
    check_sound(driver)
