"""Expressions of event specs, over random rows of many types, give what DuckDB gives for the table without the spec."""

import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
from hypothesis import given, settings, strategies as st

from headrace.writer.config.sections.record_rules import EventSpec
from headrace.writer.specs.step import Step
from tests.support.example_counts import share

POINT = pa.struct([("x", pa.int64()), ("y", pa.string())])
COLUMNS = pa.schema(
    [("a", pa.int64()), ("i", pa.int32()), ("f", pa.float64()), ("d", pa.decimal128(9, 2)), ("s", pa.string()),
     ("b", pa.bool_()), ("t", pa.timestamp("us", "UTC")), ("day", pa.date32()), ("p", POINT),
     ("l", pa.list_(pa.field("element", pa.string())))]
)  # fmt: skip
# SQL of both, or of a spec and of DuckDB where the dialects differ. What raises in one fails in the other.
SAME = (
    "a + i", "a - 3 * i", "i % 3", "-i", "abs(i)", "a > i", "a = i", "i BETWEEN -2 AND 5", "i IN (1, 2, NULL)",
    "i IS DISTINCT FROM a", "nullif(i, 0)", "coalesce(i, a, 7)", "CASE WHEN i > 0 THEN a WHEN b THEN 1 END",
    "f > 1", "f = f", "f < a", "f + d", "isnan(f)", "round(f)", "floor(f)", "ceil(f)", "abs(f)", "f IS NULL",
    "d + d", "d - 1.5", "d * 2", "d > 0.5", "d = i", "CAST(d AS DOUBLE)", "CAST(i AS VARCHAR)", "CAST(b AS VARCHAR)",
    "CAST(i AS DECIMAL(9, 2))", "b AND i > 0", "b OR i > 0", "NOT b", "b IS NOT TRUE",
    "lower(s)", "length(s)", "reverse(s)", "left(s, 2)", "right(s, 2)", "substr(s, 2, 2)", "replace(s, 'b', 'xy')",
    "s || '-' || s", "concat(s, '!')", "s LIKE '%b%'", "s ILIKE 'B%'", "s NOT LIKE '_'", "strpos(s, 'b')", "s > 'b'",
    "starts_with(s, 'a')", "split_part(s, ',', 2)", "lpad(s, 4, '0')", "trim(s)", "md5(s)", "CAST(s AS BIGINT)",
    "TRY_CAST(s AS BIGINT)", "TRY_CAST(s AS DATE)", "greatest(a, i)", "least(a, i)",
    "t > '2026-01-01'", "t >= TIMESTAMP '2026-01-01 00:00:00'", "date_trunc('hour', t)", "date_trunc('month', t)",
    "date_part('year', t)", "CAST(t AS DATE)", "day > '2026-01-01'", "date_part('month', day)",
    "p['x']", "p['x'] + i", "p['y'] = s", "l[1]", "l[-1]",
)  # fmt: skip
OTHERS = {
    "a / i": "CASE WHEN i = 0 AND a IS NOT NULL THEN error('zero') ELSE a // i END", "sha256(s)": "unhex(sha256(s))",
    "array_to_string(l, '/')": "CASE WHEN l IS NOT NULL THEN coalesce(array_to_string(l, '/'), '') END",
    "cardinality(l)": "len(l)", "array_has(l, 'b')": "list_contains(l, 'b')",
    "to_timestamp_millis(a)": "epoch_ms(a)::TIMESTAMPTZ", "encode(s, 'hex')": "lower(hex(s))",
}  # fmt: skip
CONDITIONS = ("a >", "i BETWEEN", "i IN", "i IS", "f >", "f <", "d >", "d =", "b ", "NOT", "s LIKE", "s NOT", "s >",
              "t >", "day >", "p['y']")  # fmt: skip
