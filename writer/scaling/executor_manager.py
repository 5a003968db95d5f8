"""Keeps the requested number of executors: the thread that asks Spark, and the state for `/scale` and `/status`.

Who wants is outside, and may die at any moment: what was wanted last is kept beside the pipelines' runs, asked for
again every few seconds, and once more by the next start of the driver.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from writer.config.connections import Autoscaler
from writer.core import logging
from writer.scaling.scale_steps import Executor, ExecutorTarget, staying, steps
from writer.storage.base import Store

LOOK_S = 1.0
KEPT = "executors.json"
_GC_OVER_S = 60.0  # garbage collection is a share of the tasks' time of so long
_BUSY_MIN_S = 5.0  # of it: less says nothing
_CLOSE_WITHIN_S = 5.0
_DECISIONS_KEPT = 20
_WORD_MAX, _WORDS_MAX, _DIGITS_MAX = 20, 500, 9  # characters
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
Answer = tuple[HTTPStatus, str, bytes]


class Executors(Protocol):
    """What a cluster is asked."""

    def there(self) -> Sequence[Executor]:
        """Executors that are registered, those that drain too."""

    def ask(self, total: int) -> bool:
        """Ask for so many in all; False where the cluster cannot."""

    def drain(self, executor: str) -> bool:
        """Let one finish its tasks and go."""


@dataclass
class _ExecutorState:
    """The executors at the last checks."""

    at_s: float | None = None
    executors: tuple[Executor, ...] = ()
    short_since_s: float | None = None  # since when fewer are there than wanted, and none came
    failed_tasks: int = 0  # of all executors there were
    lost: int = 0  # executors that went unasked
    gone: int = 0  # that were decommissioned
    gc_share: float | None = None


class ExecutorManager:
    """Manages the executors of one driver. A refusal has the reason why they cannot be scaled."""

    def __init__(
        self, master: str, section: Autoscaler, *, refusal: str | None, cpus_per_task: int,
        stores: Callable[[], Sequence[Store]], boundary: Callable[[], bool],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`stores`: beside the runs of each pipeline that is there now. `boundary`: whether no batch has tasks."""
        self._master, self._section, self._refusal, self._cpus = master, section, refusal, cpus_per_task
        self._stores, self._boundary, self._seconds = stores, boundary, seconds
        self._cluster: Executors | None = None
        self._lock = threading.Lock()
        self._wake, self._closing = threading.Event(), threading.Event()
        self._wanted: ExecutorTarget | None = None
        self._asked_s: float | None = None  # of the last request
        self._decisions: deque[dict[str, Any]] = deque(maxlen=_DECISIONS_KEPT)  # of the autoscaler, newest first
        self._draining: dict[str, float] = {}
        self._failed_by: dict[str, int] = {}
        self._gc_from: tuple[float, dict[str, Executor]] = (seconds(), {})
        self._seen, self._trouble = _ExecutorState(), ""
        self._thread = threading.Thread(target=self._run, name="executors", daemon=True)

    def begin(self, cluster: Callable[[], Executors]) -> None:
        """Spark is there: want again what was wanted last, and go on in a thread."""
        if self._refusal is not None:
            return
        self._cluster = cluster()
        if (kept := self._kept()) is not None:
            logging.event("executors_requested", executors=kept, reason="a driver before this one had this request")
            bounded = min(max(kept, self._section.executors_min), self._section.executors_max)
            self._wanted = ExecutorTarget(bounded, self._seconds())
        self._thread.start()

    def close(self) -> None:
        """End the thread. Waits some seconds at most."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(_CLOSE_WITHIN_S)

    def want(self, executors: int, verdict: str = "", why: str = "", right: int | None = None) -> None:
        """Want so many from now on, and ask for them at once. The rest is for people.

        `right`: how many there should be, where something forbids or delays to ask for them.
        """
        with self._lock:
            known, now_s = self._wanted, self._seconds()
            changed = known is None or known.executors != executors
            self._wanted = ExecutorTarget(executors, now_s if known is None or changed else known.since_s)
            self._asked_s = now_s
            before = None if known is None else known.executors
            document = {"decision": verdict, "reason": why, "from": before, "to": executors, "recommended": right}
            last = self._decisions[0] if self._decisions else None
            if changed or last is None or last["decision"] != verdict:
                self._decisions.appendleft({"at": datetime.now(UTC).isoformat(), **document})
            else:  # the same verdict, and perhaps for another reason by now
                self._decisions[0] = {**last, "reason": why, "recommended": right}
        if changed:
            logging.event("executors_requested", executors=executors, before=before, reason=why or "requested")
            self._keep(executors)
        self._wake.set()

    def look(self) -> None:
        """Check the executors, and take the next step."""
        assert self._cluster is not None, "Spark is there"
        found, now_s = list(self._cluster.there()), self._seconds()
        self._note(found, now_s)
        with self._lock:
            wanted = self._wanted
        if wanted is None:
            return
        plan = steps(wanted, found, self._draining, now_s, boundary=self._boundary())
        if plan.total is not None:
            self._cluster.ask(plan.total)
            with self._lock:
                if self._wanted == wanted:
                    self._wanted = ExecutorTarget(wanted.executors, wanted.since_s, now_s)
        for one in plan.drain:
            accepted = self._cluster.drain(one)
            logging.event(
                "executor_decommission_requested",
                executor=one,
                wanted=wanted.executors,
                there=len(found),
                heard=accepted,
            )
            if accepted:
                with self._lock:
                    self._draining[one] = now_s

    def to_dict(self) -> dict[str, Any]:
        """Describe everything as JSON values, for `/status`."""
        with self._lock:
            seen, wanted, draining, now_s = self._seen, self._wanted, dict(self._draining), self._seconds()
            decisions, asked_s = list(self._decisions), self._asked_s
        stays = staying(seen.executors, draining)
        return {
            "master": self._master,
            "refused": self._refusal,
            "age_seconds": None if seen.at_s is None else round(now_s - seen.at_s, 3),
            "requested": None if wanted is None else wanted.executors,
            "asked_seconds": None if asked_s is None else round(now_s - asked_s, 3),
            "registered": len(stays),
            "draining": [{"id": one, "seconds": round(now_s - since, 3)} for one, since in sorted(draining.items())],
            "cores": max((one.cores for one in seen.executors), default=None),
            "cpus_per_task": self._cpus,
            "short_seconds": None if seen.short_since_s is None else round(now_s - seen.short_since_s, 3),
            "gc_share": seen.gc_share,
            "failed_tasks": seen.failed_tasks,
            "lost": seen.lost,
            "gone": seen.gone,
            "decisions": decisions,
        }

    def post(self, path: str, authorization: str) -> Answer | None:
        """Answer `POST /scale?executors=N` with the right token; None for other paths.

        `&decision=up&reason=…&recommended=M` may say why, and how many would be right, for people.
        """
        url = urlsplit(path)
        if url.path != "/scale":
            return None
        if not self._section.opens(authorization.encode()):
            missing = "; none is set" if self._section.token is None else ""
            return HTTPStatus.FORBIDDEN, _TEXT, f"this needs the token of autoscaler.token{missing}\n".encode()
        if self._refusal is not None:
            return HTTPStatus.CONFLICT, _TEXT, f"{self._refusal}\n".encode()
        given = {name: values[-1] for name, values in parse_qs(url.query).items()}
        text = given.get("executors", "")
        least, most = self._section.executors_min, self._section.executors_max
        if not _is_number(text) or not least <= int(text) <= most:
            document = f"executors={text!r} is no number from executors_min {least} to executors_max {most}\n"
            return HTTPStatus.BAD_REQUEST, _TEXT, document.encode()
        if self._cluster is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"Spark is starting; ask again\n"
        right = given.get("recommended", "")
        self.want(
            int(text), given.get("decision", "")[:_WORD_MAX], given.get("reason", "")[:_WORDS_MAX],
            int(right) if _is_number(right) else None,
        )  # fmt: skip
        return HTTPStatus.ACCEPTED, _JSON, (json.dumps(self.to_dict()) + "\n").encode()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self.look()
                self._trouble = ""
            except Exception as error:  # noqa: BLE001 - Spark is busy or gone; batches must not notice
                if str(error) != self._trouble and not self._closing.is_set():
                    logging.warning("executor_status_failed", error=" ".join(str(error).split())[:300])
                self._trouble = str(error)
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _note(self, found: Sequence[Executor], now_s: float) -> None:
        ids = {one.id for one in found}
        self._failed_by |= {one.id: max(one.failed_tasks, self._failed_by.get(one.id, 0)) for one in found}
        with self._lock:
            before = self._seen
            left = [one.id for one in before.executors if one.id not in ids]
            drained = {one: now_s - self._draining.pop(one) for one in left if one in self._draining}
            lost = [one for one in left if one not in drained]
            came = ids - {one.id for one in before.executors}
            short = self._wanted is not None and len(staying(found, self._draining)) < self._wanted.executors
            since = before.short_since_s if before.short_since_s is not None and not came else now_s
            self._seen = _ExecutorState(
                now_s, tuple(found), since if short else None, sum(self._failed_by.values()),
                before.lost + len(lost), before.gone + len(drained), self._gc_share(found, now_s),
            )  # fmt: skip
        for one in sorted(came):
            logging.event("executor_added", executor=one, there=len(found))
        for one, seconds in drained.items():
            logging.event("executor_removed", executor=one, seconds=round(seconds, 1), there=len(found))
        for one in lost:
            logging.warning("executor_lost", executor=one, there=len(found))

    def _gc_share(self, found: Sequence[Executor], now_s: float) -> float | None:
        began_s, before = self._gc_from
        if now_s - began_s < _GC_OVER_S:
            return self._seen.gc_share
        self._gc_from = now_s, {one.id: one for one in found}
        pairs = [(one, before[one.id]) for one in found if one.id in before]
        shares = [(a.gc_s - b.gc_s) / (a.task_s - b.task_s) for a, b in pairs if a.task_s - b.task_s >= _BUSY_MIN_S]
        return round(max(shares), 4) if shares else None

    def _keep(self, executors: int) -> None:
        content = (json.dumps({"wanted": executors}) + "\n").encode()
        for store in self._stores():
            try:
                store.put(KEPT, content)
            except OSError as error:  # the next start uses Spark's default until the next request
                logging.warning("executor_state_not_saved", location=store.location, error=str(error))

    def _kept(self) -> int | None:
        found: list[int] = []
        for store in self._stores():
            with suppress(OSError, ValueError, KeyError, TypeError):
                if (kept := store.read(KEPT)) is not None:
                    found.append(int(json.loads(kept.content)["wanted"]))
        return max(found, default=None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX
