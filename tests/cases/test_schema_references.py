"""What a schema's references become: as Java's parser resolves them, however they are named, nested and shared."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from fastavro.schema import to_parsing_canonical_form
from hypothesis import given, strategies as st

from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.privacy.keyring import KeyringPlace, KeySource
from headrace.writer.privacy.policy import Action, Policies
from headrace.writer.privacy.protected_schema import Privacy
from headrace.writer.schemas import registry_client
from headrace.writer.schemas.references import Reference, RegisteredSchema, inline_references
from headrace.writer.schemas.registry import ConfluentRegistry, RegistryUnreachable, SchemaNotFound
from tests.servers.confluent_api import ConfluentApi, reference
from tests.servers.scripted import serve_script


def record(name: str, /, **fields: Any) -> dict[str, Any]:
    types = [{"name": field, "type": kind} for field, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": "com.x", "fields": types}


@dataclass(frozen=True)
class Served:
    """A registry, and what it has."""

    api: ConfluentApi
    registry: ConfluentRegistry

    def admit(self, schema_id: int) -> WriterSchema | RejectedSchema:
        return SchemaPlan(pa.schema([])).extend(schema_id, self.registry.schema(schema_id)).schemas[schema_id]


@pytest.fixture
def served() -> Iterator[Served]:
    api = ConfluentApi()
    with serve_script(api) as server:
        yield Served(api, ConfluentRegistry(server.url))


@pytest.fixture
def shop(served: Served) -> Served:
    """Addresses, which buyers and sellers share, and a house with a type inside it."""
    api = served.api
    api.add("address", record("Address", street="string"))
    api.add("buyer", record("Buyer", a="com.x.Address"), [reference("com.x.Address", "address")])
    api.add("seller", record("Seller", a="Address"), [reference("com.x.Address", "address")])
    api.add("house", record("House", street=record("Street", n="string")))
    return served


CASES: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "two references share a third": (
        record("Order", b="com.x.Buyer", s="com.x.Seller"),
        [reference("com.x.Buyer", "buyer"), reference("com.x.Seller", "seller")],
    ),
    "a reference, and what it refers to": (
        record("Order", b="com.x.Buyer", d="com.x.Address"),
        [reference("com.x.Buyer", "buyer"), reference("com.x.Address", "address")],
    ),
    "what a reference refers to, without a reference of its own": (
        record("Order", d="com.x.Address", b="com.x.Buyer"), [reference("com.x.Buyer", "buyer")],
    ),
    "the short name": (record("Order", d="Address"), [reference("com.x.Address", "address")]),
    "a free name of the reference": (record("Order", d="com.x.Address"), [reference("a.avsc", "address")]),
    "one version under two names": (
        record("Order", d="Address"), [reference("a.avsc", "address"), reference("b.avsc", "address")],
    ),
    "an inner type, used before the type around it": (
        record("Order", s="com.x.Street", d="com.x.House"), [reference("com.x.House", "house")],
    ),
    "an inner type alone": (record("Order", s=["null", "Street"]), [reference("com.x.House", "house")]),
    "inside arrays, maps and unions": (
        record(
            "Order", l={"type": "array", "items": "Address"}, m={"type": "map", "values": ["null", "com.x.Address"]},
            n=[{"type": "Address"}, "null"],
        ),
        [reference("com.x.Address", "address")],
    ),
    "a type that the schema defines as its reference does": (
        record("Order", d=record("Address", street="string"), b="Buyer"), [reference("com.x.Buyer", "buyer")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_reference_that_java_s_parser_resolves_is_resolved(shop: Served, case: str) -> None:
    schema, references = CASES[case]
    known = shop.admit(shop.api.add("order-value", schema, references))
    assert isinstance(known, WriterSchema), known
    assert list(known.columns) == [field["name"] for field in schema["fields"]]
    assert shop.registry.topic_schemas("order") == {5: known.text}


def test_a_name_that_no_reference_brings_is_a_reason(shop: Served) -> None:
    known = shop.admit(shop.api.add("order-value", record("Order", d="Lane"), [reference("com.x.Address", "address")]))
    assert isinstance(known, RejectedSchema)
    assert "Lane" in known.reason


@pytest.mark.parametrize("within", ["record", "array", "union"])
def test_a_word_beside_a_name_is_not_lost(shop: Served, within: str) -> None:
    """A tag there may be what protects the values."""
    tagged = {"type": "com.x.Address", "confluent:tags": ["PII"]}
    kind = {"record": tagged, "array": {"type": "array", "items": tagged}, "union": ["null", tagged]}[within]
    schema_id = shop.api.add("order", record("Order", n="int", a=kind), [reference("com.x.Address", "address")])
    policies = Policies(tags=(("PII", Action("drop")),))
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(policies, KeySource(KeyringPlace())))
    admitted = plan.extend(1, shop.registry.schema(schema_id)).schemas[1]
    assert isinstance(admitted, WriterSchema)
    assert set(admitted.columns) == {"n"}


def test_a_type_with_two_meanings_is_a_reason_that_names_it(shop: Served) -> None:
    shop.api.add("address", record("Address", street="int"))
    references = [reference("v1.avsc", "address", 1), reference("v2.avsc", "address", 2)]
    known = shop.admit(shop.api.add("order-value", record("Order", d="Address"), references))
    assert isinstance(known, RejectedSchema)
    assert "com.x.Address" in known.reason


def test_of_two_versions_under_one_name_the_first_counts_as_for_confluent_s_parser(shop: Served) -> None:
    shop.api.add("address", record("Address", street="string", city="string"))
    shop.api.add("agent", record("Agent", a="Address"), [reference("com.x.Address", "address", 2)])
    references = [reference("com.x.Buyer", "buyer"), reference("com.x.Agent", "agent")]
    text = shop.registry.schema(shop.api.add("order-value", record("Order", g="Agent", b="Buyer"), references))
    assert json.loads(text)["fields"][0]["type"]["fields"][0]["type"]["fields"] == [
        {"name": "street", "type": "string"}
    ]


def test_a_softly_deleted_version_is_still_referred_to(shop: Served) -> None:
    shop.api.add("order-value", record("Order", b="com.x.Buyer"), [reference("com.x.Buyer", "buyer")])
    shop.api.soft_deleted |= {("buyer", 1), ("address", 1)}
    assert isinstance(shop.admit(5), WriterSchema)
    assert list(shop.registry.topic_schemas("order")) == [5]
    assert shop.registry.topic_schemas("buyer") == {}, "a subject's own versions are those that are not deleted"


def test_a_missing_part_is_named_and_hides_no_other_version(shop: Served, caplog: pytest.LogCaptureFixture) -> None:
    shop.api.add("order-value", record("Order", b="com.x.Buyer"), [reference("com.x.Buyer", "buyer")])
    shop.api.add("order-value", record("Order", x="long"))
    shop.api.gone.add(("address", 1))
    with pytest.raises(SchemaNotFound, match=r"schema id 5 refers to version 1 of subject 'address', which is not in"):
        shop.registry.schema(5)
    assert list(shop.registry.topic_schemas("order")) == [6]
    assert "version 1 of subject 'address'" in caplog.text


def test_versions_are_read_side_by_side_and_each_part_once(shop: Served) -> None:
    for _ in range(40):
        shop.api.add("order-value", record("Order", b="com.x.Buyer"), [reference("com.x.Buyer", "buyer")])
    shop.api.delay_s = 0.01
    shop.api.paths.clear()
    assert list(shop.registry.topic_schemas("order")) == [*range(5, 45)]
    assert 2 <= shop.api.most_at_once <= 8
    assert len(shop.api.paths) <= 2 + 40 + 2 * 8, "what all refer to is read a few times at most"


def test_a_registry_that_asks_for_patience_gets_it(
    served: Served, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_client, "PROGRESS_S", 0.5)
    caplog.set_level("INFO", "headrace")
    for number in range(12):
        served.api.add("order-value", record(f"Order{number}", x="long"))
    served.api.rate = 5
    assert list(served.registry.topic_schemas("order")) == [*range(1, 13)]
    assert served.api.refused >= 2, "13 requests, 5 a second"
    assert "schemas_requested" in caplog.text


def test_a_registry_that_refuses_for_longer_holds(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.api.add("order-value", record("Order", x="long"))
    served.api.rate = 0
    monkeypatch.setattr(registry_client, "PATIENCE_S", 1.5)
    with pytest.raises(RegistryUnreachable, match="refuses requests: it answers 429") as refusal:
        served.registry.schema(1)
    assert refusal.value.retry_after_s == 1
    assert served.api.refused == 2


# --- random types, each in a subject of its own or inside another, against the same types in one text --------------

NAMESPACES = ("com.x", "com.y", "z")


@dataclass(frozen=True)
class Type:
    """A record: its namespace, and its fields' types, which are primitives or numbers of types before it."""

    space: str
    fields: list[tuple[str, Any]]  # how, and what
    is_inside: bool  # the first record that uses it defines it; else it has a subject


