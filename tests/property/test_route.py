"""Records of many schemas, routed to many tables batch by batch, by a driver that dies: each is in exactly one table or
exit, as an oracle in plain Python says, which shares nothing with the code.

The oracle matches patterns, counts tables and knows each value by itself.
"""

import json
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastavro import parse_schema, schemaless_writer
from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.audit.audit import audit
from headrace.writer.batch.route import By, NoTarget, Route, RouteRule
from headrace.writer.batch.task import run
from headrace.writer.batch.task_report import Report
from headrace.writer.commit import builder
from headrace.writer.commit.targets import add_targets
from headrace.writer.commit.task_plan import build_task_plan
from headrace.writer.core.errors import LimitReached
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.framing.wire_format import CONFLUENT, HEADERS
from tests.support import oracle
from tests.support.effect_failures import Died, die_after
from tests.support.example_counts import share
from tests.support.route_targets import RouteTables, SchemaStub

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
NAMES = ("com.shop.Click", "com.shop.View", "com.pay.Bill", "Plain")  # of records
SOURCES = (("app.eu", 0), ("app.eu", 1), ("app.us", 0), ("billing", 0))
TEXTS = (None, "com.shop.gift", "com.a", "Com.A", "Plain", "z")  # of the header and the field
PATTERNS = (
    "com.shop.*", "com.*", "*", "app.*", "?????", "[Pb]*", "com.[!s]*", "*.[A-C]*", "com.pay.Bill", "Plain", "billing",
    "com.a", "com.shop.Click",
)  # fmt: skip
OPTIONAL = {"n": ("int", "long"), "s": ("string",), "d": ("double",), "kind": ("string",)}
UNKNOWN = 99  # a schema id that the registry does not know
Place = tuple[str, int, int]  # topic, partition, offset
Fields = Mapping[str, str]  # of a schema, and their types


@dataclass(frozen=True)
class Message:
    source: int
    schema: int  # one of the schemas, or that the registry does not know
    kind: str | None  # of the field, where the schema has one
    header: str | None
    state: str  # good, broken, tombstone, old
    number: int


@dataclass(frozen=True)
class World:
    schemas: Sequence[tuple[str, Fields]]  # record and fields; the id is the position, from 1
    by: str
    targets: Mapping[str, str]  # pattern → the folder of its table; empty: each name has one
    unrouted: str
    max_targets: int
    form: str
    buffer: int
    batches: Sequence[Sequence[Message]]
    deaths: Sequence[Sequence[tuple[str, int]]]  # of each batch: the step, and the effects that it has before


@st.composite
def worlds(draw: st.DrawFn) -> World:
    fields = st.lists(st.sampled_from(sorted(OPTIONAL)), unique=True).flatmap(
        lambda names: st.fixed_dictionaries({name: st.sampled_from(OPTIONAL[name]) for name in names})
    )
    schemas = draw(st.lists(st.tuples(st.sampled_from(NAMES), fields), min_size=1, max_size=6))
    patterns = draw(st.lists(st.sampled_from(PATTERNS), min_size=1, max_size=5, unique=True))
    # The log has no late rows, so a table may lie where they would.
    places = [("", f"fixed{at}") if at else ("", "fixed0", "log_late") for at in range(len(patterns))]
    targets = {pattern: draw(st.sampled_from(place)) for pattern, place in zip(patterns, places, strict=True)}
    targets |= {word: targets[word] or f"own/{word}" for word in patterns if is_word(word)}
    fixed = [pattern for pattern, folder in targets.items() if folder]
    messages = st.builds(
        Message, st.integers(0, len(SOURCES) - 1), st.sampled_from((*range(1, len(schemas) + 1), UNKNOWN)),
        st.sampled_from(TEXTS), st.sampled_from(TEXTS),
        st.sampled_from(("good",) * 7 + ("broken", "tombstone", "old")), st.integers(-(2**31), 2**31 - 1),
    )  # fmt: skip
    batches = draw(st.lists(st.lists(messages, min_size=1, max_size=15), min_size=1, max_size=4))
    death = st.tuples(st.sampled_from(("learn", "stage", "commit", "redo")), st.integers(0, 12))
    return World(
        schemas, draw(st.sampled_from(("record", "topic", "header", "field"))), targets,
        draw(st.sampled_from(("dead_letters", "dead_letters", "stop", *fixed))), draw(st.integers(0, 4)),
        draw(st.sampled_from(("delta", "parquet"))), draw(st.sampled_from((500, 2**20))), batches,
        [draw(st.lists(death, max_size=2)) for _ in batches],
    )  # fmt: skip


