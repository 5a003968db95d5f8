"""Applies a spec to the rows of one record type: which stay, and with which columns.

In this order: `where`, `sample`; of the rows that stay, `derive` and `cast` over the columns of the record; then
`columns`, `rename` and `flatten` say what of it becomes a column of the table.
"""

import json
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import count
from math import ceil
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.bucketers.arrow import contiguous, fields_of, suggest_name
from headrace.writer.specs.expressions import TIMESTAMP, Expressions, SqlExpression, quote_path
from headrace.writer.specs.projection import Leaf, check_names, leaves, member_names, project_values, select_columns
from headrace.writer.specs.spec import Spec, SpecError

# What leaves records out, in this order.
RULES = ("where", "sample")
_TYPES: Mapping[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_SQL_TYPES: Mapping[pa.DataType, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "REAL",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.binary(): "BYTEA",
    pa.date32(): "DATE",
    TIMESTAMP: "TIMESTAMP WITH TIME ZONE",
}
TYPE_NAMES = (*_TYPES, "decimal(10, 2)")
_DECIMAL_DIGITS_MAX = 38
Mask = npt.NDArray[np.bool_]
_DIGEST_BITS = 256
_AVRO_PRIMITIVES = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "bytes",
    pa.string(): "string",
}


@dataclass(frozen=True)
class ShapedRows:
    """What a spec made of some rows. Each of them stays, or is left out by one rule, or has a reason why it failed."""

    # With the columns of the spec.
    rows: pa.Table
    # Which of the rows stay; None: all do.
    mask: Mask | None
    # By rule, where it left rows out.
    filtered: Mapping[str, Mask]
    # The reasons why rows failed, by position.
    failures: Mapping[int, str]


@dataclass(frozen=True)
class _RemainingRows:
    """Rows that stay so far, and their positions among all."""

    positions: npt.NDArray[np.int64]
    rows: pa.Table

    def filter(self, mask: Mask) -> "_RemainingRows":
        """Return the rows of a mask."""
        return _RemainingRows(self.positions[mask], self.rows.filter(pa.array(mask)))


