"""A supervisor whose lease another process takes: it waits, says so, and goes on by itself, without recovery budget."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from headrace.recovery.supervisor.decision_log import DecisionLog
from headrace.recovery.supervisor.endpoints import SupervisorStatus, supervisor_endpoints
from headrace.recovery.supervisor.pipeline_leases import PipelineLeases
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.writer.clients.supervisor_record import find_halt
from headrace.writer.core.errors import Fenced
from headrace.writer.driver.supervisor_channel import ChannelFolder
from headrace.writer.lease.holder import LeaseHolder
from tests.support.simulated_supervisor import OneLease, Release, SentEvents, release

NOW = datetime(2026, 11, 27, tzinfo=UTC)
Make = Callable[..., Release]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as after:
        yield lambda pipelines, only=None: after.enter_context(release(tmp_path, pipelines, only))


def take_away(one: Release, name: str) -> None:
    """Let another process take a lease over, and the supervisor notice it."""
    one.leases[name].lose()
    one.held.renew()


def status_of(one: Release, name: str) -> dict[str, Any]:
    """Return what the supervisor's `/status` says of a pipeline."""
    status = SupervisorStatus(lambda: one.supervisor.supervised_pipelines, one.held, lambda: one.supervisor.driving)
    document = json.loads(supervisor_endpoints(status)("/status", "")[2])
    pipeline: dict[str, Any] = document["pipelines"][name]
    return pipeline


def metrics_of(one: Release) -> str:
    status = SupervisorStatus(lambda: one.supervisor.supervised_pipelines, one.held, lambda: one.supervisor.driving)
    return supervisor_endpoints(status)("/metrics", "text/plain")[2].decode()


def check_no_budget(supervised: SupervisedPipeline) -> None:
    assert not supervised.halted
    assert supervised.memory.state.attempts == ()
    assert supervised.level_reached == 0
    assert sum(supervised.results.values()) == 0


