"""Runs the hooks of one pipeline: beside a driver, or at a person's request.

A driver has a thread for each hook, so that an unresponsive server delays nothing else.
"""

import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

from headrace import bucketers
from headrace.writer.config.base import did_you_mean
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.hooks import Airflow, Dagster, Druid, HookSettings, Webhook
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.engines.table_description import describe_table
from headrace.writer.hooks.airflow import AirflowHook
from headrace.writer.hooks.base import Hook
from headrace.writer.hooks.dagster import DagsterHook
from headrace.writer.hooks.delivery import HookDelivery
from headrace.writer.hooks.druid import DruidHook
from headrace.writer.hooks.outbox import Health, OutboxContent, OutboxEntry
from headrace.writer.hooks.seal_feed import Seals
from headrace.writer.hooks.sql import SqlHook
from headrace.writer.hooks.webhook import WebhookHook
from headrace.writer.sealing.bucket_selection import BucketSelection
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.factory import main_table

# How often each hook looks for seals of other processes.
_LOOK_EVERY = timedelta(seconds=15)
_WAIT_MIN = timedelta(milliseconds=100)
# A delivery that runs at the end is left alone: the next driver continues it.
_CLOSE_WITHIN_S = 2.0
# Between two rounds, while servers work on what they accepted.
_ROUND_INTERVAL_S = 0.5


def build_hook(settings: HookSettings, pipeline: str) -> Hook:
    """Return the hook of a section of the configuration."""
    match settings:
        case Webhook():
            return WebhookHook(settings)
        case Druid():
            return DruidHook(settings, pipeline)
        case Airflow():
            return AirflowHook(settings)
        case Dagster():
            return DagsterHook(settings)
        case _:
            return SqlHook(settings)


def deliveries(name: str, config: Config) -> list[HookDelivery]:
    """Return a `HookDelivery` for each hook of a pipeline's table, with a handle of the table of its own.

    With a route its tables have hooks, each by the configuration `Config.at_target`; the pipeline's log has none.
    """
    pipeline = config.pipelines[name]
    if pipeline.route is not None:
        return []
    bucketer = bucketers.build(pipeline.bucket)
    return [_delivery(settings, name, config, bucketer) for settings in pipeline.hooks]


def _delivery(settings: HookSettings, name: str, config: Config, bucketer: bucketers.Bucketer) -> HookDelivery:
    table = main_table(name, config)
    describe = partial(describe_table, name, config, table)
    return HookDelivery(build_hook(settings, name), settings.start, Seals(table, bucketer), describe)


def hook_health(name: str, config: Config) -> dict[str, Health]:
    """Return the health of a pipeline's hooks by name, from their outboxes alone. Raises OSError."""
    return {
        delivery.hook.name: Health.from_outbox(delivery.outbox.read() or OutboxContent(-1), delivery.hook.target)
        for delivery in deliveries(name, config)
    }


