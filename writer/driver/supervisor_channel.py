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
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headrace.writer.core import logging
from headrace.writer.core.errors import exit_code
from headrace.writer.driver.restart_policy import causes, sentence
from headrace.writer.status.model import View

VARIABLE = "HEADRACE_SUPERVISED"
DUMP_ON = signal.SIGUSR1
THREADS = "threads.txt"
_HEARTBEAT_INTERVAL_S = 1.0
_DRIVER_REPORT = "last.json"
_DECISIONS = "decided.json"


@dataclass(frozen=True)
class Order:
    """How a pipeline is to be started.

    `start`: False leaves it alone until it is asked for. `lease`: epoch of the lease that the supervisor holds.
    """

    start: bool = True
    new_run: bool = False
    lease: int | None = None


@dataclass(frozen=True)
class StartInstructions:
    """The supervisor's instructions for a driver's start.

    `token`: a request with it may start pipelines over HTTP. `supervisor`: its process id.
    """

    pipelines: Mapping[str, Order] = field(default_factory=dict)
    token: str = ""
    supervisor: int = 0

    def of(self, pipeline: str) -> Order:
        """Return the order for a pipeline. One that a supervisor does not name waits for it; without one, it starts."""
        return self.pipelines.get(pipeline, Order(start=not self.pipelines))


@dataclass(frozen=True)
class ExitReport:
    """How a pipeline ended, or with an empty name the driver itself.

    `error`: a sentence. `causes`: the error and all its causes, with their traces. `at`: ISO 8601. `commits`: of this
    start. `removed`: the file that the driver has read no longer has it.
    """

    pipeline: str
    exit_code: int
    error: str
    causes: str
    at: str
    epoch: int | None = None
    run: int | None = None
    batch: int | None = None
    commits: int = 0
    removed: bool = False


class ChannelFolder:
    """The folder, from either side."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._last_beat_s = float("-inf")
        # Exit reports that were read, by their files.
        self._reports = dict[Path, dict[str, Any]]()
        # When the decisions that were read last had been written.
        self._decisions_ns = 0

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
        if time.monotonic() - self._last_beat_s >= _HEARTBEAT_INTERVAL_S:
            self._last_beat_s = time.monotonic()
            # A disk that is read-only for a while ends no driver. Of a long while the supervisor hears nothing.
            with suppress(OSError):
                (self.path / "heartbeat").touch()

    def new_decisions(self) -> dict[str, list[dict[str, Any]]]:
        """Return what the supervisor decided of late, by pipeline and newest first; nothing when that is known."""
        try:
            written_ns = (self.path / _DECISIONS).stat().st_mtime_ns
        except FileNotFoundError:
            return {}
        if written_ns == self._decisions_ns:
            return {}
        self._decisions_ns = written_ns
        return self._read(_DECISIONS) or {}

    def report(self, view: View | None, error: BaseException | None, removed: bool = False) -> None:
        """Write an exit report: of a pipeline, or of the driver itself (no view). No error: it ended well.

        `removed`: it had to end, since the configuration that was read no longer has it.
        """
        report = ExitReport(
            pipeline="",
            exit_code=exit_code(error),
            error="" if error is None else sentence(error),
            causes=causes(error),
            at=datetime.now(UTC).isoformat(),
            removed=removed,
        )
        if view is not None:
            report = replace(
                report,
                pipeline=view.pipeline,
                epoch=view.epoch,
                run=view.run,
                batch=None if view.batch is None else view.batch.number,
                commits=sum(view.totals.commits.values()),
            )
        try:
            self._write(f"words/{report.pipeline}" if report.pipeline else _DRIVER_REPORT, asdict(report))
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
        earlier = [self.path / name for name in ("driver.json", "heartbeat", _DRIVER_REPORT, THREADS)]
        for path in (*earlier, *(self.path / "words").iterdir()):
            path.unlink(missing_ok=True)
        self._write("orders.json", asdict(orders))

    def decide(self, decisions: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """Let the driver's page show what was decided of late, by pipeline and newest first."""
        self._write(_DECISIONS, {name: list(newest) for name, newest in decisions.items()})

    def driver(self) -> tuple[int | None, str | None]:
        """Return the driver's process id and URL, as far as it has written them."""
        document = self._read("driver.json") or {}
        return document.get("pid"), document.get("url")

    def certificate(self) -> str:
        """Path of the driver's HTTPS certificate; empty: it serves HTTP, or has not written it yet."""
        return str((self._read("driver.json") or {}).get("certificate", ""))

    def last_beat_at(self) -> float | None:
        """When the main thread was last seen alive, in seconds since 1970; None: never."""
        with suppress(FileNotFoundError):
            return (self.path / "heartbeat").stat().st_mtime
        return None

    def exit_reports(self) -> dict[str, ExitReport]:
        """Take the exit reports that are there, by pipeline; that of the driver itself under an empty name."""
        reports = {}
        for path in (self.path / _DRIVER_REPORT, *sorted((self.path / "words").glob("[!.]*"))):
            document = self._read(str(path.relative_to(self.path)))
            if document is not None and document != self._reports.get(path):
                reports[document["pipeline"]] = ExitReport(**document)
                # One that a read-only disk keeps is known, and not taken a second time.
                self._reports[path] = document
                with suppress(OSError):
                    path.unlink()
        return reports

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
            document: dict[str, Any] = json.loads((self.path / name).read_text(encoding="utf-8"))
            return document
        return None


def folder() -> ChannelFolder | None:
    """Return the supervisor's folder; None: this driver has no supervisor."""
    path = os.environ.get(VARIABLE)
    return ChannelFolder(Path(path)) if path else None
