"""Avro schema resolution with the table as the reader: the column for each field, and the columns that must grow.

The table is a reader schema that grows: the union of all fields that admitted schemas have, each as the newest schema
that has it declares it. Its columns hold the types, and say which branches of unions fill which members; what else a
reader knows (names and aliases, defaults) is a `Reader`, worked out anew from the registered schemas at each start.
(docs/SCHEMAS.md)
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.columns.column_cast import CastRules, ColumnPath, Defaults, cast_values
from headrace.writer.columns.field_default import read_default
from headrace.writer.columns.type_promotion import can_promote, can_widen_in_iceberg, wider_type
from headrace.writer.privacy.union_branches import is_protected_name
from headrace.writer.protobuf.attributes import FORMAT, NUMBER, PROTOBUF

_LONG = pa.int64()
_NUMBER_NAMES = {_LONG: "long", pa.float64(): "double"}
_BRANCH_PROMOTIONS: Mapping[str, tuple[str, ...]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": (),
}
# Which columns may get a wider type; iceberg: by Iceberg's rules.
Widening = Literal["any", "iceberg", "none"]
_BRANCH_WIDENED: Mapping[Widening, Mapping[str, tuple[str, ...]]] = {
    "any": {"long": ("int",), "double": ("float", "int"), "float": ()},
    "iceberg": {"long": ("int",), "double": ("float",)},
    "none": {},
}
# By the attribute of a string in a record schema of JSON values.
_TEXTS: Mapping[str, str] = {"text": "JSON text", "rest": "JSON text of members without a column"}
_MEMBER = re.compile(r"member(\d+)")
_MICROSECONDS = {"ms": 1_000, "us": 1}
_TIMES_OF_DAY = {("int", "time-millis"), ("long", "time-micros")}
# The types of columns, or of members of a struct, by their names.
Types = Mapping[str, pa.DataType]


@dataclass(frozen=True)
class Reader:
    """What the accepted schemas define about the table's columns, besides their types."""

    # (*path of a record, name or alias of a field) → its member.
    names: Mapping[ColumnPath, str] = field(default_factory=dict)
    # (*path of a union, name of a branch) → its member.
    branches: Mapping[ColumnPath, str] = field(default_factory=dict)
    # Path of a number that is a time of day → its unit.
    times: Mapping[ColumnPath, str] = field(default_factory=dict)
    # Path of a string that JSON values fill → what its texts are.
    texts: Mapping[ColumnPath, str] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=dict)
    # (full name of a message, *path of a member) → the number of the field that fills it, where fields have numbers.
    numbers: Mapping[ColumnPath, int] = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedSchema:
    """A writer schema that fills the columns: what they become, and how it does."""

    columns: pa.Schema
    reader: Reader
    # Field → column.
    mapping: Mapping[str, str]
    cast_rules: CastRules


def resolve(
    record: avro.Record,
    columns: pa.Schema,
    reader: Reader,
    reserved: frozenset[str],
    *,
    widen: Widening,
    is_newest: bool = True,
) -> ResolvedSchema:
    """Resolve a writer's schema against the columns. Raises UnsupportedSchema with the first thing that does not fit.

    `reserved`: lower-case names that no column may take. `widen`: a column may get a wider type. `is_newest`: the
    schema decides over the defaults of columns that are there.
    """
    resolution = _Resolution(record, reader, reserved, widen=widen, is_newest=is_newest)
    types = {column.name: column.type for column in columns}
    grown_types, mapping = resolution.fill_members((), "", record.fields, types)
    fields: list[pa.Field] = []
    for name, kind in grown_types.items():
        # What stands beside a column's type stays.
        column = columns.field(name) if name in types else pa.field(name, kind)
        fields.append(column.with_type(kind))
    cast_rules = CastRules(resolution.sources, resolution.union_members, resolution.divisors)
    defaults = {path: default for path, default in reader.defaults.items() if path not in resolution.defaults}
    for path, (default, kind) in resolution.defaults.items():
        if default is not None:
            defaults[path] = cast_values(default, kind, path, cast_rules, {})
    grown_reader = Reader(
        resolution.names, resolution.branches, resolution.times, resolution.texts, defaults, resolution.numbers
    )
    return ResolvedSchema(pa.schema(fields), grown_reader, mapping, cast_rules)


