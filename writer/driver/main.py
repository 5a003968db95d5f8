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

from headrace.writer.clients import notifications, spark_login
from headrace.writer.clients.driver_endpoint import announce, retract, this_driver
from headrace.writer.clients.kafka import Cluster
from headrace.writer.clients.supervisor_record import halt_of_decisions, wait_of_decisions
from headrace.writer.config.loader import ConfigChanges, ReloadableConfig
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import Draining, HeadraceError, Occupied
from headrace.writer.core.signals import StopEvents, describe_process, stop_on_signals
from headrace.writer.driver import supervisor_channel
from headrace.writer.driver.batches.batch_queue import BatchQueue
from headrace.writer.driver.pipeline import PipelineRun
from headrace.writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequest, StartRequests
from headrace.writer.driver.sealing import pipeline_seals
from headrace.writer.driver.spark import query, session, stop_session
from headrace.writer.driver.start.topic_choice import report_beyond
from headrace.writer.driver.table_watch import TableWatch
from headrace.writer.lease.holder import LeaseLoss
from headrace.writer.lease.run_leases import RunLeases
from headrace.writer.scaling import spark_settings
from headrace.writer.scaling.executor_manager import ExecutorManager
from headrace.writer.scaling.spark_executors import SparkExecutors
from headrace.writer.schemas.registry import source
from headrace.writer.status import from_table
from headrace.writer.status.lag import LagListener
from headrace.writer.status.pause import Paused
from headrace.writer.status.progress import PipelineProgress, Progress
from headrace.writer.storage import disk_space
from headrace.writer.storage.locations import store_at
from headrace.writer.table import locations
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.telemetry.receivers import Receivers
from headrace.writer.web import endpoints, http_server, live_records

# For notices that wait when the process ends.
_CLOSE_TIMEOUT = timedelta(seconds=5)


def run(
    file: ReloadableConfig,
    *,
    once: bool,
    new_run: bool,
    listening: Callable[[str], object] = lambda _: None,
    leases: RunLeases | None = None,
) -> Mapping[str, BaseException | None]:
    """Run the pipelines until they are done, fail, or a signal asks to stop. Returns what each ended with.

    Unless `once`, the file is read again when that is requested. `listening` is called with the URL where this driver
    answers, if it does. `leases` are held meanwhile; None: a supervisor holds them, or none is needed. Raises
    ConfigError, Draining, Occupied.
    """
    events = StopEvents()
    with stop_on_signals(events):
        if leases is None:
            return _run_pipelines(file, events, None, listening, once=once, new_run=new_run)
        with leases.hold(_writable_pipelines(file), events.stop):
            return _run_pipelines(file, events, leases, listening, once=once, new_run=new_run)


def _writable_pipelines(file: ReloadableConfig) -> list[str]:
    """Return the pipelines whose locations are sound. The start of another one says why not, and writes nothing."""
    names = []
    for name in file.names:
        # A storage that does not answer is for the start to tell, too.
        with suppress(CommitFailed, HeadraceError, OSError):
            if not any(nesting.refused for nesting in locations.inspect_locations(name, file.config).nestings):
                names.append(name)
    return names


