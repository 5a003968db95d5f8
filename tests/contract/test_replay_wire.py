"""Dead letters of every wire format go through the steps once more, by the format that their records came in."""

import json
from datetime import timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from fastavro import parse_schema, schemaless_writer

from headrace.writer.audit.audit import audit
from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.framing.wire_format import Wire
from headrace.writer.maintenance.dead_letters.replay import DeadLetterReplay
from headrace.writer.maintenance.dead_letters.selection import Selection
from tests.support import oracle
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, config

FUTURE = NOW + timedelta(days=3)
FORMATS: dict[str, dict[str, Any]] = {
    "apicurio": {"format": "apicurio"},
    "header": {"format": "header", "header": "apicurio.value.contentId"},
    "confluent-header": {"format": "header", "header": "__value_schema_id"},
    "single_object": {"format": "single_object"},
    "bare": {"format": "bare", "schema_id": 1},
}


def schema_id(wire: Wire, schema: dict[str, Any]) -> int:
    if wire.ids == "fingerprint":
        return crc_fingerprint(json.dumps(schema))
    return 1 if schema is EVENT else 2


def known(wire: Wire, *schemas: dict[str, Any]) -> Schemas:
    by_id = {schema_id(wire, schema): schema for schema in schemas}
    return Schemas(by_id, list(by_id))


def produced(wire: Wire, count: int, partition: int) -> Any:
    """Of ten records one has a schema that is not registered yet, one is from the future, one is cut for good."""
    values: dict[int, bytes | None] = {}
    headers = {}
    for offset in range(count):
        schema = WIDER if offset % 10 == 2 and wire.format != "bare" else EVENT
        out = BytesIO()
        row = {"id": offset, "at": FUTURE if offset % 10 == 4 else NOW, "note": None, "extra": offset}
        schemaless_writer(out, parse_schema(schema), {field["name"]: row[field["name"]] for field in schema["fields"]})
        number = schema_id(wire, schema)
        values[offset] = wire.value_header(number) + out.getvalue()[: 1 if offset % 10 == 6 else None]
        if wire.header is not None:
            headers[offset] = {"trace": b"x", wire.header: wire.kafka_header_value(number) or b""}
    return log(values, partition, headers=headers)


@pytest.mark.parametrize("named", FORMATS)
@pytest.mark.parametrize("told_by", ["the configuration", "the table"])
def test_dead_letters_become_rows_by_the_wire_format_of_their_records(tmp_path: Path, named: str, told_by: str) -> None:
    wire = config(tmp_path, wire=FORMATS[named]).pipelines["clicks"].wire.fixed
    assert wire is not None
    driver = Driver(tmp_path, wire=FORMATS[named], schemas=known(wire, EVENT))
    driver.start(2)
    driver.carry([produced(wire, 50, 0), produced(wire, 20, 1)], {0: 50, 1: 20})
    wider = 0 if wire.format == "bare" else 7
    assert len(oracle.rows(Path(driver.lake), "_offset")) == 70 - 14 - wider
    later = driver.config if told_by == "the configuration" else config(tmp_path)
    result = DeadLetterReplay("clicks", later, known(wire, EVENT, WIDER)).run(Selection(), FUTURE)
    assert (result.chosen, result.rows) == (14 + wider, 7 + wider)
    oracle.check(Path(driver.lake), "clicks", {("clicks", 0): 50, ("clicks", 1): 20})
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    ids = [id_ for (id_,) in oracle.rows(Path(driver.lake), "id", "WHERE _partition = 0 ORDER BY id")]
    assert ids == [offset for offset in range(50) if offset % 10 != 6], "each value is read where it begins"
