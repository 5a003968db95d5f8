"""`headrace supervisor explain`, and what a supervisor tells over HTTP."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from headrace.recovery.cli.recover import supervisor
from headrace.recovery.escalation import state
from headrace.recovery.escalation.decide import Failed, Frontier, Healthy, Policy, decide
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.supervisor.endpoints import CATALOGUE, SupervisorStatus, supervisor_endpoints
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline, failure_of
from headrace.recovery.supervisor.settings import with_short_timeouts
from headrace.writer.clients.supervisor_record import NAME, find_halt
from headrace.writer.config.pipelines import Config
from headrace.writer.lease.factory import pipeline_store
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.lease.lease import StoreLeases
from tests.support.sample_records import config

KILLED = Verdict("killed", RecoveryLevel.RESTART, halt=False, message="The driver was killed (SIGKILL).")
WRONG = Verdict("configuration", None, halt=True, message="The topic is not there.")


@pytest.fixture
def settings(tmp_path: Path) -> Config:
    return config(tmp_path)


def failed(supervised: SupervisedPipeline, verdict: Verdict, at: datetime, code: int = -9) -> None:
    supervised.note_start()
    decision = decide(Policy(), supervised.memory.state, Failed(verdict), at, 1.0)
    supervised.note_failure(failure_of(verdict, code, "", 1, Frontier.HELD, at), decision, 10.0)


def told(settings: Config, code: int = 0) -> str:
    console = Console(width=200, highlight=False)
    report = supervisor.explain_recovery(settings, ["clicks"])
    assert report.exit_code == code
    with console.capture() as capture:
        report.render(console)
    return " ".join(capture.get().split())


def test_without_a_failure_it_says_so(settings: Config) -> None:
    message = told(settings)
    assert "it was never held" in message
    assert "level none" in message
    assert "if it came again nothing failed yet" in message


def test_explain_tells_the_failure_the_decision_the_budget_and_the_next_step(settings: Config) -> None:
    supervised, now = SupervisedPipeline("clicks"), datetime.now(UTC)
    for n in range(3):
        failed(supervised, KILLED, now - timedelta(seconds=60 - n))
    state.write(pipeline_store(settings, "clicks"), supervised.memory)
    assert StoreLeases(pipeline_store(settings, "clicks")).take(1, "host/7")
    message = told(settings)
    assert "epoch 1, taken by host/7" in message
    assert "exit code -9" in message
    assert "killed: The driver was killed (SIGKILL). (begins at RESTART)" in message
    assert "decided then L1, after 4.0 s: restart it on the same checkpoint" in message
    assert "L1 RESTART 3 of 3 within 15 min" in message
    assert "L5 LATEST 0 of 1 within 1 d, not done here by itself" in message or "within 24 h, not done" in message
    assert "if it came again L3, after 8.0 s: begin a new run from the table's frontier" in message
    assert "L1: taken 3 times within 15 min" in message


def test_the_lowest_level_is_named_as_the_others_are(settings: Config) -> None:
    supervised = SupervisedPipeline("clicks")
    silent = Verdict("silent", RecoveryLevel.WAIT, halt=False, message="A broker does not answer.")
    failed(supervised, silent, datetime.now(UTC), 1)
    state.write(pipeline_store(settings, "clicks"), supervised.memory)
    message = told(settings)
    assert "level WAIT" in message
    assert "(begins at WAIT)" in message


def test_a_pipeline_that_is_given_up_is_exit_code_1(settings: Config) -> None:
    supervised = SupervisedPipeline("clicks")
    failed(supervised, WRONG, datetime.now(UTC), 2)
    state.write(pipeline_store(settings, "clicks"), supervised.memory)
    message = told(settings, code=1)
    assert "halted The topic is not there." in message
    assert "if it came again halt: The topic is not there." in message
    assert state.clear_halt(supervised.memory).state.halted == ""


def test_a_halt_has_the_sentence_of_the_driver_wherever_it_is_told(settings: Config) -> None:
    supervised = SupervisedPipeline("clicks")
    now = datetime.now(UTC)
    error = "another client ran WRITE (version 4) on the table"
    foreign = Verdict("foreign", None, halt=True, message="Another client changed the table. The sentence says what.")
    decision = decide(Policy(), supervised.memory.state, Failed(foreign), now, 1.0)
    supervised.note_failure(failure_of(foreign, 2, error, 1, Frontier.HELD, now), decision, 10.0)
    state.write(pipeline_store(settings, "clicks"), supervised.memory)
    reason = f"Another client changed the table. The sentence says what. ({error})"
    assert supervised.halted == reason
    assert f"halted {reason}" in told(settings, code=1)
    halt = find_halt(settings.checkpoints, "clicks")
    assert halt is not None
    assert (halt.reason, halt.since) == (reason, now)
    status = SupervisorStatus(lambda: {"clicks": supervised}, LeaseHolder({}, "host/7"), lambda: True)
    _, _, body = supervisor_endpoints(status)("/healthz", "")
    assert reason in body.decode()
    assert state.clear_halt(supervised.memory).halt_reason == ""


def test_the_document_has_the_memory_as_it_is_stored_and_budgets_by_level(settings: Config) -> None:
    supervised = SupervisedPipeline("clicks")
    failed(supervised, KILLED, datetime.now(UTC))
    state.write(pipeline_store(settings, "clicks"), supervised.memory)
    stored = json.loads((pipeline_store(settings, "clicks").read(NAME) or pytest.fail("nothing is stored")).content)
    clicks = supervisor.explain_recovery(settings, ["clicks"]).document()["pipelines"]["clicks"]
    assert {"format": 1, **clicks["memory"]} == stored
    assert clicks["budgets"]["L1"] == {
        "level": "RESTART",
        "enabled": True,
        "used": 1,
        "times_max": 3,
        "within_seconds": 900.0,
    }
    assert clicks["lease"] is None


def test_unreadable_state_ends_with_exit_code_1(settings: Config) -> None:
    nowhere = settings.model_copy(update={"checkpoints": "/dev/null/there"})
    assert "unreadable" in told(nowhere, code=1)


@pytest.fixture
def ward() -> SupervisorStatus:
    supervised, held = SupervisedPipeline("clicks"), LeaseHolder({}, "host/7")
    held.epochs["clicks"] = 4
    failed(supervised, KILLED, datetime.now(UTC))
    supervised.note_start()
    supervised.note_health(decide(Policy(), supervised.memory.state, Healthy(), datetime.now(UTC), 0.0), 31.5)
    return SupervisorStatus(lambda: {"clicks": supervised}, held, lambda: True)


def test_metrics_hold_the_whole_catalogue(ward: SupervisorStatus) -> None:
    status, _, body = supervisor_endpoints(ward)("/metrics", "text/plain")
    text = body.decode()
    assert status == 200
    for metric in CATALOGUE:
        assert f"# TYPE {metric.name} {metric.kind}" in text
    assert 'headrace_recovery_total{class="killed",level="L1",pipeline="clicks",result="worked"} 1.0' in text
    assert 'headrace_recovery_seconds{level="L1",pipeline="clicks"} 21.5' in text
    assert 'headrace_recovery_level{pipeline="clicks"} 1.0' in text
    assert 'headrace_lease_epoch{pipeline="clicks"} 4.0' in text
    assert 'headrace_supervised_up{pipeline="clicks"} 1.0' in text


def test_a_metric_has_the_value_of_its_key_of_status(ward: SupervisorStatus) -> None:
    get = supervisor_endpoints(ward)
    families = text_string_to_metric_families(get("/metrics", "text/plain")[2].decode())
    values = {sample.name: sample.value for family in families for sample in family.samples}
    status = json.loads(get("/status", "")[2])["pipelines"]["clicks"]
    assert values["headrace_recovery_level"] == status["level"] == 1
    assert values["headrace_recovery_starts_total"] == status["starts"] == 2
    assert values["headrace_lease_epoch"] == status["lease_epoch"] == 4
    assert values["headrace_recovery_halted"] == float(status["halted"] is not None) == 0
    assert values["headrace_recovery_unhealthy_seconds"] == status["unhealthy_seconds"] == 0
    assert values["headrace_recovery_seconds"] == status["recovered_seconds"]["L1"] == 21.5


def test_status_and_health_say_what_is_given_up(ward: SupervisorStatus) -> None:
    get, supervised = supervisor_endpoints(ward), ward.pipelines()["clicks"]
    assert get("/healthz", "")[0] == 200
    found = json.loads(get("/status", "")[2])["pipelines"]["clicks"]
    assert (found["up"], found["level"], found["starts"], found["lease_epoch"]) == (True, 1, 2, 4)
    assert found["failure"]["row"] == "killed"
    assert found["recovered_seconds"] == {"L1": 21.5}
    supervised.memory = replace(
        supervised.memory, state=replace(supervised.memory.state, halted="The topic is not there.")
    )
    assert get("/healthz", "")[::2] == (503, b"pipeline clicks is given up: The topic is not there.\n")
    assert get("/elsewhere", "")[0] == 404


def test_a_supervisor_waits_little_for_storage_and_brokers(settings: Config) -> None:
    assert settings.s3.retry_timeout > timedelta(seconds=5)
    assert with_short_timeouts(settings).s3.retry_timeout == timedelta(seconds=5)
    slow = settings.model_copy(update={"kafka": settings.kafka.model_copy(update={"request_timeout": timedelta(60)})})
    assert with_short_timeouts(slow).kafka.request_timeout == timedelta(seconds=5)
