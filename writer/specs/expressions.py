"""Evaluates SQL expressions over the columns of a batch by DataFusion, and finds the rows on which one fails.

An expression sees one row at a time: no aggregates, windows or subqueries, and no function that may answer otherwise
when the record is read again. So a batch that fails is halved until the rows that fail stand alone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from bucketers.arrow import contiguous, fix
from bucketers.timestamps import within_years
from writer.specs.functions import ALLOWED, CONSTANT_ARGUMENTS
from writer.specs.growth import GUARDS, check_guards, guard_calls, register_guards
from writer.specs.spec import SpecError

TIMESTAMP = pa.timestamp("us", "UTC")
_FIRST_DAY, _LAST_DAY = -719_162, 2_932_896  # of the years 1 to 9999
_TABLE = "record"  # name of the batch in SQL
_ALLOWED_PARTS = frozenset(
    ("Alias", "Between", "BinaryExpr", "Case", "Cast", "Column", "InList", "IsFalse", "IsNotFalse", "IsNotNull",
     "IsNotTrue", "IsNotUnknown", "IsNull", "IsTrue", "IsUnknown", "Like", "Literal", "Negative", "Not", "RLike",
     "ScalarFunction", "TryCast")
)  # fmt: skip
_CALLS = frozenset(("BinaryExpr", "Like", "RLike", "ScalarFunction"))  # which name what is called
_UNKNOWN_COLUMN = re.compile(r"No field named (\S+?)\.(?:\s|$)")
_OF_GUARD = re.compile(r"PyErr \{.*?value: ValueError\(['\"](.*?)['\"]\)", re.DOTALL)
_FUNCTION = re.compile(r"Invalid function '([^']*)'")
_NOISE = re.compile(
    r"^(DataFusion error|Arrow error|Execution error|Compute error|Cast error|External error|SQL error"
    r"|Error during planning|Schema error|Optimizer rule '\w+' failed\s+caused by)[:\s]+"
)
_SETTINGS = {
    "datafusion.sql_parser.enable_ident_normalization": "false",  # Avro's names have capitals
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
}
_GROWING_ROWS = 1 << 10  # that are evaluated at once where a function may make much of each
_RESULT_BYTES_MAX = 1 << 30  # of one batch, which a column of Arrow holds
_TOO_MUCH = "the expressions of its batch make more than 1 GiB; make shorter texts"
_BATCH_ROWS = 1 << 18  # more than an Arrow batch of records has; larger ones cost memory for each evaluation


@dataclass(frozen=True)
class ExpressionColumns:
    """The columns of expressions for the rows on which none failed, and why the others did, by position."""

    columns: list[pa.Array]
    failed: Mapping[int, str]


@dataclass(frozen=True)
class _Parsed:
    label: str  # where it stands, for messages
    expression: Any
    columns: tuple[str, ...]  # that it reads
    kind: pa.DataType  # of the table
    grows: bool  # it calls a function that may make much


class Expressions:
    """Some expressions over columns of one schema, compiled once."""

    def __init__(self, columns: pa.Schema, given: Sequence[tuple[str, str, pa.DataType | None]]) -> None:
        """`given`: label, SQL and the type that it is cast to; None: as it comes. Raises SpecError."""
        from datafusion import SessionConfig, SessionContext

        config = SessionConfig().with_target_partitions(1).with_batch_size(_BATCH_ROWS)
        for name, value in _SETTINGS.items():
            config = config.set(name, value)
        self._context, self._columns = SessionContext(config), columns
        register_guards(self._context)
        frame = self._frame(columns.empty_table())
        self._parsed = [_parsed(frame, columns, *one) for one in given]
        self._used = self._read_by(self._parsed)
        for one in self._parsed:  # what fails without any row, fails always
            try:
                self._run(columns.empty_table(), [one])
            except BaseException as error:
                _raise_unless_of_datafusion(error)
                raise SpecError(f"{one.label}: {_words(error)}") from error

    @property
    def columns(self) -> list[str]:
        """Names of the columns that they read."""
        return self._used

    @property
    def kinds(self) -> list[pa.DataType]:
        """Types of the results."""
        return [one.kind for one in self._parsed]

    def evaluate(self, rows: pa.Table) -> ExpressionColumns:
        """Evaluate all expressions on each row. Python sees no row, but for those that fail."""
        if not self._parsed:
            return ExpressionColumns([], {})
        return self._evaluated(rows, self._parsed)

    def evaluate_each(self, rows: pa.Table) -> list[pa.Array]:
        """Evaluate each expression by itself: null on the rows on which it fails."""
        done = []
        for one in self._parsed:
            found = self._evaluated(rows, [one])
            places = iter(range(rows.num_rows))
            at = [None if row in found.failed else next(places) for row in range(rows.num_rows)]  # cold: dead letters
            done.append(found.columns[0].take(pa.array(at, pa.int64())))
        return done

    def _evaluated(self, rows: pa.Table, parsed: Sequence[_Parsed]) -> ExpressionColumns:
        failed, found = dict[int, str](), list[list[pa.Array]]()
        used = rows.select(self._used)
        size = _GROWING_ROWS if any(one.grows for one in parsed) else max(rows.num_rows, 1)
        result_bytes = 0
        for start in range(0, rows.num_rows, size):
            if result_bytes > _RESULT_BYTES_MAX:
                failed |= dict.fromkeys(range(start, rows.num_rows), _TOO_MUCH)
                break
            for part, columns in self._pieces(used.slice(start, size), start, failed, parsed):
                assert all(len(column) == part for column in columns), "each row has one result"
                found.append(columns)
                result_bytes += sum(column.nbytes for column in columns)
        joined = [_joined([part[at] for part in found], one.kind) for at, one in enumerate(parsed)]
        return ExpressionColumns(joined, failed)

    def _pieces(
        self, rows: pa.Table, at: int, failed: dict[int, str], parsed: Sequence[_Parsed]
    ) -> Iterator[tuple[int, list[pa.Array]]]:
        """Yield the results of the rows that do not fail, in their order; `at`: position of the first one."""
        if rows.num_rows == 0:
            return
        try:
            yield rows.num_rows, self._run(rows, parsed)
        except BaseException as error:  # noqa: BLE001 - all others are raised
            _raise_unless_of_datafusion(error)
            if rows.num_rows == 1:
                failed[at] = self._reason(rows, error, parsed)
                return
            half = rows.num_rows // 2
            parts = ((rows.slice(0, half), at), (rows.slice(half), at + half))
        else:
            return
        for part, start in parts:
            yield from self._pieces(part, start, failed, parsed)

    def _reason(self, row: pa.Table, error: BaseException, parsed: Sequence[_Parsed]) -> str:
        """Say which expression fails on a row."""
        if len(parsed) == 1:
            return f"{parsed[0].label}: {_words(error)}"
        for one in parsed:
            try:
                self._run(row, [one])
            except BaseException as found:  # noqa: BLE001 - all others are raised
                _raise_unless_of_datafusion(found)
                return f"{one.label}: {_words(found)}"
        return _words(error)

    def _run(self, rows: pa.Table, parsed: Sequence[_Parsed]) -> list[pa.Array]:
        frame = self._frame(rows.select(self._read_by(parsed)))
        named = (one.expression.alias(f"_{at}") for at, one in enumerate(parsed))
        if rows.num_rows == 0:
            return [pa.array([], one.kind) for one in parsed if frame.select(one.expression).collect() is not None]
        found = pa.Table.from_batches(frame.select(*named).collect())
        return [_in_table_type(contiguous(found.column(at)), one.kind) for at, one in enumerate(parsed)]

    def _read_by(self, parsed: Sequence[_Parsed]) -> list[str]:
        names = dict.fromkeys(name for one in parsed for name in one.columns)
        return list(names) or self._columns.names[:1]  # an expression of literals counts rows

    def _frame(self, rows: pa.Table) -> Any:
        rows = pa.table([_plain(contiguous(column)) for column in rows.columns], rows.column_names)
        batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
        self._context.deregister_table(_TABLE)
        self._context.register_record_batches(_TABLE, [batches])
        return self._context.table(_TABLE)


def _plain(values: pa.Array) -> pa.Array:
    """Return nested values as DataFusion needs them: from 0 on, null inside a record that is null, items called so."""
    kind = values.type
    if pa.types.is_struct(kind):
        children = [_plain(child) for child in values.flatten()]
        return pa.StructArray.from_arrays(children, [member.name for member in kind], mask=values.is_null())
    if not pa.types.is_nested(kind):
        return values
    values = values.take(pa.arange(0, len(values))) if values.offset else values
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(values.offsets, values.keys, _plain(values.items), mask=values.is_null())
    return pa.ListArray.from_arrays(values.offsets, _plain(values.values), mask=values.is_null())


def quoted(path: str) -> str:
    """Write the dotted name of a column, or of a field inside one, in SQL."""
    column, *steps = path.split(".")
    inside = "".join("['" + step.replace("'", "''") + "']" for step in steps)
    return '"' + column.replace('"', '""') + '"' + inside


def _parsed(frame: Any, columns: pa.Schema, label: str, sql: str, cast: pa.DataType | None) -> _Parsed:
    try:
        guarded = guard_calls(sql)
        expression = frame.parse_sql_expr(guarded)
        used = tuple(dict.fromkeys(_columns_of(expression, frame.logical_plan(), label)))
        if cast is not None:
            expression = expression.cast(cast)
        found = frame.select(expression.alias("_")).schema().field(0).type
    except SpecError as error:
        raise SpecError(str(error) if str(error).startswith(label) else f"{label}: {error}") from error
    except BaseException as error:
        _raise_unless_of_datafusion(error)
        raise SpecError(f"{label}: {_explained(error, [_sql_name(frame, name) for name in columns.names])}") from error
    kind = table_type(found)
    if kind is None:
        raise SpecError(f"{label}: it gives {found}, which a table does not hold; cast it")
    return _Parsed(label, expression, used, kind, grows=guarded != sql)


def _sql_name(frame: Any, name: str) -> str:
    """Return how an expression names a column: as it is called, or in quotes where SQL would take it otherwise."""
    try:
        expression = frame.parse_sql_expr(name)
        if expression.variant_name() == "Column" and expression.column_name(frame.logical_plan()) == name:
            return name
    except BaseException as error:  # noqa: BLE001 - all others are raised
        _raise_unless_of_datafusion(error)
    return '"' + name.replace('"', '""') + '"'


def _columns_of(expression: Any, plan: Any, label: str) -> Iterator[str]:
    """Yield the columns that an expression reads. Raises SpecError for what a spec may not do."""
    part = expression.variant_name()
    if part not in _ALLOWED_PARTS:
        raise SpecError(f"{label}: {part} is not for single rows; write an expression without it")
    if part == "Column":
        yield expression.column_name(plan)
        return
    if part == "Literal":
        return
    if part == "ScalarFunction":
        name = expression.rex_call_operator()
        if name not in ALLOWED and name not in GUARDS:
            raise SpecError(f"{label}: {_not_allowed(name)}")
        check_guards(expression, label)
    operands = expression.rex_call_operands()
    operator = expression.rex_call_operator() if part in _CALLS else ""
    for position, operand in enumerate(operands):
        columns = list(_columns_of(operand, plan, label))
        if columns and position == CONSTANT_ARGUMENTS.get(operator):
            raise SpecError(
                f"{label}: argument {position + 1} of {operator} reads {columns[0]!r}. Write a constant: the time of "
                "one record would grow with the product of both sizes"
            )
        yield from columns


def _not_allowed(name: str) -> str:
    return (
        f"the function {name} is not allowed, for it is not known to give the same answer when a record is read "
        "again; docs/SPECS.md lists those that are"
    )


def _raise_unless_of_datafusion(error: BaseException) -> None:
    """Raise what is no answer about the rows: interrupts, bugs of ours, and a want of memory."""
    of_datafusion = type(error) in (Exception, RuntimeError) or type(error).__name__ == "PanicException"
    if not (of_datafusion or isinstance(error, pa.ArrowInvalid)) or "Resources exhausted" in str(error):
        raise error


def _explained(error: BaseException, columns: Sequence[str]) -> str:
    """Say what is wrong with an expression; of a name that does not exist, which one may have been meant."""
    text = str(error)
    if (found := _UNKNOWN_COLUMN.search(text)) is not None:
        name = found[1].replace('"', "")
        return f"no schema of its records has a column {name!r}; {fix(name, columns)}"
    if (found := _FUNCTION.search(text)) is not None:
        return f"there is no function {found[1]}; {fix(found[1], ALLOWED)}"
    if "Unimplemented Expr type" in text:
        return "it is not for single rows; write an expression without subqueries, aggregates and parameters"
    return _words(error)


def _words(error: BaseException) -> str:
    """Return what an error of DataFusion says, without what names its inner parts."""
    text = str(error).strip().strip('"')
    if (of_guard := _OF_GUARD.search(text)) is not None:
        return of_guard[1]
    while (shorter := _NOISE.sub("", text)) != text:
        text = shorter
    return text.partition("\n")[0].removeprefix('ParserError("').removesuffix('")')


def table_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the table that holds the values of an Arrow type; None: none does."""
    match kind:
        case _ if pa.types.is_boolean(kind) or pa.types.is_date32(kind) or pa.types.is_decimal128(kind):
            return kind
        case _ if pa.types.is_integer(kind):
            is_short = kind.bit_width <= (16 if pa.types.is_unsigned_integer(kind) else 32)
            return pa.int32() if is_short else pa.int64()
        case _ if pa.types.is_floating(kind):
            return pa.float64() if pa.types.is_float64(kind) else pa.float32()
        case _ if pa.types.is_timestamp(kind):
            return TIMESTAMP
        case _ if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        case _ if any(of(kind) for of in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view)):
            return pa.binary()
        case _ if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            item = table_type(kind.value_type)
            return None if item is None else pa.list_(pa.field("element", item))
        case _ if pa.types.is_struct(kind):
            members = [(member.name, table_type(member.type)) for member in kind]
            return pa.struct(members) if members and all(found is not None for _, found in members) else None
        case _ if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            value = table_type(kind.item_type)
            return None if value is None else pa.map_(pa.string(), value)
    return None


def _in_table_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast results to the type of the table. Raises ArrowInvalid for a number, or a time, beyond it."""
    if values.type != kind:
        is_finer = pa.types.is_timestamp(values.type) and values.type.unit == "ns"  # what is finer is cut off
        values = values.cast(kind, safe=not is_finer)
    if _lies_beyond(values):
        raise pa.ArrowInvalid("a date or timestamp outside the years 1 to 9999")
    return values


def _lies_beyond(values: pa.Array) -> bool:
    """Return whether a date or a timestamp, at any depth, is outside the years that a table has."""
    kind = values.type
    if pa.types.is_timestamp(kind):
        return bool(within_years(values).null_count != values.null_count)
    if pa.types.is_date32(kind):
        first, last = pc.min_max(values.cast(pa.int32())).as_py().values()
        return first is not None and (first < _FIRST_DAY or last > _LAST_DAY)
    if pa.types.is_struct(kind):
        return any(map(_lies_beyond, values.flatten()))
    if pa.types.is_map(kind):
        return _lies_beyond(values.items)
    return pa.types.is_list(kind) and _lies_beyond(values.flatten())


def _joined(parts: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(parts) == 1:
        return parts[0]
    return pa.concat_arrays(parts) if parts else pa.array([], kind)
