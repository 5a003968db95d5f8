"""Texts that a registry may hold as a schema: real ones with some parts changed, and what is no schema at all."""

import json
import random
from collections.abc import Callable
from typing import Any

Json = Any


def record(name: str, /, *fields: tuple[str, Json], **more: Json) -> dict[str, Json]:
    """Return a record schema; each field is its name, and its type or all that it has."""
    return {"type": "record", "name": name, "fields": [_field(*field) for field in fields], **more}


def _field(name: str, given: Json) -> dict[str, Json]:
    is_whole = isinstance(given, dict) and "default" in given
    return {"name": name, **given} if is_whole else {"name": name, "type": given}


MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MONEY = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ADDRESS = record("Address", ("street", "string"), ("zip", {"type": ["null", "string"], "default": None}))
COLOURS = {"type": "enum", "name": "Colour", "symbols": ["RED", "GREEN"], "default": "RED"}
REAL: list[Json] = [
    record("Click", ("at", MILLIS), ("id", "long"), ("x", "int")),
    record(
        "Order",
        ("at", MILLIS),
        ("buyer", ADDRESS),
        ("seller", "Address"),
        ("paid", MONEY),
        ("colour", COLOURS),
        ("lines", {"type": "array", "items": record("Line", ("sku", "string"), ("n", {"type": "int", "default": 1}))}),
        ("notes", {"type": "map", "values": ["null", "string"]}),
        namespace="com.shop",
        doc="An order.",
    ),
    record(
        "User",
        ("at", MILLIS),
        ("email", {"type": "string", "confluent:tags": ["PII"], "default": ""}),
        ("ip", {"type": ["null", {"type": "fixed", "name": "Ip", "size": 4}], "default": None}),
        ("device", [record("Phone", ("os", "string")), record("Browser", ("agent", {"type": "string", "pii": True}))]),
        namespace="com.shop",
        aliases=["Customer"],
    ),
    record(
        "Reading",
        ("at", MILLIS),
        ("value", ["double", "string", "boolean"]),
        ("day", {"type": "int", "logicalType": "date"}),
        ("raw", "bytes"),
        ("f", "float"),
        ("flag", {"type": "boolean", "default": False}),
        ("id", {"type": "fixed", "name": "Uuid", "size": 16, "logicalType": "uuid"}),
        ("tax", {"type": "fixed", "name": "Tax", "size": 8, "logicalType": "decimal", "precision": 12, "scale": 3}),
    ),
]
NAMES = [
    "",
    "a",
    "at",
    "x",
    "A",
    "a.b",
    "a.element",
    "notes.key",
    ".a",
    "a.",
    "a..b",
    "1",
    "a b",
    "a-b",
    "ü",
    "日本",
    "😀",
    "\x00",
    "\n",
    "\x1b[0m",
    "\ud800",
    "<a>",
    "<string>",
    "member0",
    "element",
    "key",
    "value",
    "_topic",
    "_Offset",
    "hour",
    "_key",
    "__fastavro_parsed",
    "__named_schemas",
    "a" * 300,
    "a" * 20_000,
    "null",
    "int",
    "string",
    "record",
    "enum",
    "Address",
    "com.shop.Address",
    "com.shop.Order",
    "Row",
    "../x",
    "a/b",
    "`",
    '"',
    "\\",
    "{name}",
    "%",
    "headrace_key",
    "headrace_frame.Head",
    "_hdr",
    "_end",
]
NUMBERS = [
    0,
    1,
    -1,
    2,
    38,
    39,
    77,
    64,
    65,
    127,
    128,
    255,
    2**31 - 1,
    2**31,
    -(2**31),
    2**63,
    -(2**63) - 1,
    10**9,
    10**18,
    10**400,
    0.5,
    1.0,
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    float("-inf"),
]
PRIMITIVES = ["null", "boolean", "int", "long", "float", "double", "bytes", "string"]
TYPES = [
    *PRIMITIVES,
    *PRIMITIVES,
    "record",
    "error",
    "enum",
    "fixed",
    "array",
    "map",
    "Address",
    "com.shop.Address",
    "none",
    "Order",
]
LOGICAL = [
    "date",
    "decimal",
    "uuid",
    "duration",
    "time-millis",
    "time-micros",
    "timestamp-millis",
    "timestamp-micros",
    "timestamp-nanos",
    "local-timestamp-millis",
    "local-timestamp-nanos",
    "timestamp-",
    "local-timestamp-days",
    "big-decimal",
    "none",
    "",
]
ATTRIBUTES = [
    "namespace",
    "aliases",
    "default",
    "doc",
    "order",
    "logicalType",
    "precision",
    "scale",
    "confluent:tags",
    "pii",
    "x",
    "__fastavro_parsed",
    "__named_schemas",
]
KEYS = ["type", "name", "fields", "items", "values", "symbols", "size", *ATTRIBUTES]
_OF_TYPES = {
    "type",
    "items",
    "values",
    "logicalType",
    "precision",
    "scale",
    "default",
    "aliases",
    "confluent:tags",
    "size",
}


