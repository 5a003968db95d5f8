"""Decides which executors to add or remove next: requested and registered ones in, requests out. Pure.

Spark's total is requested before any executor is decommissioned: a total that was never requested counts as none, and
an executor that dies would not be replaced. A lower total removes no executor; it only replaces none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

_ASSERTED_EVERY_S = 15.0  # the total is asked for again: whatever lowered it meanwhile is repaired
_BOUNDARY_WITHIN_S = 120.0  # pipelines whose batches overlap have no moment without tasks; then it goes beside one


@dataclass(frozen=True)
class Executor:
    """One executor, as Spark lists it."""

    id: str
    since: datetime  # when it came
    cores: int
    failed_tasks: int = 0
    task_s: float = 0.0  # that its tasks took in sum
    gc_s: float = 0.0  # of that, in garbage collection


@dataclass(frozen=True)
class ExecutorTarget:
    """How many executors there should be."""

    executors: int
    since_s: float  # by a clock that never jumps
    asserted_s: float | None = None  # when Spark was asked for it last


@dataclass(frozen=True)
class Steps:
    """What is asked of Spark now, in this order."""

    total: int | None  # None: it was asked for just now
    drain: tuple[str, ...] = ()


def staying(executors: Sequence[Executor], draining: Mapping[str, float]) -> list[Executor]:
    """Return the executors that are not being decommissioned, oldest first."""
    return sorted((one for one in executors if one.id not in draining), key=lambda one: (one.since, _number(one.id)))


def steps(
    wanted: ExecutorTarget,
    executors: Sequence[Executor],
    draining: Mapping[str, float],
    now_s: float,
    *,
    boundary: bool,
) -> Steps:
    """Decide. `draining`: id → since when; `boundary`: no batch has tasks at this moment."""
    surplus = staying(executors, draining)[wanted.executors :]
    due = wanted.asserted_s is None or now_s - wanted.asserted_s >= _ASSERTED_EVERY_S
    go = bool(surplus) and (boundary or now_s - wanted.since_s >= _BOUNDARY_WITHIN_S)
    youngest_first = tuple(one.id for one in reversed(surplus)) if go else ()
    return Steps(wanted.executors if due or go else None, youngest_first)


def _number(name: str) -> int:
    return int(name) if name.isdigit() else 0
