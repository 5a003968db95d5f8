"""The command `autoscaler explain`, and what it refuses."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.autoscaler.decision.decide import Blocked, Stay
from headrace.autoscaler.decision.explanation import verdict
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import DEFAULTS, Policy, apply_assignments
from headrace.autoscaler.decision.symptoms import Symptom
from headrace.autoscaler.runtime import state_store
from headrace.writer.cli.main import app
from headrace.writer.clients.driver_endpoint import announce, this_driver
from headrace.writer.config.sections.connections import Autoscaler, Http
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.scaling.executor_manager import ExecutorManager
from headrace.writer.scaling.spark_settings import refusal as why_not
from headrace.writer.status.model import Sample
from headrace.writer.status.progress import Progress
from headrace.writer.web.endpoints import serving
from tests.support.autoscaler_facts import decide_once, facts, pipeline


def ran(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["autoscaler", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


def refusal(*arguments: str) -> str:
    with pytest.raises(ConfigError) as caught:
        ran(*arguments)
    return str(caught.value)


def file(root: Path) -> dict[str, object]:
    """A configuration whose Kafka answers nobody."""
    return {
        "kafka": {"bootstrap_servers": "127.0.0.1:1", "request_timeout": "1 s"},
        "registry": {"url": "http://127.0.0.1:1"}, "checkpoints": str(root / "checkpoints"), "supervisor": {"port": 0},
        "pipelines": {
            "clicks": {
                "topics": ["clicks"], "table": {"location": str(root / "lake")}, "event_time": {"field": "at"},
            }
        },
    }  # fmt: skip


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "facts.json"
    state_store.write_file(facts(pipeline(72_000)), path)
    return str(path)


def test_explain_shows_what_goes_in_the_arithmetic_and_the_verdict(recorded):
    page = ran("explain", "--facts", recorded)
    assert "up: 2 executors become 3, at once." in page
    assert "90,000/s = 72,000 / utilization_target 0.8 + backlog 0/s in 900 s + 0/s" in page
    assert "10,000/s = offsets / (task seconds x slots that work all the time)" in page
    assert "2 carry   clicks 74,667/s" in page
    assert "max_executors 100" in page


def test_explain_says_what_is_in_the_way(tmp_path):
    path = tmp_path / "facts.json"
    state_store.write_file(facts(pipeline(72_000, failing="503 Slow Down")), path)
    page = ran("explain", "--facts", str(path))
    assert "hold: 2 executors stay: clicks fails: 503 Slow Down." in page
    assert "Fix storage or Kafka" in page


def test_all_there_may_be_and_not_enough_is_said_so():
    by = Symptom("driver_bound", "no_more", "most of a batch is the driver's own", "Larger batches.")
    known = decide_once(facts(pipeline(40_000)))
    assert isinstance(known, Stay)
    word, why = verdict(Blocked(3, (by,), known.terms, 3, by))
    assert word == "blocked"
    assert why == "3 executors stay; that is not enough, and more would not help: most of a batch is the driver's own."


def test_explain_as_json_keeps_the_whole_arithmetic(recorded):
    document = json.loads(
        ran("explain", "--facts", recorded, "--json", "--set", "utilization_target=0.7", "--set", "max_utilization=0.9")
    )
    assert document["verdict"] == "up"
    assert (document["before"], document["executors"]) == (2, 3)
    (one,) = document["sums"]["pipelines"]
    assert one["need"]["target"] == pytest.approx(72_000 / 0.7)
    assert document["sums"]["ceilings"][0] == {"name": "max_executors", "executors": 100, "hard": True}


def test_explain_takes_what_is_remembered(recorded, tmp_path):
    path = tmp_path / "memory.json"
    state_store.write_file(Memory(desired=9), path)
    assert json.loads(ran("explain", "--facts", recorded, "--memory", str(path), "--json"))["executors"] == 9


def test_explain_asks_everybody_where_it_is_given_a_configuration(tmp_path):
    path, kept = tmp_path / "headrace.yaml", tmp_path / "facts.json"
    path.write_text(json.dumps({**file(tmp_path), "spark": {"master": "spark://host:7077"}}))
    page = ran("explain", str(path), "--save", str(kept))
    assert "hold: 1 executor stays: clicks fails: no Kafka broker answers at 127.0.0.1:1" in page
    assert "blind (hold): it is not known which executors there are." in page
    assert "blind (hold): Kafka has not answered what waits or arrives of clicks." in page
    assert ran("explain", "--facts", str(kept)) == page
    assert "give either" in refusal("explain", str(path), "--facts", str(kept))


LOCAL = "spark.master is local[*]: tasks run in the driver's own process, and there are no executors to scale."


def test_a_driver_without_executors_is_not_taken_for_one_that_is_out_of_reach(tmp_path):
    path = tmp_path / "headrace.yaml"
    path.write_text(json.dumps({**file(tmp_path), "spark": {"master": "local[*]"}}))
    assert f"hold: {LOCAL}\n" in ran("explain", str(path)), "as the configuration says, where no driver answers"

    progress, now = Progress("clicks"), datetime.now(UTC)
    progress.record_start(epoch=3, run=1, frontier={("clicks", 0): 9}, limits={}, buckets=[], recent=[])
    progress.set_running()
    progress.add_sample(Sample(now, {("clicks", 0): 9}), {("clicks", 0): 0})
    progress.set_lag_history(timedelta(seconds=15), (Sample(now - timedelta(minutes=10), {("clicks", 0): 0}),))
    manager = ExecutorManager(
        "local[*]", Autoscaler(), refusal=why_not("local[*]", {}), cpus_per_task=1, stores=list, boundary=lambda: True
    )
    with serving(Http(port=0), {"clicks": progress}, more=lambda: {"executors": manager.to_dict()}) as url:
        announce(str(tmp_path / "checkpoints"), "clicks", this_driver(url, 3))
        page = ran("explain", str(path))
    first, *rest = page.splitlines()
    assert first.endswith(f" UTC  hold: {LOCAL}")
    advice = "  Set spark.master to spark://host:7077 (standalone), k8s://… (Kubernetes) or, on one machine, "
    assert rest == ["", f"not_scalable (hold): {LOCAL}", f"{advice}local-cluster[3,2,2048]."], "and nothing else"


def test_run_refuses_what_could_not_be_scaled(tmp_path, monkeypatch):
    monkeypatch.setattr(logging, "set_up", lambda: None)  # it is for a process, and would outlast the test
    path = tmp_path / "headrace.yaml"

    def refused(spark: str, autoscale: dict[str, object], *options: str) -> str:
        path.write_text(json.dumps({**file(tmp_path), "spark": {"master": spark}, "autoscaler": autoscale}))
        return refusal("run", str(path), *options)

    assert "there are no executors to scale" in refused("local[*, 4]", {"token": "a-secret"})
    assert "autoscaler.token is not set" in refused("spark://host:7077", {})
    assert "did you mean 'utilization_target'" in refused("spark://host:7077", {"policy": {"utilization_targt": 0.7}})
    assert "must hold" in refused(
        "spark://host:7077", {"policy": {"utilization_target": 0.7}}, "--set", "max_utilization=0.6"
    )


def test_explain_refuses_facts_and_settings_that_cannot_be(recorded, tmp_path):
    assert "is not there" in refusal("explain", "--facts", str(tmp_path / "none.json"))
    assert "did you mean 'utilization_target'" in refusal(
        "explain", "--facts", recorded, "--set", "utilization_targt=0.7"
    )
    assert "write it as utilization_target=0.7" in refusal(
        "explain", "--facts", recorded, "--set", "utilization_target"
    )
    assert "is not a number" in refusal("explain", "--facts", recorded, "--set", "utilization_target=high")
    assert "must hold" in refusal("explain", "--facts", recorded, "--set", "utilization_target=0.99")


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_utilization": 0.9}, {"min_executors": 5, "max_executors": 4}, {"up_factor": 1.0},
        {"catch_up_duration_s": 0.0},
        {"max_cost_per_hour": 3.0}, {"max_cost_per_hour": 3.0, "cost_per_executor_hour": 5.0},
        {"excluded_zone": "Mars/Base"},
    ],
)  # fmt: skip
def test_a_policy_that_contradicts_itself_is_refused(wrong):
    with pytest.raises(ConfigError):
        Policy(**wrong)


def test_parameters_are_set_by_name():
    found = apply_assignments(
        DEFAULTS, ["utilization_target=0.7", "max_executors=7", "excluded=* 9 * * *; * 12 * * SUN"]
    )
    assert (found.utilization_target, found.max_executors, found.excluded) == (0.7, 7, ("* 9 * * *", "* 12 * * SUN"))
