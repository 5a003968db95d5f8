"""A Parquet table under kill -9 at every moment of commit and publication: whoever reads its folders sees it exact."""

import signal
from collections.abc import Callable

import pytest

from tests.fault.outcomes import WANTED as WHOLE
from tests.support import hive_readers, oracle
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]
POINTS = ("before_commit:1", "after_commit:2", "publish:1", "publish:2", "after_publish:1", "before_redo:1")[
    :: 1 if WHOLE else 2
]


@pytest.mark.cell("kill -9 of the driver", "at six points of commit and publication")
@pytest.mark.parametrize("form", ["parquet"])
def test_a_parquet_table_is_exact_for_readers_of_its_folders_whenever_its_writer_is_killed(
    site: Site, topic: MakeTopic, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form, commit={"max_offsets": 1_000})
    for round_, point in enumerate(POINTS):
        site.fill(name, 2_000, seed=round_, broken=3)
        site.once(env={"HEADRACE_FAULT": point}, code=-signal.SIGKILL)
        oracle.check_rows(lake, "events")
    site.once()
    ends = site.ends(name)
    oracle.check(lake, "events", ends)
    ((rows, distinct, buckets),) = hive_readers.query(
        str(lake), "count(*), count(DISTINCT (_topic, _incarnation, _partition, _offset)), count(DISTINCT hour)"
    )
    dead_letters = hive_readers.query(f"{lake}_dead_letters", "count(*)")[0][0]
    assert rows == distinct
    assert rows + dead_letters == sum(ends.values())  # type: ignore[operator]
    assert hive_readers.read_rows(str(lake)).num_rows == rows
    assert _count_by_spark(str(lake)) == (rows, buckets)


def _count_by_spark(location: str) -> tuple[int, int]:
    """Count rows and buckets as Spark does, told nothing but where to look."""
    from pyspark.sql import SparkSession

    # A JVM in which a driver ran before keeps its settings; the file of its pools is gone.
    builder = SparkSession.builder.master("local[1]").config("spark.scheduler.mode", "FIFO")
    spark = builder.config("spark.ui.enabled", value=False).getOrCreate()
    try:
        table = spark.read.parquet(location)
        return table.count(), table.select("hour").distinct().count()
    finally:
        spark.stop()
