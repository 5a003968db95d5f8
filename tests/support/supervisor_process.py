"""Running the real supervisor as a user does: `headrace supervisor run`, the parent of a real driver."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.request import urlopen

import psutil

from tests.fault import outcomes
from tests.support.process import Process, signal_processes
from tests.support.writer_process import Site


class Supervised(Process):
    """A supervisor that runs, and what it says."""

    def drivers(self) -> list[int]:
        """Process ids of all drivers so far."""
        return [int(pid) for pid in re.findall(r"driver_started pid=(\d+)", self.output())]

    def times(self, text: str) -> int:
        return self.output().count(text)

    def wait_for_commits(self, more_than: int = 0) -> None:
        self.until(lambda: self.times("batch_committed") > more_than)

    def recoveries(self) -> list[tuple[str, float]]:
        """Level and seconds of each recovery so far."""
        matches = re.findall(r"pipeline_recovered \S+ recovery_level=(\S+) seconds=(\S+)", self.output())
        return [(level, float(seconds)) for level, seconds in matches]

    def check_recovery(self, level: str, after: str, aim_s: float) -> None:
        """Note how long the last recovery took, from where the failure was found to the first new commit."""
        last, seconds = self.recoveries()[-1]
        assert last == level, self.output()
        record_recovery(level, after, seconds, aim_s)

    def ask(self, path: str) -> Any:
        """Ask it over HTTP."""
        url = re.findall(r"supervisor_listening url=(\S+)", self.output())[-1]
        with urlopen(url + path, timeout=60) as answer:
            text = answer.read().decode()
        return json.loads(text) if path == "/status" else text

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait(120)

    def signal_all(self, number: signal.Signals) -> None:
        """Signal the supervisor and all that it started, as a machine that is paused."""
        signal_processes([psutil.Process(self.process.pid), *self.family()], number)

    def kill(self) -> None:
        """End it, whatever it does."""
        family = self.family()
        self.process.kill()
        self.process.wait(60)
        signal_processes(family, signal.SIGKILL)
        psutil.wait_procs(family, timeout=60)


def record_recovery(level: str, after: str, seconds: float, aim_s: float) -> None:
    """Note the seconds of a recovery. The aim is for a machine of its own; the limit here, for one that is shared."""
    print(f"\n{level}, {after}: {seconds:.1f} s to the first new commit (aim: {aim_s:.0f} s)")
    outcomes.put("levels", f"{level}: {after}", {"seconds": round(seconds, 1), "aim_seconds": aim_s})
    assert seconds < 6 * aim_s


def supervise(site: Site, *flags: str, env: Mapping[str, str] | None = None, under: Sequence[str] = ()) -> Supervised:
    """Start a supervisor for all pipelines of a site. `under`: a command that becomes it."""
    log = site.root / f"supervisor-{len(list(site.root.glob('supervisor-*.log')))}.log"
    site.overrides.setdefault("supervisor", {"port": 0, "lease_expiry": "6 s"})
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*under, sys.executable, "-m", "headrace.writer.cli", "supervisor", "run", str(site.config), *flags],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
    return Supervised(process, log)


def explain(site: Site, code: int = 0) -> dict[str, Any]:
    """What `headrace supervisor explain --json` says, by the names of pipelines."""
    process = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "supervisor", "explain", str(site.config), "--json"],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert process.returncode == code, process.stdout + process.stderr
    pipelines: dict[str, Any] = json.loads(process.stdout)["pipelines"]
    return pipelines
