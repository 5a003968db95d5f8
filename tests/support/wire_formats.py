"""Values in each wire format."""

from collections.abc import Mapping

import pyarrow as pa

from headrace.writer.clients.kafka_sample import RECORDS
from headrace.writer.framing.wire_format import CONFLUENT, GLUE, HEADERS, ID_HEADERS, Wire

APICURIO = Wire("apicurio", "global")
SINGLE = Wire("single_object", "fingerprint")
BARE = Wire("bare", schema_id=9)


BY_NAME = {name: Wire("header", ids, name) for name, ids in ID_HEADERS.items()}


EVERY = [CONFLUENT, APICURIO, GLUE, SINGLE, *BY_NAME.values()]


def table(rows: list[tuple[bytes | None, Mapping[str, bytes]]]) -> pa.Table:
    size = len(rows)
    columns = [
        pa.array(["t"] * size),
        pa.array([0] * size, pa.int32()),
        pa.array(range(size)),
        pa.nulls(size, RECORDS.field("timestamp").type),
        pa.nulls(size, pa.binary()),
        pa.array([value for value, _ in rows], pa.binary()),
        pa.array([[{"key": k, "value": v} for k, v in beside.items()] or None for _, beside in rows], HEADERS),
    ]
    return pa.table(columns, schema=RECORDS)


def record(wire: Wire, schema_id: int, body: bytes = b"\6abc") -> tuple[bytes, dict[str, bytes]]:
    beside = wire.kafka_header_value(schema_id)
    return wire.value_header(schema_id) + body, {} if beside is None else {str(wire.header): beside}
