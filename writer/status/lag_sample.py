"""One measurement of lag: the type that the driver measures and `/status` carries as `lag`."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from headrace.writer.core.text import iso

# Intervals without a sample: Kafka does not answer, or the thread that asks it hangs.
_STALE_AFTER = 3


@dataclass(frozen=True)
class Lag:
    """One partition's distance from the end of its log, and from the beginning that retention moves."""

    topic: str
    partition: int
    # Offsets that wait.
    offsets: int
    # How long the oldest of them has waited; None: it is not known.
    seconds: float | None
    # Between the log's first offset and the frontier; below zero: records are lost.
    headroom_offsets: int
    # Until retention takes the oldest that waits; None: no limit, or nothing waits.
    headroom_seconds: float | None
    # None: nothing was committed.
    frontier: int | None = None


@dataclass(frozen=True)
class AppendedOffsets:
    """Offsets by which the logs grew up to a moment, counted from the first such moment."""

    at: datetime
    offsets: int


@dataclass(frozen=True)
class LagSample:
    """Kafka's last answer about a pipeline's topics, minus the committed offsets."""

    # When Kafka answered; None: never.
    at: datetime | None = None
    # Between two samples.
    interval: timedelta = timedelta(seconds=15)
    partitions: tuple[Lag, ...] = ()
    # Oldest first.
    appended: tuple[AppendedOffsets, ...] = ()

    @property
    def offsets(self) -> int | None:
        """Offsets that wait; None where Kafka named no partition."""
        if not self.partitions:
            return None
        return sum(lag.offsets for lag in self.partitions)

    @property
    def seconds(self) -> float | None:
        """Seconds that the oldest record waits; None where one partition does not know it."""
        seconds = [lag.seconds for lag in self.partitions if lag.seconds is not None]
        if not seconds or len(seconds) < len(self.partitions):
            return None
        return max(seconds)

    @property
    def headroom_seconds(self) -> float | None:
        """Seconds until retention takes a record that waits; None: no limit, or nothing waits."""
        return min((lag.headroom_seconds for lag in self.partitions if lag.headroom_seconds is not None), default=None)

    def is_fresh(self, now: datetime) -> bool:
        """Return whether the sample is current: Kafka answered within three intervals."""
        return self.at is not None and now - self.at <= _STALE_AFTER * self.interval

    def arriving_per_s(self, over_s: float) -> float | None:
        """Offsets a second that came over the last so many seconds; None where nothing reaches that far back."""
        if not self.appended:
            return None
        last = self.appended[-1]
        earlier = [growth for growth in self.appended if growth.at <= last.at - timedelta(seconds=over_s)]
        if not earlier or over_s <= 0:
            return None
        return (last.offsets - earlier[-1].offsets) / (last.at - earlier[-1].at).total_seconds()

    def to_json(self, now: datetime) -> dict[str, Any]:
        """Return the JSON values of `lag` in `/status`.

        What waits is null if it is not known: Kafka has not answered for three intervals, or nobody has asked it. What
        retention leaves is not: it shrinks by itself.
        """
        is_fresh = self.is_fresh(now)
        worst = None
        if is_fresh and self.offsets:
            lag = max(self.partitions, key=lambda lag: (lag.seconds or 0.0, lag.offsets))
            if lag.offsets:
                worst = {"topic": lag.topic, "partition": lag.partition, "offsets": lag.offsets}
        age_s = None if self.at is None else max(0.0, (now - self.at).total_seconds())
        return {
            "offsets": self.offsets if is_fresh else None,
            "seconds": round_seconds(self.seconds) if is_fresh else None,
            "worst": worst,
            "at": None if self.at is None else iso(self.at),
            "source_age_seconds": round_seconds(age_s),
            "interval_seconds": self.interval.total_seconds(),
            "headroom_seconds": round_seconds(self.headroom_seconds),
            "partitions": [
                {name: round_seconds(value) for name, value in asdict(lag).items()} for lag in self.partitions
            ],
            "appended": [{"at": iso(growth.at), "offsets": growth.offsets} for growth in self.appended],
        }

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> "LagSample":
        """Read `lag` of `/status`. Without a time there is no answer: Kafka gave none."""
        if raw["at"] is None:
            return cls()
        return cls(
            datetime.fromisoformat(raw["at"]),
            timedelta(seconds=raw["interval_seconds"]),
            tuple(Lag(**lag) for lag in raw["partitions"]),
            tuple(
                AppendedOffsets(datetime.fromisoformat(growth["at"]), growth["offsets"]) for growth in raw["appended"]
            ),
        )


def round_seconds(value: Any) -> Any:
    """Write a number as `/status` does: with three decimals."""
    if isinstance(value, float):
        return round(value, 3)
    return value
