"""The trace of a batch for OpenTelemetry: a span for the batch, and beneath it one for each phase of the driver.

The spans are made when the batch is committed, from the seconds that the driver measured of each phase. A phase that
came twice, because buckets were closed meanwhile, is one span with the seconds of both.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import version
from typing import Any

from headrace.writer.config.sections.connections import OpenTelemetry
from headrace.writer.status.model import OUTCOMES, Commit

# The wait for records, before the batch.
_WAIT = "wait"
# The wait behind batches of other pipelines, before the tasks.
_QUEUE = "queue"


def sender(section: OpenTelemetry, pipeline: str) -> Callable[[Commit], None]:
    """Return a function that exports the trace of a commit. It raises ConnectionError when the receiver takes none.

    Raises ImportError without OpenTelemetry's SDK and its exporter.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import SpanExportResult

    # A line for each try of each batch: a failure is counted, and the first is logged, by the sender.
    logging.getLogger("opentelemetry.exporter.otlp").setLevel(logging.CRITICAL)
    tracer = _tracer()
    exporter = OTLPSpanExporter(endpoint=section.url, timeout=section.timeout.total_seconds())

    def send(commit: Commit) -> None:
        if exporter.export(list(spans(tracer, commit, pipeline))) is not SpanExportResult.SUCCESS:
            raise ConnectionError("the spans of a batch were not taken")

    return send


def _tracer() -> Any:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.sampling import ALWAYS_ON

    release = version("headrace")
    resource = Resource.create({"service.name": "headrace", "service.version": release})
    provider = TracerProvider(sampler=ALWAYS_ON, resource=resource, shutdown_on_exit=False)
    return provider.get_tracer("headrace", release)


def spans(tracer: Any, commit: Commit, pipeline: str) -> Iterator[Any]:
    """Yield the phases of a batch and the batch itself, as the SDK's ReadableSpan."""
    from opentelemetry.trace import set_span_in_context

    phases = {phase: round(commit.phases[phase] * 1e9) for phase in _in_order(commit.phases) if phase != _WAIT}
    end_ns = round(commit.at.timestamp() * 1e9)
    start_ns = end_ns - sum(phases.values())
    batch = tracer.start_span("batch", start_time=start_ns, attributes=_attributes(commit, pipeline))
    for phase, spent_ns in phases.items():
        span = tracer.start_span(phase, set_span_in_context(batch), start_time=start_ns)
        start_ns += spent_ns
        span.end(start_ns)
        yield span
    batch.end(end_ns)
    yield batch


def _in_order(phases: Iterable[str]) -> list[str]:
    """Put the queue before the tasks, during which the driver enters it."""
    ordered = list(phases)
    if _QUEUE in ordered:
        ordered.remove(_QUEUE)
        ordered.insert(ordered.index("tasks"), _QUEUE)
    return ordered


def _attributes(commit: Commit, pipeline: str) -> dict[str, str | int]:
    facts = commit.facts
    counts = {name: sum(account.get(name, 0) for account in facts["ranges"]) for name in OUTCOMES}
    attributes = {
        "pipeline": pipeline,
        "run": facts["run"],
        "batch": facts["batch"],
        "version": commit.version,
        "reason": facts.get("reason", "unknown"),
        "files": facts["files"],
        "bytes": facts["bytes"],
        **counts,
    }
    return {f"headrace.{name}": value for name, value in attributes.items()}
