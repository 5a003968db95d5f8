"""The supervisor's HTTP endpoints, `/metrics` and `/status`, which answer without a driver too."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from prometheus_client.metrics_core import Metric as Family

from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.writer.clients.supervisor_record import LeaseWait
from headrace.writer.core.text import iso
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.web.http_server import Get
from headrace.writer.web.metric_types import Metric, Window
from headrace.writer.web.metrics_export import metric_family, operator_endpoints, read_pipelines


@dataclass(frozen=True)
class SupervisorStatus:
    """What the endpoints read of a supervisor at the moment of a request."""

    pipelines: Callable[[], Mapping[str, SupervisedPipeline]]
    lease_holder: LeaseHolder
    # Whether a driver runs.
    driving: Callable[[], bool]
    # The last reading of the configuration file.
    config: Callable[[], Mapping[str, Any]] = dict


@dataclass(frozen=True)
class _Reading:
    """One pipeline at the moment of a scrape."""

    status: SupervisorStatus
    pipeline: SupervisedPipeline


CATALOGUE: tuple[Metric[_Reading], ...] = (
    Metric(
        "headrace_supervised_up",
        "1 while the supervisor's driver runs the pipeline, as far as it is known.",
        "1",
        Window.NOW,
        lambda r: [((), float(r.pipeline.up and r.status.driving()))],
    ),
    Metric(
        "headrace_recovery_level",
        "Level that was taken last, 0 to 5; 0 again after supervisor.healthy_after without a failure.",
        "1",
        Window.NOW,
        lambda r: [((), r.pipeline.level_reached)],
    ),
    Metric(
        "headrace_recovery_total",
        "What recovery did, by class (the row of the catalogue), level (L0 to L5, none) and result: worked, failed, "
        "refused (it could not be carried out), halted.",
        "steps",
        Window.SINCE_SUPERVISOR,
        lambda r: [(labels, count) for labels, count in dict(r.pipeline.results).items()],
        ("pipeline", "class", "level", "result"),
    ),
    Metric(
        "headrace_recovery_halted",
        "1 while nothing more is tried: a person must act. /status says why.",
        "1",
        Window.NOW,
        lambda r: [((), float(bool(r.pipeline.halted)))],
    ),
    Metric(
        "headrace_recovery_starts_total",
        "Starts of the pipeline that this supervisor ordered, the first included.",
        "starts",
        Window.SINCE_SUPERVISOR,
        lambda r: [((), r.pipeline.starts)],
    ),
    Metric(
        "headrace_recovery_unhealthy_seconds",
        "Seconds since the pipeline failed and has not committed again; 0 while it is well.",
        "seconds",
        Window.NOW,
        lambda r: [((), max(0.0, _unhealthy_s(r.pipeline)))],
    ),
    Metric(
        "headrace_recovery_seconds",
        "Seconds from the last failure to the first commit after it, by the level that did it.",
        "seconds",
        Window.LAST_RECOVERY,
        lambda r: [((level,), seconds) for level, seconds in dict(r.pipeline.memory.recovered_s).items()],
        ("pipeline", "level"),
    ),
    Metric(
        "headrace_lease_epoch",
        "Epoch of the pipeline's lease that this supervisor holds; 0 while it waits for it. It rises with each holder.",
        "1",
        Window.NOW,
        lambda r: [((), r.status.lease_holder.epochs.get(r.pipeline.name, 0))],
    ),
    Metric(
        "headrace_lease_lost_total",
        "How often another process took the pipeline's lease from this supervisor.",
        "leases",
        Window.SINCE_SUPERVISOR,
        lambda r: [((), float(r.status.lease_holder.losses[r.pipeline.name]))],
    ),
    Metric(
        "headrace_lease_awaited",
        "1 while another process has the pipeline's lease: this supervisor goes on when that one has ended.",
        "1",
        Window.NOW,
        lambda r: [((), float(r.status.lease_holder.lease_wait(r.pipeline.name) is not None))],
    ),
)


def supervisor_endpoints(supervisor_status: SupervisorStatus) -> Get:
    """Return what answers a GET, as things are at its moment."""

    def families() -> list[Family]:
        pipelines = supervisor_status.pipelines()
        readings = {name: _Reading(supervisor_status, pipeline) for name, pipeline in pipelines.items()}
        return [metric_family(metric, read_pipelines(metric, readings)) for metric in CATALOGUE]

    def unhealthy() -> str:
        return "\n".join(
            f"pipeline {pipeline.name} is given up: {pipeline.halted}"
            for pipeline in supervisor_status.pipelines().values()
            if pipeline.halted
        )

    return operator_endpoints(
        "headrace supervisor", families=families, status=lambda: describe(supervisor_status), unhealthy=unhealthy
    )


def describe(supervisor_status: SupervisorStatus) -> dict[str, Any]:
    """Describe everything as JSON values."""
    now_s = time.monotonic()
    holder = supervisor_status.lease_holder
    return {
        "at": iso(datetime.now(UTC)),
        "driver": supervisor_status.driving(),
        "config": dict(supervisor_status.config()),
        "pipelines": {
            pipeline.name: {
                "up": pipeline.up,
                "halted": pipeline.halted or None,
                "level": pipeline.level_reached,
                "starts": pipeline.starts,
                "lease_epoch": holder.epochs.get(pipeline.name),
                "lease_wait": _wait_to_json(holder.lease_wait(pipeline.name)),
                "next_start_in_seconds": _next_start_in_s(pipeline, now_s),
                "unhealthy_seconds": round(_unhealthy_s(pipeline), 3),
                **pipeline.memory.to_json(),
            }
            for pipeline in supervisor_status.pipelines().values()
        },
    }


def _wait_to_json(wait: LeaseWait | None) -> dict[str, str] | None:
    return None if wait is None else wait.to_json()


def _next_start_in_s(pipeline: SupervisedPipeline, now_s: float) -> float | None:
    if pipeline.due_s is None:
        return None
    return round(max(0.0, pipeline.due_s - now_s), 3)


def _unhealthy_s(pipeline: SupervisedPipeline) -> float:
    """Return the seconds since a pipeline failed; 0 while it is well."""
    failed_s = pipeline.failed_s
    return 0.0 if failed_s is None else time.monotonic() - failed_s
