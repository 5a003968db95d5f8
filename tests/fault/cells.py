"""What the fault suite found: a fault at a moment, and what a reader saw before and after the restart.

The cells of a run are written to the file that HEADRACE_FAULTS names; docs/FAULTS.md is made of the committed one.
"""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.fault.seen import alone

COMMITTED = Path(__file__).with_name("outcomes.json")
FORMATS = {"delta": "Delta", "parquet": "Parquet"}  # table.format → as the page says it


@dataclass(frozen=True)
class Cell:
    """One row of the table."""

    fault: str
    moment: str
    on: str  # how it was run
    test: str
    times: int
    seen_twice: int  # by readers before the restart: twice, or above the frontier
    records: int  # that are accounted for at the end, over all times
    lost: int
    twice: int
    ended: str = ""  # how, where it was counted


@dataclass
class Tally:
    """Verdicts of the oracle, summed up as they come."""

    looks: int = 0  # before the restart
    seen_twice: int = 0
    checks: int = 0
    records: int = 0
    lost: int = 0
    twice: int = 0

    def copy(self) -> "Tally":
        """Return it as it is now."""
        return Tally(**asdict(self))

    def plus(self, other: "Tally") -> "Tally":
        """Add two."""
        return Tally(**{name: value + getattr(other, name) for name, value in asdict(self).items()})

    def since(self, before: "Tally") -> "Tally":
        """Return what came after `before`."""
        return Tally(**{name: value - getattr(before, name) for name, value in asdict(self).items()})


def ended(ways: Counter[str]) -> str:
    """Say how often it ended in which way."""
    return ", ".join(f"{way} {times}" for way, times in sorted(ways.items()))


def read(path: Path) -> list[Cell]:
    """Read what `merge` wrote."""
    return [Cell(**raw) for raw in json.loads(path.read_text(encoding="utf-8"))] if path.exists() else []


def merge(path: Path, found: Cell) -> None:
    """Put a cell in the place of the one that said the same before. Other processes may do so at the same time."""
    with alone(path):
        kept = [*(cell for cell in read(path) if _key(cell) != _key(found)), found]
        kept.sort(key=_key)
        path.write_text(json.dumps([asdict(cell) for cell in kept], indent=1) + "\n", encoding="utf-8")


def _key(cell: Cell) -> tuple[str, ...]:
    return cell.test, cell.on, cell.fault, cell.moment
