"""The loop: what is kept before what is asked, what outlives a process, what a dry run leaves alone."""

import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.autoscaler.decision.events import EVENTS_MAX, Event, add_event
from headrace.autoscaler.decision.facts import Executors
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.runtime import state_store
from headrace.autoscaler.runtime.endpoints import CATALOGUE, LastTick, autoscaler_endpoints, unhealthy_reason
from headrace.autoscaler.runtime.loop import Loop
from headrace.autoscaler.runtime.state_store import AutoscalerState
from headrace.writer.storage.locations import store_at
from tests.support.autoscaler_facts import NOW, facts, pipeline

POLICY = Policy(max_executors=50)
LATE = facts(pipeline(72_000))  # two executors, three are wanted
TOLD = {"requested": 2, "registered": 2, "draining": [], "failed_tasks": 0, "lost": 0}


class World:
    """Facts to be seen, a driver to be asked, a clock; and in which order all was done."""

    def __init__(self, seen=LATE, remembered: AutoscalerState | None = None, *, dry_run: bool = False) -> None:
        self.seen, self.now, self.done, self.answer = seen, NOW, [], None
        self.executors = TOLD
        self.loop = Loop(
            POLICY,
            self,
            remembered or AutoscalerState(Memory()),
            request=self.request,
            save=self.save,
            dry_run=dry_run,
            now=lambda: self.now,
        )

    def collect(self, now):
        return replace(self.seen, at=now)

    def request(self, executors: int, event: Event) -> str | None:
        self.done.append(("request", executors))
        self.said = event
        return self.answer

    def save(self, state: AutoscalerState) -> None:
        self.done.append(("save", state.memory.desired))

    def tick(self, seconds: float = 15):
        self.now += timedelta(seconds=seconds)
        return self.loop.tick()


def test_a_decision_is_stored_before_the_driver_is_asked():
    world = World()
    world.tick()
    assert world.done == [("save", 3), ("request", 3)]


def test_desired_executors_are_asked_for_again_at_every_tick():
    world = World()
    world.tick()
    world.seen = replace(LATE, pipelines=())
    world.tick()
    assert world.done[-1] == ("request", 3)
    assert world.loop.last_tick.events[-1].by == "blind"


def test_the_driver_is_told_the_reason_of_this_tick_also_where_the_verdict_is_the_same():
    world, wanted = World(), []
    world.tick()
    for arriving in (140_000, 200_000):
        world.seen = facts(pipeline(arriving))
        world.tick()
        assert world.said.verdict == "wait"
        assert f"then {world.said.wanted}:" in world.said.why
        wanted.append(world.said.wanted)
    assert wanted == sorted(set(wanted)), "two numbers, in one event"
    assert len(world.loop.last_tick.events) == 2


def test_a_new_process_goes_on_with_what_the_one_before_decided():
    world = World(replace(LATE, pipelines=()), AutoscalerState(Memory(desired=7)))
    world.tick()
    assert world.done == [("save", 7), ("request", 7)]


def test_nothing_is_requested_without_a_driver_nor_before_a_decision():
    world = World(replace(LATE, executors=None))
    world.tick()
    assert [one for one in world.done if one[0] == "request"] == []


def test_a_dry_run_asks_for_nothing_keeps_nothing_and_judges_what_is_there_again():
    world = World(dry_run=True)
    for _ in range(3):
        decision = world.tick()
        assert (decision.executors, world.loop.last_tick.dry_run) == (3, True)
    assert world.done == []
    assert [one.verdict for one in world.loop.last_tick.events] == ["up"]


def test_a_refusal_is_shown_until_it_is_taken(caplog: pytest.LogCaptureFixture):
    world = World()
    world.answer = "403: this needs the token"
    world.tick()
    world.tick()
    assert world.loop.last_tick.refused == "403: this needs the token"
    assert "headrace_autoscaler_request_refused 1.0" in scraped(world.loop.last_tick)
    assert sum("executors_request_refused" in one for one in caplog.messages) == 1
    world.answer = None
    world.tick()
    assert world.loop.last_tick.refused is None


def test_a_storage_that_fails_does_not_stop_scaling():
    world = World()

    def fails(_: AutoscalerState) -> None:
        raise OSError("s3://lake is down")

    world.loop._save = fails
    world.tick()
    assert world.done == [("request", 3)]