NUMBERS = st.integers(-9, 9)
WORDS = st.sampled_from(["", "a", "b", "B,c", "ab,ü", "7", "-12", " x ", "2026-02-03"])
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "a": NUMBERS | st.integers(-(2**40), 2**40), "i": NUMBERS, "b": st.booleans(), "s": WORDS,
    "f": st.sampled_from([0.0, -0.0, 1.0, -2.5, 0.1, 1e300, math.inf, -math.inf, math.nan]) | st.floats(-99, 99),
    "d": st.decimals(-999, 999, places=2), "day": st.dates(date(1900, 1, 1), date(2200, 1, 1)),
    "t": st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC)),  # noqa: DTZ001
    "p": st.fixed_dictionaries({"x": st.none() | NUMBERS, "y": st.none() | WORDS}),
    "l": st.lists(st.none() | WORDS, max_size=3),
}  # fmt: skip
ROWS = st.lists(
    st.fixed_dictionaries({name: st.none() | of for name, of in VALUES.items()}), min_size=1, max_size=12
)  # fmt: skip


def alike(value: Any) -> Any:
    """A value without what the dialects type differently: width and last digits of numbers, NaN, signs of 0, zones."""
    match value:
        case bool() | None | str() | bytes():
            return value
        case Decimal() | int() | float():
            return "nan" if math.isnan(value) else float(f"{value:.12g}")  # 1.5 is a double here, a decimal there
        case datetime():
            return value.replace(tzinfo=None)
    return value


class Database:
    """DuckDB with the rows of a table, and their numbers as `n`."""

    def __init__(self, table: pa.Table) -> None:
        self._rows, self._duckdb = table.num_rows, duckdb.connect()
        self._duckdb.execute("SET TimeZone = 'UTC'")
        self._duckdb.register("records", table.append_column("n", pa.array(range(table.num_rows), pa.int64())))

    def of(self, sql: str) -> list[Any]:
        """Evaluate an expression on each row; `failed` where it raises."""
        try:
            return self._values(sql, "true")
        except duckdb.Error:
            return [value for at in range(self._rows) for value in self._value(sql, at)]

    def _value(self, sql: str, at: int) -> list[Any]:
        try:
            return self._values(sql, f"n = {at}")
        except (duckdb.ConversionException, duckdb.InvalidInputException, duckdb.OutOfRangeException):
            return ["failed"]

    def _values(self, sql: str, where: str) -> list[Any]:
        found = self._duckdb.execute(f"SELECT {sql} FROM records WHERE {where} ORDER BY n").fetchall()
        return [alike(value) for (value,) in found]


@settings(max_examples=share(30), deadline=None)
@given(
    rows=ROWS,
    chosen=st.lists(st.sampled_from([*((one, one) for one in SAME), *OTHERS.items()]), min_size=6, max_size=9),
)
def test_an_expression_gives_what_duckdb_gives(rows: list[dict[str, Any]], chosen: list[tuple[str, str]]) -> None:
    table = pa.Table.from_pylist(rows, COLUMNS)
    database = Database(table)
    for sql, other in dict(chosen).items():
        found = Step(EventSpec.model_validate({"derive": {"x": sql}}).spec("T"), COLUMNS).apply(table)
        made = iter(found.rows["x"].to_pylist())
        assert ["failed" if at in found.failures else alike(next(made)) for at in range(len(rows))] == database.of(
            other
        ), sql


@settings(max_examples=share(20), deadline=None)
@given(rows=ROWS, where=st.sampled_from([one for one in SAME if one.startswith(CONDITIONS)]))
def test_the_rows_that_where_leaves_are_those_of_duckdb(rows: list[dict[str, Any]], where: str) -> None:
    table = pa.Table.from_pylist(rows, COLUMNS)
    step = Step(EventSpec.model_validate({"where": where}).spec("T"), COLUMNS)
    found, answers = step.apply(table), Database(table).of(where)
    left = [at in (None, False) for at in answers]
    assert found.rows.num_rows == len(rows) - sum(left)
    assert (list(found.filtered["where"]) if any(left) else left) == left
