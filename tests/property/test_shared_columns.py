"""No column that holds protected values gets one in the clear, whatever schemas of one record type come together.

Schemas with unions, tags and aliases come in any order, at a start or with a batch; some are deleted, and the writer
starts again, from what its table and its log have. Values go through the plan, the decoder and the protection of a
task. The oracle knows neither paths nor members: it looks at the values that stand in each column.
"""

import json
import re
import stat
import struct
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from deltalake import Schema
from hypothesis import HealthCheck, given, settings, strategies as st

from tests.support.example_counts import share
from writer.avro.schema_plan import SchemaPlan, WriterSchema, conform
from writer.avro.union_members import COLUMN, union_members, with_members
from writer.avro.wire_format import CONFLUENT
from writer.batch.schema_reader import SchemaReader
from writer.privacy.column_protection import MASK
from writer.privacy.keyring import KeyId, KeyringPlace, KeySource, fingerprint
from writer.privacy.path_policies import RecordPolicies, overlay_policies
from writer.privacy.policy import Action, Policies
from writer.privacy.protected_schema import Privacy
from writer.specs.spec import Spec
from writer.table.schema_evolution import merge_columns

KEY, SECOND = b"k" * 32, b"e" * 32
TAGS = {"PII": Action("hash"), "CARD": Action("mask", 2), "NOTE": Action("encrypt"), "GONE": Action("drop")}
SCALARS = ("string", "long", "Color", "string", "long", "int", "double", "bytes", "day", "instant")
NAMES = ("a", "a", "b")
UNSHARED = "unshared"
SPECS = (Spec("shop.Event", rename=(("a", "who"),)), Spec("shop.Event", flatten_all=True))
Path = tuple[str, ...]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> KeySource:
    """The keyring of these tests."""
    place = tmp_path_factory.mktemp("keys") / "keys.json"
    place.write_text(json.dumps({
        "hash": {"primary": "h1", "keys": {"h1": b64encode(KEY).decode()}},
        "encrypt": {"primary": "k1", "keys": {"k1": b64encode(SECOND).decode()}},
    }))  # fmt: skip
    place.chmod(stat.S_IRUSR)
    ids = KeyId("h1", fingerprint(KEY)), KeyId("k1", fingerprint(SECOND))
    return KeySource(KeyringPlace(str(place)), None, *ids)


