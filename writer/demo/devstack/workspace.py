"""The demo's directory and processes, and their clean-up whenever the demo ends."""

import ctypes
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import headrace
from headrace.writer.config.loader import mapping
from headrace.writer.config.sections.table import TableFormat
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.signals import SignalCode
from headrace.writer.demo.devstack.lake import Lake, parse_lake
from headrace.writer.demo.devstack.process import Process
from headrace.writer.demo.devstack.stack import ServerFailed, Stack
from headrace.writer.storage.base import StoreError

_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None
_POLL = timedelta(milliseconds=50)
_PATIENCE = timedelta(seconds=2)
# A JVM ends within 1 s on a quiet machine.
JVM_GRACE = timedelta(seconds=10)
# Ctrl-C, kill, and the end of the terminal.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# Sections of a configuration that say how stores are reached.
_STORE_SECTIONS = ("s3", "gcs", "azure")
# Variables with a path, which may be relative to the directory of the user.
_PATH_VARIABLES = (
    "HEADRACE_CACHE",
    "HEADRACE_JARS",
    "HEADRACE_IVY_SETTINGS",
    "JAVA_HOME",
    "AWS_CA_BUNDLE",
    "AWS_CONFIG_FILE",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
    "GOOGLE_SERVICE_ACCOUNT",
    "SSL_CERT_FILE",
)


class Stopped(BaseException):
    """A signal asked to stop. Not an Exception, so that nothing that fixes errors takes it for one."""


