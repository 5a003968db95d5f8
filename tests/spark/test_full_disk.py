"""A disk is full: the error of the pipeline names the place, how much is free, and what to do. Real disks of a MiB."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
MakeTopic = Callable[..., str]


def run_beside(site: Site, small: Path, fill: str = "", **env: str) -> tuple[int, str, str]:
    """Run a writer with a disk of one MiB at `small`. Returns exit code, what it said, and the pipeline's error.

    No root is needed: the disk is mounted in a namespace of this command's own.
    """
    small.mkdir()
    script = (
        f"mount -t tmpfs -o size=1m none {small} && "
        f"{fill} {sys.executable} -m headrace.writer.cli run {site.config} --once; "
        f"code=$?; echo files: $(find {small} -name '*.parquet' | wc -l); exit $code"
    )
    done = subprocess.run(
        ["env", *(f"{name}={value}" for name, value in env.items()), "unshare", "--map-root-user", "--mount", "sh",
         "-c", script],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    said = done.stdout + done.stderr
    found = re.search(r"pipeline_failed .*error=(.*)", said)
    return done.returncode, said, found[1] if found else ""


def pipeline(site: Site, topic: MakeTopic, **changes: object) -> None:
    name = topic(1)
    site.fill(name, 60_000)
    site.pipeline("events", [name], **{"memory": {"batch_records": 5_000}, **changes})


def test_of_the_table_is_told_and_the_table_is_as_it_was(site: Site, topic: MakeTopic) -> None:
    small = site.root / "small"
    pipeline(site, topic, table={"location": str(small / "events")})
    code, said, error = run_beside(site, small)
    assert code == 1, said
    # Events and dead letters lie on one disk: whichever file is written last is refused.
    assert re.search(rf"cannot write {small}/events(_dead_letters)?: No space left on device, ", error), error
    assert "B of 1.0 MiB are free. The table is as it was: make room there" in error, error
    assert "files: 0" in said, "what was staged is taken away"
    assert "batch_committed" not in said


def test_of_the_checkpoint_is_told(site: Site, topic: MakeTopic) -> None:
    small = site.root / "small"
    pipeline(site, topic)
    site.overrides["checkpoints"] = str(small / "checkpoints")
    code, said, error = run_beside(site, small, fill=f"dd if=/dev/zero of={small}/full bs=1k count=1004 status=none;")
    assert code == 1, said
    assert f"cannot write {small}/checkpoints/events: No space left on device, " in error, error
    assert "Spark's checkpoint lies there: make room" in error, error
