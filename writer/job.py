"""The Spark application: a session, and a streaming query for each pipeline. Wires the rooms together."""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from writer import artifacts, log, notify, supervised
from writer.care import retention
from writer.care.pausing import Paused
from writer.care.retention import Regularly, Retention
from writer.config import Config
from writer.errors import HeadraceError
from writer.hooks.couriers import Delivery, couriers
from writer.kafka import Cluster
from writer.lag import Watch
from writer.pipeline import PipelineRun, Start
from writer.progress import Progress
from writer.registry import source
from writer.rewrites.compacting import beside_seals, here, in_spark
from writer.rewrites.pace import Pace
from writer.running import Asked, Running, watch
from writer.scaling import elastic
from writer.scaling.cluster import SparkExecutors
from writer.scaling.keeper import Keeper
from writer.seals.sealer import Sealer
from writer.seals.sealing import Closer, Listener, Rounds, Seals, Step, seal_due
from writer.stores.base import S3Settings
from writer.stores.location import for_spark, on_s3, store_at
from writer.surface import http, lake, records
from writer.surface.driver import announce, me, retract
from writer.tables.formats import main_table
from writer.transfer import KAFKA_OPTIONS, WORKER_ENVIRONMENT

_TRIGGER = "1 second"  # how often Spark asks Kafka for new offsets; a shorter interval burdens the broker
_LAST_WORDS = timedelta(seconds=5)  # for notices that wait when the process ends
_JAVA_OPTIONS, _REDACTED = "spark.driver.extraJavaOptions", "spark.redaction.regex"
_ADDED = {_JAVA_OPTIONS: " ", _REDACTED: "|"}  # those of the file are added, they do not replace ours


def run(config: Config, *, once: bool, new_run: bool, only: list[str] | None = None) -> int:
    """Run the pipelines until they are done, fail, or a signal asks to stop. Returns the exit code."""
    stop, asked = threading.Event(), Asked()
    names = only or list(config.pipelines)
    board = {name: Progress(name) for name in names}
    tells = notify.opened(config.notify)
    link = supervised.folder()
    orders = supervised.Orders() if link is None else link.orders()
    keeper = _keeper(config, board)
    starts = http.starts(board, orders.token, lambda name, new_run: asked.ask(name, new_run=new_run))
    serving = http.serving(
        config.http, board, http.first_of(starts, keeper.post), records.guarded(config),
        lambda: {"executors": keeper.told()},
    )  # fmt: skip
    # HTTP before Spark: a port that is taken is said at once.
    with _signals(stop.set), serving as url, ExitStack() as after:
        after.callback(tells.close, _LAST_WORDS)
        if link is not None:
            link.say(pid=os.getpid(), url=url, certificate=str(config.http.certificate or ""))
        spark = session(config, len(names))
        keeper.begin(lambda: SparkExecutors(spark))
        begin = partial(_begin, spark, config, url, tells, orders, once)
        tell = {} if link is None else {"tell": link.tell}
        running = {name: Running(board[name], begin, waits=not once, **tell) for name in names}
        try:
            for name, r in running.items():
                after.callback(r.shown.close)
                if not orders.of(name).start:
                    r.progress.stopped()
                    continue
                r.begin(new_run=new_run or orders.of(name).new_run)
                if r.error is not None:
                    r.fail()
            watch(running, stop, asked, partial(_beat, link, stop, board))
        finally:
            keeper.close()  # executors that go with the application are not lost
            spark.stop()
    return exit_code([r.error for r in running.values()])


def _keeper(config: Config, board: Mapping[str, Progress]) -> Keeper:
    """Return who keeps as many executors as are wanted. Where they are kept in mind: beside each pipeline's runs."""
    spark = config.spark

    def between_batches() -> bool:
        batches = [progress.view().batch for progress in board.values()]
        return all(batch is None or batch.phase != "tasks" for batch in batches)

    return Keeper(
        spark.master, config.autoscale,
        refusal=elastic.refusal(spark.master, spark.conf), cpus_per_task=int(spark.conf.get("spark.task.cpus", "1")),
        stores=[store_at(f"{config.checkpoints}/{name}", config.s3.settings) for name in board],
        boundary=between_batches,
    )  # fmt: skip


