"""What the autoscaler decides. Many facts here are those that Flink's autoscaler tests by name."""

from dataclasses import replace

import pytest

from headrace.autoscaler.decision.decide import Blocked, Hold, ScaleDown, ScaleUp, Stay, Wait, remember
from headrace.autoscaler.decision.facts import Partition
from headrace.autoscaler.decision.history import DesiredDecrease, Memory, Scaling
from headrace.autoscaler.decision.policy import Policy
from tests.support.autoscaler_facts import NOW, POLICY, batches, decide_each, decide_once, facts, minutes, pipeline


def test_within_the_band_nothing_changes():
    # Two executors of four slots carry 80,000/s, less the overhead of 4 s in 60: 74,667.
    for arriving in (49_000, 60_000, 70_000):  # 0.65 and 0.95 of it are 48,533 and 70,933
        assert isinstance(decide_once(facts(pipeline(arriving))), Stay)


def test_above_the_band_executors_are_added_up_to_the_target_in_one_step():
    decision = decide_once(facts(pipeline(72_000)))
    assert isinstance(decision, ScaleUp)
    assert (decision.before, decision.executors) == (2, 3)  # 72,000 / 0.8 = 90,000 of 112,000


def test_a_backlog_asks_for_executors_beyond_what_arrives():
    assert isinstance(
        decide_once(facts(pipeline(40_000, lag=4_800_000))), Stay
    )  # two minutes' worth: the normal sawtooth
    decision = decide_once(facts(pipeline(40_000, lag=100_000_000)))
    assert isinstance(decision, ScaleUp)
    assert decision.executors == 5  # 50,000 + 96,400,000 / 900 = 157,000, of 186,667


def test_a_backlog_is_spread_over_the_catch_up_time():
    known = facts(pipeline(40_000, lag=100_000_000))
    slow, fast = (
        decide_once(known, policy=replace(POLICY, catch_up_duration_s=s, up_factor=20.0)) for s in (1800, 300)
    )
    assert isinstance(slow, ScaleUp)
    assert isinstance(fast, ScaleUp)
    assert slow.executors < fast.executors
    assert slow.terms.loads[0].need.backlog == fast.terms.loads[0].need.backlog


def test_a_backlog_is_gone_before_retention_takes_it():
    near = facts(pipeline(40_000, lag=100_000_000, headroom_s=1200.0))
    decision = decide_once(near, policy=replace(POLICY, up_factor=20.0))
    assert decision.terms.loads[0].need.catch_up_duration_s == 300
    assert decision.executors == 10


def test_steps_are_limited():
    up = decide_once(facts(pipeline(400_000, executors=2)))
    assert up.executors == 10
    assert up.terms.bound_by == ("up_factor",)
    calm = facts(pipeline(10_000, executors=20), executors=20)
    wait = Memory(
        desired=20, fewer=(DesiredDecrease(NOW - minutes(30), 5),), shape={"clicks": 480, "slots of an executor": 4}
    )
    down = decide_once(calm, wait)
    assert isinstance(down, ScaleDown)
    assert down.executors == 10
    assert down.terms.bound_by == ("down_factor",)


def calm(first: float, last: float, arriving: float = 10_000, executors: int = 6):
    return [
        facts(
            pipeline(arriving, executors=executors, batches=batches(slots=executors * 4, last=NOW + minutes(m))),
            now=NOW + minutes(m),
        )
        for m in [first + i / 2 for i in range(int((last - first) * 2) + 1)]
    ]


def test_fewer_are_taken_once_they_were_enough_throughout():
    decisions, memory = decide_each(calm(0, 16), Memory(desired=6))
    kinds = [type(one) for one in decisions]
    assert kinds[:30] == [Wait] * 30
    assert kinds[30] is ScaleDown
    assert decisions[30].executors == 3
    assert memory.desired == 3


def test_the_most_that_was_wanted_meanwhile_stays():
    busy = [replace(one, pipelines=(replace(one.pipelines[0], arriving_per_s=120_000.0),)) for one in calm(5, 6)]
    decisions, _ = decide_each([*calm(0, 4.5), *busy, *calm(6.5, 15)], Memory(desired=6))
    assert isinstance(decisions[-1], ScaleDown)
    assert decisions[-1].executors == 5  # not 3, as of late: 120,000 / 0.8 = 150,000 need five for a moment