def find_conflicts(
    record: avro.Record, columns: pa.Schema, reader: Reader, reserved: frozenset[str], *, widen: Widening
) -> list[str]:
    """Return a sentence for each field, at any depth, that does not fit the columns. `resolve` raises the first."""
    conflicts: list[str] = []
    resolution = _Resolution(record, reader, reserved, widen=widen, is_newest=True, conflicts=conflicts)
    resolution.fill_members((), "", record.fields, {column.name: column.type for column in columns})
    return conflicts


class _Resolution:
    """One writer schema that is resolved against the columns. Grows copies of what the reader knows.

    `path` is that of a column; `field_path` names the same part in the writer's schema, for a person.
    """

    def __init__(
        self,
        record: avro.Record,
        reader: Reader,
        reserved: frozenset[str],
        *,
        widen: Widening,
        is_newest: bool,
        trials: dict[tuple[ColumnPath, str], bool] | None = None,
        conflicts: list[str] | None = None,
    ) -> None:
        """`trials`: path of a branch, and its full name → whether it fits; of a resolution that tries a part.

        `conflicts`: takes what does not fit, so that the rest is looked at as well; None: the first raises.
        """
        self._conflicts = conflicts
        self._record = record
        self._reserved = reserved
        self._widen = widen
        self._is_newest = is_newest
        # Shared with trials: else each level of unions is tried twice as often as the one around it.
        self._trials: dict[tuple[ColumnPath, str], bool] = {} if trials is None else trials
        self.names = dict(reader.names)
        self.branches = dict(reader.branches)
        self.times = dict(reader.times)
        self.texts = dict(reader.texts)
        self.numbers = dict(reader.numbers)
        self._member_by_number = {(path[:-1], number): path[-1] for path, number in reader.numbers.items()}
        # The message whose fields have numbers.
        self._message = ""
        if record.root.get(FORMAT) == PROTOBUF:
            self._message = str(record.root["name"])
        # By path of a union: name of a branch → its member.
        self._unions = _group_by_union(reader.branches)
        self._records = {path[:-1] for path in reader.names}
        # As in `CastRules`.
        self.sources: dict[ColumnPath, Mapping[str, str]] = {}
        self.union_members: dict[ColumnPath, str] = {}
        self.divisors: dict[ColumnPath, int] = {}
        # Path of a field → its default, None without one, and the type of its column.
        self.defaults: dict[ColumnPath, tuple[pa.Array | None, pa.DataType]] = {}

    def fill_members(
        self, path: ColumnPath, field_path: str, fields: Sequence[Mapping[str, Any]], types: Types
    ) -> tuple[dict[str, pa.DataType], dict[str, str]]:
        """Fill the members of a record, or the columns. `types`: of those that are there.

        Returns the types of the members as they become, and field → member.
        """
        stored_fields = [spec for spec in fields if avro.table_type(self._record, spec["type"]) is not None]
        mapping = self._match_fields(path, field_path, stored_fields, types)
        grown_types = dict(types)
        for spec in stored_fields:
            name = spec["name"]
            if name not in mapping:
                continue
            member = mapping[name]
            member_path = (*path, member)
            kind = self._grow(member_path, _join_path(field_path, name), spec["type"], types.get(member))
            grown_types[member] = kind
            if self._is_newest or member not in types:
                self.defaults[member_path] = (self._read_default(spec), kind)
            self.names[*path, name] = member
            self._records.add(path)
            if self._message:
                record_path = (self._message, *path)
                self.numbers[*record_path, member] = spec[NUMBER]
                self._member_by_number[record_path, spec[NUMBER]] = member
                continue
            for alias in spec.get("aliases", []):
                self.names.setdefault((*path, alias), member)
        return grown_types, mapping

    def _read_default(self, spec: Mapping[str, Any]) -> pa.Array | None:
        try:
            return read_default(self._record, spec)
        except avro.UnsupportedSchema as error:
            self._refuse(str(error))
            return None

    def _match_fields(
        self, path: ColumnPath, field_path: str, fields: Sequence[Mapping[str, Any]], types: Types
    ) -> dict[str, str]:
        """Find the member that each field fills: of its name, of an alias, or known by one of them; else a new one.

        A field with a number fills the member of that number, whatever its name; else the one of its name, if no other
        number fills that; else a new one.
        """
        member_by_lower_name = {name.lower(): name for name in types}
        used_members = {spec["name"] for spec in fields if spec["name"] in types}
        mapping: dict[str, str] = {}
        filled_members: set[str] = set()
        for spec in fields:
            name = str(spec["name"])
            names = (name, *spec.get("aliases", []))
            if self._message:
                member = self._member_by_number.get(((self._message, *path), spec[NUMBER]), name)
            else:
                earlier = next((alias for alias in names if alias in types), None)
                member = earlier or self._earlier_member(path, names, types, used_members) or name
            if not path and member.lower() in self._reserved:
                self._refuse(f"field {name!r} has a name that headrace keeps for itself; rename it")
                continue
            if member_by_lower_name.setdefault(member.lower(), member) != member:
                self._refuse(
                    f"field {_join_path(field_path, name)!r} differs from column "
                    f"{_join_path('.'.join(path), member_by_lower_name[member.lower()])!r} only in case"
                )
                continue
            number = self.numbers.get((self._message, *path, member))
            if number is not None and number != spec[NUMBER]:
                self._refuse(
                    f"field {_join_path(field_path, name)!r} has the number {spec[NUMBER]}, but column "
                    f"{_join_path('.'.join(path), member)!r} holds the field of number {number}; give the new field "
                    "another name"
                )
                continue
            if member in filled_members:
                self._refuse(f"two fields would fill column {_join_path('.'.join(path), member)!r}")
                continue
            mapping[name] = member
            filled_members.add(member)
            used_members.add(member)
        return mapping

    def _earlier_member(
        self, path: ColumnPath, names: Iterable[str], types: Types, used_members: set[str]
    ) -> str | None:
        """Return the member that an earlier schema filled with a field of one of these names."""
        members = (self.names.get((*path, name)) for name in names)
        return next((member for member in members if member in types and member not in used_members), None)

    def _grow(
        self, path: ColumnPath, field_path: str, schema: avro.Schema, column_type: pa.DataType | None
    ) -> pa.DataType:
        """Return the type that a column gets from this schema. `column_type`: the type it has, None for a new one."""
        schema = self._record.resolve(schema)
        writer_type = avro.table_type(self._record, schema)
        if isinstance(schema, list):
            branches = [branch for branch in map(self._record.resolve, schema) if branch != "null"]
            if len(branches) == 1:
                return self._grow(path, field_path, branches[0], column_type)
            if pa.types.is_struct(writer_type):
                return self._grow_union(path, field_path, branches, column_type, writer_type)
        if path in self._unions or (column_type is not None and self._is_union(path, schema, column_type)):
            return self._grow_union_by_branch(path, field_path, schema, column_type, writer_type)
        is_new = column_type is None
        match avro.type_name(schema):
            case "record" if is_new or pa.types.is_struct(column_type):
                types, mapping = self.fill_members(path, field_path, schema["fields"], _member_types(column_type))
                self._set_sources(path, {member: name for name, member in mapping.items()})
                return pa.struct(list(types.items()))
            case "array" if is_new or pa.types.is_list(column_type):
                item_type = None if column_type is None else column_type.value_type
                item_type = self._grow((*path, "element"), f"{field_path}.element", schema["items"], item_type)
                return pa.list_(pa.field("element", item_type))
            case "map" if is_new or pa.types.is_map(column_type):
                value_type = None if column_type is None else column_type.item_type
                value_type = self._grow((*path, "value"), f"{field_path}.value", schema["values"], value_type)
                return pa.map_(pa.string(), value_type)
        return self._grow_scalar(path, field_path, schema, column_type, writer_type)

    def _grow_scalar(
        self,
        path: ColumnPath,
        field_path: str,
        schema: avro.Schema,
        column_type: pa.DataType | None,
        writer_type: pa.DataType,
    ) -> pa.DataType:
        unit = time_of_day(schema)
        column_unit = None
        if unit is not None:
            column_unit = self.times.setdefault(path, unit)
        text = self._text_of(schema)
        column_text = None
        if text is not None:
            column_text = self.texts.setdefault(path, text)
        if column_type is None:
            return writer_type
        column = ".".join(path)
        if column_text != text:
            self._refuse(f"field {field_path!r} is {text}, but column {column!r} holds {column_text}")
            return column_type
        if column_unit != unit:
            self._refuse(f"field {field_path!r} is a {unit}, but column {column!r} holds {column_unit}")
            return column_type
        if can_promote(writer_type, column_type):
            return column_type
        microseconds = _MICROSECONDS.get(avro.timestamp_unit(schema) or "")
        # A long that was given a logical type goes on as the number it is.
        if column_type == _LONG and microseconds:
            self.divisors[path] = microseconds
            return column_type
        wider = wider_type(column_type, writer_type)
        conflict = f"field {field_path!r} is {writer_type}, but column {column!r} holds {column_type}"
        if wider is None:
            self._refuse(conflict)
        elif self._widen == "none":
            self._refuse(f"{conflict}, and schemas.widen is 'reject'")
        elif self._widen == "iceberg" and not can_widen_in_iceberg(column_type, wider):
            self._refuse(f"{conflict}, which Iceberg does not widen to {wider}")
        else:
            return wider
        return column_type

    def _text_of(self, schema: avro.Schema) -> str | None:
        """Return what a string of JSON values is; None for all else, and where it is not known."""
        if avro.type_name(schema) != "string" or self._record.root.get("headrace.format") != "json":
            return None
        encoding = schema.get("headrace.json") if isinstance(schema, Mapping) else None
        return _TEXTS.get(str(encoding), "plain text")

    def _refuse(self, conflict: str) -> None:
        """Raise UnsupportedSchema, or note the conflict where all of them are looked for."""
        if self._conflicts is None:
            raise avro.UnsupportedSchema(conflict)
        self._conflicts.append(conflict)

    def _grow_union(
        self,
        path: ColumnPath,
        field_path: str,
        branches: list[avro.Schema],
        column_type: pa.DataType | None,
        writer_type: pa.DataType,
    ) -> pa.DataType:
        """Fill a union of several: each branch its own member, matched by name at any position."""
        if column_type is not None and not self._is_union(path, branches, column_type):
            self._refuse(f"field {field_path!r} is {writer_type}, but column {'.'.join(path)!r} holds {column_type}")
            return column_type
        writer_members = set(writer_type.names)
        sources = {f"member{i}": branch for i, branch in enumerate(branches) if f"member{i}" in writer_members}
        types = _member_types(column_type)
        if column_type is None and path not in self._unions:
            targets = {source: source for source in sources}
        else:
            targets = self._match_branches(path, sources, types)
        for source, member in targets.items():
            self._fill_union_member(path, field_path, sources[source], member, types)
        self._set_sources(path, {member: source for source, member in targets.items()})
        return _union_type(types)

    def _grow_union_by_branch(
        self,
        path: ColumnPath,
        field_path: str,
        schema: avro.Schema,
        column_type: pa.DataType | None,
        writer_type: pa.DataType,
    ) -> pa.DataType:
        """Fill a union by a writer that has one of its branches only."""
        branch = schema
        # A union of numbers is a single number to the table: of integers or of floats.
        if isinstance(schema, list):
            branch = _NUMBER_NAMES[writer_type]
        types = _member_types(column_type)
        member = self._match_branches(path, {"": branch}, types)[""]
        self.union_members[path] = member
        self._fill_union_member(path, field_path, branch, member, types)
        return _union_type(types)

    def _fill_union_member(
        self, path: ColumnPath, field_path: str, branch: avro.Schema, member: str, types: dict[str, pa.DataType]
    ) -> None:
        types[member] = self._grow((*path, member), f"{field_path}.{member}", branch, types.get(member))
        union = self._unions.setdefault(path, {})
        name, *aliases = avro.branch_names(branch)
        union[name] = member
        for alias in aliases:
            union.setdefault(alias, member)
        self.branches |= {(*path, branch_name): union[branch_name] for branch_name in (name, *aliases)}

    def _match_branches(self, path: ColumnPath, sources: Mapping[str, avro.Schema], types: Types) -> dict[str, str]:
        """Find the member for each branch: that of its full name, of an alias, or of its name without the namespace.

        Else one that it is promoted to, or that it widens; else one without a name so far; else a new one, whose number
        follows the others. No two branches have one member. (Avro 1.12, "Schema Resolution" and "Aliases")

        Protected values get no member without a name: it may have values in the clear. `types`: of the column's
        members; those that are known by names need not be among them yet, where a spec shapes the records.
        """
        member_by_name = dict(self._unions.get(path, {}))
        targets = self._match_branches_by_name(path, sources, types, member_by_name)
        used_members = set(targets.values())
        named_members = set(member_by_name.values())
        unnamed_members = [member for member in types if member not in named_members]
        next_number = max(map(_member_number, [*types, *named_members]), default=-1) + 1
        for source, branch in sources.items():
            if source in targets:
                continue
            candidates = self._unused_members(branch, types, member_by_name, unnamed_members, used_members)
            target = next(candidates, None)
            if target is None:
                target = f"member{next_number}"
                next_number += 1
            targets[source] = target
            used_members.add(target)
        return targets

    def _unused_members(
        self,
        branch: avro.Schema,
        types: Types,
        member_by_name: Mapping[str, str],
        unnamed_members: Sequence[str],
        used_members: set[str],
    ) -> Iterator[str]:
        """Yield the members that a branch may fill, the best first: of another name, then of its type alone."""
        name = avro.branch_names(branch)[0]
        for near_name in (*_BRANCH_PROMOTIONS.get(name, ()), *_BRANCH_WIDENED[self._widen].get(name, ())):
            if near_name in member_by_name and member_by_name[near_name] not in used_members:
                yield member_by_name[near_name]
        if is_protected_name(name):
            return
        writer_type = avro.table_type(self._record, branch)
        for member in unnamed_members:
            if member not in used_members and _can_fill(writer_type, types[member]):
                yield member

    def _match_branches_by_name(
        self, path: ColumnPath, sources: Mapping[str, avro.Schema], types: Types, member_by_name: Mapping[str, str]
    ) -> dict[str, str]:
        """Find the members that branches have by their names, by an alias, or by their names without the namespace."""
        targets: dict[str, str] = {}
        used_members: set[str] = set()
        names = {source: avro.branch_names(branch) for source, branch in sources.items()}
        # Of two branches of one full name, the first.
        source_by_name = {full_name: source for source, (full_name, *_) in reversed(names.items())}
        # Of two branches whose names have one member, the one gets it for which it was made.
        for name, member in member_by_name.items():
            source = source_by_name.get(name)
            if source is not None and member not in used_members:
                targets[source] = member
                used_members.add(member)
        for source, (_, *aliases) in names.items():
            by_alias = next((member_by_name[alias] for alias in aliases if alias in member_by_name), None)
            if source not in targets and by_alias is not None and by_alias not in used_members:
                targets[source] = by_alias
                used_members.add(by_alias)
        members_by_short_name = defaultdict[tuple[str, bool], set[str]](set)
        for name, member in member_by_name.items():
            members_by_short_name[_short_name(name)].add(member)
        for source, (full_name, *_) in names.items():
            members = members_by_short_name.get(_short_name(full_name), set())
            if source in targets or len(members) != 1 or not members.isdisjoint(used_members):
                continue
            (member,) = members
            member_type = types.get(member)
            if member_type is None or self._fits((*path, member), sources[source], member_type):
                targets[source] = member
                used_members.add(member)
        return targets

    def _fits(self, path: ColumnPath, branch: avro.Schema, member_type: pa.DataType) -> bool:
        """Return whether a member was made for such a named type and can take its values, without taking them."""
        key = (path, avro.branch_names(branch)[0])
        if key not in self._trials:
            self._trials[key] = self._try_to_grow(path, branch, member_type)
        return self._trials[key]

    def _try_to_grow(self, path: ColumnPath, schema: avro.Schema, member_type: pa.DataType) -> bool:
        writer_type = avro.table_type(self._record, schema)
        if writer_type is None or writer_type.id != member_type.id:
            return False
        trial = _Resolution(
            self._record,
            Reader(self.names, self.branches, self.times, self.texts, numbers=self.numbers),
            self._reserved,
            widen=self._widen,
            is_newest=self._is_newest,
            trials=self._trials,
        )
        try:
            trial._grow(path, "", schema, member_type)
        except avro.UnsupportedSchema:
            return False
        return True

    def _is_union(self, path: ColumnPath, schema: avro.Schema, column_type: pa.DataType) -> bool:
        """Return whether a column holds a union of several: known as one, or, as yet unknown, with members of one."""
        if path in self._unions:
            return True
        if not pa.types.is_struct(column_type) or not all(_MEMBER.fullmatch(name) for name in column_type.names):
            return False
        return avro.type_name(schema) != "record" and path not in self._records

    def _set_sources(self, path: ColumnPath, sources: Mapping[str, str]) -> None:
        if any(member != source for member, source in sources.items()):
            self.sources[path] = sources


