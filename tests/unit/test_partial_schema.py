"""A schema that is none, or has too many paths, says by its tags what is protected in the others of its record type."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.avro.partial_schema import read_records
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan
from headrace.writer.privacy.policy import Policies
from headrace.writer.privacy.protected_schema import Privacy
from tests.support.avro_records import record
from tests.support.example_counts import share
from tests.support.tagged_schemas import KEYS, nest, places, tagged

X = {"name": "x", "type": "string", "pii": "hash"}
CARD = record("Card", ("number", "string"))
TAGGED_CARD = CARD | {"fields": [{"name": "number", "type": "string", "pii": "hash"}]}


def event(*fields: Any, **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": "Event", "fields": [{"name": "kept", "type": "int"}, *fields], **more}


def nested(kind: Any) -> dict[str, Any]:
    return event({"name": "card", "type": kind})


OTHER_CARD = CARD | {"fields": [{"name": "number", "type": "long"}]}
TWICE = [{"name": "a", "type": CARD}, {"name": "b", "type": OTHER_CARD}]
UNREADABLE = {
    "a type in itself": event(X, {"name": "next", "type": ["null", "Event"]}),
    "types in each other": event(
        X, {"name": "a", "type": record("A", ("b", record("B", ("a", ["null", "A"]))))},
    ),
    "a type twice": event(X, *TWICE),
    "an unknown name": event(X, {"name": "a", "type": "shop.Nowhere"}),
    "no type": event(X, {"name": "a"}),
    "a number as type": event(X, {"name": "a", "type": 7}),
    "an array of nothing": event(X, {"name": "a", "type": {"type": "array"}}),
    "a union without branches": event(X, {"name": "a", "type": []}),
    "an enum without symbols": event(X, {"name": "a", "type": {"type": "enum", "name": "E", "symbols": []}}),
    "a fixed without a name": event(X, {"name": "a", "type": {"type": "fixed", "size": 3}}),
    "a field without a name": event({"type": "int"}, X),
    "fields that are none": event(7, X, "y"),
    "aliases that are none": event(X, {"name": "a", "type": "int", "aliases": 7}, aliases=[3]),
    "a name and aliases of what has none": event(
        X, {"name": "a", "type": ["int", {"type": "array", "items": "Nowhere", "name": "a", "aliases": 7}]}
    ),
    "a union at the root": ["null", event(X)],
    "an unknown tag beside it": event(X, {"name": "a", "type": "A", "pii": "WHAT"}),
}  # fmt: skip


def told(texts: list[str], first: str) -> SchemaPlan:
    """Return a plan that met these schemas; the last one is sound."""
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(attributes=("pii",)), KEYS))
    numbers = range(len(texts)) if first == "unreadable" else range(len(texts) - 1, -1, -1)
    for number in numbers:
        plan = plan.extend(number, texts[number])
    return plan


@pytest.mark.parametrize("first", ["unreadable", "sound"])
@pytest.mark.parametrize("unreadable", list(UNREADABLE))
def test_a_schema_that_is_none_says_what_is_protected(unreadable: str, first: str) -> None:
    plan = told([json.dumps(UNREADABLE[unreadable]), json.dumps(tagged("string"))], first)
    assert isinstance(plan.schemas[0], RejectedSchema)
    assert places(plan.schemas[1]) == {"x": "hash"}


@pytest.mark.parametrize("first", ["unreadable", "sound"])
@pytest.mark.parametrize(
    ("unreadable", "sound", "place"),
    [
        (nested(TAGGED_CARD), nested(CARD), "card.number"),
        (nested(["null", TAGGED_CARD]), nested(["int", CARD]), "card.member1.number"),
        (nested(["int", TAGGED_CARD]), nested(["int", "boolean", CARD]), "card.member2.number"),
        (nested({"type": "array", "items": TAGGED_CARD}), nested({"type": "array", "items": CARD}),
         "card.element.number"),
        (nested({"type": "map", "values": TAGGED_CARD}), nested({"type": "map", "values": CARD}), "card.value.number"),
        (nested({"type": TAGGED_CARD}), nested(CARD), "card.number"),
        (event({"name": "old", "type": TAGGED_CARD, "aliases": ["card"]}), nested(CARD), "card.number"),
    ],
)  # fmt: skip
def test_its_tags_are_found_at_every_depth(unreadable: Any, sound: Any, place: str, first: str) -> None:
    broken = unreadable | {"fields": [*unreadable["fields"], {"name": "bad", "type": "Nowhere"}]}
    plan = told([json.dumps(broken), json.dumps(sound)], first)
    assert places(plan.schemas[1]) == {place: "hash"}


def test_a_type_in_itself_is_read_three_times() -> None:
    node = record("Node", ("next", ["null", "Node"])) | {"fields": [X, {"name": "next", "type": ["null", "Node"]}]}
    inner = record("Inner", ("x", "string"))
    sound = event({"name": "node", "type": record("Node", ("x", "string"), ("next", inner))})
    plan = told([json.dumps(event({"name": "node", "type": node})), json.dumps(sound)], "unreadable")
    assert places(plan.schemas[1]) == {"node.x": "hash", "node.next.x": "hash"}


@pytest.mark.parametrize("first", ["unreadable", "sound"])
def test_a_schema_with_too_many_paths_says_what_is_protected_by_own_names(first: str) -> None:
    deep = nest(40, aliases=[f"y{number}" for number in range(9)])
    broad = deep | {"name": "Event", "fields": [*deep["fields"], {"name": "z", "type": "string", "pii": "hash"}]}
    sound = event({"name": "z", "type": "string"})
    plan = told([json.dumps(broad), json.dumps(sound)], first)
    assert isinstance(plan.schemas[0], RejectedSchema)
    assert "more than 100,000 paths" in plan.schemas[0].reason
    assert places(plan.schemas[1]) == {"z": "hash"}


@pytest.mark.parametrize("alias", ["", ".", "a."])
@pytest.mark.parametrize("beside", [{"name": "sound", "type": "int"}, {"name": "bad", "type": "Nowhere"}])
def test_an_alias_that_is_no_name_says_nothing_of_the_columns_of_keys(alias: str, beside: Any) -> None:
    plan = told([json.dumps(event(X, beside, aliases=[alias])), json.dumps(tagged("string"))], "unreadable")
    assert plan.privacy is not None
    assert plan.privacy.tagged.keys() == {"Event"}


def test_a_namespace_that_is_null_is_the_one_around() -> None:
    inner = {"type": "record", "name": "Inner", "namespace": None, "fields": [X]}
    broken = event({"name": "a", "type": inner}, {"name": "bad", "type": "Nowhere"}, namespace="n")
    (found,) = read_records(broken)
    assert found.root["name"] == "n.Event"
    assert found.root["fields"][1]["type"]["name"] == "n.Inner"


def test_types_that_unfold_without_end_are_read_as_far_as_a_machine_holds_them() -> None:
    names = [f"R{number}" for number in range(30)]
    fields = [{"name": name, "type": name} for name in names]
    wide = event(X, *({"name": name, "type": {"type": "record", "name": name, "fields": fields}} for name in names))
    (found,) = read_records(wide)
    assert found.root["fields"][1]["pii"] == "hash"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["record", "array", "map", "int", "Event", "pii", ""]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "name", "fields", "items", "values", "aliases", "namespace", "symbols", "pii"]), inner,
        max_size=6,
    ),
    max_leaves=25,
)  # fmt: skip


@given(JSON, st.booleans())
@settings(max_examples=share(300))
def test_the_sound_schema_is_protected_beside_any_json(part: Any, is_text: bool) -> None:
    schema = event(X, {"name": "broken", "type": part}, {"name": "also", "type": "Nowhere", "aliases": part})
    text = json.dumps(schema) + ("]" if is_text else "")
    plan = told([text, json.dumps(tagged("string"))], "unreadable")
    assert isinstance(plan.schemas[0], RejectedSchema)
    assert places(plan.schemas[1]) == ({} if is_text else {"x": "hash"})
