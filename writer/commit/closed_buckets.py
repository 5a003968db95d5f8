"""Which buckets of a batch are closed, so that their rows are late, and how far event times have come. Pure."""

from collections.abc import Iterable
from datetime import datetime

from headrace.bucketers import Bucketer, TimeBucketer, interval
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.files import BucketKey, StagedFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.units import instant
from headrace.writer.sealing.rules import is_closed
from headrace.writer.table.log.snapshot import PipelineSnapshot


def closes_buckets(settings: Pipeline, bucketer: Bucketer) -> bool:
    """Return whether buckets of a table are ever closed."""
    return settings.seal.enabled and isinstance(bucketer, TimeBucketer)


def buckets_closed_between(
    files: Iterable[StagedFile], bucketer: Bucketer, before: datetime | None, after: datetime | None
) -> set[BucketKey]:
    """Return the buckets of files that are closed by `after`, and were not by `before`: their rows are late."""
    buckets = set[BucketKey]()
    for bucket in {file.bucket for file in files}:
        span = interval(bucketer, bucket)
        if span is not None and is_closed(span[1], after) and not is_closed(span[1], before):
            buckets.add(bucket)
    return buckets


def slowest_event_time(snapshot: PipelineSnapshot, parts: Iterable[TopicPartition]) -> datetime | None:
    """Return up to where all these parts have come, idle or not, by the table's log; None: one has no row yet."""
    times = list[int]()
    for part in parts:
        newest_us = snapshot.newest_event_time(part)
        if newest_us is None:
            return None
        times.append(newest_us)
    if not times:
        return None
    return instant(min(times))
