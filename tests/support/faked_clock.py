"""A wall clock of its own for processes that a test starts, by libfaketime. The monotonic clock stays the machine's.

Debian's package `libfaketime` has it. Without it such a test is skipped, and says so.
"""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

import pytest

SECOND, MINUTE, HOUR, DAY = (timedelta(**{unit: 1}) for unit in ("seconds", "minutes", "hours", "days"))
STEPS = [sign * size for size in (SECOND, 2 * MINUTE, HOUR, DAY) for sign in (1, -1)]
_SIZES = {SECOND: "a second", 2 * MINUTE: "two minutes", HOUR: "an hour", DAY: "a day"}
_ROOT = Path(__file__).parents[2]
_SLEEP = _ROOT / "tests" / "fixtures" / "faked_clock"
_LIBRARY = next(Path("/usr").glob("lib*/**/faketime/libfaketimeMT.so.1"), None)

needs_faked_clock = pytest.mark.skipif(
    _LIBRARY is None, reason="NOT RUN: another wall clock for processes, for want of libfaketime (apt install faketime)"
)


def words(step: timedelta) -> str:
    """Say a step as the report names the fault."""
    return f"the clock steps {'back' if step < timedelta(0) else 'forth'} by {_SIZES[abs(step)]}"


class FakedClock:
    """The wall clock of the processes that have `environment`."""

    def __init__(self, file: Path) -> None:
        """`file`: says by how much their clock differs, and is read each time that they look at it."""
        self.file = file
        self.show(timedelta(0))

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables of a process that is to have this clock; its children have it too."""
        return {
            "LD_PRELOAD": str(_LIBRARY),
            "FAKETIME_TIMESTAMP_FILE": str(self.file),
            "FAKETIME_NO_CACHE": "1",
            "DONT_FAKE_MONOTONIC": "1",
            "NO_FAKE_STAT": "1",
            "PYTHONPATH": f"{_SLEEP}:{_ROOT}",
        }

    def show(self, difference: timedelta) -> None:
        """Let it differ by so much from the machine's clock from now on."""
        draft = self.file.with_suffix(".draft")
        draft.write_text(f"{difference.total_seconds():+.3f}")
        draft.replace(self.file)