def test_changes_and_those_that_go_back_are_counted():
    world = World()
    world.tick()
    assert world.loop.last_tick.counts == {"ticks": 1, "up": 1, "down": 0, "reversals": 0}
    world.loop._policy = replace(POLICY, max_executors=1)  # a hard limit takes executors away at once
    world.seen = replace(LATE, executors=Executors(3, 3, cores=4))
    world.tick()
    assert world.loop.last_tick.counts == {"ticks": 2, "up": 1, "down": 1, "reversals": 1}


# --- events -----------------------------------------------------------------------------------------------------


def said(minute: float, verdict: str = "stay", executors: int = 2, by: str | None = None) -> Event:
    at = NOW + timedelta(minutes=minute)
    return Event(at, at, 1, verdict, executors, None, by, "because")


def test_ticks_that_decide_the_same_are_one_event():
    events: tuple[Event, ...] = ()
    for minute, one in enumerate(["stay", "stay", "hold", "stay"]):
        events = add_event(events, said(minute, one))
    assert [(one.verdict, one.ticks) for one in events] == [("stay", 2), ("hold", 1), ("stay", 1)]
    assert events[0].until == NOW + timedelta(minutes=1)


def test_the_last_hundred_are_kept():
    events: tuple[Event, ...] = ()
    for minute in range(300):
        events = add_event(events, said(minute, executors=minute))
    assert (len(events), events[-1].executors) == (EVENTS_MAX, 299)


# --- what outlives the process ----------------------------------------------------------------------------------


def test_stored_state_is_read_again_whole(tmp_path):
    store = store_at(str(tmp_path))
    assert state_store.read_state(store) == AutoscalerState(Memory())
    world = World()
    world.tick()
    state_store.write_state(store, world.loop._state)
    assert state_store.read_state(store) == world.loop._state
    assert len(list(tmp_path.iterdir())) == 1


def test_a_state_file_that_cannot_be_read_is_begun_anew_with_a_warning(tmp_path, caplog: pytest.LogCaptureFixture):
    store = store_at(str(tmp_path))
    store.put(state_store.NAME, b'{"memory": {"desired": "many"}}')
    assert state_store.read_state(store) == AutoscalerState(Memory())
    assert "autoscaler_state_unreadable" in caplog.text


# --- what is told over HTTP -------------------------------------------------------------------------------------


def scraped(shown: LastTick) -> str:
    return autoscaler_endpoints(lambda: shown)("/metrics", "text/plain")[2].decode()


def test_every_metric_is_there_and_says_what_was_decided():
    world = World()
    world.tick()
    text = scraped(world.loop.last_tick)
    families = {one.name for one in text_string_to_metric_families(text)}
    assert families == {metric.name.removesuffix("_total") for metric in CATALOGUE}
    for line in (
        "headrace_executors_desired 3.0", "headrace_executors_requested 2.0",
        'headrace_autoscaler_decision{decision="up"} 1.0',
        'headrace_arrival_rate{pipeline="clicks"} 72000.0', 'headrace_slot_rate{pipeline="clicks"} 10000.0',
    ):  # fmt: skip
        assert line in text


def test_before_the_first_tick_there_is_little_to_say():
    shown = LastTick(0.0, interval_s=15, dry_run=False)
    assert "headrace_autoscaler_evaluations_total 0.0" in scraped(shown)
    assert b'"decision": null' in autoscaler_endpoints(lambda: shown)("/status", "")[2]
    assert autoscaler_endpoints(lambda: shown)("/nothing", "")[0] == 404


def test_a_loop_that_does_not_tick_is_unhealthy():
    shown = LastTick(1_000.0, interval_s=30, dry_run=False, at=NOW)
    assert unhealthy_reason(shown, 1_120.0) == ""
    assert unhealthy_reason(shown, 1_121.0) == "no tick for 121 s"


def test_the_autoscaler_starts_where_there_is_no_spark():
    script = (
        "import sys; sys.modules.update(pyspark=None, py4j=None, delta=None)\n"
        "import headrace.autoscaler.cli, headrace.autoscaler.runtime.collector\n"
        "import headrace.autoscaler.runtime.loop, headrace.autoscaler.runtime.main, headrace.writer.config.loader"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
