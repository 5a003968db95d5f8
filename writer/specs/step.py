"""Applies a spec to the rows of one record type: which stay, and with which columns.

In this order: `where`, `sample`; of the rows that stay, `derive` and `cast` over the columns of the record; then
`columns`, `rename` and `flatten` say what of it becomes a column of the table.
"""

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous, fix
from writer.specs.expressions import TIMESTAMP, Expressions, quoted
from writer.specs.projection import Leaf, check_names, leaves, narrowed, projected
from writer.specs.sampling import digest_sql, threshold
from writer.specs.spec import Spec, SpecError

RULES = ("where", "sample")  # what leaves records out
_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(), "int": pa.int32(), "long": pa.int64(), "float": pa.float32(), "double": pa.float64(),
    "string": pa.string(), "bytes": pa.binary(), "date": pa.date32(), "timestamp": TIMESTAMP,
}  # fmt: skip
TYPE_NAMES = (*_TYPES, "decimal(10, 2)")
_DECIMAL_DIGITS_MAX = 38
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ShapedRows:
    """What a spec made of some rows. Each of them stays, or is left out by one rule, or has a reason why it failed."""

    rows: pa.Table  # with the columns of the spec
    kept: Mask | None  # of the rows that were given; None: all stay
    filtered: Mapping[str, Mask]  # by rule, where it left rows out
    failed: Mapping[int, str]  # by position


class Step:
    """A spec that is compiled for the columns of one record type."""

    def __init__(self, spec: Spec, columns: pa.Schema) -> None:
        """Raise SpecError when the spec does not fit the columns."""
        self._spec = spec
        derived = dict(spec.derive)
        left = [column for column in narrowed(columns, spec.include, spec.exclude) if column.name not in derived]
        self._kept = pa.schema(left)
        self._casts = {name: cast_type(name, kind) for name, kind in spec.cast}
        self._check_keys(columns, derived)
        self._filter = Expressions(columns, _filters(spec, columns))
        if spec.where and self._filter.kinds[0] != pa.bool_():
            raise SpecError(f"where: it gives {self._filter.kinds[0]}, not true or false; write a comparison")
        casts = [(f"cast.{n}", f"TRY_CAST({quoted(n)} AS {_sql_type(kind)})", kind) for n, kind in self._casts.items()]
        self._results = Expressions(columns, [*((f"derive.{n}", sql, None) for n, sql in spec.derive), *casts])
        self._leaves = list(self._all_leaves())
        check_names([leaf.name for leaf in self._leaves])
        if not self._leaves:
            raise SpecError("it leaves no column; include one, or derive one")
        read = {*self._results.columns, *(column.name for column in self._kept), *self._casts}
        self._needed = [name for name in columns.names if name in read] or columns.names[:1]
        self.columns = pa.schema([pa.field(leaf.name, leaf.kind) for leaf in self._leaves])

    def apply(self, rows: pa.Table) -> ShapedRows:
        """Apply the spec to rows of the columns that it was compiled for."""
        if self._spec.forgives:
            left = rows.select(self._needed)
            return ShapedRows(self._shaped(left, self._results.evaluate_each(left)), None, {}, {})
        stays, filtered, failed = self._filtered(rows)
        places, left = np.arange(rows.num_rows), rows.select(self._needed)
        if stays is not None:
            places, left = np.flatnonzero(stays), left.filter(pa.array(stays))
        found = self._results.evaluate(left)
        columns, reasons = found.columns, {int(places[at]): why for at, why in found.failed.items()}
        if reasons:
            good = _without(left.num_rows, found.failed)
            places, left = places[good], left.filter(pa.array(good))
        if bad := self._uncast(left, columns):
            reasons |= {int(places[at]): why for at, why in bad.items()}
            good = _without(left.num_rows, bad)
            places, left = places[good], left.filter(pa.array(good))
            columns = [column.filter(pa.array(good)) for column in columns]
        kept: Mask | None = None
        if len(places) < rows.num_rows:
            kept = np.zeros(rows.num_rows, bool)
            kept[places] = True
        return ShapedRows(self._shaped(left, columns), kept, filtered, dict(sorted({**failed, **reasons}.items())))

    def made_of(self, columns: Collection[str]) -> set[str]:
        """Return the columns of the table that these columns of the record become, and all that may be derived."""
        derived = {name for name, _ in self._spec.derive} if columns else set()
        return {leaf.name for leaf in self._leaves if leaf.source[0] in columns or leaf.source[0] in derived}

    def _filtered(self, rows: pa.Table) -> tuple[Mask | None, dict[str, Mask], Mapping[int, str]]:
        """Return which rows stay (None: all), which a rule leaves out, and why rules fail on others."""
        if not self._filter.kinds or rows.num_rows == 0:
            return None, {}, {}
        found = self._filter.evaluate(rows)
        stays = _without(rows.num_rows, found.failed)
        places, filtered = np.flatnonzero(stays), dict[str, Mask]()
        rules = [rule for rule in RULES if getattr(self._spec, rule)]
        for rule, result in zip(rules, found.columns, strict=True):
            passes = result.fill_null(False).to_numpy(zero_copy_only=False)
            out = np.zeros(rows.num_rows, bool)
            out[places[~passes]] = True
            out &= stays
            if out.any():
                filtered[rule] = out
                stays &= ~out
        return None if stays.all() else stays, filtered, found.failed

    def _uncast(self, rows: pa.Table, columns: list[pa.Array]) -> dict[int, str]:
        """Find the rows that a cast has no value for: null where there was one."""
        found = dict[int, str]()
        for (name, kind), values in zip(self._spec.cast, columns[len(self._spec.derive) :], strict=True):
            before = contiguous(rows.column(name))
            if values.null_count == before.null_count:
                continue
            lost = pc.indices_nonzero(pc.and_(values.is_null(), before.is_valid()))
            for at in lost.to_pylist():  # cold: rows that fail
                found.setdefault(at, f"cast.{name}: {str(before[at].as_py())[:100]!r} is no {kind}")
        return found

    def _shaped(self, rows: pa.Table, results: list[pa.Array]) -> pa.Table:
        """Put the columns of the table together."""
        names = [*(name for name, _ in self._spec.derive), *self._casts]
        found = dict(zip(names, results, strict=True))
        for column in self._kept:
            if column.name not in found:
                found[column.name] = projected(contiguous(rows.column(column.name)), column.type)
        return pa.table([leaf.of(found) for leaf in self._leaves], schema=self.columns)

    def _all_leaves(self) -> list[Leaf]:
        renamed, found = dict(self._spec.rename), list[Leaf]()
        for column in self._kept:
            flat = self._spec.flatten_all or column.name in self._spec.flatten
            kind = self._casts.get(column.name, column.type)
            found += leaves(renamed.get(column.name, column.name), (column.name,), kind, flat=flat)
        derived = zip(self._spec.derive, self._results.kinds, strict=False)
        return [*found, *(Leaf(name, (name,), kind) for (name, _), kind in derived)]

    def _check_keys(self, columns: pa.Schema, derived: Mapping[str, str]) -> None:
        """Raise SpecError where a key names a column that is not kept."""
        spec = self._spec
        for key, names in (("rename", dict(spec.rename)), ("cast", dict(spec.cast)), ("flatten", spec.flatten)):
            for name in names:
                if name in derived:
                    raise SpecError(f"{key}: {name!r} is derived; say it in its expression")
                if name not in columns.names:
                    usable = (one.name for one in self._kept if self._may_name(key, name, one, derived))
                    raise SpecError(f"{key}: no schema of its records has a column {name!r}; {fix(name, usable)}")
                if name not in self._kept.names:
                    raise SpecError(f"{key}: {name!r} is not among the columns that stay; take the key out")
        self._check_types(columns)

    def _may_name(self, key: str, wrong: str, column: pa.Field, derived: Mapping[str, str]) -> bool:
        """Return whether a column could stand in a key in the place of a name that there is not."""
        if key == "rename" or column.name in derived:
            return column.name not in derived
        if key == "flatten":
            return bool(pa.types.is_struct(column.type))
        label, sql = f"cast.{column.name}", f"TRY_CAST({quoted(column.name)} AS {_sql_type(self._casts[wrong])})"
        if pa.types.is_nested(column.type) or (self._casts[wrong] == TIMESTAMP and _is_number(column.type)):
            return False
        try:
            Expressions(pa.schema([column]), [(label, sql, self._casts[wrong])])
        except SpecError:
            return False
        return True

    def _check_types(self, columns: pa.Schema) -> None:
        """Raise SpecError where a key does not go with the type of a column."""
        for name in self._spec.flatten:
            if not pa.types.is_struct(columns.field(name).type):
                raise SpecError(f"flatten: {name!r} is {columns.field(name).type}, not a record; take it out")
        for name in self._casts:
            if pa.types.is_nested(columns.field(name).type):
                raise SpecError(f"cast: {name!r} is {columns.field(name).type}; derive a column from its fields")
            if self._casts[name] == TIMESTAMP and _is_number(columns.field(name).type):
                raise SpecError(f"cast: {name!r} is a number, of which unit is not known; derive a column with "
                                "to_timestamp_millis, to_timestamp_micros or to_timestamp_seconds")  # fmt: skip


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


