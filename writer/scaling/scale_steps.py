"""Decides which executors to add or remove next: requested and registered ones in, requests out. Pure.

Spark's total is requested before any executor is decommissioned: a total that was never requested counts as none, and
an executor that dies would not be replaced. A lower total removes no executor; it only replaces none.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

# The total is requested again so often, which repairs whatever lowered it meanwhile.
_ASSERTED_EVERY_S = 15.0
# Pipelines whose batches overlap have no moment without tasks. After this time an executor goes beside a batch.
_BOUNDARY_WITHIN_S = 120.0


@dataclass(frozen=True)
class Executor:
    """One executor, as Spark lists it."""

    id: str
    # When the executor came.
    since: datetime
    cores: int
    failed_tasks: int = 0
    # The time that its tasks took, in sum.
    task_s: float = 0.0
    # Of that, the time in garbage collection.
    gc_s: float = 0.0


@dataclass(frozen=True)
class ExecutorTarget:
    """How many executors there should be."""

    executors: int
    # By a clock that never jumps.
    since_s: float
    # When Spark was last asked for this total.
    asserted_s: float | None = None


@dataclass(frozen=True)
class Steps:
    """What is asked of Spark now, in this order."""

    # None: Spark was asked for it just now.
    total: int | None
    drain: tuple[str, ...] = ()


def remaining_executors(executors: Sequence[Executor], draining: Mapping[str, float]) -> list[Executor]:
    """Return the executors that are not being decommissioned, oldest first."""
    return sorted(
        (executor for executor in executors if executor.id not in draining),
        key=lambda executor: (executor.since, _number(executor.id)),
    )


def steps(
    wanted: ExecutorTarget,
    executors: Sequence[Executor],
    draining: Mapping[str, float],
    now_s: float,
    *,
    boundary: bool,
) -> Steps:
    """Decide. `draining`: id → since when; `boundary`: no batch has tasks at this moment."""
    surplus = remaining_executors(executors, draining)[wanted.executors :]
    due = wanted.asserted_s is None or now_s - wanted.asserted_s >= _ASSERTED_EVERY_S
    may_drain = bool(surplus) and (boundary or now_s - wanted.since_s >= _BOUNDARY_WITHIN_S)
    if may_drain:
        youngest_first = tuple(executor.id for executor in reversed(surplus))
        return Steps(wanted.executors, youngest_first)
    return Steps(wanted.executors if due else None)


def _number(name: str) -> int:
    return int(name) if name.isdecimal() else 0
