"""Which branch of a union fills which member of its column, as a table keeps it beside its columns.

A member says by its type alone what it was made for. That is not enough once the schema that made it is gone: another
branch of that type would fill it. So a table's schema has the names, as metadata of the column `_topic`, which each
table has. They are changed with the columns, in one entry. (docs/adr/0048-protected-paths.md)
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from writer.avro.column_cast import ColumnPath

COLUMN = "_topic"
KEY = "headrace.union_members"
TABLE = ""  # in place of the name of a record: unions in columns of the table itself
Branches = Mapping[ColumnPath, str]  # (*place of a union, name of a branch) → its member
UnionMembers = Mapping[str, Branches]  # of the table; and of records that a spec shapes, by name, before it does


class UnionMemberConflict(ValueError):
    """A member of a union that two processes gave to two branches. Its message names the member."""


def union_members(columns: pa.Schema) -> UnionMembers:
    """Return what columns say of their unions; nothing where they lack it."""
    if COLUMN not in columns.names:
        return {}
    return read_members((columns.field(COLUMN).metadata or {}).get(KEY.encode(), b"").decode())


def with_members(columns: pa.Schema, members: UnionMembers) -> pa.Schema:
    """Return columns that say this of their unions."""
    if not (text := write_members(members)):
        return columns
    at = columns.get_field_index(COLUMN)
    return columns.set(at, columns.field(at).with_metadata({KEY: text}))


def read_members(text: str) -> UnionMembers:
    """Read what `write_members` wrote; nothing of an empty text."""
    listed: Mapping[str, Any] = json.loads(text or "{}")
    return {record: {(*place, name): member for place, name, member in branches} for record, branches in listed.items()}


def write_members(members: UnionMembers) -> str:
    """Write members as a table's schema has them; an empty text for none."""
    listed = {
        record: [[place[:-1], place[-1], member] for place, member in sorted(branches.items())]
        for record, branches in sorted(members.items())
        if branches
    }
    return json.dumps(listed, separators=(",", ":"), ensure_ascii=False) if listed else ""


def join_members(have: UnionMembers, want: UnionMembers) -> UnionMembers:
    """Return what a table has of its unions, and what a process wants to add. Raises UnionMemberConflict.

    A name may move from a member that had it as an alias to that of its own branch. A member whose names in both have
    none in common is that of two branches.
    """
    joined = dict(have)
    for record, branches in want.items():
        before = have.get(record, {})
        names_before = _names_of_members(before)
        for member, names in _names_of_members(branches).items():
            if names.isdisjoint(names_before.get(member, names)):
                raise UnionMemberConflict(f"column {'.'.join(member)} is that of another branch of its union by now")
        joined[record] = {**before, **branches}
    return joined


def _names_of_members(branches: Branches) -> Mapping[ColumnPath, set[str]]:
    """Return the names of the branches that fill each member, by its place."""
    names = dict[ColumnPath, set[str]]()
    for place, member in branches.items():
        names.setdefault((*place[:-1], member), set()).add(place[-1])
    return names
