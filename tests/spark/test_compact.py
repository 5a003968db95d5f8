"""Buckets are rewritten by the driver's tasks, beside the stream."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.audit.audit import audit
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.driver.spark import session as spark_session
from headrace.writer.maintenance.compaction.compactor import in_spark
from headrace.writer.maintenance.compaction.plan import RewritePace, pause_s
from tests.support.small_files import BUCKET, carry, close, compactor, files, fill_table, offsets
from tests.support.writer_process import QUICK_START

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    pipeline = {"topics": ["t"], "table": {"location": "/unused"}, "event_time": {"field": "at"}}
    config = Config.model_validate({
        "kafka": {"bootstrap_servers": "unused:1"}, "registry": {"url": "http://unused"}, "checkpoints": "/unused",
        "spark": {"master": "local[2]", "conf": {"spark.driver.extraJavaOptions": QUICK_START}},
        "pipelines": {"p": pipeline},
    })  # fmt: skip
    session = spark_session(config)
    yield session
    session.stop()


@pytest.mark.parametrize("form", ["delta", "parquet", "iceberg"])
def test_tasks_rewrite_a_bucket_and_every_row_stays(spark: Any, tmp_path: Path, form: str) -> None:
    driver, waited = fill_table(tmp_path, form), []
    run = in_spark(spark, "rewrites", pace := RewritePace(0.15), wait=waited.append)
    close(driver)
    compactor(driver).before_seal(BUCKET, run)
    assert (files(driver), offsets(driver)) == (1, list(range(60)))
    assert waited == []  # there was one piece
    took = pace.busy_s
    carry(driver, 6)
    compactor(driver).before_seal(BUCKET, run)
    assert (files(driver), offsets(driver)) == (1, list(range(70)))
    (owed,) = waited  # by another bucket, or the same one again
    assert 0 < owed <= pause_s(took, 0.15, 2)
    report = audit(driver.config, "clicks", since=None, deep=True)
    assert report.adds_up, report.problems


def test_an_open_bucket_is_merged_once_it_has_too_many_files(spark: Any, tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta", commits=4, compact={"max_open_files": 4})
    made, run = compactor(driver), in_spark(spark, "rewrites", RewritePace(1.0))
    made.merge_open(run)
    assert files(driver) == 4
    for n in range(4, 8):
        carry(driver, n)
    made.merge_open(run)
    assert (files(driver), offsets(driver)) == (1, list(range(80)))
    made.merge_open(run)  # nothing is new
    assert files(driver) == 1


def test_a_failed_compaction_task_is_one_sentence_of_the_driver(spark: Any, tmp_path: Path) -> None:
    driver = fill_table(tmp_path, "delta")
    snapshot, made = driver.table.snapshot(), compactor(driver)
    pieces = made.plan(snapshot, [BUCKET], open_too=True)[BUCKET]
    run = in_spark(spark, "rewrites", RewritePace(1.0))
    (wrong,) = [type(piece)(piece.files, piece.well_sized, ("gone",)) for piece in pieces]
    with pytest.raises(ConfigError, match=r"pipelines\.clicks: compact\.sort_by names 'gone'"):
        list(made.carry_out(snapshot, [wrong], run))
    (Path(driver.lake) / pieces[0].files[0].path).unlink()
    with pytest.raises(HeadraceError, match="names is gone"):
        list(made.carry_out(snapshot, pieces, run))
