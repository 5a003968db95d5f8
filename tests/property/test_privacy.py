"""What privacy leaves of random records equals a record at a time in Python, whatever their schemas nest and tag."""

import hmac
import json
import stat
from base64 import b64encode
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.batch.schema_reader import SchemaReader
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema, conform
from headrace.writer.framing.wire_format import CONFLUENT
from headrace.writer.privacy.column_protection import MASK
from headrace.writer.privacy.encryption import decrypt_text, key_id_of
from headrace.writer.privacy.keyring import KeyId, KeyringPlace, KeySource, fingerprint
from headrace.writer.privacy.policy import CLEAR, Action, Policies, strictest
from headrace.writer.privacy.protected_schema import Privacy
from tests.support.avro_records import MICROS, MONEY, encode, logical
from tests.support.example_counts import share

KEY, SECOND = b"k" * 32, b"e" * 32
HASH, DROP, ENCRYPT, LAST = Action("hash"), Action("drop"), Action("encrypt"), Action("mask", 2)
YEARS = datetime(1, 1, 2), datetime(9999, 12, 30)  # noqa: DTZ001 - the strategy adds the zone
TAGS = {"PII": HASH, "GONE": DROP, "CARD": LAST, "NOTE": ENCRYPT, "OPEN": CLEAR}
SCALARS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "string": ("string", st.text(max_size=6)),
    "bytes": ("bytes", st.binary(max_size=6)),
    "int": ("int", st.integers(-(2**31), 2**31 - 1)),
    "long": ("long", st.integers(-(2**63), 2**63 - 1)),
    "boolean": ("boolean", st.booleans()),
    "double": ("double", st.integers(-999, 999).map(lambda n: n / 4 + 0.125)),
    "day": (logical("date", "int"), st.dates(date(1, 1, 1), date(9999, 12, 31))),
    "instant": (MICROS, st.datetimes(*YEARS, timezones=st.just(UTC))),
    "money": (MONEY, st.decimals(-9_999_999, 9_999_999, places=2)),
    "enum": ("enum", st.sampled_from(["A", "BCD"])),
}  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def source(tmp_path_factory: pytest.TempPathFactory) -> KeySource:
    """The keyring of these tests; tasks read it as they would."""
    place = tmp_path_factory.mktemp("keys") / "keys.json"
    place.write_text(json.dumps({
        "hash": {"primary": "h1", "keys": {"h1": b64encode(KEY).decode()}},
        "encrypt": {"primary": "k1", "keys": {"k1": b64encode(SECOND).decode()}},
    }))  # fmt: skip
    place.chmod(stat.S_IRUSR)
    ids = KeyId("h1", fingerprint(KEY)), KeyId("k1", fingerprint(SECOND))
    return KeySource(KeyringPlace(str(place)), None, *ids)


