"""The ladder, whatever happens in whatever order: it climbs only for a reason, comes down, and keeps to its budgets."""

from datetime import UTC, datetime, timedelta

from hypothesis import given, strategies as st

from headrace.recovery.escalation.decide import (
    BUDGETS,
    Decision,
    DependencyUnavailable,
    Event,
    Failed,
    Frontier,
    Halt,
    Healthy,
    KeepRunning,
    Policy,
    Start,
    State,
    attempt_times,
    decide,
)
from headrace.recovery.escalation.error_catalogue import Verdict
from headrace.recovery.escalation.levels import RecoveryLevel as L

T0 = datetime(2026, 11, 20, tzinfo=UTC)
ALL = frozenset(L)


def verdict(level: L | None, *, halt: bool = False, message: str = "a sentence") -> Verdict:
    return Verdict("a row", level, halt, message)


def level_of(decision: Decision) -> L | type[Decision]:
    """Return the level of a start, and the type of anything else."""
    return decision.level if isinstance(decision, Start) else type(decision)


WAITING, UNKNOWN = verdict(L.WAIT), verdict(None)
policies = st.builds(
    Policy,
    actions=st.sets(st.sampled_from([L.WALK_BACK, L.LATEST])).map(
        lambda some: frozenset({*some, L.WAIT, L.RESTART, L.NEW_RUN})
    ),
    latest_allowed=st.booleans(),
)
verdicts = st.builds(verdict, level=st.none() | st.sampled_from(L))
frontiers, runs = st.sampled_from(Frontier), st.none() | st.integers(1, 3)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Failed, verdicts, frontiers, runs, st.none() | st.just("no")),
    st.builds(DependencyUnavailable, st.just("the storage is silent"), st.booleans()), st.just(Healthy()),
)  # fmt: skip
steps = st.lists(
    st.tuples(events, st.integers(0, 4_000).map(lambda s: timedelta(seconds=s)), st.floats(0, 1)), max_size=40
)


