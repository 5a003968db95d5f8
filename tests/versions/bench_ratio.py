"""Prints how many of the limit's events headrace carries in a processor second, with what is installed here."""

import json
import sys

from rich.console import Console

from headrace.bench import show
from headrace.bench.contenders.contenders import CONTENDERS
from headrace.bench.data.dataset import dataset
from headrace.bench.figures import ratio
from headrace.bench.rounds import BenchDirectory, Setting, play
from headrace.writer.demo.devstack.workspace import Interruption

# With fewer events the JVM compiles during most of a run.
_EVENTS = 3_000_000


def main() -> int:
    """Measure both in turn, and print the ratio as JSON. Returns the exit code."""
    interruption = Interruption()
    headrace = CONTENDERS["a"]
    limit = CONTENDERS["d"]
    setting = Setting([dataset("200B")], _EVENTS, [headrace, limit], 1)
    with show.Screen(Console(stderr=True)) as screen:
        runs = play(setting, BenchDirectory(None), screen, interruption)
    if runs is None:
        return interruption.exit_code
    print(json.dumps({"ratio": ratio(runs, headrace.name, limit.name).median}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