def test_wanting_as_many_ends_the_wait_for_fewer():
    loaded = [replace(one, pipelines=(replace(one.pipelines[0], arriving_per_s=180_000.0),)) for one in calm(5, 5)]
    decisions, _ = decide_each([*calm(0, 4.5), *loaded, *calm(5.5, 20)], Memory(desired=6))
    assert isinstance(decisions[10], Stay)
    assert not any(isinstance(one, ScaleDown) for one in decisions)


def test_more_ends_the_wait_for_fewer():
    waiting = Memory(desired=2, fewer=(DesiredDecrease(NOW - minutes(14), 1),))
    decision = decide_once(facts(pipeline(72_000)), waiting)
    assert isinstance(decision, ScaleUp)
    assert remember(POLICY, waiting, decision, NOW).fewer == ()


def test_no_executor_goes_while_records_are_late():
    parts = (Partition("clicks", 0, 10, lag_s=600.0), *(Partition("clicks", i, 0) for i in range(1, 480)))
    known = facts(pipeline(10_000, executors=6), executors=6)
    late = replace(known, pipelines=(replace(known.pipelines[0], partitions=parts),))
    waited = Memory(
        desired=6, fewer=(DesiredDecrease(NOW - minutes(30), 3),), shape={"clicks": 480, "slots of an executor": 4}
    )
    assert isinstance(decide_once(known, waited), ScaleDown)
    assert isinstance(decide_once(late, waited), Stay)


def test_executors_that_came_do_not_go_at_once():
    came = Scaling(NOW - minutes(20), 3, 6, {}, there_at=NOW - minutes(19))
    waited = Memory(desired=6, fewer=(DesiredDecrease(NOW - minutes(16), 3),), scalings=(came,))
    waited = replace(waited, shape={"clicks": 480, "slots of an executor": 4})
    known = facts(pipeline(10_000, executors=6), executors=6)
    decision = decide_once(known, waited)
    assert isinstance(decision, Wait)
    assert decision.until == came.at + minutes(30)


def test_a_going_that_was_taken_back_doubles_the_wait():
    back = (
        Scaling(NOW - minutes(300), 6, 3, {}, there_at=NOW - minutes(299)),
        Scaling(NOW - minutes(290), 3, 6, {}, there_at=NOW - minutes(289)),
    )
    shape = {"clicks": 480, "slots of an executor": 4}
    known = facts(pipeline(10_000, executors=6), executors=6)
    for waited, kind in ((16, Wait), (31, ScaleDown)):
        memory = Memory(desired=6, fewer=(DesiredDecrease(NOW - minutes(waited), 3),), scalings=back, shape=shape)
        assert isinstance(decide_once(known, memory), kind)


def test_no_executor_is_added_until_those_requested_have_shown():
    asked = Scaling(NOW - minutes(1), 1, 2, {"clicks": 10_000.0})
    memory = Memory(desired=2, scalings=(asked,), shape={"clicks": 480, "slots of an executor": 4})
    decision = decide_once(facts(pipeline(72_000)), memory)
    assert isinstance(decision, Wait)
    assert decision.executors == 2
    assert decision.wanted == 3
    old = replace(memory, scalings=(replace(asked, at=NOW - minutes(9), there_at=NOW - minutes(8)),))
    assert isinstance(decide_once(facts(pipeline(72_000)), old), ScaleUp)


def test_when_nothing_arrives_the_executors_go_to_the_minimum():
    quiet = facts(pipeline(0, executors=2, batches=()), executors=2)
    memory = Memory(
        desired=2, fewer=(DesiredDecrease(NOW - minutes(30), 1),), shape={"clicks": 480, "slots of an executor": 4}
    )
    decision = decide_once(quiet, memory)
    assert isinstance(decision, ScaleDown)
    assert decision.executors == 1


def test_minimum_and_maximum_hold_whatever_is_needed():
    assert decide_once(facts(pipeline(400_000)), policy=Policy(max_executors=3)).executors == 3
    assert decide_once(facts(pipeline(100)), Memory(desired=1), Policy(min_executors=4)).executors == 4
    lowered = decide_once(facts(pipeline(60_000)), Memory(desired=9), Policy(max_executors=5))
    assert isinstance(lowered, ScaleDown)
    assert lowered.executors == 5


