"""Damaged blocks. The specification, one value at a time, is the oracle."""

import json
import random
import time
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from fastavro import parse_schema

from headrace.writer.avro import schema as avro
from headrace.writer.avro.decoding.arrow_types import NOT_A_TIME
from headrace.writer.avro.decoding.block_decoder import NativeDecoder
from headrace.writer.avro.decoding.corrupt_values import suspects
from headrace.writer.avro.decoding.probe import is_native
from headrace.writer.avro.decoding.record_decoder import SingleDecoder
from headrace.writer.avro.decoding.value_writer import write_long
from headrace.writer.decoding.decode import decode
from tests.support.avro_damages import (
    DAMAGES,
)
from tests.support.avro_records import HEAD, HEADER_BYTES, MICROS, MILLIS, MONEY, are_equal, encode, logical, record
from tests.support.avro_specification import forbidden
from tests.support.example_counts import share

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


KIND = {"type": "enum", "name": "Kind", "symbols": ["VIEW", "CLICK", "BUY"]}
FLAT = record(
    "Flat",
    ("id", "long"), ("at", MILLIS), ("user", "string"), ("session", ["null", "string"]), ("n", "int"),
    ("price", "double"), ("ratio", "float"), ("ok", "boolean"), ("raw", "bytes"), ("kind", KIND),
    ("country", "string"), ("city", ["null", "string"]), ("score", ["null", "double"]), ("age", ["null", "int"]),
    ("day", logical("date", "int")), ("device", ["string", "null"]), ("seen", ["null", MICROS]), ("views", "long"),
    ("hash", {"type": "fixed", "name": "Hash", "size": 4}), ("page", "string"),
)  # fmt: skip
POINT = record("Point", ("x", "int"), ("label", ["null", "string"]))
NESTED = record(
    "com.example.Nested",
    ("id", "long"), ("tags", {"type": "array", "items": "string"}), ("money", MONEY),
    ("counts", {"type": "map", "values": "long"}), ("choice", ["null", "int", "string"]), ("kind", KIND),
    ("points", {"type": "array", "items": POINT}), ("at", MICROS), ("nanos", logical("timestamp-nanos", "long")),
    ("last", ["null", "Point"]), ("grid", {"type": "array", "items": {"type": "array", "items": "int"}}),
    ("big", logical("decimal", "fixed", name="Big", size=16, precision=38, scale=10)),
    ("notes", {"type": "map", "values": ["null", {"type": "array", "items": MILLIS}]}), ("end", "string"),
)  # fmt: skip
ENVELOPE = record(
    "Envelope", ("id", "long"),
    ("body", [record("Click", ("page", "string"), ("n", "int")), record("Buy", ("cents", "long"), ("at", MILLIS))]),
)  # fmt: skip


def text(rng: random.Random) -> str:
    return "".join(rng.choices("abcxyzé€😀", k=rng.randrange(12)))


def value_of(schema: Any, rng: random.Random) -> Any:
    """A value for fastavro's writer."""
    schema = POINT if schema == "Point" else schema
    if isinstance(schema, list):
        branch = rng.choice(schema)
        value = value_of(branch, rng)
        return value if "null" in schema else (branch["name"], value) if isinstance(branch, dict) else value
    kind = schema["type"] if isinstance(schema, dict) else schema
    match schema.get("logicalType", kind) if isinstance(schema, dict) else kind:
        case "null":
            return None
        case "int":
            return rng.choice([0, -1, 2**31 - 1, -(2**31), rng.randrange(-1000, 1000)])
        case "long" | "timestamp-nanos":
            return rng.choice([0, 2**63 - 1, -(2**63), rng.randrange(-(2**40), 2**40)])
        case "timestamp-millis":
            return EPOCH + timedelta(milliseconds=rng.randrange(-(10**12), 4 * 10**12))
        case "timestamp-micros":
            return EPOCH + timedelta(microseconds=rng.randrange(-(10**15), 4 * 10**15))
        case "date":
            return date(1970, 1, 1) + timedelta(days=rng.randrange(-30000, 30000))
        case "decimal":
            return Decimal(rng.randrange(-(10**9) + 1, 10**9)).scaleb(-schema["scale"])
        case "float" | "double":
            return rng.randrange(-(2**20), 2**20) / 16
        case "boolean":
            return rng.random() < 0.5
        case "string":
            return text(rng)
        case "bytes":
            return rng.randbytes(rng.randrange(8))
        case "fixed":
            return rng.randbytes(schema["size"])
        case "enum":
            return rng.choice(schema["symbols"])
        case "array":
            return [value_of(schema["items"], rng) for _ in range(rng.randrange(4))]
        case "map":
            return {text(rng): value_of(schema["values"], rng) for _ in range(rng.randrange(4))}
        case _:
            return {f["name"]: value_of(f["type"], rng) for f in schema["fields"]}


