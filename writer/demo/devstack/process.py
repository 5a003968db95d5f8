"""Runs a server as a child process that ends when its parent ends."""

import ctypes
import os
import random
import signal
import socket
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Self

from headrace.writer.core.errors import HeadraceError

# Below Linux's ephemeral range (32768 up): a client that keeps dialling a port of that range while its server restarts
# can be given that very port as its own, connect to itself, and keep the server out.
PORTS = range(20_000, 32_768)
LOOPBACK = "127.0.0.1"
LOG_LINES = 12
POLL = timedelta(milliseconds=50)
# A broker closes its segments in about a second.
GRACE = timedelta(seconds=10)

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class ServerFailed(HeadraceError):
    """A server did not start, or did not answer in time."""


class Process:
    """One child in a session of its own; its output goes to `log`, appended.

    On Linux the kernel kills it when the *thread* that called `launch` ends, however it ends: call `launch` from the
    main thread, or from one that outlives the server. A thread of a pool would take the server with it.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], *, cwd: Path, log: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.log = log
        self._command = [str(part) for part in command]
        self._cwd = cwd
        self._env = {**os.environ, **(env or {})}
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process id, which is its group's too; None before `launch` and after `stop`."""
        return self._child.pid if self._child else None

    def launch(self) -> None:
        """Start the child and return at once. Raises ServerFailed if it cannot be executed."""
        assert self._child is None, f"{self.name} is running already"
        with self.log.open("ab") as out:
            try:
                self._child = subprocess.Popen(  # noqa: S603
                    self._command,
                    cwd=self._cwd,
                    env=self._env,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_dies_with(os.getpid()),  # noqa: PLW1509 - two system calls, no allocation, no lock
                )
            except OSError as error:
                raise ServerFailed(f"{self.name} cannot be executed: {error}") from error

    def wait_until(self, answers: Callable[[], bool], *, within: timedelta) -> None:
        """Return once `answers()` is true. Raises ServerFailed, with the log's end, if the child ends or is late."""
        assert self._child is not None, f"{self.name} was not launched"
        deadline = time.monotonic() + within.total_seconds()
        while True:
            if (code := self._child.poll()) is not None:
                raise ServerFailed(f"{self.name} {_ending(code)} before it answered. {self._log_end()}")
            if answers():
                return
            if time.monotonic() >= deadline:
                raise ServerFailed(f"{self.name} did not answer within {within.total_seconds():g} s. {self._log_end()}")
            time.sleep(POLL.total_seconds())

    def stop(self, *, grace: timedelta = GRACE) -> None:
        """End the child and its process group: SIGTERM, and SIGKILL after `grace`. Does nothing if it is not there."""
        child = self._child
        self._child = None
        if child is None:
            return
        try:
            _signal_group(child.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(grace.total_seconds())
        finally:
            _signal_group(child.pid, signal.SIGKILL)
            child.wait()

    def _log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return f"The end of {self.log}:\n" + "\n".join(f"  {line}" for line in lines or ["(empty)"])


class Server(ABC):
    """A server in a process of its own; as a context manager, it runs inside the block.

    `launch` belongs on a thread that outlives the server (see Process).
    """

    _process: Process | None = None

    @property
    def pid(self) -> int | None:
        """The server's process id; None when it was not launched."""
        return self._process.pid if self._process else None

    @abstractmethod
    def launch(self) -> None:
        """Start the process. `wait` waits until it answers. Raises ArtifactError, JavaMissing, ServerFailed."""

    @abstractmethod
    def wait(self) -> None:
        """Return once the server answers. Raises ServerFailed."""

    def start(self) -> None:
        """Launch and wait; a server that does not answer is stopped before the error leaves."""
        try:
            self.launch()
            self.wait()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End the server and keep its data. Does nothing when it is not running."""
        process = self._process
        self._process = None
        if process is not None:
            process.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_ports(count: int) -> list[int]:
    """Return distinct loopback ports without a listener. They are not reserved: use them soon."""
    ports: list[int] = []
    for port in random.sample(PORTS, len(PORTS)):
        if len(ports) == count:
            return ports
        if is_free(port):
            ports.append(port)
    raise ServerFailed(f"fewer than {count} of the ports {PORTS.start} to {PORTS.stop - 1} are free on {LOOPBACK}.")


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a server could listen on this port of this machine now."""
    with socket.socket() as probe:
        # Java sets it, too: connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def require_free(name: str, port: int, host: str = LOOPBACK) -> None:
    """Raise ServerFailed if something already listens on the port: it would answer in the server's place."""
    if not is_free(port, host):
        raise ServerFailed(f"{name} cannot listen on {host}:{port}: the port is taken. Stop what runs there.")


def is_listening(port: int, host: str = LOOPBACK) -> bool:
    """Return whether a connection to this port is accepted."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def java_options(directory: Path, *, heap_megabytes: int) -> list[str]:
    """Return JVM options for a small server that starts fast and writes nothing outside `directory`."""
    temporary = directory / "tmp"
    temporary.mkdir(parents=True, exist_ok=True)
    return [
        f"-Xmx{heap_megabytes}m",
        "-XX:+UseSerialGC",
        # The second compiler pays off after minutes.
        "-XX:TieredStopAtLevel=1",
        # No /tmp/hsperfdata_* is written.
        "-XX:-UsePerfData",
        f"-XX:ErrorFile={directory}/hs_err_%p.log",
        f"-Djava.io.tmpdir={temporary}",
    ]


def _dies_with(parent: int) -> Callable[[], None] | None:
    """Return what the child does between fork and exec, so that it cannot outlive its parent (Linux only)."""
    if _libc is None:
        return None
    libc = _libc

    def arm() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The parent died before the signal was armed, so the signal never comes.
        if os.getppid() != parent:
            os._exit(1)

    return arm


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _ending(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    hint = " (out of memory, or the thread that launched it ended)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{hint}"
