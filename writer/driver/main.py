"""The driver process: starts pipelines and the threads beside them, handles signals, sets the exit code."""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

from writer.clients import notifications
from writer.clients.driver_endpoint import announce, me, retract
from writer.clients.kafka import Cluster
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import HeadraceError
from writer.core.signals import stopped_by_signals
from writer.driver import supervisor_channel
from writer.driver.batch_queue import BatchQueue
from writer.driver.pipeline import PipelineRun
from writer.driver.pipeline_runner import PipelineRunner, StartRequests, watch
from writer.driver.sealing import pipeline_seals
from writer.driver.spark import query, session
from writer.driver.topic_choice import report_beyond
from writer.scaling import spark_settings
from writer.scaling.executor_manager import ExecutorManager
from writer.scaling.spark_executors import SparkExecutors
from writer.schemas.registry import source
from writer.status import from_table
from writer.status.lag import Watch
from writer.status.pause import Paused
from writer.status.progress import Progress
from writer.storage import disk_space
from writer.storage.locations import store_at
from writer.table import locations
from writer.telemetry.receivers import Receivers
from writer.web import endpoints, http_server, live_records

_LAST_WORDS = timedelta(seconds=5)  # for notices that wait when the process ends


def run(
    config: Config,
    *,
    once: bool,
    new_run: bool,
    only: list[str] | None = None,
    listening: Callable[[str], object] = lambda _: None,
) -> Mapping[str, BaseException | None]:
    """Run the pipelines until they are done, fail, or a signal asks to stop. Returns what each ended with.

    `listening` is called with the URL where this driver answers, if it does.
    """
    stop, asked = threading.Event(), StartRequests()
    names = only or list(config.pipelines)
    listener = {name: Progress(name) for name in names}
    notifier = notifications.opened(config.notifications)
    link = supervisor_channel.folder()
    orders = supervisor_channel.Orders() if link is None else link.orders()
    executor_manager = _executor_manager(config, listener)
    starts = endpoints.starts(listener, orders.token, lambda name, new_run: asked.put((name, new_run)))
    serving = endpoints.serving(
        config.http, listener, http_server.first_of(starts, executor_manager.post), live_records.guarded(config),
        lambda: {"executors": executor_manager.to_dict()},
    )  # fmt: skip
    # HTTP before Spark: a port that is taken is said at once.
    with stopped_by_signals(stop), serving as url, ExitStack() as after:
        after.callback(notifier.close, _LAST_WORDS)
        after.callback(Receivers(config, listener.values()).close, _LAST_WORDS)
        if url is not None:
            listening(url)
        if link is not None:
            link.announce(pid=os.getpid(), url=url, certificate=str(config.http.certificate or ""))
        started = after.enter_context(ExitStack())
        spark = _started_once(config, names, executor_manager, started)
        queue = BatchQueue({name: config.pipelines[name].scheduling for name in names})
        begin = partial(_begin, spark, config, url, notifier, orders, once, queue=queue, pipelines=len(names))
        report = {} if link is None else {"report": link.report}
        running = {
            name: PipelineRunner(listener[name], begin, waits=not once, stop_timeout=config.stop_timeout, **report)
            for name in names
        }
        try:
            for name, r in running.items():
                after.callback(r.shown.close)
                if not orders.of(name).start:
                    r.progress.stopped()
                    continue
                r.begin(new_run=new_run or orders.of(name).new_run)
                if r.error is not None:
                    r.fail()
            if any(r.waited_for for r in running.values()):
                spark()  # a paused pipeline begins at once when the pause is over
            watch(running, stop, asked, partial(_beat, link, stop, listener))
        finally:
            executor_manager.close()  # executors that go with the application are not lost
            started.close()
    return {name: r.error for name, r in running.items()}


def _started_once(
    config: Config, pipelines: Sequence[str], executor_manager: ExecutorManager, started: ExitStack
) -> Callable[[], Any]:
    """Return what starts Spark when it is first asked for: by a pipeline whose checks found nothing wrong."""

    @cache
    def spark() -> Any:
        found = session(config, pipelines)
        started.callback(found.stop)
        executor_manager.begin(lambda: SparkExecutors(found))
        return found

    return spark