# --- damage -----------------------------------------------------------------------------------------------------


@dataclass
class Case:
    """A schema with sound values, what each of them is as a row, and counts of what is tried."""

    schema: dict[str, Any]
    native: bool

    def __post_init__(self) -> None:
        rng = random.Random(f"values of {self.schema['name']}")
        self.record = avro.parse(json.dumps(self.schema))
        self.parsed = parse_schema(self.schema)
        self.single = SingleDecoder(self.record)
        assert is_native(self.record) == self.native
        self.decoder = NativeDecoder(self.record) if self.native else None
        self.sound = [encode(self.parsed, value_of(self.schema, rng)) for _ in range(400)]
        decoded = self.single(pa.array(self.sound, pa.binary()))
        assert not decoded.failures
        self.rows = decoded.rows
        self.tried, self.damaged, self.read_anyway = 0, 0, 0

    def block(self, rng: random.Random) -> tuple[list[bytes], dict[int, int]]:
        """Values, and for the untouched ones: position → row."""
        sizes = [rng.randrange(1, 17), rng.randrange(17, 40), rng.randrange(40, 301)]
        size = rng.choices(sizes, [60, 37, 3])[0]
        at = rng.choices(range(len(self.sound)), k=size)
        for _ in range(rng.randrange(3)):  # whole values trade places
            a, b = rng.randrange(size), rng.randrange(size)
            at[a], at[b] = at[b], at[a]
        values, untouched = [self.sound[i] for i in at], dict(enumerate(at))
        places = {rng.randrange(size) for _ in range(rng.randrange(1, 5))} | (
            {size - 1} if rng.random() < 0.5 else set()
        )
        for place in places:
            damage = rng.choice(DAMAGES)
            values[place] = HEAD + damage(values[place][HEADER_BYTES:], rng)
            del untouched[place]
        return values, untouched

    def check(self, values: list[bytes], untouched: dict[int, int]) -> None:
        out = decode(pa.array(values, pa.binary()), self.decoder, self.single)
        taken = out.positions.to_pylist()
        assert taken == sorted(set(taken))
        assert out.rows.num_rows == len(taken)
        assert sorted([*taken, *out.failures]) == list(range(len(values)))
        assert untouched.keys() <= set(taken)
        row_of = {position: row for row, position in enumerate(taken)}
        mine = out.rows.take(pa.array([row_of[position] for position in untouched], pa.int64()))
        assert mine.equals(self.rows.take(pa.array(untouched.values(), pa.int64())))
        for position in range(len(values)):
            if position not in untouched:
                row = out.rows.slice(row_of[position], 1) if position in row_of else None
                self.check_damaged(values[position], row)
        self.tried += 1

    def check_damaged(self, value: bytes, row: pa.Table | None) -> None:
        self.damaged += 1
        verdict = self.single(pa.array([value], pa.binary()))
        reason = verdict.failures.get(0)
        kind = forbidden(self.record, value[HEADER_BYTES:])
        if not out_of_bounds(reason):
            assert (reason is None) == (kind is None), f"{value!r}: {kind}, {reason}"
        self.read_anyway += row is not None
        assert (row is None) == (reason is not None), value
        if row is not None:
            assert are_equal(row, verdict.rows), value


def out_of_bounds(reason: str | None) -> bool:
    """Whether Avro can say it and the table cannot hold it."""
    beyond = (NOT_A_TIME, "a decimal of more than")
    return reason is not None and any(part in reason for part in beyond)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(("schema", "native"), [(FLAT, True), (NESTED, True), (ENVELOPE, False)])
def test_a_damaged_value_fails_alone_and_as_the_specification_says(schema, native):
    case = Case(schema, native)
    for seed in range(share(250)):
        case.check(*case.block(random.Random(f"{schema['name']} {seed}")))
    assert case.decoder is None or not case.decoder.unresponsive
    print(
        f"{schema['name']}: {case.tried} blocks, {case.damaged} damaged values, "
        f"{case.read_anyway} readable all the same"
    )
    assert case.damaged > case.tried