@lru_cache(maxsize=256)
def _compiled(spec: Spec, columns: pa.Schema, _process: int) -> Step:
    return Step(spec, columns)


def compile_step(spec: Spec, columns: pa.Schema) -> Step:
    """Return the step of a spec for these columns; a process compiles it once. Raises SpecError."""
    return _compiled(spec, columns, os.getpid())  # by process: DataFusion's threads do not survive a fork


def _filters(spec: Spec, columns: pa.Schema) -> list[tuple[str, str, pa.DataType | None]]:
    found: list[tuple[str, str, pa.DataType | None]] = [("where", spec.where, None)] if spec.where else []
    if spec.sample is not None:
        found.append(("sample", f"{digest_sql(spec.sample.by, columns)} < X'{threshold(spec.sample.share)}'", None))
    return found


def _without(rows: int, failed: Collection[int]) -> Mask:
    """Return a mask of rows, but those at some positions."""
    found = np.ones(rows, bool)
    found[list(failed)] = False
    return found


def _sql_type(kind: pa.DataType) -> str:
    names = {
        pa.bool_(): "BOOLEAN", pa.int32(): "INT", pa.int64(): "BIGINT", pa.float32(): "REAL", pa.float64(): "DOUBLE",
        pa.string(): "VARCHAR", pa.binary(): "BYTEA", pa.date32(): "DATE", TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
    }  # fmt: skip
    return names.get(kind) or f"DECIMAL({kind.precision}, {kind.scale})"


def cast_type(name: str, kind: str) -> pa.DataType:
    """Return the type that a cast names. Raises SpecError."""
    head, _, rest = kind.partition("(")
    if head.strip() == "decimal" and rest.endswith(")"):
        digits = [part.strip() for part in rest[:-1].split(",")]
        if len(digits) == 2 and all(part.isdigit() for part in digits):  # noqa: PLR2004 - precision and scale
            precision, scale = map(int, digits)
            if 0 < precision <= _DECIMAL_DIGITS_MAX and scale <= precision:
                return pa.decimal128(precision, scale)
    if kind not in _TYPES:
        raise SpecError(f"cast.{name}: there is no type {kind!r}; {fix(kind, TYPE_NAMES)}")
    return _TYPES[kind]
