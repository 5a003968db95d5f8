"""The wall clock of a process steps: real processes with a clock of their own, without Spark."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from itertools import groupby
from pathlib import Path

import pytest
import yaml

from headrace.autoscaler.decision.events import Event
from headrace.autoscaler.decision.facts import Facts
from headrace.autoscaler.decision.history import Memory
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.runtime.loop import Loop
from headrace.autoscaler.runtime.state_store import AutoscalerState
from tests.support import oracle
from tests.support.autoscaler_facts import batches, facts, pipeline
from tests.support.faked_clock import HOUR, STEPS, FakedClock, needs_faked_clock, words
from tests.support.fault_cells import FORMATS
from tests.support.fixed_log_writer import carry, judge
from tests.support.sample_records import config
from tests.support.stepped_clocks import Clocks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2_000)]
ROOT = Path(__file__).parents[2]
EXPIRY_S = 20  # of a lease
PAUSE_MAX_S = 45.0  # before a start; on a busy machine most of it is the start of a process
SEALED = [[0, 2, 11, 1], [1, 1, 12, 0], [2, 1, 10, 0], [3, 1, 5, 0]]  # hour, version of the manifest, rows, late rows


@needs_faked_clock
@pytest.mark.parametrize(
    ("form", "steps"),
    [("delta", [-HOUR]), *((form, STEPS) for form in FORMATS)],
    ids=["one step", *(f"every step-{form}" for form in FORMATS)],
)
def test_a_writer_whose_clock_steps_right_does_what_it_would_have_done(
    tmp_path: Path, form: str, steps: list[timedelta], record: Callable[..., None]
) -> None:
    """Its clock is wrong at first. Rows, dead letters, late rows, seals and the rate limit are those of a right one."""
    clock = FakedClock(tmp_path / "clock")
    seconds = [str(step.total_seconds()) for step in steps]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.stepped_clock_writer", str(tmp_path), form, str(clock.file), *seconds],
        cwd=ROOT, env={**os.environ, **clock.environment}, capture_output=True, text=True, timeout=1_800, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout):
        fault = words(timedelta(seconds=found["step_s"]))
        assert (found["rows"], found["dead"], found["sealed"]) == (43, 5, SEALED), f"{fault} {found['moment']}"
        for asked_s, took_s in found["waits_s"]:
            assert took_s < asked_s + 30, "the rate limit waits no longer"
        # In all, since a busy machine may measure one wait late and the next one short by as much.
        all_asked_s, all_took_s = (sum(seconds) for seconds in zip(*found["waits_s"], strict=True))
        assert all_took_s >= all_asked_s - 0.1, "the rate limit holds"
        tally = found["tally"]
        record(
            fault=fault, moment=found["moment"], on=f"in-process, {FORMATS[form]}, local", times=1,
            seen_twice=tally["seen_twice"], records=tally["records"], lost=tally["lost"], twice=tally["twice"],
            ended="went on 1",
        )  # fmt: skip


class Supervised:
    """A supervisor in a process of its own with a clock of its own, and what it says."""

    def __init__(self, root: Path, name: str, command: list[str]) -> None:
        self.clock, self.log = FakedClock(root / f"clock of {name}"), root / f"{name}.log"
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.writer_supervisor", str(root / "headrace.yaml"), name, *command],
                cwd=ROOT, stdout=out, stderr=subprocess.STDOUT, env={**os.environ, **self.clock.environment},
            )  # fmt: skip

    def output(self) -> str:
        return self.log.read_text()


@dataclass(frozen=True)
class Sign:
    """A sign of life of a driver."""

    pid: int
    lease: int
    version: int  # of the table, where the driver just committed; else -1
    at_s: float  # by the monotonic clock


def signs(journal: Path) -> list[Sign]:
    """Read what drivers wrote; the last line may be incomplete."""
    lines = journal.read_text().splitlines(keepends=True) if journal.exists() else []
    return [Sign(*json.loads(line)) for line in lines if line.endswith("\n")]


def wait_for(condition: Callable[[], object], *supervisors: Supervised) -> None:
    deadline_s = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline_s, "\n".join(supervisor.output() for supervisor in supervisors)
        time.sleep(0.02)


@needs_faked_clock
@pytest.mark.parametrize("step", STEPS, ids=words)
def test_of_two_supervisors_whose_clocks_step_one_holds_the_lease_and_goes_on_after_a_failure(
    tmp_path: Path, step: timedelta, record: Callable[..., None]
) -> None:
    """The storage of the first driver fails. Both clocks step before, and the other's a second time, the other way."""
    journal, lake = tmp_path / "journal", tmp_path / "lake" / "clicks"
    written = json.loads(config(tmp_path).model_dump_json(exclude_unset=True))
    written["supervisor"] = {"port": 0, "lease_expiry": f"{EXPIRY_S} s"}
    (tmp_path / "headrace.yaml").write_text(yaml.safe_dump(written))
    command = [
        sys.executable,
        "-m",
        "tests.support.supervised_writer",
        str(tmp_path),
        "delta",
        str(journal),
        "2",
        "fail",
    ]
    holder = Supervised(tmp_path, "holder", command)
    wait_for(lambda: "lease_acquired" in holder.output(), holder)
    other = Supervised(tmp_path, "other", command)
    try:
        wait_for(lambda: any(sign.version >= 0 for sign in signs(journal)), holder)
        holder.clock.show(step)
        other.clock.show(-step)
        wait_for(lambda: "lease_awaited" in other.output(), other)
        oracle.check_rows(lake, "clicks")
        other.clock.show(step)
        assert holder.process.wait(120) == 0, holder.output()
        released_s = time.monotonic()
        assert other.process.wait(120) == 0, other.output()
    finally:
        for one in (holder, other):
            one.process.kill()
            one.process.wait(60)
    before = oracle.tally.copy()
    judge(carry(tmp_path, str(lake), "delta"), lake)
    drivers = [list(each) for _, each in groupby(signs(journal), key=lambda sign: sign.pid)]
    said = holder.output() + other.output()
    assert [each[0].lease for each in drivers] == [1, 1, 2], said
    pause_s = drivers[1][0].at_s - drivers[0][-1].at_s
    assert pause_s < PAUSE_MAX_S, "it is started again as soon as without the step"
    assert drivers[2][0].at_s - released_s < PAUSE_MAX_S, "what is released is taken at once"
    assert "lease_lost" not in said
    tally = oracle.tally.since(before)
    record(
        fault=words(step), moment="of a supervisor whose driver fails, and of one that waits for its lease",
        on="supervisors, in-process, Delta, local", times=1, seen_twice=tally.seen_twice, records=tally.records,
        lost=tally.lost, twice=tally.twice, ended="started again 1",
    )  # fmt: skip


