"""Diagnoses pipelines from a driver's exit or from its health checks. Pure."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from headrace.recovery.escalation.error_catalogue import Verdict, classify
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.core.errors import ExitCode
from headrace.writer.status.lag_sample import LagSample

# A shell says 128 + n of a child that signal n has killed.
_SHELL_OFFSET = 128
# After so many commits that may be missing, a pipeline counts as stalled.
_MISSING_COMMITS_MAX = 3


def diagnose_exit(exit_code: int, text: str, classify_text: Callable[[str], Verdict] = classify) -> Verdict:
    """Diagnose an exit code and the text of all causes. `text` is empty if there is none."""
    if exit_code < 0:
        return _killed_verdict(-exit_code)
    if exit_code > _SHELL_OFFSET and not text:
        return _killed_verdict(exit_code - _SHELL_OFFSET)
    if text:
        verdict = classify_text(text)
    else:
        message = f"The driver ended with {exit_code}."
        verdict = Verdict("silent", RecoveryLevel.RESTART, halt=False, message=message)
    if verdict.halt:
        return verdict
    match ExitCode(exit_code):
        case ExitCode.CRASH:
            return verdict
        case ExitCode.DONE:
            message = "The pipeline ended without being asked to."
            return Verdict("ended", RecoveryLevel.RESTART, halt=False, message=message)
        case ExitCode.CHECKPOINT:
            if verdict.level is not None and verdict.level >= RecoveryLevel.NEW_RUN:
                return verdict
            message = "The checkpoint cannot be continued."
            return Verdict("checkpoint", RecoveryLevel.NEW_RUN, halt=False, message=message)
        case code:
            message = f"Exit code {exit_code}: a start would end in the same way."
            return Verdict(code.name.lower(), None, halt=True, message=message)


def unresponsive_verdict(reason: str) -> Verdict:
    """Return the verdict on a driver that was killed because it hung."""
    return Verdict("hung", RecoveryLevel.RESTART, halt=False, message=f"The driver hung: {reason}.")


def missing_pipeline_verdict() -> Verdict:
    """Return the verdict on a pipeline that a driver was to start, does not run, and reported no end of."""
    message = "The driver does not have the pipeline: it has read another version of the file."
    return Verdict("left out", RecoveryLevel.WAIT, halt=False, message=message)


@dataclass(frozen=True)
class PipelineHealth:
    """A pipeline as a driver's `/status` has it."""

    state: str
    # Seconds since it was first seen in this state, with this commit, and with or without waiting records.
    since_s: float
    run: int | None
    # The table version of the newest commit of this start.
    version: int | None
    # Offsets that are not committed; None: Kafka has not said it.
    waiting: int | None
    error: str | None = None
    # Seconds since its rate limit lets the next batch begin; below 0: it does not yet; None: there is no limit.
    free_s: float | None = None

    @property
    def is_well(self) -> bool:
        """Whether it has shown that it works: it committed, or nothing waits. A pause is as it was asked for."""
        if self.state == "paused":
            return True
        return self.state == "running" and (self.version is not None or self.waiting == 0)


@dataclass(frozen=True)
class DriverHealth:
    """A living driver at one moment."""

    # Seconds since its process began.
    age_s: float
    # Seconds since its main thread was last seen alive; None: never yet.
    silent_s: float | None
    # Empty while it does not answer.
    pipelines: Mapping[str, PipelineHealth]


@dataclass(frozen=True)
class Timeouts:
    """How long a driver may take."""

    start_within: timedelta
    heartbeat_within: timedelta
    # By pipeline.
    stalled_after: Mapping[str, timedelta]


def unresponsive_reason(driver: DriverHealth, timeouts: Timeouts) -> str:
    """Return why a driver hangs; empty while it does not."""
    states = {pipeline.state for pipeline in driver.pipelines.values()}
    # A pipeline that failed may be starting again.
    is_starting = not states or not states.isdisjoint({"starting", "failed"})
    limit = timeouts.start_within if is_starting else timeouts.heartbeat_within
    silent_s = driver.silent_s
    if silent_s is None:
        silent_s = driver.age_s
    if silent_s > limit.total_seconds():
        return f"its main thread gave no sign for {silent_s:.0f} s"
    for name, stalled_after in timeouts.stalled_after.items():
        pipeline = driver.pipelines.get(name)
        if pipeline is None or pipeline.state != "running" or not pipeline.waiting:
            continue
        idle_s = pipeline.since_s
        if pipeline.free_s is not None:
            idle_s = min(idle_s, pipeline.free_s)
        if idle_s > stalled_after.total_seconds():
            return f"pipeline {name} has {pipeline.waiting} offsets waiting and committed nothing for {idle_s:.0f} s"
    return ""


def stall_timeout(stalled_after: timedelta, max_delay: timedelta) -> timedelta:
    """Return after how long without a commit a pipeline that has work hangs.

    `stalled_after` and `max_delay`: as the configuration has them.
    """
    return max(stalled_after, _MISSING_COMMITS_MAX * max_delay)


def parse_health(status: Mapping[str, Any], time: datetime) -> PipelineHealth:
    """Read a pipeline's part of one `/status`, of the given time. Old answers of Kafka do not count as waiting records.

    For how long it has been so, one answer does not tell.
    """
    lag = LagSample.from_json(status["lag"])
    last_commit = status["last_commit"]
    # A commit of an earlier driver says nothing about this one.
    has_committed = last_commit is not None and any(status["totals"]["commits"].values())
    next_batch_in_s = (status.get("rate_limit") or {}).get("next_batch_in_seconds")
    return PipelineHealth(
        state=status["state"],
        since_s=0.0,
        run=status["run"],
        version=last_commit["version"] if has_committed else None,
        waiting=lag.offsets if lag.is_fresh(time) else None,
        error=status["error"] or None,
        free_s=None if next_batch_in_s is None else -next_batch_in_s,
    )


def _killed_verdict(number: int) -> Verdict:
    """Return the verdict on a driver that a signal killed."""
    message = f"The driver was killed ({_signal_name(number)})."
    return Verdict("killed", RecoveryLevel.RESTART, halt=False, message=message)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
