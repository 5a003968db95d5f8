"""Per-file statistics never hide a row."""

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from headrace.writer.batch.staging.parquet_files import COLUMNS_MAX, delta_statistics, parquet_writer
from tests.support.example_counts import share

TIME = pa.timestamp("us", "UTC")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)
FIRST, LAST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


def statistics(table: pa.Table, group_rows: int = 1_000) -> dict[str, Any]:
    sink = pa.BufferOutputStream()
    with parquet_writer(sink, table.schema) as writer:
        for at in range(0, max(table.num_rows, 1), group_rows):
            writer.write_table(table.slice(at, group_rows))
    return json.loads(delta_statistics(pq.read_metadata(pa.BufferReader(sink.getvalue()))))


def bounds(values: list[Any], kind: pa.DataType) -> tuple[Any, Any]:
    found = statistics(pa.table({"a": pa.array(values, kind)}))
    return found["minValues"].get("a"), found["maxValues"].get("a")


LONG_TEXT = st.text(st.sampled_from("aé€😀\U0010ffff\0 "), max_size=40) | st.text(
    st.characters(exclude_categories=["Cs"]), max_size=5
)
PREFIXED = LONG_TEXT.map(lambda text: "x" * 30 + text)
TIMES = st.one_of(
    st.datetimes(FIRST.replace(tzinfo=None), LAST.replace(tzinfo=None)).map(lambda t: t.replace(tzinfo=UTC)),
    st.integers(-3_000, 3_000).map(lambda us: EPOCH + timedelta(microseconds=us)),
    st.integers(0, 3_000).map(lambda us: LAST - timedelta(microseconds=us)),
    st.integers(0, 3_000).map(lambda us: FIRST + timedelta(microseconds=us)),
)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**53 + 1])
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "long": (pa.int64(), LONGS),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "text": (pa.string(), LONG_TEXT | PREFIXED),
    "time": (TIME, TIMES),
    "day": (pa.date32(), st.dates()),
    "double": (pa.float64(), st.floats()),
    "float": (pa.float32(), st.floats(width=32)),
    "money": (pa.decimal128(9, 2), st.integers(-(10**8), 10**8).map(lambda n: Decimal(n) / 100)),
    "flag": (pa.bool_(), st.booleans()),
    "raw": (pa.binary(), st.binary(max_size=40)),
    "list": (pa.list_(pa.int64()), st.lists(LONGS, max_size=3)),
    "struct": (pa.struct([("x", pa.int64())]), st.fixed_dictionaries({"x": LONGS})),
}
BOUNDED = {"long", "int", "text", "time", "day"}
PROVENANCE = {"_offset": (pa.int64(), st.integers(0, 2**62)), "_kafka_time": (TIME, TIMES)}
ROWS = st.fixed_dictionaries({name: st.none() | values for name, (_, values) in {**COLUMNS, **PROVENANCE}.items()})


def order(value: Any) -> Any:
    """Spark and Presto compare text by its bytes; and a bound of a timestamp is read from text."""
    return value.encode() if isinstance(value, str) else value


def as_read(bound: Any, kind: pa.DataType) -> Any:
    if kind == TIME:
        return datetime.fromisoformat(bound)
    return date.fromisoformat(bound) if kind == pa.date32() else bound


