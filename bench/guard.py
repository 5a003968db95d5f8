"""Guards the writer's speed: compares headrace with the limit of its design, and the ratio with a stored one.

Both run on the same machine in turn and their processor seconds are divided, so a slow or noisy machine slows both.

    python -m headrace.bench.guard             exit 1 when headrace lost more than 15 % against the kept ratio
    python -m headrace.bench.guard --record    keep what is found now, on a quiet machine
"""

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console

from headrace.bench import show
from headrace.bench.contenders.contenders import CONTENDERS
from headrace.bench.data.dataset import dataset
from headrace.bench.figures import BenchFailed, Spread, ratio
from headrace.bench.rounds import BenchDirectory, Setting, play
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.demo.devstack.workspace import Interruption

BASELINE = Path(__file__).with_name("baseline.json")
LOSS_MAX = 0.15
_DATA = "200B"
# With fewer events the JVM compiles during most of a run.
_EVENTS = 5_000_000
_REPEATS = 3
_CONTENDERS = [CONTENDERS["a"], CONTENDERS["d"]]
# A neighbour on the machine can spoil one try.
_TRIES = 2


@dataclass(frozen=True)
class Baseline:
    """What was kept: warm events of a processor second, headrace's by the limit's, and how they were taken."""

    data: str
    events: int
    repeats: int
    headrace_by_limit: Spread


def load(path: Path) -> Baseline:
    """Read the kept figure. Raises ConfigError."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return Baseline(**{**raw, "headrace_by_limit": Spread(**raw["headrace_by_limit"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"{path} is no baseline ({error}). Take one: python -m headrace.bench.guard --record"
        ) from error


def judge(ratios: Spread, baseline: Spread) -> str:
    """Compare measured ratios with those of the baseline. Raises BenchFailed when too much is lost."""
    change = ratios.median / baseline.median - 1
    sentence = (
        f"headrace carries {ratios.median:.3f} of the limit's events in a CPU-second "
        f"({ratios.least:.3f} to {ratios.most:.3f}); kept is {baseline.median:.3f}: {change:+.0%}"
    )
    if change < -LOSS_MAX:
        raise BenchFailed(
            f"{sentence}, more than {LOSS_MAX:.0%} is lost. `headrace bench --contenders a,d --profile` tells where."
        )
    return sentence


def main(*, record: bool) -> int:
    """Measure, and judge or keep. Returns the exit code."""
    console = Console(highlight=False)
    interruption = Interruption()
    if record:
        ratios = _measure(Setting([dataset(_DATA)], _EVENTS, _CONTENDERS, _REPEATS), console, interruption)
        if ratios is not None:
            document = asdict(Baseline(_DATA, _EVENTS, _REPEATS, ratios))
            BASELINE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            console.print(f"{BASELINE} keeps {ratios.median:.3f}", soft_wrap=True)
        return interruption.exit_code if ratios is None else 0
    baseline = load(BASELINE)
    setting = Setting([dataset(baseline.data)], baseline.events, _CONTENDERS, baseline.repeats)
    for tries_left in reversed(range(_TRIES)):
        ratios = _measure(setting, console, interruption)
        if ratios is None:
            return interruption.exit_code
        try:
            console.print(judge(ratios, baseline.headrace_by_limit), soft_wrap=True)
        except BenchFailed as error:
            if not tries_left:
                raise
            console.print(f"{error} Once more, to be sure.", soft_wrap=True)
        else:
            break
    return 0


def _measure(setting: Setting, console: Console, interruption: Interruption) -> Spread | None:
    """Return the ratio that is found, or None when a signal came."""
    with show.Screen(console) as screen:
        runs = play(setting, BenchDirectory(None), screen, interruption)
    console.print()
    if runs is None:
        return None
    headrace, limit = _CONTENDERS
    return ratio(runs, headrace.name, limit.name)


if __name__ == "__main__":
    try:
        sys.exit(main(record="--record" in sys.argv[1:]))
    except HeadraceError as error:
        print(f"bench: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