def test_cost_is_a_maximum():
    policy = Policy(cost_per_executor_hour=0.5, max_cost_per_hour=1.6)
    decision = decide_once(facts(pipeline(400_000)), policy=policy)
    assert decision.executors == 3
    assert decision.terms.bound_by == ("max_cost_per_hour",)


def test_executors_that_the_quota_refuses_are_not_asked_for():
    decision = decide_once(facts(pipeline(72_000), quota=2))
    assert isinstance(decision, Blocked)
    assert decision.cause.kind == "quota"
    assert (decision.executors, decision.wanted) == (2, 3)
    assert decide_once(facts(pipeline(400_000), quota=4)).executors == 4


def test_a_request_that_the_cluster_grants_in_part_is_kept_and_told_as_a_quota():
    known = facts(pipeline(60_000, executors=1), executors=1, quota=1, wanted=3)
    decision = decide_once(known, Memory(desired=3))
    assert isinstance(decision, Blocked)
    assert (decision.cause.kind, decision.executors) == ("quota", 3)
    assert decision.terms.used_up > 1
    granted = decide_once(facts(pipeline(60_000, executors=3), executors=3), Memory(desired=3))
    assert isinstance(granted, Stay)


def test_numbers_that_spare_no_wave_are_skipped():
    # 48 ranges on 4 slots each: 6 executors take two waves, 7 to 11 too, 12 one.
    of_48 = {"partitions": 48, "executors": 6}
    decision = decide_once(facts(pipeline(225_000, **of_48), executors=6))
    assert isinstance(decision, ScaleUp)
    assert decision.executors == 12


def test_more_executors_than_partitions_only_where_ranges_are_split():
    late = {"partitions": 8, "executors": 2, "lag": 200_000_000}
    whole = decide_once(facts(pipeline(60_000, **late)))
    assert isinstance(whole, Blocked)
    assert whole.cause.kind == "few_ranges"
    split = decide_once(facts(pipeline(60_000, min_partitions=64, **late)))
    assert isinstance(split, ScaleUp)
    assert split.executors == 8  # 32 slots: four times the partitions


def test_slots_of_several_pipelines_are_summed():
    one, other = pipeline(45_000), replace(pipeline(30_000), name="installs")
    both = decide_once(facts(one, other))
    assert isinstance(both, ScaleUp)
    alone = [decide_once(facts(each)).terms.used_up for each in (one, other)]
    assert both.terms.used_up == pytest.approx(sum(alone))


def test_a_slow_topic_is_judged_over_its_own_batches():
    slow = batches(5, slots=4, offsets=12_000_000, every_s=600)
    known = facts(pipeline(20_000, batches=slow, delay_max_s=600.0, lag=11_000_000), executors=1)
    assert isinstance(decide_once(known), Stay)
    behind = facts(pipeline(60_000, batches=slow, delay_max_s=600.0, lag=11_000_000), executors=1)
    decision = decide_once(behind)
    assert isinstance(decision, ScaleUp)
    assert decision.executors == 2


def test_the_desired_executors_are_requested_again_at_every_tick():
    blind = replace(facts(pipeline(60_000)), executors=None)
    decision = decide_once(blind, Memory(desired=7))
    assert isinstance(decision, Hold)
    assert decision.executors == 7
    gone = facts(pipeline(60_000, age_s=500.0), executors=0)  # the driver starts anew: none is registered
    assert decide_once(gone, Memory(desired=7)).executors == 7


def test_a_cluster_that_grants_less_than_the_minimum_is_asked_for_the_minimum_all_the_same():
    known = facts(pipeline(10_000, executors=1), executors=1, quota=1, wanted=3)
    shape = {"clicks": 480, "slots of an executor": 4}
    long = Memory(desired=3, fewer=(DesiredDecrease(NOW - minutes(120), 1),), shape=shape)
    assert decide_once(known, long, replace(POLICY, min_executors=3)).executors == 3
    assert decide_once(known, long, replace(POLICY, min_executors=1)).executors == 1