def _part(rng: random.Random) -> Json:
    """Return a type, as a schema may have one anywhere."""
    return _copy(_part_of_constants(rng))


def _part_of_constants(rng: random.Random) -> Json:
    match rng.randrange(12):
        case 0:
            return record(
                rng.choice(["Inner", rng.choice(NAMES)]), (rng.choice(["v", rng.choice(NAMES)]), rng.choice(TYPES))
            )
        case 1:
            return {"type": "error", "name": "Failure", "fields": [{"name": "code", "type": "int"}]}
        case 2:
            return {"type": "enum", "name": "Sort", "symbols": rng.sample(NAMES, rng.randrange(5))}
        case 3:
            return {"type": "fixed", "name": "F", "size": rng.choice(NUMBERS)}
        case 4:
            return {"type": "array", "items": rng.choice([*TYPES, ADDRESS, {"type": "null"}])}
        case 5:
            return {"type": "map", "values": rng.choice([*TYPES, ADDRESS, []])}
        case 6:
            return rng.sample([*TYPES, ADDRESS, COLOURS, {"type": "array", "items": "int"}, ["int"]], rng.randrange(5))
        case 7:
            return {"type": rng.choice(["bytes", "string", {"type": "bytes"}]), "logicalType": "decimal"} | {
                "precision": rng.choice(NUMBERS),
                "scale": rng.choice(NUMBERS),
            }
        case 8:
            return {"type": rng.choice(TYPES), "logicalType": rng.choice([*LOGICAL, *_odd_values(rng)])}
        case 9:
            return {"type": rng.choice([*REAL, ADDRESS, *TYPES]), rng.choice(KEYS): rng.choice(_odd_values(rng))}
        case 10:
            return rng.choice(REAL)
        case _:
            return rng.choice(TYPES)


def _odd_values(rng: random.Random) -> list[Json]:
    return [
        None,
        True,
        False,
        {},
        [],
        "",
        [[]],
        [None],
        {"a": 1},
        ["a"],
        [["b"]],
        [5],
        rng.choice(NAMES),
        rng.choice(NUMBERS),
        rng.choice(TYPES),
        [rng.choice(NAMES)],
        "PII",
        ["PII"],
        ["none"],
        {"mask": 4},
        "hash",
        {"type": {}},
        [{"type": []}],
    ]


