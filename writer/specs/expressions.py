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

from headrace.bucketers.arrow import contiguous, suggest_name
from headrace.bucketers.timestamps import within_years
from headrace.writer.specs.growth import GUARDS, check_guards, guard_calls, register_guards
from headrace.writer.specs.spec import SpecError

TIMESTAMP = pa.timestamp("us", "UTC")
# Of the years 1 to 9999.
_FIRST_DAY = -719_162
_LAST_DAY = 2_932_896
# What an int of a table holds.
_SHORT_INTEGERS = frozenset((pa.int8(), pa.int16(), pa.int32(), pa.uint8(), pa.uint16()))
# Name of the batch in SQL.
_TABLE = "record"
_ALLOWED_PARTS = frozenset(
    (
        "Alias",
        "Between",
        "BinaryExpr",
        "Case",
        "Cast",
        "Column",
        "InList",
        "IsFalse",
        "IsNotFalse",
        "IsNotNull",
        "IsNotTrue",
        "IsNotUnknown",
        "IsNull",
        "IsTrue",
        "IsUnknown",
        "Like",
        "Literal",
        "Negative",
        "Not",
        "RLike",
        "ScalarFunction",
        "TryCast",
    )
)
# Parts that name what is called.
_CALLS = frozenset(("BinaryExpr", "Like", "RLike", "ScalarFunction"))
_UNKNOWN_COLUMN = re.compile(r"No field named (\S+?)\.(?:\s|$)")
_GUARD_ERROR = re.compile(r"PyErr \{.*?value: ValueError\(['\"](.*?)['\"]\)", re.DOTALL)
_UNKNOWN_FUNCTION = re.compile(r"Invalid function '([^']*)'")
_ERROR_PREFIX = re.compile(
    r"^(DataFusion error|Arrow error|Execution error|Compute error|Cast error|External error|SQL error"
    r"|Error during planning|Schema error|Optimizer rule '\w+' failed\s+caused by)[:\s]+"
)
# What a message quotes of a row: a text, which may have quotes and line breaks itself, and numbers. Those of the first
# group are the message's own.
_QUOTED = re.compile(r"'.*'", re.DOTALL)
_NUMBER = re.compile(
    r"(Decimal\d+\(\d+, \d+\)|(?i:utf)-8|years 1 to 9999)|(?<![\w.])-?\d[\d.]*(?:[eE][+-]?\d+)?(?!\w)", re.ASCII
)
_SETTINGS = {
    # Avro's names have capitals.
    "datafusion.sql_parser.enable_ident_normalization": "false",
    "datafusion.sql_parser.map_string_types_to_utf8view": "false",
}
# Rows that are evaluated at once where a function may make much of each.
_GROWING_ROWS = 1 << 10
# Of one batch, which a column of Arrow holds.
_RESULT_BYTES_MAX = 1 << 30
_TOO_MUCH = "the expressions of its batch make more than 1 GiB; make shorter texts"
# More than an Arrow batch of records has; larger ones cost memory for each evaluation.
_BATCH_ROWS = 1 << 18


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


# Each gives the same answer for the same record, today and when it is read again, on every machine (docs/SPECS.md).
# Left out are functions of the clock, of chance and of the session (now, random, uuid, version), and those whose last
# digits depend on the machine's mathematical library (exp, ln, sin, power).
_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "conditions": _names("coalesce nullif nvl nvl2 greatest least"),
    "text": _names(
        """
        ascii bit_length btrim character_length chr concat concat_ws contains ends_with initcap left lower lpad ltrim
        octet_length overlay regexp_count regexp_like regexp_match regexp_replace repeat replace reverse right rpad
        rtrim split_part starts_with strpos substr substr_index to_hex translate upper
        """
    ),
    "bytes and hashes": _names("decode digest encode md5 sha224 sha256 sha384 sha512"),
    "numbers": _names("abs ceil floor isnan iszero round signum sqrt trunc"),
    "times": _names(
        """
        date_bin date_part date_trunc from_unixtime make_date to_char to_date to_timestamp to_timestamp_micros
        to_timestamp_millis to_timestamp_seconds to_unixtime
        """
    ),
    "nested": _names(
        """
        array_append array_concat array_distinct array_element array_has array_has_all array_has_any array_length
        array_slice array_to_string cardinality get_field make_array map_extract map_keys map_values named_struct
        string_to_array struct
        """
    ),
}
# Position of an argument that reads no column. Both sizes multiply: a record of 1 MiB would take minutes to hours.
_CONSTANT_ARGUMENTS = {
    **dict.fromkeys(("regexp_count", "regexp_like", "regexp_match", "regexp_replace"), 1),
    **dict.fromkeys(("~", "~*", "!~", "!~*"), 1),
    **dict.fromkeys(("like", "not like", "ilike", "not ilike", "similar to", "not similar to"), 1),
    **dict.fromkeys(("btrim", "ltrim", "rtrim", "array_has_all"), 1),
}
ALLOWED = frozenset(name for names in _FUNCTIONS.values() for name in names)


