"""Two texts of one schema have one fingerprint, and two schemas have two."""

import json
from typing import Any

import pytest

from headrace.writer.avro.fingerprint import canonical_text, schema_fingerprint
from headrace.writer.avro.schema import UnsupportedSchema

BASE: dict[str, Any] = {
    "type": "record", "name": "Event", "namespace": "shop.clicks",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"], "default": "A"}},
        {"name": "other", "type": "Kind", "default": "B"},
        {"name": "rate", "type": "double", "default": 1.0, "aliases": ["share"]},
        {"name": "key", "type": {"type": "fixed", "name": "Key", "size": 16, "aliases": ["OldKey"]}},
        {"name": "tags", "type": {"type": "array", "items": ["null", "string"]}, "default": []},
        {"name": "more", "type": {"type": "map", "values": {"type": "int", "logicalType": "date"}}},
        {"name": "inner", "type": ["null", {"type": "record", "name": "Inner", "fields": [
            {"name": "a", "type": "int", "default": 0}]}], "default": None},
    ],
}  # fmt: skip


def changed(path: str, value: Any = None) -> str:
    """The schema with another value at a path such as `fields.4.default`; without one, what stands there goes."""
    schema = json.loads(json.dumps(BASE))
    *way, last = (int(step) if step.isdigit() else step for step in path.split("."))
    at = schema
    for step in way:
        at = at[step]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return json.dumps(schema)


SAME = {
    "keys in another order, spaces": json.dumps(dict(reversed(BASE.items())), indent=3),
    "a full name for a namespace": changed("namespace").replace('"Event"', '"shop.clicks.Event"'),
    "a name that is full where a short one does": changed("fields.3.type", "shop.clicks.Kind"),
    "a name in an object": changed("fields.3.type", {"type": "Kind"}),
    "a primitive in an object": changed("fields.0.type", {"type": "long"}),
    "a primitive in an object in an object": changed("fields.0.type", {"type": {"type": "long"}}),
    "doc": changed("fields.0.doc", "which one"),
    "order": changed("fields.0.order", "ignore"),
    "what Java adds": changed("fields.6.type.items", ["null", {"type": "string", "avro.java.string": "String"}]),
    "what Connect adds": json.dumps({**BASE, "connect.name": "shop.clicks.Event"}),
    "a number in another spelling": changed("fields.4.default", 1),
    "an alias by its full name": changed("fields.5.type.aliases", ["shop.clicks.OldKey"]),
    "a namespace that it has already": changed("fields.8.type.1.namespace", "shop.clicks"),
    "an empty list of aliases": changed("fields.0.aliases", []),
}
OTHER = {
    "the name": changed("name", "View"),
    "a namespace": changed("namespace", "shop.views"),
    "a field's name": changed("fields.0.name", "ident"),
    "a field's type": changed("fields.0.type", "int"),
    "fields in another order": changed("fields", list(reversed(BASE["fields"][:2])) + BASE["fields"][2:]),
    "a default": changed("fields.4.default", 2.0),
    "no default": changed("fields.4.default"),
    "no default of null": changed("fields.8.default"),
    "a default deep inside": changed("fields.8.type.1.fields.0.default", 1),
    "a field's alias": changed("fields.4.aliases", ["part"]),
    "a type's alias": changed("fields.5.type.aliases", ["AncientKey"]),
    "a logical type": changed("fields.7.type.values", "int"),
    "another logical type": changed("fields.7.type.values.logicalType", "time-millis"),
    "a precision": changed("fields.1.type.precision", 10),
    "a scale": changed("fields.1.type.scale", 3),
    "no scale": changed("fields.1.type.scale"),
    "a symbol": changed("fields.2.type.symbols", ["A", "C"]),
    "an enum's default": changed("fields.2.type.default", "B"),
    "a size": changed("fields.5.type.size", 8),
    "branches in another order": changed("fields.6.type.items", ["string", "null"]),
    "items": changed("fields.6.type.items", "string"),
}  # fmt: skip


@pytest.mark.parametrize("what", SAME)
def test_another_spelling_is_the_same_schema(what: str) -> None:
    assert SAME[what] != json.dumps(BASE)
    assert canonical_text(SAME[what]) == canonical_text(json.dumps(BASE))


@pytest.mark.parametrize("what", OTHER)
def test_a_change_that_matters_to_rows_changes_the_fingerprint(what: str) -> None:
    assert schema_fingerprint(OTHER[what]) != schema_fingerprint(json.dumps(BASE))


def test_tables_keep_it_for_good_so_it_never_changes() -> None:
    assert schema_fingerprint(json.dumps(BASE)) == 3237636210707397389
    assert schema_fingerprint('"string"') == 8427045126688936889
    assert 0 <= schema_fingerprint(json.dumps(BASE)) < 2**63


@pytest.mark.parametrize("text", ["", "{", "{}", "1", "null", '{"type": "record"}', '{"name": "a"}', "[" * 100_000])
def test_a_text_that_is_no_avro_has_no_fingerprint(text: str) -> None:
    with pytest.raises(UnsupportedSchema):
        schema_fingerprint(text)
