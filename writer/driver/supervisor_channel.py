"""Messages between a driver and its supervisor: small files in a folder of their own.

HEADRACE_SUPERVISED names the folder; without it a driver writes nothing. It is on this machine's disk, whatever the
storage is doing.

orders.json          supervisor → driver, read once: which pipelines to start and how, their leases, the token for HTTP
driver.json          driver → supervisor: process id, and the URL where it answers
heartbeat            touched by the driver's main thread
words/<pipeline>     driver → supervisor: how a pipeline ended, with the whole text of the causes
last.json            the same of the driver itself, when it failed beside its pipelines
decided.json         supervisor → driver: what it decided of late, by pipeline, for the driver's page
threads.txt          stacks of all threads, written on SIGUSR1
supervisor.lock      locked for as long as the supervisor lives
"""

import faulthandler
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from writer.core import logging
from writer.core.errors import exit_code
from writer.driver.restart_policy import causes, sentence
from writer.status.model import View

VARIABLE = "HEADRACE_SUPERVISED"
DUMP_ON = signal.SIGUSR1
THREADS = "threads.txt"
_BEAT_S = 1.0
_LAST, _DECIDED = "last.json", "decided.json"


@dataclass(frozen=True)
class Order:
    """How a pipeline is to be started."""

    start: bool = True  # False: it is left alone until it is asked for
    new_run: bool = False
    lease: int | None = None  # epoch of the lease that the supervisor holds


@dataclass(frozen=True)
class StartInstructions:
    """The supervisor's instructions for a driver's start."""

    pipelines: Mapping[str, Order] = field(default_factory=dict)
    token: str = ""  # a request with it may start pipelines over HTTP
    supervisor: int = 0  # its process id

    def of(self, pipeline: str) -> Order:
        """Return the order for a pipeline. One that a supervisor does not name waits for it; without one, it starts."""
        return self.pipelines.get(pipeline, Order(start=not self.pipelines))


@dataclass(frozen=True)
class ExitReport:
    """How a pipeline ended, or with an empty name the driver itself."""

    pipeline: str
    exit_code: int
    error: str  # a sentence
    causes: str  # the error and all its causes, with their traces
    at: str  # ISO 8601
    epoch: int | None = None
    run: int | None = None
    batch: int | None = None
    commits: int = 0  # of this start
    removed: bool = False  # the file that the driver has read no longer has it


