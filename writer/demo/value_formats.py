"""What differs between the formats of the demo's events: their encoding, configuration and columns."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from headrace.writer.demo.devstack.events import NEW_FIELD, Encoding
from headrace.writer.demo.devstack.protobuf_encoding import ProtobufEncoding
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.value_encoding import DECLARED, AvroEncoding, JsonEncoding
from headrace.writer.demo.row_digest import row_digest_sql

ValueFormatName = Literal["avro", "json", "protobuf"]
_COLUMNS: Mapping[str, str] = {
    "event_id": "VARCHAR",
    "event_time": "TIMESTAMPTZ",
    "app_id": "BIGINT",
    "user_id": "VARCHAR",
    "session_id": "VARCHAR",
    "event_name": "VARCHAR",
    "os": "VARCHAR",
    "os_version": "VARCHAR",
    "country": "VARCHAR",
    "city": "VARCHAR",
    "campaign": "VARCHAR",
    "channel": "VARCHAR",
    "url": "VARCHAR",
    "ip": "VARCHAR",
    "revenue": "DOUBLE",
    "is_install": "BOOLEAN",
    "duration_ms": "INT",
    "lat": "DOUBLE",
    "lon": "DOUBLE",
    "sdk": "VARCHAR",
    "tags": "VARCHAR[]",
    "cost": "DECIMAL(10, 2)",
}


@dataclass(frozen=True)
class ValueFormat:
    """A format of the demo's events."""

    name: ValueFormatName
    title: str
    # What the header of the demo says of schemas.
    about: str
    has_registry: bool
    # Keys of a pipeline.
    settings: Mapping[str, Any]
    # How a pipeline with two types of events divides them among tables.
    route_by: Any
    # What changes half-way, and how the table shows it.
    change: str
    # The column in which what is new arrives, and what the demo says when it does.
    change_column: str
    arrival: str
    # The last words of `12 rows …`.
    change_rows: str
    # Columns of the table as DuckDB has them.
    columns: Mapping[str, str]
    # SQL expressions of a row of these columns.
    new_field: str
    undeclared: str
    row_digest: str
    # `subject`: of the schemas, "" for the default.
    open_encoding: Callable[[Stack, str], Encoding]


_NEW_IN_REST = f"json_extract_string(rest, '$.{NEW_FIELD}')"
_TOUCH_COUNT_IN_REST = "json_extract_string(attribution.rest, '$.touch_count')"
AVRO = ValueFormat(
    name="avro",
    title="Avro",
    about="Avro, with its schemas in the registry",
    has_registry=True,
    settings={},
    route_by="record",
    change=f"clicks schema 2 registered: one more field, {NEW_FIELD}",
    change_column=NEW_FIELD,
    arrival="the table has its column",
    change_rows=f"carry {NEW_FIELD}",
    columns={
        **_COLUMNS,
        "attribution": "STRUCT(network VARCHAR, click_time TIMESTAMPTZ, touch_count INT)",
        NEW_FIELD: "VARCHAR",
    },
    new_field=NEW_FIELD,
    undeclared="CAST(NULL AS VARCHAR)",
    row_digest=row_digest_sql("attribution.touch_count", NEW_FIELD),
    open_encoding=lambda stack, subject: AvroEncoding(stack.registry.url, subject),
)
JSON = ValueFormat(
    name="json",
    title="JSON",
    about=f"JSON without a schema: {len(DECLARED)} columns are declared",
    has_registry=False,
    settings={"formats": ["json"], "columns": {"declared": dict(DECLARED)}},
    route_by={"field": "type"},
    change=f"clicks have one more member, {NEW_FIELD}, undeclared",
    change_column="rest",
    arrival="the column rest keeps it",
    change_rows=f"keep {NEW_FIELD} in rest",
    columns={
        **_COLUMNS,
        "attribution": "STRUCT(network VARCHAR, click_time TIMESTAMPTZ, rest VARCHAR)",
        "rest": "VARCHAR",
    },
    new_field=_NEW_IN_REST,
    undeclared="rest",
    row_digest=row_digest_sql(_TOUCH_COUNT_IN_REST, _NEW_IN_REST),
    open_encoding=lambda _stack, _subject: JsonEncoding(),
)
PROTOBUF = replace(
    AVRO,
    name="protobuf",
    title="Protobuf",
    about="Protobuf, with its schemas in the registry",
    settings={"formats": ["protobuf"]},
    # Protobuf has no decimal.
    columns={**AVRO.columns, "cost": "VARCHAR"},
    open_encoding=lambda stack, subject: ProtobufEncoding(stack.registry.url, subject),
)
VALUE_FORMATS: Mapping[ValueFormatName, ValueFormat] = {"avro": AVRO, "json": JSON, "protobuf": PROTOBUF}
