"""A producer whose schema evolves."""

import json
import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from fastavro import parse_schema

PLAIN = ["boolean", "int", "long", "float", "double", "string", "bytes", "enum"]


WIDER = {"int": ["long", "double"], "float": ["double"], "string": []}


DEPTH = 3


@dataclass
class Kind:
    """A type as its producer has it by now; it only ever widens."""

    name: str  # Avro's, or the record's
    nullable: bool = False
    item: "Kind | None" = None
    fields: "list[Field]" = field(default_factory=list)
    symbols: list[str] = field(default_factory=list)
    full_name: str = ""


@dataclass
class Field:
    """A field with its whole past: the column has its first name, the producer writes the last."""

    names: list[str]
    kind: Kind
    default: Any = None  # in JSON, of the newest version that has the field
    alive: bool = True


class Producer:
    """Somebody who changes a schema step by step, each time in a way that the table can follow."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.numbers = count()
        self.root = Kind("record", fields=[Field(["id"], Kind("long"))], full_name="Event")
        for _ in range(rng.randrange(1, 4)):
            self.add(self.root)

    def kind(self, depth: int) -> Kind:
        rng = self.rng
        name = rng.choice([*PLAIN, "record", "array", "map"] if depth < DEPTH else PLAIN)
        drawn_kind = Kind(name, nullable=rng.random() < 0.3, full_name=f"{name.title()}{next(self.numbers)}")
        if name in ("array", "map"):
            drawn_kind.item = self.kind(depth + 1)
        if name == "record":
            drawn_kind.fields = [
                Field([f"f{next(self.numbers)}"], self.kind(depth + 1)) for _ in range(rng.randrange(1, 3))
            ]
        if name == "enum":
            drawn_kind.symbols = ["A", "B"]
        return drawn_kind

    def add(self, record: Kind) -> None:
        added = Field([f"f{next(self.numbers)}"], self.kind(1))
        self.redeclare(added)
        record.fields.insert(self.rng.randrange(len(record.fields) + 1), added)

    def redeclare(self, spec: Field) -> None:
        spec.default = default(spec.kind, self.rng) if self.rng.random() < 0.6 and not spec.kind.nullable else None

    def evolve(self) -> None:
        """Take one step somewhere."""
        record = self.rng.choice(list(records(self.root)))
        alive = [spec for spec in record.fields if spec.alive and spec.names != ["id"]]
        step = self.rng.choice(["add", "remove", "rename", "widen", "nullable", "redeclare", "symbol", "reorder"])
        if step == "add" or not alive:
            self.add(record)
            return
        spec = self.rng.choice(alive)
        kind = spec.kind
        while kind.item is not None and self.rng.random() < 0.7:
            kind = kind.item
        match step:
            case "remove" if len(alive) > 1 or record is self.root:
                spec.alive = False
            case "rename":
                spec.names.append(f"f{next(self.numbers)}")
            case "widen" if WIDER.get(kind.name):
                kind.name = self.rng.choice(WIDER[kind.name])
                self.redeclare(spec)
            case "nullable":
                kind.nullable = True
                self.redeclare(spec)
            case "redeclare":
                self.redeclare(spec)
            case "symbol" if kind.name == "enum":
                kind.symbols.append(f"S{len(kind.symbols)}")
            case "reorder":
                self.rng.shuffle(record.fields)

    def writes(self) -> str:
        return json.dumps(schema_document(self.root))

    def table(self) -> Any:
        """The table as a reader: all fields there ever were, each as the newest version that has it declares it."""
        return parse_schema(read(self.root))


def records(kind: Kind) -> list[Kind]:
    """The records below a kind that are still written."""
    if kind.item is not None:
        return records(kind.item)
    inside = [r for spec in kind.fields if spec.alive for r in records(spec.kind)]
    return [kind, *inside] if kind.name == "record" else []


def schema_document(kind: Kind) -> Any:
    document = shape(kind, schema_document)
    if kind.name == "record":
        document["fields"] = [
            {
                "name": s.names[-1],
                "type": schema_document(s.kind),
                **({"aliases": s.names[:-1]} if s.names[1:] else {}),
                **({} if s.default is None else {"default": s.default}),
            }
            for s in kind.fields
            if s.alive
        ]
    return ["null", document] if kind.nullable else document


def read(kind: Kind) -> Any:
    document = shape(kind, lambda item: nullable(read(item)))
    if kind.name == "record":
        document["fields"] = [
            {
                "name": s.names[0],
                "aliases": s.names[1:],
                "default": s.default,
                "type": nullable(read(s.kind)) if s.default is None else [read(s.kind), "null"],
            }
            for s in kind.fields
        ]
    return document


def nullable(document: Any) -> Any:
    return ["null", document]


def shape(kind: Kind, inside: Any) -> Any:
    match kind.name:
        case "record":
            return {"type": "record", "name": kind.full_name}
        case "array":
            return {"type": "array", "items": inside(kind.item)}
        case "map":
            return {"type": "map", "values": inside(kind.item)}
        case "enum":
            return {"type": "enum", "name": kind.full_name, "symbols": list(kind.symbols)}
    return kind.name


def default(kind: Kind, rng: random.Random) -> Any:
    """A default as JSON says it; fields that a nested record gets later have none in it, so records have none."""
    match kind.name:
        case "boolean":
            return rng.random() < 0.5
        case "int" | "long":
            return rng.randrange(1000)
        case "float" | "double":
            return rng.randrange(1000) / 4
        case "string":
            return rng.choice(["", "é€", "none"])
        case "enum":
            return "B"
        case "array":
            return []
        case "map":
            return {}
    return None  # also bytes: fastavro hands their default over as text
