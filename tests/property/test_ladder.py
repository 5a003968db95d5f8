"""The ladder, whatever happens in whatever order: it climbs only for a reason, comes down, and keeps to its budgets."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from recovery.ladder.decide import (
    BUDGETS,
    Decision,
    Down,
    Event,
    Failed,
    Frontier,
    Halt,
    Healthy,
    Latest,
    NewRun,
    Policy,
    Refused,
    Repair,
    Restart,
    State,
    Stay,
    Wait,
    WalkBack,
    decide,
    rung_of,
    used,
)
from recovery.ladder.rungs import RecoveryLevel

T0 = datetime(2026, 11, 20, tzinfo=UTC)
ALL = frozenset(RecoveryLevel)
START = Wait | Restart | Repair | NewRun | WalkBack | Latest


@dataclass(frozen=True)
class Said:
    rung: RecoveryLevel | None
    halt: bool = False
    row: str = "a row"
    said: str = "a sentence"


WAITING, UNKNOWN = Said(RecoveryLevel.WAIT), Said(None)
policies = st.builds(
    Policy,
    hands=st.sets(st.sampled_from([RecoveryLevel.REPAIR, RecoveryLevel.WALK_BACK, RecoveryLevel.LATEST])).map(
        lambda some: frozenset({*some, RecoveryLevel.WAIT, RecoveryLevel.RESTART, RecoveryLevel.NEW_RUN})
    ),
    latest_allowed=st.booleans(),
)
verdicts = st.builds(Said, rung=st.none() | st.sampled_from(RecoveryLevel), halt=st.just(False))
frontiers, runs = st.sampled_from(Frontier), st.none() | st.integers(1, 3)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Failed, verdicts, frontiers, runs), st.builds(Refused, st.just("no"), verdicts, frontiers, runs),
    st.just(Down("the storage is silent")), st.just(Healthy()),
)  # fmt: skip
steps = st.lists(
    st.tuples(events, st.integers(0, 4_000).map(lambda s: timedelta(seconds=s)), st.floats(0, 1)), max_size=40
)


def played(
    policy: Policy, history: list[tuple[Event, timedelta, float]]
) -> list[tuple[datetime, Event, State, Decision]]:
    at, state, found = T0, State(), []
    for event, later, jitter in history:
        at += later
        decision = decide(policy, state, event, at, jitter)
        found.append((at, event, state, decision))
        state = decision.state
    return found


@given(policies, steps)
def test_every_event_leads_to_an_action_with_a_reason(policy, history):
    for _, _, _, decision in played(policy, history):
        assert isinstance(decision.action, START | Stay | Halt)
        assert decision.action.reason


@given(policies, steps)
def test_what_is_down_is_waited_for_and_nothing_climbs(policy, history):
    for at, _, state, _ in played(policy, history):
        for event in (Down("silence"), *(Failed(WAITING, f) for f in Frontier)):
            decision = decide(policy, state, event, at, 0.5)
            if isinstance(decision.action, Halt):
                assert state.halted
                continue
            assert isinstance(decision.action, Wait)
            assert decision.state.attempts == state.attempts
            assert decision.state.rung == (state.rung or RecoveryLevel.WAIT)


@given(st.integers(1, 300), policies)
def test_a_storage_that_is_down_for_long_costs_only_growing_pauses(times, policy):
    state, pause = State(), timedelta(0)
    for _ in range(times):
        decision = decide(policy, state, Down("silence"), T0, 1.0)
        assert isinstance(decision.action, Wait)
        assert pause <= decision.action.pause <= policy.pause_max
        state, pause = decision.state, decision.action.pause
    assert state.rung == RecoveryLevel.WAIT


@given(policies, steps)
def test_budgets_are_kept(policy, history):
    taken: list[tuple[RecoveryLevel, datetime]] = []
    reset = T0
    for at, event, before, decision in played(policy, history):
        if isinstance(event, Healthy) and before.rung is not None and decision.state.rung is None:
            reset = at  # after healthy time the lower budgets are new
        if not isinstance(decision.action, START):
            continue
        rung = rung_of(decision.action)
        taken.append((rung, at))
        if rung in BUDGETS:
            since = at - BUDGETS[rung].within
            counted = [
                t for r, t in taken if r == rung and t > since and (rung >= RecoveryLevel.WALK_BACK or t >= reset)
            ]
            assert len(counted) <= BUDGETS[rung].times_max


@given(policies, steps)
def test_the_end_of_the_log_is_taken_only_when_allowed_and_when_no_new_run_can_work(policy, history):
    for at, event, before, decision in played(policy, history):
        if isinstance(decision.action, Latest):
            assert policy.latest_allowed
            assert RecoveryLevel.LATEST in policy.hands
            assert isinstance(event, Failed | Refused)
            assert event.frontier != Frontier.HELD
            spent = used(before, RecoveryLevel.NEW_RUN, BUDGETS[RecoveryLevel.NEW_RUN], at)
            assert event.frontier == Frontier.UNKNOWN or spent == BUDGETS[RecoveryLevel.NEW_RUN].times_max
        if isinstance(decision.action, WalkBack):
            assert isinstance(event, Failed | Refused)
            assert event.frontier == Frontier.UNKNOWN


@given(policies, steps)
def test_a_rung_below_the_verdict_is_not_taken_and_a_run_is_mended_once(policy, history):
    mended: set[int | None] = set()
    for _, event, before, decision in played(policy, history):
        if isinstance(event, Healthy) and before.rung is not None and decision.state.rung is None:
            mended.clear()
        if not isinstance(decision.action, START):
            continue
        rung = rung_of(decision.action)
        if isinstance(event, Failed) and rung != RecoveryLevel.WAIT:
            assert rung >= (event.verdict.rung or RecoveryLevel.RESTART)
        if isinstance(event, Refused) and rung != RecoveryLevel.WAIT:
            assert before.rung is not None
            assert rung > before.rung or before.rung == RecoveryLevel.LATEST
        if rung == RecoveryLevel.REPAIR:
            assert isinstance(event, Failed | Refused)
            assert event.verdict.rung == RecoveryLevel.REPAIR
            assert not any(a.rung == RecoveryLevel.REPAIR and a.run == event.run for a in before.attempts)


@given(policies, steps)
def test_after_healthy_time_it_is_at_the_foot_again(policy, history):
    state = played(policy, history)[-1][3].state if history else State()
    at = T0 + timedelta(days=30)
    well = decide(policy, state, Healthy(), at, 0.0).state
    later = decide(policy, well, Healthy(), at + policy.healthy_after, 0.0).state
    assert later.rung is None
    assert later.streak == 0
    assert all(attempt.rung >= RecoveryLevel.WALK_BACK for attempt in later.attempts)
    again = decide(policy, later, Failed(UNKNOWN), at + timedelta(hours=1), 1.0).action
    assert again == Restart(policy.pause_first, "a sentence")


@given(policies, steps, st.floats(0, 1))
def test_pauses_lie_between_half_and_the_limit_but_for_a_budget_that_is_to_be_free(policy, history, jitter):
    for at, _, state, _ in played(policy, history):
        action = decide(policy, state, Down("silence"), at, jitter).action
        if isinstance(action, Wait):
            assert policy.pause_first / 2 <= action.pause <= policy.pause_max


def test_restarts_then_new_runs_then_waiting_for_a_budget():
    policy, state, at, found = Policy(), State(), T0, []
    for _ in range(8):
        decision = decide(policy, state, Failed(UNKNOWN), at, 1.0)
        found.append(decision.action)
        state, at = decision.state, at + timedelta(seconds=20)
    assert [type(action) for action in found] == [*[Restart] * 3, *[NewRun] * 3, Wait, Wait]
    assert [action.pause.total_seconds() for action in found[:6]] == [1, 2, 4, 8, 16, 32]
    assert found[6].pause == timedelta(minutes=15) - timedelta(seconds=120), "until the first restart is forgotten"
    assert "L1: taken 3 times within 15 min" in found[6].reason
    assert "L3: taken 3 times within 1 h" in found[6].reason


def test_a_damage_that_can_be_mended_is_mended_once_then_left_behind():
    policy, torn = Policy(hands=ALL), Said(RecoveryLevel.REPAIR)
    first = decide(policy, State(), Failed(torn, run=4), T0, 0.0)
    assert isinstance(first.action, Repair)
    again = decide(policy, first.state, Failed(torn, run=4), T0, 0.0)
    assert isinstance(again.action, NewRun)
    assert "mended before" in again.action.reason
    refused = decide(policy, first.state, Refused("the batch may be committed", torn, run=4), T0, 0.0)
    assert isinstance(refused.action, NewRun)
    assert "the batch may be committed" in refused.action.reason


def test_what_only_a_person_can_mend_halts_until_it_is_well():
    wrong = Said(None, halt=True, said="the topic is gone")
    halted = decide(Policy(), State(), Failed(wrong), T0, 0.0)
    assert halted.action == Halt("the topic is gone")
    assert decide(Policy(), halted.state, Failed(UNKNOWN), T0, 0.0).action == Halt("the topic is gone")
    well = decide(Policy(), halted.state, Healthy(), T0, 0.0)
    assert isinstance(decide(Policy(), well.state, Failed(UNKNOWN), T0, 0.0).action, Restart)


def test_without_a_frontier_it_walks_back_and_skips_records_only_where_that_is_allowed():
    lost = Said(RecoveryLevel.NEW_RUN)
    for allowed, last in ((False, Halt), (True, Latest)):
        policy = Policy(hands=ALL, latest_allowed=allowed)
        first = decide(policy, State(), Failed(lost, Frontier.UNKNOWN), T0, 0.0)
        assert isinstance(first.action, WalkBack)
        then = decide(policy, first.state, Refused("no checkpoint agrees", lost, Frontier.UNKNOWN), T0, 0.0)
        assert isinstance(then.action, last)


def test_where_kafka_lost_the_frontier_again_and_again_it_skips_to_the_end_once_new_runs_are_used_up():
    policy, state, found = Policy(hands=ALL, latest_allowed=True), State(), []
    for _ in range(5):
        decision = decide(policy, state, Failed(Said(RecoveryLevel.NEW_RUN), Frontier.LOST), T0, 0.0)
        found.append(type(decision.action))
        state = decision.state
    assert found == [NewRun, NewRun, NewRun, Latest, Wait]
    refused = decide(
        policy, state, Refused("Kafka still holds some of it", Said(RecoveryLevel.NEW_RUN), Frontier.LOST), T0, 0.0
    )
    assert isinstance(refused.action, Wait)
    assert refused.action.pause == timedelta(hours=1), "until a new run is free"
