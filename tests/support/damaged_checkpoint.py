"""Checkpoints that real Spark wrote, damaged one way after the other: what plain Spark says, what headrace makes of it.

One JVM for all: headrace's own driver code runs in the test's process, on a session that outlives its runs.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from headrace.writer.clients.notifications import Notifier
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import exit_code
from headrace.writer.driver import main, restart_policy
from headrace.writer.driver.batches.batch_queue import BatchQueue
from headrace.writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequests
from headrace.writer.driver.readers.spark_reader import KAFKA_OPTIONS
from headrace.writer.driver.spark import session as opened
from headrace.writer.status.progress import Progress
from headrace.writer.telemetry.receivers import Receivers
from tests.support.writer_process import QUICK_START, Site

PIPELINE = "events"
_FILE_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
Source = tuple[str, int]


class Unfinished(Exception):
    """The batch dies before anything of it is committed."""


@contextmanager
def session(config: Config) -> Iterator[Any]:
    """A Spark session as headrace makes it, for plain queries and headrace's own."""
    spark = opened(config)
    try:
        yield spark
    finally:
        spark.stop()


@dataclass
class QueryResult:
    """What a plain query saw: each offset, how often; and what it ended with."""

    offsets: dict[Source, Counter[int]] = field(default_factory=dict)
    batches: list[int] = field(default_factory=list)
    text: str = ""

    @property
    def rows(self) -> int:
        return sum(counter.total() for counter in self.offsets.values())


def run_plain_query(
    spark: Any,
    bootstrap: str,
    checkpoint: Path,
    *,
    topics: str = "",
    options: dict[str, str] | None = None,
    before: Callable[[int], None] | None = None,
    configuration: dict[str, str] | None = None,
) -> QueryResult:
    """Start a query of plain Spark from a checkpoint, as one would write it first, and let it read what is there."""
    result = QueryResult()

    def take(frame: Any, batch: int) -> None:
        if before is not None:
            before(batch)
        result.batches.append(batch)
        for row in frame.select("topic", "partition", "offset").collect():
            result.offsets.setdefault((row[0], row[1]), Counter())[row[2]] += 1

    settings = {
        "kafka.bootstrap.servers": bootstrap,
        "subscribe": topics,
        "startingOffsets": "earliest",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": "50",
        **KAFKA_OPTIONS,
        **(options or {}),
    }
    former = {key: spark.conf.get(key, None) for key in (_FILE_MANAGER, *(configuration or {}))}
    # headrace's session has one that does not look at checksums; plain Spark chooses its own.
    spark.conf.unset(_FILE_MANAGER)
    for key, value in (configuration or {}).items():
        spark.conf.set(key, value)
    try:
        frame = spark.readStream.format("kafka").options(**settings).load()
        query = (
            frame.writeStream.option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(take)
            .start()
        )
        try:
            query.awaitTermination(120)
        finally:
            query.stop()
    except Exception as error:  # noqa: BLE001 - whatever Spark says is what is looked for
        result.text = restart_policy.causes(error)
    finally:
        for key, value in former.items():
            spark.conf.unset(key) if value is None else spark.conf.set(key, value)
    return result


@dataclass
class PipelineCopy:
    """A lake and its checkpoints, a copy of the golden ones, with the topic that they were filled from."""

    site: Site
    topic: str

    @property
    def lake(self) -> Path:
        return self.site.root / "lake" / PIPELINE

    @property
    def checkpoint(self) -> Path:
        """The newest run's."""
        runs = (path for path in (self.site.root / "checkpoints" / PIPELINE).iterdir() if path.name.isdigit())
        return max(runs, key=lambda path: int(path.name))

    @property
    def config(self) -> Config:
        return load(self.site.config)

    def newest(self, folder: str = "offsets") -> Path:
        """The newest file of a log of the checkpoint's."""
        return max((self.checkpoint / folder).glob("[0-9]*"), key=lambda path: int(path.name))

    def copy(self, root: Path) -> "PipelineCopy":
        root.mkdir(parents=True, exist_ok=True)
        for name in ("lake", "checkpoints"):
            shutil.copytree(self.site.root / name, root / name)
        site = Site(root, self.site.bootstrap, self.site.registry_url, overrides=self.site.overrides)
        for name, settings in self.site.pipelines.items():
            about = {**settings["table"], "location": str(root / "lake" / name)}
            site.pipelines[name] = {**settings, "table": about}
        return PipelineCopy(site, self.topic)

    def carry(self, spark: Any, *, new_run: bool = False) -> tuple[int, str]:
        """Run headrace until it has read what is there. Returns exit code and all causes of its error."""
        config = self.config
        begin = partial(
            main.start_pipeline,
            lambda: spark,
            lambda: config,
            None,
            Notifier(),
            Receivers(),
            True,
            BatchQueue(),
            Event(),
            None,
        )
        running = PipelineRunner(Progress(PIPELINE), begin, waits=False)
        runners = PipelineRunners(lambda _: running, StartRequests())
        runners.add(PIPELINE)
        try:
            runners.begin(PIPELINE, new_run=new_run)
            runners.watch(Event())
        finally:
            running.cleanup.close()
        return exit_code(running.error), restart_policy.causes(running.error)


def blank(root: Path, bootstrap: str, registry_url: str, topic: str) -> PipelineCopy:
    """A pipeline that never ran."""
    root.mkdir(parents=True)
    site = Site(root, bootstrap, registry_url)
    site.pipeline(PIPELINE, [topic], commit={"max_offsets": 50})
    site.overrides["spark"] = {"master": "local[2]", "conf": {"spark.driver.extraJavaOptions": QUICK_START}}
    return PipelineCopy(site, topic)


def fill_golden(pipeline: PipelineCopy, spark: Any) -> None:
    """Let a pipeline commit six batches, run 1."""
    pipeline.site.fill(pipeline.topic, 300)
    code, text = pipeline.carry(spark)
    assert code == 0, text


def die_in_a_batch(spark: Any, pipeline: PipelineCopy) -> None:
    """Leave a batch that is planned and not committed, as a driver that dies in it does."""
    pipeline.site.fill(pipeline.topic, 20, seed=11)

    def die(batch: int) -> None:
        raise Unfinished(f"batch {batch} dies")

    result = run_plain_query(spark, pipeline.site.bootstrap, pipeline.checkpoint, topics=pipeline.topic, before=die)
    assert "Unfinished" in result.text, result.text


def rewrite(path: Path, content: bytes) -> None:
    """Write a file of a checkpoint as somebody who knows of its checksum."""
    path.write_bytes(content)
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def move(path: Path, topic: str, by: int, partition: str = "0") -> None:
    """Edit an offset of an offset file."""
    *head, last = path.read_text().splitlines()
    offsets = json.loads(last)
    offsets[topic][partition] += by
    rewrite(path, "\n".join([*head, json.dumps(offsets)]).encode())
