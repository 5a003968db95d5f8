"""Diagnoses pipelines from a driver's exit or from its health checks. Pure."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from recovery.escalation.error_catalogue import Verdict, classify
from recovery.escalation.levels import RecoveryLevel
from writer.core.errors import ExitCode
from writer.status.lag_sample import LagSample

_SHELL = 128  # a shell says 128 + n of a child that signal n has killed
_BATCHES = 3  # commits that may be missing before a pipeline counts as stalled


def judged(code: int, text: str, ask: Callable[[str], Verdict] = classify) -> Verdict:
    """Diagnose an exit code and the text of all causes. `text` is empty if there is none."""
    if code < 0 or (code > _SHELL and not text):
        number = -code if code < 0 else code - _SHELL
        return Verdict(
            "killed", RecoveryLevel.RESTART, halt=False, message=f"The driver was killed ({_signal(number)})."
        )
    silent = Verdict("silent", RecoveryLevel.RESTART, halt=False, message=f"The driver ended with {code}.")
    found = ask(text) if text else silent
    if found.halt:
        return found
    match ExitCode(code):
        case ExitCode.CRASH:
            return found
        case ExitCode.DONE:
            message = "The pipeline ended without being asked to."
            return Verdict("ended", RecoveryLevel.RESTART, halt=False, message=message)
        case ExitCode.CHECKPOINT:
            if found.level is not None and found.level >= RecoveryLevel.NEW_RUN:
                return found
            return Verdict(
                "checkpoint", RecoveryLevel.NEW_RUN, halt=False, message="The checkpoint cannot be continued."
            )
        case known:
            message = f"Exit code {code}: a start would end in the same way."
            return Verdict(known.name.lower(), None, halt=True, message=message)


def unresponsive(why: str) -> Verdict:
    """Say that a driver was killed because it hung."""
    return Verdict("hung", RecoveryLevel.RESTART, halt=False, message=f"The driver hung: {why}.")


def left_out() -> Verdict:
    """Say that a driver does not run a pipeline that it was to start, and reported no end of it."""
    message = "The driver does not have the pipeline: it has read another version of the file."
    return Verdict("left out", RecoveryLevel.WAIT, halt=False, message=message)


@dataclass(frozen=True)
class PipelineHealth:
    """A pipeline as a driver's `/status` has it."""

    state: str
    since_s: float  # since it was first seen in this state, with this commit, and with or without waiting records
    run: int | None
    version: int | None  # table version of the newest commit of this start
    waiting: int | None  # offsets that are not committed; None: Kafka has not said it
    error: str | None = None
    free_s: float | None = (
        None  # since its rate limit lets the next batch begin; below 0: it does not yet; None: always
    )

    @property
    def well(self) -> bool:
        """Whether it has shown that it works: it committed, or nothing waits. A pause is as it was asked for."""
        return self.state == "paused" or (self.state == "running" and (self.version is not None or self.waiting == 0))


@dataclass(frozen=True)
class DriverHealth:
    """A living driver at one moment."""

    age_s: float  # since its process began
    silent_s: float | None  # since its main thread was last seen alive; None: never yet
    pipelines: Mapping[str, PipelineHealth]  # empty while it does not answer


@dataclass(frozen=True)
class Timeouts:
    """How long a driver may take."""

    start_within: timedelta
    heartbeat_within: timedelta
    stalled_after: Mapping[str, timedelta]  # by pipeline


def why_unresponsive(look: DriverHealth, timeouts: Timeouts) -> str:
    """Return why a driver hangs; empty while it does not."""
    states = {seen.state for seen in look.pipelines.values()}
    starting = not states or not states.isdisjoint({"starting", "failed"})  # a failed one may be starting again
    limit = timeouts.start_within if starting else timeouts.heartbeat_within
    silent_s = look.age_s if look.silent_s is None else look.silent_s
    if silent_s > limit.total_seconds():
        return f"its main thread gave no sign for {silent_s:.0f} s"
    for name, after in timeouts.stalled_after.items():
        if (seen := look.pipelines.get(name)) is None:
            continue
        still_s = seen.since_s if seen.free_s is None else min(seen.since_s, seen.free_s)
        if seen.state == "running" and seen.waiting and still_s > after.total_seconds():
            return f"pipeline {name} has {seen.waiting} offsets waiting and committed nothing for {still_s:.0f} s"
    return ""


def stalled_after(settings: timedelta, delay_max: timedelta) -> timedelta:
    """Return after how long without a commit a pipeline that has work hangs."""
    return max(settings, _BATCHES * delay_max)


def seen(status: Mapping[str, Any], at: datetime) -> PipelineHealth:
    """Read a pipeline's part of one `/status`. Old answers of Kafka do not count as waiting records.

    For how long it has been so, one answer does not tell.
    """
    lag, last, limit = LagSample.from_json(status["lag"]), status["last_commit"], status.get("rate_limit") or {}
    due_s = limit.get("next_batch_in_seconds")
    return PipelineHealth(
        status["state"], 0.0, status["run"], None if last is None else last["version"],
        lag.offsets if lag.is_fresh(at) else None, status["error"] or None, None if due_s is None else -due_s,
    )  # fmt: skip


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