class Types:
    """Draws types and values for them; names are used once."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.number = draw, 0

    def name(self) -> str:
        self.number += 1
        return f"n{self.number}"

    def type(self, depth: int) -> Any:
        kinds = [*SCALARS, "null", *(("array", "map", "record", "union") if depth else ())]
        kind = self.draw(st.sampled_from(kinds))
        match kind:
            case "enum":
                return {"type": "enum", "name": self.name(), "symbols": ["A", "BCD"]}
            case "null":
                inner = self.type(0)
                return inner if isinstance(inner, list) else ["null", inner]
            case "array":
                return {"type": "array", "items": self.type(depth - 1)}
            case "map":
                return {"type": "map", "values": self.type(depth - 1)}
            case "record":
                return self.record(depth - 1)
            case "union":
                return ["null", "string", "long"]
        return SCALARS[kind][0]

    def record(self, depth: int) -> Any:
        fields = []
        for _ in range(self.draw(st.integers(1, 3))):
            tags = self.draw(st.lists(st.sampled_from(list(TAGS)), max_size=2))
            fields.append({"name": self.name(), "type": self.type(depth), **({"confluent:tags": tags} if tags else {})})
        return {"type": "record", "name": self.name(), "fields": fields}

    def value(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self.value(self.draw(st.sampled_from(schema)))
        if schema == "null":
            return None
        kind = schema if isinstance(schema, str) else schema.get("logicalType", schema["type"])
        match kind:
            case "record":
                return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
            case "array":
                return [self.value(schema["items"]) for _ in range(self.draw(st.integers(0, 2)))]
            case "map":
                return {
                    key: self.value(schema["values"]) for key in self.draw(st.sets(st.text(max_size=3), max_size=2))
                }
        named = {"date": "day", "timestamp-micros": "instant", "decimal": "money"}
        return self.draw(SCALARS[named.get(kind, kind)][1])


def plain_text(value: Any) -> str:
    match value:
        case bool():
            return "true" if value else "false"
        case float():
            return repr(value)
        case Decimal():
            return format(value, "f")
        case datetime():
            return value.replace(tzinfo=None).isoformat(" ", "microseconds")
        case date():
            return value.isoformat()
    return str(value)


def bytes_of(value: Any) -> bytes:
    return value if isinstance(value, bytes) else plain_text(value).encode()


def check_scalar(found: Any, value: Any, action: Action) -> None:
    if value is None:
        assert found is None
        return
    match action.kind:
        case "hash":
            assert found == hmac.digest(KEY, bytes_of(value), "sha256").hex()
        case "encrypt":
            assert key_id_of(found) == "k1"
            assert decrypt_text(found, SECOND) == bytes_of(value)
        case "mask":
            text = "" if isinstance(value, bytes) else plain_text(value)
            assert found == (MASK + text[-action.keep :] if len(text) > action.keep else MASK)
        case _:
            assert found == value


def check(found: Any, value: Any, schema: Any, action: Action) -> None:
    """Hold what is left of a value against it. `action`: what the schema around it says."""
    if isinstance(schema, list):
        several = len(schema) > 2
        if several and action.kind == "clear":
            assert found == value, "a union of several is a struct on both sides"
            return
        if several and value is not None:
            (value,) = (
                [None] if all(v is None for v in value.values()) else [v for v in value.values() if v is not None]
            )
        schema = schema[-1]
    kind = schema if isinstance(schema, str) else schema["type"]
    match kind:
        case _ if value is None:
            assert found is None
        case "record":
            left = set(found)
            for one in schema["fields"]:
                own = strictest([action, *(TAGS[tag] for tag in one.get("confluent:tags", ()))])
                if own.kind == "drop":
                    assert one["name"] not in left
                elif one["name"] in left:
                    check(found[one["name"]], value[one["name"]], one["type"], own)
                else:
                    assert is_emptied(one["type"])
        case "array":
            assert len(found) == len(value)
            for left_one, one in zip(found, value, strict=True):
                check(left_one, one, schema["items"], action)
        case "map":
            assert len(found) == len(value)
            for (left_key, left_one), (key, one) in zip(found, value, strict=True):
                check_scalar(left_key, key, action)
                check(left_one, one, schema["values"], action)
        case _:
            check_scalar(found, value, action)


def is_emptied(schema: Any) -> bool:
    """Return whether all fields of what a type holds are dropped."""
    if isinstance(schema, list):
        return is_emptied(schema[-1])
    if not isinstance(schema, dict):
        return False
    inner = schema.get("items", schema.get("values"))
    if inner is not None:
        return is_emptied(inner)
    return schema["type"] == "record" and all(
        "GONE" in field.get("confluent:tags", ()) or is_emptied(field["type"]) for field in schema["fields"]
    )


def masks_a_map(schema: Any, action: Action = CLEAR) -> bool:
    """Return whether a map is masked, which is refused."""
    if isinstance(schema, list):
        return any(masks_a_map(one, action) for one in schema)
    if not isinstance(schema, dict):
        return False
    if schema["type"] == "map":
        return action.kind == "mask" or masks_a_map(schema["values"], action)
    if schema["type"] == "array":
        return masks_a_map(schema["items"], action)
    for one in schema.get("fields", ()):
        own = strictest([action, *(TAGS[tag] for tag in one.get("confluent:tags", ()))])
        if own.kind != "drop" and masks_a_map(one["type"], own):
            return True
    return False


def read(plan: SchemaPlan, values: list[bytes], tmp: str) -> pa.Table:
    known = plan.schemas[7]
    assert isinstance(known, WriterSchema), known
    return SchemaReader(plan, CONFLUENT, tmp).decode_block(pa.array(values, pa.binary()), 7, known).rows


@given(st.data())
@settings(max_examples=share(100))
def test_protected_columns_equal_a_record_at_a_time_in_python(source: KeySource, data: st.DataObject) -> None:
    types = Types(data.draw)
    schema = types.record(2)
    schema["fields"].append({"name": "kept", "type": "int"})
    values = [types.value(schema) for _ in range(data.draw(st.integers(1, 4)))]
    texts = [encode(schema, value) for value in values]
    plain = read(SchemaPlan(pa.schema([])).extend(7, json.dumps(schema)), texts, "/tmp")
    privacy = Privacy(Policies(tags=tuple(TAGS.items())), source)
    plan = SchemaPlan(pa.schema([]), privacy=privacy).extend(7, json.dumps(schema))
    if masks_a_map(schema):
        assert isinstance(plan.schemas[7], RejectedSchema)
        return
    known = plan.schemas[7]
    assert isinstance(known, WriterSchema), known
    rows = read(plan, texts, "/tmp")
    for left, value in zip(conform(rows, known, plan).to_pylist(), plain.to_pylist(), strict=True):
        check(left, value, schema, CLEAR)
    if known.protection is not None:
        cut = data.draw(st.integers(0, len(values)))
        some = known.protection.apply(plain.slice(cut))
        for left, value in zip(some.to_pylist(), plain.slice(cut).to_pylist(), strict=True):
            check(left, value, schema, CLEAR)


def test_an_alias_of_a_field_that_another_schema_tags_leads_to_a_third_schema(source: KeySource) -> None:
    def event(*fields: dict[str, Any]) -> str:
        every = [{"type": "string", **one} for one in ({"name": "kept"}, *fields)]
        return json.dumps({"type": "record", "name": "Event", "fields": every})

    tagged = {"name": "b", "confluent:tags": ["PII"]}
    texts = [
        event({"name": "a", "aliases": ["b"]}),
        event({"name": "a", "aliases": ["c"]}, tagged),
        event({"name": "c"}),
    ]
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(tags=(("PII", HASH),)), source))
    for number, text in enumerate(texts):
        plan = plan.extend(number, text)
    assert [set(plan.schemas[at].protection.actions) for at in range(3)] == [{("a",)}, {("a",), ("b",)}, {("c",)}]


@given(data=st.data())
@settings(max_examples=share(100), deadline=None)
def test_a_field_that_one_schema_tags_is_protected_in_all_in_whatever_order_they_are_known(
    source: KeySource, data: st.DataObject
) -> None:
    """Fields of one name or of its aliases are one column; a tag on any of them counts for all."""
    names = ["a", "b", "c"]
    schemas = []
    for _ in range(data.draw(st.integers(1, 4))):
        chosen = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
        fields = [{"name": "kept", "type": "string"}]
        for name in chosen:
            others = [one for one in names if one not in chosen]
            aliases = data.draw(st.lists(st.sampled_from(others), unique=True)) if others else []
            words = data.draw(st.sampled_from([{}, {}, {"confluent:tags": ["PII"]}]))
            fields.append({"name": name, "type": "string", **({"aliases": aliases} if aliases else {}), **words})
        schemas.append({"type": "record", "name": "Event", "fields": fields})
    alike_names = {name: name for name in names}  # by union of names and aliases: one name stands for all

    def top(name: str) -> str:
        return name if alike_names[name] == name else top(alike_names[name])

    for one in (field for schema in schemas for field in schema["fields"] if field["name"] in names):
        for alias in one.get("aliases", ()):
            alike_names[top(alias)] = top(one["name"])
    tagged = {top(f["name"]) for s in schemas for f in s["fields"] if "confluent:tags" in f}
    plan = SchemaPlan(pa.schema([]), privacy=Privacy(Policies(tags=(("PII", HASH),)), source))
    texts = [json.dumps(schema) for schema in schemas]
    at_start = plan.learn_privacy(texts)
    for number, text in enumerate(texts):
        plan, at_start = plan.extend(number, text), at_start.extend(number, text)
    for found in (plan, at_start):
        for number, schema in enumerate(schemas):
            known = found.schemas[number]
            if isinstance(known, RejectedSchema):  # two fields would fill one column
                continue
            places = set() if known.protection is None else {place[0] for place in known.protection.actions}
            assert places == {f["name"] for f in schema["fields"] if f["name"] in names and top(f["name"]) in tagged}