def text_of(name: str, fields: Fields) -> str:
    space, _, last = name.rpartition(".")
    time = {"type": "long", "logicalType": "timestamp-millis"}
    more = [{"name": one, "type": ["null", kind]} for one, kind in fields.items()]
    return json.dumps({
        "type": "record", "name": last, **({"namespace": space} if space else {}),
        "fields": [{"name": "at", "type": time}, {"name": "id", "type": "int"}, *more],
    })  # fmt: skip


def row_of(world: World, message: Message, offset: int) -> dict[str, Any]:
    found = {"n": message.number, "s": str(message.number), "d": message.number / 7, "kind": message.kind}
    return {"id": offset, **{name: found[name] for name in world.schemas[message.schema - 1][1]}}


def value(world: World, message: Message, offset: int) -> bytes | None:
    if message.state == "tombstone":
        return None
    out = BytesIO()
    out.write(struct.pack(">bI", 0, message.schema))
    if message.schema == UNKNOWN:
        return out.getvalue() + b"?"
    at = NOW - timedelta(days=90 if message.state == "old" else 0)
    parsed = parse_schema(json.loads(text_of(*world.schemas[message.schema - 1])))
    schemaless_writer(out, parsed, {"at": at, **row_of(world, message, offset)})
    return out.getvalue()[:6] if message.state == "broken" else out.getvalue()


def is_word(pattern: str) -> bool:
    return not set(pattern) & set("*?[")


def matches(pattern: str, name: str) -> bool:
    """Whether a name is one of a pattern with `*`, `?` and `[…]`."""
    if not pattern or not name:
        return not pattern.strip("*") and not name
    head, rest = pattern[0], pattern[1:]
    if head == "*":
        return matches(rest, name) or matches(pattern, name[1:])
    if head == "[":
        chosen, _, rest = rest.partition("]")
        letters = chosen.removeprefix("!")
        if letters[1:2] == "-":
            letters = "".join(map(chr, range(ord(letters[0]), ord(letters[2]) + 1)))
        return ((name[0] in letters) != chosen.startswith("!")) and matches(rest, name[1:])
    return head in ("?", name[0]) and matches(rest, name[1:])


@dataclass
class Expected:
    """What becomes of each record, in plain Python."""

    world: World
    made: list[str] = field(default_factory=list)  # names that have a table of their own
    rows: dict[str, dict[Place, dict[str, Any]]] = field(default_factory=lambda: defaultdict(dict))  # by folder
    exits: dict[Place, str] = field(default_factory=dict)
    ends: Counter[tuple[str, int]] = field(default_factory=Counter)

    def play(self, batch: Sequence[Message]) -> tuple[bool, int]:
        """Return whether the batch ends the pipeline, and how many of its records have a name that no rule is for."""
        named = {name for m in batch if (name := self._name(m)) and self._decodes(m) and self._rule(name) == ""}
        for name in sorted(named):
            taken = [f"own/{made}".lower() for made in self.made] + [one.lower() for one in self.world.targets.values()]
            if len(self.made) < self.world.max_targets and f"own/{name}".lower() not in taken:
                self.made.append(name)
        stops, ruleless = False, 0
        for m in batch:
            source = SOURCES[m.source]
            place = (*source, self.ends[source])
            self.ends[source] += 1
            folder = self._folder(self._name(m))
            if m.state == "tombstone":
                self.exits[place] = "tombstones"
            elif not self._decodes(m) or folder is None:
                self.exits[place] = "dead_letters"
                stops = stops or (self._decodes(m) and self.world.unrouted == "stop")
                ruleless += self._decodes(m) and bool(name := self._name(m)) and self._rule(name) is None
            elif m.state == "old":
                self.exits[place] = "quarantined"
            else:
                self.exits[place] = "rows"
                self.rows[folder][place] = row_of(self.world, m, place[2])
        return stops, ruleless

    def _decodes(self, m: Message) -> bool:
        return m.schema != UNKNOWN and m.state not in ("broken", "tombstone")

    def _name(self, m: Message) -> str | None:
        if self.world.by in ("topic", "header"):
            return SOURCES[m.source][0] if self.world.by == "topic" else m.header
        if m.schema == UNKNOWN:
            return None
        record, fields = self.world.schemas[m.schema - 1]
        return record if self.world.by == "record" else m.kind if "kind" in fields else None

    def _rule(self, name: str) -> str | None:
        """Return the folder of the rule that decides; empty: each name has its own; None: there is no rule."""
        for rule in sorted(self.world.targets, key=is_word, reverse=True):  # it is stable
            if matches(rule, name):
                return self.world.targets[rule]
        return None

    def _folder(self, name: str | None) -> str | None:
        """Return where records of a name go; None: nowhere."""
        rule = self._rule(name) if name else None
        if rule or (name in self.made and rule is not None):
            return rule or f"own/{name}"
        return self.world.targets.get(self.world.unrouted)


