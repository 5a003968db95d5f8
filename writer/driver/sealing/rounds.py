"""The thread that closes, compacts and seals buckets, and delivers hooks, beside the stream.

A plain list of steps, each of which looks at the table anew and does what is due; the stream never waits for them. What
fails is said, shown, and tried again later. Nothing lives here only: the next process finds all of it in the lake.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Protocol

from headrace.writer.core import logging
from headrace.writer.core.backoff import Backoff
from headrace.writer.core.errors import HeadraceError, panics_as_errors
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.driver.restart_policy import sentence
from headrace.writer.driver.sealing.steps import Step
from headrace.writer.sealing.bucket_listing import BucketOverview
from headrace.writer.sealing.sealer import BucketSnapshot, Sealer
from headrace.writer.status.progress import Progress

# Seconds between two rounds, when no commit wakes them.
_TICK_S = 5.0
# Of all pipelines of a driver then: a round reads some objects of its table's storage.
_ROUNDS_PER_S_MAX = 2
# Of a step that failed.
_BACKOFF = Backoff(5, 300)
_CLOSE_WITHIN_S = 5.0
# Steps that fail, and why.
Trouble = Sequence[tuple[str, str]]
# Shows how the buckets are.
Report = Callable[[Sealer, BucketSnapshot, datetime, Trouble], None]


def build_report(progress: Progress, sealer: Sealer) -> Report:
    """Return what shows the buckets of a pipeline that has one table."""
    overview = BucketOverview(sealer)

    def report(sealer: Sealer, buckets: BucketSnapshot, now: datetime, trouble: Trouble) -> None:
        progress.set(bucket_counts=sealer.bucket_counts(buckets, now, trouble))
        progress.set(listed_buckets=overview.refresh(buckets, now))

    return report


@dataclass(frozen=True)
class _Pause:
    """How long a step that fails rests: its failures in a row, and when it is tried again, in seconds."""

    failures: int = 0
    end_s: float = 0.0


class RetriedSteps:
    """Runs steps one after the other, again and again; each that fails rests, longer each time."""

    # One table is looked at with each tick.
    interval_s = 0.0

    def __init__(
        self,
        about: Mapping[str, str],
        steps: Mapping[str, Callable[[datetime], None]],
        progress: Progress,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`about`: names the table, for the log. `seconds`: a monotonic clock."""
        self._about = about
        self._steps = steps
        self._progress = progress
        self._now = now
        self._seconds = seconds
        # Step → why it failed last.
        self._trouble: dict[str, str] = {}
        self._pauses: dict[str, _Pause] = {}

    @property
    def trouble(self) -> Trouble:
        """Steps that fail, and why."""
        return list(self._trouble.items())

    def once(self) -> None:
        """Run every step that is due. A paused pipeline commits nothing here."""
        if self._progress.view().pause is not None:
            return
        for name, step in self._steps.items():
            if name not in self._pauses or self._pauses[name].end_s <= self._seconds():
                self._attempt(name, step)

    def _attempt(self, name: str, step: Callable[[datetime], None]) -> None:
        about = self._about
        try:
            with panics_as_errors():
                step(self._now())
        except Exception as error:  # noqa: BLE001 - the stream must not notice
            reason = sentence(error)
            failures = self._pauses.get(name, _Pause()).failures
            if self._trouble.get(name) != reason:
                logging.warning("sealing_failed", **about, step=name, error=reason)
            self._pauses[name] = _Pause(failures + 1, self._seconds() + _BACKOFF.delay_s(failures))
            self._trouble[name] = reason
            return
        self._pauses.pop(name, None)
        if self._trouble.pop(name, None):
            logging.event("sealing_recovered", **about, step=name)


class Rounds:
    """Runs the steps of a table that has buckets, and reports them."""

    def __init__(
        self,
        sealer: Sealer,
        steps: Mapping[str, Step],
        progress: Progress,
        report: Report | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`report`: shows the buckets; None: as those of a pipeline that has one table."""
        self.sealer = sealer
        self._now = now
        steps_of_table = {name: partial(step, sealer) for name, step in steps.items()}
        self._attempts = RetriedSteps(sealer.about, steps_of_table, progress, now=now, seconds=seconds)
        self._report = report or build_report(progress, sealer)

    @property
    def interval_s(self) -> float:
        """One table is looked at with each tick."""
        return self._attempts.interval_s

    def once(self) -> None:
        """Run every step that is due, and report the buckets."""
        self._attempts.once()
        # A step has logged it.
        with suppress(HeadraceError, OSError):
            self._report(self.sealer, self.sealer.follow(write=False), self._now(), self._attempts.trouble)


class PeriodicTask(Protocol):
    """What the thread runs again and again."""

    @property
    def interval_s(self) -> float:
        """Least seconds between two rounds, when no commit wakes them."""

    def once(self) -> None:
        """Run one round."""


class Seals:
    """The thread: a round after each commit, and every few seconds."""

    def __init__(self, rounds: PeriodicTask, progress: Progress, pipelines: int = 1) -> None:
        """`pipelines`: of the driver."""
        self._rounds = rounds
        self._tick_s = max(_TICK_S, pipelines / _ROUNDS_PER_S_MAX)
        self._thread = PeriodicThread(f"seals of {progress.pipeline}", self._run_round)
        progress.on_commit(self._thread.wake)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self, *, last: bool = False) -> None:
        """End after the step that runs, which is waited for five seconds at most.

        `last`: with one more round, for a job that is not there to do it later.
        """
        has_ended = self._thread.close(_CLOSE_WITHIN_S)
        if last and has_ended:
            self._rounds.once()

    def _run_round(self) -> float:
        self._rounds.once()
        return max(self._tick_s, self._rounds.interval_s)
