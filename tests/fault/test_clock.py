"""The wall clock of a process steps: real processes with a clock of their own, without Spark."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from tests.faked_clock import HOUR, STEPS, FakedClock, needs_faked_clock, words
from tests.fault.cells import FORMATS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_000), needs_faked_clock]
ROOT = Path(__file__).parents[2]
SEALED = [[0, 2, 11, 1], [1, 1, 12, 0], [2, 1, 10, 0], [3, 1, 5, 0]]  # hour, version of the manifest, rows, late rows


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
        [sys.executable, "-m", "tests.fault.by_clock", str(tmp_path), form, str(clock.file), *seconds], cwd=ROOT,
        env={**os.environ, **clock.environment}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for found in json.loads(done.stdout):
        fault = words(timedelta(seconds=found["step_s"]))
        assert (found["rows"], found["dead"], found["sealed"]) == (43, 5, SEALED), f"{fault} {found['moment']}"
        for asked_s, took_s in found["waits_s"]:
            assert asked_s - 0.01 <= took_s < asked_s + 30, "the rate limit holds, and waits no longer"
        tally = found["tally"]
        record(
            fault=fault, moment=found["moment"], on=f"in-process, {FORMATS[form]}, local", times=1,
            seen_twice=tally["seen_twice"], records=tally["records"], lost=tally["lost"], twice=tally["twice"],
            ended="went on 1",
        )  # fmt: skip
