"""JSON values for decoders: sound ones, odd ones, and damaged ones."""

import json
import random
from typing import Any

FLAT: dict[str, Any] = {
    "id": "long", "n": "int", "f": "float", "d": "double", "b": "boolean", "s": "string", "bin": "binary",
    "day": "date", "at": "timestamp", "ms": "timestamp(ms)", "sec": "timestamp(s)", "ns": "timestamp(ns)",
    "price": "decimal(10, 2)", "user": {"name": "string", "age": "int", "deep": {"x": "long"}},
    "items": [{"sku": "string", "price": "double", "tags": ["string"]}], "tags": ["string"],
}  # fmt: skip
WITH_SLICES: dict[str, Any] = {
    **FLAT,
    "counts": {"*": "long"},
    "names": {"*": "string"},
    "payload": "json",
    "users": {"*": {"a": "long"}},
}
# Each alone: what is no JSON, what does not fit, what a decoder may take for something else.
ODD = [
    b"", b" ", b"null", b"[1]", b'"x"', b"{}{}", b"{} {}", b'{"id":1', b'{"id":"x"}', b'{"id":1.0}', b'{"id":1.5}',
    b'{"id":1e3}', b'{"id":-0}', b'{"id":01}', b'{"id":true}', b'{"id":9223372036854775808}', b'{"n":2147483648}',
    b'{"id":1e999999999}', b'{"id":1,"id":2}', b'{"z":1,"z":2}', b'{"z":1,"\\u007a":2}', b'{"d":NaN}',
    b'{"d":Infinity}', b'{"d":1e400}', b'{"f":3.5e38}', b'{"f":0.1000000014901161193847656250001}',
    b'{"s":"\\ud800"}', b'{"s":"\x01"}', b'{"s":1}', b'{"id":1,}', b"\xff", b'{"zz":"\xff"}', b'{"at":"soon"}',
    b'{"at":5}', b'{"at":"0000-01-01T00:00:00Z"}', b'{"at":"2026-02-30T00:00:00Z"}', b'{"at":"2026-11-20T05:37:30"}',
    b'{"at":"2026-11-20T05:37:30.123456789Z"}', b'{"ms":1.5}', b'{"ms":1e30}', b'{"ms":9223372036854775807}',
    b'{"sec":"1"}', b'{"sec":-1.5}', b'{"ns":-1}', b'{"price":1.234}', b'{"price":"abc"}', b'{"price":1e2}',
    b'{"price":"+1.5"}', b'{"price":" 1"}', b'{"price":123456789}', b'{"price":1e-39}',
    b'{"price":1e-999999999}', b'{"price":"1\\u0065-99"}',
    b'{"id":1e99999999999999999999}', b'{"ms":1e-99999999999999999999}', b'{"bin":"!!"}', b'{"bin":"QQ"}',
    b'{"day":"2026-13-01"}', b'{"day":"0000-01-01"}', b'{"user":[]}', b'{"user":"x"}', b'{"user":{"age":"x"}}',
    b'{"user":{"deep":{"x":"1"}}}', b'{"user":{"a":1,"a":2}}', b'{"user":null,"user":null}', b'{"items":{}}',
    b'{"items":[{"price":"x"}]}', b'{"items":[{"q":1,"q":2}]}', b'{"items":[[]]}', b'{"tags":["a",5]}', b'{"b":1}',
    b'{"i":1},"v":{"i":2}', b'{"id":1},"x":2', b'{"id":1}}', b'{"counts":{"a":1.5}}', b'{"counts":{"a":1,"a":2}}',
    b'{"counts":{"a":1,"\\u0061":2}}', b'{"counts":{"a" :1,"a" :2}}', b'{"counts":[]}', b'{"users":{"k":{"a":"x"}}}',
    b'{"payload":NaN}', b'{"payload":{"a":1,"a":2}}', b'{"payload":[1.50, 1e5]}', b"\xef\xbb\xbf{}", b'{"id":1} ',
    b'\n{"id":3}\n', b'{"a":' + b"[" * 2000 + b"]" * 2000 + b"}", b'{"payload":' + b"[" * 2000 + b"]" * 2000 + b"}",
]  # fmt: skip


def sound_value(rng: random.Random, *, with_slices: bool, others: float) -> bytes:
    """A value that fits the columns. `others`: the share of objects with members that have none."""
    members: dict[str, Any] = {
        "id": rng.randrange(-(2**63), 2**63),
        "n": rng.randrange(-(2**31), 2**31),
        "f": rng.choice([0.1, 1.5, -2, 3e38]),
        "d": rng.choice([0.1, 1e300, 5, -0.0]),
        "b": rng.random() < 0.5,
        "s": rng.choice(["x", "ü\n", '"q\\', "\u2028", ""]),
        "bin": "AQI=",
        "day": "2026-11-20",
        "at": rng.choice(["2026-11-20T05:37:30Z", "2026-11-20T05:37:30.1234567+01:00", "2026-11-20"]),
        "ms": rng.choice([1700000000123, -5]),
        "sec": rng.choice([1700000000.123457, 17]),
        "ns": 1700000000123456789,
        "price": rng.choice([1.25, 3, "4.50"]),
        "user": rng.choice([None, {"name": "a", "age": 3, "deep": {"x": 1}}, {"deep": None}, {}]),
        "items": rng.choice([None, [], [{"sku": "a", "price": 1.5, "tags": ["q", None]}, None, {}]]),
        "tags": ["a", None],
    }
    if with_slices:
        members |= {
            "counts": rng.choice([None, {}, {"a": 1, "b": None}]),
            "names": rng.choice([None, {}, {"a": "x", "b": '":'}]),
            "payload": rng.choice([None, 1, {"a": [1.50]}, "x"]),
            "users": rng.choice([{"k": {"a": 1}}, {"k": None}, {"k": {"a": 1, "u": 2}}]),
        }
    for name in list(members):
        if rng.random() < 0.1:
            del members[name]
        elif rng.random() < 0.05:
            members[name] = None
    if rng.random() < others:
        members[rng.choice(["new", "other"])] = rng.choice([1, [1, {"z": 1.0}], None, "t"])
    if rng.random() < others and isinstance(members.get("user"), dict):
        members["user"] = {**members["user"], "zip": "1"}
    if rng.random() < others and members.get("items"):
        members["items"] = [{**members["items"][0], "zz": [1]}, *members["items"][1:]]
    separators = rng.choice([(",", ":"), (", ", ": ")])
    return json.dumps(members, ensure_ascii=rng.random() < 0.5, separators=separators).encode()


def damage(value: bytes, rng: random.Random) -> bytes:
    """The value with a cut, and bytes changed, put in or taken out."""
    changed = bytearray(value)
    for _ in range(rng.randrange(1, 3)):
        if not changed:
            break
        position = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                del changed[position:]
            case 1:
                changed[position] = rng.randrange(256)
            case 2:
                changed[position:position] = bytes([rng.choice(b'{}[],:"0-.e\\ ')])
            case 3:
                del changed[position]
    return bytes(changed)
