"""A disk that is full or read-only for a moment: whoever meets it waits, and goes on by itself.

Each test mounts a disk of its own, in a namespace of its own: no root is needed.
"""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, strategies as st

from recovery.escalation.diagnosis import judged
from recovery.escalation.levels import RecoveryLevel
from tests.looking import config
from writer.core.errors import ConfigError, ExitCode, FileUnavailable, file_error, may_pass
from writer.driver.restart_policy import causes
from writer.storage.probe import StoreSilent

ROOT = Path(__file__).parents[2]
PASSING = [
    errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ENOTCONN, errno.EMFILE,
    errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EBUSY, errno.ENOLCK, errno.ECONNABORTED, errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
]  # fmt: skip
LASTING = [errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.EPERM]
MOMENTS = {
    "full": ("head -c 1G /dev/zero >$DISK/other 2>/dev/null", "rm $DISK/other"),
    "read-only": ("mount -o remount,ro $DISK", "mount -o remount,rw $DISK"),
}


@given(st.sampled_from(PASSING + LASTING))
def test_of_a_file_only_what_may_pass_is_no_fault_of_the_configuration(number: int) -> None:
    error = OSError(number, os.strerror(number))
    found = file_error("the file", error)
    assert may_pass(error) == isinstance(found, FileUnavailable) == (number in PASSING)
    assert isinstance(found, ConfigError) == (number in LASTING)
    verdict = judged(found.exit_code, causes(found))
    assert (verdict.halt, verdict.level) == ((False, RecoveryLevel.WAIT) if number in PASSING else (True, None))
    assert may_pass(OSError(f"in a library: {os.strerror(number)} (os error {number})")) == (number in PASSING)


def on_a_disk(folder: Path, moment: str, *command: str, **variables: str) -> list[str]:
    """Run a command with a disk of 1 MiB at `folder`/disk that is full or read-only. Returns what it said.

    `mend` and `spoil` in the command's PATH end the moment, and begin it again.
    """
    disk = folder / "disk"
    disk.mkdir()
    begin, end = MOMENTS[moment]
    tools = folder / "tools"
    tools.mkdir()
    for name, script in (("spoil", begin), ("mend", end)):
        (tools / name).write_text(f"#!/bin/sh\n{script}\ntrue\n")
        (tools / name).chmod(0o755)
    script = 'mount -t tmpfs -o size=1m none "$DISK" && mkdir "$DISK/tmp" && spoil && exec "$@"'
    environment = {**os.environ, "DISK": str(disk), "PATH": f"{tools}:{os.environ['PATH']}", **variables}
    done = subprocess.run(
        ["unshare", "--map-root-user", "--mount", "sh", "-c", script, "-", *command],
        capture_output=True, text=True, timeout=400, check=False, env=environment, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return [*done.stdout.splitlines(), *done.stderr.splitlines()]


START = """
import json, subprocess, sys
from pathlib import Path
import pyarrow as pa
from tests.looking import config
from writer.core.errors import exit_code
from writer.driver.pipeline_start import probe_places
from writer.table import locations
from writer.table.factory import main_table
from writer.config.table_sections import layout

settings = config(Path(sys.argv[1]))
pipeline = settings.pipelines["clicks"]

def create():
    columns = pa.schema([("id", pa.int64()), ("hour", pa.string())])
    main_table("clicks", settings).create(columns, ["hour"], layout(pipeline.bucket))

for step in (lambda: locations.check("clicks", settings), lambda: probe_places("clicks", settings), create):
    try:
        step()
        said = None
    except Exception as error:
        said = [type(error).__name__, int(exit_code(error))]
    print(json.dumps(said))
    if said is not None:
        subprocess.run(["mend"], check=True)
        step()
        subprocess.run(["spoil"], check=True)
"""


@pytest.mark.parametrize("moment", MOMENTS)
def test_each_check_of_a_start_says_that_it_may_pass_and_works_afterwards(tmp_path: Path, moment: str) -> None:
    said = on_a_disk(tmp_path, moment, sys.executable, "-c", START, str(tmp_path / "disk"))
    looked, probed, created = [json.loads(line) for line in said[:3]]
    assert looked is None, "it only reads"
    assert probed == [StoreSilent.__name__, ExitCode.CRASH]
    assert created == ["CommitFailed", ExitCode.CRASH]


# A driver that does what a start does with disks, and ends well once that works.
DRIVER = """
import sys
from pathlib import Path
from tests.looking import config
from writer.core.errors import exit_code
from writer.driver import supervisor_channel
from writer.driver.pipeline_start import probe_places
from writer.status.progress import Progress

link = supervisor_channel.folder()
link.begin()
failure = None
try:
    probe_places("clicks", config(Path(sys.argv[1])))
except Exception as error:
    failure = error
progress = Progress("clicks")
link.report(progress.view(), failure)
sys.exit(int(exit_code(failure)))
"""
# The preflight asks Kafka, which is not there: it is left out.
SUPERVISE = """
import subprocess, sys, threading
from pathlib import Path
from recovery.lease.factory import leases_of
from recovery.lease.holder import LeaseHolder
from recovery.supervisor.driver_process import place
from recovery.supervisor.pipeline_state import SupervisedPipeline
from recovery.supervisor.recovery_actions import actions
from recovery.supervisor.settings import store
from recovery.supervisor.supervisor import Supervisor
from writer.clients import notifications
from writer.config.loader import load
from writer.core import logging

logging.set_up()
seconds, settings, program, disk = float(sys.argv[1]), *map(Path, sys.argv[2:])
config = load(settings)
threading.Timer(seconds, subprocess.run, [["mend"]]).start()
held = LeaseHolder({"clicks": leases_of(config, "clicks", store(config, "clicks"))}, "this one")
with place() as folder:
    supervisor = Supervisor(
        config, {"clicks": SupervisedPipeline("clicks")}, lambda: [sys.executable, str(program), str(disk)],
        folder=folder, held=held, notifier=notifications.open_notifier(config.notifications), actions=actions(config),
        stop=threading.Event(), before=lambda *_: None,
    )
    code = supervisor.run()
held.close()
print("exit code", int(code))
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seconds", [10, 120])
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("place", ["table", "table, checkpoints and channel"])
def test_a_supervisor_goes_on_by_itself_when_the_disk_does(
    tmp_path: Path, place: str, moment: str, seconds: int
) -> None:
    disk = tmp_path / "disk"
    settings = config(disk, sections=None if "channel" in place else {"checkpoints": str(tmp_path / "checkpoints")})
    written = json.loads(settings.model_dump_json(exclude_unset=True))
    written["supervisor"] = {"port": 0}
    (tmp_path / "headrace.yaml").write_text(yaml.safe_dump(written))
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "tmp").mkdir()
    scratch = disk / "tmp" if "channel" in place and moment == "full" else tmp_path / "tmp"
    said = on_a_disk(
        tmp_path, moment, sys.executable, "-c", SUPERVISE, str(seconds), str(tmp_path / "headrace.yaml"),
        str(tmp_path / "driver.py"), str(disk), TMPDIR=str(scratch), PYTHONPATH=str(ROOT),
    )  # fmt: skip
    assert said[0] == "exit code 0", "\n".join(said)
    text = "\n".join(said)
    met = ("lease_unreadable",) if "channel" in place else ("recovery_decided",)
    assert all(event in text for event in met), "it met the disk"
    assert "halt" not in text
