"""The autoscaler's HTTP endpoints: `/metrics`, `/status` and `/healthz`."""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from prometheus_client.metrics_core import Metric as Family
from pydantic_core import to_jsonable_python

from headrace.autoscaler.decision.decide import Decision, DecisionTerms, Hold, capacities
from headrace.autoscaler.decision.events import Event
from headrace.autoscaler.decision.explanation import to_dict
from headrace.autoscaler.decision.facts import Facts
from headrace.writer.core.text import iso
from headrace.writer.web.http_server import Get
from headrace.writer.web.metric_types import Metric, Value, Window
from headrace.writer.web.metrics_export import metric_family, operator_endpoints

VERDICTS = ("hold", "stay", "blocked", "wait", "up", "down")
# After as many intervals without a tick the process is unhealthy, and a supervisor may start it again.
_LATE_TICKS = 4
# The process is healthy for so long in any case.
_SILENT_MIN_S = 60.0


@dataclass(frozen=True)
class LastTick:
    """The last tick, as the endpoints show it."""

    # When the tick ended, or the process began if there was none, by the monotonic clock.
    ended_s: float
    interval_s: float
    dry_run: bool
    # When the tick began, by the wall clock.
    at: datetime | None = None
    facts: Facts | None = None
    decision: Decision | None = None
    events: tuple[Event, ...] = ()
    # The driver's answer about its executors.
    executors: Mapping[str, Any] | None = None
    # Why the driver did not take the request.
    refused: str | None = None
    # Ticks, up, down, reversals, since this process began.
    counts: Mapping[str, int] = field(default_factory=dict)

    def terms(self) -> DecisionTerms | None:
        """Return the arithmetic of the decision; None where nothing was judged."""
        if self.decision is None or isinstance(self.decision, Hold):
            return None
        return self.decision.terms

    def last_event(self) -> Event | None:
        """Return the newest event."""
        return self.events[-1] if self.events else None


def _desired_values(last_tick: LastTick) -> Iterable[Value]:
    if last_tick.decision is None:
        return []
    return [((), last_tick.decision.executors)]


def _recommended_values(last_tick: LastTick) -> Iterable[Value]:
    event = last_tick.last_event()
    if event is None:
        return []
    return [((), event.executors if event.wanted is None else event.wanted)]


def _verdict_values(last_tick: LastTick) -> Iterable[Value]:
    event = last_tick.last_event()
    return [((verdict,), float(event is not None and event.verdict == verdict)) for verdict in VERDICTS]


def _block_values(last_tick: LastTick) -> Iterable[Value]:
    event = last_tick.last_event()
    if event is None or event.by is None:
        return []
    return [((event.by,), 1.0)]


def _change_values(last_tick: LastTick) -> Iterable[Value]:
    return [((direction,), last_tick.counts.get(direction, 0)) for direction in ("up", "down")]


def _arrival_values(last_tick: LastTick) -> Iterable[Value]:
    terms = last_tick.terms()
    if terms is None:
        return []
    return [((load.pipeline.name,), load.need.arriving) for load in terms.loads]


def _capacity_values(last_tick: LastTick) -> Iterable[Value]:
    terms = last_tick.terms()
    if terms is None or last_tick.decision is None:
        return []
    executors = max(1, last_tick.decision.executors)
    return [((name,), per_s) for name, per_s in capacities(terms, executors).items()]


def _slot_rate_values(last_tick: LastTick) -> Iterable[Value]:
    terms = last_tick.terms()
    if terms is None:
        return []
    return [((load.pipeline.name,), load.rate.per_slot_per_s) for load in terms.loads]


def _driver_values(key: str) -> Callable[[LastTick], Iterable[Value]]:
    """Return what reads a number, or the length of a list, from the driver's answer about its executors."""

    def read(last_tick: LastTick) -> Iterable[Value]:
        value = (last_tick.executors or {}).get(key)
        if value is None:
            return []
        if isinstance(value, list):
            return [((), float(len(value)))]
        return [((), float(value))]

    return read


def _count_values(name: str) -> Callable[[LastTick], Iterable[Value]]:
    """Return what reads a counter of this process."""
    return lambda last_tick: [((), last_tick.counts.get(name, 0))]


