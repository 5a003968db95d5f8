"""Points at which a test makes a process die, wait, or see its disk fail.

Silent unless the environment asks: HEADRACE_FAULT names a point.

`HEADRACE_FAULT=after_commit:3` kills the process with SIGKILL the third time it passes the point `after_commit`;
`HEADRACE_FAULT=before_stage:2:/path` makes it write `/path` the second time it passes, and wait until that is gone;
`before_stage@clicks:2:/path` does so the second time that the pipeline `clicks` passes. Commas separate several. The
crash tests use it; the points are the moments between two durable effects, and in a task the end of each step's work
on a piece (`in_decode`). `before_stage` is after the look at the ids of the topics, and before the tasks' consumers ask
for their first position.

`HEADRACE_TROUBLE=/path`: while that file is there, operations of local storage fail and are slow, as its two numbers
say: the share that fails, half of them after they took effect, and the seconds that one takes at the most.
"""

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Literal

_passed: Counter[str] = Counter()
_LOOK_S = 0.05


def point(name: str, pipeline: str = "") -> None:
    """Die, or wait, here if asked to."""
    faults = os.environ.get("HEADRACE_FAULT", "")
    if not faults:
        return
    names = {name, f"{name}@{pipeline}"}
    _passed.update(names)
    passages = {f"{passed_name}:{_passed[passed_name]}" for passed_name in names}
    for fault in faults.split(","):
        passage = fault
        flag = ""
        if fault.count(":") > 1:
            passage, _, flag = fault.rpartition(":")
        if passage in passages:
            _strike(flag)


def _strike(flag: str) -> None:
    """Die; with a flag, write it and wait until it is gone."""
    if not flag:
        os.kill(os.getpid(), signal.SIGKILL)
    Path(flag).touch()
    while Path(flag).exists():
        time.sleep(_LOOK_S)


def trouble() -> Literal["before", "after"] | None:
    """Wait as long as an operation of storage shall take. Returns when it shall fail, if it shall."""
    flag = os.environ.get("HEADRACE_TROUBLE", "")
    if not flag:
        return None
    # The file may be gone, or just being written.
    with suppress(OSError, ValueError):
        share, seconds = (float(number) for number in Path(flag).read_text().split())
        time.sleep(random.uniform(0, seconds))  # noqa: S311 - no secret
        if random.random() < share:  # noqa: S311
            return random.choice(("before", "after"))  # noqa: S311
    return None
