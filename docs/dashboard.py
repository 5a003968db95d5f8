"""Writes Grafana's dashboard, helm/headrace/dashboards/headrace.json: one source for its panels. `make reference`."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_FILE = Path(__file__).parents[1] / "helm" / "headrace" / "dashboards" / "headrace.json"
# Prometheus adds cluster and namespace to what it scrapes; `.*` also chooses series without them.
_PLACE = 'cluster=~"$cluster",namespace=~"$namespace"'
_WHERE = "{{cluster}} {{namespace}} "  # before each legend; nothing where they are not known
_P = f'{{{_PLACE},pipeline=~"$pipeline"}}'
_WIDTH, _HEIGHT = 24, 7
_WINDOW = "15m"  # of rates: counters move at commits, which are commit.max_delay apart


@dataclass(frozen=True)
class Query:
    """One expression of a panel. `legend` names labels in braces, as Grafana does."""

    expr: str
    legend: str = "{{pipeline}}"


@dataclass(frozen=True)
class Panel:
    """One picture: what it answers, in which unit, from what."""

    title: str
    unit: str  # Grafana's name of it
    queries: tuple[Query, ...]
    says: str  # shown where a person asks what it means
    width: int = 8
    kind: str = "timeseries"
    stacked: bool = False
    bad_above: float | None = None  # a number that is red from here on; only of `stat`
    words: Mapping[int | None, tuple[str, str]] = field(default_factory=dict)  # value → text and colour; None: no value


def _by(reduce: str, metric: str, labels: str = "pipeline") -> str:
    return f"{reduce} by (cluster, namespace, {labels}) ({metric}{_P})"


def _rate(metric: str, labels: str = "pipeline", call: str = "rate") -> str:
    return f"sum by (cluster, namespace, {labels}) ({call}({metric}{_P}[$window]))"


_LEVELS: Mapping[int | None, tuple[str, str]] = {
    0: ("healthy", "green"), 1: ("1 restart", "yellow"), 3: ("3 new run", "orange"),
    4: ("4 rebuild offsets", "red"), 5: ("5 skip to latest", "red"),
}  # fmt: skip


_NOW = (
    Panel("Lag", "s", (Query(_by("max", "headrace_lag_seconds")),), "How long the oldest offset that is not committed "
          "has waited.", 4, "stat"),
    Panel("Commit age", "s", (Query(_by("max", "headrace_commit_age_seconds")),), "Seconds since the newest commit. A "
          "topic without new records makes it grow too.", 4, "stat"),
    Panel("Alive", "none", (Query(_by("min", "headrace_pipeline_alive")),), "1 while the pipeline starts, runs, is "
          "paused or drains.", 4, "stat", words={0: ("down", "red"), 1: ("alive", "green")}),
    Panel("Open gaps", "none", (Query(_by("sum", "headrace_gaps_open")),), "Records that Kafka lost and nobody has "
          "brought back yet.", 4, "stat", bad_above=1, words={0: ("none", "green")}),
    Panel("Retention takes records in", "s", (Query(_by("min", "headrace_retention_headroom_seconds")),), "Until Kafka "
          "deletes the oldest offset that is not committed. No value: nothing waits.", 4, "stat",
          words={None: ("nothing waits", "green")}),
    Panel("Recovery", "none", (Query(_by("max", "headrace_recovery_level")),), "Recovery level that was applied "
          "last. From the supervisor.", 4, "stat", words=_LEVELS),
)  # fmt: skip
_FLOW = (
    Panel("Lag", "s", (Query(_by("max", "headrace_lag_seconds", "pipeline, topic"), "{{pipeline}} {{topic}}"),
                       Query(_by("max", "headrace_commit_max_delay_seconds"), "{{pipeline}} commit.max_delay")),
          "A sawtooth up to commit.max_delay is as it should be.", 8),
    Panel("Offsets that wait", "short", (Query(_by("sum", "headrace_lag_offsets", "pipeline, topic"),
                                               "{{pipeline}} {{topic}}"),),
          "Offsets between the frontier and the end of the log.", 8),
    Panel("Partitions that wait longest", "s", (Query(f"topk(5, headrace_lag_seconds{_P})",
                                                      "{{topic}}/{{partition}}"),),
          "Skew: one partition far above the others has a hot key, or a leader that is slow.", 8),
    Panel("Throughput against capacity", "rowsps", (
        Query(_rate("headrace_records_read_total"), "{{pipeline}} read"),
        Query(f"{_rate('headrace_records_read_total')} / {_rate('headrace_batch_duration_seconds_sum')}",
              "{{pipeline}} capacity")),
          "Capacity: records that would be read if batches filled the whole time. Where both meet, the driver is "
          "saturated.", 8),
    Panel("Share of time in batches", "percentunit", (Query(_rate("headrace_batch_duration_seconds_sum")),),
          "Above 0.92 nothing is left for a peak.", 8),
    Panel("Commits by reason", "short", (Query(
        _rate("headrace_commits_total", "pipeline, reason", "increase"), "{{pipeline}} {{reason}}"),),
          "In each window. size: enough for a file; timeout: commit.max_delay was over.", 8, stacked=True),
    Panel("Commit age", "s", (Query(_by("max", "headrace_commit_age_seconds")),
                              Query(_by("max", "headrace_batch_in_progress_seconds"), "{{pipeline}} batch under way")),
          "Seconds since the newest commit, and since the batch that is carried now began.", 8),
    Panel("Processor time by step", "percentunit", (Query(
        _rate("headrace_step_cpu_seconds_total", "step"), "{{step}}"),),
          "Processor seconds a second by step, of committed batches: 1 is one core. The JVM's are not in it.", 8,
          stacked=True),
    Panel("The driver's time", "percentunit", (Query(
        _rate("headrace_driver_phase_seconds_total", "phase"), "{{phase}}"),),
          "Wall seconds of the driver by phase.", 8, stacked=True),
)  # fmt: skip
_LAKE = (
    Panel("Buckets", "short", (
        Query(_by("sum", "headrace_open_buckets"), "{{pipeline}} open"),
        Query(_by("sum", "headrace_unsealed_buckets", "pipeline, state"), "{{pipeline}} {{state}}")),
          "Buckets that have rows and are not sealed. blocked: a person has to act.", 8),
    Panel("Seals", "short", (Query(_rate("headrace_seals_total", "pipeline, kind", "increase"),
                                   "{{pipeline}} {{kind}}"),),
          "Manifests in each window: of a bucket's first sealing, or again after late rows.", 8, stacked=True),
    Panel("Watermark", "s", (Query(_by("max", "headrace_watermark_delay_seconds")),
                             Query(_by("max", "headrace_newest_event_age_seconds"), "{{pipeline}} newest event")),
          "Now minus the table's watermark. It grows while a partition is behind.", 8),
    Panel("Late rows", "rowsps", (Query(_rate("headrace_late_rows_total")),),
          "Rows whose bucket was closed, whatever became of them (seal.late).", 8),
    Panel("Records by outcome", "rowsps", (Query(
        _rate("headrace_records_total", "outcome"), "{{outcome}}"),),
          "Every record that was read has one.", 8, stacked=True),
    Panel("Dead letters and quarantined", "percentunit", (Query(
        f"{_rate('headrace_dead_letter_table_rows_total')} / {_rate('headrace_records_read_total')}"),),
          "Share of the records that became no row. limits.max_failed_ratio stops the pipeline.", 8),
    Panel("Bytes into the lake", "binBps", (Query(_rate("headrace_bytes_total")),
                                            Query(_rate("headrace_read_bytes_total"), "{{pipeline}} read")),
          "Parquet that is committed, and Avro that was read for it.", 8),
    Panel("Bytes a file", "bytes", (Query(f"{_rate('headrace_bytes_total')} / {_rate('headrace_files_total')}"),),
          "Far below roll.target_file_size: many buckets at once, or commits that come too often.", 8),
    Panel("Spilled", "binBps", (Query(_rate("headrace_spilled_bytes_total")),),
          "What tasks put to local disk because memory.buffer was full.", 8),
)  # fmt: skip
_CARE = (
    Panel("Executors", "short", tuple(Query(f"headrace_executors_{kind}{{{_PLACE}}}", kind) for kind in (
        "recommended", "desired", "requested", "registered", "draining")),
          "What would be right, what was decided, what Spark was asked for, and what there is.", 8),
    Panel("Recovery level", "short", (Query(_by("max", "headrace_recovery_level")),),
          "0: healthy. 1 restart, 3 new run, 4 rebuild committed offsets, 5 skip to latest.", 8,
          words=_LEVELS),
    Panel("What recovery did", "short", (Query(
        _by("sum", "headrace_recovery_total", "level, result"), "{{level}} {{result}}"),),
          "Since the supervisor began, by level and how it went. No increase: a counter that is born at 1 has none.", 8,
          stacked=True),
    Panel("Unhealthy for", "s", (Query(_by("max", "headrace_recovery_unhealthy_seconds")),),
          "Seconds since the pipeline failed and has not committed again.", 8),
    Panel("Pending hook deliveries", "s", (Query(
        _by("max", "headrace_hook_oldest_pending_seconds", "pipeline, hook"), "{{pipeline}} {{hook}}"),),
          "Since the oldest bucket was sealed that a hook is still to be told of.", 8),
    Panel("Schemas", "short", (Query(
        _by("sum", "headrace_schemas", "pipeline, decoder"), "{{pipeline}} {{decoder}}"),),
          "By decoder. The records of a rejected schema are dead letters.", 8),
    Panel("Offsets in open gaps", "short", (Query(_by("sum", "headrace_gap_offsets_open")),),
          "Offsets that were skipped, and whose records were neither brought back nor given up.", 8),
    Panel("Backfill", "cps", (Query(_rate("headrace_gap_offsets_closed_total")),),
          "Offsets of gaps that are brought back each second. A gap that is given up, or a rewind, is a spike.", 8),
    Panel("Gaps: how old, how much longer", "s", (
        Query(_by("max", "headrace_gap_oldest_age_seconds"), "{{pipeline}} oldest"),
        Query(f"{_by('sum', 'headrace_gap_offsets_open')} / ({_rate('headrace_gap_offsets_closed_total')} > 0)",
              "{{pipeline}} to go")),
          "Age of the oldest open gap; and what is left by the rate of the backfill, while one brings something.", 8),
)  # fmt: skip
_TABLES = (
    Panel("Tables behind", "s", (Query(
        f"topk(10, {_by('max', 'headrace_target_behind_seconds', 'pipeline, target')} > 0)",
        "{{pipeline}} {{target}}"),),
          "Age of the oldest entry that a table of a route does not have. Nothing: each has all that is its own.", 8),
    Panel("Files that wait for tables", "bytes", (
        Query(f"topk(10, {_by('max', 'headrace_target_held_bytes', 'pipeline, target')} > 0)",
              "{{pipeline}} {{target}}"),
        Query(_by("max", "headrace_max_held_bytes"), "{{pipeline}} route.held.max_bytes")),
          "Bytes at the pipeline's log, for each table that refuses. At the maximum route.held.on_limit decides.", 8),
    Panel("Entries that wait for tables", "short", (Query(
        _by("sum", "headrace_target_waiting_entries")),),
          "Entries of the pipeline's log that its tables do not have yet; of several tables each counts.", 8),
    Panel("Rows by table", "rowsps", (Query(
        f"topk(10, {_rate('headrace_target_rows_total', 'pipeline, target')})", "{{pipeline}} {{target}}"),),
          "The ten tables of routes with the most rows.", 8),
    Panel("Names without a table", "short", (Query(
        _by("max", "headrace_names_without_table", "pipeline, reason"), "{{pipeline}} {{reason}}"),),
          "Names that a rule of a route matches, and that may have no table: their records are unrouted.", 8),
    Panel("Topics, and starts for new ones", "short", (
        Query(_by("max", "headrace_topics"), "{{pipeline}} topics"),
        Query(_rate("headrace_topic_restarts_total", call="increase"), "{{pipeline}} starts")),
          "Topics that are read, and starts of the query because others appeared that match the pattern.", 8),
    Panel("Configuration in force", "none", (
        Query(f"headrace_config_last_reload_successful{{{_PLACE}}}", "in force"),
        Query(f"headrace_config_restart_needed{{{_PLACE}}}", "keys that need a restart")),
          "1: the file as it was last read is in force. 0: it was invalid and changed nothing.", 8),
    Panel("Retention that waits", "short", (Query(_by("max", "headrace_retention_waits")),),
          "Tables whose shorter retention drops nothing until `headrace retention --yes` accepts it.", 8),
)  # fmt: skip
ROWS = {"Now": _NOW, "Flow": _FLOW, "Lake": _LAKE, "Tables": _TABLES, "Care": _CARE}


def text() -> str:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(_row(title, y, len(panels)))
        y += 1
        x = 0
        height = 4 if row[0].kind == "stat" else _HEIGHT
        for panel in row:
            if x + panel.width > _WIDTH:
                x, y = 0, y + height
            place = {"x": x, "y": y, "w": panel.width, "h": height}
            panels.append(_panel(panel, place, len(panels)))
            x += panel.width
        y += height
    return json.dumps(_dashboard(panels), indent=1, ensure_ascii=False) + "\n"


def _dashboard(panels: list[dict[str, Any]]) -> dict[str, Any]:
    source = {
        "name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0,
        "refresh": 1, "current": {}, "options": [],
    }  # fmt: skip
    cluster, namespace = 'cluster=~"$cluster"', 'namespace=~"$namespace"'
    chosen = [
        _variable("cluster", ""), _variable("namespace", f"{{{cluster}}}"),
        _variable("pipeline", f"{{{cluster},{namespace}}}"),
    ]  # fmt: skip
    spans = ["5m", "15m", "1h", "6h"]
    window = {
        "name": "window", "label": "rates over", "type": "interval", "query": ",".join(spans), "refresh": 2,
        "auto": False, "current": {"text": _WINDOW, "value": _WINDOW},
        "options": [{"text": span, "value": span, "selected": span == _WINDOW} for span in spans],
    }  # fmt: skip
    return {
        "uid": "headrace", "title": "headrace", "tags": ["headrace"], "schemaVersion": 39, "version": 1,
        "editable": True, "graphTooltip": 1, "refresh": "30s", "timezone": "utc",
        "time": {"from": "now-6h", "to": "now"}, "templating": {"list": [source, *chosen, window]},
        "annotations": {"list": []}, "links": [], "panels": panels,
    }  # fmt: skip


def _variable(label: str, within: str) -> dict[str, Any]:
    """Return the variable that chooses values of a label, of the series that those before it choose."""
    query = f"label_values(headrace_pipeline_alive{within}, {label})"
    return {
        "name": label, "type": "query", "datasource": _SOURCE, "refresh": 2, "sort": 1, "multi": True,
        "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}, "options": [],
        "query": {"query": query, "refId": label}, "definition": query,
    }  # fmt: skip


_SOURCE = {"type": "prometheus", "uid": "${source}"}


def _row(title: str, y: int, number: int) -> dict[str, Any]:
    position = {"x": 0, "y": y, "w": _WIDTH, "h": 1}
    return {"id": number + 1, "type": "row", "title": title, "collapsed": False, "gridPos": position, "panels": []}


def _panel(panel: Panel, position: dict[str, int], number: int) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.bad_above is not None:
        steps.append({"color": "red", "value": panel.bad_above})
    look = {
        "drawStyle": "line", "lineWidth": 1, "fillOpacity": 25 if panel.stacked else 8, "showPoints": "never",
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
    }  # fmt: skip
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi", "sort": "desc"},
    }  # fmt: skip
    if panel.kind == "stat":
        options = {"colorMode": "value", "graphMode": "area", "reduceOptions": {"calcs": ["lastNotNull"]}}
    drawn = {} if panel.kind == "stat" else {"custom": look}
    defaults = {
        "unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps},
        "mappings": _mappings(panel.words),
    }  # fmt: skip
    return {
        "id": number + 1, "type": panel.kind, "title": panel.title, "description": panel.says, "gridPos": position,
        "datasource": _SOURCE, "options": options,
        "fieldConfig": {"defaults": {**defaults, **drawn}, "overrides": []},
        "targets": [
            {"refId": chr(65 + index), "datasource": _SOURCE, "expr": query.expr, "legendFormat": _WHERE + query.legend}
            for index, query in enumerate(panel.queries)
        ],
    }  # fmt: skip


def _mappings(words: Mapping[int | None, tuple[str, str]]) -> list[dict[str, Any]]:
    shown = {
        value: {"text": text, "color": color, "index": index}
        for index, (value, (text, color)) in enumerate(words.items())
    }
    values = {str(value): each for value, each in shown.items() if value is not None}
    mappings: list[dict[str, Any]] = [{"type": "value", "options": values}] if values else []
    if None in shown:
        mappings.append({"type": "special", "options": {"match": "null", "result": shown[None]}})
    return mappings


if __name__ == "__main__":
    _FILE.parent.mkdir(parents=True, exist_ok=True)
    _FILE.write_text(text(), encoding="utf-8")
