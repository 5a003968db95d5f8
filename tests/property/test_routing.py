"""Records of many schemas, routed to many tables: each is in exactly one table or exit, as an oracle in plain Python.

The driver is played here: what a task's report lacks is learned, tables are made up to the limit, and it runs again.
"""

import json
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import HealthCheck, given, settings, strategies as st

from writer.avro.schema_plan import PROVENANCE, SchemaPlan
from writer.batch.bucketing import TimeRule
from writer.batch.plan import TaskPlan
from writer.batch.route import By, NoTarget, Route, RouteRule
from writer.batch.task import run
from writer.batch.task_report import Report

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
RECORDS = ("com.shop.Click", "com.shop.View", "com.pay.Bill", "Plain")
TOPICS = ("app.eu", "app.us", "billing")
KINDS = ("com.shop.gift", "com.a", "Plain")
PATTERNS = ("com.shop.*", "com.*", "com.pay.Bill", "Plain", "*", "app.*", "billing", "com.shop.Click")
RESERVED = frozenset({*PROVENANCE.names, "hour"})


def schema_of(schema_id: int) -> dict[str, Any]:
    """Two versions of each record: ids 1 to 4 and 5 to 8. The second has a column more, the field may be null."""
    space, _, name = RECORDS[schema_id % 4].rpartition(".")
    fields: list[dict[str, Any]] = [
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "id", "type": "int"},
        {"name": "kind", "type": ["null", "string"]},
        *([{"name": "more", "type": "int"}] if schema_id > 4 else []),
    ]
    return {"type": "record", "name": name, "fields": fields, **({"namespace": space} if space else {})}


TEXTS = {schema_id: json.dumps(schema_of(schema_id)) for schema_id in range(1, 9)}
PARSED = {schema_id: parse_schema(schema_of(schema_id)) for schema_id in range(1, 9)}
Outcome = tuple[str, str]  # what became of a record: an exit, or the table that it is in


@dataclass(frozen=True)
class Message:
    topic: str
    schema_id: int  # 9: the registry does not know it
    kind: str | None  # of the field
    header: str | None
    state: str  # good, broken, tombstone, old


MESSAGES = st.builds(
    Message, st.sampled_from(TOPICS), st.integers(1, 9), st.sampled_from((None, *KINDS)),
    st.sampled_from((None, *KINDS)), st.sampled_from(("good",) * 7 + ("broken", "tombstone", "old")),
)  # fmt: skip
RULES = st.lists(
    st.builds(RouteRule, st.sampled_from(PATTERNS), st.sampled_from((None, None, "one", "two"))), max_size=4
)
ROUTES = st.builds(
    lambda by, rules, otherwise: Route(by, {"header": "type", "field": "kind"}.get(by, ""), rules, otherwise=otherwise),
    st.sampled_from(("record", "topic", "header", "field")),
    RULES,
    st.sampled_from((None, "one")),
)


def value(message: Message, offset: int) -> bytes | None:
    if message.state == "tombstone":
        return None
    out = BytesIO()
    out.write(struct.pack(">bI", 0, message.schema_id))
    if message.schema_id == 9:
        return out.getvalue() + b"?"
    row = {"at": NOW, "id": offset, "kind": message.kind, "more": 1}
    if message.state == "old":
        row["at"] = NOW - timedelta(days=90)
    schemaless_writer(out, PARSED[message.schema_id], row)
    return out.getvalue()[:-1] if message.state == "broken" else out.getvalue()


def batch_of(messages: list[Message]) -> pa.RecordBatch:
    count = len(messages)
    headers = [None if m.header is None else [{"key": "type", "value": m.header.encode()}] for m in messages]
    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    return pa.record_batch({
        "topic": pa.array([m.topic for m in messages]), "partition": pa.array([0] * count, pa.int32()),
        "offset": pa.array(range(count), pa.int64()), "timestamp": pa.array([NOW] * count, pa.timestamp("us", "UTC")),
        "key": pa.nulls(count, pa.binary()), "headers": pa.array(headers, kind),
        "value": pa.array([value(m, i) for i, m in enumerate(messages)], pa.binary()),
    })  # fmt: skip


def expected(messages: list[Message], route: Route, made: Mapping[str, str]) -> list[Outcome]:
    """Say in plain Python what becomes of each message, given which names got a table of their own."""
    found = list[Outcome]()
    for m in messages:
        names = {"record": RECORDS[m.schema_id % 4], "topic": m.topic, "header": m.header, "field": m.kind}
        name = names[route.by]
        target = route.otherwise
        for rule in route.rules:
            if name is not None and fnmatchcase(name, rule.pattern):
                target = rule.target or made.get(name) or route.otherwise
                break
        if m.state == "tombstone":
            found.append(("tombstone", ""))
        elif m.schema_id == 9 or m.state == "broken" or target is None:
            found.append(("dead letter", ""))
        elif m.state == "old":
            found.append(("quarantined", ""))
        else:
            found.append(("row", target))
    return found


