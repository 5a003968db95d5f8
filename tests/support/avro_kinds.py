"""Strategies for Avro schemas and values of all kinds."""

import json
from dataclasses import dataclass
from decimal import Decimal
from itertools import count
from typing import Any

from hypothesis import strategies as st

from headrace.writer.avro import schema as avro
from tests.support.avro_records import MICROS, MILLIS, MONEY, logical, record


@dataclass
class Kind:
    """An Avro type, and values of it for fastavro's writer."""

    schema: Any
    values: st.SearchStrategy[Any]
    simple: bool = False  # fastavro's own reading is what the table shows


def decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    last = 10**precision - 1
    return st.integers(-last, last).map(lambda unscaled: Decimal((unscaled < 0, digits(unscaled), -scale)))


def digits(number: int) -> tuple[int, ...]:
    return tuple(map(int, str(abs(number))))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


INT = st.integers(-(2**31), 2**31 - 1)


LONG = st.integers(-(2**63), 2**63 - 1)


INSTANT_MS = st.integers(-62_135_596_800_000, 253_402_300_799_999)


INSTANT_US = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)


PRIMITIVE = {
    "boolean": st.booleans(),
    "int": INT,
    "long": LONG,
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=12),
    "string": TEXT,
}


LEAVES: list[Kind] = [
    *(Kind(name, values, simple=True) for name, values in PRIMITIVE.items()),
    Kind(MILLIS, INSTANT_MS),
    Kind(MICROS, INSTANT_US),
    Kind(logical("timestamp-nanos", "long"), LONG),
    Kind(logical("local-timestamp-millis", "long"), INSTANT_MS),
    Kind(logical("time-millis", "int"), INT),
    Kind(logical("time-micros", "long"), LONG),
    Kind(logical("date", "int"), st.integers(-719_162, 2_932_896)),
    Kind(logical("uuid", "string"), TEXT),
    Kind("null", st.none()),
    Kind(MONEY, decimals(9, 2)),
    Kind(logical("decimal", "bytes", precision=38, scale=12), decimals(38, 12)),
    Kind(logical("decimal", "bytes", precision=50, scale=20), decimals(50, 20)),
]


@st.composite
def kinds(draw: st.DrawFn, depth: int = 2) -> Kind:
    """Types up to `depth` deep. All names are the same, until `named_apart`."""
    name = "N"
    shape = draw(st.sampled_from(["leaf", "leaf", "named", "nullable", "union", "array", "map", "record"]))
    if shape == "leaf" or (depth == 0 and shape != "named"):
        return draw(st.sampled_from(LEAVES))
    if shape == "named":
        size = draw(st.integers(1, 9))
        enum = {"type": "enum", "name": name, "symbols": [f"S{i}" for i in range(size)]}
        fixed = {"type": "fixed", "name": name, "size": size}
        uuid = {"type": "fixed", "name": name, "size": 16, "logicalType": "uuid"}
        money = {**fixed, "size": 8, "logicalType": "decimal", "precision": 18, "scale": draw(st.integers(0, 18))}
        return draw(
            st.sampled_from(
                [
                    Kind(enum, st.sampled_from(enum["symbols"]), simple=True),
                    Kind(fixed, st.binary(min_size=size, max_size=size), simple=True),
                    Kind(uuid, st.binary(min_size=16, max_size=16)),
                    Kind(money, decimals(18, money["scale"])),
                ]
            )
        )
    if shape == "union":
        names = draw(st.lists(st.sampled_from(["null", *PRIMITIVE]), min_size=1, max_size=4, unique=True))
        branches = [
            st.none() if branch == "null" else st.tuples(st.just(branch), PRIMITIVE[branch]) for branch in names
        ]
        return Kind(names, st.one_of(branches))
    inner = draw(kinds(depth=depth - 1))
    if shape == "nullable":
        if isinstance(inner.schema, list) or inner.schema == "null":
            return inner
        schema = draw(st.sampled_from([["null", inner.schema], [inner.schema, "null"]]))
        return Kind(schema, st.none() | inner.values, inner.simple)
    if shape == "array":
        return Kind({"type": "array", "items": inner.schema}, st.lists(inner.values, max_size=3))
    if shape == "map":
        return Kind({"type": "map", "values": inner.schema}, st.dictionaries(TEXT, inner.values, max_size=3))
    members = {"a": inner, "b": draw(kinds(depth=depth - 1))}
    return Kind(
        record(name, *((field, kind.schema) for field, kind in members.items())),
        st.fixed_dictionaries({field: kind.values for field, kind in members.items()}),
    )


def with_unique_names(schema: Any) -> Any:
    numbers = count()

    def rename(part: dict[str, Any]) -> dict[str, Any]:
        return {**part, "name": f"N{next(numbers)}"} if part.get("name") == "N" else part

    return json.loads(json.dumps(schema), object_hook=rename)


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Kind], list[dict[str, Any]]]:
    fields = draw(st.lists(kinds(), min_size=1, max_size=5))
    members = {"id": Kind("long", LONG, simple=True)} | {f"f{i}": kind for i, kind in enumerate(fields)}
    schema = with_unique_names(record("a.b_c.Root", *((name, kind.schema) for name, kind in members.items())))
    values = draw(st.lists(st.fixed_dictionaries({n: k.values for n, k in members.items()}), min_size=1, max_size=25))
    return schema, members, values


def accepted_types(schema: Any) -> avro.Record | None:
    try:
        return avro.parse(json.dumps(schema))
    except avro.UnsupportedSchema as error:
        refusal = str(error)
    assert "items take no bytes" in refusal
    return None
