"""What more executors would not fix is told as itself, and nothing is scaled for it."""

from dataclasses import replace

import pytest

from headrace.autoscaler.decision.capacity import ranges_max
from headrace.autoscaler.decision.decide import Blocked, Hold, ScaleDown, ScaleUp, Stay, Wait
from headrace.autoscaler.decision.facts import Partition
from headrace.autoscaler.decision.history import Block, DesiredDecrease, Memory
from headrace.autoscaler.decision.policy import Policy
from headrace.writer.core.errors import ConfigError
from tests.support.autoscaler_facts import NOW, batches, decide_once, facts, minutes, pipeline

SHORT = pipeline(72_000)  # asks for more
SHAPE = {"clicks": 480, "slots of an executor": 4}


def held(known, kind, policy=None):
    decision = decide_once(known) if policy is None else decide_once(known, policy=policy)
    assert isinstance(decision, Hold)
    assert decision.cause.kind == kind
    assert decision.executors == 2
    return decision.cause


def blocked(known, kind, memory=None):
    decision = decide_once(known, memory)
    assert isinstance(decision, Blocked)
    assert decision.cause.kind == kind
    assert decision.executors == 2
    return decision.cause


def test_a_pipeline_that_is_short_of_executors_gets_them():
    assert isinstance(decide_once(facts(SHORT)), ScaleUp)


def test_recovery_goes_first():
    assert "L3" in held(facts(replace(SHORT, recovery_level=3, failing="broken", lag_age_s=900)), "recovery").says


def test_failing_storage_or_kafka_holds():
    assert "503 Slow Down" in held(facts(replace(SHORT, failing="PUT failed: 503 Slow Down")), "failing").says


@pytest.mark.parametrize(
    "known",
    [
        replace(facts(SHORT), executors=None),
        facts(SHORT, age_s=61.0),
        facts(replace(SHORT, age_s=61.0)),
        facts(replace(SHORT, lag_age_s=61.0)),
        facts(replace(SHORT, arriving_per_s=None)),
        facts(replace(SHORT, partitions=())),
        facts(replace(SHORT, partitions=(Partition("clicks", 0, None),))),
        facts(),
    ],
    ids=[
        "no executors",
        "old executors",
        "old driver",
        "old lag",
        "no arrivals",
        "no partitions",
        "no offsets",
        "none",
    ],
)
def test_old_or_missing_facts_hold(known):
    decision = decide_once(known, Memory(desired=2))
    assert isinstance(decision, Hold)
    assert decision.cause.kind == "blind"
    assert decision.executors == 2


def test_lag_without_a_date_is_no_reason_to_hold():
    parts = tuple(replace(one, lag_offsets=300_000, lag_s=None) for one in SHORT.partitions)
    assert isinstance(decide_once(facts(replace(SHORT, partitions=parts))), ScaleUp)


def test_too_few_batches_hold_and_an_older_one_helps_a_single_one():
    ran = batches(slots=8)
    held(facts(replace(SHORT, batches=ran[-1:])), "too_few_batches")
    old = (replace(ran[0], began=NOW - minutes(60), ended=NOW - minutes(59)), ran[-1])
    assert not isinstance(decide_once(facts(replace(SHORT, batches=old))), Hold)
    held(facts(replace(SHORT, batches=old[:1])), "too_few_batches")


def test_a_minute_that_is_excluded_holds():
    noon = Policy(excluded=("0 3 * * *", "* 12 * * WED"))
    assert "* 12 * * WED" in held(facts(SHORT), "excluded", noon).says
    assert isinstance(decide_once(facts(SHORT), policy=replace(noon, excluded_zone="America/New_York")), ScaleUp)
    with pytest.raises(ConfigError, match="is no cron expression"):
        Policy(excluded=("at noon",))


def test_a_batch_that_is_let_no_more_offsets_asks_for_max_offsets():
    full = batches(slots=8, offsets=960_000, every_s=16, overhead_s=12.0)
    one = replace(SHORT, batches=full, offsets_max=1_000_000, arriving_per_s=90_000.0)
    assert "commit.max_offsets" in blocked(facts(one), "admission_capped").advice


def test_a_batch_that_is_mostly_the_drivers_asks_for_larger_batches():
    slow = batches(slots=8, offsets=1_600_000, overhead_s=40.0, every_s=60)
    late = tuple(Partition("clicks", i, 50_000, lag_s=900.0) for i in range(480))
    one = replace(SHORT, batches=slow, partitions=late)
    assert "67%" in blocked(facts(one), "driver_bound").says


