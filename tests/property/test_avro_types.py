"""Random Avro schemas and values through a whole task, in each wire format, against fastavro's own reading.

What a column shows is worked out from docs/TYPES.md and what fastavro reads, logical types included, and compared with
what pyarrow and DuckDB find in the task's Parquet files.
"""

import json
import struct
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import HealthCheck, event, given, settings, strategies as st

from headrace.writer.avro.fingerprint import crc_fingerprint
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import run
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema
from headrace.writer.framing.wire_format import CONFLUENT, HEADERS, ID_HEADERS, Wire
from tests.support.example_counts import share

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
DEPTH_MAX, FIELDS_MAX, VALUES_MAX = 3, 5, 12
SCHEMA_ID = 11
WIRES = [
    CONFLUENT, Wire("apicurio", "global"), Wire("single_object", "fingerprint"), Wire("bare", schema_id=SCHEMA_ID),
    *(Wire("header", ids, name) for name, ids in ID_HEADERS.items()),
]  # fmt: skip
# Times stay UTC; what it does not have it is not to fetch.
DUCKDB = duckdb.connect(config={"autoinstall_known_extensions": False})
AT = st.integers(-3_600_000_000, 3_600_000_000)  # event times, two hours


@dataclass
class Kind:
    """An Avro type; its values; how each is written by fastavro; and what the table shows of what fastavro reads."""

    schema: Any
    values: st.SearchStrategy[Any]
    written: Callable[[Any], Any] = lambda value: value
    shown: Callable[[Any, Any], Any] = lambda read, _: read  # (what fastavro reads, the value)
    empty: bool = False  # the table stores nothing for it


class AsText(Decimal):
    """A decimal that the table shows as text."""


def leaf(schema: Any, values: st.SearchStrategy[Any], shown: Callable[[Any], Any] = lambda read: read) -> Kind:
    return Kind(schema, values, shown=lambda read, _: shown(read))


def logical(kind: str, base: str, **more: Any) -> dict[str, Any]:
    return {"type": base, "logicalType": kind, **more}


def instant(read: datetime) -> datetime:
    return read if read.tzinfo else read.replace(tzinfo=UTC)


def floor_to_micros(nanoseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=nanoseconds // 1000)


def micros_of_day(read: time) -> int:
    return ((read.hour * 60 + read.minute) * 60 + read.second) * 10**6 + read.microsecond


def uuid_text(read: bytes) -> str:
    return "-".join(read.hex()[a:b] for a, b in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))


def unscaled_integers(precision: int) -> st.SearchStrategy[int]:
    return st.integers(-(10**precision) + 1, 10**precision - 1)