class Driver:
    """What the driver does between two tries of a batch, in little."""

    def __init__(self, root: Path, route: Route, max_targets: int, budget: int) -> None:
        self.root, self.route, self.max_targets = root, route, max_targets
        self.made: dict[str, str] = {}
        self.schemas = dict.fromkeys(("one", "two"), SchemaPlan(pa.schema([]), RESERVED))
        self.entry, self.budget, self.tries = SchemaPlan(pa.schema([]), RESERVED), budget, 0

    def plan(self) -> TaskPlan:
        def of(name: str, schemas: SchemaPlan) -> TaskPlan:
            return TaskPlan(
                now=NOW, frontier={}, incarnations=dict.fromkeys(TOPICS, 1), schemas=schemas,
                time_rule=TimeRule("at", "auto", timedelta(days=30), timedelta(hours=1)),
                bucket={"type": "event_time", "width": timedelta(hours=1)}, table=str(self.root / name),
                dead_letters=str(self.root / "dead"), prefix="1", budget=self.budget, target_file_size=2**20,
            )  # fmt: skip

        names = {schema_id: RECORDS[schema_id % 4] for schema_id in self.entry.schemas}
        route = replace(self.route, made=self.made, is_full=len(self.made) >= self.max_targets, records=names)
        return replace(of("log", self.entry), route=route, targets={n: of(n, s) for n, s in self.schemas.items()})

    def carry(self, batch: pa.RecordBatch) -> Report:
        while True:
            (found,) = run([batch], self.plan())
            report = Report.from_json(found["report"][0].as_py())
            if not report.lacks_schemas:
                return report
            self.tries += 1
            assert self.tries <= 3, "all schema ids at once, then all names, then all schemas of the tables"
            for schema_id in report.unknown_schemas:
                known = schema_id in TEXTS
                entry = self.entry
                self.entry = (
                    entry.decode_only(schema_id, TEXTS[schema_id]) if known else entry.reject(schema_id, "unknown")
                )
            for name in sorted(report.unknown_names)[: self.max_targets - len(self.made)]:
                self.made[name] = f"own-{name}"
                self.schemas[f"own-{name}"] = SchemaPlan(pa.schema([]), RESERVED)
            for name, target in report.targets.items():
                for schema_id in sorted(target.unknown_schemas):
                    self.schemas[name] = self.schemas[name].extend(schema_id, TEXTS[schema_id])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    messages=st.lists(MESSAGES, max_size=40), route=ROUTES, max_targets=st.integers(0, 4),
    budget=st.sampled_from((500, 2**20)),
)  # fmt: skip
def test_each_record_is_in_exactly_one_table_or_exit(
    tmp_path_factory: pytest.TempPathFactory, messages: list[Message], route: Route, max_targets: int, budget: int
) -> None:
    root = tmp_path_factory.mktemp("lake")
    driver = Driver(root, route, max_targets, budget)
    report = driver.carry(batch_of(messages))
    wanted = expected(messages, route, driver.made)
    found: dict[tuple[str, int], list[str]] = {}
    for name, target in report.targets.items():
        assert set(target.unknown_schemas) == set()
        for file in target.files:
            table = pq.ParquetFile(root / name / file.path).read()
            assert table.num_rows == file.rows
            for row in table.to_pylist():
                assert row["id"] == row["_offset"]
                found.setdefault((row["_topic"], row["_offset"]), []).append(name)
    rows = {
        (m.topic, i): [where]
        for i, (m, (exit_, where)) in enumerate(zip(messages, wanted, strict=True))
        if exit_ == "row"
    }
    assert found == rows
    total = Counter[str]()
    for counts in report.counts.values():
        total.update({
            "row": counts.rows, "dead letter": counts.dead_letters, "quarantined": counts.quarantined,
            "tombstone": counts.tombstones,
        })  # fmt: skip
    assert +total == Counter(exit_ for exit_, _ in wanted)
    assert sum(counts.read for counts in report.counts.values()) == len(messages)
    assert len(driver.made) <= max_targets


@pytest.mark.parametrize(
    ("by", "name", "words"),
    [
        ("record", "com.x.Y", "the route goes by the record, which is 'com.x.Y': no target of the route matches it"),
        ("header", "", "the route goes by the header 'type', and there is none"),
        ("topic", "app.z", "the route goes by the topic, which is 'app.z': it may not have a table of its own"),
    ],
)
def test_a_record_without_a_table_says_why(by: By, name: str, words: str) -> None:
    route = Route(by, "type", [RouteRule("app.*")], is_full=True)
    assert route.target(name) is NoTarget.UNROUTED
    assert route.reason(name) == words


def test_the_first_rule_that_matches_decides_and_made_names_stay() -> None:
    route = Route(
        "record", "", [RouteRule("a.b", "exact"), RouteRule("a.*"), RouteRule("*", "rest")], {"a.c": "own", "a.x": None}
    )
    assert [route.target(name) for name in ("a.b", "a.c", "q", "")] == ["exact", "own", "rest", NoTarget.UNROUTED]
    assert route.target("a.d") is NoTarget.UNKNOWN
    assert route.target("a.x") is NoTarget.UNROUTED
    assert replace(route, is_full=True, otherwise="rest").target("a.d") == "rest"
