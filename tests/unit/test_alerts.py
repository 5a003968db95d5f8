"""The alerts: each fires on what it is for and is quiet otherwise; metrics, labels and the runbook's sections exist."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.autoscaler.runtime.endpoints import CATALOGUE as AUTOSCALER
from headrace.recovery.supervisor.endpoints import CATALOGUE as SUPERVISOR
from headrace.writer.core.pages import page_address
from headrace.writer.web.metrics_catalogue import CATALOGUE as DRIVER
from tests.support.promql import evaluate, fires, selectors, series

ROOT = Path(__file__).parents[2]
FILE = ROOT / "recovery" / "alerts.yaml"
RUNBOOK = (ROOT / "docs" / "RUNBOOK.md").read_text()
ALL: list[dict[str, Any]] = [rule for group in yaml.safe_load(FILE.read_text())["groups"] for rule in group["rules"]]
RULES = [rule for rule in ALL if "record" not in rule]
RECORDED = {rule["record"]: rule for rule in ALL if "record" in rule}
NAMED = {rule["alert"]: rule for rule in RULES}
HOUR = 60  # samples
LABELS = {m.name: {*m.labels} for m in (*DRIVER, *SUPERVISOR, *AUTOSCALER)} | {
    f"{m.name}{suffix}": {*m.labels} for m in DRIVER if m.kind == "histogram" for suffix in ("_sum", "_count")
}

P, T = 'pipeline="clicks"', 'pipeline="clicks",topic="clicks",partition="0"'
Given = Mapping[str, Sequence[float | None]]


def flat(value: float, hours: float = 2) -> list[float | None]:
    return [value] * int(hours * HOUR + 1)


def steps(*values: float | None) -> list[float | None]:
    """Half an hour of each value."""
    return [value for value in values for _ in range(HOUR // 2)]


def rising(by: float, hours: float = 2, start: float = 0) -> list[float | None]:
    """`by` a minute."""
    return [start + by * i for i in range(int(hours * HOUR + 1))]


HEADROOM, LAG = f"headrace_retention_headroom_seconds{{{T}}}", f"headrace_lag_seconds{{{T}}}"
ROWS, AGE = f"headrace_lag_offsets{{{T}}}", f"headrace_commit_age_seconds{{{P}}}"
DELAY, PAUSED = f"headrace_commit_max_delay_seconds{{{P}}}", f"headrace_paused{{{P}}}"
EPOCH, RUN = f"headrace_epoch{{{P}}}", f"headrace_run_id{{{P}}}"
BEHIND = f'headrace_target_behind_seconds{{{P},target="com.shop.Click"}}'
HELD = f'headrace_target_held_bytes{{{P},target="com.shop.Click"}}'
GROWN = f"headrace_topic_restarts_total{{{P}}}"
RESTARTS, LEVEL = f"headrace_restarts_total{{{P}}}", f"headrace_recovery_level{{{P}}}"
LEASE_WAITS = f"headrace_lease_waits{{{P}}}"
LEASE_AWAITED = f"headrace_lease_awaited{{{P}}}"
ALIVE, UP = f"headrace_pipeline_alive{{{P}}}", f"headrace_supervised_up{{{P}}}"
DLQ, READ = f"headrace_dead_letter_table_rows_total{{{P}}}", f"headrace_records_read_total{{{P}}}"
RULED = f"headrace_dead_letters_by_rule_total{{{P}}}"
GAP_AGE, SETTLED = f"headrace_gap_oldest_age_seconds{{{P}}}", f"headrace_gap_offsets_closed_total{{{P}}}"
RETENTION = 'headrace_topic_retention_seconds{pipeline="clicks",topic="clicks"}'
OTHER = 'headrace_topic_retention_seconds{pipeline="clicks",topic="views"}'
LEFT = f"headrace_gap_offsets_open{{{P}}}"
INCARNATION = 'headrace_topic_incarnation{pipeline="clicks",topic="clicks"}'
NAMELESS = f'headrace_names_without_table{{{P},reason="beyond_max"}}'
REJECTED = f'headrace_schemas{{{P},decoder="rejected"}}'
BLOCKED = 'headrace_autoscaler_blocked{{by="{}"}}'
HOOK = 'headrace_hook_oldest_pending_seconds{pipeline="clicks",hook="druid"}'

# Alert → what it is for, and what it must not be taken for.
CASES: dict[str, tuple[list[Given], list[Given]]] = {
    "HeadraceRetentionNear": (
        [{HEADROOM: flat(5 * 3600), LAG: flat(60 * 3600)}],
        [
            {HEADROOM: flat(30 * 3600), LAG: flat(138 * 3600)},
            {HEADROOM: flat(3 * 3600), LAG: flat(600)},  # a topic of a short retention, and all is well
            {LAG: flat(0)},  # nothing waits
        ],
    ),
    "HeadraceRetentionShrinks": (
        [{HEADROOM: flat(20 * 3600), LAG: flat(148 * 3600)}],
        [{HEADROOM: flat(20 * 3600), LAG: flat(4 * 3600)}, {HEADROOM: flat(100 * 3600), LAG: flat(101 * 3600)}],
    ),
    "HeadraceGapOpen": ([{f"headrace_gaps_open{{{P}}}": flat(1)}], [{f"headrace_gaps_open{{{P}}}": flat(0)}]),
    "HeadraceGapAges": (
        [{GAP_AGE: flat(40 * 3600), RETENTION: flat(72 * 3600), OTHER: flat(168 * 3600)}],
        [
            {GAP_AGE: flat(30 * 3600), RETENTION: flat(72 * 3600)},
            {GAP_AGE: flat(400 * 3600)},  # a topic that keeps all records
            {RETENTION: flat(3600)},  # no gap is open
        ],
    ),
    "HeadraceBackfillStalls": (
        [{GAP_AGE: rising(60, 2, 3000), SETTLED: flat(900)}],
        [
            {GAP_AGE: rising(60, 2, 3000), SETTLED: rising(5_000)},  # it is being filled
            {GAP_AGE: rising(60, 0.5), SETTLED: flat(0, 0.5)},  # it is young
            {GAP_AGE: rising(60, 2, 3000), SETTLED: [*flat(0, 1.5), *rising(5_000, 0.5)]},  # a backfill has begun
            {SETTLED: flat(900)},
        ],
    ),
    "HeadraceOffsetsWithoutRecords": (
        [{f"headrace_offsets_without_records_total{{{P}}}": steps(0, 0, 0, 3)}],
        [{f"headrace_offsets_without_records_total{{{P}}}": flat(3)}],
    ),
    "HeadraceTopicCreatedAgain": (
        [{INCARNATION: steps(1, 1, 2)}, {INCARNATION: steps(1, None, 2)}],
        [{INCARNATION: flat(2)}],
    ),
    "HeadraceRecoveryHalted": (
        [{f"headrace_recovery_halted{{{P}}}": flat(1)}], [{f"headrace_recovery_halted{{{P}}}": flat(0)}],
    ),
    "HeadraceRecoveryLevelHigh": ([{LEVEL: [*flat(0), 5, 5]}, {LEVEL: [*flat(0), 4]}], [{LEVEL: flat(3)}]),
    "HeadraceUnhealthy": (
        [{f"headrace_recovery_unhealthy_seconds{{{P}}}": rising(60)}],
        [{f"headrace_recovery_unhealthy_seconds{{{P}}}": [*flat(0), 0, 60, 120, 180]}],
    ),
    "HeadraceTargetBehind": ([{BEHIND: rising(60)}], [{BEHIND: flat(0)}, {BEHIND: [*flat(0), 0, 60, 120, 0]}]),
    "HeadraceHeldNearLimit": (
        [{HELD: flat(90), f"headrace_max_held_bytes{{{P}}}": flat(100)}],
        [{HELD: flat(80), f"headrace_max_held_bytes{{{P}}}": flat(100)}, {HELD: flat(90)}],
    ),
    "HeadraceConfigInvalid": (
        [{"headrace_config_last_reload_successful": flat(0)}],
        [{"headrace_config_last_reload_successful": [*flat(1), 0, 0, 0]}],
    ),
    "HeadraceRetentionWaits": (
        [{f"headrace_retention_waits{{{P}}}": flat(1)}],
        [{f"headrace_retention_waits{{{P}}}": flat(0)}, {f"headrace_retention_waits{{{P}}}": [*flat(0), 1, 1, 0]}],
    ),
    "HeadraceRecovering": ([{LEVEL: flat(1)}], [{LEVEL: [*flat(0), *([1] * 10)]}, {LEVEL: flat(0)}]),
    "HeadraceNewRunsOften": (
        [{RUN: [1, *([2] * 20), *([3] * 20), *([4] * 10)], GROWN: [0] * 51}],
        [{RUN: steps(1, 1, 2), GROWN: flat(0, 1.5)}, {RUN: steps(*range(6)), GROWN: steps(*range(6))}],
    ),
    "HeadraceStartsOften": (
        [{EPOCH: [n // 5 for n in range(50)], GROWN: [0] * 50}, {RESTARTS: rising(0.1, 1)}],
        [
            {EPOCH: steps(1, 2, 3), RESTARTS: flat(9), GROWN: flat(0, 1.5)},
            {EPOCH: [n // 5 for n in range(50)], GROWN: [n // 5 for n in range(50)]},
        ],
    ),
    "HeadraceLeaseLost": (
        [{f"headrace_lease_lost_total{{{P}}}": steps(0, 0, 1)}], [{f"headrace_lease_lost_total{{{P}}}": flat(0)}],
    ),
    "HeadraceDown": (
        [{ALIVE: flat(0), UP: flat(1)}, {UP: flat(0)}, {ALIVE: flat(0), LEASE_WAITS: flat(0)}],
        [
            {ALIVE: flat(1), UP: flat(1)},
            {ALIVE: flat(1), UP: [*flat(1), 0, 0, 0, 0]},
            {ALIVE: flat(0), LEASE_WAITS: flat(1), UP: flat(0), LEASE_AWAITED: flat(1)},  # another process runs it
        ],
    ),
    "HeadraceLagHigh": (
        [{LAG: flat(2200), DELAY: flat(600)}],
        [{LAG: [(60.0 * i) % 720 for i in range(121)], DELAY: flat(600)}],  # the sawtooth of commits
    ),
    "HeadraceLagGrows": (
        [{LAG: flat(1400), DELAY: flat(600)}], [{LAG: [(60.0 * i) % 720 for i in range(121)], DELAY: flat(600)}],
    ),
    "HeadraceLagUnknown": (
        [{f"headrace_lag_source_age_seconds{{{P}}}": rising(60)}],
        [{f"headrace_lag_source_age_seconds{{{P}}}": flat(15)}],
    ),
    "HeadraceCommitOld": (
        [{AGE: flat(2000), DELAY: flat(600), ROWS: flat(5), PAUSED: flat(0)}],
        [
            {AGE: flat(2000), DELAY: flat(600), ROWS: flat(0), PAUSED: flat(0)},  # a topic without new records
            {AGE: flat(2000), DELAY: flat(3600), ROWS: flat(5), PAUSED: flat(0)},  # commits are that far apart
            {AGE: flat(2000), DELAY: flat(600), ROWS: flat(5), PAUSED: flat(1)},
        ],
    ),
    "HeadraceSaturated": (
        [{f"headrace_batch_duration_seconds_sum{{{P}}}": rising(59)}],
        [{f"headrace_batch_duration_seconds_sum{{{P}}}": rising(30)}],
    ),
    "HeadracePaused": ([{PAUSED: flat(1)}], [{PAUSED: steps(0, 0, 0, 1)}]),
    "HeadraceDeadLetters": (
        [
            {DLQ: rising(20), RULED: flat(0), READ: rising(1_000)},
            {DLQ: rising(520), RULED: rising(500), READ: rising(1_000)},
        ],
        [
            {DLQ: rising(5), RULED: flat(0), READ: rising(1_000)},
            {DLQ: rising(500), RULED: rising(500), READ: rising(1_000)},
            {DLQ: flat(9), RULED: flat(0), READ: flat(9)},
        ],
    ),
    "HeadraceDeadLettersByRule": (
        [{RULED: rising(20), READ: rising(1_000)}],
        [{RULED: rising(5), READ: rising(1_000)}, {RULED: flat(0), DLQ: rising(500), READ: rising(1_000)}],
    ),
    "HeadraceSchemaRejected": (
        [{REJECTED: flat(1)}],
        [{REJECTED: flat(0), f'headrace_schemas{{{P},decoder="native"}}': flat(4)}],
    ),
    "HeadraceNamesWithoutTable": ([{NAMELESS: flat(1)}], [{NAMELESS: flat(0)}]),
    "HeadraceBucketsBlocked": (
        [{f'headrace_unsealed_buckets{{{P},state="blocked"}}': flat(2)}],
        [{f'headrace_unsealed_buckets{{{P},state="closed"}}': flat(2)}],
    ),
    "HeadraceSealingFails": (
        [{f"headrace_sealing_failing_steps{{{P}}}": flat(1)}],
        [{f"headrace_sealing_failing_steps{{{P}}}": [*flat(0), 1, 1, 1]}],
    ),
    "HeadraceHookWaits": ([{HOOK: rising(60)}], [{HOOK: flat(60)}]),
    "HeadraceGroupOffsetsFail": (
        [{f"headrace_offset_commit_failures_total{{{P}}}": rising(1)}],
        [{f"headrace_offset_commit_failures_total{{{P}}}": flat(7)}],
    ),
    "HeadraceExecutorsMissing": (
        [{"headrace_executors_registered": flat(2), "headrace_executors_desired": flat(5)}],
        [
            {"headrace_executors_registered": flat(5), "headrace_executors_desired": flat(5)},
            {"headrace_executors_registered": flat(2), "headrace_executors_desired": [*flat(2), 5, 5, 5]},
            {"headrace_executors_registered": flat(5), "headrace_executors_desired": flat(2)},  # they drain
        ],
    ),
    "HeadraceScalingBlocked": (
        [{BLOCKED.format("skew"): flat(1)}, {BLOCKED.format("blind"): flat(1)}],
        [{BLOCKED.format("excluded"): flat(1)}, {BLOCKED.format("skew"): [*([None] * 60), 1, 1, 1]}],
    ),
    "HeadraceScalingRefused": (
        [{"headrace_autoscaler_request_refused": flat(1)}], [{"headrace_autoscaler_request_refused": flat(0)}],
    ),
    "HeadraceScalesBackAndForth": (
        [{"headrace_autoscaler_reversals_total": rising(0.05)}],
        [{"headrace_autoscaler_reversals_total": steps(0, 1, 1, 2)}],
    ),
}  # fmt: skip


def until_s(given: Given) -> float:
    return 60.0 * (max(map(len, given.values())) - 1)


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_on_what_it_is_for(name: str) -> None:
    for given in CASES[name][0]:
        found = fires(NAMED[name], series(60, given), until_s(given))
        assert found, given
        of_one = any("pipeline" in LABELS[metric] for metric, _ in selectors(NAMED[name]["expr"]))
        assert all(dict(labels).get("pipeline") == ("clicks" if of_one else None) for labels in found), "whose it is"


@pytest.mark.parametrize("name", CASES)
def test_an_alert_is_quiet_otherwise(name: str) -> None:
    for given in CASES[name][1]:
        assert not fires(NAMED[name], series(60, given), until_s(given)), given


def test_every_alert_has_its_cases() -> None:
    assert [rule["alert"] for rule in RULES] == list(CASES)


@pytest.mark.parametrize("name", NAMED)
def test_every_metric_and_label_of_an_alert_exists(name: str) -> None:
    rule = NAMED[name]
    found = selectors(rule["expr"])
    assert found
    for metric, labels in found:
        assert metric in LABELS, f"{name}: nobody tells {metric}"
        assert labels <= LABELS[metric], f"{name}: {metric} has no {labels - LABELS[metric]}"
    known = set.intersection(*(LABELS[metric] for metric, _ in found))
    grouped = {label for names in re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"]) for label in names.split(", ")}
    assert grouped <= set.union(*(LABELS[metric] for metric, _ in found))
    shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
    assert shown <= (known & grouped if "by (" in rule["expr"] and " on " not in rule["expr"] else known), name


def test_an_alert_says_how_bad_it_is_and_where_to_read_on() -> None:
    for rule in RULES:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
        assert set(rule["annotations"]) == {"summary", "runbook_url"}
        assert rule["annotations"]["runbook_url"] == page_address(f"docs/RUNBOOK.md#{rule['alert'].lower()}")
    assert len(NAMED) == len(RULES)


@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_rule_is_named_by_its_labels_and_of_metrics_that_exist(name: str) -> None:
    rule = RECORDED[name]
    assert set(rule) == {"record", "expr"}
    assert re.fullmatch(r"pipeline:headrace_[a-z_]+(:rate15m)?", name)
    assert all(metric in LABELS and not labels for metric, labels in selectors(rule["expr"]))


def test_the_rest_of_a_gap_is_estimated_by_the_rate_of_its_backfill() -> None:
    """600 offsets a minute, and 12,000 to go."""
    rate, left = (
        RECORDED[f"pipeline:headrace_{n}"]["expr"] for n in ("gap_offsets_settled:rate15m", "backfill_eta_seconds")
    )
    one = frozenset({("pipeline", "clicks")})
    filling = series(60, {SETTLED: rising(600, 1), LEFT: [48_000 - 600 * i for i in range(61)]})
    assert evaluate(rate, filling, 3600)[one] == pytest.approx(10)
    assert evaluate(left, filling, 3600)[one] == pytest.approx(1_200)
    assert evaluate(left, series(60, {SETTLED: flat(9, 1), LEFT: flat(100, 1)}), 3600) == {}, "nobody fills it"
    assert evaluate(left, series(60, {SETTLED: rising(600, 1), LEFT: flat(0, 1)}), 3600)[one] == 0


def test_each_alert_has_its_section_and_each_section_its_alert_in_the_same_order() -> None:
    alerts, _, playbooks = RUNBOOK.partition("\n## Playbooks")
    assert playbooks
    assert re.findall(r"^### (\w+)$", alerts, re.MULTILINE) == list(NAMED)


def test_retention_headroom_comes_first_in_the_file_and_on_the_page() -> None:
    assert "headrace_retention_headroom_seconds" in RULES[0]["expr"]
    assert RUNBOOK.index(f"### {RULES[0]['alert']}") < RUNBOOK.index(f"### {RULES[1]['alert']}")


def test_the_evaluator_counts_as_prometheus_does() -> None:
    """Values that Prometheus's documentation and its own tests give for these samples."""
    five = series(300, {"foo": [10.0 * n for n in range(11)], "bar": [18.0 * (n % 6) for n in range(12)]})
    assert evaluate("increase(foo[50m])", five, 3000)[frozenset()] == pytest.approx(100)
    assert evaluate("increase(bar[50m])", five, 3000)[frozenset()] == pytest.approx(160), "with a reset"
    assert evaluate("rate(foo[50m])", five, 3000)[frozenset()] == pytest.approx(100 / 3000)
    data = series(60, {'c{a="1"}': [0, 10, 20, 30, 0, 10], 'g{a="1"}': [3, 1, 2, 2, 5, 5]})
    one = frozenset({("a", "1")})
    assert evaluate("changes(g[5m])", data, 300) == {one: 2}
    assert evaluate("min_over_time(g[10m])", data, 300) == {one: 1}
    assert evaluate("g > 4 and on (a) c < 20", data, 300) == {one: 5}
    assert evaluate("g", data, 300 + 299) == {one: 5}
    assert evaluate("g", data, 300 + 301) == {}
    with pytest.raises(NotImplementedError):
        evaluate("deriv(g[5m])", data, 300)
