"""How a hook is doing: for status, metrics, and whoever watches."""

from dataclasses import dataclass
from datetime import datetime

from writer.hooks.outbox import Box


@dataclass(frozen=True)
class Health:
    """A hook at one moment."""

    target: str
    delivered: int = 0  # by this process; without a driver: ever
    failures: int = 0  # attempts that failed, of this process
    waiting: int = 0  # deliveries
    oldest: datetime | None = None  # when the oldest of them was sealed
    error: str = ""  # of the last attempt, while anything waits


def read_from(box: Box, target: str) -> Health:
    """Return what an outbox says of its hook."""
    errors = [parcel.error for parcel in box.parcels if parcel.error]
    oldest = min((parcel.since for parcel in box.parcels), default=None)
    return Health(target, box.delivered, 0, len(box.parcels), oldest, errors[-1] if errors else "")
