"""A demo that a test runs: what it says, and every process that it starts."""

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SUM = re.compile(
    r"([\d,]+) produced = ([\d,]+) rows \+ ([\d,]+) quarantined \+ ([\d,]+) dead letters "
    r"(?:\+ [\d,]+ taken by delete )?\+ ([\d,]+) lost, ([\d,]+) twice"
)
PRODUCED = re.compile(r"([\d,]+) produced: ([\d,]+) delayed, ([\d,]+) from the future, ([\d,]+) broken")


@dataclass
class Demo:
    """A running demo whose processes carry a tag in their environment, and whose temporary files lie in one place."""

    process: subprocess.Popen[bytes]
    tag: str
    out: Path
    temporary: Path

    def output(self) -> str:
        return self.out.read_text()

    def until(self, words: str, seconds: float = 240, of: Callable[[], str] | None = None) -> None:
        """Wait until the demo, or the text of `of`, says the words."""
        deadline, text = time.monotonic() + seconds, of or self.output
        while words not in text():
            assert self.process.poll() is None, f"the demo ended before it said {words!r}:\n{self.output()}"
            assert time.monotonic() < deadline, f"not within {seconds} s: {words!r}\n{self.output()}"
            time.sleep(0.02)

    def alive(self) -> dict[int, str]:
        """Every process with the tag, the demo too."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                if self.tag.encode() in (place / "environ").read_bytes():  # empty for one that has ended
                    found[int(place.name)] = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:150]
            except OSError:
                continue
        return found

    def nothing_alive(self, within: float) -> None:
        deadline = time.monotonic() + within
        while (left := self.alive()) and time.monotonic() < deadline:
            time.sleep(0.1)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert not left, f"left running: {left}\n{self.output()}"


@contextmanager
def run_demos(directory: Path) -> Iterator[Callable[..., Demo]]:
    """Let the block start demos with flags and variables; none of their processes outlives it."""
    running: list[Demo] = []

    def start(*flags: str, **env: str) -> Demo:
        tag = uuid.uuid4().hex
        temporary = directory / f"tmp-{tag}"
        temporary.mkdir()
        out = directory / f"{tag}.txt"
        with out.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.writer.cli", "demo", *flags],
                stdout=file, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env={**os.environ, "HEADRACE_DEMO_TAG": tag, "TMPDIR": str(temporary), "COLUMNS": "100", **env},
            )  # fmt: skip
        running.append(Demo(process, tag, out, temporary))
        return running[-1]

    yield start
    for demo in running:
        demo.process.kill()
        demo.process.wait()
        demo.nothing_alive(within=60)


def numbers(texts: Sequence[str]) -> list[int]:
    """Return the numbers of texts, without the commas of thousands."""
    return [int(text.replace(",", "")) for text in texts]