class Step:
    """A spec that is compiled for the columns of one record type."""

    def __init__(self, spec: Spec, columns: pa.Schema) -> None:
        """Raise SpecError when the spec does not fit the columns."""
        self._spec = spec
        derived = dict(spec.derive)
        selection = select_columns(columns, spec.include, spec.exclude)
        # The columns of the record that stay, but those that a derived column replaces.
        self._selected = pa.schema([column for column in selection if column.name not in derived])
        self._casts = {name: cast_type(name, kind) for name, kind in spec.cast}
        self._check_keys(columns, derived)
        self._filter = Expressions(columns, _filter_expressions(spec, columns))
        if spec.where and self._filter.kinds[0] != pa.bool_():
            raise SpecError(f"where: it gives {self._filter.kinds[0]}, not true or false; write a comparison")
        expressions = [SqlExpression(f"derive.{name}", sql) for name, sql in spec.derive]
        expressions += [_cast_expression(name, kind) for name, kind in self._casts.items()]
        self._results = Expressions(columns, expressions)
        self._leaves = self._all_leaves()
        check_names([leaf.name for leaf in self._leaves])
        if not self._leaves:
            raise SpecError("it leaves no column; include one, or derive one")
        used_names = {*self._results.columns, *self._selected.names, *self._casts}
        self._needed = [name for name in columns.names if name in used_names] or columns.names[:1]
        self.columns = pa.schema([pa.field(leaf.name, leaf.kind) for leaf in self._leaves])

    def apply(self, rows: pa.Table) -> ShapedRows:
        """Apply the spec to rows of the columns that it was compiled for."""
        needed = rows.select(self._needed)
        if self._spec.forgives:
            return ShapedRows(self._shape(needed, self._results.evaluate_each(needed)), None, {}, {})
        stays, filtered, filter_failures = self._filter_rows(rows)
        remaining = _RemainingRows(np.arange(rows.num_rows), needed)
        if stays is not None:
            remaining = remaining.filter(stays)
        results = self._results.evaluate(remaining.rows)
        columns = results.columns
        failures = dict(filter_failures)
        if results.failures:
            failures |= {int(remaining.positions[row]): reason for row, reason in results.failures.items()}
            # The results are of the rows that did not fail.
            remaining = remaining.filter(_mask_without(remaining.rows.num_rows, results.failures))
        cast_failures = self._find_cast_failures(remaining.rows, columns)
        if cast_failures:
            failures |= {int(remaining.positions[row]): reason for row, reason in cast_failures.items()}
            mask = _mask_without(remaining.rows.num_rows, cast_failures)
            remaining = remaining.filter(mask)
            columns = [column.filter(pa.array(mask)) for column in columns]
        shaped = self._shape(remaining.rows, columns)
        return ShapedRows(shaped, _mask_of(remaining, rows.num_rows), filtered, dict(sorted(failures.items())))

    def dependent_columns(self, columns: Collection[str]) -> set[str]:
        """Return the columns of the table that these columns of the record become, and all that may be derived."""
        if not columns:
            return set()
        sources = {*columns, *dict(self._spec.derive)}
        return {leaf.name for leaf in self._leaves if leaf.source[0] in sources}

    def _filter_rows(self, rows: pa.Table) -> tuple[Mask | None, dict[str, Mask], Mapping[int, str]]:
        """Return which rows stay (None: all), which a rule leaves out, and why rules fail on others.

        Of the rows a, b, c, d, where a rule fails on b and is true for c alone: c stays, and a and d are left out.
        """
        if not self._filter.kinds or rows.num_rows == 0:
            return None, {}, {}
        results = self._filter.evaluate(rows)
        stays = _mask_without(rows.num_rows, results.failures)
        # Of the rows that have results.
        positions = np.flatnonzero(stays)
        filtered = dict[str, Mask]()
        rules = [rule for rule in RULES if getattr(self._spec, rule)]
        for rule, result in zip(rules, results.columns, strict=True):
            passes = result.fill_null(False).to_numpy(zero_copy_only=False)
            is_filtered = np.zeros(rows.num_rows, bool)
            is_filtered[positions[~passes]] = True
            # A row counts for the first rule that leaves it out.
            is_filtered &= stays
            if is_filtered.any():
                filtered[rule] = is_filtered
                stays &= ~is_filtered
        return None if stays.all() else stays, filtered, results.failures

    def _find_cast_failures(self, rows: pa.Table, columns: list[pa.Array]) -> dict[int, str]:
        """Find the rows that a cast has no value for: null where there was one."""
        failures = dict[int, str]()
        cast_columns = columns[len(self._spec.derive) :]
        for (name, kind), values in zip(self._spec.cast, cast_columns, strict=True):
            source = contiguous(rows.column(name))
            if values.null_count == source.null_count:
                continue
            # Python sees the rows that fail only.
            failed_rows = pc.indices_nonzero(pc.and_(values.is_null(), source.is_valid())).to_pylist()
            for row in failed_rows:
                failures.setdefault(row, f"cast.{name}: the value is no {kind}")
        return failures

    def _shape(self, rows: pa.Table, results: list[pa.Array]) -> pa.Table:
        """Put the columns of the table together."""
        names = [*(name for name, _ in self._spec.derive), *self._casts]
        columns = dict(zip(names, results, strict=True))
        for column in self._selected:
            if column.name not in columns:
                columns[column.name] = project_values(contiguous(rows.column(column.name)), column.type)
        return pa.table([leaf.values(columns) for leaf in self._leaves], schema=self.columns)

    def _all_leaves(self) -> list[Leaf]:
        renames = dict(self._spec.rename)
        all_leaves: list[Leaf] = []
        for column in self._selected:
            is_flat = self._spec.flatten_all or column.name in self._spec.flatten
            kind = self._casts.get(column.name, column.type)
            all_leaves += leaves(renames.get(column.name, column.name), (column.name,), kind, is_flat=is_flat)
        for (name, _), kind in zip(self._spec.derive, self._results.kinds, strict=False):
            all_leaves.append(Leaf(name, (name,), kind))
        return all_leaves

    def _check_keys(self, columns: pa.Schema, derived: Mapping[str, str]) -> None:
        """Raise SpecError where a key names a column that is not kept."""
        names_by_key: Mapping[str, Collection[str]] = {
            "rename": dict(self._spec.rename),
            "cast": dict(self._spec.cast),
            "flatten": self._spec.flatten,
        }
        for key, names in names_by_key.items():
            for name in names:
                if name in derived:
                    raise SpecError(f"{key}: {name!r} is derived; say it in its expression")
                if name not in columns.names:
                    usable = (column.name for column in self._selected if self._may_name(key, name, column, derived))
                    raise SpecError(
                        f"{key}: no schema of its records has a column {name!r}; {suggest_name(name, usable)}"
                    )
                if name not in self._selected.names:
                    raise SpecError(f"{key}: {name!r} is not among the columns that stay; take the key out")
        self._check_types(columns)

    def _may_name(self, key: str, wrong_name: str, column: pa.Field, derived: Mapping[str, str]) -> bool:
        """Return whether a column could stand in a key in place of a name that there is not."""
        if key == "rename" or column.name in derived:
            return column.name not in derived
        if key == "flatten":
            return bool(pa.types.is_struct(column.type))
        kind = self._casts[wrong_name]
        if pa.types.is_nested(column.type) or (kind == TIMESTAMP and _is_number(column.type)):
            return False
        try:
            Expressions(pa.schema([column]), [_cast_expression(column.name, kind)])
        except SpecError:
            return False
        return True

    def _check_types(self, columns: pa.Schema) -> None:
        """Raise SpecError where a key does not go with the type of a column."""
        for name in self._spec.flatten:
            if not pa.types.is_struct(columns.field(name).type):
                raise SpecError(f"flatten: {name!r} is {columns.field(name).type}, not a record; take it out")
        for name, kind in self._casts.items():
            column_type = columns.field(name).type
            if pa.types.is_nested(column_type):
                raise SpecError(f"cast: {name!r} is {column_type}; derive a column from its fields")
            if kind == TIMESTAMP and _is_number(column_type):
                raise SpecError(
                    f"cast: {name!r} is a number, of which unit is not known; derive a column with "
                    "to_timestamp_millis, to_timestamp_micros or to_timestamp_seconds"
                )


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind))


