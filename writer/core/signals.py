"""Sets an event when the process gets SIGTERM or SIGINT, or another one at SIGHUP; tells which process it is."""

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

from writer.core import logging


def on_signals(stop: threading.Event) -> dict[int, Any]:
    """Set the event on SIGTERM and SIGINT, from here on. Call it from the main thread. Returns the earlier handlers."""

    def request_stop(number: int, _frame: FrameType | None) -> None:
        logging.event("stop_requested", signal=signal.Signals(number).name)
        stop.set()

    return {number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)}


def on_hangup(reload: threading.Event) -> None:
    """Set the event on SIGHUP, from here on. Call it from the main thread."""
    signal.signal(signal.SIGHUP, lambda *_: reload.set())


@contextmanager
def stop_on_signals(stop: threading.Event) -> Iterator[None]:
    """Set the event on SIGTERM and SIGINT while inside."""
    earlier = on_signals(stop)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def describe_process(pid: int) -> dict[str, str | int | None]:
    """Describe a process, so that another one can make sure that it means the same: host, id, and when it started.

    `started` is in ticks since the machine's boot, as Linux counts them; None where that is not known.
    """
    return {"host": socket.gethostname(), "pid": pid, "started": _start_ticks(pid)}


def _start_ticks(pid: int) -> int | None:
    with suppress(OSError, ValueError, IndexError):
        # proc(5): the start is the 22nd field. The 2nd, a name in brackets, may hold blanks and brackets itself.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return int(fields[19])
    return None