def _group_by_union(branches: Mapping[ColumnPath, str]) -> dict[ColumnPath, dict[str, str]]:
    """Return the members of branches by the path of their union, and by their names."""
    unions: dict[ColumnPath, dict[str, str]] = {}
    for path, member in branches.items():
        unions.setdefault(path[:-1], {})[path[-1]] = member
    return unions


def _member_types(struct: pa.StructType | None) -> dict[str, pa.DataType]:
    """Return the types of a struct's members by their names; none for a column that is new."""
    return {} if struct is None else {member.name: member.type for member in struct}


def time_of_day(schema: avro.Schema) -> str | None:
    """Return the unit, as its logical type, of a time of day; None for all else."""
    if not isinstance(schema, dict):
        return None
    logical = schema.get("logicalType")
    return str(logical) if (schema["type"], logical) in _TIMES_OF_DAY else None


def _short_name(full_name: str) -> tuple[str, bool]:
    """Return a name without its namespace, and whether it is that of protected values: they share no member."""
    return avro.short_name(full_name), is_protected_name(full_name)


def _join_path(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _member_number(member: str) -> int:
    """Return the number of a union's member; -1 for a name that is none of one."""
    match = _MEMBER.fullmatch(member)
    return int(match[1]) if match else -1


def _union_type(types: Types) -> pa.DataType:
    """Return the struct of a union's members, by their numbers."""
    return pa.struct(sorted(types.items(), key=lambda member: _member_number(member[0])))


def _can_fill(writer_type: pa.DataType, member_type: pa.DataType) -> bool:
    """Return whether a branch may be what a member of a union was made for."""
    if pa.types.is_nested(writer_type):
        return bool(writer_type.id == member_type.id)
    return can_promote(writer_type, member_type)