def find_mistakes(spec: Spec, columns: pa.Schema) -> list[str]:
    """Return a sentence for each condition, cast and expression of a spec that does not fit the columns.

    Of the keys that say together which columns stay, the first mistake.
    """
    parts = [Spec(spec.name, derive=((name, sql),)) for name, sql in spec.derive]
    parts += [Spec(spec.name, cast=((name, kind),)) for name, kind in spec.cast]
    if spec.where:
        parts.insert(0, Spec(spec.name, where=spec.where))
    if spec.sample is not None:
        parts.append(Spec(spec.name, sample=spec.sample))
    problems = dict[str, None]()
    for part in (*parts, spec):
        try:
            Step(part, columns)
        except SpecError as error:
            problems[str(error)] = None
    return list(problems)


def compile_step(spec: Spec, columns: pa.Schema) -> Step:
    """Return the step of a spec for these columns; a process compiles it once. Raises SpecError."""
    # By process: DataFusion's threads do not survive a fork.
    return _compile_in_process(spec, columns, os.getpid())


@lru_cache(maxsize=256)
def _compile_in_process(spec: Spec, columns: pa.Schema, _process: int) -> Step:
    return Step(spec, columns)


def _filter_expressions(spec: Spec, columns: pa.Schema) -> list[SqlExpression]:
    """Return the expressions of the rules that a spec has, in the order of `RULES`."""
    expressions: list[SqlExpression] = []
    if spec.where:
        expressions.append(SqlExpression("where", spec.where))
    if spec.sample is not None:
        digest = digest_sql(spec.sample.by, columns)
        expressions.append(SqlExpression("sample", f"{digest} < X'{threshold(spec.sample.share)}'"))
    return expressions


def threshold(share: Fraction) -> str:
    """Return the least digest of a sample's column that does not stay, as 64 hexadecimal digits.

    A record stays where the digest, read as a number of 256 bits, is below the share of 2^256. So a smaller share keeps
    a part of what a larger one keeps, and any engine with SHA-256 can tell which (docs/SPECS.md has test vectors).
    """
    return f"{min(ceil(share * 2**_DIGEST_BITS), 2**_DIGEST_BITS - 1):064x}"


