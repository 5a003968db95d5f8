"""The autoscaler's loop: collect, decide, save, request, every few seconds until it is stopped."""

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

from autoscaler.decision.decide import Decision, ScaleDown, ScaleUp, tick
from autoscaler.decision.events import Event, added, event
from autoscaler.decision.facts import Facts
from autoscaler.decision.history import Memory, Scaling, moved
from autoscaler.decision.policy import Policy
from autoscaler.runtime.endpoints import LastTick
from autoscaler.runtime.state_store import AutoscalerState
from writer.core import logging
from writer.driver.clock_steps import ClockComparison

_REVERSED_WITHIN = timedelta(minutes=30)


class Source(Protocol):
    """Collects facts."""

    @property
    def executors(self) -> Mapping[str, Any] | None:
        """The driver's last answer about its executors."""

    def look(self, now: datetime) -> Facts:
        """Return what is known. What cannot be had is None or old; it does not raise for it."""


class Loop:
    """Ticks. What it knows is in `shown`, replaced whole at each tick."""

    def __init__(
        self, policy: Policy, source: Source, kept: AutoscalerState, *, ask: Callable[[int, Event], str | None],
        keep: Callable[[AutoscalerState], None], dry_run: bool, now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic, clocks: ClockComparison | None = None,
    ) -> None:  # fmt: skip
        """`ask`: the driver, for so many executors; returns why it refuses, or None.

        `keep`: what is to outlive this process; may raise OSError. `seconds`: a monotonic clock. `clocks` find
        its wall clock's steps; by default those of this process.
        """
        self._clocks = clocks or ClockComparison()
        self._policy, self._source, self._kept = policy, source, kept
        self._ask, self._keep, self._dry_run, self._now = ask, keep, dry_run, now
        self._seconds, self._unkept = seconds, ""
        self.shown = LastTick(seconds(), interval_s=policy.interval_s, dry_run=dry_run, events=kept.events)

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
        """Look, decide, store, request. An earlier decision is requested again, whatever is known now."""
        self._follow_clock()
        now, before = self._now(), self._kept
        facts = self._source.look(now)
        decision, memory = tick(self._policy, before.memory, facts, now)
        if self._dry_run:
            # Nothing is changed, so what is there is judged at the next tick too.
            memory = replace(memory, desired=None, scalings=before.memory.scalings)
        new = event(decision, now)
        self._kept = AutoscalerState(memory, added(before.events, new))
        if len(self._kept.events) != len(before.events) or self._kept.events[-1].ticks == 1:
            _log_event(new, dry_run=self._dry_run)
        refused = None
        if not self._dry_run:
            self._remember(before)
            refused = self._request(memory, facts, new)
        self.shown = replace(
            self.shown, ended_s=self._seconds(), at=now, facts=facts, decision=decision, events=self._kept.events,
            refused=refused, executors=self._source.executors,
            counts=self._counted(decision, before.memory.scalings),
        )  # fmt: skip
        return decision

    def _follow_clock(self) -> None:
        """Move what is remembered along with a step of the wall clock."""
        step_s = self._clocks.take_step()
        if step_s:
            logging.warning("clock_stepped", seconds=round(step_s, 3))
            memory = moved(self._kept.memory, timedelta(seconds=step_s))
            self._kept = replace(self._kept, memory=memory)

    def _remember(self, before: AutoscalerState) -> None:
        """Store the decision before the driver is asked; a failing storage does not prevent scaling."""
        if self._kept.memory == before.memory and self._kept.events[-1].ticks > 1:
            return
        try:
            self._keep(self._kept)
            self._unkept = ""
        except OSError as error:
            if str(error) != self._unkept:
                logging.warning("autoscaler_state_not_saved", error=str(error))
            self._unkept = str(error)

    def _request(self, memory: Memory, facts: Facts, because: Event) -> str | None:
        """Request the desired number from the driver, with the reason. Returns why it refused."""
        if memory.desired is None or facts.executors is None:
            return None  # there is no decision yet, or no driver to ask
        refused = self._ask(memory.desired, because)
        if refused is not None and refused != self.shown.refused:
            logging.warning("executors_request_refused", executors=memory.desired, says=refused)
        return refused

    def _counted(self, decision: Decision, earlier: tuple[Scaling, ...]) -> dict[str, int]:
        counts = {**dict.fromkeys(("ticks", "up", "down", "reversals"), 0), **self.shown.counts}
        counts["ticks"] += 1
        if isinstance(decision, ScaleUp | ScaleDown):
            counts["up" if isinstance(decision, ScaleUp) else "down"] += 1
            last = earlier[-1] if earlier else None
            back = last is not None and (last.after > last.before) != isinstance(decision, ScaleUp)
            counts["reversals"] += back and last is not None and self._now() - last.at < _REVERSED_WITHIN
        return counts


def _log_event(new: Event, *, dry_run: bool) -> None:
    wanted = {} if new.wanted is None else {"wanted": new.wanted}
    by = {} if new.by is None else {"by": new.by}
    logging.event(
        "scaling_decided", verdict=new.verdict, executors=new.executors, **wanted, **by, dry_run=dry_run, why=new.why
    )
