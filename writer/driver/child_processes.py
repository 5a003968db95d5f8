"""Keeps stop signals with the driver, and from the processes that it starts: its JVM, and the Python workers of tasks.

A signal to all processes of a service is meant for the driver, which ends the others after its batch. systemd sends it
so by default, a shell and a terminal to a process group. PySpark keeps only SIGINT from its JVM
(`pyspark/java_gateway.py`), and its daemon of Python workers ends at SIGTERM (`pyspark/daemon.py`).

The JVM begins with the signals ignored, as a process keeps that when it becomes another program. The daemon sets
handlers of its own, so there the signals are blocked, which workers inherit. The JVM ends the daemon by closing its
stdin as well, and the daemon ends workers by SIGHUP and SIGKILL.

`python -m headrace.writer.driver.child_processes` is the daemon: Spark starts this module.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.writer.driver import worker_overhead

DAEMON_MODULE = "headrace.writer.driver.child_processes"
# A terminal that closes sends SIGHUP to its processes. The driver reads its configuration again then.
_IGNORED_BY_JVM = (signal.SIGTERM, signal.SIGHUP)
_BLOCKED_IN_WORKERS = (signal.SIGTERM, signal.SIGINT)


class _JvmLaunch:
    """Whether this process starts the JVM now."""

    is_running = False


def _ignore_signals() -> None:
    if _JvmLaunch.is_running:
        for number in _IGNORED_BY_JVM:
            signal.signal(number, signal.SIG_IGN)


# PySpark gives the JVM a function of its own to call in the forked child, and then Python calls this one, too.
os.register_at_fork(after_in_child=_ignore_signals)


@contextmanager
def stops_reach_the_driver() -> Iterator[None]:
    """Let a JVM that PySpark starts inside ignore SIGTERM and SIGHUP from its first moment; keep SIGINT's handler."""
    handler = signal.getsignal(signal.SIGINT)
    _JvmLaunch.is_running = True
    try:
        yield
    finally:
        _JvmLaunch.is_running = False
        # A new SparkContext sets one that cancels all jobs. PySpark, and Python, do so in the main thread only.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def run_daemon() -> None:
    """Fork Python workers for Spark until it closes stdin. The arguments are those of PySpark's daemon."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_IN_WORKERS)
    # It reads sys.argv when it is imported.
    from pyspark import daemon

    worker_overhead.reduce_overhead()
    daemon.manager()


if __name__ == "__main__":
    run_daemon()
