"""Branches of unions keep their members when their types get other names: by aliases, and by their short names."""

import itertools
import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan
from tests.support.example_counts import share

EMPTY = SchemaPlan(pa.schema([]))


def record(name: str, member: str = "x", kind: Any = "int", **more: Any) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": member, "type": kind}], **more}


def enum(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": ["S"], **more}


def fixed(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "fixed", "name": name, "size": 2, **more}


def text_of(union: Any, **more: Any) -> str:
    return json.dumps({"type": "record", "name": "Event", "fields": [{"name": "u", "type": union}], **more})


def members_of(plan: SchemaPlan, schema_id: int) -> list[str]:
    """Return the members of the column that the branches of a schema fill, in the order of its branches."""
    known = plan.schemas[schema_id]
    assert not isinstance(known, RejectedSchema), known.reason
    place = next((place for place in ((*PLACE[:n],) for n in range(1, 4)) if place in known.cast_rules.sources), None)
    column = plan.columns.field("u").type
    if place is None:
        return [part.name for part in column]
    sources = {source: member for member, source in known.cast_rules.sources[place].items()}
    return [sources[source] for source in sorted(sources)]


PLACE = ("u", "element", "value")
A, B = record("v1.A"), record("v1.B", "y")
# Branches of the first version, of the second, and the members of the second in the order of its branches.
CASES: dict[str, tuple[list[Any], list[Any], list[int]]] = {
    "aliases in full": ([A, B], [record("v2.A", aliases=["v1.A"]), record("v2.B", "y", aliases=["v1.B"])], [0, 1]),
    "aliases in another order": (
        [A, B], [record("v2.B", "y", aliases=["v1.B"]), record("v2.A", aliases=["v1.A"])], [1, 0],
    ),
    "aliases of the type's own namespace": (
        [A, B], [record("v1.B2", "y", aliases=["B"]), record("v1.A2", aliases=["A"])], [1, 0],
    ),
    "an alias that trades names": (
        [A, B], [record("v2.B", aliases=["v1.A"]), record("v2.A", "y", aliases=["v1.B"])], [0, 1],
    ),
    "another namespace": ([A, B], [record("v2.B", "y"), record("v2.A")], [1, 0]),
    "no namespace": ([A, B], [record("B", "y"), record("A")], [1, 0]),
    "a type of a short name that does not fit": ([A, B], [record("v2.A", "x", "string"), B], [2, 1]),
    "a short name that two have": (
        [record("a.X"), record("b.X", "y")], [record("c.X"), record("b.X", "y")], [2, 1],
    ),
    "one that is known in full before its short name": ([A, B], [record("v2.A"), A], [2, 0]),
    "an enum": ([enum("v1.E"), "int"], ["int", enum("v2.F", aliases=["v1.E"])], [1, 0]),
    "an enum of another namespace": ([enum("v1.E"), "int"], ["int", enum("v2.E")], [1, 0]),
    "a fixed": ([fixed("v1.F"), "int"], ["int", fixed("v2.G", aliases=["v1.F"])], [1, 0]),
    "an enum that has the short name of a fixed": ([fixed("v1.F"), "int"], ["int", enum("v2.F")], [1, 2]),
    "two aliases of one": ([A, B], [record("v2.C", aliases=["v1.A"]), record("v2.D", aliases=["v1.A"])], [0, 2]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_branch_of_another_name_keeps_its_member(case: str) -> None:
    first, second, members = CASES[case]
    plan = EMPTY.extend(1, text_of(["null", *first])).extend(2, text_of(["null", *second]))
    assert members_of(plan, 2) == [f"member{number}" for number in members]
    assert members_of(plan, 1)[: len(first)] == [f"member{number}" for number in range(len(first))]


@pytest.mark.parametrize(
    "case", ["aliases in full", "aliases in another order", "an alias that trades names", "an enum"]
)
def test_the_aliases_of_a_newer_schema_that_comes_first_name_the_members_of_an_older_one(case: str) -> None:
    first, second, members = CASES[case]
    plan = EMPTY.extend(2, text_of(["null", *second])).extend(1, text_of(["null", *first]))
    assert len(plan.columns.field("u").type) == len(first)
    assert members_of(plan, 1) == [f"member{members.index(number)}" for number in range(len(first))]


def test_a_namespace_is_inherited_by_names_and_aliases() -> None:
    old = text_of(["null", record("A"), record("B", "y")], namespace="v1")
    new = text_of(["null", record("B2", "y", aliases=["v1.B"]), record("v1.A")], namespace="v2")
    inner = text_of(["null", record("v1.A"), record("B3", "y", aliases=["B2"])], namespace="v2")
    plan = EMPTY.extend(1, old).extend(2, new).extend(3, inner)
    assert members_of(plan, 2) == ["member1", "member0"]
    assert members_of(plan, 3) == ["member0", "member1"]
    assert len(plan.columns.field("u").type) == 2


@pytest.mark.parametrize("around", ["array", "map"])
def test_a_union_in_a_list_or_map_goes_by_the_same_names(around: str) -> None:
    part = "items" if around == "array" else "values"
    old = text_of({"type": around, part: ["null", A, B]})
    new = text_of({"type": around, part: ["null", record("v2.B", "y", aliases=["v1.B"]), record("v2.A")]})
    plan = EMPTY.extend(1, old).extend(2, new)
    known = plan.schemas[2]
    assert not isinstance(known, RejectedSchema)
    step = "element" if around == "array" else "value"
    assert known.cast_rules.sources["u", step] == {"member0": "member1", "member1": "member0"}


def test_a_record_alone_fills_the_member_that_its_alias_names() -> None:
    plan = EMPTY.extend(1, text_of(["null", A, B])).extend(2, text_of(["null", record("v2.B2", "y", aliases=["v1.B"])]))
    known = plan.schemas[2]
    assert not isinstance(known, RejectedSchema)
    assert known.cast_rules.union_members == {("u",): "member1"}


@settings(max_examples=share(100))
@given(
    st.permutations(range(3)), st.permutations(range(3)), st.permutations(range(3)),
    st.sampled_from([(0, 1, 2), (2, 1, 0), (1, 0, 2), (1, 2, 0)]),
)  # fmt: skip
def test_a_chain_of_names_is_one_member_in_each_order_in_which_each_schema_names_one_before(
    first: list[int], second: list[int], third: list[int], order: tuple[int, ...]
) -> None:
    """Three branches of three fields, each renamed in each version, in any order of the branches."""
    versions = [
        [record(f"v{version}.N{version}{n}", f"f{n}", aliases=[f"v{version - 1}.N{version - 1}{n}"]) for n in branches]
        for version, branches in enumerate([first, second, third])
    ]
    plan = EMPTY
    for version in order:
        plan = plan.extend(version, text_of(["null", *versions[version]]))
    fields = [part.type.field(0).name for part in plan.columns.field("u").type]
    assert len(fields) == 3
    for version, branches in enumerate([first, second, third]):
        assert [fields[int(name[-1])] for name in members_of(plan, version)] == [f"f{n}" for n in branches]


def test_all_that_starts_from_the_same_schemas_finds_the_same_members() -> None:
    """A start works the names out anew from the schemas, with the columns that the table has."""
    texts = [text_of(["null", *first]) for first, _, _ in CASES.values()]
    for text, (_, second, members) in zip(texts, CASES.values(), strict=True):
        before = EMPTY.extend(1, text).extend(2, text_of(["null", *second]))
        again = SchemaPlan(before.columns).extend(1, text).extend(2, text_of(["null", *second]))
        assert again.columns == before.columns
        assert members_of(again, 2) == [f"member{number}" for number in members]
    assert len(set(itertools.chain(texts))) > 1


def test_unions_in_unions_are_matched_in_time_that_grows_with_their_number() -> None:
    """Each level of another namespace is tried before it is taken, and so is what is inside it."""

    def nested(namespace: str) -> Any:
        kind: Any = "int"
        for level in range(19, 0, -1):
            kind = ["null", "string", record(f"{namespace}.Level{level}", "u", kind)]
        return kind

    first = EMPTY.extend(1, text_of(nested("v1")))
    both = first.extend(2, text_of(nested("v2")))
    assert not isinstance(both.schemas[2], RejectedSchema)
    assert both.columns == first.columns