@pytest.mark.parametrize("schema", [FLAT, NESTED, ENVELOPE], ids=lambda schema: schema["name"])
def test_no_sound_value_is_suspected_and_every_cut_one_is(schema):
    case, rng = Case(schema, schema is not ENVELOPE), random.Random(schema["name"])
    head = len(HEAD)
    assert not suspects(pa.array(case.sound, pa.binary()), case.record, head).any()
    cuts = [value[: rng.randrange(len(value))] for value in case.sound]
    assert suspects(pa.array(cuts, pa.binary()), case.record, head).all()
    sliced = pa.array([*cuts[:7], *case.sound, *cuts[:9]], pa.binary()).slice(7, 400)
    assert not suspects(sliced, case.record, head).any()


@pytest.mark.parametrize("schema", [FLAT, NESTED, ENVELOPE], ids=lambda schema: schema["name"])
def test_exactly_what_the_specification_forbids_is_suspected(schema):
    case, rng = Case(schema, schema is not ENVELOPE), random.Random(schema["name"])
    values = [HEAD + rng.choice(DAMAGES)(rng.choice(case.sound)[len(HEAD) :], rng) for _ in range(2_000)]
    bad = [forbidden(case.record, value[HEADER_BYTES:]) is not None for value in values]
    assert sum(bad) > 1_000
    assert suspects(pa.array(values, pa.binary()), case.record, len(HEAD)).tolist() == bad


ORDER = record(
    "Order", ("id", "long"), ("words", {"type": "array", "items": "string"}),
    ("notes", {"type": "map", "values": ["null", "int"]}),
    ("rows", {"type": "array", "items": {"type": "array", "items": ["null", "boolean"]}}), ("end", "string"),
)  # fmt: skip


def write_blocks(items: list[bytes], rng: random.Random) -> bytes:
    """Return an array or map of items in blocks, some of which state their size."""
    written = b""
    while items:
        block, items = items[: (size := rng.randrange(1, 200))], items[size:]
        content = b"".join(block)
        is_sized = rng.random() < 0.5
        count = write_long(-len(block)) + write_long(len(content)) if is_sized else write_long(len(block))
        written += count + content
    return written + b"\0"


def write_order(rng: random.Random, items_max: int) -> bytes:
    """Return a value, without header, of arrays and a map of so many items at most."""
    words = [write_long(len(word)) + word for word in (text(rng).encode() for _ in range(rng.randrange(items_max)))]
    notes = [b"\4%02d" % (n % 100) + rng.choice([b"\0", b"\2\6"]) for n in range(rng.randrange(items_max))]
    rows = [
        write_blocks([rng.choice([b"\0", b"\2\1"]) for _ in range(rng.randrange(4))], rng)
        for _ in range(rng.randrange(items_max))
    ]
    return (
        write_long(rng.randrange(2**40)) + b"".join(write_blocks(part, rng) for part in (words, notes, rows)) + b"\2z"
    )


def test_few_values_of_many_items_are_suspected_as_the_specification_says():
    parsed = avro.parse(json.dumps(ORDER))
    counts = {True: 0, False: 0}
    for seed in range(max(4, share(20))):
        rng = random.Random(f"orders {seed}")
        values = [HEAD + write_order(rng, 4) for _ in range(150)] + [HEAD + write_order(rng, 400) for _ in range(20)]
        rng.shuffle(values)
        for place in rng.sample(range(len(values)), 40):
            values[place] = HEAD + rng.choice(DAMAGES)(values[place][HEADER_BYTES:], rng)
        bad = [forbidden(parsed, value[HEADER_BYTES:]) is not None for value in values]
        assert suspects(pa.array(values, pa.binary()), parsed, HEADER_BYTES).tolist() == bad
        for is_bad in bad:
            counts[is_bad] += 1
        single = SingleDecoder(parsed)
        block = decode(pa.array(values, pa.binary()), NativeDecoder(parsed), single)
        assert block.failures == single(pa.array(values, pa.binary())).failures
    assert min(counts.values()) > 50


def test_arrays_of_many_items_in_blocks_cost_time_by_their_length():
    # So Go's clients write arrays: blocks of 100 items, each with its size.
    parsed = avro.parse(json.dumps(ORDER))
    block = write_long(-100) + write_long(200) + b"\2a" * 100
    large = HEAD + b"\2" + block * 1_000 + b"\0" + b"\0" + b"\0" + b"\2z"
    small = HEAD + b"\2" + b"\0" + b"\0" + b"\0" + b"\2z"
    values = pa.array(([small] * 100 + [large]) * 20, pa.binary())
    began_s = time.process_time()
    decoded = decode(values, NativeDecoder(parsed), SingleDecoder(parsed))
    assert time.process_time() - began_s < 20
    assert not decoded.failures
    assert pc.list_value_length(decoded.rows["words"]).to_pylist() == ([0] * 100 + [100_000]) * 20
