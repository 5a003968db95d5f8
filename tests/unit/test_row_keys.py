"""Which rows a person means: what is understood, what is refused, and that no value is repeated in an error."""

from datetime import UTC, date, datetime
from decimal import Decimal
from io import BytesIO
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, strategies as st

from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.deletion import row_keys
from headrace.writer.maintenance.deletion.row_keys import Keys, RowFinder, RowMatch, read_keys, where

ROWS = pa.table(
    {
        "id": pa.array([1, 2, 42, None], pa.int64()),
        "name": ["a", "O'Neil", "42", None],
        "who": [{"id": 1}, {"id": 42}, None, {"id": None}],
        "on": pa.array([date(2026, 1, 1)] * 4),
        "at": pa.array([datetime(2026, 1, 1, 5, tzinfo=UTC)] * 4, pa.timestamp("us", "UTC")),
        "ok": [True, False, None, True],
        "score": [1.0, 42.0, float("nan"), None],
        "raw": [b"x"] * 4,
        "price": pa.array([Decimal("0.00"), Decimal("1.50"), Decimal(100), None], pa.decimal128(10, 2)),
    }
)


def found(text: str) -> list[int]:
    return [at for at, yes in enumerate(RowFinder(where(text), ROWS.schema).match_rows(ROWS)) if yes]


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("id = 42", [2]), ("id=42.0", [2]), ("id = '42'", [2]), ("name = '42'", [2]), ("name = 42", [2]),
        ("id IN (1, 42)", [0, 2]), ("id in (1,2) and name = 'O''Neil'", [1]), ("who.id = 42", [1]),
        ("ok = true AND id = 1", [0]), ("score = 42", [1]), ("on = '2026-01-01'", [0, 1, 2, 3]),
        ("at = '2026-01-01 05:00:00Z'", [0, 1, 2, 3]), ("id = 7", []), ("id = 1 AND id = 2", []),
        ("price = 1.5", [1]), ("price IN ('100', '0.0')", [0, 2]),
    ],
)  # fmt: skip
def test_a_condition_selects_its_rows(text: str, rows: list[int]) -> None:
    assert found(text) == rows


@pytest.mark.parametrize(
    "text",
    [
        "",
        "id",
        "id = secret7",
        "id > 7777",
        "id = 7777 OR id = 8",
        "id = 7777 AND",
        "id IN ()",
        "'7777' = id",
        "id = 7;",
    ],
)  # fmt: skip
def test_a_condition_that_cannot_be_parsed_is_refused_without_its_values(text: str) -> None:
    with pytest.raises(ConfigError, match="--where is not understood from its character") as caught:
        where(text)
    assert "7777" not in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("idd = 7777", "field 'idd' is not in the table; did you mean 'id'"),
        ("id = 'secret'", "column 'id' is int64: one of the values is none"),
        ("price = '1e-77'", r"column 'price' is decimal128\(10, 2\): one of the values is none"),
        ("price = '1e-999999999'", "one of the values is none"),
        ("raw = 'secret'", "column 'raw' is binary; rows are found by a text, a number"),
        ("who = 'secret'", "column 'who' is struct"),
    ],
)
def test_a_column_that_cannot_have_such_values_is_named_and_the_values_are_not(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        found(text)
    assert "secret" not in str(caught.value)
    assert "7777" not in str(caught.value)
    assert "secret" not in repr(where("id = 'secret'")), "nor in a traceback"


def test_values_come_from_a_file_with_a_head(tmp_path: Path) -> None:
    path = tmp_path / "keys.csv"
    path.write_text("\ufeffuser,why\n42,asked\n42,twice\n\n1,\n", encoding="utf-8")
    assert read_keys(path, "id", "user") == Keys((RowMatch("id", ("42", "1")),))
    with pytest.raises(ConfigError, match="has no column 'id'; its columns are user, why"):
        read_keys(path, "id")
    path.write_text("user\n")
    with pytest.raises(ConfigError, match="has no value"):
        read_keys(path, "user")
    with pytest.raises(ConfigError, match="cannot read"):
        read_keys(tmp_path / "nowhere.csv", "user")


def test_a_file_that_lacks_the_column_has_no_such_row() -> None:
    finder = RowFinder(where("id = 42"), ROWS.schema)
    assert not finder.match_rows(ROWS.select(["name"])).any()


def test_bounds_that_are_not_numbers_bound_nothing() -> None:
    class Told:
        has_min_max, min, max = True, float("nan"), 3.0

    class Column:
        statistics = Told

    class Group:
        def column(self, _: int) -> type[Column]:
            return Column

    assert row_keys._may_hold(Group(), 0, [2.0])
    Told.min, Told.max = 1.0, float("nan")
    assert row_keys._may_hold(Group(), 0, [2.0])
    Told.max = 1.5
    assert not row_keys._may_hold(Group(), 0, [2.0])


VALUES = st.one_of(st.none(), st.integers(-3, 3))


@given(st.lists(VALUES, min_size=1, max_size=30), st.sets(st.integers(-4, 4), min_size=1), st.integers(1, 5))
def test_statistics_never_hide_a_row_and_the_rows_are_those_of_sql(rows: list, wanted: set[int], group: int) -> None:
    table = pa.table({"id": pa.array(rows, pa.int32())})
    text = f"id IN ({', '.join(map(str, wanted))})"
    finder = RowFinder(where(text), table.schema)
    sink = BytesIO()
    pq.write_table(table, sink, row_group_size=group)
    file = pq.ParquetFile(sink)
    kept = set(finder.row_groups(file.metadata))
    mask = finder.match_rows(table)
    assert {at // group for at, yes in enumerate(mask) if yes} <= kept
    ((expected,),) = duckdb.sql(f'SELECT count(*) FROM "table" WHERE {text}').fetchall()
    assert int(mask.sum()) == expected
