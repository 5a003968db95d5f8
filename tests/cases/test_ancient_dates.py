"""Spark reads dates before 1582 and times before 1900 as they are, by the setting that docs/ENGINES.md names."""

import json
import subprocess
import sys
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.writer.batch.staging.parquet_files import BucketFiles, Destination
from headrace.writer.storage.locations import store_at

pytestmark = pytest.mark.slow

DATES = [date(1, 1, 1), date(1582, 10, 4), date(1582, 10, 15), date(2026, 11, 20)]
TIMES = [datetime(at.year, at.month, at.day, 5, tzinfo=UTC) for at in DATES]
UNIX_DAYS = [(at - date(1970, 1, 1)).days for at in DATES]
UNIX_MICROS = [(days * 24 + 5) * 3600 * 10**6 for days in UNIX_DAYS]
_PROGRAM = """
import json, sys
from pyspark.sql import SparkSession
mode = "spark.sql.parquet.datetimeRebaseModeInRead"
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
found = {"default": spark.conf.get(mode)}
for name in ("EXCEPTION", "CORRECTED", "LEGACY"):
    spark.conf.set(mode, name)
    for what in ("unix_date(day)", "unix_micros(at)"):
        try:
            rows = spark.read.parquet(sys.argv[1]).selectExpr(f"{what} AS x").orderBy("x").collect()
            found[f"{name} {what}"] = [row.x for row in rows]
        except Exception as error:
            found[f"{name} {what}"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What Spark makes of a file of the writer, by its mode and by what it is asked."""
    root = tmp_path_factory.mktemp("ancient")
    files = BucketFiles(Destination(store_at(str(root)), (), "test", 2**20), ())
    columns = {
        "_topic": pa.array(["clicks"] * len(DATES)),
        "_partition": pa.array([0] * len(DATES), pa.int32()),
        "_offset": pa.array(range(len(DATES)), pa.int64()),
        "day": pa.array(DATES, pa.date32()),
        "at": pa.array(TIMES, pa.timestamp("us", "UTC")),
    }
    files.add(pa.table(columns))
    (file,) = files.close(min(TIMES), max(TIMES))
    path = root / file.path
    kinds = {pq.ParquetFile(path).schema.column(number).physical_type for number in range(len(columns))}
    assert "INT96" not in kinds
    command = [sys.executable, "-c", _PROGRAM, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=True, cwd=root)
    return dict(json.loads(done.stdout))


def test_spark_4_reads_ancient_dates_and_times_by_its_default(seen: dict[str, Any]) -> None:
    assert seen["default"] == "CORRECTED"
    assert seen["CORRECTED unix_date(day)"] == UNIX_DAYS
    assert seen["CORRECTED unix_micros(at)"] == UNIX_MICROS


def test_the_default_of_spark_3_refuses_them(seen: dict[str, Any]) -> None:
    assert "READ_ANCIENT_DATETIME" in seen["EXCEPTION unix_date(day)"]
    assert "READ_ANCIENT_DATETIME" in seen["EXCEPTION unix_micros(at)"]


def test_the_mode_for_files_of_spark_2_moves_them(seen: dict[str, Any]) -> None:
    assert seen["LEGACY unix_date(day)"] != UNIX_DAYS
    assert seen["LEGACY unix_date(day)"][-2:] == UNIX_DAYS[-2:]