def test_a_pipeline_whose_lease_was_taken_ends_waits_and_goes_on_by_itself(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    take_away(one, "clicks")
    assert one.go(60) is None
    assert one.running == {"views": 1}
    check_no_budget(one.supervisor.supervised_pipelines["clicks"])
    assert [(event.kind, event.pipeline) for event in one.sent.events] == [("lease_lost", "clicks")]
    assert "other/1 took the lease" in one.sent.events[0].text
    one.leases["clicks"].foreign = False
    one.go(20)
    assert one.running == {"clicks": 1, "views": 1}
    assert one.held.epochs["clicks"] == 3
    assert one.drivers[-1].runners.all["clicks"].lease == 3, "the driver begins under the new lease"
    assert len(one.drivers) == 1, "the other pipeline went on all the time"
    check_no_budget(one.supervisor.supervised_pipelines["clicks"])


def test_a_supervisor_of_one_pipeline_waits_without_a_driver(make: Make) -> None:
    one = make({"clicks": 1})
    one.go(5)
    take_away(one, "clicks")
    assert one.go(200) is None
    assert one.running == {}
    assert one.drivers[-1].code == 4
    assert len(one.drivers) == 1
    one.leases["clicks"].foreign = False
    one.go(20)
    assert one.running == {"clicks": 1}
    assert len(one.drivers) == 2


def test_a_driver_that_is_fenced_before_the_loss_is_noticed_waits_too(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.leases["clicks"].lose()
    one.drivers[-1].fail("clicks", Fenced("another writer runs"))
    one.go(60)
    assert one.running == {"views": 1}
    check_no_budget(one.supervisor.supervised_pipelines["clicks"])
    assert [event.kind for event in one.sent.events] == ["lease_lost"]
    one.leases["clicks"].foreign = False
    one.go(20)
    assert one.running == {"clicks": 1, "views": 1}


def test_one_that_is_fenced_while_it_holds_its_lease_is_left_to_a_person(make: Make) -> None:
    """The other writer has no lease: when it has ended, nobody can know."""
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.drivers[-1].fail("clicks", Fenced("another writer runs"))
    one.go(60)
    assert one.supervisor.supervised_pipelines["clicks"].halted
    assert [event.kind for event in one.sent.events] == ["pipeline_halted"]
    assert "clicks" in one.held.epochs


def test_one_that_is_fenced_while_its_lease_cannot_be_read_is_tried_again_without_budget(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.leases["clicks"].silent = True
    one.drivers[-1].fail("clicks", Fenced("another writer runs"))
    one.round()
    one.step(2.5)
    supervised = one.supervisor.supervised_pipelines["clicks"]
    assert supervised.memory.failure is not None
    assert "its lease cannot be read: it does not answer" in supervised.memory.failure.message
    assert not supervised.halted
    assert supervised.memory.state.attempts == ()
    supervised.due_s = one.clock.now_s + 300
    one.leases["clicks"].silent = False
    take_away(one, "clicks")
    one.go(20)
    assert one.running == {"views": 1}, "then it is known that another has it"
    assert not supervised.halted
    assert status_of(one, "clicks")["unhealthy_seconds"] == 0
    one.leases["clicks"].foreign = False
    one.go(20)
    assert one.running == {"clicks": 1, "views": 1}, "it does not wait for the end of a pause"


def test_a_silent_storage_takes_no_lease_away(make: Make) -> None:
    one = make({"clicks": 1})
    one.go(5)
    one.leases["clicks"].silent = True
    one.held.renew()
    one.go(60)
    assert one.running == {"clicks": 1}
    assert one.held.take_losses() == []


def test_the_screens_say_whom_it_waits_for_and_since_when(make: Make, tmp_path: Path) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    assert status_of(one, "clicks")["lease_wait"] is None
    assert 'headrace_lease_awaited{pipeline="clicks"} 0.0' in metrics_of(one)
    take_away(one, "clicks")
    one.go(60)
    status = status_of(one, "clicks")
    assert status["lease_wait"]["reason"].startswith("other/1 has its lease")
    assert (status["halted"], status["up"], status["lease_epoch"]) == (None, False, None)
    metrics = metrics_of(one)
    assert 'headrace_lease_awaited{pipeline="clicks"} 1.0' in metrics
    assert 'headrace_lease_lost_total{pipeline="clicks"} 1.0' in metrics
    assert 'headrace_recovery_halted{pipeline="clicks"} 0.0' in metrics
    assert 'headrace_recovery_unhealthy_seconds{pipeline="clicks"} 0.0' in metrics
    decisions = json.loads((tmp_path / "decided.json").read_text())["clicks"]
    assert [decision["to"] for decision in decisions] == ["waits"], "once, not at each look"
    one.leases["clicks"].foreign = False
    one.go(20)
    decisions = json.loads((tmp_path / "decided.json").read_text())["clicks"]
    assert [decision["to"] for decision in decisions] == ["L0", "waits"]
    assert status_of(one, "clicks")["lease_wait"] is None


def test_what_the_other_holder_remembers_is_not_overwritten(make: Make, tmp_path: Path) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    memory = tmp_path / "checkpoints" / "clicks" / "_recovery.json"
    memory.unlink(missing_ok=True)
    take_away(one, "clicks")
    one.go(60)
    assert not memory.exists()


def test_pipelines_that_wait_in_turn_do_not_keep_a_driver_from_its_start(make: Make) -> None:
    """Their next looks lie so that one is always due within a moment."""
    one = make({"clicks": 1, "orders": 1, "views": 1})
    one.go(5)
    take_away(one, "clicks")
    one.go(4)
    take_away(one, "orders")
    one.go(20)
    assert one.running == {"views": 1}
    one.drivers[-1].kill()
    one.go(60)
    assert one.running == {"views": 1}
    assert len(one.drivers) == 2


def test_a_pipeline_that_was_given_up_waits_for_no_lease_until_a_reload(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.drivers[-1].fail("clicks", Fenced("another writer runs"))
    one.go(20)
    assert one.supervisor.supervised_pipelines["clicks"].halted
    take_away(one, "clicks")
    one.go(20)
    status = status_of(one, "clicks")
    assert status["halted"]
    assert (status["lease_wait"], status["lease_epoch"]) == (None, None)
    assert 'headrace_lease_awaited{pipeline="clicks"} 0.0' in metrics_of(one)
    assert [event.kind for event in one.sent.events] == ["pipeline_halted"], "it does not go on by itself"
    one.reload({"clicks": 2, "views": 1})
    one.go(20)
    assert status_of(one, "clicks")["lease_wait"]["reason"].startswith("other/1 has its lease")
    one.leases["clicks"].foreign = False
    one.go(20)
    assert one.running == {"clicks": 2, "views": 1}


def test_a_pipeline_that_was_given_up_keeps_its_lease_and_the_storage_says_so_until_a_reload(
    make: Make, tmp_path: Path
) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.drivers[-1].fail("clicks", Fenced("another writer runs"))
    one.go(20)
    assert "clicks" in one.held.epochs, "no other supervisor starts it"
    halt = find_halt(str(tmp_path / "checkpoints"), "clicks")
    assert halt is not None
    assert "without its lease" in halt.reason
    one.reload({"clicks": 2, "views": 1})
    one.step(0.2)
    assert find_halt(str(tmp_path / "checkpoints"), "clicks") is None
    one.go(20)
    assert one.running == {"clicks": 2, "views": 1}


def test_a_stop_while_it_waits_ends_well(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    take_away(one, "clicks")
    one.go(60)
    one.supervisor._stop.set()
    one.drivers[-1].stop.set()
    assert one.go(60) == 0, "the exit code of the driver is that of the pipeline which waits"


@pytest.mark.parametrize("change", [{"clicks": 2, "views": 1}, {"views": 1}])
def test_a_reload_while_it_waits_does_not_fight_for_the_lease(make: Make, change: dict[str, int]) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    take_away(one, "clicks")
    one.go(20)
    one.reload(change)
    one.go(60)
    assert one.running == {"views": 1}
    one.leases["clicks"].foreign = False
    one.go(20)
    assert one.running == change


def test_a_pipeline_that_was_removed_while_it_waited_begins_without_that_wait(make: Make, tmp_path: Path) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    take_away(one, "clicks")
    one.go(20)
    assert json.loads((tmp_path / "decided.json").read_text())["clicks"][0]["to"] == "waits"
    one.reload({"views": 1})
    one.go(10)
    one.leases["clicks"].foreign = False
    one.reload({"clicks": 1, "views": 1})
    one.go(20)
    assert one.running == {"clicks": 1, "views": 1}
    assert "clicks" not in json.loads((tmp_path / "decided.json").read_text())


def test_a_pipeline_that_a_reload_adds_waits_while_another_process_has_it(make: Make) -> None:
    one = make({"clicks": 1})
    one.go(5)
    one.lease("views").lose()
    one.reload({"clicks": 1, "views": 1})
    one.go(60)
    assert one.running == {"clicks": 1}
    assert status_of(one, "views")["lease_wait"]["reason"].startswith("other/1 has its lease")
    one.leases["views"].foreign = False
    one.go(20)
    assert one.running == {"clicks": 1, "views": 1}


def test_a_loss_that_is_told_late_does_not_end_what_runs_under_a_newer_lease(tmp_path: Path) -> None:
    lease = OneLease()
    holder = LeaseHolder({"clicks": lease}, "me/1")
    supervised = SupervisedPipeline("clicks")
    leases = PipelineLeases(holder, DecisionLog(ChannelFolder(tmp_path)), SentEvents())  # type: ignore[arg-type]
    memory = supervised.memory
    assert leases.try_take(supervised, lambda: memory)
    lease.lose()
    assert holder.has_lost("clicks")
    supervised.leased = False
    lease.foreign = False
    assert leases.try_take(supervised, lambda: memory)
    leases.note_losses({"clicks": supervised}, lambda: NOW, 0.0)
    assert supervised.leased
    assert supervised.lease == 3
    holder.close()