@dataclass(frozen=True)
class SqlExpression:
    """An expression as a spec has it."""

    # Where it stands, for messages.
    label: str
    sql: str
    # The type that it is cast to; None: as it comes.
    kind: pa.DataType | None = None


@dataclass(frozen=True)
class ExpressionColumns:
    """The columns of expressions for the rows on which none failed, and why the others did, by position."""

    columns: list[pa.Array]
    failures: Mapping[int, str]


@dataclass(frozen=True)
class _ParsedExpression:
    # Where it stands, for messages.
    label: str
    expression: Any
    # That it reads.
    columns: tuple[str, ...]
    # Of the table.
    kind: pa.DataType
    # It calls a function that may make much.
    grows: bool


class Expressions:
    """Some expressions over columns of one schema, compiled once."""

    def __init__(self, columns: pa.Schema, expressions: Sequence[SqlExpression]) -> None:
        """Parse the expressions. Raises SpecError for one that cannot be evaluated over the columns."""
        from datafusion import SessionConfig, SessionContext

        config = SessionConfig().with_target_partitions(1).with_batch_size(_BATCH_ROWS)
        for name, value in _SETTINGS.items():
            config = config.set(name, value)
        self._context = SessionContext(config)
        self._columns = columns
        register_guards(self._context)
        frame = self._frame(columns.empty_table())
        self._parsed = [_parse_expression(frame, columns, expression) for expression in expressions]
        self._used_columns = self._columns_read_by(self._parsed)
        # What fails without any row, fails always.
        for parsed in self._parsed:
            try:
                self._run(columns.empty_table(), [parsed])
            except BaseException as error:
                _raise_unless_of_datafusion(error)
                raise SpecError(f"{parsed.label}: {_error_message(error)}") from error

    @property
    def columns(self) -> list[str]:
        """Names of the columns that they read."""
        return self._used_columns

    @property
    def kinds(self) -> list[pa.DataType]:
        """Types of the results."""
        return [parsed.kind for parsed in self._parsed]

    def evaluate(self, rows: pa.Table) -> ExpressionColumns:
        """Evaluate all expressions on each row. Python sees no row, but for those that fail."""
        if not self._parsed:
            return ExpressionColumns([], {})
        return self._evaluate(rows, self._parsed)

    def evaluate_each(self, rows: pa.Table) -> list[pa.Array]:
        """Evaluate each expression by itself: null on the rows on which it fails."""
        columns = []
        for parsed in self._parsed:
            results = self._evaluate(rows, [parsed])
            # Rare, for deletions only: a row that fails has no result, so the others take theirs by position.
            positions: list[int | None] = [None] * rows.num_rows
            succeeded = (row for row in range(rows.num_rows) if row not in results.failures)
            for result, row in enumerate(succeeded):
                positions[row] = result
            columns.append(results.columns[0].take(pa.array(positions, pa.int64())))
        return columns

    def _evaluate(self, rows: pa.Table, expressions: Sequence[_ParsedExpression]) -> ExpressionColumns:
        failures = dict[int, str]()
        pieces = list[list[pa.Array]]()
        used = rows.select(self._used_columns)
        size = max(rows.num_rows, 1)
        if any(parsed.grows for parsed in expressions):
            size = _GROWING_ROWS
        result_bytes = 0
        for start in range(0, rows.num_rows, size):
            if result_bytes > _RESULT_BYTES_MAX:
                failures |= dict.fromkeys(range(start, rows.num_rows), _TOO_MUCH)
                break
            for row_count, columns in self._run_by_halves(used.slice(start, size), start, failures, expressions):
                assert all(len(column) == row_count for column in columns), "each row has one result"
                pieces.append(columns)
                result_bytes += sum(column.nbytes for column in columns)
        results = [
            _concat_pieces([columns[index] for columns in pieces], parsed.kind)
            for index, parsed in enumerate(expressions)
        ]
        return ExpressionColumns(results, failures)

    def _run_by_halves(
        self, rows: pa.Table, start: int, failures: dict[int, str], expressions: Sequence[_ParsedExpression]
    ) -> Iterator[tuple[int, list[pa.Array]]]:
        """Yield the results of the rows that do not fail, in their order; `start`: position of the first one."""
        if rows.num_rows == 0:
            return
        try:
            columns = self._run(rows, expressions)
        except BaseException as error:  # noqa: BLE001 - all others are raised
            _raise_unless_of_datafusion(error)
            if rows.num_rows == 1:
                failures[start] = self._failure_reason(rows, error, expressions)
                return
        else:
            yield rows.num_rows, columns
            return
        half = rows.num_rows // 2
        yield from self._run_by_halves(rows.slice(0, half), start, failures, expressions)
        yield from self._run_by_halves(rows.slice(half), start + half, failures, expressions)

    def _failure_reason(self, row: pa.Table, error: BaseException, expressions: Sequence[_ParsedExpression]) -> str:
        """Say which expression fails on a row, and why, without a value of the row."""
        if len(expressions) == 1:
            return f"{expressions[0].label}: {_row_error(error)}"
        for parsed in expressions:
            try:
                self._run(row, [parsed])
            except BaseException as own_error:  # noqa: BLE001 - all others are raised
                _raise_unless_of_datafusion(own_error)
                return f"{parsed.label}: {_row_error(own_error)}"
        return _row_error(error)

    def _run(self, rows: pa.Table, expressions: Sequence[_ParsedExpression]) -> list[pa.Array]:
        frame = self._frame(rows.select(self._columns_read_by(expressions)))
        if rows.num_rows == 0:
            for parsed in expressions:
                frame.select(parsed.expression).collect()
            return [pa.array([], parsed.kind) for parsed in expressions]
        named = (parsed.expression.alias(f"_{index}") for index, parsed in enumerate(expressions))
        results = pa.Table.from_batches(frame.select(*named).collect())
        return [
            _cast_to_table_type(contiguous(results.column(index)), parsed.kind)
            for index, parsed in enumerate(expressions)
        ]

    def _columns_read_by(self, expressions: Sequence[_ParsedExpression]) -> list[str]:
        names = dict[str, None]()
        for parsed in expressions:
            names |= dict.fromkeys(parsed.columns)
        # An expression of literals counts rows.
        return list(names) or self._columns.names[:1]

    def _frame(self, rows: pa.Table) -> Any:
        columns = [_datafusion_values(contiguous(column)) for column in rows.columns]
        rows = pa.table(columns, rows.column_names)
        batches = rows.to_batches() or [pa.RecordBatch.from_pylist([], schema=rows.schema)]
        self._context.deregister_table(_TABLE)
        self._context.register_record_batches(_TABLE, [batches])
        return self._context.table(_TABLE)


