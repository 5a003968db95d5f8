"""Each metric has a definition, a unit and a window, and says the same as the key of `/status` with the same fact."""

import re
from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, get_args

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from headrace.autoscaler.runtime.endpoints import CATALOGUE as AUTOSCALER
from headrace.recovery.supervisor.endpoints import CATALOGUE as SUPERVISOR
from headrace.writer.batch.lateness import Lateness
from headrace.writer.columns.schema_plan import RejectedSchema
from headrace.writer.commit.rate_limit import RateLimit
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.hooks.outbox import Health
from headrace.writer.sealing.bucket_states import BucketCounts
from headrace.writer.sealing.watermark import Watermark
from headrace.writer.status.document import document
from headrace.writer.status.model import Commit, Sample, View
from headrace.writer.status.progress import Progress
from headrace.writer.status.rate_limit import EffectiveLimit, LimitState
from headrace.writer.status.table_facts import GapFacts, TableContents
from headrace.writer.table.ledger.gap_record import GapOpening, GapRecord
from headrace.writer.table.pipeline_tables import PendingSideEntries, TargetState
from headrace.writer.web.metric_types import BASE_UNITS, Metric, Unit, Window
from headrace.writer.web.metrics_catalogue import CATALOGUE as DRIVER
from headrace.writer.web.metrics_export import encode_families, families
from headrace.writer.web.store_metrics import STORE_METRICS
from tests.support.commits import LIMITS, account, facts
from tests.support.json_keys import documented_keys
from tests.support.pipeline_states import NOW, pipeline_states

METRICS: list[Metric[Any]] = [*DRIVER, *SUPERVISOR, *AUTOSCALER]
BY_NAME = {metric.name: metric for metric in METRICS}
SOURCE = ("clicks", 0)

# Metric → the key of `/status` that has the same fact: a number, or a number of each value of the metric's last label.
KEYS = {
    "headrace_rate_limit_records_per_second": "rate_limit.records_per_second",
    "headrace_rate_limit_bytes_per_second": "rate_limit.bytes_per_second",
    "headrace_rate_limit_wait_seconds_total": "rate_limit.wait_seconds",
    "headrace_epoch": "epoch",
    "headrace_run_id": "run",
    "headrace_restarts_total": "restarts",
    "headrace_topic_restarts_total": "topic_restarts",
    "headrace_topics": "topics",
    "headrace_lag_source_age_seconds": "lag.source_age_seconds",
    "headrace_schemas": "schemas",
    "headrace_offset_commit_failures_total": "offset_commit_failures",
    "headrace_clock_steps_total": "clock_steps",
    "headrace_commit_age_seconds": "commit_age_seconds",
    "headrace_commit_max_delay_seconds": "limits.delay_max_seconds",
    "headrace_newest_event_age_seconds": "event_time_newest_age_seconds",
    "headrace_batch_in_progress_seconds": "batch.seconds",
    "headrace_step_cpu_seconds_total": "totals.step_cpu_seconds",
    "headrace_commits_total": "totals.commits",
    "headrace_records_read_total": "totals.records.read",
    "headrace_read_bytes_total": "totals.value_bytes",
    "headrace_records_total": "totals.records",
    "headrace_dead_letters_by_rule_total": "totals.dead_letters_by_rule",
    "headrace_late_rows_total": "totals.late_rows",
    "headrace_late_rows_by_policy_total": "totals.late_rows_by",
    "headrace_raw_records_total": "totals.raw_records",
    "headrace_raw_bytes_total": "totals.raw_bytes",
    "headrace_raw_files_total": "totals.raw_files",
    "headrace_offsets_without_records_total": "totals.offsets_without_records",
    "headrace_files_total": "totals.files",
    "headrace_bytes_total": "totals.bytes",
    "headrace_spilled_bytes_total": "totals.spilled_bytes",
    "headrace_target_rows_total": "targets.rows",
    "headrace_target_applied_version": "targets.applied_version",
    "headrace_target_waiting_entries": "targets.waiting_entries",
    "headrace_target_held_bytes": "targets.held_bytes",
    "headrace_max_held_bytes": "max_held_bytes",
    "headrace_names_without_table": "names_without_table",
    "headrace_gaps_open": "gaps.count",
    "headrace_gap_offsets_open": "gaps.offsets",
    "headrace_table_rows": "table.rows",
    "headrace_table_files": "table.files",
    "headrace_table_bytes": "table.bytes",
    "headrace_dead_letter_rows": "table.dead_letters",
    "headrace_table_count_age_seconds": "table.age_seconds",
    "headrace_watermark_delay_seconds": "seals.watermark_delay_seconds",
    "headrace_open_buckets": "seals.open",
    "headrace_hook_deliveries_total": "hooks.delivered_since_start",
    "headrace_hook_failures_total": "hooks.failures",
    "headrace_hook_pending": "hooks.waiting",
}
# Of these the key is null where the metric says 0: there is no batch, no limit, no driver that delivers.
_ZERO_FOR_NULL = {
    "headrace_batch_in_progress_seconds",
    "headrace_rate_limit_wait_seconds_total",
    "headrace_hook_deliveries_total",
}
# The age of an answer that never came is that of the driver.
_NEVER_NULL = {"headrace_lag_source_age_seconds"}