class Learning(SchemaStub):
    """The schemas of a driver, which learns them from its batches."""

    def __init__(self, world: World) -> None:
        super().__init__({})
        self._texts = {index: text_of(*one) for index, one in enumerate(world.schemas, 1)}

    def learn_from(self, report: Report) -> None:
        for schema_id in sorted(report.unknown_schemas):
            text = self._texts.get(schema_id)
            self.plan = self.plan.reject(schema_id, "?") if text is None else self.plan.decode_only(schema_id, text)


class Driver(RouteTables):
    """A driver from its start to its death, which does what a pipeline does between Spark and the tables."""

    def __init__(self, root: Path, world: World) -> None:
        by = {"header": "type"} if world.by == "header" else {"field": "kind"} if world.by == "field" else world.by
        places = {name: str(root / (folder or "own/{full_name}")) for name, folder in world.targets.items()}
        route = {"by": by, "targets": places, "unrouted": world.unrouted, "max_targets": world.max_targets}
        super().__init__(
            root, route, form=world.form, schemas=Learning(world), parts=[TopicPartition(t, 1, p) for t, p in SOURCES],
            event_time={"field": "at", "max_age": "30 d"}, seal={"enabled": False},
        )  # fmt: skip
        self.buffer = world.buffer

    def carry(
        self, records: Sequence[pa.RecordBatch], start: Mapping[Any, int], ends: Mapping[Any, int],
        die: tuple[str, int] | None,
    ) -> Report | None:  # fmt: skip
        """Carry a batch into the tables, or die at a step. Returns what tasks said; None: it was committed before."""
        settings, snapshot = self.config.pipelines["p"], self.tables.main.snapshot()
        parts = {source: TopicPartition(source[0], 1, source[1]) for source in ends}
        committing = builder.ranges(start, ends, {part: snapshot.frontier(part) for part in parts.values()}, parts)
        report = self._staged(records, start, die)
        if die is not None and die[0] == "stage":
            raise Died
        if sum(r.end - r.start for r in committing) == 0:
            return None
        planned = builder.batch(
            report, committing, epoch=self.epoch, settled=self.tables.settled, seen={}, closed=(None, {}),
            side={**builder.side_files(settings, report), **self.targets.side_files(report)},
            facts={"wire": None, **builder.target_facts(report)},
        )  # fmt: skip
        with death(die, "commit"):
            self.tables.main.append(planned, snapshot)
        with death(die, "redo"):
            self.tables.apply_side_files()
        assert not [state for state in self.targets.states().values() if state.is_behind]
        return report

    def _staged(
        self, records: Sequence[pa.RecordBatch], start: Mapping[Any, int], die: tuple[str, int] | None
    ) -> Report:
        while True:
            plan = build_task_plan(
                self.config.pipelines["p"], None, self.known.plan, CONFLUENT, "auto", now=NOW,
                prefix=f"{self.epoch:06d}", incarnations={topic: 1 for topic, _ in SOURCES}, frontier=start,
                record_columns=self.known.record_columns, hidden=self.tables.main.hidden,
                folder=self.tables.main.folder,
            )  # fmt: skip
            plan = add_targets(replace(plan, budget=self.buffer), self.targets, {})
            tasks = [run([batch], plan) for batch in records]
            report = builder.merge_reports(Report.from_json(found["report"][0].as_py()) for (found,) in tasks)
            if not report.lacks_schemas:
                return report
            self.known.learn_from(report)
            with death(die, "learn"):
                self.targets.learn_from(report)
                self.targets.grow()


@contextmanager
def death(die: tuple[str, int] | None, step: str) -> Iterator[None]:
    """Die within a step after so many effects, if it is that in which to die."""
    with pytest.MonkeyPatch.context() as patch:
        steps = die_after(patch, die[1]) if die is not None and die[0] == step else iter((None, None))
        next(steps)
        try:
            yield
        finally:
            next(steps)


