"""Which versions of Spark, Java and Python are run together, and why."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date

# Of the source archives on the package index.
SPARK_HASHES = {
    "4.0.2": "938b4a1883383374d331ebfcb5d92debfa1891cf3d7a6d730520a1a2d23f1a90",
    "4.0.5": "a0d44b0e7faf0458ad83b7aa664e7ed8b96beed8a55d66ce3b0dfac2309dfca6",
    "4.1.4": "bcbd5e18690cf79d438e97210ad06fb8d451a251bb77becc2b0418868d2acd73",
    "4.2.1": "d79b7c8ee41e66a9202fe6f600ca90b931ca571ae9dbdf31c58d2672e5102da0",
}
LOCKED = "4.0.2"


@dataclass(frozen=True)
class Combination:
    """Versions that run together. `java`: its feature number; `python`: as in `python3.11`."""

    name: str
    spark: str
    java: int
    python: str
    reason: str


# Not the full product: each version of each part once, newest with newest, and what is locked.
COMBINATIONS = (
    Combination("locked", LOCKED, 17, "3.11", "what `make setup` installs"),
    Combination("patch", "4.0.5", 21, "3.11", "the newest patch of the oldest Spark, on the middle Java"),
    Combination("middle", "4.1.4", 17, "3.12", "the Spark between, and the Python between"),
    Combination("spark", "4.2.1", 17, "3.11", "the newest Spark alone: what fails here is Spark's"),
    Combination("newest", "4.2.1", 25, "3.13", "the newest of everything"),
)


def choose_by_name(names: Sequence[str]) -> list[Combination]:
    """Return the combinations with these names; all without a name. Raises ValueError for a name that is none."""
    combinations = {combination.name: combination for combination in COMBINATIONS}
    unknown_names = [name for name in names if name not in combinations]
    if unknown_names:
        raise ValueError(f"{unknown_names[0]!r} is no combination; there are {', '.join(combinations)}")
    return [combinations[name] for name in names] or list(COMBINATIONS)


def choose_by_day(day: date) -> Combination:
    """Return the combination whose turn a day is: each that is not locked, one after the other."""
    others = [combination for combination in COMBINATIONS if combination.spark != LOCKED]
    return others[day.toordinal() % len(others)]
