"""Where a process may be made to die on purpose. Silent unless HEADRACE_FAULT names a point.

`HEADRACE_FAULT=after_commit:3` kills the process with SIGKILL the third time it passes the point `after_commit`. The
crash tests use it; the points are the moments between two durable effects.
"""

import os
import signal
from collections import Counter

_passed: Counter[str] = Counter()


def point(name: str) -> None:
    """Die here if asked to."""
    wanted = os.environ.get("HEADRACE_FAULT", "")
    if not wanted:
        return
    _passed[name] += 1
    if wanted == f"{name}:{_passed[name]}":
        os.kill(os.getpid(), signal.SIGKILL)
