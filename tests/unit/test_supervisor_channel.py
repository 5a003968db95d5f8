"""What a driver and its supervisor tell each other, and what the supervisor remembers."""

import fcntl
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.recovery.escalation import state
from headrace.recovery.escalation.decide import Failed, Healthy, Policy, decide
from headrace.recovery.escalation.diagnosis import PipelineHealth
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.escalation.state import Memory
from headrace.recovery.supervisor.driver_process import Driver, channel_folder, reap
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline, failure_of
from headrace.writer.core.errors import CheckpointUnusable, ConfigError
from headrace.writer.driver.supervisor_channel import VARIABLE, ChannelFolder, Order, StartInstructions, folder
from headrace.writer.status.progress import Progress
from headrace.writer.storage.locations import store_at

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.fixture
def made(tmp_path: Path) -> ChannelFolder:
    found = ChannelFolder(tmp_path)
    found.prepare(StartInstructions({"clicks": Order(new_run=True, lease=7)}, "secret"))
    return found


def test_orders_are_read_as_they_were_given_and_others_wait(made: ChannelFolder) -> None:
    orders = ChannelFolder(made.path).orders()
    assert orders.token == "secret"
    assert (orders.of("clicks"), orders.of("views")) == (
        Order(start=True, new_run=True, lease=7), Order(start=False),
    )  # fmt: skip
    assert StartInstructions().of("clicks") == Order(), "without a supervisor"
    assert (made.path / "orders.json").stat().st_mode & 0o077 == 0, "the token is nobody else's"


def test_last_words_hold_all_causes_and_are_heard_once(made: ChannelFolder) -> None:
    progress = Progress("clicks")
    progress.record_start(epoch=3, run=2, frontier={}, limits={}, buckets=[], recent=[])
    progress.begin_batch(5, "look")
    error = CheckpointUnusable("offsets/5 cannot be read")
    error.__cause__ = ValueError("deep down")
    made.report(progress.view(), error)
    made.report(None, RuntimeError("no port"))
    reports = made.exit_reports()
    assert sorted(reports) == ["", "clicks"]
    words = reports["clicks"]
    assert (words.exit_code, words.epoch, words.run, words.batch) == (3, 3, 2, 5)
    assert "headrace run --new-run" in words.error
    assert "ValueError: deep down" in words.causes
    assert (reports[""].exit_code, reports[""].error) == (1, "RuntimeError: no port")
    assert made.exit_reports() == {}


def test_a_driver_that_ended_well_says_so(made: ChannelFolder) -> None:
    made.report(Progress("clicks").view(), None)
    assert made.exit_reports()["clicks"].exit_code == 0
    made.report(Progress("clicks").view(), ConfigError("no"))
    made.prepare(StartInstructions())
    assert made.exit_reports() == {}, "what an earlier driver said is gone"


def test_a_driver_notices_that_its_supervisor_is_gone(made: ChannelFolder) -> None:
    with (made.path / "supervisor.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not made.is_orphaned()
    assert made.is_orphaned()


def test_without_a_supervisor_there_is_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert folder() is None
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    found = folder()
    assert found is not None
    assert found.path == tmp_path


CHILD = """
import subprocess, sys, time
from headrace.writer.driver.supervisor_channel import folder
link = folder()
link.begin()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
while True:
    link.beat()
    time.sleep(0.05)
"""


def test_a_driver_is_seen_writes_its_stacks_and_leaves_nothing_behind() -> None:
    with channel_folder() as there:
        driver = Driver(there, [sys.executable, "-c", CHILD], {})
        while driver.health().silent_s is None:
            assert driver.exit_code() is None
            time.sleep(0.02)
        assert "most recent call first" in driver.dump_stacks()
        group = driver.pid
        driver.drain()
        while (code := driver.exit_code()) is None:
            time.sleep(0.02)
        assert code == -15
        reap(None)
        deadline = time.monotonic() + 60
        while True:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                break
            assert time.monotonic() < deadline, "a child of the driver lives on"
            time.sleep(0.02)
            reap(None)


def test_children_without_a_parent_are_reaped() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    deadline = time.monotonic() + 60
    while Path(f"/proc/{child.pid}").exists():
        reap(None)
        assert time.monotonic() < deadline
        time.sleep(0.02)
    child.returncode = 0


class Said:
    row, level, halt, message = "killed", RecoveryLevel.RESTART, False, "The driver was killed."


def test_supervisor_state_is_read_as_it_was_written_and_a_halt_is_cleared(tmp_path: Path) -> None:
    store = store_at(str(tmp_path))
    assert state.read(store) == Memory()
    supervised = SupervisedPipeline("clicks")
    about = failure_of(Said, -9, "", 4, "held", NOW)  # type: ignore[arg-type]
    supervised.note_failure(about, decide(Policy(), supervised.memory.state, Failed(Said, run=4), NOW, 0.0), 10.0)  # type: ignore[arg-type]
    state.write(store, supervised.memory)
    assert state.read(store) == supervised.memory
    assert [(a.level, a.run) for a in supervised.memory.state.attempts] == [(RecoveryLevel.RESTART, 4)]
    whole = json.loads((tmp_path / state.NAME).read_text())
    del whole["state"]["attempts"]
    store.put(state.NAME, json.dumps(whole).encode())
    assert state.read(store) == Memory(), "a level without its attempts would have a new budget"
    store.put(state.NAME, b"{torn")
    assert state.read(store) == Memory()


def test_a_failure_that_comes_again_counts_as_one_that_was_not_cured() -> None:
    supervised, policy, at = SupervisedPipeline("clicks"), Policy(), NOW
    for _ in range(2):
        supervised.note_start()
        about = failure_of(Said, -9, "", 4, "held", at)  # type: ignore[arg-type]
        supervised.note_failure(about, decide(policy, supervised.memory.state, Failed(Said), at, 0.0), 10.0)  # type: ignore[arg-type]
        at += timedelta(seconds=5)
    assert dict(supervised.results) == {("killed", "L1", "failed"): 1}
    supervised.note_start()
    before = PipelineHealth("running", 5.0, 1, 7, 3)
    supervised.version = 7
    assert not supervised.health_since_failure(before).is_well, "that commit is older than the failure"
    assert supervised.health_since_failure(replace(before, version=8)).is_well
    assert supervised.note_health(decide(policy, supervised.memory.state, Healthy(), at, 0.0), 42.0) == 32.0
    assert supervised.results["killed", "L1", "worked"] == 1
    assert supervised.memory.recovered_s == {"L1": 32.0}
    assert supervised.note_health(decide(policy, supervised.memory.state, Healthy(), at, 0.0), 43.0) is None


def test_a_decision_of_the_supervisor_is_told_to_the_driver_once(made: ChannelFolder) -> None:
    driver = ChannelFolder(made.path)
    assert driver.new_decisions() == {}
    one = {"at": "2026-11-20T12:00:00+00:00", "decision": "killed", "reason": "x", "from": "running", "to": "L1"}
    made.decide({"clicks": [one]})
    assert driver.new_decisions() == {"clicks": [one]}
    assert driver.new_decisions() == {}, "it is known"
    assert (made.path / "decided.json").stat().st_mode & 0o077 == 0


def test_a_driver_that_serves_https_says_by_which_certificate(made: ChannelFolder) -> None:
    assert made.certificate() == ""
    made.announce(pid=7, url="https://127.0.0.1:9643", certificate="/etc/headrace/tls.pem")
    assert (made.driver(), made.certificate()) == ((7, "https://127.0.0.1:9643"), "/etc/headrace/tls.pem")
