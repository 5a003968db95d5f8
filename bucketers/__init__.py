"""Which bucket a row belongs to. Pure: Arrow in, Arrow out; no clock, no sockets, no Spark.

What time a row has is decided before, by `headrace.bucketers.timestamps.event_time`.
"""

from headrace.bucketers.base import Bucketer, Buckets, TimeBucketer, interval
from headrace.bucketers.composite import Composite, goes_by_time
from headrace.bucketers.event_time import EventTime
from headrace.bucketers.factory import build
from headrace.bucketers.field import Field

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