def test_a_name_with_a_unit_in_it_has_the_unit_that_is_counted() -> None:
    units = {unit for unit in get_args(Unit) if unit.endswith("s")}
    named = {}
    for metric in METRICS:
        words = [word for word in metric.name.split("_") if word in units]
        if words:
            # Of `offsets_without_records` offsets are counted.
            named[metric.name] = (words[0], metric.unit.partition("/")[0])
    assert len(named) > 60
    assert {name: pair for name, pair in named.items() if pair[0] != pair[1]} == {}


def _lateness() -> Lateness:
    late = Lateness(buckets=Counter({("x",): 4}), elsewhere=Counter({(("x",), "late_table"): 3}))
    late.behind[0] = 23
    late.beyond[1] = 7
    return late


def _progress_of_all() -> Progress:
    """Return the progress of a pipeline that has a value for each metric."""
    progress = Progress("clicks", now=lambda: NOW, seconds=lambda: 7.0)
    progress.record_restart("a topic was created again")
    opened = GapOpening(3, NOW, "latest", (OffsetRange(TopicPartition("clicks", 1, 0), 100, 400),), (), "", "", {})
    progress.record_start(
        epoch=4,
        run=2,
        frontier={SOURCE: 0},
        limits=LIMITS,
        buckets=[("x",)],
        recent=[Commit(5, NOW - timedelta(hours=1), facts(0, 9))],
        gaps=GapFacts(1, 300, 11, (GapRecord("0123456789abcdef", opened),)),
        incarnations={"clicks": 2},
    )
    progress.set_running()
    progress.shift_clock(timedelta(0))
    progress.count_mirror_failure()
    progress.set_schemas({1: RejectedSchema("no")})
    progress.set_telemetry("openlineage", 4, 1)
    progress.set_retention({"clicks": timedelta(hours=1)})
    progress.add_sample(Sample(NOW - timedelta(seconds=20), {SOURCE: 30}), {SOURCE: 0})
    progress.add_sample(Sample(NOW - timedelta(seconds=10), {SOURCE: 90}), {SOURCE: 0})
    counts = {"read": 30, "rows": 20, "dead_letters": 5, "quarantined": 2, "tombstones": 1, "filtered": 2, "late": 3}
    progress.begin_batch(0, "look")
    progress.record_commit(
        6,
        {
            **facts(0, 30),
            "ranges": [account(0, 32, **counts)],
            "spilled_bytes": 17,
            "dead_letter_bytes": 19,
            "raw": {"bytes": 23, "files": 2},
            "specs": {"filtered": {"clicks_only": {"where": 2}}},
            "targets": {"a": {"rows": 20, "bytes": 90, "files": 1}},
            "value_bytes": 2_100,
            "unrouted": 2,
            "unfit_members": {"dropped": 3, "nulled": 2},
            "late": _lateness().to_json(),
        },
        {SOURCE: 32},
        [("y",)],
    )
    progress.begin_batch(1, "tasks")
    progress.set(
        rate_limit=LimitState(EffectiveLimit(RateLimit(100.0, 900.0)), wait_seconds=3.5),
        contents=TableContents(NOW - timedelta(seconds=4), 1_200, 41, 9_000, 7),
        bucket_counts=BucketCounts(
            NOW, Watermark(NOW - timedelta(minutes=2)), NOW - timedelta(minutes=3), 5, 1, 2, sealed=6, resealed=1
        ),
        hooks={"druid": Health("http://druid", 40, 3, 2, NOW - timedelta(seconds=50), "", 6)},
        targets={"a": TargetState("s3://lake/a", PendingSideEntries(7))},
        max_held_bytes=2**20,
        without_table={"refused": 1, "beyond_max": 2},
    )
    return progress


def _views() -> dict[str, View]:
    states = pipeline_states()
    return {
        "all figures": _progress_of_all().view(),
        "just begun": View("clicks", NOW),
        **{name: view for name, view in states.items() if view.state != "unknown"},
    }


VIEWS = _views()


