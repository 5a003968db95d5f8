"""The Spark application: a session, and a streaming query for each pipeline. Wires the rooms together."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from writer import artifacts, log
from writer.config import Config
from writer.errors import Draining, Fenced, HeadraceError
from writer.kafka import Cluster
from writer.lag import Watch
from writer.pipeline import PipelineRun, Start
from writer.progress import Progress
from writer.registry import source
from writer.stores.location import for_spark
from writer.surface import http
from writer.transfer import KAFKA_OPTIONS, WORKER_ENVIRONMENT

_TRIGGER = "1 second"  # how often Spark asks Kafka for new offsets; a shorter interval burdens the broker
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"  # those of the file are added, they do not replace ours
_LOOK_S = 0.2  # between two looks at the queries


@dataclass
class Running:
    """A pipeline with its query, or with the reason why it has none."""

    progress: Progress
    pipeline: PipelineRun
    query: Any = None
    error: BaseException | None = None

    @property
    def active(self) -> bool:
        """The query runs."""
        return self.query is not None and bool(self.query.isActive)


def run(config: Config, *, once: bool, new_run: bool, only: list[str] | None = None) -> int:
    """Run the pipelines until they are done, fail, or a signal asks to stop. Returns the exit code."""
    stop = threading.Event()
    names = only or list(config.pipelines)
    board = {name: Progress(name) for name in names}
    # HTTP before Spark: a port that is taken is said at once.
    with _signals(stop.set), http.serving(config.http, board) as url, ExitStack() as after:
        spark = session(config, len(names))
        try:
            running = [
                _begin(
                    spark, config, name, board[name], lambda p: _show(p, config, url, after), once=once, new_run=new_run
                )
                for name in names
            ]
            _watch(running, stop)
        finally:
            spark.stop()
    return exit_code([r.error for r in running])


def session(config: Config, pipelines: int = 1) -> Any:
    """Start Spark with the settings that the data plane needs; those of the file come last."""
    java = artifacts.java(17)
    os.environ.setdefault("JAVA_HOME", str(java.parent.parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers see what the driver sees
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(
            str(jar) for jar in artifacts.spark_jars(say=lambda line: log.event("fetching", what=line))
        ),
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
        "spark.sql.adaptive.enabled": "false",  # nothing here shuffles
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.redaction.regex": "(?i)secret|password|token|jaas|access[.]?key|credential",
        _JAVA_OPTIONS: f'-Dlog4j2.configurationFile="{Path(__file__).parent / "log4j2.properties"}"',
        "spark.driver.memory": "1g",
    }
    if config.spark.master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName("headrace").master(config.spark.master)
    for key, value in (settings | config.spark.conf).items():
        ours = f"{settings[key]} " if key == _JAVA_OPTIONS and key in config.spark.conf else ""
        builder = builder.config(key, ours + value)
    log.event("spark_starting", master=config.spark.master, pipelines=pipelines)
    return builder.getOrCreate()


def exit_code(errors: list[BaseException | None]) -> int:
    """The process's word to its supervisor: 0 when all went well, else the code that asks for most care."""
    codes = [error.exit_code if isinstance(error, HeadraceError) else 1 for error in errors if error is not None]
    care = {0: 0, 1: 1, 5: 2, 2: 3, 4: 4, 3: 5}
    return max(codes, key=lambda code: care[code], default=0)


def _begin(
    spark: Any,
    config: Config,
    name: str,
    progress: Progress,
    show: Callable[[PipelineRun], None],
    *,
    once: bool,
    new_run: bool,
) -> Running:
    cluster = Cluster(config.kafka.bootstrap_servers, config.kafka.request_timeout)
    try:
        pipeline = PipelineRun(name, config, schemas=source(config.registry), cluster=cluster, progress=progress)
    except Exception as error:  # noqa: BLE001 - one pipeline fails alone; its error is kept and decides the exit code
        return _failed(Running(progress, None, error=error), name)  # type: ignore[arg-type]
    running = Running(progress, pipeline)
    try:
        start = pipeline.start(new_run=new_run, once=once)
        show(pipeline)
        running.query = _query(spark, config, pipeline, start, once=once)
        progress.running()
    except Exception as error:  # noqa: BLE001 - as above
        running.error = error
        _failed(_judged(running), name)
    return running


