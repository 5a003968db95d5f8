"""What a query tells Spark's Kafka source."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.writer.commit.batch_limits import Limits
from headrace.writer.config.pipelines import Config
from headrace.writer.driver.spark import query, rest_without_batch
from headrace.writer.driver.start.pipeline_takeover import Start
from tests.support.sample_records import config


class Session:
    """A Spark session that keeps the options of the source; every other call of the chain returns it."""

    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.settings: dict[str, str] = {}
        self.conf = SimpleNamespace(set=self.settings.__setitem__)
        self.sparkContext = SimpleNamespace(defaultParallelism=2, setLocalProperty=lambda *_: None)
        self.readStream = self.writeStream = self

    def options(self, **told: str) -> "Session":
        self.told = told
        return self

    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: self


def told(root, **kafka: object) -> dict[str, str]:
    return start(root, **kafka).told


def start(root, conf=(), **kafka: object) -> Session:
    given = config(root)
    given.spark.conf.update(conf)
    given = Config.model_validate({**given.model_dump(), "kafka": {**given.kafka.model_dump(), **kafka}})
    pipeline = SimpleNamespace(
        name="clicks", config=given.pipelines["clicks"], needs_headers=lambda: False, process=lambda *_: None,
        topic_ids={"clicks": "1"},
        limits=Limits(None, "--once", 5_000, None),
    )  # fmt: skip
    spark = Session()
    query(spark, given, pipeline, Start(1, str(root), {("clicks", 0): 7}), once=True)  # type: ignore[arg-type]
    return spark


@pytest.mark.parametrize(("kafka", "ms"), [({}, "10"), ({"fetch_max_wait": "500 ms"}, "500")])
def test_a_fetch_at_the_end_of_a_partition_is_answered_soon(tmp_path, kafka, ms):
    assert told(tmp_path, **kafka)["kafka.fetch.max.wait.ms"] == ms


@pytest.mark.parametrize(("minutes", "rest_s"), [(0, 0), (1, 0.6), (5, 3), (10, 5), (600, 5)])
def test_a_query_that_asked_in_vain_rests_for_a_share_of_the_delay(minutes: float, rest_s: float) -> None:
    assert rest_without_batch(timedelta(minutes=minutes)) == timedelta(seconds=rest_s)


def test_a_query_rests_as_its_pipeline_may_unless_the_file_says_how_long(tmp_path) -> None:
    name = "spark.sql.streaming.pollingDelay"
    assert start(tmp_path).settings == {name: "5000ms"}
    assert start(tmp_path, conf={name: "10ms"}).settings == {}