def digest_sql(by: str, columns: pa.Schema) -> str:
    """Return SQL for the SHA-256 of a column: of bytes as they are, of anything else as text; null is the empty text.

    Raises SpecError where there is no such column, or its text is not the same everywhere.
    """
    kind = pa.struct(list(columns))
    for step in by.split("."):
        if step not in member_names(kind):
            fitting = (path for path, kind in fields_of(columns) if _has_digest(kind))
            raise SpecError(f"sample.by: no schema of its records has {by!r}; {suggest_name(by, fitting)}")
        kind = kind.field(step).type
    column = quote_path(by)
    if pa.types.is_binary(kind):
        return f"sha256(coalesce({column}, X''))"
    if not _has_digest(kind):
        raise SpecError(f"sample.by: {by!r} is {kind}; name a column that is a text, bytes, an integer or a boolean")
    return f"sha256(coalesce(CAST({column} AS VARCHAR), ''))"


def _has_digest(kind: pa.DataType) -> bool:
    """Return whether values of a type have the same bytes everywhere."""
    is_of = (pa.types.is_binary, pa.types.is_string, pa.types.is_integer, pa.types.is_boolean)
    return any(matches(kind) for matches in is_of)


def _cast_expression(name: str, kind: pa.DataType) -> SqlExpression:
    return SqlExpression(f"cast.{name}", f"TRY_CAST({quote_path(name)} AS {_sql_type(kind)})", kind)


def _mask_without(rows: int, positions: Collection[int]) -> Mask:
    """Return a mask of rows, but those at some positions."""
    mask = np.ones(rows, bool)
    mask[list(positions)] = False
    return mask


def _mask_of(remaining: _RemainingRows, rows: int) -> Mask | None:
    """Return a mask of the remaining rows among all; None when all remain."""
    if len(remaining.positions) == rows:
        return None
    mask = np.zeros(rows, bool)
    mask[remaining.positions] = True
    return mask


def _sql_type(kind: pa.DataType) -> str:
    return _SQL_TYPES.get(kind) or f"DECIMAL({kind.precision}, {kind.scale})"


def cast_type(name: str, kind: str) -> pa.DataType:
    """Return the type that a cast names. Raises SpecError."""
    type_name, _, arguments = kind.partition("(")
    if type_name.strip() == "decimal" and arguments.endswith(")"):
        digits = [digit.strip() for digit in arguments[:-1].split(",")]
        if len(digits) == 2 and all(digit.isdecimal() for digit in digits):  # noqa: PLR2004 - precision and scale
            precision, scale = map(int, digits)
            if 0 < precision <= _DECIMAL_DIGITS_MAX and scale <= precision:
                return pa.decimal128(precision, scale)
    if kind not in _TYPES:
        raise SpecError(f"cast.{name}: there is no type {kind!r}; {suggest_name(kind, TYPE_NAMES)}")
    return _TYPES[kind]


def avro_schema(columns: pa.Schema) -> str:
    """Return the columns of a spec as an Avro schema: they fill a table as any writer's schema does.

    It is a record whose fields have the types of the columns; each may be null.
    """
    numbers = count()
    return json.dumps(_record_schema(list(columns), numbers))


def _record_schema(members: list[pa.Field], numbers: Iterator[int]) -> dict[str, Any]:
    """Return the type of a record. `numbers`: of records, for their names."""
    name = f"r{next(numbers)}"
    fields = [
        {"name": member.name, "type": ["null", _type_schema(member.type, numbers)], "default": None}
        for member in members
    ]
    return {"type": "record", "name": name, "fields": fields}


def _type_schema(kind: pa.DataType, numbers: Iterator[int]) -> Any:
    if kind in _AVRO_PRIMITIVES:
        return _AVRO_PRIMITIVES[kind]
    if pa.types.is_date32(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_decimal(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    if pa.types.is_list(kind):
        return {"type": "array", "items": ["null", _type_schema(kind.value_type, numbers)]}
    if pa.types.is_map(kind):
        return {"type": "map", "values": ["null", _type_schema(kind.item_type, numbers)]}
    assert pa.types.is_struct(kind), f"a table has no {kind}"
    return _record_schema(list(kind), numbers)
