"""What the fault suite counts: a fault at a moment, and what a reader saw before and after the restart."""

from collections import Counter
from dataclasses import asdict, dataclass

from tests.fault import outcomes

FORMATS = {"delta": "Delta", "parquet": "Parquet", "iceberg": "Iceberg"}  # table.format → as the page says it


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

    def put(self) -> None:
        """Write it where it is wanted."""
        outcomes.put("faults", f"{self.test} | {self.on} | {self.fault} | {self.moment}", asdict(self))


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


def describe_ends(ways: Counter[str]) -> str:
    """Say how often it ended in which way."""
    return ", ".join(f"{way} {times}" for way, times in sorted(ways.items()))
