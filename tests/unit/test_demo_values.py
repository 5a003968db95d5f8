"""The demo's events as values: what is in them, what is broken, and the digest by which rows are compared with them."""

import io
import json
import shlex
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import fastavro
import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner

from headrace.writer.avro import schema as avro
from headrace.writer.config.loader import load
from headrace.writer.demo import produce
from headrace.writer.demo.devstack.events import (
    NEW_FIELD,
    SCHEMAS,
    encoder,
    generate,
    move_event_times,
    spread,
)
from headrace.writer.demo.devstack.protobuf_encoding import message_encoder, schema_text
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.value_encoding import DECLARED, AvroEncoding, JsonEncoding
from headrace.writer.demo.devstack.workspace import Workspace
from headrace.writer.demo.interactive import invitation
from headrace.writer.demo.mixed_topic import MixedTopic
from headrace.writer.demo.row_digest import RowDigest
from headrace.writer.demo.table_reader import ReadTable
from headrace.writer.demo.value_formats import AVRO, JSON, PROTOBUF, ValueFormat
from headrace.writer.demo.workload import configuration
from headrace.writer.formats.formats import format_of
from headrace.writer.json.declared import declared_record
from headrace.writer.protobuf.message_types import compile_types
from headrace.writer.protobuf.record_schema import protobuf_record

NOW = datetime(2026, 11, 20, 12, 0, 0, 123_000, UTC)


def records(kind: str, count: int = 300) -> Iterator[dict[str, Any]]:
    return (record for _, record in generate(kind, count, now=NOW))


def as_json(kind: str, record: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(JsonEncoding().open_encoder("topic", kind)(record))
    return found


def without_nulls(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if value is not None}


@pytest.mark.parametrize("kind", SCHEMAS)
def test_json_holds_the_values_of_the_event(kind: str) -> None:
    for record in records(kind):
        found = as_json(kind, record)
        assert found.pop("type") == SCHEMAS[kind]["name"]
        found["event_time"] = datetime.fromisoformat(found["event_time"])
        if "cost" in found:
            found["cost"] = Decimal(str(found["cost"])).quantize(Decimal("0.01"))
        if "attribution" in found and found["attribution"]["click_time"] is not None:
            click_ms = found["attribution"]["click_time"]
            found["attribution"]["click_time"] = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=click_ms)
        assert found == without_nulls(record)


def test_money_is_a_number_with_its_cents() -> None:
    (record,) = records("installs", 1)
    value = JsonEncoding().open_encoder("installs", "installs")(record | {"cost": Decimal("99999999.99")})
    assert b'"cost":99999999.99}' in value


def test_what_is_declared_can_be_declared_and_two_members_are_not() -> None:
    declared_record(DECLARED, "rest", "dead_letter")
    members = {name for kind in SCHEMAS for record in records(kind) for name in as_json(kind, record)}
    assert members - set(DECLARED) == {NEW_FIELD}
    assert set(DECLARED) <= members
    attributions = [as_json("installs", record).get("attribution", {}) for record in records("installs")]
    assert {name for each in attributions for name in each} - set(DECLARED["attribution"]) == {"touch_count"}


def test_each_broken_json_value_is_refused_for_another_reason() -> None:
    (record,) = records("clicks", 1)
    encoding = JsonEncoding()
    encode = encoding.open_encoder("clicks", "clicks")
    cut, wrong_type, two = (encoding.broken_value(record, encode, turn) for turn in range(3))
    with pytest.raises(json.JSONDecodeError, match=r"delimiter"):
        json.loads(cut)
    assert json.loads(wrong_type)["app_id"] == "unknown"
    with pytest.raises(json.JSONDecodeError, match="Extra data"):
        json.loads(two)
    assert encoding.broken_value(record, encode, 3) == cut