def _datafusion_values(values: pa.Array) -> pa.Array:
    """Return nested values as DataFusion needs them: from 0 on, null inside a record that is null, items called so."""
    kind = values.type
    if pa.types.is_struct(kind):
        children = [_datafusion_values(child) for child in values.flatten()]
        return pa.StructArray.from_arrays(children, [member.name for member in kind], mask=values.is_null())
    if not pa.types.is_nested(kind):
        return values
    if values.offset:
        values = values.take(pa.arange(0, len(values)))
    if pa.types.is_map(kind):
        items = _datafusion_values(values.items)
        return pa.MapArray.from_arrays(values.offsets, values.keys, items, mask=values.is_null())
    return pa.ListArray.from_arrays(values.offsets, _datafusion_values(values.values), mask=values.is_null())


def quote_path(path: str) -> str:
    """Write the dotted name of a column, or of a field inside one, in SQL."""
    column, *steps = path.split(".")
    inner_steps = "".join("['" + step.replace("'", "''") + "']" for step in steps)
    return _quote_name(column) + inner_steps


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _parse_expression(frame: Any, columns: pa.Schema, expression: SqlExpression) -> _ParsedExpression:
    label = expression.label
    try:
        guarded_sql = guard_calls(expression.sql)
        parsed = frame.parse_sql_expr(guarded_sql)
        used_columns = tuple(dict.fromkeys(_columns_of(parsed, frame.logical_plan(), label)))
        if expression.kind is not None:
            parsed = parsed.cast(expression.kind)
        result_type = frame.select(parsed.alias("_")).schema().field(0).type
    except SpecError as error:
        if str(error).startswith(label):
            raise
        raise SpecError(f"{label}: {error}") from error
    except BaseException as error:
        _raise_unless_of_datafusion(error)
        sql_names = [_sql_name(frame, name) for name in columns.names]
        raise SpecError(f"{label}: {_explain_error(error, sql_names)}") from error
    kind = table_type(result_type)
    if kind is None:
        raise SpecError(f"{label}: it gives {result_type}, which a table does not hold; cast it")
    return _ParsedExpression(label, parsed, used_columns, kind, grows=guarded_sql != expression.sql)


