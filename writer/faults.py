"""Where a process may be made to die, or to wait, on purpose. Silent unless HEADRACE_FAULT names a point.

`HEADRACE_FAULT=after_commit:3` kills the process with SIGKILL the third time it passes the point `after_commit`;
`HEADRACE_FAULT=before_stage:2:/path` makes it write `/path` the second time it passes, and wait until that is gone. The
crash tests use it; the points are the moments between two durable effects, and in a task the end of each room's work
on a piece (`in_decode`).
"""

import os
import signal
import time
from collections import Counter
from pathlib import Path

_passed: Counter[str] = Counter()
_LOOK_S = 0.05


def point(name: str) -> None:
    """Die, or wait, here if asked to."""
    wanted = os.environ.get("HEADRACE_FAULT", "")
    if not wanted:
        return
    _passed[name] += 1
    which, _, flag = wanted.rpartition(":") if wanted.count(":") > 1 else (wanted, "", "")
    if which != f"{name}:{_passed[name]}":
        return
    if not flag:
        os.kill(os.getpid(), signal.SIGKILL)
    Path(flag).touch()
    while Path(flag).exists():
        time.sleep(_LOOK_S)
