"""Evolves a table's columns: adds columns and struct fields, widens numbers. Removes nothing.

Engines read the older files of a wider column as what it is now, without a feature of the protocol that shuts others
out. (docs/adr/0010-widening-in-place.md)
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import Schema

from headrace.writer.columns.union_members import KEY, UnionMemberConflict, join_members, read_members, write_members

_WIDER = {("integer", "long"), ("integer", "double"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
# Of a Delta schema: str | dict.
Type = Any


class ColumnTypeMismatch(Exception):
    """A column that another client gave a type that does not fit ours, or a member that another branch fills by now.

    Its message says which.
    """


def merge_columns(schema_string: str, columns: Sequence[pa.Field]) -> tuple[str, dict[str, str]]:
    """Return the table's schema with these columns in it, and what changed: path → how. Raises ColumnTypeMismatch.

    A column of the table keeps its name, order, comments and constraints. Names are compared without case, as Delta
    does. What columns say of the members of unions is joined.
    """
    schema = json.loads(schema_string)
    nullable = pa.schema([column.with_nullable(True) for column in columns])
    wanted = json.loads(Schema.from_arrow(nullable).to_json())
    changes: dict[str, str] = {}
    merged = _merge_structs(schema, wanted, "", changes)
    return json.dumps(merged, separators=(",", ":"), ensure_ascii=False), changes


def _merge_types(current: Type, wanted: Type, path: str, changes: dict[str, str]) -> Type:
    if current == wanted:
        return current
    if isinstance(current, dict) and isinstance(wanted, dict) and current["type"] == wanted["type"]:
        match current["type"]:
            case "struct":
                return _merge_structs(current, wanted, path, changes)
            case "array":
                element = _merge_types(current["elementType"], wanted["elementType"], f"{path}.element", changes)
                return {**current, "elementType": element}
            case "map" if current["keyType"] == wanted["keyType"]:
                value = _merge_types(current["valueType"], wanted["valueType"], f"{path}.value", changes)
                return {**current, "valueType": value}
    if isinstance(current, str) and isinstance(wanted, str) and _is_wider(wanted, current):
        changes[path] = f"{current} → {wanted}"
        return wanted
    raise ColumnTypeMismatch(f"column {path} is {_type_name(current)} by now, and not {_type_name(wanted)}")


def _merge_structs(current: Type, wanted: Type, path: str, changes: dict[str, str]) -> Type:
    wanted_fields: Mapping[str, Any] = {field["name"].lower(): field for field in wanted["fields"]}
    fields = []
    for field in current["fields"]:
        wanted_field = wanted_fields.get(field["name"].lower())
        if wanted_field is None:
            fields.append(field)
            continue
        field_path = _join(path, field["name"])
        merged_type = _merge_types(field["type"], wanted_field["type"], field_path, changes)
        merged_field = _merge_union_members(field, wanted_field, field_path, changes)
        fields.append({**merged_field, "type": merged_type})
    names = {field["name"].lower() for field in current["fields"]}
    for name, field in wanted_fields.items():
        if name not in names:
            fields.append(field)
            changes[_join(path, field["name"])] = f"new, {_type_name(field['type'])}"
    return {**current, "fields": fields}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".lstrip(".")


def _merge_union_members(
    field: dict[str, Any], wanted: dict[str, Any], path: str, changes: dict[str, str]
) -> dict[str, Any]:
    """Return a column with what another says of the members of unions."""
    metadata = field.get("metadata") or {}
    current_text = metadata.get(KEY, "")
    try:
        members = join_members(read_members(current_text), read_members(wanted["metadata"].get(KEY, "")))
    except UnionMemberConflict as error:
        raise ColumnTypeMismatch(str(error)) from error
    text = write_members(members)
    if text == current_text:
        return field
    changes[path] = "members of unions"
    return {**field, "metadata": {**metadata, KEY: text}}


def _is_wider(wanted: str, current: str) -> bool:
    """Return whether every value of the current type is one of the wanted type, and engines read it so."""
    current_decimal = _DECIMAL.fullmatch(current)
    wanted_decimal = _DECIMAL.fullmatch(wanted)
    if current_decimal is None or wanted_decimal is None:
        return (current, wanted) in _WIDER
    more_digits = int(wanted_decimal[1]) - int(current_decimal[1])
    more_scale = int(wanted_decimal[2]) - int(current_decimal[2])
    return more_digits >= more_scale >= 0


def _type_name(type_: Type) -> str:
    return type_ if isinstance(type_, str) else str(type_["type"])
