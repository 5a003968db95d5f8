"""What is learned from changes, what is forgotten, and that all of it survives a restart as JSON."""

import json
from dataclasses import replace

import pytest
from pydantic_core import to_jsonable_python

from headrace.autoscaler.decision.decide import ScaleUp
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Block, DesiredDecrease, Memory, Scaling, observe, slot_yield, start_s
from headrace.autoscaler.runtime import state_store
from headrace.writer.core.errors import ConfigError
from tests.support.autoscaler_facts import NOW, POLICY, batches, decide_once, facts, minutes, pipeline

SHAPE = {"clicks": 480, "slots of an executor": 4}
CAME = Scaling(NOW - minutes(10), 2, 4, {"clicks": 10_000.0})


def after(memory: Memory, known: Facts) -> Memory:
    return observe(POLICY, memory, known, known.at)


def on_four(slot: float, executors: int = 4):
    return facts(pipeline(60_000, executors=4, batches=batches(5, slots=16, slot=slot)), executors=executors)


def test_how_long_executors_take_to_come_is_learned():
    assert start_s(POLICY, Memory()) == 60
    early = Memory(desired=4, scalings=(replace(CAME, at=NOW - minutes(2)),), shape=SHAPE)
    not_there = after(early, on_four(10_000, executors=3))
    assert not_there.scalings[0].there_at is None
    there = after(not_there, on_four(10_000))
    assert there.scalings[0].there_at == NOW
    assert start_s(POLICY, there) == 120
    many = Memory(scalings=tuple(replace(CAME, there_at=CAME.at + minutes(m)) for m in (60, 5, 1, 1, 1, 1)))
    assert start_s(POLICY, many) == 300  # of the last five
    assert start_s(POLICY, Memory(scalings=many.scalings[:1])) == POLICY.max_start_s


@pytest.mark.parametrize(("slot", "found"), [(10_000, 1.0), (7_500, 0.5), (5_100, 0.02)])
def test_the_gain_of_an_added_slot_is_measured(slot, found):
    memory = after(Memory(desired=4, scalings=(replace(CAME, there_at=CAME.at),), shape=SHAPE), on_four(slot))
    assert memory.scalings[0].yield_ == pytest.approx(found)
    if found < POLICY.min_yield:
        assert memory.block == Block(4, NOW + minutes(30), found)
    else:
        assert memory.block is None


def test_batches_that_ran_on_other_slots_measure_nothing():
    mixed = facts(pipeline(60_000, executors=4, batches=batches(5, slots=12)), executors=4)
    memory = after(Memory(desired=4, scalings=(replace(CAME, there_at=CAME.at),), shape=SHAPE), mixed)
    assert memory.scalings[0].yield_ is None


def test_a_small_change_is_not_measured():
    small = replace(CAME, before=19, after=20, there_at=CAME.at)
    known = facts(pipeline(60_000, executors=20, batches=batches(5, slots=80, slot=9_000)), executors=20)
    assert after(Memory(desired=20, scalings=(small,), shape=SHAPE), known).scalings[0].yield_ is None


@pytest.mark.parametrize(("batches_since", "blocked"), [(1, False), (2, True), (3, True)])
def test_that_executors_were_in_vain_is_not_believed_of_one_batch_that_warmed_them_up(batches_since, blocked):
    cold = batches(batches_since, slots=16, ranges=480, slot=5_000, every_s=60, last=NOW)
    came = replace(CAME, at=cold[0].began - minutes(1), per_slot_per_s={"clicks": 10_000.0})
    known = facts(pipeline(60_000, executors=4, batches=cold), executors=4)
    assert (after(Memory(desired=4, scalings=(came,), shape=SHAPE), known).block is not None) == blocked


