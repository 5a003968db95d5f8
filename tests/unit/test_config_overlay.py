"""What the place decides lies beneath the pipelines' file."""

import pytest
import yaml

from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError
from tests.support.config_document import smallest_config


@pytest.fixture
def run(tmp_path, monkeypatch):
    def loaded(told, place):
        (tmp_path / "pipelines.yaml").write_text(yaml.safe_dump({**smallest_config(), **told}))
        (tmp_path / "overlay.yaml").write_text(place if isinstance(place, str) else yaml.safe_dump(place))
        monkeypatch.setenv("HEADRACE_CONFIG_OVERLAY", str(tmp_path / "overlay.yaml"))
        return load(tmp_path / "pipelines.yaml")

    return loaded


CLUSTER = {
    "http": {"host": "0.0.0.0"},
    "spark": {"master": "k8s://https://here", "conf": {"spark.executor.cores": "2", "spark.driver.host": "${env:IP}"}},
}


def test_a_file_without_a_setting_takes_that_of_the_overlay(run, monkeypatch):
    monkeypatch.setenv("IP", "10.0.0.7")
    config = run({}, CLUSTER)
    assert (config.http.host, config.http.port) == ("0.0.0.0", 9643)
    assert config.spark.master == "k8s://https://here"
    assert config.spark.conf == {"spark.executor.cores": "2", "spark.driver.host": "10.0.0.7"}


def test_a_setting_of_the_file_wins_over_the_overlay(run, monkeypatch):
    monkeypatch.setenv("IP", "10.0.0.7")
    config = run({"spark": {"conf": {"spark.executor.cores": "8"}}, "http": None}, CLUSTER)
    assert config.spark.conf["spark.executor.cores"] == "8"
    assert config.spark.conf["spark.driver.host"] == "10.0.0.7"
    assert (config.spark.master, config.http.host) == ("k8s://https://here", "0.0.0.0")


def test_without_an_overlay_nothing_is_added(tmp_path, monkeypatch):
    monkeypatch.delenv("HEADRACE_CONFIG_OVERLAY", raising=False)
    (tmp_path / "pipelines.yaml").write_text(yaml.safe_dump(smallest_config()))
    assert load(tmp_path / "pipelines.yaml").spark.master == "local[*, 4]"


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"kafka": {"bootstrap_servers": "elsewhere:9092"}}, "has kafka; it may have the sections autoscaler, http"),
        (
            {"spark": {"mastr": "local"}},
            "beneath it, cannot be used:\n  spark: unknown key 'mastr'; did you mean 'master'?",
        ),
        ("spark: [", "overlay.yaml is not YAML"),
        ("", "overlay.yaml is empty or not a mapping"),
    ],
)
def test_an_overlay_that_decides_too_much_or_is_wrong_is_refused(run, place, said):
    with pytest.raises(ConfigError) as refused:
        run({}, place)
    assert said in str(refused.value)


def test_a_missing_overlay_is_named(run, monkeypatch, tmp_path):
    run({}, {"http": {"port": 1}})
    monkeypatch.setenv("HEADRACE_CONFIG_OVERLAY", "/nowhere/overlay.yaml")
    with pytest.raises(ConfigError, match=r"cannot read /nowhere/overlay\.yaml.*Correct HEADRACE_CONFIG_OVERLAY"):
        load(tmp_path / "pipelines.yaml")
