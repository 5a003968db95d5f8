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

from writer.core import logging
from writer.core.errors import Draining, ExitCode, HeadraceError
from writer.core.text import instant
from writer.storage.base import Store, StoreError

CONTROL = "_headrace/control.json"  # Delta's readers and VACUUM pass over names that begin with an underscore
LOOK_S = 2.0  # between two looks: a resume is noticed within
_CLOSE_WITHIN_S = 5.0


class Paused(HeadraceError):
    """The pipeline is paused, and this run is not to wait for its end."""

    exit_code = ExitCode.LIMIT


@dataclass(frozen=True)
class Pause:
    """A pause: its user, time and reason."""

    at: str  # ISO 8601
    by: str
    reason: str

    @property
    def words(self) -> str:
        """Return it as a phrase."""
        why = f": {self.reason}" if self.reason else ""
        since = self.at
        with suppress(ValueError):  # of one that cannot be read
            since = instant(self.at)
        return f"paused since {since} by {self.by}{why}"


def standing(store: Store) -> Pause | None:
    """Return the pause beside a table; None: there is none. One that cannot be read holds too. Raises StoreError."""
    found = store.read(CONTROL)
    if found is None:
        return None
    try:
        document = json.loads(found.content)["paused"]
        return Pause(str(document["at"]), str(document["by"]), str(document["reason"]))
    except (ValueError, KeyError, TypeError):
        return Pause("a time", "an unknown person", f"{store.path(CONTROL)} is not what this headrace writes")


def pause(store: Store, by: str, reason: str, now: datetime) -> tuple[Pause, bool]:
    """Request a pause. Returns the present pause, and whether it is this one. Raises StoreError."""
    wanted = Pause(now.isoformat(timespec="seconds"), by, reason)
    content = json.dumps({"paused": asdict(wanted)}, ensure_ascii=False) + "\n"
    while not store.put_if_absent(CONTROL, content.encode()):
        if (known := standing(store)) is not None:
            return known, False  # else it was ended meanwhile
    return wanted, True


def resume(store: Store) -> Pause | None:
    """End the pause. Returns the one that stood; None: there was none. Raises StoreError."""
    known = standing(store)
    store.delete(CONTROL)
    return known


class PauseGate:
    """Where a driver is held while its pipeline is paused."""

    def __init__(
        self, store: Store, pipeline: str, listener: Callable[[Pause | None], None],
        also: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        """`store`: of the table. `listener` gets the present pause, or None. `also` looks at what else may change."""
        self._store, self._pipeline, self._listener, self._also = store, pipeline, listener, also
        self._once = False
        self._known: Pause | None = None
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._watch, name=f"pause of {pipeline}", daemon=True)

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

    def close(self) -> None:
        """End the thread. Waits some seconds at most."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN_S)

    def _refuse(self, pause: Pause | None) -> None:
        if pause is not None:
            raise Paused(f"pipeline {self._pipeline!r} is {pause.words}. `headrace resume` ends it.")

    def _watch(self) -> None:
        while not self._closing.wait(LOOK_S):
            self._look_or_keep()
            self._also()

    def _look_or_keep(self) -> Pause | None:
        """Look; a storage that fails leaves it as it was, for a batch will notice."""
        try:
            return self._look()
        except StoreError:
            return self._known

    def _look(self) -> Pause | None:
        with self._lock:
            before, self._known = self._known, standing(self._store)
            now = self._known
            if now != before:
                name = self._pipeline
                if now is None:
                    logging.event("pipeline_resumed", pipeline=name)
                else:
                    logging.event("pipeline_paused", pipeline=name, since=now.at, by=now.by, reason=now.reason)
            self._listener(now)
            return now
