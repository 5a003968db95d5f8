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
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from recovery.escalation.diagnosis import DriverHealth, PipelineHealth, seen
from writer.clients.driver_endpoint import ask_at, status_at
from writer.clients.http import RequestFailed
from writer.driver.supervisor_channel import DUMP_ON, VARIABLE, ChannelFolder, ExitReport, Order, StartInstructions

_ANSWER_WITHIN_S = 3.0
_DUMP_WITHIN_S = 2.0
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER


class ConditionTimes:
    """For how long each pipeline has been in its state, with its newest commit, and with or without waiting records."""

    def __init__(self, seconds: Callable[[], float] = time.monotonic) -> None:
        """`seconds`: a monotonic clock."""
        self._seconds = seconds
        self._since_s: dict[str, tuple[tuple[str, int | None, bool], float]] = {}

    def add_to(self, name: str, health: PipelineHealth) -> PipelineHealth:
        """Return what was seen of a pipeline, with the seconds for which it has been so."""
        now_s = self._seconds()
        condition = health.state, health.version, bool(health.waiting)
        if name not in self._since_s or self._since_s[name][0] != condition:
            self._since_s[name] = condition, now_s
        return replace(health, since_s=now_s - self._since_s[name][1])


class Driver:
    """One driver process, and what it reports."""

    def __init__(self, folder: ChannelFolder, command: Sequence[str], orders: Mapping[str, Order]) -> None:
        """Start it, in a process group of its own."""
        self._folder, self._token = folder, secrets.token_hex(16)
        folder.prepare(StartInstructions(orders, self._token, os.getpid()))
        self._began_s = time.monotonic()
        self._beat: tuple[float, float] | None = None  # the newest sign of life, and when it was first seen
        self._times = ConditionTimes()
        self._process = subprocess.Popen(  # noqa: S603 - what the person who runs the supervisor wrote
            command, start_new_session=True, stdin=subprocess.DEVNULL, env={**os.environ, VARIABLE: str(folder.path)}
        )
        self.pid = self._process.pid

    def ended(self) -> int | None:
        """Return its exit code, negative for a signal; None while it lives. Whatever it left running is killed then."""
        code = self._process.poll()
        if code is not None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)  # its JVM has no life of its own
        return code

    def exit_reports(self) -> dict[str, ExitReport]:
        """Take its last words, by pipeline."""
        return self._folder.exit_reports()

    def look(self) -> DriverHealth:
        """Ask how it is."""
        now_s, beaten = time.monotonic(), self._folder.beaten_at()
        if beaten is not None and (self._beat is None or self._beat[0] != beaten):
            self._beat = beaten, now_s
        return DriverHealth(
            now_s - self._began_s, None if self._beat is None else now_s - self._beat[1], self._status()
        )

    def start(self, pipeline: str, *, new_run: bool, lease: int | None) -> bool:
        """Ask it to start a pipeline that has ended. False when it does not take the order, or does not answer."""
        _, url = self._folder.driver()
        if url is None:
            return False
        held = "" if lease is None else f"&lease={lease}"
        at = f"{url}/pipelines/{pipeline}/start?new_run={str(new_run).lower()}{held}"
        sent = {"Authorization": f"Bearer {self._token}"}
        try:
            answer = ask_at(at, self._folder.certificate(), method="POST", headers=sent, timeout_s=_ANSWER_WITHIN_S)
        except RequestFailed:
            return False
        return answer.status == 202  # noqa: PLR2004 - accepted

    def reload(self) -> None:
        """Ask it to read its configuration again."""
        pid, _ = self._folder.driver()
        with suppress(ProcessLookupError, PermissionError):
            if pid is not None:  # one that has not said so yet reads the file when it begins
                os.kill(pid, signal.SIGHUP)

    def drain(self) -> None:
        """Ask it to finish its batch and end."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End it now, with all that it started."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def dump(self) -> str:
        """Let it write the stacks of its threads. Empty when it cannot."""
        pid, _ = self._folder.driver()
        if pid is None:
            return ""
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, DUMP_ON)
        deadline = time.monotonic() + _DUMP_WITHIN_S
        before, found = "", self._folder.threads()
        while (not found or found != before) and time.monotonic() < deadline:  # it writes one thread after the other
            time.sleep(0.05)
            before, found = found, self._folder.threads()
        return found

    def _status(self) -> dict[str, PipelineHealth]:
        _, url = self._folder.driver()
        if url is None:
            return {}
        status = status_at(url, self._folder.certificate(), timeout_s=_ANSWER_WITHIN_S) or {}
        try:
            at, pipelines = datetime.fromisoformat(status["at"]), status["pipelines"]
            return {name: self._times.add_to(name, seen(one, at)) for name, one in pipelines.items()}
        except (ValueError, LookupError, TypeError, AttributeError):
            return {}


@contextmanager
def place() -> Iterator[ChannelFolder]:
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
            ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def reap(driver: int | None) -> None:
    """Wait for children that have ended, except the driver."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == driver:
            return
        with suppress(ChildProcessError):
            os.waitpid(found.si_pid, os.WNOHANG)
