"""What `validate` says of the engines that will read the table."""

import pyarrow as pa
import pytest

from headrace.writer.preflight.checks.engine_checks import readers
from tests.support.sample_records import config

COLUMNS = pa.schema([
    ("at", pa.timestamp("us", "UTC")), ("ratio", pa.float32()), ("fee", pa.decimal128(9, 2)),
    ("place", pa.struct([("city", pa.string())])), ("tags", pa.list_(pa.string())),
    ("legs", pa.list_(pa.struct([("km", pa.float64())]))),
])  # fmt: skip


def said(tmp_path, columns=COLUMNS, widen="in_place", **table):
    pipeline = {"table": {"location": str(tmp_path / "lake"), **table}, "schemas": {"widen": widen}}
    settings = config(tmp_path, **pipeline).pipelines["clicks"]
    return readers(settings, columns)


def test_each_reader_is_warned_of_for_the_columns_that_it_will_trip_over(tmp_path):
    found = said(tmp_path)
    assert found.status == "warning"
    assert found.message.split("; ") == [
        "trino, presto: a predicate fails over older files once a float column is double (ratio)",
        "spark: a predicate fails over older files once a decimal has more digits (fee)",
        "druid: its Delta input source fails once a decimal has more digits (fee)",
        "druid: its Delta input source fails over a list of records (legs)",
        "presto: a query of a field fails where its struct is null in some rows (place)",
    ]
    assert found.fix.startswith("Set schemas.widen to reject, or set table.readers")


@pytest.mark.parametrize(
    ("more", "left"),
    [
        ({"widen": "reject"}, ["druid: its Delta input source fails", "presto: a query of a field fails"]),
        ({"format": "parquet"}, ["trino, presto: a predicate fails", "spark: a predicate fails"]),
        ({"readers": ["trino"]}, ["trino: a predicate fails"]),
        ({"readers": ["duckdb"]}, []),
        ({"columns": pa.schema([("n", pa.int32())])}, []),
    ],
)
def test_settings_that_no_engine_minds_are_not_reported(tmp_path, more, left):
    found = said(tmp_path, **more)
    assert found.status == ("warning" if left else "ok")
    assert found.message.count(" fails ") == len(left)
    assert all(part in found.message for part in left)