class ChannelFolder:
    """The folder, from either side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._beaten_s = float("-inf")
        self._taken = dict[Path, dict[str, Any]]()  # exit reports that were read, by their files
        self._decided_ns = 0  # when what the supervisor decided was last written

    # --- the driver's side ---------------------------------------------------------------------------------------

    def orders(self) -> StartInstructions:
        """Read what the supervisor ordered."""
        raw = json.loads((self.path / "orders.json").read_text(encoding="utf-8"))
        pipelines = {name: Order(**order) for name, order in raw["pipelines"].items()}
        return StartInstructions(pipelines, raw["token"], raw["supervisor"])

    def begin(self) -> None:
        """Write which process this is, and all stacks when SIGUSR1 asks for them."""
        self.announce(pid=os.getpid())
        faulthandler.register(DUMP_ON, file=(self.path / THREADS).open("w", encoding="utf-8"), all_threads=True)
        self.beat()

    def announce(self, *, pid: int, url: str | None = None, certificate: str = "") -> None:
        """Write where this driver is; `certificate`: path of the one that it serves HTTPS with."""
        self._write("driver.json", {"pid": pid, "url": url, "certificate": certificate})

    def beat(self) -> None:
        """Show that the main thread lives; at most once a second."""
        if time.monotonic() - self._beaten_s >= _BEAT_S:
            self._beaten_s = time.monotonic()
            # A disk that is read-only for a while ends no driver. Of a long while the supervisor hears nothing.
            with suppress(OSError):
                (self.path / "heartbeat").touch()

    def decided(self) -> dict[str, list[dict[str, Any]]]:
        """Return what the supervisor decided of late, by pipeline and newest first; nothing when that is known."""
        try:
            at_ns = (self.path / _DECIDED).stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        if at_ns == self._decided_ns:
            return {}
        self._decided_ns = at_ns
        return self._read(_DECIDED) or {}

    def report(self, view: View | None, error: BaseException | None, removed: bool = False) -> None:
        """Write an exit report: of a pipeline, or of the driver itself (no view). No error: it ended well.

        `removed`: it had to end, since the configuration that was read no longer has it.
        """
        report = ExitReport(
            pipeline="" if view is None else view.pipeline,
            exit_code=exit_code(error),
            error="" if error is None else sentence(error),
            causes=causes(error),
            at=datetime.now(UTC).isoformat(),
            epoch=None if view is None else view.epoch,
            run=None if view is None else view.run,
            batch=None if view is None or view.batch is None else view.batch.number,
            commits=0 if view is None else sum(view.totals.commits.values()),
            removed=removed,
        )
        try:
            self._write(f"words/{report.pipeline}" if report.pipeline else _LAST, asdict(report))
        except OSError as failure:
            # Its exit code says the rest.
            logging.warning("exit_report_not_written", pipeline=report.pipeline, error=str(failure))

    def is_orphaned(self) -> bool:
        """Return whether the supervisor is gone: its lock is free, or its folder is removed.

        A file that is only read can be locked as well: so it works on a disk that is read-only for a while.
        """
        try:
            with (self.path / "supervisor.lock").open() as lock:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    # --- the supervisor's side -----------------------------------------------------------------------------------

    def prepare(self, orders: StartInstructions) -> None:
        """Prepare the folder for a driver's start: remove the files of an earlier one."""
        (self.path / "words").mkdir(exist_ok=True)
        earlier = [self.path / name for name in ("driver.json", "heartbeat", _LAST, THREADS)]
        for path in (*earlier, *(self.path / "words").iterdir()):
            path.unlink(missing_ok=True)
        self._write("orders.json", asdict(orders))

    def decide(self, decisions: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Let the driver's page show what was decided of late, by pipeline and newest first."""
        self._write(_DECIDED, {name: list(some) for name, some in decisions.items()})

    def driver(self) -> tuple[int | None, str | None]:
        """Return the driver's process id and URL, as far as it has written them."""
        document = self._read("driver.json") or {}
        return document.get("pid"), document.get("url")

    def certificate(self) -> str:
        """Path of the driver's HTTPS certificate; empty: it serves HTTP, or has not written it yet."""
        return str((self._read("driver.json") or {}).get("certificate", ""))

    def beaten_at(self) -> float | None:
        """When the main thread was last seen alive, in seconds since 1970; None: never."""
        with suppress(FileNotFoundError):
            return (self.path / "heartbeat").stat().st_mtime
        return None

    def exit_reports(self) -> dict[str, ExitReport]:
        """Take the exit reports that are there, by pipeline; that of the driver itself under an empty name."""
        found = {}
        for path in (self.path / _LAST, *sorted((self.path / "words").glob("[!.]*"))):
            document = self._read(str(path.relative_to(self.path)))
            if document is not None and document != self._taken.get(path):
                found[document["pipeline"]] = ExitReport(**document)
                # One that a read-only disk keeps is known, and not taken a second time.
                self._taken[path] = document
                with suppress(OSError):
                    path.unlink()
        return found

    def threads(self) -> str:
        """Return the stacks that were written last."""
        with suppress(FileNotFoundError):
            return (self.path / THREADS).read_text(encoding="utf-8", errors="replace")
        return ""

    def _write(self, name: str, content: Any) -> None:
        """Write a file whole, readable by its owner only."""
        target = self.path / name
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as out:
            json.dump(content, out, ensure_ascii=False)
        draft.replace(target)

    def _read(self, name: str) -> dict[str, Any] | None:
        with suppress(OSError):
            found: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
            return found
        return None


def folder() -> ChannelFolder | None:
    """Return the supervisor's folder; None: this driver has no supervisor."""
    path = os.environ.get(VARIABLE)
    return ChannelFolder(Path(path)) if path else None