def _run_pipelines(
    file: ReloadableConfig,
    events: StopEvents,
    leases: RunLeases | None,
    listening: Callable[[str], object],
    *,
    once: bool,
    new_run: bool,
) -> Mapping[str, BaseException | None]:
    """Run the pipelines, whose leases are held, as `run` says."""
    config = file.config
    requests = StartRequests()
    progresses = PipelineProgress(file.names)
    receivers = Receivers()
    queue = BatchQueue()
    notifier = notifications.open_notifier(config.notifications)
    channel = supervisor_channel.folder()
    orders = supervisor_channel.StartInstructions() if channel is None else channel.orders()
    executor_manager = _build_executor_manager(config, progresses)
    server = _build_server(file, progresses, orders, requests, executor_manager)
    # HTTP before Spark: a port that is taken is said at once.
    with server as url, ExitStack() as cleanup:
        cleanup.callback(notifier.close, _CLOSE_TIMEOUT)
        cleanup.callback(receivers.close, _CLOSE_TIMEOUT)
        for progress in progresses.values():
            receivers.follow(config, progress)
        _announce_url(config, url, channel, listening)
        spark_cleanup = cleanup.enter_context(ExitStack())
        spark = _lazy_session(config, file.names, executor_manager, spark_cleanup)
        begin = partial(
            start_pipeline, spark, lambda: file.config, url, notifier, receivers, once, queue, events.stop, leases
        )

        def build_runner(name: str) -> PipelineRunner:
            if name not in progresses:
                progresses.add(name)
            queue.join(name, file.config.pipelines[name].scheduling)
            runner = _build_runner(progresses[name], begin, config, events, channel, leases, once=once)
            runner.lease = orders.of(name).lease
            return runner

        def forget_pipeline(name: str) -> None:
            queue.leave(name)
            progresses.remove(name)
            receivers.forget(name)

        runners = PipelineRunners(build_runner, requests, forget_pipeline, supervised=channel is not None)
        try:
            _begin_pipelines(runners, progresses, orders, file.names, cleanup, new_run=new_run)
            if runners.are_waited_for and not events.stop.is_set():
                # A paused pipeline begins at once when the pause is over.
                spark()
            watched_file = None if once else file
            runners.watch(events.stop, lambda: _beat(channel, events.stop, progresses, watched_file, leases, requests))
        finally:
            # Executors that go with the application are not lost.
            executor_manager.close()
            spark_cleanup.close()
    return {name: runner.error for name, runner in runners.all.items()}


def _build_runner(
    progress: Progress,
    begin: Callable[[PipelineRunner, bool], None],
    config: Config,
    events: StopEvents,
    channel: supervisor_channel.ChannelFolder | None,
    leases: RunLeases | None,
    *,
    once: bool,
) -> PipelineRunner:
    def give_lease_back() -> None:
        if leases is not None:
            leases.release(progress.pipeline)

    return PipelineRunner(
        progress,
        begin,
        waits=not once,
        stop_timeout=config.stop_timeout,
        is_hurried=events.hurry.is_set,
        report=None if channel is None else channel.report,
        on_end=give_lease_back,
        login_failure=partial(spark_login.login_failure, config.kafka.security),
    )


def _enter_lease(leases: RunLeases | None, runner: PipelineRunner) -> None:
    """Take the lease of a pipeline for a start. Raises Occupied while another process has it."""
    progress = runner.progress
    if leases is not None:
        try:
            runner.lease = leases.enter(progress.pipeline)
        except Occupied:
            progress.set(lease_wait=leases.lease_wait(progress.pipeline))
            raise
    progress.set(lease_wait=None)


def _announce_url(
    config: Config,
    url: str | None,
    channel: supervisor_channel.ChannelFolder | None,
    listening: Callable[[str], object],
) -> None:
    if url is not None:
        listening(url)
    if channel is not None:
        channel.announce(pid=os.getpid(), url=url, certificate=str(config.http.certificate or ""))


def _begin_pipelines(
    runners: PipelineRunners,
    progresses: PipelineProgress,
    orders: supervisor_channel.StartInstructions,
    names: Sequence[str],
    cleanup: ExitStack,
    *,
    new_run: bool,
) -> None:
    """Add the pipelines, and begin those that are to be started, one after the other; the others wait for a request."""
    for name in names:
        cleanup.callback(runners.add(name).cleanup.close)
    for name in runners.all:
        order = orders.of(name)
        if order.start:
            runners.begin(name, new_run=new_run or order.new_run)
        else:
            progresses[name].record_stop()


