"""The autoscaler's loop: collect, decide, save, request, every few seconds until it is stopped."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from headrace.autoscaler.decision.decide import Decision, ScaleDown, ScaleUp, tick
from headrace.autoscaler.decision.events import Event, add_event, make_event
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Memory, Scaling, shift_instants
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.runtime.endpoints import LastTick
from headrace.autoscaler.runtime.state_store import AutoscalerState
from headrace.writer.core import logging
from headrace.writer.driver.clock_steps import ClockComparison

# A change in the other direction so soon after the last one is a reversal.
_REVERSAL_WITHIN = timedelta(minutes=30)
_COUNTERS = ("ticks", "up", "down", "reversals")


class Collector(Protocol):
    """Collects facts."""

    @property
    def executors(self) -> Mapping[str, Any] | None:
        """The driver's last answer about its executors."""

    def collect(self, now: datetime) -> Facts:
        """Return the facts. Those that cannot be had are None or old; it does not raise for them."""


class Loop:
    """Ticks. The result is in `last_tick`, replaced whole at each tick."""

    def __init__(
        self,
        policy: Policy,
        collector: Collector,
        state: AutoscalerState,
        *,
        request: Callable[[int, Event], str | None],
        save: Callable[[AutoscalerState], None],
        dry_run: bool,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic,
        clocks: ClockComparison | None = None,
    ) -> None:
        """`request`: asks the driver for so many executors; returns why it refuses, or None.

        `save`: stores what is to outlive this process; may raise OSError. `seconds`: a monotonic clock. `clocks` find
        its wall clock's steps; by default those of this process.
        """
        self._clocks = clocks or ClockComparison()
        self._policy = policy
        self._collector = collector
        self._state = state
        self._request = request
        self._save = save
        self._dry_run = dry_run
        self._now = now
        self._seconds = seconds
        # The error that the last warning about saving told; empty after a success.
        self._save_error = ""
        self.last_tick = LastTick(seconds(), interval_s=policy.interval_s, dry_run=dry_run, events=state.events)

    def run(self, stop: threading.Event) -> None:
        """Evaluate until stopped. An error ends only the present evaluation."""
        while not stop.is_set():
            try:
                self.tick()
            except Exception as error:  # noqa: BLE001 - scaling must not be what fails
                logging.warning("autoscaler_evaluation_failed", error=f"{type(error).__name__}: {error}")
                logging.detail(error)
            stop.wait(self._policy.interval_s)

    def tick(self) -> Decision:
        """Collect, decide, save, request. An earlier decision is requested again, whatever the facts are."""
        self._follow_clock()
        now = self._now()
        before = self._state
        facts = self._collector.collect(now)
        decision, memory = tick(self._policy, before.memory, facts, now)
        if self._dry_run:
            # Nothing changes, so the next tick judges the same executors too.
            memory = replace(memory, desired=None, scalings=before.memory.scalings)
        event = make_event(decision, now)
        self._state = AutoscalerState(memory, add_event(before.events, event))
        if len(self._state.events) != len(before.events) or self._state.events[-1].ticks == 1:
            _log_event(event, dry_run=self._dry_run)
        refusal = None
        if not self._dry_run:
            self._save_state(before)
            refusal = self._request_executors(memory, facts, event)
        self.last_tick = replace(
            self.last_tick,
            ended_s=self._seconds(),
            at=now,
            facts=facts,
            decision=decision,
            events=self._state.events,
            refused=refusal,
            executors=self._collector.executors,
            counts=self._count_decision(decision, before.memory.scalings),
        )
        return decision

    def _follow_clock(self) -> None:
        """Move the instants of the memory along with a step of the wall clock."""
        step_s = self._clocks.take_step()
        if step_s:
            logging.warning("clock_stepped", seconds=round(step_s, 3))
            memory = shift_instants(self._state.memory, timedelta(seconds=step_s))
            self._state = replace(self._state, memory=memory)

    def _save_state(self, before: AutoscalerState) -> None:
        """Store the decision before the driver is asked; a failing storage does not prevent scaling."""
        if self._state.memory == before.memory and self._state.events[-1].ticks > 1:
            return
        try:
            self._save(self._state)
            self._save_error = ""
        except OSError as error:
            if str(error) != self._save_error:
                logging.warning("autoscaler_state_not_saved", error=str(error))
            self._save_error = str(error)

    def _request_executors(self, memory: Memory, facts: Facts, event: Event) -> str | None:
        """Request the desired number from the driver, with the reason. Returns why it refused."""
        if memory.desired is None or facts.executors is None:
            # There is no decision yet, or no driver to ask.
            return None
        refusal = self._request(memory.desired, event)
        if refusal is not None and refusal != self.last_tick.refused:
            logging.warning("executors_request_refused", executors=memory.desired, says=refusal)
        return refusal

    def _count_decision(self, decision: Decision, scalings: tuple[Scaling, ...]) -> dict[str, int]:
        """Return the counters after a decision. `scalings`: the changes before it, oldest first."""
        counts = {name: self.last_tick.counts.get(name, 0) for name in _COUNTERS}
        counts["ticks"] += 1
        if isinstance(decision, ScaleUp | ScaleDown):
            is_up = isinstance(decision, ScaleUp)
            counts["up" if is_up else "down"] += 1
            if scalings and scalings[-1].adds_executors() != is_up:
                counts["reversals"] += self._now() - scalings[-1].at < _REVERSAL_WITHIN
        return counts


def _log_event(event: Event, *, dry_run: bool) -> None:
    wanted = {} if event.wanted is None else {"wanted": event.wanted}
    by = {} if event.by is None else {"by": event.by}
    logging.event(
        "scaling_decided",
        verdict=event.verdict,
        executors=event.executors,
        **wanted,
        **by,
        dry_run=dry_run,
        why=event.why,
    )
