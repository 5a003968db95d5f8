"""However requests come and stores throttle: a limit holds, a rate falls and comes back, and none waits for ever."""

from itertools import pairwise

import pytest
from hypothesis import assume, example, given, strategies as st

from headrace.writer.storage.requests import pace
from headrace.writer.storage.requests.budget import RequestBudget
from headrace.writer.storage.requests.pace import BURST_S, GROWTH_S, HOLD_S, RATE_MIN

LIMITS = st.floats(1, 5_000)
GAPS = st.lists(st.floats(0, 3), min_size=1, max_size=80)
EVENTS = st.lists(st.tuples(st.floats(0, 2), st.booleans()), min_size=1, max_size=80)


class Clock:
    """Seconds that pass only while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds + 1e-9


def budget(limit: float | None, clock: Clock) -> RequestBudget:
    return RequestBudget(limit, clock, clock.sleep)


@given(LIMITS, GAPS)
@example(1.0, [0.0] * 20)
def test_no_window_has_more_requests_than_the_limit_and_a_burst(limit, gaps):
    clock = Clock()
    limited = budget(limit, clock)
    sent = []
    for gap in gaps:
        clock.now += gap
        limited.await_turn()
        sent.append(clock.now)
    burst = max(1.0, limit * BURST_S)
    for first, began in enumerate(sent):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + limit * (sent[last] - began) * (1 + 1e-6) + 1 + 1e-3


@given(st.one_of(st.none(), LIMITS), EVENTS)
def test_a_rate_stays_between_its_least_and_the_limit_and_falls_with_each_throttled_second(limit, events):
    now = 0.0
    state = pace.begin(limit, now)
    for gap, is_throttled in events:
        now += gap
        state = pace.take(pace.advance(state, now))
        before = state
        if is_throttled:
            state = pace.slow_down(state, now)
            assert state.rate is not None
            assert state.rate <= (before.rate or state.goal)
            halves = before.slowed_at is None or now - before.slowed_at >= HOLD_S
            assert not halves or state.rate <= max(RATE_MIN, state.goal / 2)
            assert halves or state.rate == before.rate, "answers of one second are of one cause"
        assert limit is None or state.goal == limit
        assert state.rate is None or min(RATE_MIN, state.goal) <= state.rate <= state.goal
    recovered = pace.advance(state, now + HOLD_S + GROWTH_S + 1e-6)
    assert recovered.rate == limit or recovered.rate == pytest.approx(limit)
    assert pace.wait_s(recovered) == 0 or limit is not None


@given(st.one_of(st.none(), LIMITS), EVENTS, st.integers(0, 10_000))
def test_a_wait_is_long_enough_and_has_an_end(limit, events, uploads):
    clock = Clock()
    shared = budget(limit, clock)
    for gap, is_throttled in events:
        clock.now += gap
        if is_throttled:
            shared.slow_down()
        shared.charge(uploads)
        assert shared.await_turn() <= pace.DEBT_S_MAX + 2 / min(RATE_MIN, limit or RATE_MIN) + 1


@given(st.integers(1, 64), st.integers(20, 500), st.integers(2, 20))
def test_while_a_store_throttles_few_requests_go(threads, per_s, burst_s):
    """All threads send as fast as they may; of those that are throttled, each comes back when it has its turn."""
    clock = Clock()
    shared = budget(None, clock)
    for _ in range(2 * per_s):
        shared.await_turn()
        clock.now += 1 / per_s
    ends = clock.now + burst_s
    # Each thread had a request on its way when the store began to throttle.
    for _ in range(threads):
        shared.slow_down()
    sent = 0
    while clock.now < ends:
        shared.await_turn()
        if clock.now < ends:
            sent += 1
            shared.slow_down()
    halvings = sum(max(RATE_MIN, per_s / 2**second) for second in range(1, burst_s + 1))
    assert sent <= halvings + burst_s + per_s * BURST_S + 2
    clock.now += HOLD_S + GROWTH_S + 1
    assert shared.pace.rate is None, "without a limit of the configuration all may go again"


def test_a_rate_grows_back_by_the_same_amount_each_second():
    state = pace.begin(100.0, 0.0)
    for tick in range(200):
        state = pace.take(pace.advance(state, tick / 100))
    state = pace.slow_down(state, 2.0)
    rates = [state.rate] + [pace.advance(state, 2.0 + HOLD_S + second).rate for second in range(8)]
    assert rates[:2] == [50.0, 50.0]
    assert [round(after - before, 6) for before, after in pairwise(rates[1:])] == [10.0] * 5 + [0.0] * 2


@given(LIMITS)
def test_a_limit_far_above_what_goes_is_no_reason_to_go_on(limit):
    assume(limit > 100)
    state = pace.begin(limit, 0.0)
    for tick in range(40):
        state = pace.take(pace.advance(state, tick / 20))
    state = pace.slow_down(state, 2.0)
    assert state.rate == 10.0