def _beat(link: supervised.Folder | None, stop: threading.Event, board: Mapping[str, Progress]) -> None:
    """Let the supervisor see that this driver lives; without one, there is nobody to drain it later: stop."""
    if link is None:
        return
    link.beat()
    for name, decisions in link.decided().items():
        if name in board:
            board[name].recovered(tuple(decisions))
    if not stop.is_set() and link.forsaken():
        log.warning("supervisor_gone", reason="its lock is free")
        stop.set()


def session(config: Config, pipelines: int = 1) -> Any:
    """Start Spark with the settings that the data plane needs; those of the file come last."""
    java = artifacts.java(17)
    os.environ.setdefault("JAVA_HOME", str(java.parent.parent))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # workers see what the driver sees
    from pyspark.sql import SparkSession

    settings = {
        "spark.jars": ",".join(
            str(jar)
            for jar in artifacts.spark_jars(
                say=lambda line: log.event("fetching", what=line), s3=on_s3(config.checkpoints)
            )
        ),
        "spark.scheduler.mode": "FAIR",
        "spark.sql.session.timeZone": "UTC",
        **{f"spark.executorEnv.{name}": value for name, value in WORKER_ENVIRONMENT.items()},
        "spark.sql.adaptive.enabled": "false",  # nothing here shuffles
        "spark.sql.streaming.minBatchesToRetain": "20",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        _REDACTED: "(?i)secret|password|token|jaas|access[.]?key|credential",
        _JAVA_OPTIONS: f'-Dlog4j2.configurationFile="{Path(__file__).parent / "log4j2.properties"}"',
        "spark.driver.memory": "1g",
        **elastic.settings(config.spark.master, config.autoscale),
    }
    if on_s3(config.checkpoints):
        settings |= s3a(config.s3.settings)
    if config.spark.master.startswith("local"):
        settings |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    builder = SparkSession.builder.appName("headrace").master(config.spark.master)
    for key, value in (settings | config.spark.conf).items():
        ours = f"{settings[key]}{_ADDED[key]}" if key in _ADDED and key in config.spark.conf else ""
        builder = builder.config(key, ours + value)
    log.event("spark_starting", master=config.spark.master, pipelines=pipelines)
    return builder.getOrCreate()


def s3a(s3: S3Settings) -> dict[str, str]:
    """Return what Spark is told to keep checkpoints in S3. An object appears there whole: nothing is renamed."""
    told = {
        "endpoint": s3.endpoint,
        "endpoint.region": s3.region,
        "path.style.access": str(bool(s3.path_style)).lower(),
    }
    return {
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.internal.io.cloud.AbortableStreamBasedCheckpointFileManager"
        ),
        "spark.hadoop.fs.s3a.aws.credentials.provider": (
            "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider"  # the standard chain, as elsewhere
        ),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in told.items() if value},
    }


def exit_code(errors: list[BaseException | None]) -> int:
    """The process's word to its supervisor: 0 when all went well, else the code that asks for most care."""
    codes = [error.exit_code if isinstance(error, HeadraceError) else 1 for error in errors if error is not None]
    care = {0: 0, 1: 1, 5: 2, 2: 3, 4: 4, 3: 5}
    return max(codes, key=lambda code: care[code], default=0)


