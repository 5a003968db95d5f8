"""A gap is put down: the entry that moves the frontier over it, and a warning for each of its ranges."""

from writer import log
from writer.tables.changes import Gap
from writer.tables.snapshot import PipelineSnapshot
from writer.tables.table import PipelineTable


def open_gap(table: PipelineTable, pipeline: str, snapshot: PipelineSnapshot, gap: Gap) -> int:
    """Append the entry. Returns where it stands. Raises Fenced, CommitFailed."""
    version = table.record_gap(snapshot, gap)
    for r in gap.ranges:
        log.warning(
            "gap_recorded", pipeline=pipeline, version=version, id=gap.id, cause=gap.cause, topic=r.part.topic,
            incarnation=r.part.incarnation, partition=r.part.partition, start=r.start, end=r.end,
            offsets=r.end - r.start,
        )  # fmt: skip
    return version
