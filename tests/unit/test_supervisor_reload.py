"""A supervisor that reads its file again, with a driver that reads it at another moment."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from headrace.recovery.escalation.diagnosis import DriverHealth, PipelineHealth, Timeouts, unresponsive_reason
from headrace.recovery.supervisor.main import _driver_command
from headrace.recovery.supervisor.settings import timeouts
from headrace.writer.config.loader import ReloadableConfig
from headrace.writer.core.errors import LimitReached
from headrace.writer.lease.holder import LeaseHolder
from tests.support.simulated_supervisor import BROKEN, Release, release

Make = Callable[..., Release]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as after:
        yield lambda pipelines, only=None: after.enter_context(release(tmp_path, pipelines, only))


def test_pipelines_come_change_and_go_with_their_leases(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    assert one.running == {"clicks": 1, "views": 1}
    one.reload({"clicks": 1, "views": 2, "orders": 1})
    one.go(30)
    assert one.running == {"clicks": 1, "views": 2, "orders": 1}
    one.reload({"clicks": 1})
    one.go(30)
    assert one.running == {"clicks": 1}
    assert set(one.supervisor.supervised_pipelines) == set(one.held.epochs) == {"clicks"}
    assert len(one.drivers) == 1


def test_a_drain_may_take_longer_than_many_looks(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.drain_rounds = 50
    one.reload({"clicks": 1})
    assert one.go(40) is None
    assert set(one.running) == {"clicks", "views"}, "it drains"
    assert set(one.held.epochs) == {"clicks", "views"}
    one.go(30)
    assert one.running == {"clicks": 1}
    assert set(one.held.epochs) == {"clicks"}


def test_a_pipeline_that_the_file_in_force_lacks_is_not_judged(make: Make) -> None:
    limits: Timeouts = timeouts(make({"clicks": 1}).file.config)
    still = PipelineHealth("running", 1e6, 1, 1, 5)
    assert unresponsive_reason(DriverHealth(60.0, 0.1, {"views": still}), limits) == ""
    assert "pipeline clicks has 5 offsets" in unresponsive_reason(DriverHealth(60.0, 0.1, {"clicks": still}), limits)


@pytest.mark.parametrize("rounds", [0, 1, 10])
def test_all_pipelines_are_exchanged(make: Make, rounds: int) -> None:
    one = make({"old": 1})
    one.go(5)
    one.drain_rounds = rounds
    one.reload({"new": 1})
    assert one.go(60) is None
    assert one.running == {"new": 1}
    assert set(one.held.epochs) == {"new"}


def test_a_start_that_a_driver_took_while_it_ended_is_made_by_the_next(make: Make) -> None:
    one = make({"old": 1})
    one.go(5)
    one.reload({"old": 1, "new": 1})
    while not one.supervisor.supervised_pipelines.get("new") or not one.supervisor.supervised_pipelines["new"].up:
        one.step()
        one.drivers[-1].runners.change(one.drivers[-1].file.read_again() or type(one.file.last.changes)())
    one.drivers[-1].code = 0  # it has accepted the request, and ends before it looks at it
    one.drivers[-1].running.clear()
    assert one.go(60) is None
    assert one.running["new"] == 1


def test_a_pipeline_that_a_newer_driver_does_not_know_is_released(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.write({"clicks": 1})
    one.drivers[-1].kill()
    one.go(30)
    assert one.running == {"clicks": 1}
    assert set(one.held.epochs) == {"clicks", "views"}, "the supervisor has not read that it is gone"
    one.requested.set()
    one.go(10)
    assert set(one.supervisor.supervised_pipelines) == set(one.held.epochs) == {"clicks"}
    one.reload({"clicks": 1, "views": 2})
    one.go(30)
    assert one.running == {"clicks": 1, "views": 2}


def test_a_pipeline_that_is_put_back_before_the_supervisor_missed_it_runs_again(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.write({"clicks": 1})
    one.drivers[-1].kill()
    one.go(30)
    one.reload({"clicks": 1, "views": 1})
    one.go(200)
    assert one.running == {"clicks": 1, "views": 1}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("rounds_between", range(6))
def test_one_that_is_put_back_about_when_it_has_drained_runs_again(make: Make, rounds_between: int, late: bool) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.reload({"clicks": 1})
    one.step(2.5)  # a look, so that the next report is not taken at once
    for _ in range(rounds_between):
        one.round()
    one.signals_come_late = late
    one.reload({"clicks": 1, "views": 1})
    one.go(60)
    assert one.running == {"clicks": 1, "views": 1}


def test_new_settings_are_tried_where_the_old_ones_failed(make: Make) -> None:
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.reload({"clicks": 1, "views": BROKEN})
    one.go(20)
    assert one.supervisor.supervised_pipelines["views"].halted
    one.reload({"clicks": 1, "views": 2})
    one.go(30)
    assert one.running == {"clicks": 1, "views": 2}
    assert len(one.drivers) == 1


@pytest.mark.parametrize("late", [False, True])
def test_new_settings_are_tried_where_the_old_ones_fail_just_then(make: Make, late: bool) -> None:
    """A failure that is final ends the driver's part before the driver reads of the new settings, or after it."""
    one = make({"clicks": 1, "views": 1})
    one.go(5)
    one.signals_come_late = late
    one.reload({"clicks": 1, "views": 2})
    one.step()
    runner = one.drivers[-1].runners.all["views"]
    runner.pipeline.error, runner.query.isActive = LimitReached("too many failed"), False  # type: ignore[union-attr]
    one.go(60)
    assert one.running == {"clicks": 1, "views": 2}


