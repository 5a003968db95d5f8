"""Decides which table each record goes to: by the name of its record, its topic, a header or a field. Pure."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import column, contiguous
from writer.batch.record_columns import header_text, text_of

By = Literal["record", "topic", "header", "field"]
NO_NAME = ""  # of a record without the header, or with a null in the field


class NoTarget(Enum):
    """Why a name has no table."""

    UNROUTED = "no rule, or no further table may be made"
    UNKNOWN = "a table may be made for it; the driver decides"


@dataclass(frozen=True)
class RouteRule:
    """Names that match a pattern with `*`, `?` and `[…]` go to one target, or each to a target of its own."""

    pattern: str
    target: str | None = None  # None: each name has its own, which the driver makes

    def matches(self, name: str) -> bool:
        """Return whether a name goes by this rule."""
        return fnmatchcase(name, self.pattern)


@dataclass(frozen=True)
class Route:
    """Where records go. The first rule that a name matches decides."""

    by: By
    key: str = ""  # name of the header, or of the field, nested with dots
    rules: Sequence[RouteRule] = ()
    made: Mapping[str, str | None] = field(default_factory=dict)  # name → target of its own; None: it gets none
    is_full: bool = False  # no further target is made
    stops: bool = False  # a name without a target ends the batch
    otherwise: str | None = None  # target of names without a rule; None: dead letters
    records: Mapping[int, str] = field(default_factory=dict)  # schema id → full name of its record
    shut: frozenset[str] = frozenset()  # targets that take no records for now

    def target(self, name: str) -> str | NoTarget:
        """Return the target of a name."""
        return NoTarget.UNROUTED if self._is_shut(name) else self._open_or_shut(name)

    def _is_shut(self, name: str) -> bool:
        return bool(self.shut) and self._open_or_shut(name) in self.shut

    def _open_or_shut(self, name: str) -> str | NoTarget:
        rule = self._rule(name)
        if rule is None:
            return self._rest
        if rule.target is not None:
            return rule.target
        if name in self.made:
            return self.made[name] or self._rest
        return self._rest if self.is_full else NoTarget.UNKNOWN

    def _rule(self, name: str) -> RouteRule | None:
        return next((rule for rule in self.rules if rule.matches(name)), None) if name != NO_NAME else None

    def is_beyond(self, name: str) -> bool:
        """Return whether a name has no table of its own only because no further one is made."""
        rule = self._rule(name) if self.is_full and name not in self.made else None
        return rule is not None and rule.target is None

    @property
    def _rest(self) -> str | NoTarget:
        if self.otherwise is not None:
            return self.otherwise
        return NoTarget.UNKNOWN if self.stops else NoTarget.UNROUTED

    def reason(self, name: str) -> str:
        """Say why records of a name have no table."""
        if self._is_shut(name):
            return f"the table of {self._open_or_shut(name)!r} refuses, and too much waits for it (route.held)"
        what = {"record": "record", "topic": "topic", "header": f"header {self.key!r}", "field": f"field {self.key!r}"}
        if name == NO_NAME:
            return f"the route goes by the {what[self.by]}, and there is none"
        is_ruled = self._rule(name) is not None
        why = "it may not have a table of its own" if is_ruled else "no target of the route matches it"
        return f"the route goes by the {what[self.by]}, which is {name!r}: {why}"

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
        values = contiguous(self._values(records, rows))
        if (only := _only(values)) is not None:
            yield Share(self.target(only), [only], None, None)
            return
        encoded = values.dictionary_encode()
        names = [*encoded.dictionary.to_pylist(), NO_NAME]
        codes = encoded.indices.fill_null(len(names) - 1)
        found: dict[str | NoTarget, list[int]] = {}
        for code in pc.unique(codes).to_pylist():
            found.setdefault(self.target(names[code]), []).append(code)
        for target, some in found.items():
            mask = None if len(found) == 1 else pc.is_in(codes, value_set=pa.array(some, codes.type))
            yield Share(target, names, codes if mask is None else codes.filter(mask), mask)

    def _values(self, records: pa.Table, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        if self.by == "topic":
            return records.column("topic")
        if self.by == "header":
            return header_text(records, self.key)
        try:
            values = column(rows, self.key)
            return text_of(values) if pa.types.is_binary(values.type) else values.cast(pa.string())
        except (ValueError, pa.ArrowNotImplementedError):  # the schema has no such field, or it is no text
            return pa.nulls(rows.num_rows, pa.string())


def _only(values: pa.Array) -> str | None:
    """Return the text that all of these are, as in most slices by topic; None: they differ, or one is null."""
    if not len(values) or values.null_count or values[0] != values[-1]:
        return None
    return str(values[0]) if pc.all(pc.equal(values, values[0])).as_py() else None


@dataclass(frozen=True)
class Share:
    """Records that go to one target, or to none."""

    target: str | NoTarget
    names: Sequence[str]  # that codes stand for
    codes: pa.Array | None  # of the names of the records; None: all have the first
    mask: pa.BooleanArray | None  # of the records; None: all of them

    def distinct(self) -> set[str]:
        """Return the names of the records."""
        return {self.names[0]} if self.codes is None else {self.names[at] for at in pc.unique(self.codes).to_pylist()}

    def count(self, of: Callable[[str], bool], records: int) -> int:
        """Count those of the `records` whose name is one `of` these."""
        if self.codes is None:
            return records if of(self.names[0]) else 0
        found = pc.value_counts(self.codes).to_pylist()  # one turn a name
        return sum(one["counts"] for one in found if of(self.names[one["values"]]))

    def name(self, at: int) -> str:
        """Return the name of one record."""
        return self.names[0 if self.codes is None else self.codes[at].as_py()]