def test_no_broken_avro_value_is_read_whole() -> None:
    (record,) = records("clicks", 1)
    encode = encoder(SCHEMAS["clicks"], 7)
    whole = encode(record)
    cut, headless, surplus = (AvroEncoding("http://none").broken_value(record, encode, turn) for turn in range(3))
    assert (cut, headless, surplus) == (whole[:-1], whole[5:], whole + b"\x00\xff\x00")
    assert fastavro.schemaless_reader(io.BytesIO(whole[5:]), SCHEMAS["clicks"], None) == record


def from_protobuf(kind: str, value: bytes) -> dict[str, Any]:
    """Return an event as the decoder of its message makes a row of it."""
    types = compile_types(schema_text(kind))
    record = avro.parse(protobuf_record(types.files, types.only_name))
    decoder = format_of(record).open_decoder(record, native=True, header_bytes=0, scratch="")
    block = decoder.decode(pa.array([value], pa.binary()))
    assert not block.failures
    (row,) = block.rows.to_pylist()
    return dict(row)


@pytest.mark.parametrize("kind", SCHEMAS)
def test_protobuf_holds_the_values_of_the_event(kind: str) -> None:
    encode = message_encoder(schema_text(kind))
    for record in records(kind, 30):
        expected = {**record, **({"cost": f"{record['cost']:f}"} if "cost" in record else {})}
        assert from_protobuf(kind, encode(record)) == expected


@pytest.mark.parametrize("kind", ["clicks", "installs"])
def test_events_that_are_moved_keep_whole_milliseconds(kind: str) -> None:
    late_by = timedelta(hours=8, microseconds=923)
    moved = move_event_times(generate(kind, 20, now=NOW), spread(20, 5, 2), late_by)
    assert {record["event_time"].microsecond % 1000 for _, _, record in moved} == {0}


# The digest


def rows_of(value_format: ValueFormat) -> list[dict[str, Any]]:
    """Return all kinds of events as rows of a table of their format."""
    rows = []
    for kind in ("clicks_2", "installs"):
        for record in records(kind):
            row = dict(record)
            attribution = row.get("attribution")
            if value_format is JSON:
                if NEW_FIELD in row:
                    row["rest"] = json.dumps({NEW_FIELD: row.pop(NEW_FIELD)})
                if attribution is not None:
                    rest = json.dumps({"touch_count": attribution["touch_count"]})
                    row["attribution"] = {
                        "network": attribution["network"], "click_time": attribution["click_time"], "rest": rest
                    }  # fmt: skip
            rows.append(row)
    return rows


