"""Which buckets of a batch are closed, so that their rows are late, and how far event times have come. Pure."""

from collections.abc import Iterable
from datetime import datetime

from bucketers import Bucketer, Timed, interval
from writer.config.pipeline import Pipeline
from writer.core.files import BucketKey, StagedFile
from writer.core.offsets import TopicPartition
from writer.core.units import instant
from writer.sealing.rules import is_closed
from writer.table.log.snapshot import PipelineSnapshot


def closes(settings: Pipeline, bucketer: Bucketer) -> bool:
    """Return whether buckets of a table are ever closed."""
    return settings.seal.enabled and isinstance(bucketer, Timed)


def newly_closed(
    files: Iterable[StagedFile], bucketer: Bucketer, before: datetime | None, after: datetime | None
) -> set[BucketKey]:
    """Return the buckets of files that are closed by `after`, and were not by `before`: their rows are late."""
    spans = {file.bucket: interval(bucketer, file.bucket) for file in files}
    ends = {bucket: span[1] for bucket, span in spans.items() if span is not None}
    return {bucket for bucket, end in ends.items() if is_closed(end, after) and not is_closed(end, before)}


def all_seen(snapshot: PipelineSnapshot, parts: Iterable[TopicPartition]) -> datetime | None:
    """Return up to where all these parts have come, idle or not, by the table's log; None: one has no row yet."""
    found = [snapshot.newest_event_time(part) for part in parts]
    known = [at for at in found if at is not None]
    return instant(min(known)) if known and len(known) == len(found) else None