CATALOGUE: tuple[Metric[LastTick], ...] = (
    Metric(
        "headrace_executors_desired",
        "Executors that were decided on, and are asked for at every tick.",
        "executors",
        Window.LAST_TICK,
        _desired_values,
        (),
    ),
    Metric(
        "headrace_executors_recommended",
        "Executors that would be right now, where something forbids or delays to ask for them; else those desired.",
        "executors",
        Window.LAST_TICK,
        _recommended_values,
        (),
    ),
    Metric(
        "headrace_executors_requested",
        "Executors that the driver asks Spark for.",
        "executors",
        Window.LAST_TICK,
        _driver_values("requested"),
        (),
    ),
    Metric(
        "headrace_executors_registered",
        "Executors that take tasks.",
        "executors",
        Window.LAST_TICK,
        _driver_values("registered"),
        (),
    ),
    Metric(
        "headrace_executors_draining",
        "Executors that finish their tasks and go.",
        "executors",
        Window.LAST_TICK,
        _driver_values("draining"),
        (),
    ),
    Metric(
        "headrace_executors_lost_total",
        "Executors of the driver that went unasked to.",
        "executors",
        Window.SINCE_DRIVER,
        _driver_values("lost"),
        (),
    ),
    Metric(
        "headrace_tasks_failed_total",
        "Tasks of the driver that failed on executors.",
        "tasks",
        Window.SINCE_DRIVER,
        _driver_values("failed_tasks"),
        (),
    ),
    Metric(
        "headrace_autoscaler_decision",
        f"1 for the last decision: {', '.join(VERDICTS)}.",
        "1",
        Window.LAST_TICK,
        _verdict_values,
        ("decision",),
    ),
    Metric(
        "headrace_autoscaler_blocked",
        "1 for what forbids to judge, or is in the way of another number.",
        "1",
        Window.LAST_TICK,
        _block_values,
        ("by",),
    ),
    Metric(
        "headrace_autoscaler_changes_total",
        "Changes of the number of executors, by direction: up, down.",
        "changes",
        Window.SINCE_AUTOSCALER,
        _change_values,
        ("direction",),
    ),
    Metric(
        "headrace_autoscaler_reversals_total",
        "Changes of the number of executors that went back on the one before within half an hour.",
        "changes",
        Window.SINCE_AUTOSCALER,
        _count_values("reversals"),
        (),
    ),
    Metric(
        "headrace_autoscaler_request_refused",
        "1 while the driver does not take what it is asked for. /status says why.",
        "1",
        Window.LAST_TICK,
        lambda last_tick: [((), float(last_tick.refused is not None))],
        (),
    ),
    Metric(
        "headrace_autoscaler_evaluations_total",
        "Looks at the driver, whether or not they led to a decision.",
        "ticks",
        Window.SINCE_AUTOSCALER,
        _count_values("ticks"),
        (),
    ),
    Metric(
        "headrace_arrival_rate",
        "Offsets a second by which Kafka's logs grow, as the decision reckons with them.",
        "offsets/second",
        Window.LAST_TICK,
        _arrival_values,
        ("pipeline",),
    ),
    Metric(
        "headrace_capacity_rate",
        "Offsets a second that the desired executors carry of the pipeline alone.",
        "offsets/second",
        Window.LAST_TICK,
        _capacity_values,
        ("pipeline",),
    ),
    Metric(
        "headrace_slot_rate",
        "Offsets that a slot carries in a second of work.",
        "offsets/second",
        Window.LAST_TICK,
        _slot_rate_values,
        ("pipeline",),
    ),
)


def autoscaler_endpoints(last_tick: Callable[[], LastTick]) -> Get:
    """Return what answers a GET, as things are at its moment."""

    def families() -> list[Family]:
        shown_tick = last_tick()
        return [metric_family(metric, metric.read(shown_tick)) for metric in CATALOGUE if metric.read is not None]

    return operator_endpoints(
        "headrace autoscaler",
        families=families,
        status=lambda: describe(last_tick()),
        unhealthy=lambda: unhealthy_reason(last_tick(), time.monotonic()),
    )


def unhealthy_reason(last_tick: LastTick, now_s: float) -> str:
    """Return why this process should be started again; empty while it ticks. `now_s`: by the monotonic clock."""
    silent_s = now_s - last_tick.ended_s
    if silent_s <= max(_SILENT_MIN_S, _LATE_TICKS * last_tick.interval_s):
        return ""
    return f"no tick for {silent_s:.0f} s"


def describe(last_tick: LastTick) -> dict[str, Any]:
    """Describe everything as JSON values."""
    document: dict[str, Any] = {"at": None, "dry_run": last_tick.dry_run, "decision": None}
    if last_tick.at is not None:
        document["at"] = iso(last_tick.at)
    if last_tick.at is not None and last_tick.decision is not None:
        document["decision"] = to_dict(last_tick.decision, last_tick.at)
    return document | {
        "executors": last_tick.executors,
        "refused": last_tick.refused,
        "counts": dict(last_tick.counts),
        "events": to_jsonable_python(last_tick.events[::-1]),
    }