def play_failures(
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
    for _, _, _, decision in play_failures(policy, history):
        assert isinstance(decision, Start | KeepRunning | Halt)
        assert decision.reason


@given(policies, steps)
def test_a_dependency_that_is_down_is_waited_for_and_raises_no_level(policy, history):
    for at, _, state, _ in play_failures(policy, history):
        for event in (DependencyUnavailable("silence"), *(Failed(WAITING, f) for f in Frontier)):
            decision = decide(policy, state, event, at, 0.5)
            if isinstance(decision, Halt):
                assert state.halted
                continue
            assert level_of(decision) == L.WAIT
            assert decision.state.attempts == state.attempts
            assert decision.state.level == (state.level or L.WAIT)


@given(st.integers(1, 300), policies, st.booleans())
def test_a_storage_that_is_down_for_long_costs_only_growing_pauses(times, policy, before_start):
    state, pause = State(), timedelta(0)
    longest = timedelta(seconds=30) if before_start else timedelta(minutes=5)
    for _ in range(times):
        decision = decide(policy, state, DependencyUnavailable("silence", before_start), T0, 1.0)
        assert isinstance(decision, Start)
        assert pause <= decision.delay <= longest
        state, pause = decision.state, decision.delay
    assert state.level == L.WAIT


@given(policies, steps, st.integers(1, 300))
def test_checks_that_get_no_answer_change_no_pause_of_a_start(policy, history, times):
    at, _, state, _ = play_failures(policy, history)[-1] if history else (T0, None, State(), None)
    failed = DependencyUnavailable("silence")
    expected = decide(policy, state, failed, at, 0.5)
    for _ in range(times):
        state = decide(policy, state, DependencyUnavailable("silence", before_start=True), at, 0.5).state
    assert decide(policy, state, failed, at, 0.5) == expected


@given(policies, steps)
def test_budgets_are_kept_but_for_levels_that_give_nothing_up_after_the_longest_pause(policy, history):
    taken: list[tuple[L, datetime]] = []
    reset = T0
    for at, event, before, decision in play_failures(policy, history):
        if isinstance(event, Healthy) and before.level is not None and decision.state.level is None:
            reset = at  # after healthy time the lower budgets are new
        if not isinstance(decision, Start):
            continue
        level = decision.level
        taken.append((level, at))
        if level in BUDGETS:
            since = at - BUDGETS[level].within
            counted = [t for r, t in taken if r == level and t > since and (level >= L.WALK_BACK or t >= reset)]
            times_max = BUDGETS[level].times_max
            if level >= L.WALK_BACK:
                assert len(counted) <= times_max
            elif len(counted) > times_max:
                ends = {t + BUDGETS[r].within for r, t in taken[:-1] if r in BUDGETS}
                free = any(at < end <= at + decision.delay for end in ends)
                assert timedelta(minutes=2.5) <= decision.delay <= timedelta(minutes=5) or free


@given(policies, steps)
def test_the_end_of_the_log_is_taken_only_when_allowed_and_when_no_new_run_can_work(policy, history):
    for at, event, before, decision in play_failures(policy, history):
        if level_of(decision) == L.LATEST:
            assert policy.latest_allowed
            assert L.LATEST in policy.actions
            assert isinstance(event, Failed)
            assert event.frontier != Frontier.HELD
            spent = len(attempt_times(before, L.NEW_RUN, BUDGETS[L.NEW_RUN], at))
            assert event.frontier == Frontier.UNKNOWN or spent == BUDGETS[L.NEW_RUN].times_max
        if level_of(decision) == L.WALK_BACK:
            assert isinstance(event, Failed)
            assert event.frontier == Frontier.UNKNOWN


@given(policies, steps)
def test_a_level_below_the_verdict_or_the_refused_level_is_not_taken(policy, history):
    for _, event, before, decision in play_failures(policy, history):
        if not isinstance(decision, Start):
            continue
        level = decision.level
        if isinstance(event, Failed) and event.refused is None and level != L.WAIT:
            assert level >= (event.verdict.level or L.RESTART)
        if isinstance(event, Failed) and event.refused is not None and level != L.WAIT:
            assert before.level is not None
            assert level > before.level or before.level == L.LATEST


@given(policies, steps)
def test_after_healthy_time_it_is_at_the_foot_again(policy, history):
    state = play_failures(policy, history)[-1][3].state if history else State()
    at = T0 + timedelta(days=30)
    well = decide(policy, state, Healthy(), at, 0.0).state
    later = decide(policy, well, Healthy(), at + policy.healthy_after, 0.0).state
    assert later.level is None
    assert later.streak == 0
    assert all(attempt.level >= L.WALK_BACK for attempt in later.attempts)
    again = decide(policy, later, Failed(UNKNOWN), at + timedelta(hours=1), 1.0)
    assert (again.level, again.delay, again.reason) == (L.RESTART, timedelta(seconds=1), "a sentence")


@given(policies, steps, st.floats(0, 1))
def test_pauses_lie_between_half_and_the_limit_but_for_a_budget_that_is_to_be_free(policy, history, jitter):
    for at, _, state, _ in play_failures(policy, history):
        decision = decide(policy, state, DependencyUnavailable("silence"), at, jitter)
        assert isinstance(decision, Start)
        assert timedelta(seconds=0.5) <= decision.delay <= timedelta(minutes=5)


def test_restarts_then_new_runs_then_new_runs_after_the_longest_pause():
    policy, state, at, found = Policy(), State(), T0, []
    for _ in range(8):
        decision = decide(policy, state, Failed(UNKNOWN), at, 1.0)
        found.append(decision)
        state, at = decision.state, at + timedelta(seconds=20)
    assert [level_of(decision) for decision in found] == [*[L.RESTART] * 3, *[L.NEW_RUN] * 5]
    assert [decision.delay.total_seconds() for decision in found] == [1, 2, 4, 8, 16, 32, 300, 300]
    assert "L1: taken 3 times within 15 min" in found[6].reason
    assert "L3: taken 3 times within 1 h" in found[6].reason
    assert "the budgets are used up" in found[6].reason
    later = decide(policy, state, Failed(UNKNOWN), T0 + timedelta(minutes=12, seconds=41), 1.0)
    assert level_of(later) == L.NEW_RUN
    assert later.delay == timedelta(seconds=256), "its pauses have grown beyond the time until a restart is free"
    assert level_of(decide(policy, state, Failed(UNKNOWN), T0 + timedelta(minutes=15), 1.0)) == L.RESTART


def test_a_checkpoint_that_is_corrupt_again_and_again_is_replaced_each_time_and_pauses_stay_below_five_minutes():
    policy = Policy(actions=ALL)
    state, now = State(), T0
    delays_s = []
    for run in range(1, 13):
        decision = decide(policy, state, Failed(verdict(L.NEW_RUN), run=run), now, 0.5)
        assert level_of(decision) == L.NEW_RUN
        delays_s.append(decision.delay.total_seconds())
        now += decision.delay
        healthy = decide(policy, decision.state, Healthy(), now, 0.5)
        now += timedelta(minutes=10)
        state = decide(policy, healthy.state, Healthy(), now, 0.5).state
    assert delays_s[:3] == [0.75] * 3, "within the budget a new run begins at once"
    assert 0.75 < max(delays_s) <= 300


def test_a_level_that_is_refused_gives_way_to_the_next_one():
    first = decide(Policy(actions=ALL), State(), Failed(UNKNOWN, run=4), T0, 0.0)
    assert level_of(first) == L.RESTART
    refused = decide(Policy(actions=ALL), first.state, Failed(UNKNOWN, run=4, refused="it cannot be done"), T0, 0.0)
    assert level_of(refused) == L.NEW_RUN
    assert "it cannot be done" in refused.reason


def test_a_fault_for_a_person_halts_the_pipeline_until_it_is_healthy():
    wrong = verdict(None, halt=True, message="the topic is gone")
    halted = decide(Policy(), State(), Failed(wrong), T0, 0.0)
    assert halted == Halt("the topic is gone", State(halted="the topic is gone"))
    assert decide(Policy(), halted.state, Failed(UNKNOWN), T0, 0.0) == halted
    well = decide(Policy(), halted.state, Healthy(), T0, 0.0)
    assert level_of(decide(Policy(), well.state, Failed(UNKNOWN), T0, 0.0)) == L.RESTART


def test_without_a_frontier_it_walks_back_and_skips_records_only_where_that_is_allowed():
    lost = verdict(L.NEW_RUN)
    for allowed, last in ((False, Halt), (True, L.LATEST)):
        policy = Policy(actions=ALL, latest_allowed=allowed)
        first = decide(policy, State(), Failed(lost, Frontier.UNKNOWN), T0, 0.0)
        assert level_of(first) == L.WALK_BACK
        then = decide(policy, first.state, Failed(lost, Frontier.UNKNOWN, refused="no checkpoint agrees"), T0, 0.0)
        assert level_of(then) == last


def test_where_kafka_lost_the_frontier_again_and_again_it_skips_to_the_end_once_new_runs_are_used_up():
    policy, state, found = Policy(actions=ALL, latest_allowed=True), State(), []
    for _ in range(5):
        decision = decide(policy, state, Failed(verdict(L.NEW_RUN), Frontier.LOST), T0, 0.0)
        found.append(decision)
        state = decision.state
    assert [level_of(decision) for decision in found] == [L.NEW_RUN, L.NEW_RUN, L.NEW_RUN, L.LATEST, L.NEW_RUN]
    no = Failed(verdict(L.NEW_RUN), Frontier.LOST, refused="Kafka still holds some of it")
    refused = decide(policy, found[3].state, no, T0, 0.0)
    assert level_of(refused) == L.NEW_RUN
    assert refused.delay == timedelta(minutes=2.5), "every budget is used up"


def test_last_resorts_wait_for_their_budget():
    policy, lost, state, found = Policy(actions=ALL), verdict(L.NEW_RUN), State(), []
    for _ in range(11):
        found.append(decide(policy, state, Failed(lost, Frontier.UNKNOWN), T0, 0.0))
        state = found[-1].state
    assert [level_of(decision) for decision in found] == [*[L.WALK_BACK] * 10, L.WAIT]
    assert found[-1].delay == timedelta(hours=24)
