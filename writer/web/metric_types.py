"""The type of a metric in the catalogue, and how its values are read from a pipeline."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from writer.status.lag_sample import Lag
from writer.status.model import View

PARTITION = ("pipeline", "topic", "partition")
Value = tuple[tuple[str, ...], float]  # values of the labels after the pipeline, and the number


@dataclass(frozen=True)
class Reading:
    """One pipeline at the moment of a scrape."""

    view: View
    lags: list[Lag]
    now: datetime

    def since(self, at: datetime | None) -> list[Value]:
        """Seconds since then, below zero when it is still to come; nothing when it is not known."""
        return [] if at is None else [((), (self.now - at).total_seconds())]

    def age(self, at: datetime | None) -> list[Value]:
        """Seconds since then; nothing when it never was."""
        return [] if at is None else [((), max(0.0, (self.now - at).total_seconds()))]


@dataclass(frozen=True)
class Metric:
    """One entry of the catalogue. `read` gives its values for one pipeline; None for the histogram of batches."""

    name: str
    help: str
    read: Callable[[Reading], Iterable[Value]] | None
    labels: tuple[str, ...] = ("pipeline",)

    @property
    def kind(self) -> Literal["gauge", "counter", "histogram"]:
        """Prometheus' type: the name of a counter, and only that, ends in `_total`."""
        if self.read is None:
            return "histogram"
        return "counter" if self.name.endswith("_total") else "gauge"


def plain(read: Callable[[Reading], float | None]) -> Callable[[Reading], list[Value]]:
    """Read one number of a pipeline; None: it has none."""
    return lambda reading: [((), value)] if (value := read(reading)) is not None else []


def by_partition(read: Callable[[Lag], float | None]) -> Callable[[Reading], list[Value]]:
    """Read one number of each partition; None: it has none."""

    def values(reading: Reading) -> list[Value]:
        found = ((lag, read(lag)) for lag in reading.lags)
        return [((lag.topic, str(lag.partition)), value) for lag, value in found if value is not None]

    return values


def named(
    read: Callable[[Reading], Mapping[str, float]], always: tuple[str, ...] = ()
) -> Callable[[Reading], list[Value]]:
    """Read one value for each name; those of `always` are there from the beginning, so that a rate can be taken."""
    return lambda reading: [((name,), value) for name, value in {**dict.fromkeys(always, 0), **read(reading)}.items()]
