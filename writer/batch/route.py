"""Decides which table each record goes to: by the name of its record, its topic, a header or a field. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import column
from writer.batch.record_columns import header_text

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

    def target(self, name: str) -> str | NoTarget:
        """Return the target of a name."""
        for rule in self.rules if name != NO_NAME else ():
            if rule.matches(name):
                if rule.target is not None:
                    return rule.target
                if name in self.made:
                    return self.made[name] or self._rest
                return self._rest if self.is_full else NoTarget.UNKNOWN
        return self._rest

    @property
    def _rest(self) -> str | NoTarget:
        if self.otherwise is not None:
            return self.otherwise
        return NoTarget.UNKNOWN if self.stops else NoTarget.UNROUTED

    def reason(self, name: str) -> str:
        """Say why records of a name have no table."""
        what = {"record": "record", "topic": "topic", "header": f"header {self.key!r}", "field": f"field {self.key!r}"}
        if name == NO_NAME:
            return f"the route goes by the {what[self.by]}, and there is none"
        is_ruled = any(rule.matches(name) for rule in self.rules)
        why = "it may not have a table of its own" if is_ruled else "no target of the route matches it"
        return f"the route goes by the {what[self.by]}, which is {name!r}: {why}"

    def names(
        self, schema_id: int | None, records: pa.Table, rows: pa.Table
    ) -> Iterator[tuple[str, pa.BooleanArray | None]]:
        """Yield the names that records of one schema have, each with a mask of its records; None: all of them."""
        if self.by == "record":
            yield self.records.get(-1 if schema_id is None else schema_id, NO_NAME), None
            return
        values = self._values(records, rows)
        distinct = pc.unique(values)
        for value in distinct.to_pylist():  # cold: the names of a batch, not its records
            mask = None if len(distinct) == 1 else pc.equal(values, value) if value is not None else pc.is_null(values)
            yield NO_NAME if value is None else value, mask

    def _values(self, records: pa.Table, rows: pa.Table) -> pa.Array | pa.ChunkedArray:
        if self.by == "topic":
            return records.column("topic")
        if self.by == "header":
            return header_text(records, self.key)
        try:
            return column(rows, self.key).cast(pa.string())
        except (ValueError, pa.ArrowNotImplementedError):  # the schema has no such field, or it is no text
            return pa.nulls(rows.num_rows, pa.string())
