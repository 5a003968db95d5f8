"""The driver process: starts pipelines and the threads beside them, handles signals, sets the exit code."""

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any

from writer.clients import notifications
from writer.clients.driver_endpoint import announce, retract, this_driver
from writer.clients.kafka import Cluster
from writer.config.loader import ConfigChanges, ReloadableConfig
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import HeadraceError
from writer.core.signals import describe_process, stop_on_signals
from writer.driver import supervisor_channel
from writer.driver.batch_queue import BatchQueue
from writer.driver.pipeline import PipelineRun
from writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequest, StartRequests
from writer.driver.sealing import pipeline_seals
from writer.driver.spark import query, session
from writer.driver.topic_choice import report_beyond
from writer.scaling import spark_settings
from writer.scaling.executor_manager import ExecutorManager
from writer.scaling.spark_executors import SparkExecutors
from writer.schemas.registry import source
from writer.status import from_table
from writer.status.lag import LagListener
from writer.status.pause import Paused
from writer.status.progress import PipelineProgress, Progress
from writer.storage import disk_space
from writer.storage.locations import store_at
from writer.table import locations
from writer.telemetry.receivers import Receivers
from writer.web import endpoints, http_server, live_records

_LAST_WORDS = timedelta(seconds=5)  # for notices that wait when the process ends


def run(
    file: ReloadableConfig, *, once: bool, new_run: bool, listening: Callable[[str], object] = lambda _: None
) -> Mapping[str, BaseException | None]:
    """Run the pipelines until they are done, fail, or a signal asks to stop. Returns what each ended with.

    Unless `once`, the file is read again when that is requested. `listening` is called with the URL where this driver
    answers, if it does.
    """
    config, stop, asked = file.config, threading.Event(), StartRequests()
    board, receivers, queue = PipelineProgress(file.names), Receivers(), BatchQueue()
    notifier = notifications.open_notifier(config.notifications)
    link = supervisor_channel.folder()
    orders = supervisor_channel.StartInstructions() if link is None else link.orders()
    executor_manager = _executor_manager(config, board)
    serving = _serving(file, board, orders, asked, executor_manager)
    # HTTP before Spark: a port that is taken is said at once.
    with stop_on_signals(stop), serving as url, ExitStack() as after:
        after.callback(notifier.close, _LAST_WORDS)
        after.callback(receivers.close, _LAST_WORDS)
        for progress in board.values():
            receivers.follow(config, progress)
        if url is not None:
            listening(url)
        if link is not None:
            link.announce(pid=os.getpid(), url=url, certificate=str(config.http.certificate or ""))
        started = after.enter_context(ExitStack())
        spark = _started_once(config, file.names, executor_manager, started)
        begin = partial(_begin, spark, lambda: file.config, url, notifier, receivers, once, queue)
        report = {} if link is None else {"report": link.report}

        def made(name: str) -> PipelineRunner:
            if name not in board:
                board.add(name)
            queue.join(name, file.config.pipelines[name].scheduling)
            runner = PipelineRunner(board[name], begin, waits=not once, stop_timeout=config.stop_timeout, **report)
            runner.lease = orders.of(name).lease
            return runner

        def left(name: str) -> None:
            queue.leave(name)
            board.remove(name)
            receivers.forget(name)

        runners = PipelineRunners(made, asked, left, supervised=link is not None)
        try:
            for name in file.names:
                after.callback(runners.add(name).shown.close)
            for name in file.names:
                if orders.of(name).start:
                    runners.begin(name, new_run=new_run or orders.of(name).new_run)
                else:
                    board[name].stopped()
            if runners.are_waited_for:
                spark()  # a paused pipeline begins at once when the pause is over
            runners.watch(stop, lambda: _beat(link, stop, board, None if once else file))
        finally:
            executor_manager.close()  # executors that go with the application are not lost
            started.close()
    return {name: runner.error for name, runner in runners.all.items()}