def _show(pipeline: PipelineRun, config: Config, url: str | None, after: ExitStack) -> None:
    """Let others see the pipeline that has started: its lag, and where this driver answers; until `after` ends."""
    watch = Watch(
        pipeline.cluster, pipeline.config.topics, pipeline.progress,
        interval=config.kafka.lag_interval, mirror=pipeline.config.mirror_offsets,
    )  # fmt: skip
    watch.start()
    after.callback(watch.close)
    if url is not None:
        driver = http.me(url, pipeline.epoch)
        http.announce(config.checkpoints, pipeline.name, driver, config.s3.settings)
        after.callback(http.retract, config.checkpoints, pipeline.name, driver, config.s3.settings)


def _query(spark: Any, config: Config, pipeline: PipelineRun, start: Start, *, once: bool) -> Any:
    settings = pipeline.config
    starting: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(start.offsets.items()):
        starting.setdefault(topic, {})[str(partition)] = offset
    options = {
        "kafka.bootstrap.servers": config.kafka.bootstrap_servers,
        "subscribe": ",".join(settings.topics),
        "startingOffsets": json.dumps(starting),
        "failOnDataLoss": "true",  # a loss is accepted only by a recorded gap, never by an option
        **KAFKA_OPTIONS,
        "maxOffsetsPerTrigger": str(settings.commit.max_records),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    if not once:  # without a minimum, maxTriggerDelay does nothing; with one, `--once` would leave the tail unread
        options["minOffsetsPerTrigger"] = str(pipeline.min_offsets())
        options["maxTriggerDelay"] = f"{int(settings.commit.max_delay.total_seconds() * 1000)}ms"
    spark.sparkContext.setLocalProperty("spark.scheduler.pool", pipeline.name)
    stream = spark.readStream.format("kafka").options(**options).load().writeStream
    trigger: Mapping[str, Any] = {"availableNow": True} if once else {"processingTime": _TRIGGER}
    return (
        stream.queryName(pipeline.name)
        .option("checkpointLocation", for_spark(start.checkpoint))
        .trigger(**trigger)
        .foreachBatch(pipeline.process)
        .start()
    )


def _watch(running: list[Running], stop: threading.Event) -> None:
    """Wait until no query is left, noting each end as it comes; drain when asked to stop."""
    waiting = [r for r in running if r.query is not None]
    while waiting:
        if stop.wait(_LOOK_S):
            time.sleep(_LOOK_S)  # once it is set, waiting for it does not wait
        for r in list(waiting):
            if stop.is_set() and r.active and r.pipeline.drain():
                r.query.stop()
            if not r.active:
                waiting.remove(r)
                _end(r)


def _end(r: Running) -> None:
    name = r.pipeline.name
    failure = r.query.exception()
    r.error = r.pipeline.error or failure
    if isinstance(r.error, Draining) or r.error is None:
        r.error = None
        r.progress.stopped()
        log.event("pipeline_stopped", pipeline=name)
        return
    _failed(_judged(r), name)


def _judged(r: Running) -> Running:
    """Two writers on one checkpoint make each other fail in many ways; the one that was replaced is just fenced."""
    if not isinstance(r.error, Fenced) and not r.pipeline.owns_table():
        name, words = r.pipeline.name, _words(r.error)
        r.error = Fenced(f"pipeline {name!r} was started again: another writer runs. Stop one of them. ({words})")
    return r


def _failed(r: Running, name: str) -> Running:
    r.progress.failed(_words(r.error))
    log.warning("pipeline_failed", pipeline=name, exit_code=exit_code([r.error]), error=_words(r.error))
    if not isinstance(r.error, HeadraceError):
        log.detail(r.error)
    return r


def _words(error: BaseException | None) -> str:
    """Return a sentence of ours whole, of any other error its kind and first line."""
    if isinstance(error, HeadraceError):
        return str(error)
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), '')}"


class _signals:  # noqa: N801 - reads as a word of the with statement
    """Call back on SIGTERM and SIGINT while inside."""

    def __init__(self, callback: Callable[[], None]) -> None:
        self._callback = callback

    def __enter__(self) -> None:
        self._before = {s: signal.signal(s, self._handle) for s in (signal.SIGTERM, signal.SIGINT)}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: object) -> None:
        log.event("stop_requested", signal=signal.Signals(number).name)
        self._callback()
