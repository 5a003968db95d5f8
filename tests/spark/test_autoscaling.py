"""The autoscaler at work on a real standalone cluster: a master, a worker, executors, a driver and it, all processes.

HEADRACE_SCALING names a file that keeps what happened, for docs/AUTOSCALING.md.
"""

import json
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.servers.standalone import standalone
from tests.support import oracle
from tests.support.cluster_driver import Autoscaler, Driver, autoscale, on_cluster, start_driver
from tests.support.event_load import Load
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
MakeTopic = Callable[..., str]

DELAY_S, SLO_S, TICK_S = 5.0, 30.0, 5.0
SLOT = 400  # records a second that a slot is let
# Minutes become seconds: a demonstration that nobody waits an hour for.
POLICY = {
    "interval_s": TICK_S, "window_s": 60, "short_window_s": 15, "start_s": 15, "stable_s": 15, "max_stable_s": 60,
    "down_s": 45, "after_up_s": 60, "regret_s": 120, "catch_up_duration_s": 60, "lag_slo_s": SLO_S,
    "max_facts_age_s": 30,
}  # fmt: skip
LOW, HIGH, LOW_AGAIN = 180, 1_000, 120  # records a second
HELD_S, CALM_S = 90, 40  # the load stays up so long at least, and until nothing was late for so long
WARM_COMMITS = 6  # the first batches load what tasks need: they are not what a slot carries


class Recorder:
    """What is seen of driver and autoscaler, second by second."""

    def __init__(self, driver: Driver, scaler: Autoscaler, load: Load) -> None:
        self._driver, self._scaler, self._load = driver, scaler, load
        self.began, self._began_s = datetime.now(UTC), time.monotonic()
        self.samples: list[dict[str, Any]] = []
        self.marks: dict[str, float] = {}

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def look(self) -> dict[str, Any]:
        status, told = self._driver.status(), self._scaler.ask()
        (one,), executors = status["pipelines"].values(), status["executors"]
        sample = {
            "at_s": round(self.now_s, 1), "sent": self._load.sent, "load_per_s": self._load.per_s,
            "lag_offsets": one["lag"]["offsets"], "lag_s": one["lag"]["seconds"],
            "committed": one["totals"]["records"]["read"], "asked": executors["requested"],
            "registered": executors["registered"], "draining": len(executors["draining"]),
            "failed_tasks": executors["failed_tasks"], "lost": executors["lost"], "gone": executors["gone"],
            "desired": (told["decision"] or {}).get("executors"), "verdict": (told["decision"] or {}).get("verdict"),
        }  # fmt: skip
        self.samples.append(sample)
        return sample

    def until(self, condition: Callable[[dict[str, Any]], object], seconds: float) -> float:
        """Look until something is so; returns when, in seconds since the beginning."""
        deadline = time.monotonic() + seconds
        while True:
            sample = self.look()
            if condition(sample):
                return self.now_s
            assert time.monotonic() < deadline, f"not within {seconds} s: {sample}\n{self._scaler.output()}"
            time.sleep(1.0)

    def in_time_for(self, seconds: float) -> bool:
        """Whether nothing was late for so long."""
        return not any(_is_late(sample) for sample in self.samples if sample["at_s"] > self.now_s - seconds)

    def through(self, seconds: float) -> None:
        """Look for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            time.sleep(1.0)


def _is_late(sample: dict[str, Any]) -> bool:
    return sample["lag_s"] is None or sample["lag_s"] > DELAY_S + SLO_S


def _stepped(driver: Driver, scaler: Autoscaler, load: Load) -> tuple[Recorder, list[dict[str, Any]]]:
    """Let the load step up, stay until nothing is late, and step down. Returns what was seen, and what was decided."""
    scaler.until(lambda: scaler.times("scaling_decided") > 0)
    recorder = Recorder(driver, scaler, load)
    marks = recorder.marks
    recorder.until(lambda one: one["verdict"] in ("stay", "wait"), 120)
    recorder.through(30)
    before = recorder.samples[-1]
    marks["step_up_s"] = recorder.now_s
    load.per_s = HIGH
    marks["asked_s"] = recorder.until(lambda one: one["desired"] > before["desired"], 60)
    marks["came_s"] = recorder.until(lambda one: one["registered"] > before["registered"], 240)
    recorder.until(lambda _: recorder.now_s > marks["step_up_s"] + HELD_S and recorder.in_time_for(CALM_S), 600)
    marks["calm_s"] = max([marks["step_up_s"], *(sample["at_s"] for sample in recorder.samples if _is_late(sample))])
    marks["step_down_s"] = recorder.now_s
    load.per_s = LOW_AGAIN
    marks["down_s"] = recorder.until(lambda one: one["registered"] <= 1 and one["draining"] == 0, 600)
    recorder.through(15)
    load.end()
    recorder.until(lambda one: one["committed"] == load.sent and one["lag_offsets"] == 0, 120)
    events = scaler.ask()["events"][::-1]
    assert scaler.stop() == 0
    return recorder, events


def test_a_step_up_brings_executors_and_a_step_down_lets_them_go(site: Site, topic: MakeTopic, tmp_path: Path) -> None:
    name = topic(6, prefix="clicks")
    lake = site.pipeline(
        "clicks", [name], bucket={"type": "tests.support.slow_bucketer:SlowBucketer", "records_per_second": SLOT},
        commit={"max_delay": f"{DELAY_S:.0f} s", "min_offsets": 1_000_000, "max_offsets": 40_000},
        roll={"target_file_size": "64 KiB"}, memory={"batch_records": 1_000},
    )  # fmt: skip
    with standalone(tmp_path / "cluster", cores=6) as cluster:
        on_cluster(site, cluster.url, max_executors=6, policy=POLICY)
        with start_driver(site) as driver:
            driver.wait_for_executors(6)  # a standalone cluster gives all it has at first
            assert driver.scale(1)[0] == 202
            driver.wait_for_executors(1)
            with Load(site, name, LOW) as load:
                driver.writer.until(lambda: len(driver.commits()) >= WARM_COMMITS, 240)
                with autoscale(site) as scaler:
                    recorder, events = _stepped(driver, scaler, load)
            output = driver.writer.stop()
    last = recorder.samples[-1]
    peak = max(sample["registered"] for sample in recorder.samples)
    frontier = oracle.check(lake, "clicks", site.ends(name))
    assert sum(frontier.values()) == load.sent
    assert (last["failed_tasks"], last["lost"]) == (0, 0)
    assert output.count("executor_decommission_requested") == output.count("executor_removed") >= 5 + peak - 1
    waited_s = recorder.marks["asked_s"] - recorder.marks["step_up_s"]
    assert waited_s <= 2 * TICK_S + 3, "two ticks, and what a look takes"
    kept = {
        "began": recorder.began.isoformat(),
        "settings": {**POLICY, "max_delay_s": DELAY_S, "slot_per_s": SLOT, "partitions": 6, "max_executors": 6},
        "marks": {**recorder.marks, "peak": peak},
        "sent": load.sent, "rows": sum(len(offsets) for offsets in oracle.offsets(lake).values()),
        "failed_tasks": last["failed_tasks"], "samples": recorder.samples, "events": events,
    }  # fmt: skip
    if os.environ.get("HEADRACE_SCALING"):
        Path(os.environ["HEADRACE_SCALING"]).write_text(json.dumps(kept, indent=1) + "\n")
