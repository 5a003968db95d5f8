"""Keeps the requested number of executors: the thread that asks Spark, and the state for `/scale` and `/status`.

The autoscaler requests from outside, and may die at any moment. Its last request is stored beside the pipelines' runs,
repeated every few seconds, and taken up by the next start of the driver.
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

from headrace.writer.config.sections.connections import Autoscaler
from headrace.writer.core import logging
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.scaling.scale_steps import Executor, ExecutorTarget, remaining_executors, steps
from headrace.writer.storage.base import Store

LOOK_S = 1.0
REQUEST_FILE = "executors.json"
# Garbage collection is a share of the tasks' time in such a window.
_GC_OVER_S = 60.0
# A share of less task time says nothing.
_BUSY_MIN_S = 5.0
_CLOSE_WITHIN_S = 5.0
_DECISIONS_KEPT = 20
_WORD_MAX = 20
_WORDS_MAX = 500
_DIGITS_MAX = 9
_TEXT = "text/plain; charset=utf-8"
_JSON = "application/json"
Answer = tuple[HTTPStatus, str, bytes]


class Executors(Protocol):
    """What a cluster is asked."""

    def list_executors(self) -> Sequence[Executor]:
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
    # Since when fewer executors are registered than requested, and none came.
    short_since_s: float | None = None
    # Of all executors that there were.
    failed_tasks: int = 0
    # Executors that went without a request.
    lost: int = 0
    # Executors that were decommissioned.
    gone: int = 0
    gc_share: float | None = None


class ExecutorManager:
    """Manages the executors of one driver. A refusal has the reason why they cannot be scaled."""

    def __init__(
        self,
        master: str,
        section: Autoscaler,
        *,
        refusal: str | None,
        cpus_per_task: int,
        stores: Callable[[], Sequence[Store]],
        boundary: Callable[[], bool],
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`stores`: beside the runs of each pipeline that is there now. `boundary`: whether no batch has tasks."""
        self._master = master
        self._section = section
        self._refusal = refusal
        self._cpus = cpus_per_task
        self._stores = stores
        self._boundary = boundary
        self._seconds = seconds
        self._cluster: Executors | None = None
        self._lock = threading.Lock()
        self._target: ExecutorTarget | None = None
        # The time of the last request.
        self._request_s: float | None = None
        # Decisions of the autoscaler, the newest first.
        self._decisions: deque[dict[str, Any]] = deque(maxlen=_DECISIONS_KEPT)
        self._draining: dict[str, float] = {}
        self._failed_by: dict[str, int] = {}
        self._gc_from: tuple[float, dict[str, Executor]] = (seconds(), {})
        self._state = _ExecutorState()
        self._last_error = ""
        self._thread = PeriodicThread("executors", self._run_round)

    def begin(self, cluster: Callable[[], Executors]) -> None:
        """Start the thread, with the last request that was stored. Call it when Spark has started."""
        if self._refusal is not None:
            return
        self._cluster = cluster()
        if (stored := self._stored_request()) is not None:
            logging.event("executors_requested", executors=stored, reason="a driver before this one had this request")
            bounded = min(max(stored, self._section.min_executors), self._section.max_executors)
            self._target = ExecutorTarget(bounded, self._seconds())
        self._thread.start()

    def close(self) -> None:
        """End the thread after the step that runs, which is waited for five seconds at most."""
        self._thread.close(_CLOSE_WITHIN_S)

    def want(self, executors: int, verdict: str = "", why: str = "", recommended: int | None = None) -> None:
        """Keep so many executors from now on. `verdict` and `why` are for people.

        `recommended`: how many there should be, if something forbids or delays to request them.
        """
        with self._lock:
            target = self._target
            now_s = self._seconds()
            changed = target is None or target.executors != executors
            since_s = now_s if target is None or changed else target.since_s
            self._target = ExecutorTarget(executors, since_s)
            self._request_s = now_s
            executors_before = None if target is None else target.executors
            if changed or not self._decisions or self._decisions[0]["decision"] != verdict:
                decision = {
                    "at": datetime.now(UTC).isoformat(),
                    "decision": verdict,
                    "reason": why,
                    "from": executors_before,
                    "to": executors,
                    "recommended": recommended,
                }
                self._decisions.appendleft(decision)
            else:
                # The decision is the same; its reason may have changed.
                self._decisions[0] = {**self._decisions[0], "reason": why, "recommended": recommended}
        if changed:
            logging.event(
                "executors_requested", executors=executors, before=executors_before, reason=why or "requested"
            )
            self._store_request(executors)
        self._thread.wake()

    def run_step(self) -> None:
        """Check the executors, and take the next step."""
        assert self._cluster is not None, "Spark is there"
        executors = list(self._cluster.list_executors())
        now_s = self._seconds()
        self._update_state(executors, now_s)
        with self._lock:
            target = self._target
        if target is None:
            return
        plan = steps(target, executors, self._draining, now_s, boundary=self._boundary())
        if plan.total is not None:
            self._cluster.ask(plan.total)
            with self._lock:
                if self._target == target:
                    self._target = ExecutorTarget(target.executors, target.since_s, now_s)
        for executor in plan.drain:
            accepted = self._cluster.drain(executor)
            logging.event(
                "executor_decommission_requested",
                executor=executor,
                wanted=target.executors,
                there=len(executors),
                heard=accepted,
            )
            if accepted:
                with self._lock:
                    self._draining[executor] = now_s

    def to_dict(self) -> dict[str, Any]:
        """Describe everything as JSON values, for `/status`."""
        with self._lock:
            state = self._state
            target = self._target
            draining = dict(self._draining)
            now_s = self._seconds()
            decisions = list(self._decisions)
            asked_s = self._request_s
        remaining = remaining_executors(state.executors, draining)
        return {
            "master": self._master,
            "refused": self._refusal,
            "age_seconds": _seconds_since(state.at_s, now_s),
            "requested": None if target is None else target.executors,
            "asked_seconds": _seconds_since(asked_s, now_s),
            "registered": len(remaining),
            "draining": [
                {"id": executor, "seconds": round(now_s - since, 3)} for executor, since in sorted(draining.items())
            ],
            "cores": max((executor.cores for executor in state.executors), default=None),
            "cpus_per_task": self._cpus,
            "short_seconds": _seconds_since(state.short_since_s, now_s),
            "gc_share": state.gc_share,
            "failed_tasks": state.failed_tasks,
            "lost": state.lost,
            "gone": state.gone,
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
        parameters = {name: values[-1] for name, values in parse_qs(url.query).items()}
        text = parameters.get("executors", "")
        min_executors = self._section.min_executors
        max_executors = self._section.max_executors
        if not _is_number(text) or not min_executors <= int(text) <= max_executors:
            bounds = f"from min_executors {min_executors} to max_executors {max_executors}"
            return HTTPStatus.BAD_REQUEST, _TEXT, f"executors={text!r} is no number {bounds}\n".encode()
        if self._cluster is None:
            return HTTPStatus.SERVICE_UNAVAILABLE, _TEXT, b"Spark is starting; ask again\n"
        recommended = parameters.get("recommended", "")
        self.want(
            int(text),
            parameters.get("decision", "")[:_WORD_MAX],
            parameters.get("reason", "")[:_WORDS_MAX],
            int(recommended) if _is_number(recommended) else None,
        )
        return HTTPStatus.ACCEPTED, _JSON, (json.dumps(self.to_dict()) + "\n").encode()

    def _run_round(self) -> float:
        try:
            self.run_step()
            self._last_error = ""
        except Exception as error:  # noqa: BLE001 - Spark is busy or gone; batches must not notice
            if str(error) != self._last_error and not self._thread.is_closing:
                logging.warning("executor_status_failed", error=" ".join(str(error).split())[:300])
            self._last_error = str(error)
        return LOOK_S

    def _update_state(self, executors: Sequence[Executor], now_s: float) -> None:
        ids = {executor.id for executor in executors}
        for executor in executors:
            self._failed_by[executor.id] = max(executor.failed_tasks, self._failed_by.get(executor.id, 0))
        with self._lock:
            previous = self._state
            missing = [executor.id for executor in previous.executors if executor.id not in ids]
            drained = [executor_id for executor_id in missing if executor_id in self._draining]
            seconds_draining = {executor_id: now_s - self._draining.pop(executor_id) for executor_id in drained}
            lost = [executor_id for executor_id in missing if executor_id not in seconds_draining]
            added = ids - {executor.id for executor in previous.executors}
            self._state = _ExecutorState(
                now_s,
                tuple(executors),
                self._short_since(executors, now_s, has_added=bool(added)),
                sum(self._failed_by.values()),
                previous.lost + len(lost),
                previous.gone + len(seconds_draining),
                self._gc_share(executors, now_s),
            )
        for executor_id in sorted(added):
            logging.event("executor_added", executor=executor_id, there=len(executors))
        for executor_id, seconds in seconds_draining.items():
            logging.event("executor_removed", executor=executor_id, seconds=round(seconds, 1), there=len(executors))
        for executor_id in lost:
            logging.warning("executor_lost", executor=executor_id, there=len(executors))

    def _short_since(self, executors: Sequence[Executor], now_s: float, *, has_added: bool) -> float | None:
        """Return since when fewer executors are registered than requested and none came; None: there are enough."""
        if self._target is None or len(remaining_executors(executors, self._draining)) >= self._target.executors:
            return None
        if self._state.short_since_s is None or has_added:
            return now_s
        return self._state.short_since_s

    def _gc_share(self, executors: Sequence[Executor], now_s: float) -> float | None:
        began_s, previous = self._gc_from
        if now_s - began_s < _GC_OVER_S:
            return self._state.gc_share
        self._gc_from = now_s, {executor.id: executor for executor in executors}
        shares = []
        for executor in executors:
            earlier = previous.get(executor.id)
            if earlier is not None and executor.task_s - earlier.task_s >= _BUSY_MIN_S:
                shares.append((executor.gc_s - earlier.gc_s) / (executor.task_s - earlier.task_s))
        if not shares:
            return None
        return round(max(shares), 4)

    def _store_request(self, executors: int) -> None:
        content = (json.dumps({"wanted": executors}) + "\n").encode()
        for store in self._stores():
            try:
                store.put(REQUEST_FILE, content)
            except OSError as error:
                # The next start uses Spark's default until the next request.
                logging.warning("executor_state_not_saved", location=store.location, error=str(error))

    def _stored_request(self) -> int | None:
        requests: list[int] = []
        for store in self._stores():
            with suppress(OSError, ValueError, KeyError, TypeError):
                if (stored := store.read(REQUEST_FILE)) is not None:
                    requests.append(int(json.loads(stored.content)["wanted"]))
        return max(requests, default=None)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _DIGITS_MAX


def _seconds_since(instant_s: float | None, now_s: float) -> float | None:
    """Return the seconds from an instant until now, to the millisecond; None where there is no instant."""
    if instant_s is None:
        return None
    return round(now_s - instant_s, 3)
