"""The supervisor's HTTP endpoints, `/metrics` and `/status`, which answer without a driver too."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from prometheus_client.metrics_core import Metric as Family

from recovery.escalation.state import document
from recovery.lease.holder import LeaseHolder
from recovery.supervisor.pipeline_state import SupervisedPipeline
from writer.core.text import iso
from writer.web.http_server import Get
from writer.web.metric_types import Value
from writer.web.metrics_export import family, operator_endpoints


@dataclass(frozen=True)
class PipelineStatus:
    """The supervised pipelines."""

    pipelines: Callable[[], Mapping[str, SupervisedPipeline]]
    held: LeaseHolder
    driving: Callable[[], bool]
    config: Callable[[], Mapping[str, Any]] = dict  # the last reading of the file


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue. `read` gives its values for one pipeline."""

    name: str
    kind: Literal["gauge", "counter"]
    help: str
    read: Callable[[PipelineStatus, SupervisedPipeline], Iterable[Value]]
    labels: tuple[str, ...] = ("pipeline",)


CATALOGUE: tuple[Metric, ...] = (
    Metric(
        "headrace_supervised_up",
        "gauge",
        "1 while the supervisor's driver runs the pipeline, as far as it is known.",
        lambda supervisor_status, p: [((), float(p.up and supervisor_status.driving()))],
    ),
    Metric(
        "headrace_recovery_level",
        "gauge",
        "Level that was taken last, 0 to 5; 0 again after supervisor.healthy_after without a failure.",
        lambda _, p: [((), p.level_reached)],
    ),
    Metric(
        "headrace_recovery_total",
        "counter",
        "What recovery did, by class (the row of the catalogue), level (L0 to L5, none) and result: worked, failed, "
        "refused (it could not be carried out), halted.",
        lambda _, p: [(labels, count) for labels, count in dict(p.results).items()],
        ("pipeline", "class", "level", "result"),
    ),
    Metric(
        "headrace_recovery_halted",
        "gauge",
        "1 while nothing more is tried: a person must act. /status says why.",
        lambda _, p: [((), float(bool(p.halted)))],
    ),
    Metric(
        "headrace_recovery_starts_total",
        "counter",
        "Starts of the pipeline that this supervisor ordered, the first included.",
        lambda _, p: [((), p.starts)],
    ),
    Metric(
        "headrace_recovery_unhealthy_seconds",
        "gauge",
        "Seconds since the pipeline failed and has not committed again; 0 while it is well.",
        lambda _, p: [((), 0.0 if p.failed_s is None else max(0.0, time.monotonic() - p.failed_s))],
    ),
    Metric(
        "headrace_recovery_seconds",
        "gauge",
        "Seconds from the last failure to the first commit after it, by the level that did it.",
        lambda _, p: [((level,), seconds) for level, seconds in dict(p.memory.recovered_s).items()],
        ("pipeline", "level"),
    ),
    Metric(
        "headrace_lease_epoch",
        "gauge",
        "Epoch of the pipeline's lease that this supervisor holds; 0 while it waits for it. It rises with each holder.",
        lambda supervisor_status, p: [((), supervisor_status.held.epochs.get(p.name, 0))],
    ),
    Metric(
        "headrace_lease_lost_total",
        "counter",
        "Leases that another supervisor took from this one.",
        lambda supervisor_status, p: [((), float(supervisor_status.held.lost == p.name))],
    ),
)


def answers(supervisor_status: PipelineStatus) -> Get:
    """Answer a GET, as things are at its moment."""

    def values(metric: Metric) -> Iterator[Value]:
        for one in supervisor_status.pipelines().values():
            yield from (((one.name, *labels), number) for labels, number in metric.read(supervisor_status, one))

    def families() -> list[Family]:
        return [family(one.name, one.kind, one.help, one.labels, values(one)) for one in CATALOGUE]

    def given_up() -> str:
        return "\n".join(
            f"pipeline {p.name} is given up: {p.halted}" for p in supervisor_status.pipelines().values() if p.halted
        )

    return operator_endpoints(
        "headrace supervisor", families=families, status=lambda: status(supervisor_status), unhealthy=given_up
    )


def status(supervisor_status: PipelineStatus) -> dict[str, Any]:
    """Describe everything as JSON values."""
    now_s = time.monotonic()
    return {
        "at": iso(datetime.now(UTC)),
        "driver": supervisor_status.driving(),
        "config": dict(supervisor_status.config()),
        "pipelines": {
            p.name: {
                "up": p.up,
                "halted": p.halted or None,
                "level": p.level_reached,
                "starts": p.starts,
                "lease_epoch": supervisor_status.held.epochs.get(p.name),
                "next_start_in_seconds": None if p.due_s is None else round(max(0.0, p.due_s - now_s), 3),
                "unhealthy_seconds": 0.0 if p.failed_s is None else round(now_s - p.failed_s, 3),
                **document(p.memory),
            }
            for p in supervisor_status.pipelines().values()
        },
    }