class HookDispatcher:
    """Runs the `HookDelivery` of each hook, in a thread each, while a driver runs."""

    def __init__(
        self, pipeline: str, deliveries: list[HookDelivery], publish: Callable[[Mapping[str, Health]], None]
    ) -> None:
        """`publish` gets the health of the hooks after each round."""
        self._pipeline = pipeline
        self._deliveries = deliveries
        self._publish = publish
        self._health: dict[str, Health] = {delivery.hook.name: delivery.health for delivery in deliveries}
        self._lock = threading.Lock()
        # How many manifests of this process the threads were woken for.
        self._sealed = 0
        self._threads = [
            PeriodicThread(f"hook {delivery.hook.name} of {pipeline}", partial(self._run_round, delivery))
            for delivery in deliveries
        ]

    def start(self) -> None:
        """Start the threads. Each hook's position is fixed before anything is sealed."""
        for delivery in self._deliveries:
            # The hook's thread tries again, and logs the error.
            with suppress(OSError, HeadraceError):
                delivery.begin()
        self._publish(self._health)
        for thread in self._threads:
            thread.start()

    def follow(self, sealer: Sealer, _: datetime) -> None:
        """Wake each `HookDelivery` after a seal. A step of sealing."""
        if len(sealer.sealed) != self._sealed:
            self._sealed = len(sealer.sealed)
            self.wake()

    def wake(self) -> None:
        """Wake each `HookDelivery`."""
        for thread in self._threads:
            thread.wake()

    def close(self, *, last: bool = False) -> None:
        """Stop the threads, which are waited for two seconds at most, all together. The next driver delivers the rest.

        `last`: with one more round, as no driver may follow.
        """
        for thread in self._threads:
            thread.close(within_s=0)
        deadline_s = time.monotonic() + _CLOSE_WITHIN_S
        for delivery, thread in zip(self._deliveries, self._threads, strict=True):
            has_ended = thread.close(deadline_s - time.monotonic())
            if last and has_ended:
                self._run_round(delivery)

    def _run_round(self, delivery: HookDelivery) -> float:
        """Run a `HookDelivery` once and publish its health. Returns the seconds for which nothing is due."""
        wait = _LOOK_EVERY
        try:
            due = delivery.next_due(delivery.run_round(datetime.now(UTC)))
            if due is not None:
                wait = min(_LOOK_EVERY, max(_WAIT_MIN, due - datetime.now(UTC)))
        except (OSError, HeadraceError) as error:
            why = " ".join(str(error).split())
            logging.warning("hook_retry_scheduled", pipeline=self._pipeline, hook=delivery.hook.name, error=why)
            delivery.note_failure(why)
        with self._lock:
            self._health = {**self._health, delivery.hook.name: delivery.health}
            self._publish(self._health)
        return wait.total_seconds()


def choose_deliveries(config: Config, pipeline: str, hook: str | None) -> list[HookDelivery]:
    """Return the deliveries of a pipeline, or of one of its hooks. Raises ConfigError where there is none."""
    candidates = deliveries(pipeline, config)
    names = [delivery.hook.name for delivery in candidates]
    if not candidates:
        raise ConfigError(f"pipeline {pipeline!r} has no hooks; list them in pipelines.{pipeline}.hooks")
    if hook is not None and hook not in names:
        raise ConfigError(f"pipeline {pipeline!r} has no hook {hook!r}{did_you_mean(hook, names)}")
    return [delivery for delivery in candidates if hook in (None, delivery.hook.name)]


def deliver_pending(delivery: HookDelivery, selection: BucketSelection | None, timeout: timedelta) -> OutboxContent:
    """Run rounds until nothing waits, each attempt has failed, or the time is over. Returns the outbox.

    `selection`: the newest manifests of these buckets are delivered, also where they were before. Raises OSError,
    HeadraceError.
    """
    deadline_s = time.monotonic() + timeout.total_seconds()
    delivery.take_up()
    if selection is not None:
        delivery.redeliver(selection)
    delivery.make_due()
    while True:
        content = delivery.run_round(datetime.now(UTC))
        is_done = delivery.next_due(content) is None
        has_failed = all(entry.error for entry in content.next_entries())
        if is_done or has_failed or time.monotonic() > deadline_s:
            return content
        time.sleep(_ROUND_INTERVAL_S)


def find_waiting(delivery: HookDelivery, selection: BucketSelection) -> list[OutboxEntry]:
    """Return what waits of buckets, in the outbox and in the log's new seals. Raises OSError, HeadraceError."""
    return _select(delivery.preview(), selection)


def skip_buckets(delivery: HookDelivery, selection: BucketSelection) -> list[OutboxEntry]:
    """Take what waits of buckets out of the outbox. Returns it. Raises OSError, HeadraceError."""
    delivery.take_up()
    skipped: list[OutboxEntry] = []

    def skip(content: OutboxContent | None) -> OutboxContent:
        content = content or OutboxContent(-1)
        # The change is tried again where another process was faster.
        skipped[:] = _select(content, selection)
        return content.skip(skipped)

    delivery.outbox.change(skip)
    return skipped


def _select(content: OutboxContent, selection: BucketSelection) -> list[OutboxEntry]:
    return [entry for entry in content.pending if selection.contains(entry.bucket)]
