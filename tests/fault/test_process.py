"""The process is killed in every step, finds its disk full, or its clock elsewhere: real processes, without Spark."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.fault.outcomes import WANTED as WHOLE
from tests.support import oracle
from tests.support.fault_cells import FORMATS
from tests.support.fixed_log_writer import carry, judge
from tests.support.sample_records import NOW

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOT = Path(__file__).parents[2]
STEPS = ("skip", "decode", "conform", "assign", "stage", "columnar", "report")
POINTS = (*(f"in_{step}" for step in STEPS), "before_commit", "after_commit")
MOVES = ("publish", "after_publish")
OPTIONAL = ("in_raw", "in_shape")  # steps that a pipeline with a raw table and with event specs has
WORDS = {
    "before_commit": "right before the commit", "after_commit": "right after the commit",
    "publish": "before a file is published", "after_publish": "right after files are published",
}  # fmt: skip
FULL = re.compile(
    r"cannot write DISK\S*: No space left on device, \S+ \w?i?B of \S+ KiB are free\. .*[Mm]ake room there"
)
DISKS_KIB = (16, 32, 48, 64, 80, 96, 128, 160)[:: 1 if WHOLE else 2]


def ran(script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        script, shell=True, cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip


def line(what: str, root: Path, lake: Path, form: str, **settings: Any) -> str:
    more = f" {shlex.quote(json.dumps(settings))}" if settings else ""
    return f"{sys.executable} -m tests.support.fixed_log_writer {what} {root} {lake} {form}{more}"


@pytest.mark.parametrize(
    ("form", "point"),
    [
        *((form, point) for form in ("delta", "iceberg") for point in (*POINTS, *OPTIONAL)),
        *(("parquet", point) for point in (*POINTS, *MOVES, *OPTIONAL)),
    ],
)
def test_a_process_killed_in_any_step_loses_and_doubles_nothing(
    tmp_path: Path, form: str, point: str, record: Callable[..., None]
) -> None:
    lake, before, kills = tmp_path / "lake" / "clicks", oracle.tally.copy(), 0
    more: dict[str, Any] = {"specs": {"Event": {"derive": {"twice": "id * 2"}}}} if point == "in_shape" else {}
    more |= {"table": {"raw": str(tmp_path / "lake" / "clicks_raw")}} if point == "in_raw" else {}
    for time in (1, 2, 3):
        done = ran(f"exec {line('carry', tmp_path, lake, form, **more)}", HEADRACE_FAULT=f"{point}:{time}")
        assert done.returncode in (-signal.SIGKILL, 0), done.stderr
        assert time > 1 or done.returncode, f"{point} was never passed"
        kills += done.returncode == -signal.SIGKILL
        oracle.check_rows(lake, "clicks")
    judge(carry(tmp_path, str(lake), form, **more), lake)
    tally = oracle.tally.since(before)
    record(
        fault="kill -9 of a process", moment=WORDS.get(point, point.replace("_", " ")),
        on=f"in-process, {FORMATS[form]}, local", times=kills, seen_twice=tally.seen_twice, records=tally.records,
        lost=tally.lost, twice=tally.twice, ended=f"killed {kills}",
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
def test_whenever_the_disk_is_full_nothing_is_lost_or_twice(
    tmp_path: Path, form: str, record: Callable[..., None]
) -> None:
    """One disk for table, dead letters and log; made larger afterwards, as a person would do it."""
    failed, sums = 0, oracle.Tally()
    for size in DISKS_KIB:
        root = tmp_path / str(size)
        disk, lake = root / "disk", root / "disk" / "lake" / "clicks"
        disk.mkdir(parents=True)
        script = (
            f"mount -t tmpfs -o size={size}k none {disk} || exit 99; {line('carry', root, lake, form)} "
            f">/dev/null; echo code $? >&2; {line('look', root, lake, form)} && "
            f"mount -o remount,size=64m {disk} && {line('judge', root, lake, form)}"
        )
        done = ran(f"exec unshare --map-root-user --mount sh -c '{script}'")
        assert done.returncode == 0, done.stdout + done.stderr
        failed += "code 1" in done.stderr
        assert "code 0" in done.stderr or FULL.search(done.stderr.replace(str(disk), "DISK")), done.stderr
        for said in done.stdout.splitlines():
            sums = sums.plus(oracle.Tally(**json.loads(said)))
    assert failed >= len(DISKS_KIB) // 3, f"only {failed} disks were too small"
    record(
        fault="the disk is full", moment="at many fill levels, from the first entry to the last file",
        on=f"in-process, {FORMATS[form]}, local", times=failed, seen_twice=sums.seen_twice, records=sums.records,
        lost=sums.lost, twice=sums.twice, ended=f"ended {failed}",
    )  # fmt: skip


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("days", [-400, 400])
def test_a_clock_that_jumps_loses_and_doubles_nothing(
    tmp_path: Path, days: int, form: str, record: Callable[..., None]
) -> None:
    """What it makes of the event times is another question: by such a clock they are not believable."""
    lake, before, there = tmp_path / "lake" / "clicks", oracle.tally.copy(), NOW + timedelta(days=days)
    driver = carry(tmp_path, str(lake), form, clock=[NOW, there, NOW])
    oracle.check_rows(lake, "clicks")
    judge(driver, lake)
    outcomes = dict(oracle.rows(Path(driver.dead_letters), "outcome, count(*)", "GROUP BY ALL"))
    assert outcomes["quarantined"] == 22, "those of the batch in between, but the broken ones"
    tally = oracle.tally.since(before)
    record(
        fault="the clock jumps", moment=f"by {days:+} days for one batch, and back",
        on=f"in-process, {FORMATS[form]}, local", times=1, seen_twice=tally.seen_twice, records=tally.records,
        lost=tally.lost, twice=tally.twice, ended="went on 1",
    )  # fmt: skip