def _sql_name(frame: Any, name: str) -> str:
    """Return how an expression names a column: as it is called, or in quotes where SQL would take it otherwise."""
    try:
        expression = frame.parse_sql_expr(name)
        if expression.variant_name() == "Column" and expression.column_name(frame.logical_plan()) == name:
            return name
    except BaseException as error:  # noqa: BLE001 - all others are raised
        _raise_unless_of_datafusion(error)
    return _quote_name(name)


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
            raise SpecError(
                f"{label}: the function {name} is not allowed, for it is not known to give the same answer when a "
                "record is read again. Those that are: https://github.com/headrace/headrace/blob/main/docs/SPECS.md"
            )
        check_guards(expression, label)
    operands = expression.rex_call_operands()
    operator = expression.rex_call_operator() if part in _CALLS else ""
    for position, operand in enumerate(operands):
        columns = list(_columns_of(operand, plan, label))
        if columns and position == _CONSTANT_ARGUMENTS.get(operator):
            raise SpecError(
                f"{label}: argument {position + 1} of {operator} reads {columns[0]!r}. Write a constant: the time of "
                "one record would grow with the product of both sizes"
            )
        yield from columns


def _raise_unless_of_datafusion(error: BaseException) -> None:
    """Raise what is no answer about the rows: interrupts, bugs of ours, and a want of memory."""
    of_datafusion = type(error) in (Exception, RuntimeError) or type(error).__name__ == "PanicException"
    if not (of_datafusion or isinstance(error, pa.ArrowInvalid)) or "Resources exhausted" in str(error):
        raise error


def _explain_error(error: BaseException, columns: Sequence[str]) -> str:
    """Say what is wrong with an expression; of a name that does not exist, which one may have been meant."""
    text = str(error)
    unknown_column = _UNKNOWN_COLUMN.search(text)
    if unknown_column is not None:
        name = unknown_column[1].replace('"', "")
        return f"no schema of its records has a column {name!r}; {suggest_name(name, columns)}"
    unknown_function = _UNKNOWN_FUNCTION.search(text)
    if unknown_function is not None:
        return f"there is no function {unknown_function[1]}; {suggest_name(unknown_function[1], ALLOWED)}"
    if "Unimplemented Expr type" in text:
        return "it is not for single rows; write an expression without subqueries, aggregates and parameters"
    return _error_message(error)


def _error_message(error: BaseException) -> str:
    """Return what an error of DataFusion says, without what names its inner parts."""
    text = str(error).strip().strip('"')
    guard_error = _GUARD_ERROR.search(text)
    if guard_error is not None:
        return guard_error[1]
    return _shorten_message(text)


def _row_error(error: BaseException) -> str:
    """Return what an error of DataFusion says about a row, without the values that it quotes.

    `Cannot cast string 'ann' to value of Int64 type` becomes `Cannot cast string '…' to value of Int64 type`.
    """
    text = str(error)
    guard_error = _GUARD_ERROR.search(text)
    if guard_error is not None:
        return guard_error[1]
    text = _QUOTED.sub("'…'", text)
    return _shorten_message(_NUMBER.sub(lambda match: match[1] or "…", text).strip().strip('"'))


def _shorten_message(text: str) -> str:
    while (shorter := _ERROR_PREFIX.sub("", text)) != text:
        text = shorter
    return text.partition("\n")[0].removeprefix('ParserError("').removesuffix('")')


def table_type(kind: pa.DataType) -> pa.DataType | None:
    """Return the type of the table that holds the values of an Arrow type; None: none does."""
    match kind:
        case _ if pa.types.is_boolean(kind) or pa.types.is_date32(kind) or pa.types.is_decimal128(kind):
            return kind
        case _ if pa.types.is_integer(kind):
            return pa.int32() if kind in _SHORT_INTEGERS else pa.int64()
        case _ if pa.types.is_float64(kind):
            return kind
        case _ if pa.types.is_floating(kind):
            return pa.float32()
        case _ if pa.types.is_timestamp(kind):
            return TIMESTAMP
        case _ if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
            return pa.string()
        case _ if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
            return pa.binary()
        case _ if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            item = table_type(kind.value_type)
            return None if item is None else pa.list_(pa.field("element", item))
        case _ if pa.types.is_struct(kind):
            members = [(member.name, table_type(member.type)) for member in kind]
            if not members or any(member_type is None for _, member_type in members):
                return None
            return pa.struct(members)
        case _ if pa.types.is_map(kind) and pa.types.is_string(kind.key_type):
            value = table_type(kind.item_type)
            return None if value is None else pa.map_(pa.string(), value)
    return None


def _cast_to_table_type(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast results to the type of the table. Raises ArrowInvalid for a number, or a time, beyond it."""
    if values.type != kind:
        # What is finer than a microsecond is cut off.
        has_nanoseconds = pa.types.is_timestamp(values.type) and values.type.unit == "ns"
        values = values.cast(kind, safe=not has_nanoseconds)
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


def _concat_pieces(pieces: Sequence[pa.Array], kind: pa.DataType) -> pa.Array:
    if len(pieces) == 1:
        return pieces[0]
    return pa.concat_arrays(pieces) if pieces else pa.array([], kind)