class Interruption:
    """Raises Stopped in the main thread for the first signal; later ones are noted, so that clean-up is never cut.

    Python drops an exception that a handler raises inside a finaliser or a fork's hook: loops call `check`, too.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._asked_at = 0.0
        self._raised = self._held = self._waits = False
        self._before: dict[signal.Signals, Any] = {}
        self._unraisable = sys.unraisablehook

    @property
    def exit_code(self) -> SignalCode:
        """130 after Ctrl-C, 143 after SIGTERM."""
        return SignalCode(128 + (self.asked or 0))

    def listen(self) -> None:
        """Take the signals over. A SIGHUP that is ignored (nohup) stays so."""
        for number in _SIGNALS:
            if number is signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue
            self._before[number] = signal.getsignal(number)
            signal.signal(number, self._handle)
        self._unraisable = sys.unraisablehook
        sys.unraisablehook = self._report_unraisable

    @contextmanager
    def later(self) -> Iterator[None]:
        """Raise at the end of this block, or for a second signal after a while: for calls that take no exception.

        One that is raised in a delivery callback keeps librdkafka's client alive, and its complaints follow the end.
        DuckDB makes an error of its own of one that is raised while it works.
        """
        self._waits = True
        try:
            yield
        finally:
            self._waits = False
        self.check()

    def check(self) -> None:
        """Raise Stopped if a signal has come."""
        if self.asked is not None and not self._held:
            self._raised = True
            raise Stopped

    def accept(self) -> None:
        """Take the signal that has come as an answer, not as an end: the next one is the first again."""
        self.asked = None
        self._raised = False

    def hold(self) -> None:
        """Only note signals from here on."""
        self._held = True

    def restore_handlers(self) -> None:
        """Give the signals back; ignore them if one has come, so that an impatient second one spoils no exit."""
        sys.unraisablehook = self._unraisable
        while self._before:
            number, handler = self._before.popitem()
            signal.signal(number, handler if self.asked is None else signal.SIG_IGN)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.asked is None:
            self.asked = number
            self._asked_at = now
        supervised = self._waits and now - self._asked_at < _PATIENCE.total_seconds()
        if not (self._held or self._raised or supervised):
            self._raised = True
            raise Stopped

    def _report_unraisable(self, unraisable: "sys.UnraisableHookArgs") -> None:
        # An exception of ours needs no report.
        if unraisable.exc_type is not Stopped:
            self._unraisable(unraisable)


class Writer(Process):
    """The real writer in a process of its own."""

    def drain(self, *, within: timedelta) -> None:
        """Ask the driver, not its JVM, to commit what it has begun and end. Raises ServerFailed unless it does."""
        assert self._child is not None, "launch comes before drain"
        self._child.send_signal(signal.SIGTERM)
        try:
            code = self._child.wait(within.total_seconds())
        except subprocess.TimeoutExpired:
            raise ServerFailed(
                f"{self.name} did not end within {within.total_seconds():g} s of SIGTERM. {self._log_end()}"
            ) from None
        if code:
            raise ServerFailed(f"{self.name} was asked to end and exited with code {code}. {self._log_end()}")
        # The process id may be another's soon.
        self._child = None


class Workspace:
    """Where the demo lives. Nothing happens before `make`; `clear` may be called at any time, in any state."""

    def __init__(
        self,
        keep: Path | None,
        form: TableFormat = "delta",
        lake_location: str | None = None,
        stores: Path | None = None,
    ) -> None:
        """Take the format of the table. Raise ConfigError if `keep` holds something already.

        `lake_location`: where the tables lie, as a user writes it; None: in the demo's directory. `stores`: a
        configuration file whose sections say how the store of the lake is reached; None: the environment says it.
        """
        self.format = form
        # The name is known before the directory exists, so that it can always be removed.
        name = f"headrace-demo-{secrets.token_hex(4)}"
        self.directory = (keep or Path(tempfile.gettempdir()) / name).absolute()
        self.config = self.directory / "headrace.yaml"
        # Whether the user said where the tables lie: only then the folder is claimed, and removed by itself.
        self.has_own_lake = lake_location is None
        self.lake = Lake(str(self.directory / "lake") if lake_location is None else parse_lake(lake_location, form))
        self.table = self.lake.table("events")
        self.dead_letters = self.lake.table("events_dead_letters")
        self.stores_file = stores
        self.store_sections = _store_sections(stores, has_lake=lake_location is not None)
        self.catalog = {"type": "sql", "uri": f"sqlite:///{self.directory}/catalog.db"}
        # Why the lake could not be removed by `clear`; empty: nothing of it is left that should not be.
        self.lake_failure = ""
        self.stack: Stack | None = None
        self._kept = keep is not None
        self.scratch = self.directory / "scratch"
        self._writer: Writer | None = None
        self._process_group = ProcessGroup()
        if keep and (match := re.fullmatch(r"(s3|gs|az|abfss):/?(.*)", str(keep))):
            raise ConfigError(
                f"--keep takes a directory of this machine, and not {keep}: the tables go to a bucket by "
                f"--lake {match[1]}://{match[2]}."
            )
        if keep and (keep.is_file() or (keep.is_dir() and any(keep.iterdir()))):
            raise ConfigError(f"{keep} is not empty. Give --keep a directory that is new.")
        if odd := sorted(set(str(self.directory)) & set("[]{}%?*")):
            raise ConfigError(f"{self.directory} holds {' '.join(odd)}, which a table's path must not. Choose another.")

    def make(self) -> None:
        """Create the directory. From here on, orphans among the descendants are this process's children."""
        self._process_group.adopt()
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=self._kept)
            self.scratch.mkdir()
            if self.has_own_lake:
                Path(self.lake.location).mkdir()
        except OSError as error:
            raise ConfigError(f"cannot create {self.directory}: {error.strerror}. Choose another directory.") from error

    def launch_writer(self) -> Writer:
        """Start `headrace run` on the configuration."""
        path = [str(Path(headrace.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        env = {
            # The writer runs the same headrace, in a directory of its own.
            "PYTHONPATH": os.pathsep.join(path),
            "TMPDIR": str(self.scratch),
            "SPARK_LOCAL_DIRS": str(self.scratch),
            "SPARK_SUBMIT_OPTS": f'"-Djava.io.tmpdir={self.scratch}" -XX:-UsePerfData',
        }
        for name in _PATH_VARIABLES:
            given = os.environ.get(name)
            # The writer has another working directory. What begins with ~ is resolved by those who read it.
            if given and not given.startswith("~"):
                env[name] = str(Path(given).absolute())
        self._writer = Writer(
            "the writer",
            [sys.executable, "-m", "headrace.writer.cli", "run", self.config],
            cwd=self.scratch,
            log=self.directory / "writer.log",
            env=env,
        )
        self._writer.launch()
        return self._writer

    def wait_for_orphans(self) -> None:
        """Return when the JVM that the writer left behind has ended: it does when it sees its driver gone."""
        self._process_group.end(grace=JVM_GRACE)

    def clear(self) -> None:
        """End every process and remove all that is not to be kept."""
        try:
            if self._writer is not None:
                # A killed writer loses nothing.
                self._writer.stop(grace=timedelta(0))
        finally:
            try:
                if self.stack is not None:
                    self.stack.stop()
            finally:
                self._process_group.end(grace=timedelta(0))
                shutil.rmtree(self.scratch if self._kept else self.directory, ignore_errors=True)
                self._remove_lake()

    def _remove_lake(self) -> None:
        """Remove the lake where a user gave its location, unless it is to be kept with what is in it."""
        is_needed = self._kept and self._writer is not None
        if is_needed or not self.lake.is_claimed:
            return
        try:
            self.lake.remove()
        except StoreError as error:
            self.lake_failure = str(error)


def _store_sections(file: Path | None, *, has_lake: bool) -> dict[str, Any]:
    """Return the sections of a configuration file that say how stores are reached. Raises ConfigError."""
    if file is None:
        return {}
    if not has_lake:
        raise ConfigError(f"--stores {file} says how the store of --lake is reached; give --lake, too.")
    document = mapping(file, f"it may have the sections {', '.join(_STORE_SECTIONS)}", "Correct --stores.")
    return {name: document[name] for name in _STORE_SECTIONS if name in document}


class ProcessGroup:
    """All processes that descend from this one since `adopt`, also those whose parents are gone (Linux only).

    The writer starts a JVM, which starts Python workers in a process group of their own: a signal to the writer's group
    does not reach them. Here orphans become children of this process, so that none can be missed. Elsewhere they end
    by themselves, as their pipes close.
    """

    def __init__(self) -> None:
        self._others: set[int] = set()
        self._before: int | None = None

    def adopt(self) -> None:
        """Be the parent of every orphan among the descendants from here on."""
        if _libc is None:
            return
        self._others = _children()
        before = ctypes.c_int()
        _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        self._before = before.value
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def end(self, *, grace: timedelta) -> None:
        """Wait until no descendant is left, and kill what is still there after `grace`."""
        if _libc is None or self._before is None:
            return
        deadline = time.monotonic() + grace.total_seconds()
        while left := _children() - self._others:
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    if time.monotonic() >= deadline:
                        # Its children become ours, and are next.
                        os.kill(pid, signal.SIGKILL)
                with suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            time.sleep(_POLL.total_seconds())
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, self._before, 0, 0, 0)


def _children() -> set[int]:
    """Return the process ids of this process's children, also of ended ones that were not reaped."""
    children = set()
    own_pid = os.getpid()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # The process may have ended.
        with suppress(OSError):
            _state, parent, *_ = stat.read_text(errors="replace").rpartition(")")[2].split()
            if int(parent) == own_pid:
                children.add(int(stat.parent.name))
    return children
