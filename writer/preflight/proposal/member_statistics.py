"""What the values of a sample of JSON objects are, member by member: the facts of a column proposal. Pure.

Kinds of values are counted, and no value is kept but the least and greatest number.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal

Kind = Literal[
    "boolean", "long", "decimal", "double", "number", "date", "timestamp", "local timestamp", "string", "object",
    "array",
]  # fmt: skip

# Objects and arrays inside one another that are looked into.
LEVELS_MAX = 5
# Of one object that are kept apart. Beyond, new names of an object inside another are taken together.
NAMES_MAX = 500
_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
# Digits of every number of 64 bits, and of a decimal.
_INT64_DIGITS = 19
_DECIMAL_DIGITS = 38
# Digits by which a double is written.
_DOUBLE_DIGITS = 17
_YEAR_MAX = 9999
_EXPONENT = re.compile("[eE]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_TIME = re.compile(
    r"\d{4}-\d\d-\d\d[T ]([01]\d|2[0-3]):[0-5]\d(:[0-5]\d(\.\d+)?)?(?P<zone>Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?",
    re.ASCII,
)


@dataclass(frozen=True)
class NumberText:
    """A number as JSON has it, with all digits."""

    text: str


class _NoObject(ValueError):
    """A value is none that a JSON decoder of headrace takes."""


def parse_object(value: bytes) -> dict[str, Any] | None:
    """Return the members of a JSON object, with numbers as NumberText; None for anything else.

    A name that stands twice, half a surrogate pair, NaN and bytes that are not UTF-8 make no object.
    """
    try:
        document = json.loads(
            value.decode(),
            parse_int=NumberText,
            parse_float=NumberText,
            parse_constant=_refuse_constant,
            object_pairs_hook=_unique_members,
        )
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _refuse_constant(name: str) -> None:
    raise _NoObject(f"{name} is no JSON")


def _unique_members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _NoObject("a name stands there twice")
    for name in members:
        # Half a surrogate pair raises UnicodeEncodeError, which is a ValueError.
        name.encode()
    return members


@dataclass
class ValueStatistics:
    """What the values of one place are: of a member, of an array's items, or of an object's members of any name."""

    nulls: int = 0
    kinds: set[Kind] = field(default_factory=set)
    # Bounds of the numbers.
    least: float = math.inf
    greatest: float = -math.inf
    # Of the values that are objects.
    members: "ObjectStatistics | None" = None
    # Of the values that are arrays.
    items: "ValueStatistics | None" = None

    def add(self, value: Any, level: int = 0) -> None:
        """Add a value. `level`: how many objects and arrays are around it."""
        match value:
            case None:
                self.nulls += 1
            case bool():
                self.kinds.add("boolean")
            case NumberText():
                self._add_number(value.text)
            case str():
                self.kinds.add(_text_kind(value))
            case dict():
                self.kinds.add("object")
                if self.members is None:
                    self.members = ObjectStatistics()
                if level < LEVELS_MAX:
                    self.members.add(value, level + 1)
            case list():
                self.kinds.add("array")
                if self.items is None:
                    self.items = ValueStatistics()
                if level < LEVELS_MAX:
                    for item in value:
                        self.items.add(item, level + 1)

    def merge(self, other: "ValueStatistics") -> None:
        """Add what another place has."""
        self.nulls += other.nulls
        self.kinds |= other.kinds
        self.least = min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        if other.members is not None:
            if self.members is None:
                self.members = ObjectStatistics()
            self.members.merge(other.members)
        if other.items is not None:
            if self.items is None:
                self.items = ValueStatistics()
            self.items.merge(other.items)

    def _add_number(self, text: str) -> None:
        kind = _number_kind(text)
        self.kinds.add(kind)
        if kind in ("long", "double"):
            # A double does not hold every whole number of 64 bits.
            number = int(text) if kind == "long" else float(text)
            self.least = min(self.least, number)
            self.greatest = max(self.greatest, number)


@dataclass
class ObjectStatistics:
    """What the members of objects are, in the order of their first appearance."""

    objects: int = 0
    by_name: dict[str, ValueStatistics] = field(default_factory=dict)
    # How many objects have a member of this name.
    counts: dict[str, int] = field(default_factory=dict)
    # Of the names beyond NAMES_MAX.
    others: ValueStatistics | None = None

    def add(self, members: Mapping[str, Any], level: int = 0) -> None:
        """Add an object."""
        self.objects += 1
        for name, value in members.items():
            statistics = self._statistics_of(name)
            statistics.add(value, level)

    def merge(self, other: "ObjectStatistics") -> None:
        """Add what other objects have."""
        self.objects += other.objects
        for name, statistics in other.by_name.items():
            self._statistics_of(name, other.counts[name]).merge(statistics)
        if other.others is not None:
            self._other_names().merge(other.others)

    @property
    def names(self) -> int:
        """Number of names that are kept apart."""
        return len(self.by_name)

    @property
    def any_name(self) -> ValueStatistics:
        """What the members of all names are together."""
        together = ValueStatistics()
        for statistics in self.by_name.values():
            together.merge(statistics)
        if self.others is not None:
            together.merge(self.others)
        return together

    def _statistics_of(self, name: str, count: int = 1) -> ValueStatistics:
        if name not in self.by_name:
            if len(self.by_name) >= NAMES_MAX:
                return self._other_names()
            self.by_name[name] = ValueStatistics()
            self.counts[name] = 0
        self.counts[name] += count
        return self.by_name[name]

    def _other_names(self) -> ValueStatistics:
        if self.others is None:
            self.others = ValueStatistics()
        return self.others


def collect_statistics(objects: Iterable[Mapping[str, Any]]) -> ObjectStatistics:
    """Return what the members of objects are. `objects`: as `parse_object` returns them."""
    statistics = ObjectStatistics()
    for members in objects:
        statistics.add(members)
    return statistics


def _number_kind(text: str) -> Kind:
    """Return the smallest column that holds a number exactly; `number` where none does."""
    digits = text.removeprefix("-")
    if digits.isdecimal():
        if len(digits) <= _INT64_DIGITS and _INT64_MIN <= int(text) <= _INT64_MAX:
            return "long"
        return "decimal" if len(digits) <= _DECIMAL_DIGITS else "number"
    significand = _EXPONENT.split(digits)[0].replace(".", "").strip("0")
    if len(significand) <= _DOUBLE_DIGITS and math.isfinite(float(text)):
        return "double"
    return "number"


def _text_kind(text: str) -> Kind:
    try:
        if _DATE.fullmatch(text):
            date.fromisoformat(text)
            return "date"
        time = _TIME.fullmatch(text)
        # In UTC, a time of the first or the last year may lie outside of what a column holds.
        if time is not None and 1 < datetime.fromisoformat(text).year < _YEAR_MAX:
            return "timestamp" if time["zone"] else "local timestamp"
    except ValueError:
        pass
    return "string"