def _build_server(
    file: ReloadableConfig,
    progresses: PipelineProgress,
    orders: supervisor_channel.StartInstructions,
    requests: StartRequests,
    executor_manager: ExecutorManager,
) -> AbstractContextManager[str | None]:
    """Prepare the HTTP server. It yields its URL; None where the configuration wants none."""
    starts = endpoints.starts(progresses, orders.token, lambda *request: requests.put(StartRequest(*request)))
    surrenders = endpoints.surrenders(progresses, orders.token, lambda *loss: requests.put(LeaseLoss(*loss)))

    def sections() -> dict[str, Any]:
        writer_process = describe_process(orders.supervisor or os.getpid())
        return {
            "executors": executor_manager.to_dict(),
            "config": {**file.document(), "process": writer_process},
        }

    return endpoints.serving(
        file.config.http,
        progresses,
        http_server.first_of(starts, surrenders, executor_manager.post),
        live_records.record_guard(file.config, lambda: file.config),
        sections,
    )


def _lazy_session(
    config: Config, pipelines: Sequence[str], executor_manager: ExecutorManager, cleanup: ExitStack
) -> Callable[[], Any]:
    """Return what starts Spark when it is first asked for: by a pipeline whose checks found nothing wrong."""

    @cache
    def spark() -> Any:
        spark_session = session(config, pipelines)
        cleanup.callback(stop_session, spark_session)
        executor_manager.begin(lambda: SparkExecutors(spark_session))
        return spark_session

    return spark


def _build_executor_manager(config: Config, progresses: PipelineProgress) -> ExecutorManager:
    """Return the executor manager. It stores the number of executors beside each pipeline's runs."""
    spark = config.spark

    def is_between_batches() -> bool:
        batches = [progress.view().batch for progress in progresses.values()]
        return all(batch is None or batch.phase != "tasks" for batch in batches)

    return ExecutorManager(
        spark.master,
        config.autoscaler,
        refusal=spark_settings.refusal(spark.master, spark.conf),
        cpus_per_task=int(spark.conf.get("spark.task.cpus", "1")),
        stores=lambda: [store_at(f"{config.checkpoints}/{name}", config.stores) for name in progresses],
        boundary=is_between_batches,
    )


def _beat(
    channel: supervisor_channel.ChannelFolder | None,
    stop: threading.Event,
    progresses: PipelineProgress,
    file: ReloadableConfig | None,
    leases: RunLeases | None,
    requests: StartRequests,
) -> ConfigChanges | None:
    """Send the supervisor a heartbeat, and read the file again if that is due. Returns what changed of it.

    Without its supervisor nothing could drain this driver later: it stops. What lost its lease is to be surrendered.
    """
    if leases is not None:
        for loss in leases.take_losses():
            requests.put(loss)
    if channel is not None:
        channel.beat()
        for name, decisions in channel.new_decisions().items():
            if name in progresses:
                progresses[name].set(
                    recovery=tuple(decisions),
                    halt=halt_of_decisions(decisions),
                    lease_wait=wait_of_decisions(decisions),
                )
        if not stop.is_set() and channel.is_orphaned():
            logging.warning("supervisor_lost", reason="its lock is free")
            stop.set()
    return None if file is None else file.read_again()