def _serving(
    file: ReloadableConfig, board: PipelineProgress, orders: supervisor_channel.StartInstructions, asked: StartRequests,
    executor_manager: ExecutorManager,
) -> AbstractContextManager[str | None]:  # fmt: skip
    """Prepare the HTTP server. It yields its URL; None where the configuration wants none."""
    starts = endpoints.starts(board, orders.token, lambda *request: asked.put(StartRequest(*request)))
    return endpoints.serving(
        file.config.http, board, http_server.first_of(starts, executor_manager.post),
        live_records.record_guard(file.config, lambda: file.config),
        lambda: {
            "executors": executor_manager.to_dict(),
            "config": {**file.document(), "process": describe_process(orders.supervisor or os.getpid())},
        },
    )  # fmt: skip


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


def _executor_manager(config: Config, board: PipelineProgress) -> ExecutorManager:
    """Return the executor manager. It stores the number of executors beside each pipeline's runs."""
    spark = config.spark

    def between_batches() -> bool:
        batches = [progress.view().batch for progress in board.values()]
        return all(batch is None or batch.phase != "tasks" for batch in batches)

    return ExecutorManager(
        spark.master, config.autoscaler,
        refusal=spark_settings.refusal(spark.master, spark.conf),
        cpus_per_task=int(spark.conf.get("spark.task.cpus", "1")),
        stores=lambda: [store_at(f"{config.checkpoints}/{name}", config.s3.settings) for name in board],
        boundary=between_batches,
    )  # fmt: skip


def _beat(
    link: supervisor_channel.ChannelFolder | None,
    stop: threading.Event,
    board: PipelineProgress,
    file: ReloadableConfig | None,
) -> ConfigChanges | None:
    """Send the supervisor a heartbeat, and read the file again if that is due. Returns what changed of it.

    Without its supervisor nothing could drain this driver later: it stops.
    """
    if link is not None:
        link.beat()
        for name, decisions in link.decided().items():
            if name in board:
                board[name].recovered(tuple(decisions))
        if not stop.is_set() and link.is_orphaned():
            logging.warning("supervisor_lost", reason="its lock is free")
            stop.set()
    return None if file is None else file.read_again()


def _begin(
    session_of: Callable[[], Any], config_of: Callable[[], Config], url: str | None, notifier: notifications.Notifier,
    receivers: Receivers, once: bool, queue: BatchQueue, r: PipelineRunner, new_run: bool,
) -> None:  # fmt: skip
    """Start the pipeline and its query, and let others see it: its lag, and where this driver answers.

    `session_of` returns the Spark session, which may have to start: what can be checked without it is checked first.
    `config_of` returns the configuration in force. `queue`: where the batches of all pipelines wait.
    """
    config = config_of()
    name = r.progress.pipeline
    locations.check_locations(name, config)
    queue.join(name, config.pipelines[name].scheduling)
    receivers.follow(config, r.progress)
    cluster = Cluster(config.kafka.address, config.kafka.request_timeout)
    pipeline = PipelineRun(
        name, config, schemas=source(config.registry), cluster=cluster, progress=r.progress, notifier=notifier,
        queue=queue,
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
    start = pipeline.start(new_run=new_run, once=once, lease=r.lease)
    watch_lag = LagListener(
        cluster, pipeline.topic_ids, r.progress,
        interval=config.kafka.lag_interval, mirror=pipeline.config.commit_offsets_to_group,
        selection=pipeline.config.topics,
        on_beyond=lambda beyond: report_beyond(pipeline.config.topics, beyond, r.progress, notifier.send),
        log_break=pipeline.log_watch().divergence,
    )  # fmt: skip
    watch_lag.start()
    r.shown.callback(watch_lag.close)
    pipeline.gate.watch()
    r.shown.callback(pipeline.gate.close)
    if url is not None:
        driver = this_driver(url, pipeline.epoch, str(config.http.certificate or ""))
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
