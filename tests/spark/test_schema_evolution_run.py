"""Schemas change while the writer runs: it goes on without a restart, and every row is where the newest schema says."""

import json
import struct
import subprocess
import sys
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from deltalake import DeltaTable
from fastavro import parse_schema, schemaless_writer

from tests.support import oracle
from tests.support.writer_process import NOW, Site, Writer

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]
COUNT = 300  # records of each version
AT = {"name": "event_time", "type": {"type": "long", "logicalType": "timestamp-millis"}}
NUMBER, SPOT = {"name": "n", "type": "int"}, {"name": "x", "type": "int"}


def version(*fields: dict[str, Any], spot: list[dict[str, Any]], tags: list[dict[str, Any]]) -> dict[str, Any]:
    inside = [
        {"name": "spot", "type": {"type": "record", "name": "Spot", "fields": spot}},
        {"name": "tags", "type": {"type": "array", "items": {"type": "record", "name": "Tag", "fields": tags}}},
    ]
    return {"type": "record", "name": "Event", "fields": [AT, *fields, *inside]}


KEY = {"name": "key", "type": "string"}
FIRST = version(NUMBER, spot=[SPOT], tags=[KEY])
ADDED = version(
    NUMBER, {"name": "country", "type": "string", "default": "unknown"},
    spot=[SPOT, {"name": "y", "type": ["null", "int"], "default": None}],
    tags=[KEY, {"name": "weight", "type": "double", "default": 1.0}],
)  # fmt: skip
WIDENED = version(
    {"name": "country", "type": "string", "default": "unknown"}, {**NUMBER, "type": "long"},
    spot=[{"name": "x", "type": "double"}, {"name": "y", "type": ["null", "long"], "default": None}],
    tags=[KEY, {"name": "weight", "type": "double", "default": 1.0}],
)  # fmt: skip
RENAMED = version(
    {**NUMBER, "name": "total", "type": "long", "aliases": ["n"]},
    spot=[{"name": "x", "type": "double"}], tags=[KEY],
)  # fmt: skip
FOREIGN = version({**NUMBER, "type": "string"}, spot=[SPOT], tags=[KEY])


def row(schema: dict[str, Any], i: int) -> dict[str, Any]:
    kinds = {field["name"]: field["type"] for field in schema["fields"]}
    return {
        "event_time": NOW, "country": "PT", "spot": {"x": i, "y": i}, "tags": [{"key": "k", "weight": 0.5}] * (i % 2),
        "n": {"int": 1, "long": 2**40, "string": "text", None: None}[kinds.get("n")], "total": 2**40,
    }  # fmt: skip


def registered(site: Site, subject: str, schema: dict[str, Any]) -> int:
    client = SchemaRegistryClient({"url": site.registry_url})
    return int(client.register_schema(f"{subject}-value", Schema(json.dumps(schema), "AVRO")))


def send(site: Site, topic: str, *written: tuple[int, dict[str, Any]]) -> None:
    """Send COUNT records of each schema, in turn."""
    producer = Producer({"bootstrap.servers": site.bootstrap})
    for i in range(COUNT):
        for schema_id, schema in written:
            out = BytesIO(struct.pack(">bI", 0, schema_id))
            out.seek(0, 2)
            schemaless_writer(out, parse_schema(schema), row(schema, i))
            producer.produce(topic, out.getvalue())
    producer.flush()


def carried(writer: Writer, site: Site, lake: Path, topic: str) -> None:
    """Wait until the table has all that the topic has."""
    ends = sum(site.ends(topic).values())

    def there() -> bool:
        return sum(oracle.frontier_of(lake, "events").values()) == ends

    writer.until(there)


def test_schemas_change_while_it_runs_and_nothing_is_parked_but_what_does_not_fit(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], commit={"max_delay": "1 s"})
    first = registered(site, name, FIRST)
    send(site, name, (first, FIRST))
    writer = site.start()
    carried(writer, site, lake, name)
    added = registered(site, name, ADDED)
    send(site, name, (added, ADDED), (first, FIRST))
    carried(writer, site, lake, name)
    widened = registered(site, name, WIDENED)
    foreign = registered(site, topic(1), FOREIGN)
    send(site, name, (widened, WIDENED), (foreign, FOREIGN), (added, ADDED), (first, FIRST))
    carried(writer, site, lake, name)
    renamed = registered(site, topic(1), RENAMED)  # by aliases, which registries do not look at
    send(site, name, (renamed, RENAMED), (first, FIRST))
    carried(writer, site, lake, name)
    writer.process.terminate()
    assert writer.wait(120) == 0

    oracle.check(lake, "events", site.ends(name))
    entries = [entry["kind"] for entry in oracle.replay(lake).commits]
    assert (entries.count("start"), entries.count("columns")) == (1, 2), "one start; a new and a wider set of columns"
    dead_letters = oracle.rows(lake.with_name("events_dead_letters"), "schema_id, error, count(*)", "GROUP BY ALL")
    assert dead_letters == [(foreign, f"schema id {foreign}: field 'n' is string, but column 'n' holds int64", COUNT)]

    # Records of the first schema that came before ADDED have null; those after it its defaults.
    by_country = oracle.rows(lake, "country, count(*)", "GROUP BY ALL ORDER BY ALL")
    assert by_country == [("PT", 3 * COUNT), ("unknown", 4 * COUNT), (None, COUNT)]
    ((total, largest),) = oracle.rows(lake, "sum(n), max(n)")
    assert (total, largest) == (6 * COUNT * 1 + 2 * COUNT * 2**40, 2**40)
    ((xs,),) = oracle.rows(lake, "sum(spot.x)")
    assert xs == 8 * sum(range(COUNT))
    ((ys,),) = oracle.rows(lake, "count(spot.y)")
    assert ys == 3 * COUNT
    weights = oracle.rows(lake, "t.weight, count(*)", ", unnest(tags) AS u(t) GROUP BY ALL ORDER BY ALL")
    assert weights == [(0.5, 3 * COUNT // 2), (1.0, 4 * COUNT // 2), (None, COUNT // 2)]
    _one_file_a_task(lake)
    theirs = DeltaTable(str(lake)).to_pyarrow_table(columns=["n", "spot", "country"])
    assert theirs.num_rows == 8 * COUNT
    assert str(theirs.schema.field("n").type) == "int64"

    before = oracle.replay(lake)
    assert "batch_committed" not in site.once()
    after = oracle.replay(lake)
    assert before.files == after.files
    assert [entry["kind"] for entry in after.commits[len(before.commits) :]] == ["start"], (
        "the columns are as they were"
    )
    said = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "schema", "plan", str(site.config), "--id", str(foreign)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert said.returncode == 1
    assert "field 'n' is string, but column 'n' holds int64" in said.stdout


def _one_file_a_task(lake: Path) -> None:
    """Assert it: all events are of one hour, so a batch of many schemas has no more files than it had tasks."""
    for path in (lake / "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in path.read_text().splitlines()]
        about = json.loads(actions[0].get("commitInfo", {}).get("headrace", "{}"))
        if about.get("kind") == "batch":
            assert sum("add" in action for action in actions) <= about["tasks"]
