"""A protected branch of a union and one in the clear fill two members, and nothing of the clear one is lost."""

import json
import struct
from itertools import product
from typing import Any

import pytest

from headrace.writer.columns.schema_plan import RejectedSchema
from headrace.writer.columns.union_members import UnionMemberConflict, join_members
from headrace.writer.privacy.keyring import KeySource
from headrace.writer.privacy.policy import Policies
from tests.support.avro_records import logical
from tests.support.shared_columns import TAGS, Table, number_bytes, source, text_bytes, texts

__all__ = ["source"]

BESIDE = {"type": "record", "name": "shop.B", "fields": [{"name": "y", "type": "int"}]}
COLOR = {"type": "enum", "name": "shop.Color", "symbols": ["red", "green"]}
FIXED = {"type": "fixed", "name": "shop.Fixed", "size": 6}
NUMBER, OPEN = number_bytes(777), text_bytes("open", set())
# Type of a branch that is protected, and a value of it in binary.
PROTECTED = {
    "long": ("long", NUMBER), "int": ("int", NUMBER), "double": ("double", struct.pack("<d", 7.75)),
    "boolean": ("boolean", b"\1"), "fixed": (FIXED, b"secret"), "day": (logical("date", "int"), NUMBER),
    "enum": (COLOR | {"name": "shop.Kind", "symbols": ["secret", "other"]}, number_bytes(0)),
}  # fmt: skip
# Type of a branch in the clear, a value of it in binary, and its text in a row.
CLEAR = {"string": ("string", OPEN, "open"), "enum": (COLOR, number_bytes(1), "green")}
AROUND = {
    "alone": lambda kind: kind,
    "list": lambda kind: {"type": "array", "items": kind},
    "map": lambda kind: {"type": "map", "values": kind},
    "record": lambda kind: {"type": "record", "name": "shop.R", "fields": [{"name": "x", "type": kind}]},
}


def event(kind: Any) -> str:
    return json.dumps({"type": "record", "name": "shop.Event", "fields": [{"name": "a", "type": kind}]})


def inside(around: str, value: bytes) -> bytes:
    key = {"map": text_bytes("k", set())}.get(around, b"")
    return number_bytes(1) + key + value + number_bytes(0) if around in ("list", "map") else value


def written(table: Table, number: int, value: bytes) -> list[tuple[tuple[str, ...], str]]:
    (row,) = table.rows(number, [struct.pack(">bI", 0, number) + value])
    return list(texts(row))


ALONE = [(tag, one, clear, "alone") for tag, one, clear in product(["PII", "CARD", "NOTE"], PROTECTED, CLEAR)]
INSIDE = [("PII", "long", "string", around) for around in AROUND]


@pytest.mark.parametrize("first", ["protected", "clear", "at a start", "protected and gone"])
@pytest.mark.parametrize(("tag", "protected", "clear", "around"), [*ALONE, *INSIDE])
def test_a_protected_and_a_clear_branch_have_members_of_their_own(
    source: KeySource, tag: str, protected: str, clear: str, around: str, first: str
) -> None:
    kind, secret = PROTECTED[protected]
    words = {"confluent:tags": [tag]}
    branch = {**kind, **words} if isinstance(kind, dict) else {"type": kind, **words}
    open_kind, value, text = CLEAR[clear]
    schemas = {1: event(AROUND[around]([BESIDE, branch])), 2: event(AROUND[around]([BESIDE, open_kind]))}
    table = Table(source, Policies(tags=tuple(TAGS.items())), ())
    numbers = {"clear": [2, 1], "at a start": [1, 2]}.get(first, [1, 2])
    if first == "at a start":
        table.start(schemas)
    places = dict[int, tuple[str, ...]]()
    for number in numbers:
        if number == 2 and first == "protected and gone":
            table.start({})
        if number not in table.plan.schemas:
            table.meet(number, schemas[number])
        assert not isinstance(table.plan.schemas[number], RejectedSchema)
        found = written(table, number, inside(around, number_bytes(1) + (secret if number == 1 else value)))
        ((place, shown),) = [(place, shown) for place, shown in found if place[-1] != "key"]
        places[number] = place
        assert (shown == text) == (number == 2)
        assert shown not in ("secret", "777", "7.75", "true")
    assert places[1] != places[2]


@pytest.mark.parametrize("kinds", [["long", "string"], ["string", "long"], ["int", "string", "boolean"]])
def test_one_schema_may_have_both(source: KeySource, kinds: list[str]) -> None:
    branches = [one if one == "string" else {"type": one, "confluent:tags": ["PII"]} for one in kinds]
    table = Table(source, Policies(tags=tuple(TAGS.items())), ())
    table.meet(1, event([BESIDE, *branches]))
    ((place, shown),) = written(table, 1, number_bytes(1 + kinds.index("string")) + OPEN)
    assert (place, shown) == (("a", f"member{1 + kinds.index('string')}"), "open")


def test_a_branch_alone_fills_the_member_of_protected_ones(source: KeySource) -> None:
    table = Table(source, Policies(tags=tuple(TAGS.items())), ())
    table.meet(1, event(["null", BESIDE, "string"]))
    table.meet(2, event(["null", {"type": "long", "confluent:tags": ["CARD"]}]))
    ((place, shown),) = written(table, 2, number_bytes(1) + NUMBER)
    assert (place, shown) == (("a", "member2"), "****77")


def test_two_processes_that_give_one_member_to_two_branches_are_found() -> None:
    have = {"": {("a", "shop.A"): "member0", ("a", "string"): "member1"}}
    alias = {"": {("a", "shop.A"): "member0", ("a", "shop.Old"): "member0", ("a", "string"): "member1"}}
    assert join_members(have, alias) == alias
    assert join_members(alias, have) == alias
    assert join_members({}, have) == join_members(have, {}) == have
    with pytest.raises(UnionMemberConflict, match=r"column a\.member1 is that of another branch of its union by now"):
        join_members(have, {"": {("a", "shop.A"): "member0", ("a", "headrace.protected.long_text"): "member1"}})