def start_pipeline(
    session_of: Callable[[], Any],
    config_of: Callable[[], Config],
    url: str | None,
    notifier: notifications.Notifier,
    receivers: Receivers,
    once: bool,
    queue: BatchQueue,
    stop: threading.Event,
    leases: RunLeases | None,
    runner: PipelineRunner,
    new_run: bool,
) -> None:
    """Start the pipeline and its query, and let others see it: its lag, and where this driver answers.

    `session_of` returns the Spark session, which may have to start: what can be checked without it is checked first.
    `config_of` returns the configuration in force. `queue`: where the batches of all pipelines wait. Raises Draining
    when `stop` is set before the table knows of this start, and Occupied while another process has its lease.
    """
    _check_stop(stop, runner.progress.pipeline)
    config = config_of()
    progress = runner.progress
    name = progress.pipeline
    locations.check_locations(name, config)
    _enter_lease(leases, runner)
    queue.join(name, config.pipelines[name].scheduling)
    receivers.follow(config, progress)
    cluster = Cluster(config.kafka.address, config.kafka.request_timeout)
    pipeline = PipelineRun(
        name,
        config,
        schemas=source(config.registry_of(name)),
        cluster=cluster,
        progress=progress,
        notifier=notifier,
        queue=queue,
    )
    runner.pipeline = pipeline
    _enter_gate(config, pipeline, once=once)
    pipeline.check()
    _check_stop(stop, name)
    spark = session_of()
    _check_stop(stop, name)
    scratch = os.environ.get("SPARK_LOCAL_DIRS") or spark.conf.get("spark.local.dir", tempfile.gettempdir())
    runner.local_paths = {
        f"{config.checkpoints}/{name}": disk_space.CHECKPOINT,
        scratch.split(",")[0]: disk_space.SCRATCH,
    }
    start = pipeline.start(new_run=new_run, once=once, lease=runner.lease)
    _start_watches(config, pipeline, notifier, runner.cleanup)
    if url is not None:
        driver = this_driver(url, pipeline.epoch, str(config.http.certificate or ""))
        announce(config.checkpoints, name, driver, config.stores)
        runner.cleanup.callback(retract, config.checkpoints, name, driver, config.stores)
    pipeline_seals.start(spark, config, pipeline, cluster, runner.cleanup, once=once)
    runner.query = query(spark, config, pipeline, start, once=once)
    # Spark runs a query's jobs as a group of the query's run id.
    runner.cancel = partial(spark.sparkContext.cancelJobGroup, str(runner.query.runId))


def _enter_gate(config: Config, pipeline: PipelineRun, *, once: bool) -> None:
    """Raise Paused where the pipeline is paused, after its lag was measured: nothing else does meanwhile."""
    try:
        pipeline.gate.enter(once=once)
    except Paused:
        if not once:
            _measure_lag(config, pipeline.name, pipeline.cluster, pipeline.progress)
        raise


def _start_watches(config: Config, pipeline: PipelineRun, notifier: notifications.Notifier, cleanup: ExitStack) -> None:
    """Start the threads that ask Kafka for the lag, read what the tables hold, and look for a pause."""
    lag_listener = _build_lag_listener(config, pipeline, pipeline.progress, notifier)
    lag_listener.start()
    cleanup.callback(lag_listener.close)
    table_watch = TableWatch(pipeline.name, config, pipeline.progress)
    table_watch.start()
    cleanup.callback(table_watch.close)
    pipeline.gate.watch()
    pipeline.progress.set_reader("pause", pipeline.gate.request_look)
    cleanup.callback(pipeline.gate.close)


def _check_stop(stop: threading.Event, pipeline: str) -> None:
    if stop.is_set():
        raise Draining(f"pipeline {pipeline!r} was asked to stop before it was started")


def _build_lag_listener(
    config: Config, pipeline: PipelineRun, progress: Progress, notifier: notifications.Notifier
) -> LagListener:
    topics = pipeline.config.topics
    return LagListener(
        pipeline.cluster,
        pipeline.topic_ids,
        progress,
        interval=config.kafka.lag_interval,
        mirror=pipeline.config.commit_offsets_to_group,
        selection=topics,
        on_beyond=lambda beyond: report_beyond(topics, beyond, progress, notifier.send),
        log_break=pipeline.log_watch().divergence,
    )


def _measure_lag(config: Config, name: str, cluster: Cluster, progress: Progress) -> None:
    """Measure the lag of a pipeline that is held before its start; ignore a Kafka that does not answer."""
    samples = progress.view().logs.samples
    now = datetime.now(UTC)
    if samples and now - samples[-1].at < config.kafka.lag_interval:
        return
    with suppress(HeadraceError, OSError):
        frontier, logs = from_table.logs_now(name, config, cluster, now)
        progress.set(frontier=dict(frontier), logs=replace(logs, interval=config.kafka.lag_interval))
