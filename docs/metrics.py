"""Writes docs/METRICS.md from the catalogue in the code: every name, type, label and meaning. `make reference`."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from headrace.autoscaler.runtime.endpoints import CATALOGUE as AUTOSCALER
from headrace.recovery.supervisor.endpoints import CATALOGUE as SUPERVISOR
from headrace.writer.web.metric_types import Metric, Window
from headrace.writer.web.metrics_catalogue import CATALOGUE


def text() -> str:
    """Return the whole page."""
    parts = (_head(), _table(CATALOGUE), _supervisor(), _autoscaler(), _questions(), _dashboard(), _receivers())
    return "\n".join(line for part in parts for line in part) + "\n"


def _head() -> list[str]:
    return [
        "# Metrics", "", "Written by `make reference` from the code; do not edit.", "",
        "A running driver serves `http://127.0.0.1:9643/metrics` (`http` in the configuration), in Prometheus' text",
        "format or, on request, in OpenMetrics. All values are read at the scrape. What is not known has no value,",
        "never 0 in its place. The lake holds the whole history (`headrace explain`). No label has a bucket or an",
        "offset.", "",
        "Each figure is of a moment, or grows over a span of time. Its window says which; so does the `HELP` of a",
        "scrape, behind the unit.", "",
        "| window | what it means |", "| --- | --- |",
        *(f"| {window.phrase} | {window.sentence} |" for window in Window), "",
        "## Of the driver", "",
    ]  # fmt: skip


def _table(catalogue: Iterable[Metric[Any]]) -> list[str]:
    lines = ["| metric | type | unit | window | labels | meaning |", "| --- | --- | --- | --- | --- | --- |"]
    for metric in catalogue:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        cells = (f"`{metric.name}`", metric.kind, metric.unit, metric.window.phrase, labels, metric.definition)
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _supervisor() -> list[str]:
    return [
        "## Of the supervisor", "",
        "`headrace supervisor run` serves `http://127.0.0.1:9644/metrics` (`supervisor` in the configuration), also",
        "while no driver runs.", "",
        *_table(SUPERVISOR),
    ]  # fmt: skip


def _autoscaler() -> list[str]:
    return [
        "## Of the autoscaler", "",
        "`headrace autoscaler run` serves `http://127.0.0.1:9645/metrics` (`autoscaler` in the configuration).",
        "",
        *_table(AUTOSCALER),
    ]  # fmt: skip


def _questions() -> list[str]:
    return [
        "## Questions and their expressions", "",
        "| question | PromQL |", "| --- | --- |",
        "| how late is the table | `max by (pipeline) (headrace_lag_seconds)` |",
        "| is the lag current, or does Kafka not answer | `headrace_lag_source_age_seconds > 60` |",
        "| when does retention delete unread records | `min by (pipeline) (headrace_retention_headroom_seconds)` |",
        '| rows per second | `rate(headrace_records_total{outcome="rows"}[15m])` |',
        ("| share of dead letters and quarantined records "
         "| `rate(headrace_dead_letter_table_rows_total[15m]) / rate(headrace_records_read_total[15m])` |"),
        "| which step costs most | `topk(3, rate(headrace_step_cpu_seconds_total[15m]))` |",
        "| is the driver saturated | `rate(headrace_batch_duration_seconds_sum[15m]) > 0.92` |",
        "| does the cluster start executors | `headrace_executors_registered < headrace_executors_desired` |",
        "| why does the autoscaler not request more | `headrace_autoscaler_blocked` |",
        "| how fast a backfill goes | `rate(headrace_gap_offsets_closed_total[15m])` |",
        "| and how much longer | `headrace_gap_offsets_open / (rate(headrace_gap_offsets_closed_total[15m]) > 0)` |",
        "| bytes per file | `rate(headrace_bytes_total[1h]) / rate(headrace_files_total[1h])` |", "",
    ]  # fmt: skip


def _dashboard() -> list[str]:
    return [
        "## The dashboard", "",
        "`helm/headrace/dashboards/headrace.json` is a dashboard for Grafana: import it, and choose the Prometheus",
        "that scrapes drivers and supervisors. Variables choose clusters, namespaces and pipelines. Prometheus adds",
        "the labels `cluster` (`external_labels` of a remote write) and `namespace` (a PodMonitor); without them all",
        "series are shown. Each panel has a description. `docs/dashboard.py` writes the file; a test checks each",
        "expression against the metrics above.", "",
    ]  # fmt: skip


def _receivers() -> list[str]:
    return [
        "## The catalog of Iceberg tables", "",
        "A catalog has no metrics of its own. What it takes of a commit is part of the phase `commit`",
        "(`headrace_driver_phase_seconds_total`); while it does not answer, `headrace_lag_seconds` grows, and the",
        "log has `catalog_unanswered` ([runbook](RUNBOOK.md#catalog-down)). A table of a route that it refuses shows",
        "in `headrace_target_behind_seconds`.", "",
        "## Lineage and traces", "",
        "Both are off until they have a URL. The images have the packages; elsewhere they are extras:",
        "`pip install 'headrace[openlineage,opentelemetry]'`.", "",
        "```yaml",
        "kafka: {bootstrap_servers: 'broker-1:9092'}",
        "registry: {url: 'http://registry:8081'}",
        "checkpoints: /var/lib/headrace/checkpoints",
        "openlineage:",
        "  url: http://marquez:5000                     # a receiver of OpenLineage",
        "opentelemetry:",
        "  url: http://collector:4318/v1/traces         # a collector that takes OTLP over HTTP",
        "pipelines:",
        "  clicks: {topics: [clicks], table: {location: /lake/clicks}, event_time: {field: event_time}}",
        "```", "",
        "- **OpenLineage**: each batch is a run of the job `clicks`, START and COMPLETE. Inputs are the topics with",
        "  the records that were read of them, the output is the table with its version, rows, files and bytes.",
        "- **OpenTelemetry**: each batch is a trace: a span `batch`, and beneath it one for each phase of the driver",
        "  (`look`, `tasks`, `commit`, `redo`). Headers for the collector come from `OTEL_EXPORTER_OTLP_HEADERS`.", "",
        "No batch waits for a receiver. Up to 256 commits wait for each; what finds no place, and what a receiver",
        "refuses or does not answer in time, is dropped and counted (`headrace_telemetry_dropped_total`).", "",
    ]  # fmt: skip


if __name__ == "__main__":
    (Path(__file__).parent / "METRICS.md").write_text(text(), encoding="utf-8")