def test_a_yield_is_believed_after_three_changes_and_never_below_half():
    seen = [replace(CAME, yield_=value) for value in (0.6, 0.7, 0.2)]
    assert slot_yield(POLICY, Memory(scalings=tuple(seen[:2]))) == 1.0
    assert slot_yield(POLICY, Memory(scalings=tuple(seen))) == 0.6
    assert slot_yield(POLICY, Memory(scalings=tuple(replace(CAME, yield_=0.1) for _ in range(3)))) == 0.5
    assert slot_yield(POLICY, Memory(scalings=tuple(replace(CAME, yield_=1.4) for _ in range(3)))) == 1.0


def test_a_lower_yield_asks_for_more_executors():
    known = facts(pipeline(200_000), executors=2)
    learned = tuple(replace(CAME, at=NOW - minutes(100), there_at=NOW - minutes(99), yield_=0.5) for _ in range(3))
    policy = replace(POLICY, up_factor=20.0)
    plain, careful = (decide_once(known, Memory(desired=2, scalings=s, shape=SHAPE), policy) for s in ((), learned))
    assert isinstance(plain, ScaleUp)
    assert isinstance(careful, ScaleUp)
    assert careful.executors > plain.executors


def test_the_gain_of_a_change_is_forgotten_when_the_partitions_change():
    memory = Memory(
        desired=4, scalings=(replace(CAME, there_at=CAME.at, yield_=0.6),), fewer=(DesiredDecrease(NOW, 2),),
        block=Block(4, NOW + minutes(9), 0.0), shape={"clicks": 240, "slots of an executor": 4},
    )  # fmt: skip
    found = after(memory, facts(pipeline(60_000, executors=4, batches=()), executors=4))
    assert (found.fewer, found.block, found.shape, found.desired) == ((), None, SHAPE, 4)
    assert found.scalings == (replace(CAME, there_at=CAME.at),)


def test_changes_are_forgotten_after_a_day():
    old = replace(CAME, at=NOW - minutes(24 * 60 + 1), there_at=NOW - minutes(24 * 60))
    kept = replace(CAME, at=NOW - minutes(24 * 60 - 1), there_at=NOW, yield_=1.0)
    memory = after(Memory(desired=4, scalings=(old, kept), shape=SHAPE), facts(pipeline(), executors=4))
    assert memory.scalings == (kept,)


def test_the_first_desired_number_is_what_spark_was_asked_for():
    assert after(Memory(), facts(pipeline(), executors=5)).desired == 5
    assert after(Memory(desired=3), facts(pipeline(), executors=5)).desired == 3


def test_memory_and_facts_survive_as_json(tmp_path):
    memory = Memory(
        4, (replace(CAME, there_at=NOW, yield_=0.8),), (DesiredDecrease(NOW, 2),), Block(4, NOW, 0.0), NOW, SHAPE
    )
    for kept in (memory, facts(pipeline(60_000), executors=3, quota=7)):
        path = tmp_path / "kept.json"
        state_store.write_file(kept, path)
        assert state_store.read_file(type(kept), path) == kept


def test_a_wrong_field_of_a_file_of_facts_is_named(tmp_path):
    path = tmp_path / "facts.json"
    with pytest.raises(ConfigError, match="is not there"):
        state_store.read_file(Facts, path)
    known = to_jsonable_python(facts(pipeline(partitions=1)))
    known["pipelines"][0]["lags"] = 5
    path.write_text(json.dumps(known))
    with pytest.raises(ConfigError, match=r"holds no facts of the autoscaler: pipelines\.0\.lags"):
        state_store.read_file(Facts, path)
    del known["pipelines"][0]["lags"]
    known["at"] = "2026-03-04T12:00:00"
    path.write_text(json.dumps(known))
    with pytest.raises(ConfigError, match="at: Input should have timezone info"):
        state_store.read_file(Facts, path)
    known["at"] += "Z"
    known["pipelines"][0]["batches"][0]["slots"] = 0
    path.write_text(json.dumps(known))
    with pytest.raises(ConfigError, match="a batch ran on slots"):
        state_store.read_file(Facts, path)
