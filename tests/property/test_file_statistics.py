"""No predicate at a bound hides a row: neither by Delta's statistics of a file nor by Parquet's of a row group.

Each reader is its own judge: what it finds in the files must be what it finds in the same rows in memory, where there
are no statistics.
"""

import math
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from datafusion import SessionContext
from deltalake import DeltaTable, QueryBuilder
from hypothesis import given, settings, strategies as st
from pyarrow import dataset

from headrace.writer.batch.staging.parquet_files import BucketFiles, Destination
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.storage.locations import store_at
from headrace.writer.table.log.operations.rows import Batch
from tests.support.example_counts import share
from tests.support.table_formats import delta_table

TIME = pa.timestamp("us", "UTC")
NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
PART = TopicPartition("clicks", 1, 0)
MICROSECOND, DAY = timedelta(microseconds=1), timedelta(days=1)
FIRST, LAST = (datetime.combine(day, datetime.min.time(), UTC) for day in (date(1678, 1, 1), date(2261, 1, 1)))

LETTERS = st.text(st.sampled_from("aé€\ue000\uffff😀\U0010ffff\0 %_'"), max_size=6)
TEXTS = st.builds(lambda size, end: "x" * size + end, st.sampled_from([0, 1, 29, 31, 32, 33, 60]), LETTERS)
LONGS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-(2**63), 2**63 - 1, 2**53, 2**53 + 1, -1, 0, 1])
TIMES = st.builds(
    lambda base, ms, us: base + timedelta(milliseconds=ms, microseconds=us),
    st.sampled_from([FIRST, NOON, datetime(1970, 1, 1, tzinfo=UTC), LAST]), st.integers(0, 2), st.integers(-2, 2),
)  # fmt: skip
DOUBLES = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324])
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), TEXTS),
    "time": (TIME, TIMES),
    "long": (pa.int64(), LONGS),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 2)),
    "day": (pa.date32(), st.dates(date(1678, 1, 2), date(2261, 1, 1))),
    "double": (pa.float64(), DOUBLES),
    "single": (pa.float32(), st.floats(width=32) | st.sampled_from([0.0, -0.0, math.nan, math.inf])),
    "money": (pa.decimal128(9, 2), st.integers(-(10**9) + 1, 10**9 - 1).map(lambda n: Decimal(n).scaleb(-2))),
    "wide": (pa.decimal128(38, 10), st.integers(-(10**28), 10**28).map(lambda n: Decimal(n).scaleb(-10))),
    "flag": (pa.bool_(), st.booleans()),
    "raw": (pa.binary(), st.binary(max_size=3) | st.binary(min_size=33, max_size=34)),
}
INSIDE = {"long": COLUMNS["long"], "text": COLUMNS["text"]}
SCHEMA = pa.schema(
    [
        ("id", pa.int64()), *((name, kind) for name, (kind, _) in COLUMNS.items()),
        ("spot", pa.struct([(name, kind) for name, (kind, _) in INSIDE.items()])),
        ("list", pa.list_(pa.int64())), ("_topic", pa.string()), ("_partition", pa.int32()), ("hour", pa.string()),
    ]
)  # fmt: skip
ROW = st.fixed_dictionaries(
    {
        **{name: st.none() | values for name, (_, values) in COLUMNS.items()},
        "spot": st.none() | st.fixed_dictionaries({name: st.none() | values for name, (_, values) in INSIDE.items()}),
        "list": st.none() | st.lists(LONGS, max_size=2),
    }
)
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "<>": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def around(value: Any) -> list[Any]:
    """A value and its neighbours: where a bound that is cut, rounded or truncated would go wrong."""
    match value:
        case bool() | None:
            return [value]
        case int():
            return [value, *(n for n in (value - 1, value + 1) if -(2**31) <= n < 2**31)]
        case str():
            return [value, value[:32], value[:32] + "\U0010ffff", value[:-1], value + "\0"]
        case datetime():
            return [value, value - MICROSECOND, value + MICROSECOND, value.replace(microsecond=0)]
        case date():
            return [value, value - DAY, value + DAY]
        case float() if value - value == 0:
            return [value, -value, math.nextafter(value, math.inf), math.nextafter(value, -math.inf)]
        case bytes():
            return [value, value[:32], value + b"\0"]
    return [value]


def table_of(rows: Sequence[dict[str, Any]]) -> pa.Table:
    full = [{"id": index, **row, "_topic": "clicks", "_partition": 0, "hour": "x"} for index, row in enumerate(rows)]
    return pa.Table.from_pylist(full, SCHEMA)


def write_files(location: str, rows: pa.Table, sizes: Sequence[int], *, one_file: bool) -> list[Path]:
    """Let the columnar room write the rows, in groups of these sizes, and commit the files. Returns where they are."""
    table = delta_table(location, "clicks")
    table.create(SCHEMA, ["hour"])
    epoch = table.begin({PART: 0}, {"clicks": ["uuid-1"]})
    files = BucketFiles(Destination(store_at(location), ("hour",), "test", 2**30 if one_file else 1), ("x",))
    at = 0
    for size in [*sizes, rows.num_rows]:
        if at < rows.num_rows:
            files.add(rows.slice(at, size).drop_columns(["hour"]))
            files.flush()
            at += size
    staged = files.close(NOON, NOON)
    planned = Batch(uuid4().hex, epoch, [OffsetRange(PART, 0, rows.num_rows)], staged, facts={"ranges": []})
    table.append(planned, table.snapshot())
    return [Path(location, file.path) for file in staged]


