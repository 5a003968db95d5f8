"""The columns that a sample of JSON objects proposes for `columns.declared`, for a person to edit. Pure.

Nothing of the sample's values is in a proposal. Names are, but for those that look like values, such as the ids of
users by which an object keeps its members.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pyarrow as pa

from headrace.writer.avro.schema import Record, parse
from headrace.writer.columns.resolution import Reader, find_conflicts, resolve
from headrace.writer.config.yaml_text import dump_inline
from headrace.writer.core.text import join_first, plural
from headrace.writer.json.declared import ANY_NAME, declared_record
from headrace.writer.json.record_schema import REST
from headrace.writer.preflight.proposal.member_statistics import LEVELS_MAX, ObjectStatistics, ValueStatistics

# Columns of one table, those inside objects counted, that a person still reads.
COLUMNS_MAX = 100
# Columns of one object inside another.
_MEMBERS_MAX = 50
# Fewer objects and names do not show whether names repeat.
_OBJECTS_MIN = 10
_NAMES_MIN = 10
# Characters of a name; a longer one is a value.
_NAME_MAX = 64
_NAMES_SHOWN = 10
_BELIEVED = timedelta(days=20 * 365.25)
_UNITS: Mapping[str, int] = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
_UNIT_NAMES: Mapping[str, str] = {"s": "Seconds", "ms": "Milliseconds", "us": "Microseconds", "ns": "Nanoseconds"}
_TIME_WORDS = frozenset(
    [
        "at", "ts", "time", "timestamp", "date", "datetime", "epoch", "when", "since", "until", "from", "created",
        "updated", "modified", "changed", "deleted", "received", "sent", "occurred", "happened", "published", "started",
        "finished", "ended", "expires", "expired", "expiry",
    ]
)  # fmt: skip
_TIME_ENDS = ("time", "timestamp")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
# Names that are values: numbers, long hexadecimal ones and UUIDs, addresses, times, paths, long ones with digits.
_VALUE_NAME = re.compile(
    r"[\d.,:+/-]+|[0-9a-fA-F-]{16,}|.+@.+|\d{4}-\d\d-\d\d.*|.*[/\\].*|.*\d{6,}.*|(?=(\D*\d){3})[A-Za-z0-9]{20,}",
    re.DOTALL,
)
# Delta keeps no column with one of these in its name.
_NO_COLUMN_NAME = re.compile(r"[ ,;{}()\n\t=\x00-\x1f\x7f-\x9f\u2028\u2029\ufeff]")


@dataclass(frozen=True)
class ProposedColumn:
    """A column for a member of objects.

    `declaration`: as `columns.declared` has it, with columns in the place of a mapping of members; None: the member has
    no column. `note`: what a person should know, in lines of a comment.
    """

    name: str
    declaration: Any
    note: str = ""

    @property
    def columns(self) -> int:
        """Number of columns, those inside counted."""
        return _count_columns(self.declaration)


def propose_columns(statistics: ObjectStatistics, reserved: Collection[str], now: datetime) -> list[ProposedColumn]:
    """Return a column for each member, in the order of their first appearance, and notes of those without one.

    `reserved`: names of the table's own columns. `statistics`: of whole values. There may be no columns.
    """
    return _Proposal(frozenset(name.lower() for name in reserved), now).propose_root(statistics)


def leave_out_conflicts(columns: Sequence[ProposedColumn], record_texts: Collection[str]) -> list[ProposedColumn]:
    """Return columns without those that record schemas, of other values of the topic, have by another type.

    `record_texts`: of schemas that have columns.
    """
    records = [parse(text) for text in record_texts]
    names = {field["name"].lower() for record in records for field in record.fields}
    proposals: list[ProposedColumn] = []
    for column in columns:
        if column.declaration is not None and column.name.lower() in names and _has_conflict(column, records):
            note = (
                f"{dump_inline(column.name)}: the registry's schemas have a column of this name and another type; the "
                "member stays in rest."
            )
            proposals.append(ProposedColumn(column.name, None, note))
        else:
            proposals.append(column)
    return proposals


def _has_conflict(column: ProposedColumn, records: Sequence[Record]) -> bool:
    """Return whether a column alone does not fit the fields of a record that are called like it."""
    declared = parse(declared_record(declaration([column]), "drop", "dead_letter"))
    resolved = resolve(declared, pa.schema([]), Reader(), frozenset(), widen="any")
    return any(
        find_conflicts(record, resolved.columns, resolved.reader, frozenset(), widen="any") for record in records
    )


def declaration(columns: Sequence[ProposedColumn]) -> dict[str, Any]:
    """Return columns as `columns.declared` of the configuration has them."""
    return {column.name: _plain(column.declaration) for column in columns if column.declaration is not None}


def declaration_lines(columns: Sequence[ProposedColumn], indent: int) -> Iterator[str]:
    """Yield columns as lines of YAML, each below its note."""
    margin = " " * indent
    for column in columns:
        yield from (f"{margin}# {line}" for line in column.note.splitlines())
        if column.declaration is not None:
            yield from _lines(dump_inline(column.name), column.declaration, indent)


def _lines(key: str, kind: Any, indent: int) -> Iterator[str]:
    margin = " " * indent
    if not _has_members(kind):
        yield f"{margin}{key}: {dump_inline(kind)}"
        return
    yield f"{margin}{key}:"
    if isinstance(kind, tuple):
        yield from declaration_lines(kind, indent + 2)
    elif isinstance(kind, Mapping):
        yield from _lines(dump_inline(ANY_NAME), kind[ANY_NAME], indent + 2)
    else:
        yield from _item_lines(kind[0], indent + 2)


def _item_lines(kind: Any, indent: int) -> Iterator[str]:
    """Yield the one item of a list, whose first line that is no comment begins with a dash."""
    margin = " " * indent
    if isinstance(kind, tuple):
        lines = declaration_lines(kind, indent + 2)
    elif isinstance(kind, Mapping):
        lines = _lines(dump_inline(ANY_NAME), kind[ANY_NAME], indent + 2)
    else:
        lines = _item_lines(kind[0], indent + 2)
    is_first = True
    for line in lines:
        if is_first and not line.lstrip().startswith("#"):
            yield f"{margin}- {line[indent + 2 :]}"
            is_first = False
        else:
            yield line


def _has_members(kind: Any) -> bool:
    if isinstance(kind, list):
        return _has_members(kind[0])
    if isinstance(kind, Mapping):
        return _has_members(kind[ANY_NAME])
    return isinstance(kind, tuple)


def _plain(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return declaration(kind)
    if isinstance(kind, list):
        return [_plain(kind[0])]
    if isinstance(kind, Mapping):
        return {ANY_NAME: _plain(kind[ANY_NAME])}
    return kind


def _count_columns(kind: Any) -> int:
    if isinstance(kind, tuple):
        return sum(column.columns for column in kind)
    if isinstance(kind, list):
        return _count_columns(kind[0])
    if isinstance(kind, Mapping):
        return _count_columns(kind[ANY_NAME])
    return int(kind is not None)


@dataclass(frozen=True)
class _Type:
    """A type, and what a person should know of it."""

    declaration: Any
    note: str = ""


def _json(reason: str) -> _Type:
    return _Type("json", f"JSON text: {reason}")


class _Proposal:
    def __init__(self, reserved: frozenset[str], now: datetime) -> None:
        self._reserved = reserved
        self._now = now

    def propose_root(self, statistics: ObjectStatistics) -> list[ProposedColumn]:
        columns = self._members(statistics, self._reserved, 0)
        columns = _limit_columns(columns, statistics.counts)
        if statistics.others is not None:
            columns.append(ProposedColumn("", None, "And there are more members, which stay in rest."))
        return columns

    def _members(self, statistics: ObjectStatistics, reserved: frozenset[str], level: int) -> list[ProposedColumn]:
        """Return a column for each member of an object that can have one; the note of a member without one.

        `level`: how many objects and arrays are around the member.
        """
        kept_names = _names_without_collision(statistics.counts)
        columns: list[ProposedColumn] = []
        values = 0
        for name, value in statistics.by_name.items():
            shown = dump_inline(name)
            if _is_value_name(name):
                values += 1
            elif name.lower() in reserved:
                note = f"{shown}: the table has a column of its own that is called so; the member stays in rest."
                columns.append(ProposedColumn(name, None, note))
            elif name not in kept_names:
                note = f"{shown}: another column is called so but for upper case; the member stays in rest."
                columns.append(ProposedColumn(name, None, note))
            elif not value.kinds:
                note = f"{shown}: always null in the sample. Give it a type, or leave it out."
                columns.append(ProposedColumn(name, None, note))
            else:
                kind = self._type(name, value, level)
                columns.append(ProposedColumn(name, kind.declaration, kind.note))
        if values:
            note = f"In rest stay members whose names look like values, or cannot be those of columns: {values:,}."
            columns.append(ProposedColumn("", None, note))
        return columns

    def _type(self, name: str, value: ValueStatistics, level: int) -> _Type:
        """Return the type of values with at least one that is not null. `name`: of the member that has them."""
        kinds = value.kinds
        if kinds == {"object"}:
            assert value.members is not None
            return self._object(name, value.members, level + 1)
        if kinds == {"array"}:
            assert value.items is not None
            return self._array(name, value.items, level + 1)
        if kinds <= {"long", "double", "decimal", "number"}:
            return self._number(name, value)
        if kinds <= {"timestamp", "local timestamp"}:
            note = ""
            if "local timestamp" in kinds:
                note = "Times without an offset are taken for UTC."
            return _Type("timestamp", note)
        if kinds <= {"date", "timestamp", "local timestamp", "string"}:
            return _Type("date" if kinds == {"date"} else "string")
        if kinds == {"boolean"}:
            return _Type("boolean")
        return _json("the values are of several kinds.")

    def _object(self, name: str, statistics: ObjectStatistics, level: int) -> _Type:
        if level > LEVELS_MAX:
            return _json("it lies deep inside.")
        if not statistics.names:
            return _json("the objects are empty in the sample.")
        if _has_any_names(statistics):
            any_name = statistics.any_name
            kind = self._type(name, any_name, level) if any_name.kinds else _Type("json")
            if kind.declaration == "json":
                return _json(f"an object with many names, or names like values{_of(any_name)}.")
            note = "An object with many names, or names like values."
            return _Type({ANY_NAME: kind.declaration}, _join_notes(note, kind.note))
        columns = self._members(statistics, frozenset(), level)
        count = _count_columns(tuple(columns))
        if not count:
            return _json("no member of the objects can have a column.")
        if count > _MEMBERS_MAX:
            return _json(f"its objects would have {count:,} columns.")
        return _Type(tuple(columns))

    def _array(self, name: str, items: ValueStatistics, level: int) -> _Type:
        if level > LEVELS_MAX:
            return _json("it lies deep inside.")
        if not items.kinds:
            return _json("the arrays hold no values in the sample.")
        kind = self._type(name, items, level)
        if kind.declaration == "json":
            return _Type("json", kind.note.replace("the values are", "the items are"))
        return _Type([kind.declaration], kind.note)

    def _number(self, name: str, value: ValueStatistics) -> _Type:
        if value.kinds == {"long"}:
            return self._whole_number(name, value)
        if value.kinds <= {"long", "decimal"}:
            return _Type("decimal(38, 0)", "Whole numbers, some of which do not fit into 64 bits.")
        exact = max(abs(value.least), abs(value.greatest)) <= 2**53 or "long" not in value.kinds
        if "decimal" in value.kinds or "number" in value.kinds or not exact:
            return _json("numbers with more digits than a double holds. Or declare a decimal(p, s).")
        if _has_time_name(name) and self._is_believed(value, _UNITS["s"]):
            return _Type("timestamp(s)", "Seconds since 1970, by name and size.")
        return _Type("double")

    def _whole_number(self, name: str, value: ValueStatistics) -> _Type:
        if _has_time_name(name):
            for unit, per_second in _UNITS.items():
                if self._is_believed(value, per_second):
                    return _Type(
                        f"timestamp({unit})", f"{_UNIT_NAMES[unit].capitalize()} since 1970, by name and size."
                    )
        return _Type("long")

    def _is_believed(self, value: ValueStatistics, per_second: int) -> bool:
        """Return whether all numbers are times near the present."""
        least = (self._now - _BELIEVED).timestamp() * per_second
        greatest = (self._now + _BELIEVED).timestamp() * per_second
        return least <= value.least and value.greatest <= greatest


def _limit_columns(columns: list[ProposedColumn], counts: Mapping[str, int]) -> list[ProposedColumn]:
    """Return columns of which no more than COLUMNS_MAX are left; first come those that most values have.

    An object that is too large becomes JSON text.
    """
    if sum(column.columns for column in columns) <= COLUMNS_MAX:
        return columns
    remaining = COLUMNS_MAX
    columns_by_name: dict[str, ProposedColumn] = {}
    declared = [column for column in columns if column.declaration is not None]
    # The sort is stable: of members that are as frequent, the first come first.
    for column in sorted(declared, key=lambda column: -counts[column.name]):
        limited = column
        if column.columns > remaining and remaining:
            limited = replace(column, declaration="json", note="JSON text: beside the other columns, it has too many.")
        if limited.columns <= remaining:
            columns_by_name[column.name] = limited
            remaining -= limited.columns
    left_out = [dump_inline(column.name) for column in declared if column.name not in columns_by_name]
    limited_columns = [
        columns_by_name.get(column.name, column)
        for column in columns
        if column.declaration is None or column.name in columns_by_name
    ]
    if left_out:
        note = (
            f"{plural(len(left_out), 'more member')}, which are in no more of the values than these, stay in rest: "
            f"{join_first(left_out, _NAMES_SHOWN)}."
        )
        limited_columns.append(ProposedColumn("", None, note))
    return limited_columns


def _names_without_collision(counts: Mapping[str, int]) -> set[str]:
    """Return the names of which no two are one but for upper case: of such, the most frequent, or the first.

    The column of undeclared members is called `rest`, or `rest_` beside a member `rest`.
    """
    names_by_lower: dict[str, str] = {}
    for name, count in counts.items():
        if _is_value_name(name):
            continue
        other = names_by_lower.setdefault(name.lower(), name)
        if counts[other] < count:
            names_by_lower[name.lower()] = name
    if REST in names_by_lower:
        if REST in counts:
            names_by_lower[REST] = REST
            names_by_lower.pop(f"{REST}_", None)
        else:
            del names_by_lower[REST]
    return set(names_by_lower.values())


def _has_any_names(statistics: ObjectStatistics) -> bool:
    """Return whether names of members are data: many, hardly any twice, or of the looks of values."""
    if statistics.names > _MEMBERS_MAX or statistics.others is not None:
        return True
    if any(map(_is_value_name, statistics.by_name)):
        return True
    if statistics.objects < _OBJECTS_MIN or statistics.names < _NAMES_MIN:
        return False
    single_names = sum(count == 1 for count in statistics.counts.values())
    return 2 * single_names > statistics.names


def _is_value_name(name: str) -> bool:
    """Return whether a name may be a value of a person or a thing, or cannot be that of a column."""
    if name in ("", ANY_NAME) or len(name) > _NAME_MAX:
        return True
    return _NO_COLUMN_NAME.search(name) is not None or _VALUE_NAME.fullmatch(name) is not None


def _has_time_name(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _TIME_WORDS or word.endswith(_TIME_ENDS) for word in words)


def _of(values: ValueStatistics) -> str:
    return " and values of several kinds" if len(values.kinds) > 1 else ""


def _join_notes(*notes: str) -> str:
    return "\n".join(filter(None, notes))
