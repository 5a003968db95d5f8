"""A process of headrace's that a test has started: waited for, ended, and nothing that it started may stay."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.errors import HeadraceError
from tests.support import exit_codes


@dataclass
class Process:
    """One that runs, and the file where it says what it does."""

    process: subprocess.Popen[bytes]
    log: Path

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave nothing of it running, however the block ends."""
        if self.process.poll() is None:
            self.kill()

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def until(self, condition: Callable[[], object], seconds: float = 240) -> None:
        """Wait until something is so; fail with its words when it is not, or when it ends."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"it ended with {self.process.returncode}:\n{self.output()}"
            assert time.monotonic() < deadline, f"not within {seconds} s:\n{self.output()}"
            time.sleep(0.05)

    def wait(self, seconds: float) -> int:
        """Wait for the end, and for its JVM's; whatever is left is killed and a failure."""
        family = self.family()
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"it did not end within {seconds} s:\n{self.output()}") from None
        alive = _alive(family)
        for process in alive:
            process.kill()
        assert not alive, f"left running: {alive}\n{self.output()}"
        return code

    def family(self) -> list[psutil.Process]:
        """All that it has started, and what these have."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """kill -9 it, and wait until its JVM has noticed."""
        family = self.family()
        self.process.kill()
        self.process.wait(60)
        signal_processes(_alive(family), signal.SIGKILL)


def signal_processes(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Signal each process that still exists. One that ended since it was listed needs no signal."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _alive(family: list[psutil.Process], within_s: float = 60) -> list[psutil.Process]:
    """Return which processes still run after so long. A zombie does not run."""
    deadline = time.monotonic() + within_s
    while left := [process for process in family if _runs(process)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return left


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def say(*arguments: str, code: int = 0, own_process: bool = False, **environment: str) -> str:
    """Run a verb. Returns what it said; `code`: with which it is to end.

    It runs in this process, which spares its second of imports; with variables of its own, or if it starts Spark or
    pytest (`own_process`), in another one, as a person runs it.
    """
    if not own_process and not environment:
        result = CliRunner().invoke(app, arguments)
        error = result.exception
        exit_code = error.exit_code if isinstance(error, HeadraceError) else result.exit_code
        assert exit_code == code, f"{result.output}\n{error!r}"
        return result.stdout
    process = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, **environment},
    )
    assert process.returncode == code, process.stdout + process.stderr
    exit_codes.check(arguments, code)
    return process.stdout


def run_code_until(code: str, *arguments: str, point: str) -> None:
    """Run Python code that dies at a fault point."""
    root = Path(__file__).parents[2]
    env = {**os.environ, "HEADRACE_FAULT": point, "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=env,
        cwd=root,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
