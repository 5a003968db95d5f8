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
from itertools import chain
from typing import Any, Literal

import pyarrow as pa

from writer.avro import schema as avro
from writer.avro.column_cast import CastRules, ColumnPath, Defaults, cast_values
from writer.avro.decoding.value_reader import branch_members, value_converter
from writer.privacy.union_branches import is_protected_name

_INT_RANGE, _LONG_RANGE = range(-(2**31), 2**31), range(-(2**63), 2**63)


class NoValue(ValueError):
    """A default that is no value of its field's type, which Avro forbids and not every registry notices."""


def default_of(record: avro.Record, field: Mapping[str, Any]) -> pa.Array | None:
    """Return a field's default as an array of one; None when it has none, or null, or one that its type cannot hold."""
    if field.get("default") is None:
        return None
    kind = avro.table_type(record, field["type"])
    try:
        return pa.array([_read(record, field["type"], field["default"])], kind)
    except (ValueError, TypeError, ArithmeticError, pa.ArrowException):
        return None


def _read(record: avro.Record, schema: avro.Schema, given: Any) -> Any:
    """Turn JSON into the value of a column. Raises NoValue, and ValueError for what the column cannot hold."""
    schema = record.resolve(schema)
    if isinstance(schema, list):
        return _branch(record, schema, given)
    value = _read_one(record, schema, given)
    shape = value_converter(schema)
    return value if shape is None else shape(value)


def _read_one(record: avro.Record, schema: avro.Schema, given: Any) -> Any:
    """Turn JSON into a value of no union, as it is written. Avro 1.12, "Complex Types": bytes are code points."""
    kind = schema["type"] if isinstance(schema, dict) else schema
    match kind, given:
        case "null", None:
            return None
        case "boolean", bool():
            return given
        case ("int", int()) | ("long", int()) if not isinstance(given, bool):
            if given in (_INT_RANGE if kind == "int" else _LONG_RANGE):
                return given
        case "float" | "double", int() | float() if not isinstance(given, bool):
            return float(given)
        case "string", str():
            return given
        case "enum", str() if given in schema["symbols"]:
            return given
        case "bytes", str():
            return given.encode("latin-1")
        case "fixed", str() if len(given) == schema["size"]:
            return given.encode("latin-1")
        case "array", list():
            return [_read(record, schema["items"], item) for item in given]
        case "map", dict():
            return {str(key): _read(record, schema["values"], item) for key, item in given.items()}
        case "record", dict():
            return {f["name"]: _read(record, f["type"], _given(f, given)) for f in schema["fields"]}
    raise NoValue(f"{given!r} is no {kind}")


