"""What holds of the autoscaler's arithmetic and decisions whatever the facts are."""

import json
from dataclasses import replace
from datetime import timedelta

from hypothesis import assume, given, settings, strategies as st

from headrace.autoscaler.decision.capacity import (
    Growth,
    Load,
    busy_slots,
    capacity,
    compute_need,
    least_executors,
    measure_rate,
    used_share,
)
from headrace.autoscaler.decision.decide import Hold, ScaleDown, ScaleUp, tick
from headrace.autoscaler.decision.explanation import lines, to_dict
from headrace.autoscaler.decision.facts import Batch, Executors, Facts, Partition, Pipeline
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import DEFAULTS, Policy
from tests.support.autoscaler_facts import NOW, batches, facts, pipeline
from tests.support.example_counts import share

SHARES = st.floats(0, 1)
SECONDS = st.floats(0.1, 5_000)


@st.composite
def some_batch(draw):
    ended = NOW - timedelta(seconds=draw(st.floats(0, 5_000)))
    seconds = draw(SECONDS)
    return Batch(
        began=ended - timedelta(seconds=seconds), ended=ended, offsets=draw(st.integers(0, 10**8)), seconds=seconds,
        tasks_s=seconds * draw(SHARES), tasks=draw(st.integers(1, 200)), ranges=draw(st.integers(1, 200)),
        slots=draw(st.integers(1, 200)), skew=draw(st.none() | st.floats(1, 20)),
    )  # fmt: skip


@st.composite
def some_pipeline(draw):
    lags = draw(st.lists(st.none() | st.integers(0, 10**9), min_size=0, max_size=6))
    rates = st.none() | st.floats(0, 1e6)
    return Pipeline(
        name=draw(st.sampled_from(["clicks", "installs"])),
        partitions=tuple(
            Partition("t", i, lag, draw(st.none() | st.floats(0, 1e5)), draw(st.integers(0, 5)))
            for i, lag in enumerate(lags)
        ),
        arriving_per_s=draw(rates), arriving_lately_per_s=draw(rates),
        batches=tuple(sorted(draw(st.lists(some_batch(), max_size=5)), key=lambda one: one.ended)),
        delay_max_s=draw(SECONDS), offsets_max=draw(st.integers(1, 10**9)),
        offsets_per_task=draw(st.none() | st.floats(1, 1e7)), min_partitions=draw(st.integers(0, 100)),
        trigger_s=draw(st.floats(1, 60)), headroom_s=draw(st.none() | st.floats(-100, 1e6)),
        recovery_level=draw(st.sampled_from([0, 0, 0, 1])), paused=draw(st.booleans()), age_s=draw(st.floats(0, 80)),
    )  # fmt: skip


@st.composite
def some_facts(draw):
    executors = st.builds(
        Executors, wanted=st.integers(0, 60), registered=st.integers(0, 60), draining=st.integers(0, 5),
        cores=st.integers(1, 8), cpus_per_task=st.integers(1, 3), gc_share=st.none() | SHARES,
        quota=st.none() | st.integers(0, 60), age_s=st.floats(0, 80),
    )  # fmt: skip
    return Facts(NOW, draw(st.none() | executors), tuple(draw(st.lists(some_pipeline(), max_size=2))))


