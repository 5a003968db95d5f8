"""The wall clock steps, forth or back by a second to a day: no wait grows by it, no limit gives way, no age lies."""

import logging
import threading
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from headrace.autoscaler.decision.decide import ScaleDown, ScaleUp, tick
from headrace.autoscaler.decision.history import Block, DesiredDecrease, Memory, Scaling, without_future
from headrace.recovery.escalation.decide import (
    BUDGETS,
    Attempt,
    Failed,
    Frontier,
    Healthy,
    Policy,
    State,
    attempt_times,
    decide,
)
from headrace.recovery.escalation.diagnosis import DriverHealth, Timeouts, parse_health, unresponsive_reason
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.escalation.state import Memory as RecoveryMemory
from headrace.recovery.supervisor.driver_process import ConditionTimes
from headrace.recovery.supervisor.pipeline_state import SupervisedPipeline, failure_of
from headrace.recovery.supervisor.recovery_actions import Refusal
from headrace.recovery.supervisor.supervisor import Supervisor
from headrace.writer.config.sections.bucket_upkeep import Seal
from headrace.writer.config.sections.resource_limits import Commit
from headrace.writer.core.signals import StopEvents
from headrace.writer.driver.pipeline_runner import PipelineRunner, PipelineRunners, StartRequests
from headrace.writer.driver.supervisor_channel import ChannelFolder
from headrace.writer.hooks.outbox import OutboxEntry
from headrace.writer.lease.holder import LeaseHolder
from headrace.writer.schemas.registry_hold import RegistryWait
from headrace.writer.sealing.bucket_states import BucketCounts
from headrace.writer.sealing.rules import SealLater, SealNow, Unsealed, choose_seals
from headrace.writer.sealing.watermark import Watermark
from headrace.writer.status.document import document
from headrace.writer.status.lag_sample import Lag, LagSample
from headrace.writer.status.model import Batch, Sample, View
from headrace.writer.status.progress import Progress
from headrace.writer.status.rate_limit import EffectiveLimit, LimitState, RateLimit, Throttle
from headrace.writer.status.table_facts import TableContents
from headrace.writer.storage.local import LocalStore
from headrace.writer.table.backfill_locks import LEASE, BackfillLocked, BackfillLocks
from tests.support.autoscaler_facts import NOW, POLICY, batches, facts, pipeline
from tests.support.commits import LIMITS, NOON, account, facts as commit_facts
from tests.support.pipeline_states import pipeline_states
from tests.support.sample_records import config
from tests.support.simulated_supervisor import EndlessPipeline, Query, SentEvents
from tests.support.stepped_clocks import Clocks

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
SIZES = (SECOND, 2 * MINUTE, HOUR, DAY)
STEPS = [sign * size for size in SIZES for sign in (1, -1)]
A = ("clicks", 0)


# --- what finds a step --------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.floats(0, 3_600), st.sampled_from([timedelta(0), *STEPS])), max_size=20))
def test_each_step_is_found_once_and_with_its_size_and_the_passing_of_time_is_none(
    moments: list[tuple[float, timedelta]],
) -> None:
    clocks = Clocks()
    comparison = clocks.comparison()
    for passed_s, step in moments:
        clocks.pass_time(passed_s)
        clocks.step(step)
        assert comparison.take_step() == pytest.approx(step.total_seconds(), abs=1e-3)
        assert comparison.take_step() == 0


def test_a_clock_that_is_slewed_never_steps() -> None:
    clocks = Clocks()
    comparison = clocks.comparison()
    for _ in range(10_000):
        clocks.pass_time(0.2)
        clocks.wall_s -= 0.2 * 500e-6
        assert comparison.take_step() == 0


# --- the driver ---------------------------------------------------------------------------------------------------


