"""Grafana's dashboard: fresh, laid out without overlaps, and each expression asks for metrics and labels that exist."""

import importlib.util
import json
import math
import re
from pathlib import Path
from typing import Any

import promql_parser as pp
import pytest

from headrace.autoscaler.runtime.endpoints import CATALOGUE as AUTOSCALER
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.supervisor.endpoints import CATALOGUE as SUPERVISOR
from headrace.writer.web.metrics_catalogue import CATALOGUE as DRIVER
from tests.support.promql import evaluate, selectors, series

ROOT = Path(__file__).parents[2]
FILE = ROOT / "helm" / "headrace" / "dashboards" / "headrace.json"
BOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
QUERIES = [(panel["title"], target["expr"], target["legendFormat"]) for panel in PANELS for target in panel["targets"]]
LABELS = {m.name: {*m.labels} for m in (*DRIVER, *SUPERVISOR, *AUTOSCALER)} | {
    f"{m.name}{suffix}": {*m.labels} for m in DRIVER if m.kind == "histogram" for suffix in ("_sum", "_count")
}
PLACE = {"cluster", "namespace"}  # Prometheus adds them to what it scrapes, or none does
KINDS = {m.name: m.kind for m in (*DRIVER, *SUPERVISOR, *AUTOSCALER)}


PLAIN = {"headrace_recovery_total"}  # few, and each is born at 1: it has no rate


def asked(expr: str) -> str:
    for variable in ("cluster", "namespace", "pipeline"):
        expr = expr.replace(f"${variable}", ".*")
    return expr.replace("$window", "5m")


def by(expr: str) -> set[str] | None:
    """The labels that an expression's values have; None: those of its metric."""
    found = re.findall(r"by \(([^)]*)\)", expr)
    return {label.strip() for label in found[0].split(",")} if found else None


def test_the_dashboard_is_what_its_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("docs_dashboard", ROOT / "docs" / "dashboard.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert FILE.read_text() == module.text(), "stale: run `make reference`"


@pytest.mark.parametrize(("title", "expr", "legend"), QUERIES)
def test_a_panel_asks_for_metrics_and_labels_that_exist(title: str, expr: str, legend: str) -> None:
    for metric, chosen in selectors(asked(expr)):
        assert metric in LABELS, f"{title}: {metric} is no metric"
        assert chosen >= PLACE, f"{title}: {metric} of every cluster"
        assert chosen <= LABELS[metric] | PLACE, f"{title}: {metric} has no labels {chosen - LABELS[metric]}"
        labels = by(expr)
        assert labels is None or PLACE < labels <= LABELS[metric] | PLACE, f"{title}: {metric} has no labels {labels}"
        shown = set(re.findall(r"{{(\w+)}}", legend))
        assert PLACE <= shown <= (labels or LABELS[metric] | PLACE), f"{title}: the legend names {shown}"


@pytest.mark.parametrize(("title", "expr", "legend"), QUERIES)
def test_a_counter_is_shown_as_a_rate_and_a_gauge_as_it_is(title: str, expr: str, legend: str) -> None:  # noqa: ARG001
    rated = {m for call in re.findall(r"(?:rate|increase)\((\w+)", expr) for m in [call]}
    for metric, _ in selectors(asked(expr)):
        counts = KINDS.get(metric) == "counter" or metric.endswith(("_sum", "_count"))
        assert counts == (metric in rated) or metric in PLAIN, f"{title}: {metric}"


@pytest.mark.parametrize("place", [{}, {"cluster": "eu", "namespace": "lake"}], ids=["plain", "in a cluster"])
@pytest.mark.parametrize(("title", "expr", "legend"), QUERIES)
def test_a_panel_shows_something_when_its_metrics_do(
    title: str,
    expr: str,
    legend: str,  # noqa: ARG001
    place: dict[str, str],
) -> None:
    given: dict[str, list[float | None]] = {}
    for at, (metric, _) in enumerate(selectors(asked(expr))):
        labels = ",".join(f'{label}="clicks"' for label in sorted(LABELS[metric] | {*place}))
        given[f"{metric}{{{labels}}}"] = [float((at + 2) * n) for n in range(30)]
    found = evaluate(asked(expr), series(30, given), 29 * 30.0)
    assert found, title
    assert all(math.isfinite(value) and value > 0 for value in found.values()), (title, found)
    assert all(PLACE & dict(labels).keys() == place.keys() for labels in found), "clusters are not mixed"


@pytest.mark.parametrize("label", ["cluster", "namespace", "pipeline"])
def test_a_variable_chooses_within_those_before_it(label: str) -> None:
    variables = {v["name"]: v for v in BOARD["templating"]["list"] if v["type"] == "query"}
    chosen = variables[label]["query"]["query"]
    assert chosen.endswith(f", {label})")
    before = list(variables)[: list(variables).index(label)]
    assert selectors(chosen.removeprefix("label_values(").removesuffix(f", {label})")) == [
        ("headrace_pipeline_alive", set(before))
    ]
    assert variables[label]["allValue"] == ".*", "also series without the label"


def test_values_that_stand_for_a_state_are_shown_as_words() -> None:
    words = {
        panel["title"]: {value: shown["text"] for m in panel["fieldConfig"]["defaults"]["mappings"]
                         if m["type"] == "value" for value, shown in m["options"].items()}
        for panel in PANELS
    }  # fmt: skip
    assert words["Alive"] == {"0": "down", "1": "alive"}
    assert set(words["Recovery"]) == {str(level.value) for level in RecoveryLevel} == set(words["Recovery level"])
    headroom = next(panel for panel in PANELS if panel["title"].startswith("Retention"))
    (nothing,) = headroom["fieldConfig"]["defaults"]["mappings"]
    assert nothing["options"] == {"match": "null", "result": {"text": "nothing waits", "color": "green", "index": 0}}


def test_everything_of_the_operators_list_is_there() -> None:
    metrics = {metric for _, expr, _ in QUERIES for metric, _ in selectors(asked(expr))}
    assert {
        "headrace_lag_seconds", "headrace_commit_age_seconds", "headrace_records_read_total",
        "headrace_batch_duration_seconds_sum", "headrace_step_cpu_seconds_total", "headrace_open_buckets",
        "headrace_unsealed_buckets", "headrace_late_rows_total", "headrace_dead_letter_table_rows_total",
        "headrace_executors_recommended", "headrace_executors_requested", "headrace_executors_registered",
        "headrace_recovery_level", "headrace_recovery_total", "headrace_target_behind_seconds",
        "headrace_target_held_bytes", "headrace_names_without_table", "headrace_topic_restarts_total",
        "headrace_config_last_reload_successful",
    } <= metrics  # fmt: skip


def test_panels_lie_beside_each_other_and_say_what_they_mean() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        taken |= cells
        assert panel["type"] == "row" or len(panel["description"]) > 20, panel["title"]
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


def test_an_expression_that_is_wrong_would_be_found() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        pp.parse("sum by (pipeline (headrace_lag_seconds)")
    assert selectors("headrace_no_such_thing{x='y'}") == [("headrace_no_such_thing", {"x"})]