@settings(max_examples=share(100))
@given(st.lists(ROWS, min_size=1, max_size=25), st.integers(1, 25))
def test_every_value_lies_within_its_bounds(rows, group_rows):
    kinds = {name: kind for name, (kind, _) in {**COLUMNS, **PROVENANCE}.items()}
    found = statistics(pa.Table.from_pylist(rows, pa.schema(list(kinds.items()))), group_rows)
    assert found["numRecords"] == len(rows)
    assert found["minValues"].keys() == found["maxValues"].keys()
    assert found["minValues"].keys() <= BOUNDED | PROVENANCE.keys()
    for name, kind in kinds.items():
        values = [row[name] for row in rows if row[name] is not None]
        if name in found["nullCount"]:
            assert found["nullCount"][name] == len(rows) - len(values)
        else:
            assert name in ("list", "struct", "double", "float")
        if name not in found["minValues"]:
            continue
        low, high = (as_read(found[side][name], kind) for side in ("minValues", "maxValues"))
        truncated = [v.replace(microsecond=v.microsecond // 1000 * 1000) for v in values if isinstance(v, datetime)]
        for value in [*values, *truncated]:  # some readers truncate to milliseconds
            assert order(low) <= order(value) <= order(high)


@settings(max_examples=share(50))
@given(st.lists(LONG_TEXT | PREFIXED, min_size=1), st.lists(LONGS, min_size=1))
def test_bounds_are_there_when_they_can_be(texts, longs):
    low, high = bounds(longs, pa.int64())
    assert (low, high) == (min(longs), max(longs))
    low, high = bounds(texts, pa.string())
    largest = max(texts, key=str.encode)
    if len(largest) <= 32:
        assert (low, high) == (min(texts, key=str.encode)[:32], largest)
    else:
        assert (high is None) == (largest[32] == "\U0010ffff")
        assert low is None or len(low) <= 32
        assert high is None or len(high) == 33


@pytest.mark.parametrize(
    ("values", "kind", "low", "high"),
    [
        (["a" * 40, "b"], pa.string(), "a" * 32, "b"),
        (["a", "b" * 40], pa.string(), "a", "b" * 32 + "\U0010ffff"),
        (["a", "b" * 32 + "\U0010ffff" + "c"], pa.string(), None, None),
        (["z", "\U0010ffff" * 32], pa.string(), "z", "\U0010ffff" * 32),
        (["\uffff", "😀"], pa.string(), "\uffff", "😀"),
        (["", None], pa.string(), "", ""),
        ([EPOCH - timedelta(microseconds=1)], TIME, "1969-12-31T23:59:59.999Z", "1970-01-01T00:00:00.000Z"),
        ([EPOCH + timedelta(microseconds=1)], TIME, "1970-01-01T00:00:00.000Z", "1970-01-01T00:00:00.001Z"),
        ([FIRST], TIME, "0001-01-01T00:00:00.000Z", "0001-01-01T00:00:00.000Z"),
        ([LAST], TIME, None, None),
        ([LAST.replace(microsecond=999_000)], TIME, "9999-12-31T23:59:59.999Z", "9999-12-31T23:59:59.999Z"),
        ([date(1, 1, 1), date(9999, 12, 31)], pa.date32(), "0001-01-01", "9999-12-31"),
        ([-(2**63), 2**63 - 1], pa.int64(), -(2**63), 2**63 - 1),
        ([None, None], pa.int64(), None, None),
        ([float("nan"), 1.0], pa.float64(), None, None),
        ([0.0, -0.0], pa.float64(), None, None),
        ([Decimal("1.00")], pa.decimal128(9, 2), None, None),
        ([True, False], pa.bool_(), None, None),
        ([b"\xff"], pa.binary(), None, None),
        ([[1]], pa.list_(pa.int64()), None, None),
        ([{"x": 1}], pa.struct([("x", pa.int64())]), None, None),
    ],
)  # fmt: skip
def test_bounds_of_values_at_the_edge(values, kind, low, high):
    assert bounds(values, kind) == (low, high)


def test_one_row_group_without_values_leaves_the_bounds_of_the_others():
    found = statistics(pa.table({"a": pa.array([None, None, 3, 4, None, 1], pa.int64())}), group_rows=2)
    assert found == {"numRecords": 6, "minValues": {"a": 1}, "maxValues": {"a": 4}, "nullCount": {"a": 3}}


def test_of_many_columns_the_first_and_the_provenance_have_statistics():
    found = statistics(pa.table({f"c{i}": [i] for i in range(100)}))
    assert list(found["minValues"]) == [f"c{i}" for i in (*range(COLUMNS_MAX - 5), *range(95, 100))]
