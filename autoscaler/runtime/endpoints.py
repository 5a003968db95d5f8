"""The autoscaler's HTTP endpoints: `/metrics`, `/status` and `/healthz`."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from prometheus_client.metrics_core import Metric as Family
from pydantic_core import to_jsonable_python

from autoscaler.decision.decide import Decision, DecisionTerms, Hold, carried
from autoscaler.decision.events import Event
from autoscaler.decision.explanation import to_dict as explained
from autoscaler.decision.facts import Facts
from writer.core.text import iso
from writer.web.http_server import Get
from writer.web.metric_types import Value
from writer.web.metrics_export import family, operator_endpoints

VERDICTS = ("hold", "stay", "blocked", "wait", "up", "down")
_LATE_TICKS = 4  # then a supervisor may start it again


@dataclass(frozen=True)
class LastTick:
    """The last tick, as it is shown."""

    ended_s: float  # the last tick, or the beginning before there was one, by the monotonic clock
    interval_s: float
    dry_run: bool
    at: datetime | None = None  # of the last tick
    facts: Facts | None = None
    decision: Decision | None = None
    events: tuple[Event, ...] = ()
    executors: Mapping[str, Any] | None = None  # what the driver says of them
    refused: str | None = None  # why the driver did not take what was asked for
    counts: Mapping[str, int] = field(default_factory=dict)  # ticks, up, down, reversals, since this process began


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    read: Callable[[LastTick], Iterable[Value]]
    labels: tuple[str, ...] = ()


def _sums(shown: LastTick) -> DecisionTerms | None:
    return None if shown.decision is None or isinstance(shown.decision, Hold) else shown.decision.sums


def _capacity(shown: LastTick) -> Iterable[Value]:
    sums = _sums(shown)
    if sums is None or shown.decision is None:
        return []
    return [((name,), per_s) for name, per_s in carried(sums, max(1, shown.decision.executors)).items()]


def _of_driver(key: str) -> Callable[[LastTick], Iterable[Value]]:
    def read(shown: LastTick) -> Iterable[Value]:
        value = (shown.executors or {}).get(key)
        return [] if value is None else [((), float(len(value) if isinstance(value, list) else value))]

    return read


def _last(shown: LastTick) -> Event | None:
    return shown.events[-1] if shown.events else None


CATALOGUE: tuple[Metric, ...] = (
    Metric(
        "headrace_executors_desired", "gauge", "Executors that were decided on, and are asked for at every tick.",
        lambda s: [] if s.decision is None else [((), s.decision.executors)],
    ),
    Metric(
        "headrace_executors_recommended", "gauge",
        "Executors that would be right now, where something forbids or delays to ask for them; else those desired.",
        lambda s: [] if (e := _last(s)) is None else [((), e.executors if e.wanted is None else e.wanted)],
    ),
    Metric(
        "headrace_executors_requested", "gauge", "Executors that the driver asks Spark for.", _of_driver("requested"),
    ),
    Metric("headrace_executors_registered", "gauge", "Executors that take tasks.", _of_driver("registered")),
    Metric("headrace_executors_draining", "gauge", "Executors that finish their tasks and go.", _of_driver("draining")),
    Metric(
        "headrace_executors_lost_total", "counter",
        "Executors that went unasked to, since the driver began.", _of_driver("lost"),
    ),
    Metric(
        "headrace_tasks_failed_total", "counter", "Tasks that failed on executors, since the driver began.",
        _of_driver("failed_tasks"),
    ),
    Metric(
        "headrace_autoscaler_decision", "gauge", f"1 for the last decision: {', '.join(VERDICTS)}.",
        lambda s: [((one,), float((e := _last(s)) is not None and e.verdict == one)) for one in VERDICTS],
        ("decision",),
    ),
    Metric(
        "headrace_autoscaler_blocked", "gauge", "1 for what forbids to judge, or is in the way of another number.",
        lambda s: [((e.by,), 1.0)] if (e := _last(s)) is not None and e.by is not None else [], ("by",),
    ),
    Metric(
        "headrace_autoscaler_changes_total", "counter", "Changes of the number of executors, since this process began.",
        lambda s: [((one,), s.counts.get(one, 0)) for one in ("up", "down")], ("direction",),
    ),
    Metric(
        "headrace_autoscaler_reversals_total", "counter",
        "Of them, those that went back on the one before within half an hour.",
        lambda s: [((), s.counts.get("reversals", 0))],
    ),
    Metric(
        "headrace_autoscaler_request_refused", "gauge",
        "1 while the driver does not take what it is asked for. /status says why.",
        lambda s: [((), float(s.refused is not None))],
    ),
    Metric(
        "headrace_autoscaler_evaluations_total", "counter", "Ticks since this process began.",
        lambda s: [((), s.counts.get("ticks", 0))],
    ),
    Metric(
        "headrace_arrival_rate", "gauge", "Records a second that come, as the decision reckons with them.",
        lambda s: [] if (sums := _sums(s)) is None else [((x.pipeline.name,), x.need.arriving) for x in sums.loads],
        ("pipeline",),
    ),
    Metric(
        "headrace_capacity_rate", "gauge", "Records a second that the desired executors carry of the pipeline alone.",
        _capacity, ("pipeline",),
    ),
    Metric(
        "headrace_slot_rate", "gauge", "Records that a slot carries in a second of work.",
        lambda s: [] if (sums := _sums(s)) is None else [
            ((x.pipeline.name,), x.rate.per_slot_per_s) for x in sums.loads
        ], ("pipeline",),
    ),
)  # fmt: skip


def answers(shown: Callable[[], LastTick]) -> Get:
    """Answer a GET, as things are at its moment."""

    def families() -> list[Family]:
        now = shown()
        return [family(one.name, one.kind, one.help, one.labels, one.read(now)) for one in CATALOGUE]

    return operator_endpoints(
        "headrace autoscaler", families=families, status=lambda: status(shown()),
        unhealthy=lambda: unhealthy(shown(), time.monotonic()),
    )  # fmt: skip


def unhealthy(shown: LastTick, now_s: float) -> str:
    """Return why this process should be started again; empty while it ticks."""
    silent_s = now_s - shown.ended_s
    return f"no tick for {silent_s:.0f} s" if silent_s > max(60.0, _LATE_TICKS * shown.interval_s) else ""


def status(shown: LastTick) -> dict[str, Any]:
    """Describe everything as JSON values."""
    decision = None if shown.decision is None or shown.at is None else explained(shown.decision, shown.at)
    return {
        "at": None if shown.at is None else iso(shown.at),
        "dry_run": shown.dry_run,
        "decision": decision,
        "executors": shown.executors,
        "refused": shown.refused,
        "counts": dict(shown.counts),
        "events": to_jsonable_python(shown.events[::-1]),
    }