def _given(field: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    if field["name"] in values:
        return values[field["name"]]
    if "default" in field:
        return field["default"]
    raise NoValue(f"it has no {field['name']!r}")


def _branch(record: avro.Record, schema: list[Any], given: Any) -> Any:
    """Choose the first branch that can hold it, as Avro 1.12 defines; older versions allowed only the first branch."""
    for member, branch in zip(branch_members(record, schema), schema, strict=True):
        try:
            value = _read(record, branch, given)
        except NoValue:
            continue
        return value if member is None else {member: value}
    raise NoValue(f"{given!r} is of none of the types of its union")


_INT, _LONG, _FLOAT, _DOUBLE = pa.int32(), pa.int64(), pa.float32(), pa.float64()
# Avro 1.12, schema resolution; a date is an int to a reader that does not know dates. But bytes are no text here: they
# need not be UTF-8.
_PROMOTIONS = {
    _INT: (_LONG, _FLOAT, _DOUBLE), _LONG: (_FLOAT, _DOUBLE), _FLOAT: (_DOUBLE,), pa.string(): (pa.binary(),),
    pa.date32(): (_INT,),
}  # fmt: skip
# Column and value → what holds both exactly, and what readers make of the column's older files.
_WIDER = {
    (_INT, _LONG): _LONG, (_INT, _DOUBLE): _DOUBLE, (_INT, _FLOAT): _DOUBLE, (_FLOAT, _DOUBLE): _DOUBLE,
}  # fmt: skip
_BRANCH_PROMOTIONS = {"int": ("long", "float", "double"), "long": ("float", "double"), "float": ("double",),
                      "string": ("bytes",), "bytes": ()}  # fmt: skip
Widening = Literal["any", "iceberg", "none"]  # which columns may get a wider type; iceberg: by Iceberg's rules
_BRANCH_WIDENED: Mapping[Widening, Mapping[str, tuple[str, ...]]] = {
    "any": {"long": ("int",), "double": ("float", "int"), "float": ()},
    "iceberg": {"long": ("int",), "double": ("float",)},
    "none": {},
}
# Of JSON, inside one another: delta-rs reads at most 127, and the table around the columns has some.
_BRACKETS_MAX = 121
# Of types inside one another: Arrow hands none of more to other libraries, such as delta-rs.
_LEVELS_MAX = 60
_MEMBER = re.compile(r"member(\d+)")
_MICROSECONDS = {"ms": 1_000, "us": 1}
_TIMES_OF_DAY = {("int", "time-millis"), ("long", "time-micros")}


@dataclass(frozen=True)
class Reader:
    """What the accepted schemas define about the table's columns, besides their types."""

    names: Mapping[ColumnPath, str] = field(default_factory=dict)  # (*place of a record, name or alias) → its member
    branches: Mapping[ColumnPath, str] = field(
        default_factory=dict
    )  # (*place of a union, name of a branch) → its member
    times: Mapping[ColumnPath, str] = field(default_factory=dict)  # place of a number that is a time of day → its unit
    defaults: Defaults = field(default_factory=dict)


@dataclass(frozen=True)
class ResolvedSchema:
    """A writer schema that fills the columns: what they become, and how it does."""

    columns: pa.Schema
    reader: Reader
    mapping: Mapping[str, str]  # field → column
    cast_rules: CastRules


def resolve(
    record: avro.Record, columns: pa.Schema, reader: Reader, reserved: frozenset[str], *, widen: Widening,
    is_newest: bool = True,
) -> ResolvedSchema:  # fmt: skip
    """Resolve a writer's schema against the columns. Raises UnsupportedSchema with the first thing that does not fit.

    `reserved`: lower-case names that no column may take. `widen`: a column may get a wider type. `is_newest`: the
    schema decides over the defaults of columns that are there.
    """
    work = _Resolution(record, reader, reserved, widen=widen, is_newest=is_newest)
    have = {column.name: column.type for column in columns}
    members, mapping = work.members((), "", record.fields, have)
    cast_rules = CastRules(work.parts, work.wrapped, work.divided)
    defaults = {place: one for place, one in reader.defaults.items() if place not in work.declared}
    for place, (one, kind) in work.declared.items():
        if one is not None:
            defaults[place] = cast_values(one, kind, place, cast_rules, {})
    fields = [columns.field(name).with_type(kind) if name in have else pa.field(name, kind)
              for name, kind in members.items()]  # fmt: skip
    known = Reader(work.names, work.branches, work.times, defaults)
    return ResolvedSchema(pa.schema(fields), known, mapping, cast_rules)


def check_depth(columns: pa.Schema) -> None:
    """Raise UnsupportedSchema for columns that lie too deep for readers: of a log, as JSON, or of Arrow's types."""
    deepest = max((_brackets(column.type) for column in columns), default=0)
    if deepest > _BRACKETS_MAX:
        raise avro.UnsupportedSchema("its records and unions lie more than 40 levels inside one another; flatten it")
    if max((_levels(column.type) for column in columns), default=0) > _LEVELS_MAX:
        raise avro.UnsupportedSchema(
            f"its types lie more than {_LEVELS_MAX} levels inside one another, where a map is two; flatten it"
        )


def _brackets(kind: pa.DataType) -> int:
    """Return how many brackets stand inside one another where a type is written as Delta and Iceberg do."""
    if pa.types.is_map(kind):
        return 1 + max(_brackets(kind.key_type), _brackets(kind.item_type))
    inner = max((_brackets(kind.field(number).type) for number in range(kind.num_fields)), default=0)
    return inner + (3 if pa.types.is_struct(kind) else 1)


def _levels(kind: pa.DataType) -> int:
    """Return how many types lie inside one another, as Arrow counts them: a map has entries, which are structs."""
    return 1 + max((_levels(kind.field(number).type) for number in range(kind.num_fields)), default=0)


def check_dotted_paths(columns: pa.Schema, reserved: frozenset[str]) -> None:
    """Raise UnsupportedSchema for two fields whose paths, with dots between the names, are alike but for their case.

    `reserved`: lower-case names of columns besides these.
    """
    paths: dict[str, ColumnPath] = {}
    for place in _places(list(columns), ()):
        path = ".".join(place)
        is_of_other = len(place) == 1 and "." in path and path.lower().partition(".")[0] in reserved
        if is_of_other or paths.setdefault(path.lower(), place) != place:
            raise avro.UnsupportedSchema(
                f"field {path!r} has the name of a field inside another, as the table's format writes names; rename it"
            )


def _places(fields: Iterable[pa.Field], around: ColumnPath) -> Iterator[ColumnPath]:
    """Yield where each of these fields lies, and each part of them."""
    for part in fields:
        place = (*around, part.name)
        yield place
        if pa.types.is_map(part.type):
            yield from _places([part.type.key_field, part.type.item_field], place)
        else:
            yield from _places((part.type.field(number) for number in range(part.type.num_fields)), place)


class _Resolution:
    """One writer schema on its way through the columns. Grows copies of what the reader knows."""

    def __init__(
        self, record: avro.Record, reader: Reader, reserved: frozenset[str], *, widen: Widening, is_newest: bool,
        trials: dict[tuple[ColumnPath, str], bool] | None = None,
    ) -> None:  # fmt: skip
        """`trials`: place of a branch, and its full name → whether it fits; of a resolution that tries a part."""
        self._record, self._reserved, self._widen = record, reserved, widen
        self._is_newest = is_newest
        # Shared with trials: else each level of unions is tried twice as often as the one around it.
        self._trials = dict[tuple[ColumnPath, str], bool]() if trials is None else trials
        self.names = dict(reader.names)
        self.branches = dict(reader.branches)
        self.times = dict(reader.times)
        # By place of a union: name of a branch → its member.
        self._unions = _group_by_place(reader.branches)
        self._records = {place[:-1] for place in reader.names}
        self.parts: dict[ColumnPath, Mapping[str, str]] = {}
        self.wrapped: dict[ColumnPath, str] = {}
        self.divided: dict[ColumnPath, int] = {}
        self.declared: dict[
            ColumnPath, tuple[pa.Array | None, pa.DataType]
        ] = {}  # place → its default, None without one

    def members(
        self, place: ColumnPath, at: str, fields: Sequence[Mapping[str, Any]], have: Mapping[str, pa.DataType]
    ) -> tuple[dict[str, pa.DataType], dict[str, str]]:
        """Fill the members of a record, or the columns. `at`: where the writer has it, for a person.

        Returns the members as they become, and field → member.
        """
        stored = [f for f in fields if avro.table_type(self._record, f["type"]) is not None]
        mapping = self._targets(place, at, stored, have)
        members = dict(have)
        for spec in stored:
            member, shown = mapping[spec["name"]], _dotted(at, spec["name"])
            kind = self._kind((*place, member), shown, spec["type"], have.get(member))
            members[member] = kind
            if self._is_newest or member not in have:
                self.declared[*place, member] = (default_of(self._record, spec), kind)
            self.names[*place, spec["name"]] = member
            self._records.add(place)
            for alias in spec.get("aliases", []):
                self.names.setdefault((*place, alias), member)
        return members, mapping

    def _targets(
        self, place: ColumnPath, at: str, fields: Sequence[Mapping[str, Any]], have: Mapping[str, pa.DataType]
    ) -> dict[str, str]:
        """Find the member that each field fills: of its name, of an alias, or known by one of them; else a new one."""
        by_case = {name.lower(): name for name in have}
        taken = {f["name"] for f in fields if f["name"] in have}
        mapping: dict[str, str] = {}
        filled: set[str] = set()
        for spec in fields:
            name, aliases = str(spec["name"]), spec.get("aliases", [])
            stored = next((known for known in (name, *aliases) if known in have), None)
            member = stored or self._remembered(place, (name, *aliases), have, taken) or name
            if not place and member.lower() in self._reserved:
                raise avro.UnsupportedSchema(f"field {name!r} has a name that headrace keeps for itself; rename it")
            if by_case.setdefault(member.lower(), member) != member:
                other = _dotted(".".join(place), by_case[member.lower()])
                raise avro.UnsupportedSchema(f"field {_dotted(at, name)!r} differs from column {other!r} only in case")
            if member in filled:
                raise avro.UnsupportedSchema(f"two fields would fill column {_dotted('.'.join(place), member)!r}")
            mapping[name] = member
            filled.add(member)
            taken.add(member)
        return mapping

    def _remembered(
        self, place: ColumnPath, names: Iterable[str], have: Mapping[str, pa.DataType], taken: set[str]
    ) -> str | None:
        """Return the member that an earlier schema filled with a field of one of these names."""
        known = (self.names.get((*place, name)) for name in names)
        return next((member for member in known if member in have and member not in taken), None)

    def _kind(self, place: ColumnPath, at: str, schema: avro.Schema, have: pa.DataType | None) -> pa.DataType:
        """Return the type that a place gets from this schema. `have`: the type it has, None for a new one."""
        schema = self._record.resolve(schema)
        want = avro.table_type(self._record, schema)
        if isinstance(schema, list):
            branches = [branch for branch in map(self._record.resolve, schema) if branch != "null"]
            if len(branches) == 1:
                return self._kind(place, at, branches[0], have)
            if pa.types.is_struct(want):
                return self._union(place, at, branches, have, want)
        if place in self._unions or (have is not None and self._is_union(place, schema, have)):
            return self._one_branch(place, at, schema, want, have)
        match schema["type"] if isinstance(schema, dict) else schema:
            case "record" if have is None or pa.types.is_struct(have):
                inside = {} if have is None else {part.name: part.type for part in have}
                members, mapping = self.members(place, at, schema["fields"], inside)
                self._remember_parts(place, {member: name for name, member in mapping.items()})
                return pa.struct(list(members.items()))
            case "array" if have is None or pa.types.is_list(have):
                item = self._kind(
                    (*place, "element"), f"{at}.element", schema["items"], have.value_type if have is not None else None
                )
                return pa.list_(pa.field("element", item))
            case "map" if have is None or pa.types.is_map(have):
                value = self._kind(
                    (*place, "value"), f"{at}.value", schema["values"], have.item_type if have is not None else None
                )
                return pa.map_(pa.string(), value)
        return self._scalar(place, at, schema, want, have)

    def _scalar(
        self, place: ColumnPath, at: str, schema: avro.Schema, want: pa.DataType, have: pa.DataType | None
    ) -> pa.DataType:
        unit = time_of_day(schema)
        known = self.times.setdefault(place, unit) if unit else None
        if have is None:
            return want
        column = ".".join(place)
        if known != unit:
            raise avro.UnsupportedSchema(f"field {at!r} is a {unit}, but column {column!r} holds {known}")
        if want == have or have in _PROMOTIONS.get(want, ()) or _holds(have, want):
            return have
        per_number = _MICROSECONDS.get(avro.timestamp_unit(schema) or "")
        if have == _LONG and per_number:  # a long that was given a logical type goes on as the number it is
            self.divided[place] = per_number
            return have
        wider = _WIDER.get((have, want)) or _wider_decimal(have, want)
        if wider is None:
            raise avro.UnsupportedSchema(f"field {at!r} is {want}, but column {column!r} holds {have}")
        if self._widen == "none":
            raise avro.UnsupportedSchema(
                f"field {at!r} is {want}, but column {column!r} holds {have}, and schemas.widen is 'reject'"
            )
        if self._widen == "iceberg" and not _iceberg_widens(have, wider):
            raise avro.UnsupportedSchema(
                f"field {at!r} is {want}, but column {column!r} holds {have}, which Iceberg does not widen to {wider}"
            )
        return wider

    def _union(
        self, place: ColumnPath, at: str, branches: list[avro.Schema], have: pa.DataType | None, want: pa.DataType
    ) -> pa.DataType:
        """Fill a union of several: each branch its own member, matched by name at any position."""
        if have is not None and not self._is_union(place, branches, have):
            raise avro.UnsupportedSchema(f"field {at!r} is {want}, but column {'.'.join(place)!r} holds {have}")
        stored = set(want.names)
        mine = {f"member{i}": branch for i, branch in enumerate(branches) if f"member{i}" in stored}
        members = {} if have is None else {part.name: part.type for part in have}
        is_new = have is None and place not in self._unions
        targets = {source: source for source in mine} if is_new else self._targets_in(place, mine, members)
        for source, member in targets.items():
            self._fill(place, at, mine[source], member, members)
        self._remember_parts(place, {member: source for source, member in targets.items()})
        return _in_order(members)

    def _one_branch(
        self, place: ColumnPath, at: str, schema: avro.Schema, want: pa.DataType, have: pa.DataType | None
    ) -> pa.DataType:
        """Fill a union by a writer that has one of its branches only."""
        branch = ("long" if want == _LONG else "double") if isinstance(schema, list) else schema
        members = {} if have is None else {part.name: part.type for part in have}
        member = self._targets_in(place, {"": branch}, members)[""]
        self.wrapped[place] = member
        self._fill(place, at, branch, member, members)
        return _in_order(members)

    def _fill(
        self, place: ColumnPath, at: str, branch: avro.Schema, member: str, members: dict[str, pa.DataType]
    ) -> None:
        members[member] = self._kind((*place, member), f"{at}.{member}", branch, members.get(member))
        union = self._unions.setdefault(place, {})
        name, *aliases = avro.branch_names(branch)
        union[name] = member
        for alias in aliases:
            union.setdefault(alias, member)
        self.branches |= {(*place, known): union[known] for known in (name, *aliases)}

    def _targets_in(
        self, place: ColumnPath, mine: Mapping[str, avro.Schema], members: Mapping[str, pa.DataType]
    ) -> dict[str, str]:
        """Find the member for each branch: that of its full name, of an alias, or of its name without the namespace.

        Else one that it is promoted to, or that it widens; else one without a name so far; else a new one, whose number
        follows the others. No two branches have one member. (Avro 1.12, "Schema Resolution" and "Aliases")

        Protected values get no member without a name: it may have values in the clear. `members`: of the column; those
        that are known by names need not be among them yet, where a spec shapes the records.
        """
        known = dict(self._unions.get(place, {}))
        targets = self._named_targets(place, mine, members, known)
        taken = set(targets.values())
        named = set(known.values())
        unnamed = [member for member in members if member not in named]
        free = max(map(_number, [*members, *named]), default=-1) + 1
        for key, branch in mine.items():
            if key in targets:
                continue
            name, want = avro.branch_names(branch)[0], avro.table_type(self._record, branch)
            near = (*_BRANCH_PROMOTIONS.get(name, ()), *_BRANCH_WIDENED[self._widen].get(name, ()))
            of_other_names = (known[other] for other in near if other in known)
            without_names = [] if is_protected_name(name) else unnamed
            of_type = (member for member in without_names if member not in taken and _alike(want, members[member]))
            fitting = chain(of_other_names, of_type)
            target = next((member for member in fitting if member not in taken), f"member{free}")
            free += target == f"member{free}"
            targets[key] = target
            taken.add(target)
        return targets

    def _named_targets(
        self,
        place: ColumnPath,
        mine: Mapping[str, avro.Schema],
        members: Mapping[str, pa.DataType],
        known: Mapping[str, str],
    ) -> dict[str, str]:
        """Find the members that branches have by their names. `known`: name of a branch → its member."""
        targets: dict[str, str] = {}
        taken: set[str] = set()
        names = {key: avro.branch_names(branch) for key, branch in mine.items()}
        keys = {full: key for key, (full, *_) in reversed(names.items())}
        # Of two branches that one member is known for, the one has it for which it was made.
        for name, member in known.items():
            key = keys.get(name)
            if key is not None and member not in taken:
                targets[key] = member
                taken.add(member)
        for key, (_, *aliases) in names.items():
            by_alias = next((known[alias] for alias in aliases if alias in known), None)
            if key not in targets and by_alias is not None and by_alias not in taken:
                targets[key] = by_alias
                taken.add(by_alias)
        by_short_name = defaultdict[tuple[str, bool], set[str]](set)
        for name, member in known.items():
            by_short_name[_short_name(name)].add(member)
        for key, (full, *_) in names.items():
            near = by_short_name.get(_short_name(full), set())
            if key in targets or len(near) != 1 or not near.isdisjoint(taken):
                continue
            (member,) = near
            have = members.get(member)
            if have is None or self._fits((*place, member), mine[key], have):
                targets[key] = member
                taken.add(member)
        return targets

    def _fits(self, place: ColumnPath, branch: avro.Schema, have: pa.DataType) -> bool:
        """Return whether a place was made for such a named type and can take its values, without taking them."""
        key = place, avro.branch_names(branch)[0]
        if key not in self._trials:
            self._trials[key] = self._try(place, branch, have)
        return self._trials[key]

    def _try(self, place: ColumnPath, schema: avro.Schema, have: pa.DataType) -> bool:
        want = avro.table_type(self._record, schema)
        if want is None or want.id != have.id:
            return False
        trial = _Resolution(
            self._record,
            Reader(self.names, self.branches, self.times),
            self._reserved,
            widen=self._widen,
            is_newest=self._is_newest,
            trials=self._trials,
        )
        try:
            trial._kind(place, "", schema, have)
        except avro.UnsupportedSchema:
            return False
        return True

    def _is_union(self, place: ColumnPath, schema: avro.Schema, have: pa.DataType) -> bool:
        """Return whether a place holds a union of several: known as one, or, as yet unknown, with members of one."""
        if place in self._unions:
            return True
        named = pa.types.is_struct(have) and all(_MEMBER.fullmatch(name) for name in have.names)
        is_record = isinstance(schema, dict) and schema["type"] == "record"
        return named and not is_record and place not in self._records

    def _remember_parts(self, place: ColumnPath, sources: Mapping[str, str]) -> None:
        if any(member != source for member, source in sources.items()):
            self.parts[place] = sources


def _group_by_place(branches: Mapping[ColumnPath, str]) -> dict[ColumnPath, dict[str, str]]:
    """Return the members of branches by the place of their union, and by their names."""
    unions: dict[ColumnPath, dict[str, str]] = {}
    for place, member in branches.items():
        unions.setdefault(place[:-1], {})[place[-1]] = member
    return unions


def time_of_day(schema: avro.Schema) -> str | None:
    """Return the unit, as its logical type, of a time of day; None for all else."""
    if not isinstance(schema, dict):
        return None
    found = (schema["type"], schema.get("logicalType"))
    return str(found[1]) if found in _TIMES_OF_DAY else None


def _short_name(full: str) -> tuple[str, bool]:
    """Return a name without its namespace, and whether it is that of protected values: they share no member."""
    return avro.short_name(full), is_protected_name(full)


def _dotted(at: str, name: str) -> str:
    return f"{at}.{name}" if at else name


def _number(member: str) -> int:
    found = _MEMBER.fullmatch(member)
    return int(found[1]) if found else -1


def _in_order(members: Mapping[str, pa.DataType]) -> pa.DataType:
    return pa.struct(sorted(members.items(), key=lambda part: _number(part[0])))


def _alike(kind: pa.DataType, member: pa.DataType) -> bool:
    """Return whether a branch may be what a member of a union was made for."""
    if pa.types.is_nested(kind):
        return bool(kind.id == member.id)
    return kind == member or member in _PROMOTIONS.get(kind, ()) or _holds(member, kind)


def _holds(column: pa.DataType, kind: pa.DataType) -> bool:
    """Return whether a decimal column holds every value of another decimal."""
    if not (pa.types.is_decimal(column) and pa.types.is_decimal(kind)):
        return False
    return bool(kind.scale <= column.scale and kind.precision - kind.scale <= column.precision - column.scale)


def _iceberg_widens(have: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether Iceberg can give a column the wider type: int to long, float to double, more digits of a scale.

    https://iceberg.apache.org/spec/#schema-evolution
    """
    if pa.types.is_decimal(have):
        return bool(have.scale == wider.scale)
    return bool((pa.types.is_integer(have) and pa.types.is_integer(wider)) or pa.types.is_float32(have))


def _wider_decimal(column: pa.DataType, kind: pa.DataType) -> pa.DataType | None:
    """Return the least decimal that holds the values of both; None when there is none."""
    if not (pa.types.is_decimal(column) and pa.types.is_decimal(kind)):
        return None
    scale = max(column.scale, kind.scale)
    digits = max(column.precision - column.scale, kind.precision - kind.scale)
    return pa.decimal128(digits + scale, scale) if digits + scale <= avro.DECIMAL_DIGITS_MAX else None
