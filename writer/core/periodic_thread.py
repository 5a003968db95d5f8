"""Runs rounds on a thread of its own: at an interval, and when something wakes it."""

import threading
from collections.abc import Callable

# Runs one round. Returns the seconds until the next one. It must not raise: nobody would run it again.
Round = Callable[[], float]
# Waits so many seconds at most. Returns whether it happened in time.
Await = Callable[[float], bool]


def do_nothing() -> None:
    """Do nothing."""


def _end_rounds() -> float:
    """Stand for the round of a thread that has ended."""
    return 0.0


class PeriodicThread:
    """A daemon thread, which never holds the process. The first round begins at once."""

    def __init__(self, name: str, run_round: Round, finish: Callable[[], None] = do_nothing) -> None:
        """`finish` runs once, on the thread, after the last round."""
        self._run_round = run_round
        self._finish = finish
        self._wake = threading.Event()
        self._closing = threading.Event()
        # Of the three below.
        self._changed = threading.Condition()
        self._rounds_begun = 0
        self._rounds_over = 0
        self._has_ended = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin. Call it once."""
        self._thread.start()

    @property
    def has_started(self) -> bool:
        """Whether it was started."""
        return self._thread.ident is not None

    @property
    def is_closing(self) -> bool:
        """Whether it was asked to end: nobody wants what the round that runs will bring."""
        return self._closing.is_set()

    def wake(self) -> None:
        """Let the next round begin now, or after the round that runs. Returns at once."""
        self._wake.set()

    def request_round(self) -> Await:
        """Wake it. Returns what waits until a round is over that began after this call; False: the thread ended."""
        with self._changed:
            number = self._rounds_begun + 1
        self.wake()

        def await_round(within_s: float) -> bool:
            with self._changed:
                self._changed.wait_for(lambda: self._rounds_over >= number or self._has_ended, max(0.0, within_s))
                return self._rounds_over >= number

        return await_round

    def close(self, within_s: float) -> bool:
        """Ask it to end after the round that runs, and wait for that so many seconds at most; 0: not at all.

        Returns whether it has ended, or was never started. Of a round that hangs the process does not wait.
        """
        self._closing.set()
        self._wake.set()
        if within_s > 0 and self._thread.is_alive():
            self._thread.join(within_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                with self._changed:
                    self._rounds_begun += 1
                seconds = self._run_round()
                with self._changed:
                    self._rounds_over += 1
                    self._changed.notify_all()
                self._wake.wait(seconds)
                self._wake.clear()
            self._finish()
        finally:
            # Listeners may wake it long after its end: what its rounds needed does not live for that.
            self._run_round = _end_rounds
            self._finish = do_nothing
            with self._changed:
                self._has_ended = True
                self._changed.notify_all()
