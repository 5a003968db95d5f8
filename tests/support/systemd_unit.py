"""Does with a unit of the documentation what systemd does: starts, stops, kills and restarts its processes.

Only the settings that decide about ends are known: `systemd.service(5)` and `systemd.kill(5)` describe them.
"""

import os
import re
import shlex
import signal
import subprocess
import time
from collections.abc import Mapping
from configparser import ConfigParser
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

import psutil

from tests.support.process import signal_processes

# systemd gives it to all processes of a start, which inherit it.
_INVOCATION = "INVOCATION_ID"
_SECONDS = {"": 1, "s": 1, "min": 60, "h": 3600}
# Ends that systemd calls clean: systemd.service(5), SuccessExitStatus.
_CLEAN_SIGNALS = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE})


@dataclass(frozen=True)
class Unit:
    """The settings of a unit, with systemd's defaults for those that it lacks."""

    command: tuple[str, ...]
    kill_mode: str
    stop_timeout_s: float
    restart: str
    restart_after_s: float
    restart_prevented: frozenset[int]

    def is_restarted(self, code: int) -> bool:
        """Return whether a main process that has ended by itself is started again; `code` is negative for a signal."""
        if code in self.restart_prevented:
            return False
        is_clean = code == 0 or -code in _CLEAN_SIGNALS
        return self.restart == "always" or (self.restart == "on-failure" and not is_clean)


def read_unit(page: Path) -> Unit:
    """Read the one unit that a page of the documentation shows."""
    (text,) = re.findall(r"```ini\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    parser = ConfigParser(interpolation=None)
    # Names of systemd have capitals.
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(text)
    service = parser["Service"]
    return Unit(
        command=tuple(shlex.split(service["ExecStart"])),
        kill_mode=service.get("KillMode", "control-group"),
        stop_timeout_s=_seconds(service.get("TimeoutStopSec", "90s")),
        restart=service.get("Restart", "no"),
        restart_after_s=_seconds(service.get("RestartSec", "0.1s")),
        restart_prevented=frozenset(int(code) for code in service.get("RestartPreventExitStatus", "").split()),
    )


def _seconds(text: str) -> float:
    match = re.fullmatch(r"([\d.]+)(s|min|h|)", text)
    assert match, f"{text} is no time of systemd"
    return float(match[1]) * _SECONDS[match[2]]


class Service:
    """A unit that was started."""

    def __init__(self, unit: Unit, log: Path, environment: Mapping[str, str]) -> None:
        self.unit = unit
        self.log = log
        self._environment = dict(environment)
        self.starts = 0
        self._start()

    def _start(self) -> None:
        self.invocation = uuid4().hex
        self.starts += 1
        with self.log.open("ab") as out:
            self.main = subprocess.Popen(
                self.unit.command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **self._environment, _INVOCATION: self.invocation},
            )

    def processes(self) -> list[psutil.Process]:
        """Return the processes of this start that run: what systemd has in the unit's control group."""
        return [process for process in psutil.process_iter() if self._has(process)]

    def _has(self, process: psutil.Process) -> bool:
        try:
            is_running = process.status() != psutil.STATUS_ZOMBIE
            return is_running and process.environ().get(_INVOCATION) == self.invocation
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return False

    def stop(self) -> Literal["success", "exit-code", "timeout"]:
        """Stop it as `systemctl stop` does. Returns systemd's word for the result."""
        recipients = [psutil.Process(self.main.pid)]
        if self.unit.kill_mode == "control-group":
            recipients = self.processes()
        signal_processes(recipients, signal.SIGTERM)
        try:
            code = self.main.wait(self.unit.stop_timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return "timeout"
        self._end_rest()
        return "success" if code == 0 or -code in _CLEAN_SIGNALS else "exit-code"

    def attend(self, within_s: float) -> bool:
        """Wait for the main process to end by itself, and start the unit again where it says so. Whether it does."""
        code = self.main.wait(within_s)
        self._end_rest()
        if not self.unit.is_restarted(code):
            return False
        time.sleep(self.unit.restart_after_s)
        self._start()
        return True

    def _end_rest(self) -> None:
        """End what the main process has left: with mixed at once, with control-group when the time is over."""
        if self.unit.kill_mode == "control-group":
            psutil.wait_procs(self.processes(), self.unit.stop_timeout_s)
        self.kill()

    def kill(self) -> None:
        """Send SIGKILL to all of it."""
        while processes := self.processes():
            signal_processes(processes, signal.SIGKILL)
            psutil.wait_procs(processes, 1)
        self.main.wait(60)
