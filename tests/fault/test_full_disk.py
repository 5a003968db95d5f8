"""A full disk is told with its place, what is free there, and what to do. On real disks of some KiB."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.writer.storage import disk_space
from headrace.writer.storage.base import StoreError

CARRY = """
import os, sys
from dataclasses import replace
from pathlib import Path
from tests.support import task_topic
from headrace.writer.storage.base import StoreError

written, plan = (getattr(f, "__wrapped__", f) for f in (task_topic.written, task_topic.plan))
root, budget = Path(sys.argv[1]), int(sys.argv[2])
try:
    task_topic.report_of(written(), replace(plan(root), budget=budget))
except StoreError as error:
    print(error)
print("left:", *sorted(str(path) for path in root.rglob("*") if path.suffix in (".parquet", ".arrow")))
"""


def run_task(root: Path, small: str, kib: int) -> list[str]:
    """Let a task work with a full disk of so many KiB at `small`, in a namespace of its own: no root is needed."""
    (root / small).mkdir()
    command = [sys.executable, "-c", CARRY, str(root), "1000"]
    script = (
        f"mount -t tmpfs -o size={kib}k none {root / small} && head -c 4096 /dev/zero >{root / small}/other && "
        f'SPARK_LOCAL_DIRS={root / "scratch"} "$@"'
    )
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "-", *command],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("small", "other", "kib", "mend"),
    [("table", "scratch", 16, "The table is as it was: make room there"),
     ("dead", "scratch", 4, "The table is as it was: make room there"),
     ("scratch", "table", 16, "Tasks spill rows there: make room, set SPARK_LOCAL_DIRS to a larger disk")],
)  # fmt: skip
def test_a_task_tells_which_disk_is_full_and_takes_away_what_it_wrote(tmp_path, small, other, kib, mend):
    (tmp_path / other).mkdir()
    message, left = run_task(tmp_path, small, kib)
    assert message.startswith(f"cannot write {tmp_path / small}: No space left on device, "), message
    assert f" of {kib}.0 KiB are free. {mend}" in message
    assert left == "left:"


def test_of_a_place_that_has_room_nothing_is_told(tmp_path):
    assert disk_space.describe_full_disk({str(tmp_path / "none" / "there"): "Make room."}) == ""
    assert disk_space.describe_full_disk({"s3://bucket/place": "Make room."}) == ""
    assert disk_space.describe_full_disk({}) == ""
    assert disk_space.is_disk_full("java.io.IOException: No space left on device")
    assert disk_space.full_disk_error(str(tmp_path), "Object at location /x not found") is None
    assert disk_space.full_disk_error("s3://bucket/place", "No space left on device") is None


def test_other_errors_pass_as_they_are(tmp_path):
    for error in (OSError(errno.EACCES, "no"), StoreError("write", "x", "no", "Mend."), ValueError("no")):
        with pytest.raises(type(error)) as raised, disk_space.name_full_disk({str(tmp_path): "Make room."}):
            raise error
        assert raised.value is error
    with pytest.raises(OSError, match="no") as raised, disk_space.name_full_disk({"s3://bucket/place": "Make room."}):
        raise OSError(errno.ENOSPC, "no")
    assert not isinstance(raised.value, StoreError)