LOADS = [(40, 20_000.0), (240, 72_000.0), (900, 20_000.0)]  # until which tick, records a second
AT = {"before more are needed": 39, "while those that came settle": 45, "while fewer are wanted": 270}


class Scaled:
    """The autoscaler's loop over a driver that has at once what is asked for. The clock steps at one of its ticks."""

    def __init__(self, step: timedelta, at_tick: int) -> None:
        clocks, policy = Clocks(), Policy()
        self.executors: Mapping[str, int] = {}
        self.changes = list[tuple[int, int]]()  # tick, and what is asked for from it on
        self._wanted, self._arriving = 2, 0.0
        loop = Loop(
            policy, self, AutoscalerState(Memory()), request=self._request, save=lambda _: None, dry_run=False,
            now=clocks.now, seconds=clocks.seconds, clocks=clocks.comparison(),
        )  # fmt: skip
        for tick in range(LOADS[-1][0]):
            clocks.pass_time(policy.interval_s)
            if tick == at_tick:
                clocks.step(step)
            self._arriving = next(arriving for end, arriving in LOADS if tick < end)
            before = self._wanted
            loop.tick()
            if self._wanted != before:
                self.changes.append((tick, self._wanted))

    def collect(self, now: datetime) -> Facts:
        had = batches(slots=self._wanted * 4, offsets=int(self._arriving * 60), last=now)
        return facts(pipeline(self._arriving, batches=had), executors=self._wanted, now=now)

    def _request(self, executors: int, _: Event) -> None:
        self._wanted = executors


@cache
def changes_without_a_step() -> list[tuple[int, int]]:
    return Scaled(timedelta(0), 0).changes


@pytest.mark.parametrize("step", STEPS, ids=words)
def test_an_autoscaler_whose_clock_steps_asks_for_the_same_at_the_same_time(
    step: timedelta, record: Callable[..., None]
) -> None:
    without = changes_without_a_step()
    assert [wanted for _, wanted in without] == [3, 1], "it adds, and waits before it takes away"
    for moment, tick in AT.items():
        assert Scaled(step, tick).changes == without
        record(
            fault=words(step), moment=f"of the autoscaler, {moment}", on="autoscaler, in-process", times=1,
            seen_twice=0, records=0, lost=0, twice=0, ended="scaled as without it 1",
        )  # fmt: skip
