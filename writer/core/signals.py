"""Sets events when the process gets SIGTERM or SIGINT, or another one at SIGHUP; tells which process it is."""

import os
import signal
import socket
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, NewType

# How a process ends by a signal, as a shell says it: 128 and the number of the signal.
SignalCode = NewType("SignalCode", int)

# A service manager, a supervisor and a shell may each pass the same stop on. What comes later is another request.
_SAME_STOP_S = 3.0


@dataclass(frozen=True)
class StopEvents:
    """What signals ask for. `stop`: finish what is under way, and end. `hurry`: end sooner, by a second signal."""

    stop: threading.Event = field(default_factory=threading.Event)
    hurry: threading.Event = field(default_factory=threading.Event)


def on_signals(events: StopEvents) -> dict[int, Any]:
    """Set the events on SIGTERM and SIGINT, from here on. Call it from the main thread. Returns earlier handlers."""
    # The import is late, so that `headrace --help`, which imports this module, starts without structlog.
    from headrace.writer.core import logging

    asked_s: float | None = None

    def set_event(event: threading.Event, log_event: str, number: int) -> None:
        logging.event(log_event, signal=signal.Signals(number).name)
        event.set()

    def request_stop(number: int, _frame: FrameType | None) -> None:
        nonlocal asked_s
        now_s = time.monotonic()
        if asked_s is None and not events.stop.is_set():
            asked_s = now_s
            _run_aside(set_event, events.stop, "stop_requested", number)
        elif now_s - (asked_s or 0.0) >= _SAME_STOP_S and not events.hurry.is_set():
            _run_aside(set_event, events.hurry, "stop_hurried", number)

    return {number: signal.signal(number, request_stop) for number in (signal.SIGTERM, signal.SIGINT)}


def _run_aside(function: Callable[..., None], *arguments: Any) -> None:
    """Run a function in a thread of its own. For handlers of signals.

    A handler runs on the main thread, between two of its instructions. There it would wait for ever for a lock that the
    main thread holds just then: of the event on which it is about to wait, or of the log.
    """
    # Once the interpreter ends, it starts no thread; then nobody looks at an event either.
    with suppress(RuntimeError):
        start_new_thread(function, arguments)


def end_as_process_1() -> None:
    """Let SIGTERM end this process where it is process 1 of a container, until another handler is set.

    To process 1 the kernel delivers no signal that it has no handler for: `pid_namespaces(7)`.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def on_hangup(reload: threading.Event) -> None:
    """Set the event on SIGHUP, from here on. Call it from the main thread."""
    signal.signal(signal.SIGHUP, lambda *_: _run_aside(reload.set))


@contextmanager
def stop_on_signals(events: StopEvents) -> Iterator[None]:
    """Set the events on SIGTERM and SIGINT while inside."""
    earlier = on_signals(events)
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