class Runners:
    """The runners of a driver with one pipeline, whose query runs until it is stopped."""

    def __init__(self, *, waits: bool = True) -> None:
        self.clocks = Clocks()
        self.progress = Progress("clicks", now=self.clocks.now, seconds=self.clocks.seconds)
        self.starts = 0
        made = PipelineRunner(self.progress, self._begin, waits=waits)
        self.runners = PipelineRunners(lambda _: made, StartRequests(), clocks=self.clocks.comparison())
        self.runners.add("clicks")
        self.runners.begin("clicks")

    def _begin(self, runner: PipelineRunner, _new_run: bool) -> None:
        self.starts += 1
        runner.pipeline, runner.query = EndlessPipeline(), Query()  # type: ignore[assignment]

    def look(self, times: int = 5) -> None:
        for _ in range(times):
            self.runners.attend(lambda: None, stopping=False)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_query_begins_anew_after_a_step_back_that_it_would_wait_for(
    step: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    driver = Runners()
    driver.clocks.step(step)
    with caplog.at_level(logging.INFO):
        driver.look()
    assert driver.starts == 1 + (step <= -2 * MINUTE)
    view = driver.progress.view()
    assert (view.state, view.clock_steps) == ("running", 1)
    said = [record.getMessage() for record in caplog.records if "clock_stepped" in record.getMessage()]
    assert len(said) == 1
    assert str(round(step.total_seconds())) in said[0]


def test_a_run_that_ends_by_itself_is_not_begun_anew() -> None:
    driver = Runners(waits=False)
    driver.clocks.step(-HOUR)
    driver.look()
    assert driver.starts == 1


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_ages_and_lag_stay_what_they_are(step: timedelta) -> None:
    clocks = Clocks()
    progress = Progress("clicks", now=clocks.now, seconds=clocks.seconds)
    progress.record_start(epoch=1, run=1, frontier={A: 4}, limits=LIMITS, buckets=[], recent=[])
    progress.set_running()
    for end in (10, 20):
        progress.add_sample(Sample(clocks.now(), {A: end}), {A: 0})
        clocks.pass_time(15)
    progress.add_dates({A: (4, clocks.now() - HOUR)})
    progress.begin_batch(1, "look")
    progress.record_commit(7, commit_facts(4, 4, event_time_max=None), {A: 4}, [])
    progress.set(contents=TableContents(clocks.now(), 4, 1, 100, 0))
    clocks.pass_time(100)

    def shown() -> dict[str, object]:
        clicks = document([progress.view()], clocks.now(), source="driver")["pipelines"]["clicks"]
        return {
            "commit": clicks["commit_age_seconds"],
            "start": clicks["since_seconds"],
            "lag": clicks["lag"]["seconds"],
            "count": clicks["table"]["age_seconds"],
        }

    before = shown()
    clocks.step(step)
    progress.shift_clock(step)
    assert shown() == before
    assert before["commit"] == before["count"] == 100


# By the wall clock on purpose: what they are compared with stands in records, or on storage.
_OF_STORED_TIMES = {"event_time_newest_age_seconds", "oldest_waiting_seconds", "watermark_delay_seconds"}


def numbers(part: object, path: str = "") -> dict[str, object]:
    """Return the numbers of a document by their paths, without those that compare the clock with a stored time."""
    if isinstance(part, Mapping):
        items = [(str(key), value) for key, value in part.items() if key not in _OF_STORED_TIMES]
    elif isinstance(part, list):
        items = [(str(index), value) for index, value in enumerate(part)]
    else:
        return {path: part} if isinstance(part, int | float) else {}
    return {name: number for key, value in items for name, number in numbers(value, f"{path}/{key}").items()}


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("name", list(pipeline_states()))
def test_no_number_of_a_screen_changes_with_a_step(name: str, step: timedelta) -> None:
    view = pipeline_states(NOW)[name]
    busy = replace(
        view,
        batch=Batch(8, NOW - MINUTE, "tasks", NOW - SECOND, 400),
        rate_limit=LimitState(next_begin=NOW + MINUTE, in_force=EffectiveLimit(RateLimit(100.0))),
        bucket_counts=BucketCounts(NOW - SECOND, Watermark(NOW - HOUR), None, 1, 0, 0),
    )

    def shown(view: View, now: datetime) -> dict[str, object]:
        return numbers(document([view], now)["pipelines"]["clicks"])

    assert shown(busy.shift_times(step), NOW + step) == shown(busy, NOW)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_begin_of_a_wait_for_a_lease_is_shown_by_the_clock_as_it_is_now(step: timedelta) -> None:
    view = pipeline_states(NOW)["waits for its lease"]

    def since(view: View) -> datetime:
        return datetime.fromisoformat(document([view], NOW)["pipelines"]["clicks"]["lease_wait"]["since"])

    assert since(view.shift_times(step)) - since(view) == step


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_end_of_a_wait_for_a_schema_is_shown_by_the_clock_as_it_is_now(step: timedelta) -> None:
    clocks = Clocks()
    progress = Progress("clicks", now=clocks.now, seconds=clocks.seconds)
    progress.set(registry_wait=RegistryWait(("schema id 11",), clocks.now() + 2 * MINUTE))
    clocks.step(step)
    progress.shift_clock(step)
    clocks.pass_time(30)
    wait = progress.view().registry_wait
    assert wait is not None
    assert wait.until is not None
    assert (wait.until - clocks.now()).total_seconds() == pytest.approx(90, abs=1e-3)
    progress.set(registry_wait=RegistryWait(("schema id 11",), error="the registry does not answer"))
    progress.shift_clock(step)
    assert progress.view().registry_wait == RegistryWait(("schema id 11",), error="the registry does not answer")


@pytest.mark.parametrize("step", STEPS, ids=str)
@pytest.mark.parametrize("moment", ["before the batch", "in the batch", "after the commit"])
def test_a_rate_limit_holds_and_lets_go_at_its_time(tmp_path: Path, step: timedelta, moment: str) -> None:
    clocks = Clocks()
    states = list[LimitState]()
    throttle = Throttle(
        LocalStore(str(tmp_path)), "clicks", Commit.model_validate({"max_records_per_second": 100}), states.append,
        now=clocks.now, seconds=clocks.seconds,
    )  # fmt: skip
    throttle.begin([])

    class Stopping(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            clocks.pass_time(timeout or 0)
            return False

    if moment == "before the batch":
        clocks.step(step)
    throttle.hold(Stopping())
    began_s, started = clocks.monotonic_s, clocks.now()
    clocks.pass_time(2)
    if moment == "in the batch":
        clocks.step(step)
    throttle.record_commit({"ranges": [account(0, 1_000)], "started": started.isoformat(), "value_bytes": 0})
    if moment == "after the commit":
        clocks.step(step)
        throttle.refresh()
    assert states[-1].next_begin is not None
    assert (states[-1].next_begin - clocks.now()).total_seconds() == pytest.approx(8), "what is shown"
    throttle.hold(Stopping())
    assert clocks.monotonic_s - began_s == pytest.approx(10)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_hook_that_was_put_off_is_tried_again_no_later_for_a_step(step: timedelta) -> None:
    entry = OutboxEntry("k", ("b",), 1, 1, NOON).put_off(NOON, MINUTE)
    assert not entry.is_due(NOON)
    assert entry.is_due(NOON + MINUTE)
    assert entry.is_due(NOON + MINUTE + step) or step == -SECOND


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_sealed_bucket_that_got_late_rows_rests_no_longer_for_a_step(step: timedelta) -> None:
    policy = Seal()
    bucket = Unsealed(("2026-11-20T11",), NOON - HOUR, NOON, NOON + MINUTE, sealed=1, added=3, late=3)
    assert isinstance(one_state(policy, bucket, NOON + MINUTE), SealLater)
    rested = NOON + MINUTE + policy.reopen_after
    is_due = isinstance(one_state(policy, bucket, rested + step), SealNow)
    assert is_due or abs(step) <= policy.reopen_after, "a step back of less than the rest adds that much"


def one_state(policy: Seal, bucket: Unsealed, now: datetime) -> object:
    (state,) = choose_seals(policy, [bucket], [], NOON + HOUR, now)
    return state


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_lock_of_a_process_that_is_gone_keeps_nobody_away_for_a_step(tmp_path: Path, step: timedelta) -> None:
    locks = BackfillLocks(LocalStore(str(tmp_path)))
    locks.acquire("gap", "ann", NOON)
    waited = timedelta(0)
    while waited <= 2 * LEASE:
        try:
            locks.acquire("gap", "bob", NOON + step + waited)
            break
        except BackfillLocked:
            waited += SECOND
    assert waited <= 2 * LEASE, "as long as without the step, and once more at most"


# --- the supervisor -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_pipeline_that_commits_nothing_is_stalled_after_its_time_whatever_the_clock_says(step: timedelta) -> None:
    clocks = Clocks()
    times = ConditionTimes(clocks.seconds)
    timeouts = Timeouts(10 * MINUTE, 2 * MINUTE, {"clicks": 30 * MINUTE})

    def hangs(version: int, waiting: int = 5) -> bool:
        lag = LagSample(clocks.now(), partitions=(Lag("clicks", 0, waiting, 3.0, 0, None),))
        told = {
            "state": "running", "run": 1, "last_commit": {"version": version}, "error": "",
            "lag": lag.to_json(clocks.now()), "totals": {"commits": {"size": 1}},
        }  # fmt: skip
        health = times.add_to("clicks", parse_health(told, clocks.now()))
        look = DriverHealth(9e9, 0.1, {"clicks": health})
        return bool(unresponsive_reason(look, timeouts))

    assert not hangs(7, waiting=0)
    clocks.pass_time(5 * 3600)
    assert not hangs(7), "the records have only just come"
    clocks.pass_time(900)
    clocks.step(step)
    assert not hangs(7)
    clocks.pass_time(899)
    assert not hangs(7)
    clocks.pass_time(2)
    assert hangs(7)
    assert not hangs(8)


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_budgets_of_recovery_are_new_after_their_time_from_the_step_on(step: timedelta) -> None:
    policy = Policy(actions=frozenset(RecoveryLevel))
    level = RecoveryLevel.RESTART
    budget = BUDGETS[level]
    attempts = tuple(Attempt(level, NOON, "a row", 1) for _ in range(budget.times_max))
    after = NOON + step
    failure = Failed(Verdict("a row", level, halt=False, message="it fails"), Frontier.HELD, 1)
    used_up = decide(policy, State(attempts=attempts), failure, after, 0.0)
    later = decide(policy, used_up.state, failure, after + budget.within, 0.0)
    assert getattr(later, "level", None) == level, "no longer than the budget says"
    well = decide(policy, State(level=level, healthy_since=NOON), Healthy(), after, 0.0)
    assert well.state.healthy_since is None or well.state.healthy_since <= after
    well = decide(policy, well.state, Healthy(), after + policy.healthy_after, 0.0)
    assert well.state.level is None


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_a_budget_that_is_used_up_while_a_supervisor_runs_is_free_again_at_its_time(step: timedelta) -> None:
    level = RecoveryLevel.RESTART
    budget = BUDGETS[level]
    state = State(attempts=tuple(Attempt(level, NOON, "a row", 1) for _ in range(budget.times_max)))
    supervised = SupervisedPipeline("clicks", RecoveryMemory(state=state))
    supervised.shift_clock(step)
    known, stepped = supervised.memory.state, NOON + step
    assert len(attempt_times(known, level, budget, stepped + budget.within - SECOND)) == budget.times_max, (
        "and not sooner"
    )
    assert attempt_times(known, level, budget, stepped + budget.within) == []


@pytest.mark.parametrize("step", [HOUR, -HOUR], ids=str)
def test_a_time_noted_after_a_step_within_an_action_is_not_moved_by_it(tmp_path: Path, step: timedelta) -> None:
    clocks = Clocks()

    def refuse(_: str) -> str:
        clocks.step(step)
        raise Refusal("it cannot be done")

    known = failure_of(Verdict("a row", RecoveryLevel.RESTART, halt=False, message="it fails"), 1, "", 1, "held", NOON)
    memory = RecoveryMemory(state=State(level=RecoveryLevel.RESTART), failure=known)
    supervised = SupervisedPipeline("clicks", memory, leased=True, level=RecoveryLevel.RESTART)
    supervisor = Supervisor(
        config(tmp_path),
        {"clicks": supervised},
        list,
        folder=ChannelFolder(tmp_path),
        lease_holder=LeaseHolder({}, "me/1"),
        notifier=SentEvents(),  # type: ignore[arg-type]
        actions={RecoveryLevel.RESTART: refuse},
        events=StopEvents(),
        jitter=lambda: 0.0,
        clocks=clocks.comparison(),
    )
    supervisor._step()
    noted = supervised.memory.state.attempts
    assert noted
    supervisor._step()
    assert supervised.memory.state.attempts == noted


# --- the autoscaler -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_autoscaler_waits_no_longer_for_a_step(step: timedelta) -> None:
    """The longest of its waits: a block, ups that are to settle, wants for fewer."""
    memory = Memory(
        desired=2, scalings=(Scaling(NOW, 1, 2, {}, NOW + MINUTE),), fewer=(DesiredDecrease(NOW, 1),),
        block=Block(2, NOW + timedelta(seconds=POLICY.block_s), 0.0), failed_at=NOW,
    )  # fmt: skip
    now = NOW + MINUTE + step
    known = without_future(POLICY, memory, now)
    instants = [*(one.at for one in known.scalings), *(one.at for one in known.fewer), known.failed_at]
    assert all(at is not None and at <= now for at in instants)
    assert known.block is not None
    assert known.block.until <= now + timedelta(seconds=POLICY.block_s)
    if step > timedelta(0):
        assert known == memory, "what is past stays as it is"
    longest = timedelta(seconds=max(POLICY.block_s, POLICY.max_stable_s, POLICY.history_s)) + MINUTE

    def decided(arriving: float, at: datetime) -> object:
        busy = pipeline(arriving, batches=batches(slots=8, last=at))
        return tick(POLICY, known, facts(busy, now=at), at)[0]

    assert isinstance(decided(72_000, now + longest), ScaleUp)
    assert not isinstance(decided(1_000, now), ScaleDown) or step >= HOUR, "a step back takes none away"