def random_json(rng: random.Random, depth: int = 3) -> Json:
    """Return any JSON."""
    if depth == 0 or rng.random() < 0.3:
        return rng.choice(_odd_values(rng))
    if rng.random() < 0.3:
        return [random_json(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {rng.choice([*KEYS, *NAMES]): random_json(rng, depth - 1) for _ in range(rng.randrange(5))}


Place = tuple[Json, Any]  # an object or array, and a key or position in it


def _places(part: Json) -> list[Place]:
    keys: list[Any] = list(part) if isinstance(part, dict) else list(range(len(part))) if isinstance(part, list) else []
    places = [(part, key) for key in keys]
    for key in keys:
        places += _places(part[key])
    return places


def _change(root: list[Json], rng: random.Random) -> None:
    """Change one part of a schema. `root`: a list of the schema alone, so that the whole is a part as well."""
    places = _places(root)
    types = [place for place in places if _is_of_type(*place)]
    if rng.random() < 0.8 and types:
        _change_type(*rng.choice(types), rng)
        return
    holder, key = rng.choice(places)
    part = holder[key]
    match rng.randrange(6):
        case 0 if holder is not root:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[rng.choice([*KEYS, *NAMES])] = holder.pop(key)
        case 2:
            other, place = rng.choice(places)
            holder[key] = _copy(other[place])
        case 3 if isinstance(part, list) and part:
            part += _copy(part) * rng.choice([1, 1, 30])
        case 4 if isinstance(part, str):
            holder[key] = rng.choice([*NAMES, *TYPES])
        case _:
            holder[key] = rng.choice([rng.choice(_odd_values(rng)), _part(rng), _deep(part, rng.choice([2, 20, 70]))])


def _is_of_type(holder: Json, key: Any) -> bool:
    """Return whether a place holds a type, or what describes one."""
    part = holder[key]
    if isinstance(holder, list):
        return isinstance(part, str) and part in TYPES
    is_kind = key == "type" and isinstance(part, str) and part not in PRIMITIVES
    return key in _OF_TYPES and not is_kind


def _change_type(holder: Json, key: Any, rng: random.Random) -> None:
    """Change a type, or what describes one, and leave the schema around it as it is."""
    part = holder[key]
    match rng.randrange(9):
        case 0 | 1:
            holder[key] = _part(rng)
        case 2 if isinstance(part, dict):
            part[rng.choice(ATTRIBUTES)] = rng.choice([*_odd_values(rng), rng.choice(LOGICAL)])
        case 3 if isinstance(holder, dict):
            holder[rng.choice(ATTRIBUTES)] = rng.choice([*_odd_values(rng), rng.choice(LOGICAL)])
        case 4:
            holder[key] = {"type": part, rng.choice(ATTRIBUTES): rng.choice([*_odd_values(rng), rng.choice(LOGICAL)])}
        case 5:
            holder[key] = [part, _copy(rng.choice(["null", "string", "long", ADDRESS]))]
        case 6 if isinstance(holder, dict) and "name" in holder:
            holder["name"] = rng.choice(NAMES)
        case 7:
            holder[key] = _deep(part, rng.choice([1, 2, 3, 20]))
        case _:
            holder[key] = rng.choice([*PRIMITIVES, rng.choice(_odd_values(rng))])


def _copy(part: Json) -> Json:
    return json.loads(json.dumps(part))


def _deep(part: Json, levels: int) -> Json:
    for level in range(levels):
        part = [{"type": "array", "items": part}, {"type": "map", "values": part}, {"type": part}, [part, "null"]][
            level % 4
        ]
    return part


def _spell(text: str, rng: random.Random) -> str:
    """Write a text otherwise: by what Java's parser takes, or so that it is none any more."""
    position = rng.randrange(len(text) + 1)
    ways: list[Callable[[], str]] = [
        lambda: "\ufeff" + text,
        lambda: "/* v1 { */ " + text,
        lambda: "// it's\n" + text + "\n// end",
        lambda: text.replace(":", ':/* " */', 3),
        lambda: text[:position],
        lambda: (
            text[:position]
            + rng.choice(["\ud800", "\x00", "é", '"', "\\", "[", "}", "//", "/*", " ", "NaN"])
            + text[position:]
        ),
        lambda: text + rng.choice([text, " x", ",", "/*"]),
        lambda: text.replace('"name"', '"name": "twice", "name"', 2),
        lambda: text.replace('"', "'"),
        lambda: "[" * rng.choice([10, 2_000, 100_000]) + text,
        lambda: text.replace("1", "1" * 5_000),
    ]
    return rng.choice(ways)()


def _large(rng: random.Random) -> Json:
    """Return a schema that is large in one respect."""
    some = [
        record("R", ("at", MILLIS), *((f"f{number}", "int") for number in range(rng.choice([500, 30_000])))),
        record("R", ("at", MILLIS), ("e", {"type": "enum", "name": "E", "symbols": [f"s{n}" for n in range(20_000)]})),
        record("R", ("at", MILLIS), ("u", [{"type": "fixed", "name": f"F{n}", "size": 1} for n in range(100)])),
        record(
            "R", ("at", MILLIS), ("f", {"type": "fixed", "name": "F", "size": rng.choice([10**8, 2**31 - 1, 10**12])})
        ),
        _doubling(rng.choice([5, 40])),
        record("R", ("at", MILLIS), ("a", {"type": "int", "default": _deep([1], 200)})),
        record("R", ("at", {**MILLIS, "default": 0, "aliases": [f"a{n}" for n in range(2_000)]})),
    ]
    return rng.choice(some)


def _doubling(levels: int) -> Json:
    """Return a record of records, each of which has two of the next."""
    inner: Json = record(f"R{levels}", ("x", "int"))
    for level in reversed(range(levels)):
        inner = record(f"R{level}", ("a", inner), ("b", f"R{level + 1}"))
    return record("R", ("at", MILLIS), ("r", inner))


def random_text(rng: random.Random) -> str:
    """Return a text: a real schema with some parts changed, mostly; else any JSON, a large schema, or no JSON."""
    kind = rng.randrange(200)
    if kind == 0:
        return json.dumps(_large(rng))
    if kind < 12:
        return json.dumps(random_json(rng), ensure_ascii=rng.random() < 0.5)
    if kind < 16:
        return "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0x3000)])) for _ in range(rng.randrange(60)))
    root = [_copy(rng.choice(REAL))]
    for _ in range(rng.choice([1, 1, 1, 1, 2, 3, 6])):
        _change(root, rng)
    text = json.dumps(root[0], ensure_ascii=rng.random() < 0.7)
    return _spell(text, rng) if rng.random() < 0.1 else text