def sum_in_duckdb(value_format: ValueFormat, rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Return the sum of the digests, and the rows with the new field, as DuckDB finds them in the rows."""
    names = {name for row in rows for name in row}
    table = pa.table({name: [row.get(name) for row in rows] for name in sorted(names)})
    db = duckdb.connect()
    db.register("given", table)
    values = {column: column if column in names else "NULL" for column in value_format.columns}
    casts = ", ".join(f"CAST({values[column]} AS {kind}) AS {column}" for column, kind in value_format.columns.items())
    found = db.execute(
        f"SELECT sum({value_format.row_digest}), count({value_format.new_field}) FROM (SELECT {casts} FROM given)"
    ).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])


def produced_digest() -> int:
    digest = RowDigest()
    for kind in ("clicks_2", "installs"):
        for record in records(kind):
            digest.add(record)
    return digest.total


@pytest.mark.parametrize("value_format", [AVRO, JSON, PROTOBUF], ids=["avro", "json", "protobuf"])
def test_rows_that_hold_the_events_have_their_digest_in_any_order(value_format: ValueFormat) -> None:
    rows = rows_of(value_format)
    assert sum_in_duckdb(value_format, rows) == (produced_digest(), 300)
    assert sum_in_duckdb(value_format, rows[::-1]) == (produced_digest(), 300)


CHANGES: list[dict[str, Any]] = [
    {"event_id": "0"},
    {"event_time": NOW - timedelta(hours=9, microseconds=1)},
    {"app_id": 1_000_000},
    {"city": None},
    {"revenue": 123.456},
    {"is_install": None},
    {"tags": ["none"]},
    {"cost": Decimal("0.01")},
    {"attribution": None},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
@pytest.mark.parametrize("value_format", [AVRO, JSON, PROTOBUF], ids=["avro", "json", "protobuf"])
def test_one_other_value_of_one_row_changes_the_digest(value_format: ValueFormat, change: dict[str, Any]) -> None:
    rows = rows_of(value_format)
    column = next(iter(change))
    index = next(i for i, row in enumerate(rows) if row.get(column) is not None)
    rows[index] = {**rows[index], **change}
    assert sum_in_duckdb(value_format, rows)[0] != produced_digest()


def test_rest_that_lacks_a_member_changes_the_digest() -> None:
    rows = rows_of(JSON)
    nested = next(i for i, row in enumerate(rows) if row.get("attribution") is not None)
    without_touch_count = {**rows[nested]["attribution"], "rest": None}
    changed = [*rows[:nested], {**rows[nested], "attribution": without_touch_count}, *rows[nested + 1 :]]
    assert sum_in_duckdb(JSON, changed)[0] != produced_digest()
    assert sum_in_duckdb(JSON, [{**rows[0], "rest": None}, *rows[1:]]) != sum_in_duckdb(JSON, rows)


def test_a_table_without_files_has_the_columns_and_no_rows() -> None:
    db = duckdb.connect()
    ReadTable([]).show_as(db, "rows", {"a": "INT", "b": "STRUCT(c VARCHAR)"})
    assert db.execute("SELECT b.c, a FROM rows").fetchall() == []


# The command that sends events


def refusal(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(produce.main)
    result = CliRunner().invoke(app, ["127.0.0.1:1", "clicks", "10", *arguments])
    assert result.exit_code == 1
    return result.output


def test_avro_needs_a_registry_and_json_has_none() -> None:
    assert refusal() == "produce: Avro needs a registry for its schema: give --registry URL, or --format json.\n"
    assert refusal("--format", "json", "--registry", "http://r") == (
        "produce: JSON has no schemas here, so leave out --registry.\n"
    )


@pytest.mark.parametrize("value_format", [AVRO, JSON, PROTOBUF], ids=["avro", "json", "protobuf"])
def test_the_invitation_sends_events_of_the_format_of_the_demo(tmp_path: Path, value_format: ValueFormat) -> None:
    workspace = Workspace(tmp_path / "kept")
    stack = Stack(tmp_path / "servers", has_registry=value_format.has_registry)
    text = "\n".join(line.plain for line in invitation(value_format, stack, workspace))
    (command,) = [line for line in text.splitlines() if "headrace.writer.demo.produce" in line]
    arguments = shlex.split(command)[3:]
    assert arguments[:3] == [stack.broker.bootstrap, "clicks", "10000"]
    assert arguments[arguments.index("--format") + 1] == value_format.name
    assert ("--registry" in arguments) == (stack.registry.url in text) == value_format.has_registry


@pytest.mark.parametrize("value_format", [AVRO, JSON, PROTOBUF], ids=["avro", "json", "protobuf"])
def test_the_configuration_of_the_demo_is_one_that_the_writer_takes(tmp_path: Path, value_format: ValueFormat) -> None:
    workspace = Workspace(tmp_path / "kept")
    stack = Stack(tmp_path / "servers", has_registry=value_format.has_registry)
    mixed = MixedTopic(1_000, value_format, workspace)
    path = tmp_path / "headrace.yaml"
    path.write_text(configuration(1_000, value_format, stack, workspace, mixed), encoding="utf-8")
    settings = load(path)
    assert {pipeline.formats[0] for pipeline in settings.pipelines.values()} == {value_format.name}
    assert settings.pipelines["events"].columns.headers == "_headers"
    assert ("registry" in settings.model_fields_set) == value_format.has_registry