def ids(found: Any) -> list[int]:
    return sorted(found)


class Readers:
    """What each reader finds: in the table or its files, and in memory."""

    def __init__(self, location: str, files: Sequence[Path], rows: pa.Table) -> None:
        self._files, self._rows = [str(path) for path in files], rows
        self._dataset = dataset.dataset(self._files)
        self._lake = QueryBuilder().register("t", DeltaTable(location))
        self._memory = SessionContext()
        self._memory.register_record_batches("t", [rows.to_batches()])
        self._duck = duckdb.connect()
        self._duck.register("m", rows)

    def check(self, path: tuple[str, ...], operator: str, value: pa.Scalar) -> None:
        """Assert that the predicate finds in the files what it finds in memory."""
        name = ".".join(path)
        fields_of_a_null = len(path) > 1  # in memory, DataFusion does not take them for null
        if value.as_py() is None:
            self.arrow(pc.is_valid(pc.field(*path)))
            self.duck(f"{name} IS NOT NULL")
            if not fields_of_a_null:
                self.datafusion(f"{name} IS NULL")
            return
        self.arrow(OPERATORS[operator](pc.field(*path), value))
        ((kind, *_),) = self._duck.execute(f"SELECT typeof({name}) FROM m LIMIT 1").fetchall()
        self.duck(f"{name} {operator} $1 :: {kind}", [value.as_py()])
        if not fields_of_a_null:
            self.datafusion(f"{name} {operator} {literal(value)}")

    def arrow(self, predicate: pc.Expression) -> None:
        found = ids(self._dataset.to_table(columns=["id"], filter=predicate)["id"].to_pylist())
        assert found == ids(self._rows.filter(predicate)["id"].to_pylist()), f"Arrow, {predicate}"

    def duck(self, predicate: str, values: Sequence[Any] = ()) -> None:
        def asked(source: str) -> list[int]:
            found = self._duck.execute(f"SELECT id FROM {source} WHERE {predicate}", [*values]).fetchall()
            return ids(id_ for (id_,) in found)

        files = ", ".join(f"'{path}'" for path in self._files)
        assert asked(f"read_parquet([{files}])") == asked("m"), f"DuckDB, {predicate} {values}"

    def datafusion(self, predicate: str) -> None:
        query = f"SELECT id FROM t WHERE {predicate}"
        found = ids(pa.table(self._lake.execute(query).read_all())["id"].to_pylist())
        memory = [id_ for batch in self._memory.sql(query).collect() for id_ in batch.column("id").to_pylist()]
        assert found == ids(memory), f"DataFusion, {predicate}"


def literal(value: pa.Scalar) -> str:
    """A value as DataFusion reads it, of exactly its type."""
    kind, plain = value.type, value.as_py()
    if pa.types.is_binary(kind):
        return f"X'{plain.hex()}'"
    match plain:
        case date():
            text = plain.isoformat()
        case Decimal():
            text = f"{plain:f}"
        case _:
            text = str(plain).replace("'", "''")
    return f"arrow_cast('{text}', '{ARROW[kind]}')"


ARROW = {
    pa.string(): "Utf8", TIME: 'Timestamp(Microsecond, Some("UTC"))', pa.int64(): "Int64", pa.int32(): "Int32",
    pa.date32(): "Date32", pa.float64(): "Float64", pa.float32(): "Float32", pa.bool_(): "Boolean",
    pa.decimal128(9, 2): "Decimal128(9, 2)", pa.decimal128(38, 10): "Decimal128(38, 10)",
}  # fmt: skip


@settings(max_examples=share(25))
@given(
    st.lists(ROW, min_size=1, max_size=12), st.lists(st.integers(1, 6), max_size=4), st.booleans(), st.data(),
)  # fmt: skip
def test_no_predicate_at_a_bound_hides_a_row(rows, sizes, one_file, data):
    with TemporaryDirectory() as location:
        table = table_of(rows)
        readers = Readers(location, write_files(location, table, sizes, one_file=one_file), table)
        spot = [row["spot"] or dict.fromkeys(INSIDE) for row in rows]
        columns = [((name,), kind, [row[name] for row in rows]) for name, (kind, _) in COLUMNS.items()]
        columns += [(("spot", name), kind, [row[name] for row in spot]) for name, (kind, _) in INSIDE.items()]
        for path, kind, there in columns:
            value = data.draw(
                st.sampled_from([near for value in there for near in around(value)]), label=".".join(path)
            )
            readers.check(path, data.draw(st.sampled_from(sorted(OPERATORS))), pa.scalar(value, kind))


def test_the_warning_of_the_docs_about_deltalakes_arrow_dataset_is_true(tmp_path):
    """The day that this fails, the warning in docs/TABLES.md can go."""
    rows = table_of([{"double": 6.0}])
    write_files(str(tmp_path), rows, [], one_file=True)
    table = DeltaTable(str(tmp_path))
    assert table.to_pyarrow_dataset().to_table(filter=pc.field("double") > 5).num_rows == 0
    query = QueryBuilder().register("t", table).execute("SELECT count(*) FROM t WHERE double > 5")
    assert pa.table(query.read_all()).to_pylist() == [{"count(*)": 1}]
