"""The systemd unit of docs/DEPLOY.md: how long it waits, and after which ends it starts the supervisor again."""

import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import yaml

from headrace.recovery.supervisor.settings import drain_timeout
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ExitCode
from tests.support.systemd_unit import Service, Unit, read_unit

ROOT = Path(__file__).parents[2]
UNIT = read_unit(ROOT / "docs" / "DEPLOY.md")


def test_the_unit_starts_the_supervisor() -> None:
    assert UNIT.command == ("/opt/headrace/bin/headrace", "supervisor", "run", "/etc/headrace/pipelines.yaml")


def test_unit_and_chart_wait_for_longer_than_a_supervisor_waits_for_its_driver() -> None:
    config = Config.model_validate(
        {
            "kafka": {"bootstrap_servers": "x:1"},
            "registry": {"url": "http://x"},
            "checkpoints": "/checkpoints",
            "pipelines": {"clicks": {"topics": ["x"], "table": {"location": "/x"}, "event_time": {"field": "at"}}},
        }
    )
    values = yaml.safe_load((ROOT / "helm" / "headrace" / "values.yaml").read_text(encoding="utf-8"))
    longest_s = drain_timeout(config).total_seconds()
    assert longest_s == timedelta(minutes=12).total_seconds(), "docs/DEPLOY.md says so"
    assert UNIT.stop_timeout_s > longest_s
    assert values["driver"]["terminationGracePeriodSeconds"] > longest_s


@pytest.mark.parametrize("code", ExitCode, ids=lambda code: code.name)
def test_the_unit_starts_again_after_a_crash_only(code: ExitCode) -> None:
    assert UNIT.is_restarted(code) == (code is ExitCode.CRASH)


def test_the_unit_starts_again_after_a_kill_and_not_after_a_stop() -> None:
    assert UNIT.is_restarted(-9)
    assert not UNIT.is_restarted(-15)


def test_a_configuration_that_is_wrong_is_not_started_again(tmp_path: Path) -> None:
    path = tmp_path / "pipelines.yaml"
    path.write_text("kafka: {bootstrap_server: x}\n")
    unit = replace(UNIT, command=(sys.executable, "-m", "headrace.writer.cli", "supervisor", "run", str(path)))
    service = Service(unit, tmp_path / "log", {})
    assert not service.attend(60)
    assert "did you mean 'bootstrap_servers'" in service.log.read_text()
    assert service.starts == 1


@pytest.mark.parametrize("kill_mode", ["mixed", "control-group"])
def test_a_process_that_ignores_a_stop_is_killed_with_all_its_children(tmp_path: Path, kill_mode: str) -> None:
    code = (
        "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True); "
        "print('up', flush=True); time.sleep(600)"
    )
    unit = Unit((sys.executable, "-c", code), kill_mode, 1.0, "no", 0.1, frozenset())
    service = Service(unit, tmp_path / "log", {})
    while "up" not in service.log.read_text():
        assert service.main.poll() is None
    assert service.stop() == "timeout"
    assert not service.processes()