def test_a_hot_partition_asks_for_split_ranges():
    assert "5.0 times" in blocked(facts(replace(SHORT, batches=batches(slots=8, skew=5.0))), "skew").says
    assert isinstance(decide_once(facts(replace(SHORT, batches=batches(slots=8, skew=2.9)))), ScaleUp)


def test_a_full_batch_of_few_files_asks_for_larger_batches_or_smaller_files():
    one = replace(SHORT, offsets_max=5_000_000, offsets_per_task=2_200_000.0, arriving_per_s=200_000.0)
    by = blocked(facts(one), "few_ranges")
    assert "2 tasks at most, and 8 slots" in by.says
    assert "roll.target_file_size" in by.advice


def test_many_partitions_give_a_full_batch_tasks_beyond_its_files():
    one = replace(SHORT, offsets_max=5_000_000, offsets_per_task=2_200_000.0, partitions_per_task=100)
    assert len(one.partitions) == 480
    assert ranges_max(one) == 5
    assert ranges_max(replace(one, offsets_per_task=100_000.0)) == 50
    assert ranges_max(replace(one, partitions_per_task=None)) == 2


def test_a_pipeline_at_its_rate_limit_asks_for_no_executors_and_its_lag_keeps_none():
    late = tuple(Partition("clicks", i, 100_000, lag_s=7_200.0) for i in range(480))
    behind = replace(SHORT, partitions=late)
    assert isinstance(decide_once(facts(behind)), ScaleUp)
    limited = decide_once(facts(replace(behind, rate_limit_per_s=50_000.0)))
    assert isinstance(limited, Stay)
    (note,) = limited.symptoms
    assert (note.kind, note.effect) == ("rate_limited", "note")
    (load,) = limited.terms.loads
    assert (load.need.up, load.need.target, load.need.late_s) == (50_000, 50_000, 0)
    little = decide_once(facts(replace(behind, rate_limit_per_s=1_000.0), executors=20), Memory(desired=20))
    assert isinstance(little, Wait), "fewer executors carry what it may commit"
    free = decide_once(facts(replace(pipeline(60_000), rate_limit_per_s=1e6)))
    assert not free.symptoms, "a limit beyond what comes says nothing"


def test_a_partition_that_stands_still_is_named_and_asks_for_nothing():
    moving = tuple(Partition("clicks", i, 1_000, lag_s=20.0) for i in range(1, 480))
    stuck = Partition("clicks", 0, 500_000_000, lag_s=86_000.0, batches_unmoved=3)
    decision = decide_once(facts(replace(pipeline(60_000), partitions=(stuck, *moving))))
    assert isinstance(decision, Stay)
    assert [(one.kind, one.effect) for one in decision.symptoms] == [("stuck_partition", "note")]
    assert "clicks/0 stands still" in decision.symptoms[0].says
    assert decision.terms.loads[0].need.lag_offsets == 479_000


def test_under_memory_pressure_none_goes_and_more_may_come():
    waited = Memory(desired=6, fewer=(DesiredDecrease(NOW - minutes(30), 3),), shape=SHAPE)
    calm = facts(pipeline(10_000, executors=6), executors=6)
    assert isinstance(decide_once(calm, waited), ScaleDown)
    decision = decide_once(replace(calm, executors=replace(calm.executors, gc_share=0.2)), waited)
    assert isinstance(decision, Blocked)
    assert decision.cause.kind == "memory_pressure"
    assert isinstance(decide_once(facts(SHORT, gc_share=0.2)), ScaleUp)


def test_after_executors_that_were_in_vain_none_is_added():
    memory = Memory(desired=2, block=Block(2, NOW + minutes(5), 0.04), shape=SHAPE)
    assert "4%" in blocked(facts(SHORT), "ineffective", memory).says
    assert isinstance(decide_once(facts(SHORT, now=NOW + minutes(5)), memory), ScaleUp | Hold)


def test_a_paused_pipeline_asks_for_nothing():
    paused = replace(pipeline(400_000), name="installs", paused=True)
    assert isinstance(decide_once(facts(pipeline(60_000), paused)), Stay)


def test_right_after_an_outage_the_rate_from_before_it_holds():
    before = batches(slots=8, last=NOW - minutes(60))
    one = replace(SHORT, batches=before)
    failed = Memory(desired=2, failed_at=NOW - minutes(1), shape=SHAPE)
    assert isinstance(decide_once(facts(one), failed), ScaleUp)
    held(facts(one), "too_few_batches")
