"""Decides which table each record goes to: by the name of its record, its topic, a header or a field. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import column, contiguous
from headrace.writer.batch.record_columns import decode_texts, header_texts

By = Literal["record", "topic", "header", "field"]
# Stands for a record without the header, or with a null in the field.
NO_NAME = ""


class NoTarget(Enum):
    """Why a name has no table."""

    UNROUTED = "no rule, or no further table may be made"
    UNKNOWN = "a table may be made for it; the driver decides"


@dataclass(frozen=True)
class RouteRule:
    """Names that match a pattern with `*`, `?` and `[…]` go to one target, or each to a target of its own.

    `target`: None where each name has its own, which the driver makes.
    """

    pattern: str
    target: str | None = None

    def matches(self, name: str) -> bool:
        """Return whether a name goes by this rule."""
        return fnmatchcase(name, self.pattern)


@dataclass(frozen=True)
class Route:
    """Where records go. The first rule that a name matches decides.

    `key`: name of the header, or of the field, nested with dots. `own_targets`: of names that have one; None for a name
    that gets none. `is_full`: no further target is made. `stops`: a name without a target ends the batch. `otherwise`:
    target of names without a rule; None for dead letters. `records`: full name of the record of a schema id. `shut`:
    targets that take no records for now.
    """

    by: By
    key: str = ""
    rules: Sequence[RouteRule] = ()
    own_targets: Mapping[str, str | None] = field(default_factory=dict)
    is_full: bool = False
    stops: bool = False
    otherwise: str | None = None
    records: Mapping[int, str] = field(default_factory=dict)
    shut: frozenset[str] = frozenset()

    def target(self, name: str) -> str | NoTarget:
        """Return the target of a name."""
        if self._is_shut(name):
            return NoTarget.UNROUTED
        return self._open_or_shut_target(name)

    def _is_shut(self, name: str) -> bool:
        return bool(self.shut) and self._open_or_shut_target(name) in self.shut

    def _open_or_shut_target(self, name: str) -> str | NoTarget:
        rule = self._rule(name)
        if rule is None:
            return self._default_target
        if rule.target is not None:
            return rule.target
        if name in self.own_targets:
            return self.own_targets[name] or self._default_target
        return self._default_target if self.is_full else NoTarget.UNKNOWN

    def _rule(self, name: str) -> RouteRule | None:
        if name == NO_NAME:
            return None
        return next((rule for rule in self.rules if rule.matches(name)), None)

    def is_beyond(self, name: str) -> bool:
        """Return whether a name has no table of its own only because no further one is made."""
        if not self.is_full or name in self.own_targets:
            return False
        rule = self._rule(name)
        return rule is not None and rule.target is None

    @property
    def _default_target(self) -> str | NoTarget:
        if self.otherwise is not None:
            return self.otherwise
        return NoTarget.UNKNOWN if self.stops else NoTarget.UNROUTED

    def reason(self, name: str) -> str:
        """Say why records of a name have no table."""
        if self._is_shut(name):
            return f"the table of {self._open_or_shut_target(name)!r} refuses, and too much waits for it (route.held)"
        subject = self.by if self.by in ("record", "topic") else f"{self.by} {self.key!r}"
        if name == NO_NAME:
            return f"the route goes by the {subject}, and there is none"
        has_rule = self._rule(name) is not None
        why = "it may not have a table of its own" if has_rule else "no target of the route matches it"
        return f"the route goes by the {subject}, which is {name!r}: {why}"

    def is_on_purpose(self, name: str) -> bool:
        """Whether records of a name are dead letters for no fault of theirs: it has no rule, or its table is shut.

        A record without the header or the field that the route goes by is at fault.
        """
        return (name != NO_NAME and self._rule(name) is None) or self._is_shut(name)

    def shares(self, schema_id: int | None, records: pa.Table, rows: pa.Table) -> "Iterator[Share]":
        """Split records of one schema by where they go. Python sees the distinct names, never the records."""
        if self.by == "record":
            name = self.records.get(-1 if schema_id is None else schema_id, NO_NAME)
            yield Share(self.target(name), [name], None, None)
            return
        values = contiguous(self._routing_values(records, rows))
        if (name_of_all := _common_value(values)) is not None:
            yield Share(self.target(name_of_all), [name_of_all], None, None)
            return
        encoded = values.dictionary_encode()
        names = [*encoded.dictionary.to_pylist(), NO_NAME]
        codes = encoded.indices.fill_null(len(names) - 1)
        codes_by_target: dict[str | NoTarget, list[int]] = {}
        for code in pc.unique(codes).to_pylist():
            codes_by_target.setdefault(self.target(names[code]), []).append(code)
        if len(codes_by_target) == 1:
            (target,) = codes_by_target
            yield Share(target, names, codes, None)
            return
        for target, target_codes in codes_by_target.items():
            mask = pc.is_in(codes, value_set=pa.array(target_codes, codes.type))
            yield Share(target, names, codes.filter(mask), mask)

    def _routing_values(self, records: pa.Table, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        if self.by == "topic":
            return records.column("topic")
        if self.by == "header":
            return header_texts(records, self.key)
        try:
            values = column(rows, self.key)
            if pa.types.is_binary(values.type):
                return decode_texts(values)
            return values.cast(pa.string())
        except (ValueError, pa.ArrowNotImplementedError):
            # The schema has no such field, or it has no text.
            return pa.nulls(rows.num_rows, pa.string())


def _common_value(values: pa.Array) -> str | None:
    """Return the text that all of these are, as in most slices by topic; None: they differ, or one is null."""
    if not len(values) or values.null_count or values[0] != values[-1]:
        return None
    if not pc.all(pc.equal(values, values[0])).as_py():
        return None
    return str(values[0])


@dataclass(frozen=True)
class Share:
    """Records that go to one target, or to none.

    `names`: that codes stand for. `codes`: of the names of the records; None where all have the first. `mask`: of the
    records; None where it is all of them.
    """

    target: str | NoTarget
    names: Sequence[str]
    codes: pa.Array | None
    mask: pa.BooleanArray | None

    def distinct_names(self) -> set[str]:
        """Return the names of the records."""
        if self.codes is None:
            return {self.names[0]}
        return {self.names[code] for code in pc.unique(self.codes).to_pylist()}

    def count(self, is_counted: Callable[[str], bool], records: int) -> int:
        """Count the records whose name is counted. `records`: how many the share has."""
        if self.codes is None:
            return records if is_counted(self.names[0]) else 0
        # One turn a name.
        counts = pc.value_counts(self.codes).to_pylist()
        return sum(each["counts"] for each in counts if is_counted(self.names[each["values"]]))

    def name(self, row: int) -> str:
        """Return the name of one record."""
        if self.codes is None:
            return self.names[0]
        code: int = self.codes[row].as_py()
        return self.names[code]