def records_of(world: World, batch: Sequence[Message], start: Mapping[tuple[str, int], int]) -> list[pa.RecordBatch]:
    """Return the records of a batch for two tasks."""
    at, rows = Counter(start), list[dict[str, Any]]()
    for m in batch:
        topic, partition = source = SOURCES[m.source]
        headers = None if m.header is None else [{"key": "type", "value": m.header.encode()}]
        rows.append({
            "topic": topic, "partition": partition, "offset": at[source], "timestamp": NOW, "key": None,
            "headers": headers, "value": value(world, m, at[source]),
        })  # fmt: skip
        at[source] += 1
    kinds = {
        "topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": pa.timestamp("us", "UTC"),
        "key": pa.binary(), "headers": HEADERS, "value": pa.binary(),
    }  # fmt: skip
    shares = [
        [row for row in rows if (row["topic"], row["partition"]) in half] for half in (SOURCES[::2], SOURCES[1::2])
    ]
    return [pa.RecordBatch.from_pylist(share, pa.schema(kinds)) for share in shares]


@settings(max_examples=share(60), suppress_health_check=[HealthCheck.too_slow])
@given(world=worlds())
def test_each_record_is_in_exactly_one_table_or_exit_whenever_the_driver_dies(
    tmp_path_factory: pytest.TempPathFactory, world: World
) -> None:
    root = tmp_path_factory.mktemp("lake")
    wanted, driver, stopped = Expected(world), Driver(root, world), False
    for batch, deaths in zip(world.batches, world.deaths, strict=True):
        before = replace(wanted, exits=dict(wanted.exits), made=[*wanted.made])
        start = {source: wanted.ends[source] for source in SOURCES}
        kept = {folder: dict(rows) for folder, rows in wanted.rows.items()}
        stopped, ruleless = wanted.play(batch)
        ends = {source: wanted.ends[source] for source in SOURCES}
        records = records_of(world, batch, start)
        if stopped:
            with pytest.raises(LimitReached, match="unrouted is stop"):
                driver.carry(records, start, ends, None)
            wanted = replace(before, rows=kept, ends=Counter(start))
            break
        for die in (*deaths, None):
            try:
                report = driver.carry(records, start, ends, die)
            except Died:
                driver = Driver(root, world)
            else:
                assert report is None or report.unrouted == ruleless
                if report is not None:
                    break
    check(root, world, wanted, Driver(root, world), is_whole=not stopped)


def check(root: Path, world: World, wanted: Expected, last: Driver, *, is_whole: bool) -> None:
    """Hold the tables, the log and the audit against what is expected."""
    assert last.tables.behind == {}
    targets = last.tables.main.snapshot().targets().values()
    names = {target.name for target in targets} - set(world.targets)
    assert names == set(wanted.made) or (not is_whole and names > set(wanted.made))
    for target in targets:
        folder = str(Path(target.location).relative_to(root))
        found = rows_of(root / folder)
        assert len(found) == len({row[0] for row in found}), "a row is there twice"
        versions = [entry["main_version"] for entry in oracle.replay(root / folder).commits if entry["kind"] == "side"]
        assert versions == sorted(set(versions)), "an entry was applied twice, or out of order"
        shown = {place: {name: row[name] for name in wanted.rows[folder].get(place, row)} for place, row in found}
        assert shown == wanted.rows.pop(folder, {}), folder
    assert not any(wanted.rows.values()), "a table is missing"
    dead = sorted((place, row["outcome"]) for place, row in rows_of(root / "log_dead_letters"))
    outcomes = {"dead_letters": "dead_letter", "quarantined": "quarantined"}
    assert dead == sorted((place, outcomes[exit_]) for place, exit_ in wanted.exits.items() if exit_ in outcomes)
    total = Counter[tuple[str, int, str]]()
    listed = Counter[str]()
    for entry in oracle.replay(root / "log").commits:
        for r in entry["ranges"] if entry["kind"] == "batch" else []:  # type: ignore[attr-defined]
            exits = ("read", "rows", "dead_letters", "quarantined", "tombstones")
            total.update({(r["topic"], r["partition"], exit_): r[exit_] for exit_ in exits})
        listed.update({name: one["rows"] for name, one in dict(entry.get("targets") or {}).items()})  # type: ignore[call-overload]
    read = [(topic, partition, exit_) for (topic, partition, _), exit_ in wanted.exits.items()]
    assert +total == Counter([*read, *((topic, partition, "read") for topic, partition, _ in read)])
    assert sum(listed.values()) == Counter(wanted.exits.values())["rows"]
    found = audit(last.config, "p", since=None, deep=True)
    assert found.adds_up, found.problems
    assert oracle.frontier_of(root / "log", "p") == {source: wanted.ends[source] for source in SOURCES}


def rows_of(table: Path) -> list[tuple[Place, dict[str, Any]]]:
    """Return the rows that readers see, with their places in Kafka."""
    rows = [row for file in oracle._files(table) for row in pq.ParquetFile(file).read().to_pylist()]
    return [((row["_topic"], row["_partition"], row["_offset"]), row) for row in rows]


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
