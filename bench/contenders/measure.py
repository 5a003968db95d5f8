"""Measures a process tree from outside: CPU-seconds and memory, also of processes that have ended.

What an ended process used is found where the kernel puts it: at the one that waited for it.
"""

import resource
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import psutil

from headrace.bench.figures import Usage

_JAVA = "java"
# Linux names threads in 15 letters. What is not here is "other".
_DUTIES = {
    "C1 Compiler": "compile",
    "C2 Compiler": "compile",
    "G1 ": "collect garbage",
    "GC Thread": "collect garbage",
    "VM Thread": "collect garbage",
    "Executor task": "tasks",
    "stdout writer": "feed Python",
    "Writer for": "feed Python",
    "stream execu": "plan batches",
    "dag-sched": "plan batches",
}


class Meter:
    """Reads all processes that descend from this one, but `others`. Orphans count if this one is their subreaper."""

    def __init__(self, others: frozenset[int]) -> None:
        """Begin: nothing has been used yet. `others`: processes that were there before."""
        self._others = others
        self._me = psutil.Process()
        self._began = time.monotonic()
        self._waited_before = _child_seconds()
        self._jvms: dict[tuple[int, float], float] = {}
        self._cpu_s = 0.0
        self.rss_peak_bytes = 0

    def read(self) -> Usage:
        """Sample the tree. Returns what it has used since the beginning, ended processes included."""
        total = _child_seconds() - self._waited_before
        resident = 0
        for process in self._tree():
            with suppress(psutil.NoSuchProcess):
                with process.oneshot():
                    times = process.cpu_times()
                    born = process.create_time()
                    name = process.name()
                    resident += process.memory_info().rss
                own = times.user + times.system
                total += own + times.children_user + times.children_system
                if name == _JAVA:
                    self._jvms[process.pid, born] = own
        self.rss_peak_bytes = max(self.rss_peak_bytes, resident)
        # A sum may lack a process that ended during the sample. The next sum has it, so the greater one counts.
        self._cpu_s = max(self._cpu_s, total)
        jvm = sum(self._jvms.values())
        return Usage(time.monotonic() - self._began, jvm, max(0.0, self._cpu_s - jvm))

    def threads(self) -> dict[str, float]:
        """Return the processor seconds of the JVM's threads that are alive, by what they do."""
        seconds: Counter[str] = Counter()
        for process in self._tree():
            with suppress(psutil.Error, OSError):
                if process.name() == _JAVA:
                    for thread in process.threads():
                        comm = Path(f"/proc/{process.pid}/task/{thread.id}/comm").read_text(encoding="utf-8")
                        seconds[duty(comm)] += thread.user_time + thread.system_time
        return dict(seconds)

    def _tree(self) -> list[psutil.Process]:
        return [process for process in self._me.children(recursive=True) if process.pid not in self._others]


def duty(thread: str) -> str:
    """Say what a thread of a JVM does, by its name."""
    return next((activity for prefix, activity in _DUTIES.items() if thread.startswith(prefix)), "other")


def _child_seconds() -> float:
    """Return the processor seconds of all children that this process has waited for, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
