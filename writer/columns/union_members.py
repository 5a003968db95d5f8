"""Which branch of a union fills which member of its column, as a table keeps it beside its columns.

A member says by its type alone what it was made for. That is not enough once the schema that made it is gone: another
branch of that type would fill it. So a table's schema has the names, as metadata of the column `_topic`, which each
table has. They are changed with the columns, in one entry. (docs/adr/0048-protected-paths.md)
"""

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from headrace.writer.columns.column_cast import ColumnPath

COLUMN = "_topic"
KEY = "headrace.union_members"
# In place of the name of a record: unions in columns of the table itself.
TABLE = ""
# (*path of a union, name of a branch) → its member.
Branches = Mapping[ColumnPath, str]
# Of the table; and of records that a spec shapes, by name, before it does.
UnionMembers = Mapping[str, Branches]


class UnionMemberConflict(ValueError):
    """A member of a union that two processes gave to two branches. Its message names the member."""


def union_members(columns: pa.Schema) -> UnionMembers:
    """Return what columns say of their unions; nothing where they lack it."""
    if COLUMN not in columns.names:
        return {}
    return read_members((columns.field(COLUMN).metadata or {}).get(KEY.encode(), b"").decode())


def with_members(columns: pa.Schema, members: UnionMembers) -> pa.Schema:
    """Return columns that say this of their unions."""
    text = write_members(members)
    if not text:
        return columns
    index = columns.get_field_index(COLUMN)
    return columns.set(index, columns.field(index).with_metadata({KEY: text}))


def read_members(text: str) -> UnionMembers:
    """Read what `write_members` wrote; nothing of an empty text."""
    document: Mapping[str, Any] = json.loads(text or "{}")
    members: dict[str, Branches] = {}
    for record, branches in document.items():
        members[record] = {(*path, name): member for path, name, member in branches}
    return members


def write_members(members: UnionMembers) -> str:
    """Write members as a table's schema has them; an empty text for none."""
    document: dict[str, list[list[Any]]] = {}
    for record, branches in sorted(members.items()):
        if branches:
            document[record] = [[path[:-1], path[-1], member] for path, member in sorted(branches.items())]
    if not document:
        return ""
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False)


def join_members(members: UnionMembers, additions: UnionMembers) -> UnionMembers:
    """Return what a table has of its unions, and what a process wants to add. Raises UnionMemberConflict.

    A name may move from a member that had it as an alias to that of its own branch. A member whose names in both have
    none in common is that of two branches.
    """
    joined = dict(members)
    for record, branches in additions.items():
        table_branches = members.get(record, {})
        table_names = _names_by_member(table_branches)
        for path, names in _names_by_member(branches).items():
            if names.isdisjoint(table_names.get(path, names)):
                raise UnionMemberConflict(f"column {'.'.join(path)} is that of another branch of its union by now")
        joined[record] = {**table_branches, **branches}
    return joined


def _names_by_member(branches: Branches) -> Mapping[ColumnPath, set[str]]:
    """Return the names of the branches that fill each member, by its path."""
    names = dict[ColumnPath, set[str]]()
    for path, member in branches.items():
        names.setdefault((*path[:-1], member), set()).add(path[-1])
    return names
