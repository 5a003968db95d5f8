"""A driver without Spark and Kafka that a supervisor starts: it carries a fixed log, a batch after the other.

python -m tests.support.supervised_writer ROOT FORMAT JOURNAL SECONDS [fail]: a batch takes so many seconds. JOURNAL
gets a line for each sign of its life: process id, lease, table version, and the monotonic time, which all processes of
a machine share. `fail`: at its first start its storage fails after one batch.
"""

import errno
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.writer.core.errors import exit_code
from headrace.writer.driver import supervisor_channel
from headrace.writer.driver.start.pipeline_start import probe_locations
from headrace.writer.status.progress import Progress
from tests.support.fixed_log_writer import END, INTERVAL, PARTS, STEP, values
from tests.support.local_driver import Driver, log

SIGN_S = 0.1


def carry(root: Path, form: str, sign: Callable[[int], None], seconds: float, *, fails: bool) -> None:
    """Carry what the table does not have, with a sign of life every SIGN_S."""
    driver = Driver(root, form, interval=INTERVAL)
    probe_locations("clicks", driver.config)
    driver.start(PARTS)
    for end in range(STEP, END + 1, STEP):
        batches = [log(values(end - STEP, end), partition) for partition in range(PARTS)]
        version = driver.carry(batches, dict.fromkeys(range(PARTS), end))
        sign(-1 if version is None else version)
        until_s = time.monotonic() + seconds
        while version is not None and time.monotonic() < until_s:
            time.sleep(SIGN_S)
            sign(-1)
        if fails:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def main(root: Path, form: str, journal: Path, seconds: float, fail: str = "") -> int:
    """Carry the log to its end as a supervisor orders it. Returns the exit code."""
    link = supervisor_channel.folder()
    assert link is not None, "a supervisor starts it"
    link.begin()
    lease = link.orders().of("clicks").lease
    fails = bool(fail) and not journal.exists()

    def sign(version: int) -> None:
        link.beat()
        with journal.open("a") as out:
            print(json.dumps([os.getpid(), lease, version, time.monotonic()]), file=out)

    failure = None
    try:
        sign(-1)
        carry(root, form, sign, seconds, fails=fails)
    except Exception as error:  # noqa: BLE001 - the supervisor is to judge it
        failure = error
    link.report(Progress("clicks").view(), failure)
    return int(exit_code(failure))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), float(sys.argv[4]), *sys.argv[5:]))
