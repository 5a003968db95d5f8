"""A wall clock for processes that a test steps."""

import shutil
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

COMPILER = shutil.which("cc")


class SteppingClock:
    """A wall clock for processes, apart from this one's. Their monotonic clock stays as it is."""

    def __init__(self, folder: Path) -> None:
        self._offset = folder / "offset"
        self._library = folder / "stepping_clock.so"
        self.step(0)
        source = Path(__file__).parents[1] / "stepping_clock.c"
        subprocess.run([str(COMPILER), "-shared", "-fPIC", "-O1", "-o", self._library, source], check=True)

    def step(self, seconds: int) -> None:
        """Put the clock ahead of the true one; below 0: behind."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("=q", seconds))

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables of a process that goes by it, and of all that it starts."""
        return {"LD_PRELOAD": str(self._library), "STEPPING_CLOCK": str(self._offset)}