def _begin(
    spark: Any, config: Config, url: str | None, tells: notify.Tells, orders: supervised.Orders, once: bool,
    r: Running, new_run: bool,
) -> None:  # fmt: skip
    """Start the pipeline and its query, and let others see it: its lag, and where this driver answers."""
    name = r.progress.pipeline
    cluster = Cluster(config.kafka.address, config.kafka.request_timeout)
    pipeline = PipelineRun(
        name, config, schemas=source(config.registry), cluster=cluster, progress=r.progress, tells=tells
    )
    r.pipeline = pipeline
    try:
        pipeline.gate.enter(once=once)
    except Paused:
        if not once:
            _listen(config, name, cluster, r.progress)
        raise
    start = pipeline.start(new_run=new_run, once=once, lease=orders.of(name).lease)
    watch_lag = Watch(
        cluster, pipeline.topic_ids, r.progress,
        interval=config.kafka.lag_interval, mirror=pipeline.config.mirror_offsets,
    )  # fmt: skip
    watch_lag.start()
    r.shown.callback(watch_lag.close)
    pipeline.gate.watch()
    r.shown.callback(pipeline.gate.close)
    delivery = Delivery(name, couriers(name, config), r.progress.hooked)
    delivery.start()  # before anything is sealed, and closed after
    r.shown.callback(delivery.close, last=once)
    if url is not None:
        driver = me(url, pipeline.epoch, str(config.http.certificate or ""))
        announce(config.checkpoints, name, driver, config.s3.settings)
        r.shown.callback(retract, config.checkpoints, name, driver, config.s3.settings)
    if pipeline.config.seal.enabled:
        sealer = Sealer(name, config)
        # With --once Spark may be gone when the last round comes; nobody waits for the driver's processor then.
        rewriting = here if once else in_spark(spark, f"rewrites of {name}", Pace(pipeline.config.compact.share))
        merge = beside_seals(sealer, config.s3.settings, rewriting)
        beside = {**steps(pipeline, cluster, merge, retention.works(name, config)), "hooks": delivery.follow}
        rounds = Rounds(sealer, beside, r.progress)
        seals = Seals(rounds, r.progress)
        seals.start()
        r.shown.callback(seals.close, last=once)
    r.query = _query(spark, config, pipeline, start, once=once)


def _listen(config: Config, name: str, cluster: Cluster, progress: Progress) -> None:
    """Let a pipeline that is held before its start say how far it is behind; Kafka's silence says nothing."""
    samples, now = progress.view().logs.samples, datetime.now(UTC)
    if samples and now - samples[-1].at < config.kafka.lag_interval:
        return
    with suppress(HeadraceError, OSError):
        table = main_table(name, config)
        snapshot = table.snapshot() if table.exists() else None
        progress.waits(*lake.heard(cluster, config.pipelines[name].topics, snapshot, now))


def steps(pipeline: PipelineRun, cluster: Cluster, merge: Step, retained: Sequence[Retention]) -> dict[str, Step]:
    """Return what is done to the buckets of a pipeline beside its stream, in this order."""
    return {
        "close": Closer(Listener(cluster, pipeline.config.topics), lambda: pipeline.numbers),
        "merge": merge,
        "seal": seal_due,
        "retention": Regularly(pipeline.name, retained),
    }


def _query(spark: Any, config: Config, pipeline: PipelineRun, start: Start, *, once: bool) -> Any:
    settings = pipeline.config
    starting: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(start.offsets.items()):
        starting.setdefault(topic, {})[str(partition)] = offset
    options = {
        "kafka.bootstrap.servers": config.kafka.bootstrap_servers,
        **config.kafka.security.sparks,
        "subscribe": ",".join(settings.topics),
        "startingOffsets": json.dumps(starting),
        "failOnDataLoss": "true",  # a loss is accepted only by a recorded gap, never by an option
        **KAFKA_OPTIONS,
        "maxOffsetsPerTrigger": str(settings.commit.max_records),
        "minPartitions": str(spark.sparkContext.defaultParallelism),
    }
    cut = elastic.records_per_range(config, settings.commit.max_records)
    if cut is not None:  # executors may come: a full batch is to have work for all of them
        options["maxRecordsPerPartition"] = str(cut)
    if pipeline.needs_headers():
        options["includeHeaders"] = "true"
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
