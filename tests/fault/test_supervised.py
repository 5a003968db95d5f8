"""The supervisor with drivers that fail as they are told: real processes and the real folder, without Spark."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.supervisor.driver_process import channel_folder
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline
from headrace.recovery.supervisor.recovery_actions import Refusal
from headrace.recovery.supervisor.supervisor import Supervisor
from headrace.writer.clients import notifications
from headrace.writer.config.pipelines import Config
from headrace.writer.core.signals import StopEvents
from headrace.writer.lease.factory import pipeline_store
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.lease.lease import StoreLeases
from tests.support.sample_records import config

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

# It does what the script says for its start: pipeline → how it ends. "kill" kills the process.
DRIVER = """
import json, os, signal, sys
from pathlib import Path
from headrace.writer.core.errors import CheckpointUnusable, ConfigError, Fenced
from headrace.writer.status.progress import Progress
from headrace.writer.driver.supervisor_channel import folder
link = folder()
link.begin()
script = Path(sys.argv[1])
starts = json.loads(script.read_text())
now, later = starts[0], starts[1:]
script.write_text(json.dumps(later))
orders, said = link.orders(), script.with_name("orders.jsonl")
with said.open("a") as out:
    print(json.dumps({n: [o.start, o.new_run, o.lease] for n, o in orders.pipelines.items()}), file=out)
errors = {"crash": RuntimeError("torn"), "refuse": CheckpointUnusable("torn"), "wrong": ConfigError("no such field"),
          "fenced": Fenced("another writer runs"), "done": None}
if now == "driver":
    link.report(None, errors["wrong"])
    sys.exit(2)
codes = [0]
for name, end in now.items():
    if not orders.of(name).start:
        continue
    if end == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    link.report(Progress(name).view(), errors[end])
    codes.append(0 if errors[end] is None else getattr(errors[end], "exit_code", 1))
