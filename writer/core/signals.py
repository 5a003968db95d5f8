"""Sets an event when the process gets SIGTERM or SIGINT."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from writer.core import logging


def on_signals(stop: threading.Event) -> dict[int, Any]:
    """Set the event on SIGTERM and SIGINT, from here on. Call it from the main thread. Returns the earlier handlers."""

    def asked(number: int, _frame: FrameType | None) -> None:
        logging.event("stop_requested", signal=signal.Signals(number).name)
        stop.set()

    return {number: signal.signal(number, asked) for number in (signal.SIGTERM, signal.SIGINT)}


@contextmanager
def stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Set the event on SIGTERM and SIGINT while inside."""
    earlier = on_signals(stop)
    try:
        yield
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
