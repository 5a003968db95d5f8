"""Runs the hooks of one pipeline, a thread for each, so that an unresponsive server delays nothing else."""

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial

import bucketers
from writer.config.hooks import Druid, HookSettings, Webhook
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import HeadraceError
from writer.engines.table_description import described
from writer.hooks.base import Hook
from writer.hooks.delivery import HookDelivery
from writer.hooks.druid import DruidHook
from writer.hooks.outbox import Health, OutboxContent, read_from
from writer.hooks.seal_feed import Seals
from writer.hooks.sql import SqlHook
from writer.hooks.webhook import WebhookHook
from writer.sealing.sealer import Sealer
from writer.table.factory import main_table


def built(settings: HookSettings, pipeline: str) -> Hook:
    """Return the hook of a section."""
    match settings:
        case Webhook():
            return WebhookHook(settings)
        case Druid():
            return DruidHook(settings, pipeline)
        case _:
            return SqlHook(settings)


_LOOK_EVERY = timedelta(seconds=15)  # for seals of other processes
_LEAST = timedelta(milliseconds=100)
_END_WITHIN_S = 2.0  # a delivery under way is left alone: it is found again


def deliveries(name: str, config: Config) -> list[HookDelivery]:
    """Return a `HookDelivery` for each hook of a pipeline's table, with a handle of the table of its own.

    A route's tables have those, each by the configuration `Config.at_target`; the pipeline's log has none.
    """
    bucketer = bucketers.build(config.pipelines[name].bucket)
    found = []
    for settings in config.pipelines[name].hooks if config.pipelines[name].route is None else ():
        table = main_table(name, config)
        describe = partial(described, name, config, table)
        found.append(HookDelivery(built(settings, name), settings.start, Seals(table, bucketer), describe))
    return found


def seen(name: str, config: Config) -> dict[str, Health]:
    """Return how the hooks of a pipeline are doing, from their outboxes alone. Raises OSError."""
    return {
        delivery.hook.name: read_from(delivery.outbox.read() or OutboxContent(-1), delivery.hook.target)
        for delivery in deliveries(name, config)
    }


class HookDispatcher:
    """Runs the `HookDelivery` of each hook, in a thread each, while a driver runs."""

    def __init__(
        self, pipeline: str, found: list[HookDelivery], publish: Callable[[Mapping[str, Health]], None]
    ) -> None:
        """`publish`: is called with the state of the hooks after each round."""
        self._pipeline, self._deliveries, self._publish = pipeline, found, publish
        self._health: dict[str, Health] = {delivery.hook.name: delivery.health for delivery in found}
        self._lock = threading.Lock()
        self._sealed = 0  # manifests of this process that the threads were woken for
        self._end = threading.Event()
        self._awake = {delivery.hook.name: threading.Event() for delivery in found}
        self._threads = [
            threading.Thread(
                target=self._run, args=[delivery], name=f"hook {delivery.hook.name} of {pipeline}", daemon=True
            )
            for delivery in found
        ]

    def start(self) -> None:
        """Begin. What a hook that is new to the table may miss is settled before anything is sealed."""
        for delivery in self._deliveries:
            with suppress(OSError, HeadraceError):  # its thread says it, and tries again
                delivery.begin()
        self._publish(self._health)
        for thread in self._threads:
            thread.start()

    def follow(self, sealer: Sealer, _: datetime) -> None:
        """Wake each `HookDelivery` after a seal: a step of the sealing."""
        if len(sealer.sealed) != self._sealed:
            self._sealed = len(sealer.sealed)
            self.wake()

    def wake(self) -> None:
        """Wake each `HookDelivery`."""
        for event in self._awake.values():
            event.set()

    def close(self, *, last: bool = False) -> None:
        """End. What waits is delivered by the next driver; `last`: with one more round, where there may be none."""
        self._end.set()
        self.wake()
        for delivery, thread in zip(self._deliveries, self._threads, strict=True):
            if thread.is_alive():
                thread.join(_END_WITHIN_S)
            if last and not thread.is_alive():
                self._round(delivery)

    def _run(self, delivery: HookDelivery) -> None:
        awake = self._awake[delivery.hook.name]
        while not self._end.is_set():
            awake.wait(self._round(delivery).total_seconds())
            awake.clear()

    def _round(self, delivery: HookDelivery) -> timedelta:
        """Run a `HookDelivery` once and report its state. Returns how long nothing is due."""
        try:
            due = delivery.due(delivery.round(datetime.now(UTC)))
            wait = _LOOK_EVERY if due is None else min(_LOOK_EVERY, max(_LEAST, due - datetime.now(UTC)))
        except (OSError, HeadraceError) as error:
            why = " ".join(str(error).split())
            logging.warning("hook_retry_scheduled", pipeline=self._pipeline, hook=delivery.hook.name, error=why)
            delivery.note_failure(why)
            wait = _LOOK_EVERY
        with self._lock:
            self._health = {**self._health, delivery.hook.name: delivery.health}
            self._publish(self._health)
        return wait
