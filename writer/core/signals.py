"""How a process that only waits is told to stop: SIGTERM and SIGINT set an event. A driver's way is in `job`."""

import signal
import threading
from types import FrameType

from writer.core import logging


def on_signals(stop: threading.Event) -> None:
    """Set the event on SIGTERM and SIGINT, from here on. Call it from the main thread."""

    def asked(number: int, _frame: FrameType | None) -> None:
        logging.event("stop_requested", signal=signal.Signals(number).name)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, asked)
