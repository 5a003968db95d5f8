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

from writer.avro.union_members import KEY, UnionMemberConflict, join_members, read_members, write_members

_WIDER = {("integer", "long"), ("integer", "double"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
Type = Any  # of a Delta schema: str | dict


class ColumnTypeMismatch(Exception):
    """A column that another client gave a type that does not fit ours, or a member that another branch fills by now.

    Its message says which.
    """


def grown(schema_string: str, columns: Sequence[pa.Field]) -> tuple[str, dict[str, str]]:
    """Return the table's schema with these columns in it, and what changed: place → how. Raises ColumnTypeMismatch.

    What is there keeps its name, order, comments and constraints; names are compared without case, as Delta does. What
    columns say of the members of unions is joined.
    """
    have = json.loads(schema_string)
    want = json.loads(Schema.from_arrow(pa.schema([column.with_nullable(True) for column in columns])).to_json())
    changes: dict[str, str] = {}
    merged = _struct(have, want, "", changes)
    return json.dumps(merged, separators=(",", ":"), ensure_ascii=False), changes


def _merged(have: Type, want: Type, at: str, changes: dict[str, str]) -> Type:
    if have == want:
        return have
    if isinstance(have, dict) and isinstance(want, dict) and have["type"] == want["type"]:
        match have["type"]:
            case "struct":
                return _struct(have, want, at, changes)
            case "array":
                item = _merged(have["elementType"], want["elementType"], f"{at}.element", changes)
                return {**have, "elementType": item}
            case "map" if have["keyType"] == want["keyType"]:
                return {**have, "valueType": _merged(have["valueType"], want["valueType"], f"{at}.value", changes)}
    if isinstance(have, str) and isinstance(want, str) and _widens(have, want):
        changes[at] = f"{have} → {want}"
        return want
    raise ColumnTypeMismatch(f"column {at} is {_named(have)} by now, and not {_named(want)}")


def _struct(have: Type, want: Type, at: str, changes: dict[str, str]) -> Type:
    wanted: Mapping[str, Any] = {part["name"].lower(): part for part in want["fields"]}
    parts = []
    for part in have["fields"]:
        other = wanted.get(part["name"].lower())
        place = f"{at}.{part['name']}".lstrip(".")
        if other is None:
            parts.append(part)
            continue
        kind = _merged(part["type"], other["type"], place, changes)
        parts.append({**_with_members(part, other, place, changes), "type": kind})
    known = {part["name"].lower() for part in have["fields"]}
    for name, part in wanted.items():
        if name not in known:
            parts.append(part)
            changes[f"{at}.{part['name']}".lstrip(".")] = f"new, {_named(part['type'])}"
    return {**have, "fields": parts}


def _with_members(part: dict[str, Any], other: dict[str, Any], place: str, changes: dict[str, str]) -> dict[str, Any]:
    """Return a column with what another says of the members of unions."""
    metadata = part.get("metadata") or {}
    have = metadata.get(KEY, "")
    try:
        members = join_members(read_members(have), read_members(other["metadata"].get(KEY, "")))
    except UnionMemberConflict as error:
        raise ColumnTypeMismatch(str(error)) from error
    if (text := write_members(members)) == have:
        return part
    changes[place] = "members of unions"
    return {**part, "metadata": {**metadata, KEY: text}}


def _widens(have: str, want: str) -> bool:
    old, new = _DECIMAL.fullmatch(have), _DECIMAL.fullmatch(want)
    if old and new:
        more, finer = int(new[1]) - int(old[1]), int(new[2]) - int(old[2])
        return more >= finer >= 0
    return (have, want) in _WIDER


def _named(kind: Type) -> str:
    return kind if isinstance(kind, str) else str(kind["type"])