@st.composite
def types(draw: st.DrawFn) -> list[Type]:
    drawn: list[Type] = []
    for number in range(draw(st.integers(2, 6))):
        kinds: st.SearchStrategy[Any] = st.sampled_from(["int", "string", "bytes"])
        if number:
            kinds = kinds | st.integers(0, number - 1)
        how = st.sampled_from(["plain", "array", "map", "union", "wrapped"])
        fields = draw(st.lists(st.tuples(how, kinds), min_size=1, max_size=4))
        drawn.append(Type(draw(st.sampled_from(NAMESPACES)), fields, draw(st.booleans())))
    return drawn


def around(how: str, kind: Any) -> Any:
    match how:
        case "array":
            return {"type": "array", "items": kind}
        case "map":
            return {"type": "map", "values": kind}
        case "union":
            return ["null", kind]
        case "wrapped":
            return {"type": kind}
    return kind


class Writing:
    """Writes types as JSON. `inline`: numbers of those that are defined where they are used first.

    `wraps`: a name may stand in an object of its own, which Java's parser takes and the oracle does not.
    """

    def __init__(self, drawn: list[Type], inline: set[int], *, wraps: bool) -> None:
        self.types = drawn
        self.inline = inline
        self.wraps = wraps

    def schema(self, number: int, defined: set[int]) -> dict[str, Any]:
        defined.add(number)
        mine = self.types[number]
        fields = [
            {"name": f"f{at}", "type": self.field_type(how, self.use(mine.space, kind, defined))}
            for at, (how, kind) in enumerate(mine.fields)
        ]
        return {"type": "record", "name": f"T{number}", "namespace": mine.space, "fields": fields}

    def field_type(self, how: str, kind: Any) -> Any:
        is_name = isinstance(kind, str) and kind.rpartition(".")[2].startswith("T")
        return kind if how == "wrapped" and not (self.wraps and is_name) else around(how, kind)

    def use(self, space: str, kind: Any, defined: set[int]) -> Any:
        if isinstance(kind, str):
            return kind
        if kind in self.inline and kind not in defined:
            return self.schema(kind, defined)
        other = self.types[kind].space
        return f"T{kind}" if other == space else f"{other}.T{kind}"


