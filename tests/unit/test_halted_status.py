"""A pipeline that its supervisor gave up, on the screens: from the supervisor's record, or from the driver."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headrace.recovery.escalation import state
from headrace.recovery.escalation.decide import State
from headrace.recovery.escalation.state import Failure, Memory
from headrace.writer.cli.look.status import StatusReport, StatusView
from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.clients.supervisor_record import LeaseWait, find_halt, halt_of_decisions, wait_of_decisions
from headrace.writer.config.pipelines import Config
from headrace.writer.core.text import iso
from headrace.writer.lease.factory import pipeline_store
from headrace.writer.status import from_table
from headrace.writer.status.document import document
from headrace.writer.status.progress import Progress
from tests.support.commits import Lake

NOW = datetime.now(UTC)
REASON = "another writer holds the table"
DECISIONS = (
    {
        "at": (NOW + timedelta(seconds=5)).isoformat(),
        "decision": "fenced",
        "reason": REASON,
        "from": "running",
        "to": "halted",
        "failed_at": NOW.isoformat(),
    },
)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    clicks = {"topics": ["clicks"], "table": {"location": str(tmp_path / "lake")}, "event_time": {"field": "at"}}
    return Config.model_validate(
        {
            "kafka": {"bootstrap_servers": "127.0.0.1:1"},
            "registry": {"url": "http://127.0.0.1:1"},
            "checkpoints": str(tmp_path / "checkpoints"),
            "pipelines": {"clicks": clicks},
        }
    )


def give_up(config: Config, time: datetime) -> None:
    failure = Failure(time, 4, "fenced", True, REASON, "", 1, "held", None)
    state.write(pipeline_store(config, "clicks"), Memory(State(halted=REASON), failure))


def status_of_lake(config: Config) -> dict[str, Any]:
    silent = BrokerUnreachable("no Kafka broker answers")
    return document([from_table.view("clicks", config, silent, NOW)], NOW, "lake")


def printed(status: dict[str, Any], *, check: bool = False) -> tuple[str, int]:
    out = Console(file=StringIO(), width=120)
    report = StatusReport(status, StatusView(check=check))
    report.render(out)
    return out.file.getvalue(), report.exit_code  # type: ignore[attr-defined]


def test_the_first_line_says_since_when_and_why_a_pipeline_is_given_up(config: Config) -> None:
    give_up(config, NOW)
    text, code = printed(status_of_lake(config))
    assert text.splitlines()[0] == f"clicks  HALTED since {NOW:%Y-%m-%d %H:%M:%S} UTC: {REASON}"
    assert code == 1
    assert status_of_lake(config)["pipelines"]["clicks"]["state"] == "failed", "as a driver says"


def test_a_check_has_a_line_and_an_exit_code(config: Config) -> None:
    text, code = printed(status_of_lake(config), check=True)
    assert (text.strip(), code) == ("clicks  warning  no driver runs it; lag not known: no Kafka broker answers", 0)
    give_up(config, NOW)
    text, code = printed(status_of_lake(config), check=True)
    assert text.startswith("clicks  critical  HALTED since ")
    assert code == 1


def test_a_start_by_hand_ends_a_halt(config: Config) -> None:
    lake = Lake(config.pipelines["clicks"].table.location)
    lake.begin()
    began = datetime.now(UTC)
    give_up(config, began + timedelta(minutes=1))
    assert status_of_lake(config)["pipelines"]["clicks"]["halted"]["reason"] == REASON
    give_up(config, began - timedelta(minutes=1))
    assert status_of_lake(config)["pipelines"]["clicks"]["halted"] is None


def test_a_driver_says_what_its_supervisor_gave_up() -> None:
    progress = Progress("clicks")
    progress.set(recovery=DECISIONS, halt=halt_of_decisions(DECISIONS))
    progress.record_failure("fenced")
    told = document([progress.view()], NOW)["pipelines"]["clicks"]
    assert told["halted"] == {"since": iso(NOW), "reason": REASON}, "it failed then, and was given up later"
    assert told["health"]["level"] == "critical"
    progress.set_running()
    assert document([progress.view()], NOW)["pipelines"]["clicks"]["halted"] is None


def test_a_driver_says_that_its_supervisor_waits_for_a_lease() -> None:
    waits = [{**DECISIONS[0], "to": "waits", "reason": "host/7 has its lease"}]
    progress = Progress("clicks")
    progress.record_failure("fenced")
    progress.set(halt=halt_of_decisions(waits), lease_wait=wait_of_decisions(waits))
    told = document([progress.view()], NOW)["pipelines"]["clicks"]
    assert told["state"] == "waiting"
    assert told["lease_wait"]["reason"] == "host/7 has its lease"
    assert (told["halted"], told["error"]) == (None, "")
    progress.set_running()
    assert document([progress.view()], NOW)["pipelines"]["clicks"]["lease_wait"] is None


@pytest.mark.parametrize("end", ["failed", "stopped"])
def test_what_ends_while_it_waits_for_a_lease_waits_no_longer(end: str) -> None:
    progress = Progress("clicks")
    progress.set(lease_wait=LeaseWait(NOW, "host/7 has its lease"))
    assert progress.view().state == "waiting"
    if end == "failed":
        progress.record_failure("its location lies in another table")
    else:
        progress.record_stop()
    told = document([progress.view()], NOW)["pipelines"]["clicks"]
    assert (told["state"], told["lease_wait"]) == (end, None)
    assert told["error"] == ("its location lies in another table" if end == "failed" else "")


def test_other_decisions_are_no_halt() -> None:
    assert wait_of_decisions([]) is None
    assert wait_of_decisions(DECISIONS) is None
    assert halt_of_decisions([]) is None
    assert halt_of_decisions([{**DECISIONS[0], "to": "L1"}, *DECISIONS]) is None


@pytest.mark.parametrize("content", [b"", b"[]", b'{"state": {}}', b'{"state": {"halted": "x"}, "failure": null}'])
def test_a_record_of_another_format_is_no_halt(config: Config, content: bytes) -> None:
    pipeline_store(config, "clicks").put(state.NAME, content)
    assert find_halt(config.checkpoints, "clicks") is None


def test_a_memory_without_a_halt_is_none(config: Config) -> None:
    give_up(config, NOW)
    memory = state.read(pipeline_store(config, "clicks"))
    state.write(pipeline_store(config, "clicks"), replace(memory, state=State()))
    assert find_halt(config.checkpoints, "clicks") is None
