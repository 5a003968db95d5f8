"""The disk of a supervisor and its driver is full or read-only for a moment: real processes, without Spark.

Each test mounts a disk of its own, in a namespace of its own: no root is needed.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support.sample_records import config
from tests.support.small_disk import on_a_disk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]

# Lets the disk fail once the driver has committed a batch, and mends it; then judges the table, which lies on it.
PLAY = """
import json, subprocess, sys, threading, time
from dataclasses import asdict
from pathlib import Path
from tests.support import oracle
from tests.support.fixed_log_writer import carry, judge

seconds, disk, journal, supervisor = float(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4:]
lake = disk / "lake" / "clicks"

def fail_for_a_moment():
    while not journal.exists() or all(json.loads(line)[2] < 0 for line in journal.read_text().splitlines()):
        time.sleep(0.02)
    subprocess.run(["spoil"], check=True)
    time.sleep(seconds)
    oracle.check_rows(lake, "clicks")
    subprocess.run(["mend"], check=True)

moment = threading.Thread(target=fail_for_a_moment)
moment.start()
code = subprocess.run(supervisor).returncode
moment.join()
judge(carry(disk, str(lake), "delta"), lake)
print(json.dumps(asdict(oracle.tally)))
sys.exit(code)
"""


@pytest.mark.parametrize("seconds", [10, 120])
@pytest.mark.parametrize(
    ("moment", "place"),
    [
        ("full", "table"),
        ("full", "table, checkpoints and channel"),
        ("read-only", "table"),
        # What a process holds open for writing, as the channel's lock, keeps a disk from becoming read-only by command.
        ("read-only", "table and checkpoints"),
    ],
)
def test_a_supervisor_goes_on_by_itself_when_the_disk_does(
    tmp_path: Path, moment: str, place: str, seconds: int, record: Callable[..., None]
) -> None:
    disk, journal = tmp_path / "disk", tmp_path / "journal"
    has_channel, has_checkpoints = "channel" in place, "checkpoints" in place
    settings = config(disk, sections=None if has_checkpoints else {"checkpoints": str(tmp_path / "checkpoints")})
    written = json.loads(settings.model_dump_json(exclude_unset=True))
    written["supervisor"] = {"port": 0}
    (tmp_path / "headrace.yaml").write_text(yaml.safe_dump(written))
    (tmp_path / "tmp").mkdir()
    scratch = disk / "tmp" if has_channel else tmp_path / "tmp"
    driver = [sys.executable, "-m", "tests.support.supervised_writer", str(disk), "delta", str(journal), "2"]
    supervisor = [
        sys.executable, "-m", "tests.support.writer_supervisor", str(tmp_path / "headrace.yaml"), "this one", *driver,
    ]  # fmt: skip
    output = on_a_disk(
        tmp_path, moment, sys.executable, "-c", PLAY, str(seconds), str(disk), str(journal), *supervisor, mib=4,
        begin=False, TMPDIR=str(scratch), PYTHONPATH=str(ROOT),
    )  # fmt: skip
    text = "\n".join(output)
    assert "exit code 0" in output, text
    assert "recovery_decided" in text, "the driver met the disk"
    assert "halt" not in text
    if has_checkpoints:
        assert "lease_renewal_failed" in text, "the supervisor met it"
    tally = json.loads(next(line for line in output if line.startswith("{")))
    starts = text.count("driver_started")
    record(
        fault=f"the disk is {moment} for a moment", moment=f"{seconds} s, under the supervisor: {place}",
        on="in-process, Delta, local", times=1, seen_twice=tally["seen_twice"], records=tally["records"],
        lost=tally["lost"], twice=tally["twice"], ended=f"went on 1, after {starts} starts",
    )  # fmt: skip
