"""The type of a metric in a catalogue, and how its values are read from a pipeline."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Generic, Literal, TypeVar

from headrace.writer.status.lag_sample import Lag
from headrace.writer.status.model import View

PARTITION = ("pipeline", "topic", "partition")
# What a number counts or measures; "1" is of a flag, a number of a name, or a sign.
Unit = Literal[
    "1",
    "seconds",
    "bytes",
    "records",
    "records/second",
    "bytes/second",
    "rows",
    "offsets",
    "offsets/second",
    "files",
    "buckets",
    "tables",
    "topics",
    "schemas",
    "gaps",
    "entries",
    "commits",
    "deliveries",
    "names",
    "keys",
    "steps",
    "starts",
    "leases",
    "executors",
    "tasks",
    "changes",
    "ticks",
    "members",
    "requests",
]
# Prometheus' base units: a name that has one of them ends in it.
BASE_UNITS = ("seconds", "bytes")
# The values of the labels, and the number.
Value = tuple[tuple[str, ...], float]
# What a metric is read from: a pipeline of a driver or a supervisor, or an autoscaler.
Source = TypeVar("Source")


class Window(Enum):
    """The moment or the span of time that a figure is of: a phrase, and the sentence that explains it."""

    NOW = ("now", "As it is when Prometheus asks.")
    BATCH = ("while the batch runs", "Of the batch that the driver carries now.")
    LAST_COMMIT = ("last commit", "Of the newest commit; it stays until the next.")
    LAST_START = ("last start", "As the newest start of the pipeline set it; it stays until the next.")
    LAST_LOOK_AT_KAFKA = (
        "last look at Kafka",
        "By Kafka's last answer (`kafka.lag_interval`). `headrace_lag_source_age_seconds` is its age.",
    )
    LAST_LOOK_AT_TABLE = (
        "last look at the table",
        "Whoever wrote it. The driver looks after commits and every half minute, at a large table with pauses.",
    )
    LAST_LOOK_AT_BUCKETS = (
        "last look at the buckets",
        "The driver looks after commits and every five seconds; `seals.at` of `/status` says when.",
    )
    LAST_LOOK_AT_FILE = ("last look at the file", "As the configuration file was last read.")
    LAST_RECOVERY = ("last recovery", "Of the newest recovery of its kind, also of an earlier supervisor.")
    LAST_TICK = ("last tick", "Of the autoscaler's newest look at the driver (`interval` of its policy).")
    SINCE_DRIVER = (
        "since the driver's start",
        "Counts from 0, when the driver began with the pipeline. A start inside the driver does not end it.",
    )
    SINCE_PROCESS = (
        "since the process's start",
        "Counts from 0 with each start of the driver's process, for all of its pipelines together.",
    )
    SINCE_LAST_START = (
        "since the pipeline's last start",
        "Counts from 0 with each start of the pipeline, by a new driver or inside one.",
    )
    SINCE_SUPERVISOR = ("since the supervisor's start", "Counts from 0 with each start of the supervisor.")
    SINCE_AUTOSCALER = ("since the autoscaler's start", "Counts from 0 with each start of the autoscaler.")
    TABLE_LIFE = (
        "over the table's life",
        "Counts from the first start of the table, whoever did it. No restart ends it.",
    )

    def __init__(self, phrase: str, sentence: str) -> None:
        self.phrase = phrase
        self.sentence = sentence

    @property
    def is_span(self) -> bool:
        """Whether the figure grows over a span of time, and is not of a moment."""
        return self.phrase.startswith(("since", "over"))


@dataclass(frozen=True)
class Reading:
    """One pipeline at the moment of a scrape."""

    view: View
    lags: list[Lag]
    now: datetime

    def since(self, time: datetime | None) -> list[Value]:
        """Return the seconds since a time, below zero if it is still to come; nothing without a time."""
        if time is None:
            return []
        return [((), (self.now - time).total_seconds())]

    def age(self, time: datetime | None) -> list[Value]:
        """Return the seconds since a time, zero at least; nothing without a time."""
        return [(labels, max(0.0, seconds)) for labels, seconds in self.since(time)]


@dataclass(frozen=True)
class Metric(Generic[Source]):
    """One entry of the catalogue of a driver, a supervisor or an autoscaler.

    `read` gives its values; None for the histogram of batches. Those of a pipeline have no label `pipeline` yet.
    """

    name: str
    # What it is, in sentences; also why it may have no value.
    definition: str
    unit: Unit
    window: Window
    read: Callable[[Source], Iterable[Value]] | None
    labels: tuple[str, ...] = ("pipeline",)

    @property
    def kind(self) -> Literal["gauge", "counter", "histogram"]:
        """Prometheus' type: the name of a counter, and only that, ends in `_total`."""
        if self.read is None:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"

    @property
    def help(self) -> str:
        """The text beside a scrape's values: the definition with its unit and window."""
        return f"{self.definition} [{self.unit}, {self.window.phrase}]"

    @property
    def base_unit(self) -> str:
        """The unit as OpenMetrics names it; empty where the name does not end in a base unit."""
        base_name = self.name.removesuffix("_total")
        return next((unit for unit in BASE_UNITS if base_name.endswith(f"_{unit}")), "")


def plain(read: Callable[[Reading], float | None]) -> Callable[[Reading], list[Value]]:
    """Read one number of a pipeline; None: it has none."""

    def values(reading: Reading) -> list[Value]:
        value = read(reading)
        return [] if value is None else [((), value)]

    return values


def by_partition(read: Callable[[Lag], float | None]) -> Callable[[Reading], list[Value]]:
    """Read one number of each partition; None: it has none."""

    def values(reading: Reading) -> list[Value]:
        numbers = ((lag, read(lag)) for lag in reading.lags)
        return [((lag.topic, str(lag.partition)), value) for lag, value in numbers if value is not None]

    return values


def by_name(
    read: Callable[[Reading], Mapping[str, float]], always: tuple[str, ...] = ()
) -> Callable[[Reading], list[Value]]:
    """Read one value for each name. Those of `always` have a value from the start, so that a rate can be taken."""
    return lambda reading: [((name,), value) for name, value in {**dict.fromkeys(always, 0), **read(reading)}.items()]