def test_a_supervisor_that_waits_for_a_lease_reads_its_file_and_runs_the_others(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one = make({"clicks": 1, "views": 1})
    one.leases["views"].foreign = True
    one.go(30)
    assert one.running == {"clicks": 1}
    (waited,) = [line for line in caplog.messages if "lease_awaited" in line]
    assert all(part in waited for part in ("pipeline=views", "holder=other/1")), waited
    one.reload({"clicks": 2, "orders": 1})
    one.go(30)
    assert one.running == {"clicks": 2, "orders": 1}
    assert set(one.supervisor.supervised_pipelines) == {"clicks", "orders"}


def test_a_supervisor_without_any_lease_reads_its_file(make: Make) -> None:
    one = make({"views": 1})
    one.leases["views"].foreign = True
    assert one.go(30) is None
    assert one.drivers == []
    one.reload({"orders": 1})
    one.go(10)
    assert one.running == {"orders": 1}


def test_a_lease_is_renewed_from_when_it_is_taken(make: Make) -> None:
    one = make({"clicks": 1})
    assert not one.held._thread.has_started
    one.go(5)
    assert one.held._thread.has_started
    assert isinstance(one.held, LeaseHolder)


def test_a_chosen_pipeline_comes_back_also_to_a_driver_that_began_without_it(make: Make) -> None:
    one = make({"clicks": 1, "views": 1}, ["clicks", "views"])
    one.go(5)
    one.reload({"clicks": 1})
    one.go(20)
    assert [word for word in _driver_command(one.file) if "pipeline=" in word] == [
        "--pipeline=clicks",
        "--pipeline=views",
    ]
    one.drivers[-1].kill()
    one.go(30)
    one.reload({"clicks": 1, "views": 1, "orders": 1})
    one.go(30)
    assert one.running == {"clicks": 1, "views": 1}


def test_a_driver_is_told_of_an_invalid_file(make: Make) -> None:
    one = make({"clicks": 1})
    one.go(5)
    one.path.write_text("pipelines: [")
    one.requested.set()
    one.go(5)
    file: ReloadableConfig = one.drivers[-1].file
    assert "is not YAML" in file.last.error
    assert one.running == {"clicks": 1}