class Schemas:
    """Draws schemas of one record type, and values whose texts are used once."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw, self.number = draw, 100

    def words(self) -> dict[str, Any]:
        tag = self.draw(st.sampled_from([None, None, *TAGS]))
        return {} if tag is None else {"confluent:tags": [tag]}

    def scalar(self, kind: str) -> Any:
        match kind:
            case "Color":
                return {"type": "enum", "name": "shop.Color", "symbols": ["red", "green"], **self.words()}
            case "day":
                return {"type": "int", "logicalType": "date", **self.words()}
            case "instant":
                return {"type": "long", "logicalType": "timestamp-micros", **self.words()}
        return {"type": kind, **self.words()}

    def record(self, name: str, depth: int, defined: set[str]) -> Any:
        if name in defined:
            return self.draw(st.sampled_from([name, {"type": name, **self.words()}]))
        defined.add(name)
        fields = [{"name": "x", "type": self.type(depth - 1, defined), **self.words()}]
        aliases = self.draw(st.sampled_from([[], [], ["shop.Old"]])) if "shop.Old" not in defined else []
        return {"type": "record", "name": name, "fields": fields, **({"aliases": aliases} if aliases else {})}

    def type(self, depth: int, defined: set[str]) -> Any:
        kinds = ["scalar", "nullable", *(["union"] * 6 + ["array", "map", "record", "wrapped"] if depth > 0 else [])]
        kind = self.draw(st.sampled_from(kinds))
        scalar = "string" if "shop.Color" in defined else self.draw(st.sampled_from(SCALARS))
        match kind:
            case "union":
                return self.union(depth, defined)
            case "array":
                return {"type": "array", "items": self.type(depth - 1, defined), **self.words()}
            case "map":
                return {"type": "map", "values": self.type(depth - 1, defined)}
            case "wrapped":
                return {"type": self.type(depth - 1, defined), **self.words()}
            case "record":
                return self.record(self.draw(st.sampled_from(["shop.A", "shop.B"])), depth, defined)
            case "nullable":
                defined |= {"shop.Color"} if scalar == "Color" else set()
                return ["null", self.scalar(scalar)]
        defined |= {"shop.Color"} if scalar == "Color" else set()
        return self.scalar(scalar)

    def union(self, depth: int, defined: set[str]) -> Any:
        branches = {"day": "int", "instant": "long"}
        kinds = self.draw(st.lists(
            st.sampled_from(["shop.A", "shop.B", "shop.A", "shop.Old", "array", "null", *SCALARS]),
            min_size=2, max_size=4,
            unique_by=lambda kind: branches.get(kind, kind),
        ))  # fmt: skip
        made = list[Any]()
        for kind in kinds:
            if kind.startswith("shop."):
                made.append(self.record(kind, depth, defined))
            elif kind == "array":
                made.append({"type": "array", "items": self.type(depth - 1, defined)})
            elif kind == "Color" and "shop.Color" in defined:
                made.append(self.draw(st.sampled_from(["shop.Color", {"type": "shop.Color", **self.words()}])))
            else:
                defined |= {"shop.Color"} if kind == "Color" else set()
                made.append("null" if kind == "null" else self.scalar(kind))
        return made

    def event(self) -> dict[str, Any]:
        defined = set[str]()
        fields: list[dict[str, Any]] = [{"name": UNSHARED, "type": "string"}]
        names = self.draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=1))
        for name in names:
            aliases = ["a"] if name == "b" and self.draw(st.booleans()) else []
            fields.append({
                "name": name, "type": self.type(2, defined), **self.words(), **({"aliases": aliases} if aliases else {})
            })  # fmt: skip
        return {"type": "record", "name": "shop.Event", "fields": fields}

    def value(self, schema: Any, named: dict[str, Any], texts: set[str]) -> bytes:
        """Return a value in binary, and add what its parts are as texts."""
        if isinstance(schema, list):
            index = self.draw(st.integers(0, len(schema) - 1))
            return number_bytes(index) + self.value(schema[index], named, texts)
        if isinstance(schema, str) and schema in named:
            schema = named[schema]
        self.number += 1
        text = f"clear{self.number}"
        if isinstance(schema, dict) and (isinstance(schema["type"], dict | list) or schema["type"] in named):
            return self.value(schema["type"], named, texts)
        match schema if isinstance(schema, str) else schema["type"]:
            case "null":
                return b""
            case "record":
                return b"".join(self.value(one["type"], named, texts) for one in schema["fields"])
            case "array":
                return number_bytes(1) + self.value(schema["items"], named, texts) + number_bytes(0)
            case "map":
                return number_bytes(1) + text_bytes(text, texts) + self.value(schema["values"], named, texts) + b"\0"
            case "enum":
                index = self.number % 2
                texts.add(schema["symbols"][index])
                return number_bytes(index)
            case "string" | "bytes":
                return text_bytes(text, texts)
            case "double":
                texts.add(str(self.number + 0.5))
                return struct.pack("<d", self.number + 0.5)
        texts.add(str(self.number))
        return number_bytes(self.number)


def number_bytes(number: int) -> bytes:
    """Return a number below 8,192 as Avro has it."""
    zigzag = number << 1
    return bytes([zigzag]) if zigzag < 128 else bytes([zigzag & 127 | 128, zigzag >> 7])


def text_bytes(text: str, texts: set[str]) -> bytes:
    texts.add(text)
    return number_bytes(len(text)) + text.encode()


def named_types(schema: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Collect the named types of a schema."""
    if isinstance(schema, list):
        for branch in schema:
            named_types(branch, named)
    if isinstance(schema, dict):
        if "name" in schema and schema["type"] in ("record", "enum"):
            named[schema["name"]] = schema
        for part in (
            schema["type"],
            schema.get("items"),
            schema.get("values"),
            *(one["type"] for one in schema.get("fields", ())),
        ):
            named_types(part, named)
    return named


def texts(value: Any, place: Path = ()) -> Iterator[tuple[Path, str]]:
    """Yield the texts in a value, each with the column that it stands in."""
    if isinstance(value, dict):
        for name, inside in value.items():
            yield from texts(inside, (*place, name))
    elif isinstance(value, list):
        for item in value:
            if isinstance(item, tuple):
                yield from texts(item[0], (*place, "key"))
                yield from texts(item[1], (*place, "value"))
            else:
                yield from texts(item, (*place, "element"))
    elif isinstance(value, str):
        yield place, value


