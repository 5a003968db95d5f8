"""Commits one chunk of a backfill: runs the steps of a task, then adds files and filled offsets in one entry.

It raises no epoch and moves no frontier, so the live writer goes on beside it. Whatever dies, the entry is there with
its files or it is not; what is open is read from the log each time, so a chunk is never settled twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc

from headrace.recovery.backfill.new_rows import NewRowStage
from headrace.recovery.backfill.source import Chunk
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.task import Admit, Piece
from headrace.writer.batch.task_report import Counts, Report
from headrace.writer.commit import builder, missing_offsets as missing
from headrace.writer.commit.failed_records_limit import check_failed_records
from headrace.writer.core import fault_points
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.local_pipeline import ANY_AGE, age_of, allow_older_events
from headrace.writer.maintenance.record_commit import RecordCommit, RecordTable
from headrace.writer.table.ledger.gap_record import GapRecord
from headrace.writer.table.log.foreign_writes import Overtaken
from headrace.writer.table.log.operations.gaps import Fill
from headrace.writer.table.log.snapshot import PipelineSnapshot


@dataclass(frozen=True)
class ChunkCommit:
    """One chunk that is in the table."""

    version: int
    offsets: int
    rows: int
    files: int
    bytes: int
    # Offsets that are open after it.
    left: int
    done: bool


def commit_chunk(
    record_table: RecordTable,
    gap_record: GapRecord,
    snapshot: PipelineSnapshot,
    chunk: Chunk,
    source: str,
    by: str,
    admit: Admit = lambda _: None,
) -> ChunkCommit:
    """Run the tasks of a chunk and commit it.

    `snapshot`: what the gap record was read from. `admit`: is asked before a task takes records.

    Raises Overtaken when the gap record changed since, SourceFailed, LimitReached, CommitFailed.
    """
    _check_open(gap_record, chunk)
    fault_points.point("before_chunk")
    left = gap_record.unfilled_offsets.count - chunk.offsets
    is_last = chunk.last or left == 0
    with RecordCommit(record_table.tables, record_table.pipeline) as commit:
        facts = {"by": by, "source": source, "through": chunk.through or None}
        if chunk.unplaced:
            facts |= _stage_new_rows(record_table, commit, chunk, snapshot, admit)
        else:
            facts |= _run_tasks(record_table, commit, chunk, admit)
        fault_points.point("after_chunk")

        def build_fill() -> Fill:
            return Fill(
                uuid4().hex,
                gap_record.id,
                snapshot.gap_changes(gap_record.id),
                chunk.offsets,
                left,
                is_last,
                commit.report.files,
                commit.side_files,
                {**facts, **_commit_facts(commit)},
                commit.meanings,
                commit.privacy_version,
            )

        version = commit.append(build_fill, snapshot)
        fault_points.point("before_chunk_redo")
    sums = builder.sums(builder.row_files(commit.report))
    return ChunkCommit(version, chunk.offsets, sums["rows"], sums["files"], sums["bytes"], left, is_last)


def _run_tasks(record_table: RecordTable, commit: RecordCommit, chunk: Chunk, admit: Admit) -> dict[str, Any]:
    """Run tasks on records that have offsets. Returns what the entry says of them. Raises as `_accounts` does."""
    incarnations = {part.topic: part.incarnation for part in chunk.spans}
    topics = {(part.topic, part.incarnation) for part in chunk.spans}
    assert len(incarnations) == len(topics), "one incarnation a chunk"

    def build_plan(first: Piece | None) -> TaskPlan:
        now = datetime.now(UTC)
        task_plan = record_table.pipeline.task_plan(now, "backfill", incarnations, _age(first, now))
        return replace(task_plan, raw=record_table.raw if chunk.raw else None)

    groups = chunk.split(record_table.task_count(chunk.offsets))
    report = commit.run_tasks(incarnations, groups, build_plan, record_table.pool, admit)
    return {"ranges": _accounts(record_table, chunk, report), "unplaced": 0, "left_out": 0}


def _accounts(record_table: RecordTable, chunk: Chunk, report: Report) -> list[dict[str, Any]]:
    """Compare what was read with what the chunk settles. Returns the account of each part, as the entry lists it.

    Raises SourceFailed, LimitReached.
    """
    without_records: dict[TopicPartition, missing.MissingOffsets] = {}
    for part, spans in chunk.spans.items():
        missing_offsets = missing.without_records(part.source, spans, report)
        if missing_offsets is not None:
            without_records[part] = missing_offsets
    chunk.confirm(list(without_records.values()))
    check_failed_records(record_table.name, report, record_table.settings.limits)
    accounts = []
    for part, spans in chunk.spans.items():
        counts = report.counts.get(part.source, Counts())
        account = {**vars(part), "spans": [list(span) for span in spans], **counts.outcomes()}
        if part in without_records:
            account["without_records"] = without_records[part].to_dict()
        accounts.append(account)
    return accounts


def _stage_new_rows(
    record_table: RecordTable, commit: RecordCommit, chunk: Chunk, snapshot: PipelineSnapshot, admit: Admit
) -> dict[str, Any]:
    """Stage rows without offsets whose keys the table does not have. Returns what the entry says of them."""
    record_table.config.one_table(record_table.name)
    task_plan = record_table.pipeline.task_plan(datetime.now(UTC), "backfill", {})
    rule = allow_older_events(record_table.pipeline.time_rule, ANY_AGE)
    stage = NewRowStage(record_table.table, snapshot, record_table.settings, task_plan, rule)

    def read_rows() -> Iterator[pa.Table]:
        for piece in chunk.pieces(record_table.pipeline.plan):
            if piece.rows is not None:
                admit(piece.records)
                yield piece.rows

    report, unplaced, left_out = stage.write(read_rows(), chunk.keys)
    commit.add_report(report)
    return {"ranges": [], "unplaced": unplaced, "left_out": left_out}


def _check_open(gap_record: GapRecord, chunk: Chunk) -> None:
    """Raise Overtaken where a chunk would settle what is not open: another process settled it after it was planned."""
    settled_ranges = (chunk.spans - gap_record.unfilled_offsets).ranges()
    if settled_ranges:
        settled = settled_ranges[0]
        raise Overtaken(f"offsets {settled.span} of {settled.part.name} were brought meanwhile: look again")


def _commit_facts(commit: RecordCommit) -> dict[str, Any]:
    """Return when the entry is made, what the task staged, and how long its steps took, as JSON values."""
    seconds = {step: round(seconds, 3) for step, seconds in commit.report.seconds.items()}
    return {"at": datetime.now(UTC).isoformat(), **commit.row_facts(), "seconds": seconds}


def _age(first: Piece | None, now: datetime) -> timedelta:
    """Return how long ago the broker had the first records."""
    if first is None:
        return age_of(None, now)
    times = first.records.column("timestamp")
    if times.null_count:
        return age_of(None, now)
    return age_of(pc.min(times).as_py(), now)
