"""The type of a metric in a catalogue, and how its values are read from a pipeline."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, TypeVar

from writer.status.lag_sample import Lag
from writer.status.model import View

PARTITION = ("pipeline", "topic", "partition")
# The values of the labels, and the number.
Value = tuple[tuple[str, ...], float]
# What a metric is read from: a pipeline of a driver or a supervisor, or an autoscaler.
Source = TypeVar("Source")


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
    help: str
    read: Callable[[Source], Iterable[Value]] | None
    labels: tuple[str, ...] = ("pipeline",)

    @property
    def kind(self) -> Literal["gauge", "counter", "histogram"]:
        """Prometheus' type: the name of a counter, and only that, ends in `_total`."""
        if self.read is None:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


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
