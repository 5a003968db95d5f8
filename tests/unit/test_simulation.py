"""The simulated world keeps its books, rivals do what their makers say, and scores are counted right."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import numpy as np
import pytest

from headrace.autoscaler.decision.facts import Executors, Facts
from headrace.autoscaler.decision.policy import DEFAULTS
from headrace.bench.simulation import baselines, run, trace
from headrace.bench.simulation.simulator import BEGAN, SimulatedPipeline
from headrace.bench.simulation.workloads import SHAPES, shape
from headrace.writer.core.errors import ConfigError
from tests.support.autoscaler_facts import NOW, batches, minutes, pipeline

FLAT = trace.Trace("flat", "as much all the time", 15.0, (40_000.0,) * 720, partitions=24, executors_first=2)  # 3 h
NOT_BUSY = baselines.Busy(0, 0.0)


def test_every_record_that_came_is_in_a_batch_or_waits():
    world, seen = SimulatedPipeline(FLAT), []
    for i in range(1, 720):
        world.advance(i * 15.0)
        world.ask(2 + i // 200)
        seen += [one for one in world.batches if one not in seen[-20:]]
    waits = sum(one.lag_offsets for one in world.look().pipelines[0].partitions)
    carried = sum(one.offsets for one in seen) + (world._running[0].offsets if world._running else 0)
    in_flight = world._running[0].offsets if world._running else 0
    came = 40_000 * world.now_s
    assert abs(carried + waits - in_flight - came) < 24 * len(seen)  # batches drop fractions of records
    assert all(one.began < one.ended for one in seen)
    assert all(a.ended <= b.began for a, b in pairwise(seen))


def test_a_simulated_observer_takes_means_over_the_windows_of_its_policy():
    rising = replace(FLAT, arriving_per_s=(*[10_000.0] * 360, *[70_000.0] * 360))
    quick = SimulatedPipeline(rising, replace(DEFAULTS, window_s=60.0, window_batches=0.0, short_window_s=30.0))
    usual = SimulatedPipeline(rising)
    for world in (quick, usual):
        world.advance(5_400.0 + 60.0)
    assert quick.look().pipelines[0].arriving_per_s == pytest.approx(70_000)
    assert quick.look().pipelines[0].arriving_lately_per_s == pytest.approx(70_000)
    assert usual.look().pipelines[0].arriving_per_s == pytest.approx(10_000 + 60_000 / 10)
    assert usual.look().pipelines[0].arriving_lately_per_s == pytest.approx(40_000)


def test_lag_in_seconds_is_how_long_the_oldest_has_waited():
    world = SimulatedPipeline(replace(FLAT, outages=((3600.0, 5400.0),)))
    world.advance(3500.0)
    assert world.late_s() < 130  # a trigger of a minute, and a batch
    world.advance(5300.0)
    assert world.late_s() == pytest.approx(1800, abs=130)
    assert world.look().pipelines[0].failing is not None


def test_executors_take_their_time_to_come_and_are_paid_from_then_on():
    world = SimulatedPipeline(FLAT)
    world.advance(15.0)
    world.ask(6)
    assert (world.wanted, world.registered) == (6, 2)
    paid = world.executor_s
    world.advance(30.0)
    assert world.executor_s - paid == pytest.approx(6 * 15.0)
    world.advance(300.0)
    assert world.registered == 6
    world.ask(1)
    world.advance(400.0)
    assert world.registered == 1


def test_a_world_is_the_same_twice():
    one, other = (run.play(FLAT, baselines.FixedExecutors(3)) for _ in range(2))
    assert one == other


def test_reversals_are_changes_that_go_back_within_half_an_hour():
    assert run.reversals([(0, 1), (1799, -1), (1900, -1), (3698, 1), (9000, -1)]) == 2
    assert run.reversals([]) == 0


def test_ours_carries_a_flat_load_without_a_reversal_and_late_records():
    score = run.ours(FLAT, DEFAULTS)
    assert score.minutes_over_slo == 0
    assert score.reversals == 0
    starved = run.play(replace(FLAT, arriving_per_s=(150_000.0,) * 720), baselines.FixedExecutors(1))
    assert starved.minutes_over_slo > 100


def waiting(lag: int, executors: int, partitions: int = 48, **more):
    known = pipeline(100_000, lag=lag, partitions=partitions, executors=executors, **more)
    return Facts(NOW, Executors(executors, executors, cores=4), (known,))


def test_the_lag_threshold_goes_up_at_once_and_down_to_the_most_of_five_minutes():
    keda = baselines.Threshold(lag_per_executor=1_000_000, max_executors=12)
    steps = [(0, 2_000_000, 2), (0.5, 5_000_000, 5), (1, 5_400_000, 5), (1.5, 30_000_000, 10), (2, 30_000_000, 12)]
    steps += [(3, 1_000_000, 12), (6.9, 1_000_000, 12), (7.1, 1_000_000, 1)]
    for at, lag, expected in steps:
        assert keda.choose_executors(waiting(lag, 2), NOT_BUSY, NOW + minutes(at)) == expected


def test_sparks_allocation_adds_one_two_four_and_lets_go_after_an_idle_minute():
    spark = baselines.Dynamic(max_executors=12)
    times = [NOW + timedelta(seconds=15 * i) for i in range(5)]
    found = [spark.choose_executors(waiting(0, 1), baselines.Busy(48, 0), time) for time in times]
    assert found == [2, 4, 8, 12, 12]
    assert spark.choose_executors(waiting(0, 12), baselines.Busy(0, 45), NOW + minutes(2)) == 12
    assert spark.choose_executors(waiting(0, 12), baselines.Busy(0, 75), NOW + minutes(2.5)) == 1


def test_flinks_autoscaler_waits_to_go_down_for_an_hour_and_stops_at_sixty_percent():
    flink, found = baselines.Flink(max_executors=12), {}
    for m in range(70):
        at = NOW + minutes(m)
        ran = batches(slots=40, ranges=48, offsets=600_000, last=at)
        known = replace(waiting(0, 10, batches=ran, arriving_per_s=10_000.0), at=at)
        lately = replace(known.pipelines[0], arriving_lately_per_s=10_000.0)
        found[m] = flink.choose_executors(replace(known, pipelines=(lately,)), NOT_BUSY, at)
    assert {found[m] for m in range(64)} == {10}
    assert found[69] == 4


def test_every_shape_is_a_day_and_two_were_held_out():
    made = [shape(name) for name in SHAPES]
    assert all(one.lasts_s == 86_400 for one in made)
    purposes = [one.purpose for one in made]
    assert (purposes.count("tuned"), purposes.count("held out")) == (4, 2)
    assert purposes.count("untuned") == 4
    assert shape("storm") == shape("storm")
    with pytest.raises(ConfigError, match="did you mean 'burst'"):
        shape("bursts")


def test_a_trace_is_written_and_read_again(tmp_path):
    path = tmp_path / "flat.json"
    trace.write(FLAT, path)
    assert trace.read(path) == FLAT
    path.write_text('{"name": "x", "about": "y", "step_s": 15}')
    with pytest.raises(ConfigError, match="arriving_per_s"):
        trace.read(path)
    with pytest.raises(ConfigError, match="shorter than an hour"):
        replace(FLAT, arriving_per_s=(1.0, 2.0))


def test_batches_of_the_world_show_the_rate_of_its_slots():
    world = SimulatedPipeline(replace(FLAT, contention=0.0, share_max=1.0))
    world.advance(3000.0)
    from headrace.autoscaler.decision.capacity import measure_rate

    seen = measure_rate(tuple(world.batches))
    assert seen is not None
    assert seen.per_slot_per_s == pytest.approx(10_000, rel=0.25)  # the longest of some tasks with luck is later
    assert np.isclose(seen.overhead_s, 4.24, rtol=0.3)
    assert world.batches[-1].began > BEGAN
