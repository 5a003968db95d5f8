"""The trace of a simulated day: arrivals, and properties of executors that no policy knows."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from headrace.writer.core.errors import ConfigError

Purpose = Literal["tuned", "untuned", "held out", "recorded"]


@dataclass(frozen=True)
class HotPartition:
    """A partition that gets `factor` times its share for a while."""

    partition: int
    from_s: float
    until_s: float
    factor: float


@dataclass(frozen=True)
class Trace:
    """Arrivals by partition, outages, the pipeline's settings, and what executors are really like."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: str
    about: str
    # Seconds between two values of arriving_per_s.
    step_s: float
    # Records of all partitions.
    arriving_per_s: tuple[float, ...]
    partitions: int = 48
    # The share of the fullest partition over that of the emptiest; the others lie evenly between.
    share_max: float = 1.6
    hot: tuple[HotPartition, ...] = ()
    # Intervals of seconds in which no batch finishes; the second value is excluded.
    outages: tuple[tuple[float, float], ...] = ()
    trigger_s: float = 60.0
    delay_max_s: float = 60.0
    offsets_min: int = 1
    offsets_max: int = 60_000_000
    min_partitions: int = 0
    executors_first: int = 4
    max_executors: int = 24
    cores: int = 4
    # Records of one slot when it is alone.
    per_slot_per_s: float = 10_000.0
    # Each further slot costs every slot this share of its rate, by storage and network.
    contention: float = 0.002
    # Seconds of the driver for each batch.
    overhead_s: float = 4.0
    # Seconds of each task before its first row.
    task_s: float = 0.3
    # The median seconds that an executor takes to come.
    start_s: float = 60.0
    # A new executor carries half for so long: classes, compilation, Python workers, connections.
    warm_s: float = 60.0
    seed: int = 1
    purpose: Purpose = field(default="recorded")

    def __post_init__(self) -> None:
        """Refuse a world that cannot be. Raises ConfigError."""
        if len(self.arriving_per_s) * self.step_s < 3600:  # noqa: PLR2004 - an hour
            raise ConfigError(f"trace {self.name!r} is shorter than an hour: no policy can be judged by it")
        if min(self.arriving_per_s) < 0 or self.step_s <= 0:
            raise ConfigError(f"trace {self.name!r} has arrivals or steps below zero")
        if min(self.partitions, self.cores, self.executors_first, self.max_executors, self.offsets_max) < 1:
            raise ConfigError(f"trace {self.name!r} needs one partition, core, executor and record at least")

    @property
    def lasts_s(self) -> float:
        """Seconds of the whole trace."""
        return len(self.arriving_per_s) * self.step_s


def read(path: Path) -> Trace:
    """Read a recorded trace: a JSON object with the fields of Trace. Raises ConfigError."""
    try:
        return TypeAdapter(Trace).validate_json(path.read_bytes())
    except FileNotFoundError as error:
        raise ConfigError(f"--trace {path} is neither a file nor a trace that is known") from error
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, e['loc'])) or 'file'}: {e['msg']}" for e in error.errors()[:3])
        raise ConfigError(
            f"--trace {path} is none: {problems}. Needed: name, about, step_s, arriving_per_s."
        ) from error


def write(trace: Trace, path: Path) -> None:
    """Write a trace, so that it can be changed and read again."""
    path.write_text(json.dumps(TypeAdapter(Trace).dump_python(trace, mode="json"), indent=1) + "\n", encoding="utf-8")
