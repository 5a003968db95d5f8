"""The visitor of a schema yields each type once at each of its places, and ends where a record is in itself."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from hypothesis import given, strategies as st

from headrace.writer.avro.schema_text import parse_schema
from headrace.writer.avro.type_visitor import TypePart, iterate_types

_NAMES = ("shop.A", "shop.B", "other.C")
# Types as a test draws them: `shop.A` stands for the record of that name.
_LEAVES = st.sampled_from(["null", "long", "string", *_NAMES])
_TYPES = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("array"), inner),
        st.tuples(st.just("map"), inner),
        st.tuples(st.just("union"), st.lists(_LEAVES, max_size=4, unique=True)),
    ),
    max_leaves=3,
)
_RECORDS = st.fixed_dictionaries({name: st.lists(_TYPES, max_size=3) for name in _NAMES})
_SEEDS = st.randoms(use_true_random=False)


def _document(drawn: Any) -> Any:
    """Return a drawn type as Avro writes it, its records by name."""
    match drawn:
        case ("array", items):
            return {"type": "array", "items": _document(items)}
        case ("map", values):
            return {"type": "map", "values": _document(values)}
        case ("union", branches):
            return list(branches)
        case name:
            return name


def _definition(name: str, types: list[Any]) -> Mapping[str, Any]:
    fields = [{"name": f"f{number}", "type": _document(drawn)} for number, drawn in enumerate(types)]
    return {"type": "record", "name": name, "fields": fields}


def _expected_parts(records: Mapping[str, list[Any]], drawn: Any, path: str, around: tuple[str, ...]) -> Iterator[Any]:
    """Yield path, kind of type, and records around of a drawn type and all inside, straight from what was drawn."""
    match drawn:
        case ("array", items):
            yield path, "array", around
            yield from _expected_parts(records, items, f"{path}/element", around)
        case ("map", values):
            yield path, "map", around
            yield from _expected_parts(records, values, f"{path}/value", around)
        case ("union", branches):
            yield path, "union", around
            members = [branch for branch in branches if branch != "null"]
            for branch in branches:
                is_member = branch != "null" and len(members) > 1
                branch_path = f"{path}/member{members.index(branch)}" if is_member else path
                yield from _expected_parts(records, branch, branch_path, around)
        case name if name in records:
            yield path, name, around
            if name not in around:
                for number, inner in enumerate(records[name]):
                    yield from _expected_parts(records, inner, f"{path}/f{number}", (*around, name))
        case primitive:
            yield path, primitive, around


def _facts(part: TypePart) -> tuple[str, str, tuple[str, ...]]:
    kind = part.schema
    if isinstance(kind, list):
        kind = "union"
    if isinstance(kind, dict):
        kind = kind.get("name", kind["type"])
    return "".join(f"/{step}" for step in part.column_path), kind, part.records


@given(_RECORDS, _SEEDS)
def test_each_type_is_visited_once_at_each_of_its_places_in_any_order_of_definitions(
    records: Mapping[str, list[Any]], random: Any
) -> None:
    names = list(_NAMES)
    random.shuffle(names)
    fields = [{"name": name.replace(".", "_"), "type": _definition(name, records[name]), "doc": name} for name in names]
    form = parse_schema(json.dumps({"type": "record", "name": "Root", "fields": fields}))
    expected = [("", "Root", ())]
    for name in names:
        expected += _expected_parts(records, name, f"/{name.replace('.', '_')}", ("Root",))
    assert [_facts(part) for part in iterate_types(form, form.root)] == expected


@given(_RECORDS)
def test_a_part_has_the_innermost_field_around_it_and_its_depth(records: Mapping[str, list[Any]]) -> None:
    fields = [{"name": name.replace(".", "_"), "type": _definition(name, records[name])} for name in _NAMES]
    form = parse_schema(json.dumps({"type": "record", "name": "Root", "fields": fields}))
    root, *parts = iterate_types(form, form.root)
    assert root == TypePart(form.root)
    for part in parts:
        field_names = [step.name for step in part.steps if step.kind == "field"]
        assert part.field is not None
        assert part.field["name"] == field_names[-1]
        assert len(field_names) == len(part.records)
        assert part.depth >= len(part.steps)
        innermost = form.named[part.records[-1]]
        assert part.field in innermost["fields"]


@given(_RECORDS)
def test_only_a_record_around_itself_is_recursive(records: Mapping[str, list[Any]]) -> None:
    definitions = {"type": "record", "name": "Root", "fields": []}
    for name in _NAMES:
        definitions["fields"].append({"name": name.replace(".", "_"), "type": _definition(name, records[name])})
    form = parse_schema(json.dumps(definitions))
    for part in iterate_types(form, form.root):
        name = part.schema.get("name") if isinstance(part.schema, dict) else None
        assert part.is_recursive == (name is not None and name in part.records)