def _scrape(view: View) -> dict[str, dict[str, float]]:
    """Return the values of each metric by their last label; of several with the same one the sum."""
    progress = Progress("clicks")
    progress._view = view
    values: dict[str, dict[str, float]] = {}
    for family in families({"clicks": progress}, NOW):
        for sample in family.samples:
            label = ""
            if sample.name in BY_NAME:
                label = sample.labels.get(BY_NAME[sample.name].labels[-1], "") if BY_NAME[sample.name].labels else ""
            by_label = values.setdefault(sample.name, {})
            by_label[label] = by_label.get(label, 0) + sample.value
    return values


def _figure(pipeline: dict[str, Any], path: str) -> Any:
    """Return what stands at a path of keys, of targets and hooks by name; None where a part is null."""
    first, *others = path.split(".")
    value = pipeline[first]
    if first == "targets":
        return {target["name"]: target[others[0]] for target in value}
    if first == "hooks":
        return {name: hook[others[0]] for name, hook in value.items()}
    for key in others:
        if value is None:
            return None
        value = value.get(key)
    return value


def _without_null(figure: Any, by_label: Iterable[str]) -> dict[str, float]:
    """Return a figure by label, without what is null; a number stands at the only label."""
    if isinstance(figure, dict):
        return {key: number for key, number in figure.items() if number is not None and key != "read"}
    (label,) = by_label
    return {label: figure}


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_metric_has_a_definition_a_unit_and_a_window(metric: Metric[Any]) -> None:
    assert re.fullmatch(r"headrace(_[a-z]+)+", metric.name)
    assert re.fullmatch(r"[A-Z0-9].*\.", metric.definition)
    assert not re.match(r"(Those|These|The same|Of them)\b", metric.definition), "it stands alone in a scrape"
    assert isinstance(metric.window, Window)
    assert metric.help == f"{metric.definition} [{metric.unit}, {metric.window.phrase}]"


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_a_name_agrees_with_its_type_unit_and_window(metric: Metric[Any]) -> None:
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    if metric.kind != "gauge":
        assert metric.window.is_span, "what only grows counts since something"
    base_name = metric.name.removesuffix("_total")
    for unit in BASE_UNITS:
        assert base_name.endswith(f"_{unit}") == (metric.unit == unit)
    assert base_name.endswith("_per_second") <= metric.unit.endswith("/second")
    for noun in ("rows", "files", "offsets", "buckets", "commits", "gaps", "topics", "schemas", "entries"):
        assert base_name.endswith(f"_{noun}") <= (metric.unit == noun)


def test_names_are_unique_and_every_window_is_of_a_metric() -> None:
    assert len(BY_NAME) == len(METRICS)
    assert {metric.window for metric in METRICS} == set(Window)


def test_a_scrape_in_openmetrics_names_base_units() -> None:
    progress = Progress("clicks")
    body, _ = encode_families(families({"clicks": progress}, NOW), "application/openmetrics-text; version=1.0.0")
    parsed = {family.name: family for family in text_string_to_metric_families(body.decode())}
    for metric in DRIVER:
        family = parsed[metric.name.removesuffix("_total")]
        assert family.unit == (metric.unit if metric.unit in BASE_UNITS else "")
        assert family.documentation == metric.help


def test_the_view_of_all_figures_has_a_value_for_each_metric() -> None:
    scraped = _scrape(VIEWS["all figures"])
    # Requests are of the process, not of a view: their values are of tests/unit/test_request_counts.py.
    of_stores = {metric.name for metric in STORE_METRICS}
    missing = {metric.name for metric in DRIVER if metric.kind != "histogram" and metric.name not in scraped}
    assert missing <= of_stores


@pytest.mark.parametrize("name", list(KEYS))
@pytest.mark.parametrize("state", list(VIEWS))
def test_a_metric_has_the_value_of_its_key(name: str, state: str) -> None:
    view = VIEWS[state]
    figure = _figure(document([view], NOW)["pipelines"]["clicks"], KEYS[name])
    by_label = _scrape(view).get(name, {})
    if figure is None and name in _NEVER_NULL:
        return
    if figure is None and name in _ZERO_FOR_NULL:
        assert set(by_label.values()) <= {0.0}
    elif figure is None:
        assert by_label == {}, "what is not known has no value"
    else:
        expected = _without_null(figure, by_label)
        if BY_NAME[name].kind == "counter":
            # A label may have a 0 before anything was counted.
            by_label = {label: value for label, value in by_label.items() if value or label in expected}
            expected = {label: value for label, value in expected.items() if value or label in by_label}
        assert by_label == pytest.approx(expected, abs=0.001)


@pytest.mark.parametrize("name", list(KEYS))
def test_a_key_says_the_window_of_its_metric(name: str) -> None:
    window = BY_NAME[name].window
    words = documented_keys()["status"][f"pipelines.*.{KEYS[name].split('.')[0]}"]
    if window.is_span or window.phrase.startswith("last look"):
        assert window.phrase in words