class Table:
    """What a table and its log keep, and the writer that fills it."""

    def __init__(self, source: KeySource, policies: Policies, specs: tuple[Spec, ...]) -> None:
        self.source, self.policies, self.specs = source, policies, specs
        self.schema_text = Schema.from_arrow(pa.schema([pa.field(COLUMN, pa.string())])).to_json()
        self.recorded: RecordPolicies = {}
        self.plan = self.start({})

    def start(self, registered: dict[int, str]) -> SchemaPlan:
        columns = pa.schema(pa.schema(Schema.from_json(self.schema_text).to_arrow()))
        own = pa.schema([field for field in columns if field.name != COLUMN])
        privacy = Privacy(self.policies, self.source).with_log_policies(self.recorded)
        plan = SchemaPlan(own, frozenset([COLUMN]), privacy=privacy, specs=self.specs)
        self.plan = plan.with_union_members(union_members(columns)).learn_privacy(registered.values())
        for number, text in registered.items():
            self.plan = self.plan.extend(number, text)
        self.grow()
        return self.plan

    def meet(self, number: int, text: str) -> None:
        self.plan = self.plan.extend(number, text)
        self.grow()

    def grow(self) -> None:
        columns = pa.schema([*self.plan.columns, pa.field(COLUMN, pa.string())])
        self.schema_text, _ = merge_columns(self.schema_text, list(with_members(columns, self.plan.union_members)))
        assert self.plan.privacy is not None
        self.recorded = overlay_policies(self.recorded, self.plan.privacy.news)
        self.plan = self.plan.after_recording(self.recorded)

    def rows(self, number: int, values: list[bytes]) -> list[dict[str, Any]]:
        known = self.plan.schemas[number]
        assert isinstance(known, WriterSchema)
        rows = (
            SchemaReader(self.plan, CONFLUENT, "/tmp").decode_block(pa.array(values, pa.binary()), number, known).rows
        )
        if known.shaped:
            record = self.plan.shaped[known.shaped]
            rows = record.step.apply(conform(rows, known, record.input)).rows
            assert record.output is not None
            known = record.output
        found: list[dict[str, Any]] = conform(rows, known, self.plan).to_pylist()
        return found


def is_protected(text: str) -> bool:
    """Return whether a text is none that a record has."""
    return text.startswith(("hr1.", MASK)) or re.fullmatch("[0-9a-f]{64}", text) is not None


def is_member(place: Path) -> bool:
    return place[-1].startswith("member")


@given(data=st.data())
@settings(max_examples=share(120), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_column_of_protected_values_gets_none_in_the_clear(source: KeySource, data: st.DataObject) -> None:
    schemas = Schemas(data.draw)
    events = {number: schemas.event() for number in range(1, data.draw(st.integers(2, 4)) + 1)}
    registered = {number: json.dumps(event) for number, event in events.items()}
    specs = data.draw(st.sampled_from([(), (), *((spec,) for spec in SPECS)]))
    table = Table(source, Policies(tags=tuple(TAGS.items())), specs)
    known = dict[int, str]()
    protected, clear = set[Path](), set[Path]()
    for _ in range(data.draw(st.integers(2, 7))):
        number = data.draw(st.sampled_from(sorted(events)))
        if data.draw(st.integers(0, 2)) == 0:
            known = {n: registered[n] for n in data.draw(st.lists(st.sampled_from(sorted(events)), unique=True))}
            table.start(known)
        if number not in table.plan.schemas:
            table.meet(number, registered[number])
        if not isinstance(table.plan.schemas[number], WriterSchema):
            continue
        written = set[str]()
        value = schemas.value(events[number], named_types(events[number], {}), written)
        (row,) = table.rows(number, [struct.pack(">bI", 0, number) + value])
        assert row.pop(UNSHARED) in written, "what nobody tags stays"
        for place, text in texts(row):
            if is_protected(text):
                protected.add(place)
                assert not is_member(place) or place not in clear, (place, text, "it has values in the clear")
            else:
                assert place not in protected, (place, text, "it has protected values")
                clear.add(place)
