"""No column that holds protected values gets one in the clear, whatever schemas of one record type come together.

Schemas with unions, tags and aliases come in any order, at a start or with a batch; some are deleted, and the writer
starts again, from what its table and its log have. Values go through the plan, the decoder and the protection of a
task. The oracle knows neither paths nor members: it looks at the values that stand in each column.
"""

import json
import re
import struct
from typing import Any

from hypothesis import HealthCheck, given, settings, strategies as st

from headrace.writer.columns.schema_plan import WriterSchema
from headrace.writer.privacy.column_protection import MASK
from headrace.writer.privacy.keyring import KeySource
from headrace.writer.privacy.policy import Policies
from headrace.writer.specs.spec import Spec
from tests.support.example_counts import share
from tests.support.shared_columns import TAGS, Path, Table, number_bytes, source, text_bytes, texts

__all__ = ["source"]
SCALARS = ("string", "long", "Color", "string", "long", "int", "double", "bytes", "day", "instant")
NAMES = ("a", "a", "b")
UNSHARED = "unshared"
SPECS = (Spec("shop.Event", rename=(("a", "who"),)), Spec("shop.Event", flatten_all=True))


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
                return b"".join(self.value(field["type"], named, texts) for field in schema["fields"])
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