sys.exit(max(codes))
"""


class SentEvents:
    """Notes what people would be told."""

    def __init__(self) -> None:
        self.events: list[notifications.Event] = []

    def send(self, event: notifications.Event) -> None:
        self.events.append(event)

    def close(self, within: timedelta) -> bool:  # noqa: ARG002 - nothing waits
        return True


class Play:
    """A supervisor over drivers of a script."""

    def __init__(self, root: Path, starts: Sequence[Any], names: Sequence[str] = ("clicks",)) -> None:
        self.script, self.sent = root / "script.json", SentEvents()
        self.script.write_text(json.dumps(list(starts)))
        one = config(root)
        pipelines = dict.fromkeys(names, one.pipelines["clicks"])
        self.config: Config = one.model_copy(update={"pipelines": pipelines})
        self.supervised_pipelines = {name: SupervisedPipeline(name) for name in names}

    def run(self, actions: Mapping[RecoveryLevel, Any] | None = None, before: Any = lambda *_: None) -> int:
        leases = {name: StoreLeases(pipeline_store(self.config, name)) for name in self.supervised_pipelines}
        held = LeaseHolder(leases, "test", expires_after=timedelta(seconds=2))
        with channel_folder() as folder:
            try:
                return Supervisor(
                    self.config, self.supervised_pipelines, lambda: [sys.executable, "-c", DRIVER, str(self.script)],
                    folder=folder, lease_holder=held, notifier=self.sent, actions=actions or {}, events=StopEvents(),
                    check_before_start=before, jitter=lambda: 0.0,
                ).run()  # fmt: skip
            finally:
                held.close()

    @property
    def orders(self) -> list[dict[str, list[Any]]]:
        """What each driver was ordered: pipeline → start, new run, lease."""
        return [json.loads(line) for line in self.script.with_name("orders.jsonl").read_text().splitlines()]


def test_a_killed_driver_is_restarted_and_a_refused_checkpoint_is_left_behind(tmp_path: Path) -> None:
    play = Play(tmp_path, [{"clicks": "kill"}, {"clicks": "refuse"}, {"clicks": "done"}])
    assert play.run() == 0
    assert [order["clicks"] for order in play.orders] == [[True, False, 1], [True, False, 1], [True, True, 1]]
    assert dict(play.supervised_pipelines["clicks"].results) == {("killed", "L1", "failed"): 1}
    assert [a.level for a in play.supervised_pipelines["clicks"].memory.state.attempts] == [
        RecoveryLevel.RESTART,
        RecoveryLevel.NEW_RUN,
    ]


@pytest.mark.parametrize(("end", "code"), [("wrong", 2), ("fenced", 4)])
def test_what_no_start_can_change_is_given_up_with_its_exit_code_and_told(tmp_path: Path, end: str, code: int) -> None:
    play = Play(tmp_path, [{"clicks": end}])
    assert play.run() == code
    assert len(play.orders) == 1
    assert [event.kind for event in play.sent.events] == ["pipeline_halted"]


def test_a_driver_that_fails_before_its_pipelines_speaks_for_all_of_them(tmp_path: Path) -> None:
    play = Play(tmp_path, ["driver"], ["clicks", "views"])
    assert play.run() == 2
    assert all(supervised.halted for supervised in play.supervised_pipelines.values())


def test_one_that_is_given_up_is_left_out_of_the_next_start_and_the_other_goes_on(tmp_path: Path) -> None:
    starts = [{"clicks": "wrong", "views": "crash"}, {"clicks": "done", "views": "done"}]
    play = Play(tmp_path, starts, ["clicks", "views"])
    assert play.run() == 2
    assert [(order["clicks"][0], order["views"][0]) for order in play.orders] == [(True, True), (False, True)]
    assert (play.supervised_pipelines["clicks"].halted != "", play.supervised_pipelines["views"].done) == (True, True)


def test_the_exit_code_of_one_pipeline_says_nothing_of_another_that_was_silent(tmp_path: Path) -> None:
    """Its driver ended before it could be started there."""
    play = Play(tmp_path, [{"clicks": "wrong"}, {"views": "done"}], ["clicks", "views"])
    assert play.run() == 2
    assert play.supervised_pipelines["views"].done
    assert not play.supervised_pipelines["views"].halted


def test_a_fault_that_a_check_finds_is_treated_before_the_driver_starts(tmp_path: Path) -> None:
    verdicts = [Verdict("preflight log", RecoveryLevel.RESTART, halt=False, message="Cut."), None]
    done: list[str] = []
    play = Play(tmp_path, [{"clicks": "done"}])
    actions = {RecoveryLevel.RESTART: lambda name: done.append(name) or "done"}
    assert play.run(actions, lambda *_: verdicts.pop(0)) == 0
    assert done == ["clicks"]
    assert [orders["clicks"] for orders in play.orders] == [[True, False, 1]], "no driver failed at it"


def test_a_checkpoint_that_is_corrupt_before_a_start_is_left_for_a_new_run(tmp_path: Path) -> None:
    verdicts = [Verdict("preflight files", RecoveryLevel.NEW_RUN, halt=False, message="Torn.")]
    play = Play(tmp_path, [{"clicks": "done"}])
    assert play.run(before=lambda *_: verdicts.pop(0)) == 0
    assert [orders["clicks"] for orders in play.orders] == [[True, True, 1]], "no driver failed at it"


def test_an_action_that_refuses_gives_way_to_the_next_level(tmp_path: Path) -> None:
    def refuse(_: str) -> str:
        raise Refusal("the batch may be committed")

    verdicts = [Verdict("preflight log", RecoveryLevel.RESTART, halt=False, message="Cut.")]
    play = Play(tmp_path, [{"clicks": "done"}])
    assert play.run({RecoveryLevel.RESTART: refuse}, lambda *_: verdicts.pop(0) if verdicts else None) == 0
    assert [orders["clicks"] for orders in play.orders] == [[True, True, 1]]
    assert play.supervised_pipelines["clicks"].results["preflight log", "L1", "refused"] == 1
    assert "the batch may be committed" in play.supervised_pipelines["clicks"].memory.action


def test_a_supervisor_that_loses_its_lease_waits_for_it_says_so_and_goes_on_by_itself(tmp_path: Path) -> None:
    """Another process takes the lease over while the supervisor starts its driver, and does not renew it."""
    play = Play(tmp_path, [{"clicks": "fenced"}, {"clicks": "done"}])
    other = StoreLeases(pipeline_store(play.config, "clicks"))
    takes_over = [True]

    def take_over(*_: object) -> None:
        if takes_over:
            takes_over.pop()
            seen = other.look()
            assert seen is not None
            assert other.take(seen.epoch + 1, "another")

    assert play.run(before=take_over) == 0
    assert [event.kind for event in play.sent.events] == ["lease_lost"]
    assert [orders["clicks"] for orders in play.orders] == [[True, False, 1], [True, False, 3]]
    assert play.supervised_pipelines["clicks"].memory.state.attempts == ()