def _executor_manager(config: Config, listener: Mapping[str, Progress]) -> ExecutorManager:
    """Return the executor manager. It stores the number of executors beside each pipeline's runs."""
    spark = config.spark

    def between_batches() -> bool:
        batches = [progress.view().batch for progress in listener.values()]
        return all(batch is None or batch.phase != "tasks" for batch in batches)

    return ExecutorManager(
        spark.master, config.autoscaler,
        refusal=spark_settings.refusal(spark.master, spark.conf),
        cpus_per_task=int(spark.conf.get("spark.task.cpus", "1")),
        stores=[store_at(f"{config.checkpoints}/{name}", config.s3.settings) for name in listener],
        boundary=between_batches,
    )  # fmt: skip


def _beat(link: supervisor_channel.Folder | None, stop: threading.Event, listener: Mapping[str, Progress]) -> None:
    """Send the supervisor a heartbeat. Without a supervisor nothing could drain this driver later: stop."""
    if link is None:
        return
    link.beat()
    for name, decisions in link.decided().items():
        if name in listener:
            listener[name].recovered(tuple(decisions))
    if not stop.is_set() and link.is_orphaned():
        logging.warning("supervisor_lost", reason="its lock is free")
        stop.set()


def _begin(
    session_of: Callable[[], Any], config: Config, url: str | None, notifier: notifications.Notifier,
    orders: supervisor_channel.Orders, once: bool, r: PipelineRunner, new_run: bool, *,
    queue: BatchQueue | None = None, pipelines: int = 1,
) -> None:  # fmt: skip
    """Start the pipeline and its query, and let others see it: its lag, and where this driver answers.

    `session_of` returns the Spark session, which may have to start: what can be checked without it is checked first.
    `pipelines`: how many the driver runs; `queue`: where their batches wait.
    """
    name = r.progress.pipeline
    locations.check(name, config)
    cluster = Cluster(config.kafka.address, config.kafka.request_timeout)
    pipeline = PipelineRun(
        name, config, schemas=source(config.registry), cluster=cluster, progress=r.progress, notifier=notifier,
        queue=queue, pipelines=pipelines,
    )  # fmt: skip
    r.pipeline = pipeline
    try:
        pipeline.gate.enter(once=once)
    except Paused:
        if not once:
            _listen(config, name, cluster, r.progress)
        raise
    pipeline.check()
    spark = session_of()
    scratch = os.environ.get("SPARK_LOCAL_DIRS") or spark.conf.get("spark.local.dir", tempfile.gettempdir())
    r.places = {f"{config.checkpoints}/{name}": disk_space.CHECKPOINT, scratch.split(",")[0]: disk_space.SCRATCH}
    start = pipeline.start(new_run=new_run, once=once, lease=orders.of(name).lease)
    watch_lag = Watch(
        cluster, pipeline.topic_ids, r.progress,
        interval=config.kafka.lag_interval, mirror=pipeline.config.commit_offsets_to_group,
        selection=pipeline.config.topics,
        on_beyond=lambda beyond: report_beyond(pipeline.config.topics, beyond, r.progress, notifier.send),
    )  # fmt: skip
    watch_lag.start()
    r.shown.callback(watch_lag.close)
    pipeline.gate.watch()
    r.shown.callback(pipeline.gate.close)
    if url is not None:
        driver = me(url, pipeline.epoch, str(config.http.certificate or ""))
        announce(config.checkpoints, name, driver, config.s3.settings)
        r.shown.callback(retract, config.checkpoints, name, driver, config.s3.settings)
    pipeline_seals.start(spark, config, pipeline, cluster, r.shown, once=once)
    r.query = query(spark, config, pipeline, start, once=once)
    r.cancel = partial(spark.sparkContext.cancelJobGroup, str(r.query.runId))  # Spark runs a query's jobs as this group


def _listen(config: Config, name: str, cluster: Cluster, progress: Progress) -> None:
    """Measure the lag of a pipeline that is held before its start; ignore a Kafka that does not answer."""
    samples, now = progress.view().logs.samples, datetime.now(UTC)
    if samples and now - samples[-1].at < config.kafka.lag_interval:
        return
    with suppress(HeadraceError, OSError):
        frontier, logs = from_table.logs_now(name, config, cluster, now)
        progress.waits(frontier, replace(logs, interval=config.kafka.lag_interval))
