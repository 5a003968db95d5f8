"""The driver as a child process: starts, checks and stops it, and cleans up after it."""

import ctypes
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from urllib.parse import quote

from headrace.recovery.escalation.diagnosis import DriverHealth, PipelineHealth, parse_health
from headrace.writer.clients.driver_endpoint import ask_at, status_at
from headrace.writer.core.http import RequestFailed
from headrace.writer.driver.supervisor_channel import (
    DUMP_ON,
    VARIABLE,
    ChannelFolder,
    ExitReport,
    Order,
    StartInstructions,
)

_ANSWER_WITHIN_S = 3.0
_DUMP_WITHIN_S = 2.0
_DUMP_POLL_S = 0.05
_ACCEPTED = 202
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class _Condition:
    """What a pipeline's idle time counts from: any change begins it anew."""

    state: str
    version: int | None
    has_waiting: bool


class ConditionTimes:
    """For how long each pipeline has been in its state, with its newest commit, and with or without waiting records."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock`: a monotonic clock, in seconds."""
        self._clock = clock
        self._conditions: dict[str, _Condition] = {}
        self._since_s: dict[str, float] = {}

    def add_to(self, name: str, health: PipelineHealth) -> PipelineHealth:
        """Return a pipeline's health with the seconds for which it has been so."""
        now_s = self._clock()
        condition = _Condition(health.state, health.version, bool(health.waiting))
        if self._conditions.get(name) != condition:
            self._conditions[name] = condition
            self._since_s[name] = now_s
        return replace(health, since_s=now_s - self._since_s[name])


class Driver:
    """One driver process, and what it reports."""

    def __init__(self, folder: ChannelFolder, command: Sequence[str], orders: Mapping[str, Order]) -> None:
        """Start it, in a process group of its own."""
        self._folder = folder
        self._token = secrets.token_hex(16)
        folder.prepare(StartInstructions(orders, self._token, os.getpid()))
        self._started_s = time.monotonic()
        # The newest heartbeat, and when it was first seen.
        self._heartbeat: float | None = None
        self._heartbeat_s: float | None = None
        self._times = ConditionTimes()
        # The command is what the person who runs the supervisor wrote.
        self._process = subprocess.Popen(  # noqa: S603
            command,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            env={**os.environ, VARIABLE: str(folder.path)},
        )
        self.pid = self._process.pid

    def exit_code(self) -> int | None:
        """Return its exit code, negative for a signal; None while it lives. Whatever it left running is killed then."""
        code = self._process.poll()
        if code is not None:
            # Its JVM may still live.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        return code

    def exit_reports(self) -> dict[str, ExitReport]:
        """Take the exit reports that it has left, by pipeline."""
        return self._folder.exit_reports()

    def health(self) -> DriverHealth:
        """Ask how it is."""
        now_s = time.monotonic()
        heartbeat = self._folder.last_beat_at()
        if heartbeat is not None and heartbeat != self._heartbeat:
            self._heartbeat = heartbeat
            self._heartbeat_s = now_s
        silent_s = None if self._heartbeat_s is None else now_s - self._heartbeat_s
        return DriverHealth(now_s - self._started_s, silent_s, self._pipelines())

    def start(self, pipeline: str, *, new_run: bool, lease: int | None) -> bool:
        """Ask it to start a pipeline that has ended. False when it does not take the order, or does not answer."""
        lease_parameter = "" if lease is None else f"&lease={lease}"
        return self._ask(f"/pipelines/{pipeline}/start?new_run={str(new_run).lower()}{lease_parameter}")

    def surrender(self, pipeline: str, lease: int, holder: str) -> bool:
        """Ask it to end a pipeline whose lease another process has. `lease`: the epoch that was lost.

        False when it does not take the order, or does not answer.
        """
        return self._ask(f"/pipelines/{pipeline}/surrender?lease={lease}&holder={quote(holder, safe='')}")

    def _ask(self, path: str) -> bool:
        """Send an order. False when it is not taken."""
        _, driver_url = self._folder.driver()
        if driver_url is None:
            return False
        headers = {"Authorization": f"Bearer {self._token}"}
        certificate = self._folder.certificate()
        try:
            answer = ask_at(driver_url + path, certificate, method="POST", headers=headers, timeout_s=_ANSWER_WITHIN_S)
        except RequestFailed:
            return False
        return answer.status == _ACCEPTED

    def reload(self) -> None:
        """Ask it to read its configuration again. A driver without a process id yet reads the file when it begins."""
        pid, _ = self._folder.driver()
        if pid is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGHUP)

    def drain(self) -> None:
        """Ask it to finish its batch and end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it now, with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def dump_stacks(self) -> str:
        """Let it write the stacks of its threads, one after the other, and return them. Empty when it cannot."""
        pid, _ = self._folder.driver()
        if pid is None:
            return ""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, DUMP_ON)
        deadline_s = time.monotonic() + _DUMP_WITHIN_S
        previous = ""
        stacks = self._folder.threads()
        while (not stacks or stacks != previous) and time.monotonic() < deadline_s:
            time.sleep(_DUMP_POLL_S)
            previous = stacks
            stacks = self._folder.threads()
        return stacks

    def _pipelines(self) -> dict[str, PipelineHealth]:
        """Ask for its `/status`. Empty when it does not answer."""
        _, url = self._folder.driver()
        if url is None:
            return {}
        status = status_at(url, self._folder.certificate(), timeout_s=_ANSWER_WITHIN_S) or {}
        try:
            answered = datetime.fromisoformat(status["at"])
            return {
                name: self._times.add_to(name, parse_health(pipeline, answered))
                for name, pipeline in status["pipelines"].items()
            }
        except (ValueError, LookupError, TypeError, AttributeError):
            return {}


@contextmanager
def channel_folder() -> Iterator[ChannelFolder]:
    """Create the folder of supervisor and driver, and hold its lock: a driver ends if the lock is free."""
    with (
        tempfile.TemporaryDirectory(prefix="headrace-supervisor-") as path,
        (Path(path) / "supervisor.lock").open("w") as lock,
    ):
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield ChannelFolder(Path(path))


def adopt_orphans() -> None:
    """Become the parent of what the driver's children leave behind, as process 1 of a container is anyway."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(driver: int | None) -> None:
    """Wait for children that have ended, except the driver."""
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if child is None or child.si_pid == driver:
            return
        with suppress(ChildProcessError):
            os.waitpid(child.si_pid, os.WNOHANG)
