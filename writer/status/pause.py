"""Pauses a pipeline with a small object beside its table. A paused pipeline commits nothing.

It is put where none is, so of two requests the second gets the pause of the first. A driver looks before each batch and
each start, and every other second besides, so that it reports the pause while no records come.
"""

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime

from headrace.writer.core import logging
from headrace.writer.core.errors import Draining, ExitCode, HeadraceError
from headrace.writer.core.periodic_thread import Await, PeriodicThread
from headrace.writer.core.text import instant, iso
from headrace.writer.storage.base import Store, StoreError

# Delta's readers and VACUUM pass over names that begin with an underscore.
CONTROL = "_headrace/control.json"
# Seconds between two looks: a resume is noticed within this time.
LOOK_S = 2.0


class Paused(HeadraceError):
    """The pipeline is paused, and this run is not to wait for its end."""

    exit_code = ExitCode.LIMIT


@dataclass(frozen=True)
class Pause:
    """A pause: its user, time and reason."""

    # As `iso`.
    at: str
    by: str
    reason: str

    @property
    def text(self) -> str:
        """The pause as a phrase: since 2026-11-20 05:00:00 UTC by ada@ops: a migration."""
        reason = f": {self.reason}" if self.reason else ""
        since = self.at
        # A pause that cannot be read has no time.
        with suppress(ValueError):
            since = instant(self.at)
        return f"since {since} by {self.by}{reason}"


def find_pause(store: Store) -> Pause | None:
    """Return the pause beside a table; None: there is none. One that cannot be read counts, too. Raises StoreError."""
    control = store.read(CONTROL)
    if control is None:
        return None
    try:
        document = json.loads(control.content)["paused"]
        return Pause(str(document["at"]), str(document["by"]), str(document["reason"]))
    except (ValueError, KeyError, TypeError):
        return Pause("a time", "an unknown person", f"{store.path(CONTROL)} is not what this headrace writes")


def pause(store: Store, by: str, reason: str, now: datetime) -> tuple[Pause, bool]:
    """Request a pause. Returns the present pause, and whether it is this one. Raises StoreError."""
    requested = Pause(iso(now), by, reason)
    content = json.dumps({"paused": asdict(requested)}, ensure_ascii=False) + "\n"
    while not store.put_if_absent(CONTROL, content.encode()):
        present = find_pause(store)
        if present is not None:
            return present, False
        # It was ended meanwhile: try again.
    return requested, True


def resume(store: Store) -> Pause | None:
    """End the pause. Returns the pause that is over; None: there was none. Raises StoreError."""
    present = find_pause(store)
    store.delete(CONTROL)
    return present


class PauseGate:
    """Where a driver is held while its pipeline is paused."""

    def __init__(
        self,
        store: Store,
        pipeline: str,
        listener: Callable[[Pause | None], None],
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        """`store`: of the table. `listener` gets the present pause, or None. `refresh` is called after each look."""
        self._store = store
        self._pipeline = pipeline
        self._listener = listener
        self._refresh = refresh
        self._once = False
        self._pause: Pause | None = None
        self._lock = threading.Lock()
        self._thread = PeriodicThread(f"pause of {pipeline}", self._run_round)

    def enter(self, *, once: bool) -> None:
        """Begin a start. `once`: nothing waits for the end of a pause. Raises Paused, StoreError."""
        self._once = once
        self._refuse(self._look())

    def hold(self, stopping: threading.Event) -> None:
        """Wait until there is no pause. Raises Draining when a stop is asked for meanwhile, Paused, StoreError."""
        pause = self._look()
        while pause is not None:
            if self._once:
                self._refuse(pause)
            if stopping.wait(LOOK_S):
                raise Draining(f"pipeline {self._pipeline!r} was asked to stop while it was paused")
            pause = self._look_or_keep()

    def watch(self) -> None:
        """Start to look again and again, in a thread."""
        self._thread.start()

    def request_look(self) -> Await:
        """Let the thread look now. Returns what waits for it."""
        return self._thread.request_round()

    def close(self) -> None:
        """End the thread. Nothing waits for a look that is under way, however long the storage takes."""
        self._thread.close(within_s=0)

    def _refuse(self, pause: Pause | None) -> None:
        if pause is not None:
            raise Paused(f"pipeline {self._pipeline!r} is paused {pause.text}. `headrace resume` ends it.")

    def _run_round(self) -> float:
        self._look_or_keep()
        self._refresh()
        return LOOK_S

    def _look_or_keep(self) -> Pause | None:
        """Look; a storage that fails leaves it as it was, for a batch will notice."""
        try:
            return self._look()
        except StoreError:
            return self._pause

    def _look(self) -> Pause | None:
        with self._lock:
            pause = find_pause(self._store)
            if self._thread.is_closing:
                # A later start looks by itself.
                return pause
            if pause != self._pause:
                self._log_change(pause)
            self._pause = pause
            self._listener(pause)
            return pause

    def _log_change(self, pause: Pause | None) -> None:
        if pause is None:
            logging.event("pipeline_resumed", pipeline=self._pipeline)
            return
        logging.event("pipeline_paused", pipeline=self._pipeline, since=pause.at, by=pause.by, reason=pause.reason)
