"""Which bucket a row belongs to. Pure: Arrow in, Arrow out; no clock, no sockets, no Spark.

What time a row has is decided before, by `bucketers.timestamps.event_time`.
"""

from bucketers.base import Bucketer, Buckets, TimeBucketer, interval
from bucketers.composite import Composite, goes_by_time
from bucketers.event_time import EventTime
from bucketers.factory import build
from bucketers.field import Field

__all__ = [
    "Bucketer",
    "Buckets",
    "Composite",
    "EventTime",
    "Field",
    "TimeBucketer",
    "build",
    "goes_by_time",
    "interval",
]