def decimal_on_bytes(precision: int, scale: int) -> Kind:
    return Kind(
        logical("decimal", "bytes", precision=precision, scale=scale), unscaled_integers(precision),
        lambda number: number.to_bytes(number.bit_length() // 8 + 1, "big", signed=True),
        lambda read, _: read if precision <= 38 else AsText(read),
    )  # fmt: skip


LONG = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
MS = st.integers(-62_135_596_800_000, 253_402_300_799_999)
US = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
PRIMITIVES = {
    "boolean": st.booleans(), "int": st.integers(-(2**31), 2**31 - 1), "long": LONG, "float": st.floats(width=32),
    "double": st.floats(), "bytes": st.binary(max_size=8), "string": TEXT,
}  # fmt: skip
NULL = Kind("null", st.none(), empty=True)
LEAVES = [
    NULL,
    *(leaf(name, values) for name, values in PRIMITIVES.items()),
    leaf(logical("date", "int"), st.integers(-719_162, 2_932_896)),
    *(leaf(logical(f"{local}timestamp-millis", "long"), MS, instant) for local in ("", "local-")),
    *(leaf(logical(f"{local}timestamp-micros", "long"), US, instant) for local in ("", "local-")),
    *(leaf(logical(f"{local}timestamp-nanos", "long"), LONG, floor_to_micros) for local in ("", "local-")),
    leaf(logical("time-millis", "int"), st.integers(0, 86_399_999), lambda read: micros_of_day(read) // 1000),
    leaf(logical("time-micros", "long"), st.integers(0, 86_399_999_999), micros_of_day),
    leaf(logical("uuid", "string"), st.uuids().map(str), str),
    leaf(logical("big-decimal", "bytes"), st.binary(max_size=4)),
    *(decimal_on_bytes(*digits) for digits in ((1, 0), (9, 2), (18, 18), (38, 10), (39, 3), (76, 70), (90, 4))),
]  # fmt: skip


def union(branches: list[Kind], null_at: int | None) -> Kind:
    """A union, null among its branches at a place or not at all. A value is (index of its branch, value)."""
    full = [*branches]
    if null_at is not None:
        full.insert(null_at, NULL)
    names = {kind.schema for kind in branches if isinstance(kind.schema, str)}
    flat = len(branches) == 1 or (len(branches) == 2 and names in ({"int", "long"}, {"float", "double"}))

    def written(value: tuple[int, Any]) -> Any:
        kind = full[value[0]]
        return None if kind is NULL else (branch_name(kind.schema), kind.written(value[1]))

    def shown(read: Any, value: tuple[int, Any]) -> Any:
        kind = full[value[0]]
        if kind is NULL:
            return None
        found = kind.shown(read, value[1])
        return found if flat else {f"member{i}": found if each is kind else None for i, each in enumerate(branches)}

    values = st.one_of([st.tuples(st.just(index), kind.values) for index, kind in enumerate(full)])
    return Kind([kind.schema for kind in full], values, written, shown)


def branch_name(schema: Any) -> str:
    return str(schema.get("name", schema["type"])) if isinstance(schema, dict) else str(schema)


def record(name: str, members: dict[str, Kind]) -> Kind:
    kept = {field: kind for field, kind in members.items() if not kind.empty}
    return Kind(
        {"type": "record", "name": name, "fields": [{"name": f, "type": k.schema} for f, k in members.items()]},
        st.fixed_dictionaries({field: kind.values for field, kind in members.items()}),
        lambda value: {field: kind.written(value[field]) for field, kind in members.items()},
        lambda read, value: {field: kind.shown(read[field], value[field]) for field, kind in kept.items()},
        empty=not kept,
    )


def array(inner: Kind) -> Kind:
    return Kind(
        {"type": "array", "items": inner.schema}, st.lists(inner.values, max_size=3),
        lambda value: [inner.written(item) for item in value],
        lambda read, value: [inner.shown(*pair) for pair in zip(read, value, strict=True)],
    )  # fmt: skip


def map_of(inner: Kind) -> Kind:
    return Kind(
        {"type": "map", "values": inner.schema}, st.dictionaries(TEXT, inner.values, max_size=3),
        lambda value: {key: inner.written(item) for key, item in value.items()},
        lambda read, value: [(key, inner.shown(read[key], item)) for key, item in value.items()],
        empty=inner.empty,
    )  # fmt: skip


@dataclass
class Growing:
    """A schema that is being drawn: names in use, and named types that later parts may refer to."""

    draw: st.DrawFn
    numbers: Iterator[int] = field(default_factory=count)
    defined: list[Kind] = field(default_factory=list)

    def name(self) -> str:
        return f"ns.inner.N{next(self.numbers)}"

    def kind(self, depth: int) -> Kind:
        shape = self.draw(st.sampled_from(SHAPES if depth else SHAPES[:4]))
        match shape:
            case "named":
                return self.remembered(self.named())
            case "again" if self.defined:
                return self.draw(st.sampled_from(self.defined))
            case "record":
                name, fields = self.name(), self.draw(st.integers(1, 3))
                return self.remembered(record(name, {f"g{i}": self.kind(depth - 1) for i in range(fields)}))
            case "union":
                return self.union(depth)
            case "nullable" | "array" | "map":
                inner = self.kind(depth - 1)
                if shape == "map":
                    return map_of(inner)
                if inner.empty or (shape == "nullable" and isinstance(inner.schema, list)):
                    return inner
                return array(inner) if shape == "array" else union([inner], self.draw(st.integers(0, 1)))
            case _:
                return self.draw(st.sampled_from(LEAVES))

    def remembered(self, kind: Kind) -> Kind:
        self.defined.append(replace(kind, schema=kind.schema["name"]))
        return kind

    def named(self) -> Kind:
        size = self.draw(st.integers(1, 9))
        fixed = {"type": "fixed", "name": self.name(), "size": size}
        match self.draw(st.sampled_from(["enum", "fixed", "uuid", "duration", "decimal"])):
            case "enum":
                symbols = [f"S{i}" for i in range(size)]
                return leaf({"type": "enum", "name": fixed["name"], "symbols": symbols}, st.sampled_from(symbols))
            case "uuid":
                return leaf({**fixed, "size": 16, "logicalType": "uuid"}, exactly(16), uuid_text)
            case "duration":
                return leaf({**fixed, "size": 12, "logicalType": "duration"}, exactly(12))
            case "decimal":
                scale = self.draw(st.integers(0, 18))
                money = {**fixed, "size": 8, "logicalType": "decimal", "precision": 18, "scale": scale}
                return replace(
                    leaf(money, unscaled_integers(18)), written=lambda number: number.to_bytes(8, "big", signed=True)
                )
        return leaf(fixed, exactly(size))

    def union(self, depth: int) -> Kind:
        plain = self.draw(st.lists(st.sampled_from(list(PRIMITIVES)), min_size=1, max_size=3, unique=True))
        branches = [leaf(name, PRIMITIVES[name]) for name in plain]
        for shape in self.draw(st.lists(st.sampled_from(["record", "named", "array", "map"]), max_size=1)):
            match shape:
                case "named":
                    branches.append(self.named())
                case "record":
                    sides = [leaf(name, PRIMITIVES[name]) for name in ("int", "string")]
                    branches += [record(self.name(), {"u": side}) for side in sides]
                case _:
                    known = len(self.defined)
                    inner = self.kind(depth - 1)
                    if not inner.empty:
                        branches.append(array(inner) if shape == "array" else map_of(inner))
                    else:  # what it defines is not in the schema
                        del self.defined[known:]
        null_at = self.draw(st.none() | st.integers(0, len(branches)))
        return union(branches, null_at)


SHAPES = ["leaf", "leaf", "named", "again", "nullable", "union", "array", "map", "record"]


def exactly(size: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=size, max_size=size)


@dataclass
class Drawn:
    """A root record with values, and the fields that became columns."""

    root: Kind
    values: list[Any]

    @property
    def schema(self) -> Any:
        return self.root.schema

    def encoded(self) -> list[bytes]:
        """Each value as fastavro writes it where no logical type is in its way."""
        raw = parse_schema(json.loads(json.dumps(self.schema), object_hook=without_logical_type))
        return [encode_value(raw, self.root.written(value)) for value in self.values]

    def expected(self) -> list[dict[str, Any]]:
        """Rows, from fastavro's reading with all logical types."""
        parsed = parse_schema(json.loads(json.dumps(self.schema)))
        read = [schemaless_reader(BytesIO(value), parsed, None) for value in self.encoded()]
        return [self.root.shown(*pair) for pair in zip(read, self.values, strict=True)]


@st.composite
def drawn(draw: st.DrawFn) -> Drawn:
    growing = Growing(draw)
    members = {"at": leaf(logical("timestamp-micros", "long"), AT, instant)}
    members |= {f"f{i}": growing.kind(DEPTH_MAX) for i in range(draw(st.integers(1, FIELDS_MAX)))}
    root = record("ns.Root", members)
    return Drawn(root, draw(st.lists(root.values, min_size=1, max_size=VALUES_MAX)))


def without_logical_type(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "logicalType"}


def encode_value(schema: Any, value: Any) -> bytes:
    out = BytesIO()
    schemaless_writer(out, schema, value)
    return out.getvalue()


def same(found: Any, expected: Any) -> bool:
    """Equal in type and value; NaN is NaN, and a decimal as text is the number it says."""
    match expected:
        case AsText():
            return isinstance(found, str) and Decimal(found) == expected
        case float():
            return isinstance(found, float) and struct.pack("d", found) == struct.pack("d", expected)
        case dict():
            return found.keys() == expected.keys() and all(same(found[name], expected[name]) for name in expected)
        case list() | tuple():
            return len(found) == len(expected) and all(same(*pair) for pair in zip(found, expected, strict=True))
        case _:
            return type(found) is type(expected) and bool(found == expected)


def stage_values(folder: Path, wire: Wire, plan: SchemaPlan, values: list[bytes], schema_id: int) -> Report:
    """Carry Kafka records through a task."""
    size, beside = len(values), wire.kafka_header_value(schema_id)
    headers = None if beside is None else [{"key": "other", "value": b""}, {"key": wire.header, "value": beside}]
    batch = pa.record_batch(
        {
            "topic": pa.array(["t"] * size), "partition": pa.array([0] * size, pa.int32()),
            "offset": pa.array(range(size)), "timestamp": pa.array([EPOCH] * size, pa.timestamp("us", "UTC")),
            "key": pa.nulls(size, pa.binary()),
            "value": pa.array([wire.value_header(schema_id) + value for value in values], pa.binary()),
            "headers": pa.array([headers] * size, HEADERS),
        }
    )  # fmt: skip
    task = TaskPlan(
        now=EPOCH, frontier={}, incarnations={"t": 1}, schemas=plan, wire=wire,
        time_rule=TimeRule("at", "auto", timedelta(days=1), timedelta(days=1)),
        bucket={"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"},
        table=str(folder / "table"), dead_letters=str(folder / "letters"), prefix="p", budget=2**20,
        target_file_size=2**20,
    )  # fmt: skip
    (reported,) = run(iter([batch]), task)
    return Report.from_json(reported.column("report")[0].as_py())


@settings(max_examples=share(150), suppress_health_check=list(HealthCheck))
@given(drawn(), st.sampled_from(WIRES), st.booleans(), st.booleans())
def test_any_schema_in_any_wire_format_is_in_the_files_as_fastavro_reads_it(drawn, wire, singly, by_duckdb):
    schema_id = SCHEMA_ID if wire.format != "single_object" else crc_fingerprint(json.dumps(drawn.schema))
    plan = SchemaPlan(pa.schema([])).extend(schema_id, json.dumps(drawn.schema))
    known = plan.schemas[schema_id]
    assert isinstance(known, WriterSchema), known
    event(f"{'singly' if singly or not known.native else 'natively'}")
    plan = replace(plan, schemas={schema_id: replace(known, native=known.native and not singly)})
    with tempfile.TemporaryDirectory() as folder:
        report = stage_values(Path(folder), wire, plan, drawn.encoded(), schema_id)
        files = [f"{folder}/table/{file.path}" for file in report.files]
        assert not report.dead_letter_files
        if by_duckdb:
            query = "SELECT * FROM read_parquet($1, hive_partitioning=false)"
            found = DUCKDB.sql(query, params=[files]).to_arrow_table()
        else:
            found = pa.concat_tables([pq.read_table(file, partitioning=None) for file in files])
    rows = found.sort_by("_offset").select(plan.columns.names).to_pylist()
    expected = drawn.expected()
    assert len(rows) == len(expected)
    for row, wanted in zip(rows, expected, strict=True):
        assert same(row, wanted), f"{row} is not {wanted}"