@given(drawn=types(), data=st.data())
def test_types_in_subjects_of_their_own_are_those_of_one_text(drawn: list[Type], data: st.DataObject) -> None:
    root = len(drawn) - 1
    whole = Writing(drawn, set(range(len(drawn))), wraps=False).schema(root, set())
    owners: dict[int, int] = {}  # type → the subject that defines it
    texts: dict[int, tuple[str, set[int]]] = {}
    for number, each in enumerate(drawn):
        if each.is_inside and number != root:
            continue
        free = {at for at, one in enumerate(drawn) if one.is_inside and at < number and at not in owners}
        defined: set[int] = set()
        schema = Writing(drawn, free, wraps=number != root).schema(number, defined)
        owners |= dict.fromkeys(defined, number)
        texts[number] = json.dumps(schema), defined

    def referred(number: int) -> list[Reference]:
        """All subjects before, in any order that lists each behind what it needs."""
        names = st.sampled_from(["full", "free"])
        listed = [at for at in texts if at < number]
        return [
            Reference(f"T{at}" if data.draw(names) == "full" else f"{number}-{at}.avsc", str(at), "1") for at in listed
        ]

    def read(found: Reference) -> RegisteredSchema:
        number = int(found.subject)
        return RegisteredSchema(texts[number][0], None, referred(number))

    text = inline_references(RegisteredSchema(texts[root][0], None, referred(root)), read)
    assert to_parsing_canonical_form(json.loads(text)) == to_parsing_canonical_form(whole)


@pytest.mark.parametrize("kind", ["AVRO", "JSON", "PROTOBUF"])
def test_a_long_chain_of_references_ends_no_start(kind: str) -> None:
    length = 3_000

    def read(part: Reference) -> RegisteredSchema:
        number = int(part.version)
        references = [Reference(f"n{number + 1}", "s", str(number + 1))] if number < length else []
        return RegisteredSchema('"string"', kind, references)

    text = inline_references(RegisteredSchema('"string"', kind, [Reference("n1", "s", "1")]), read)
    # Avro's parser refuses, or takes, the text by itself.
    if kind != "AVRO":
        assert len(json.loads(text)["references"]) == length