@given(some_facts(), st.none() | st.integers(1, 40), st.booleans())
@settings(max_examples=share(60))
def test_every_decision_is_within_its_limits_and_can_be_told(known, desired, waited):
    policy = Policy(
        min_executors=2, max_executors=40, cost_per_executor_hour=1.0, max_cost_per_hour=30.0,
        down_s=600.0 if waited else 1e-3, after_up_s=0.0,
    )  # fmt: skip
    decision, memory = tick(policy, Memory(desired=desired), known, NOW)
    decision, memory = tick(policy, memory, known, NOW + timedelta(seconds=1))
    assert memory.desired is None or decision.executors == memory.desired
    match decision:
        case ScaleUp(before=before, executors=executors):
            assert before < executors <= 30
            assert executors <= max(before + 1, before * policy.up_factor, policy.min_executors)
            quota = known.executors.quota
            assert quota is None or executors <= max(quota, known.executors.registered, policy.min_executors)
        case ScaleDown(before=before, executors=executors, sums=sums):
            assert 1 <= executors < before
            useful = min(bound.executors for bound in sums.ceilings)  # more than ranges, say, would have nothing to do
            assert executors >= min(before // 2, useful)
        case Hold(why=why):
            assert why.effect == "hold"
    assert json.loads(json.dumps(to_dict(decision, NOW)))["executors"] == decision.executors
    assert all("\n" not in line for line in lines(policy, decision, NOW))


@given(some_facts())
@settings(max_examples=share(25))
def test_the_same_facts_give_the_same_decision(known):
    assert tick(DEFAULTS, Memory(desired=5), known, NOW) == tick(DEFAULTS, Memory(desired=5), known, NOW)


@given(
    slots=st.lists(st.integers(1, 300), min_size=2, max_size=8), ranges=st.integers(1, 300), slot=st.floats(10, 1e6),
    overhead=st.floats(0, 100),
)  # fmt: skip
def test_the_rate_of_a_slot_does_not_change_with_slots_waves_or_overhead(slots, ranges, slot, overhead):
    ran = [batches(1, slots=n, ranges=ranges, slot=slot, overhead_s=overhead, offsets=10**6)[0] for n in slots]
    for one in ran:
        assert abs(measure_rate([one]).per_slot_per_s / slot - 1) < 1e-6
    assert abs(measure_rate(ran).per_slot_per_s / slot - 1) < 1e-6


@given(
    fixed=st.floats(0, 10),
    slot=st.floats(100, 1e5),
    offsets=st.lists(st.integers(10**6, 10**8), min_size=6, max_size=9),
)
def test_the_cost_of_tasks_without_records_is_measured_where_batches_differ(fixed, slot, offsets):
    assume(max(offsets) > 2 * min(offsets))
    plain = [batches(1, slots=8, slot=slot, offsets=count)[0] for count in offsets]
    slower = [replace(one, tasks_s=one.tasks_s + fixed, seconds=one.seconds + fixed) for one in plain]
    assume(fixed < 0.4 * min(one.tasks_s for one in slower))
    found = measure_rate(slower)
    assert abs(found.per_slot_per_s / slot - 1) < 0.01
    assert abs(found.overhead_s - 4.0 - fixed) < 0.1


@given(st.integers(1, 500), st.integers(1, 500))
def test_more_slots_are_never_worth_less(ranges, slots):
    assert 0 < busy_slots(ranges, slots) <= min(ranges, slots)
    assert busy_slots(ranges, slots + 1) >= busy_slots(ranges, slots)


@given(
    arriving=st.floats(1, 1e6), lag=st.integers(0, 10**9), partitions=st.integers(1, 100), most=st.integers(1, 60),
    offsets_max=st.integers(10**5, 10**9), yield_=st.floats(0.5, 1),
)  # fmt: skip
@settings(max_examples=share(25))
def test_the_least_number_is_the_least(arriving, lag, partitions, most, offsets_max, yield_):
    one = pipeline(arriving, lag=lag, partitions=partitions, offsets_max=offsets_max)
    seen, growth = measure_rate(one.batches), Growth(8, yield_)
    loads = [Load(one, seen, compute_need(DEFAULTS, one, seen, 60.0, capacity(one, seen, 8, growth)))]
    carry = [n for n in range(1, most + 1) if used_share(loads, "target", n * 4, growth) <= 1]
    assert least_executors(loads, "target", 4, growth, most) == (min(carry) if carry else None)


@given(low=st.floats(1, 5e5), more=st.floats(1, 5), lag=st.integers(0, 10**9))
@settings(max_examples=share(25))
def test_more_arrivals_or_lag_never_want_fewer(low, more, lag):
    base = pipeline(low, partitions=48)
    policy = Policy(up_factor=100.0, down_factor=0.001, down_s=1e-3, after_up_s=0.0)

    def wanted(one):
        decision, _ = tick(policy, Memory(desired=2), facts(one), NOW)
        return decision.terms.wanted

    assert wanted(replace(base, arriving_per_s=low * more)) >= wanted(base)
    later = tuple(replace(part, lag_offsets=lag // len(base.partitions)) for part in base.partitions)
    assert wanted(replace(base, partitions=later)) >= wanted(base)
