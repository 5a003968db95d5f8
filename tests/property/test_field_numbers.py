"""Message types that evolve at random: each field fills the column that its number had first, or is refused."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import given, settings, strategies as st

from headrace.writer.avro import schema as avro
from headrace.writer.columns.resolution import Reader, resolve
from tests.support.example_counts import share

NAMES = tuple("abcdefgh")
TYPES = ("string", "int", "boolean")


@dataclass
class Record:
    """A message: its fields by their numbers."""

    names: dict[int, str] = field(default_factory=dict)
    types: dict[int, str] = field(default_factory=dict)
    # A message inside it, by the number of its field.
    inner: "dict[int, Record]" = field(default_factory=dict)

    def evolve(self, rng: random.Random, depth: int = 0) -> None:
        """Add, remove or rename a field, give it another type, or exchange two names."""
        unused = [name for name in NAMES if name not in self.names.values()]
        numbers = list(self.names)
        match rng.choice(["add", "add", "rename", "rename", "remove", "swap", "retype", "inside"]):
            case "rename" if numbers and unused:
                self.names[rng.choice(numbers)] = rng.choice(unused)
            case "remove" if len(numbers) > 1:
                number = rng.choice(numbers)
                del self.names[number], self.types[number]
                self.inner.pop(number, None)
            case "swap" if len(numbers) > 1:
                first, second = rng.sample(numbers, 2)
                self.names[first], self.names[second] = self.names[second], self.names[first]
            case "retype" if numbers and rng.random() < 0.3:
                number = rng.choice(numbers)
                if number not in self.inner:
                    self.types[number] = rng.choice(TYPES)
            case "inside" if self.inner:
                rng.choice(list(self.inner.values())).evolve(rng, depth + 1)
            case _ if unused:
                number = rng.choice([other for other in range(1, 12) if other not in self.names])
                self.names[number] = rng.choice(unused)
                self.types[number] = rng.choice(TYPES)
                if depth < 2 and rng.random() < 0.3:
                    self.inner[number] = Record({1: rng.choice(NAMES)}, {1: rng.choice(TYPES)})

    def schema(self, name: str) -> dict[str, Any]:
        fields = []
        for number in self.names:
            kind: Any = self.types[number]
            if number in self.inner:
                kind = self.inner[number].schema(f"{name}_{number}")
            fields.append({"name": self.names[number], "type": ["null", kind], "headrace.number": number})
        return {"type": "record", "name": name, "fields": fields}


@dataclass
class Columns:
    """The oracle: the columns of a message, by the numbers of their fields."""

    names: dict[int, str] = field(default_factory=dict)
    types: dict[int, str] = field(default_factory=dict)
    inner: "dict[int, Columns]" = field(default_factory=dict)

    def fill(self, record: Record) -> "Columns | None":
        """Return the columns with a schema's fields; None where one does not fit."""
        grown = Columns(dict(self.names), dict(self.types), dict(self.inner))
        for number, name in record.names.items():
            kind = "record" if number in record.inner else record.types[number]
            if number not in grown.names:
                if name in grown.names.values():
                    return None
                grown.names[number] = name
                grown.types[number] = kind
            elif grown.types[number] != kind:
                return None
            if kind == "record":
                inner = grown.inner.get(number, Columns()).fill(record.inner[number])
                if inner is None:
                    return None
                grown.inner[number] = inner
        return grown

    def arrow(self) -> dict[str, pa.DataType]:
        kinds = {"string": pa.string(), "int": pa.int32(), "boolean": pa.bool_()}
        return {
            name: pa.struct(list(self.inner[number].arrow().items()))
            if number in self.inner
            else kinds[self.types[number]]
            for number, name in self.names.items()
        }


def resolve_all(texts: list[str], columns: pa.Schema) -> tuple[pa.Schema, Reader, list[dict[str, str] | None]]:
    """Return the columns that schemas lead to one after another, and the column of each field; None: one is refused."""
    reader = Reader()
    mappings: list[dict[str, str] | None] = []
    for text in texts:
        try:
            resolved = resolve(avro.parse(text), columns, reader, frozenset(), widen="any")
        except avro.UnsupportedSchema:
            mappings.append(None)
            continue
        columns = resolved.columns
        reader = resolved.reader
        mappings.append(dict(resolved.mapping))
    return columns, reader, mappings


@settings(max_examples=share(400))
@given(st.integers(0, 2**32), st.integers(1, 12))
def test_a_field_fills_the_column_of_its_number_and_a_restart_agrees(seed: int, steps: int) -> None:
    rng = random.Random(seed)
    record = Record({1: "a"}, {1: "int"})
    texts: list[str] = []
    expected: list[dict[str, str] | None] = []
    columns = Columns()
    for _ in range(steps):
        record.evolve(rng)
        texts.append(json.dumps({**record.schema("Order"), "headrace.format": "protobuf"}))
        grown = columns.fill(record)
        mapping = None
        if grown is not None:
            columns = grown
            mapping = {name: columns.names[number] for number, name in record.names.items()}
        expected.append(mapping)
    table, reader, mappings = resolve_all(texts, pa.schema([]))
    assert mappings == expected
    assert dict(zip(table.names, table.types, strict=True)) == columns.arrow()
    # As a start finds the table.
    assert resolve_all(texts, table) == (table, reader, mappings)
