"""Operations that add, replace or remove rows: batches, replays, rewrites, reprocesses."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar
from urllib.parse import unquote

from headrace.writer.core.files import BucketFile, BucketKey, StagedFile
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition
from headrace.writer.table.log.entries import side_files_to_json, withdrawn_to_json
from headrace.writer.table.log.foreign_writes import BucketsClosed, FilesGone, Overtaken
from headrace.writer.table.log.operations.operation import CheckedLog, Operation, check_privacy
from headrace.writer.table.log.schema_ids import new_meanings
from headrace.writer.table.log.snapshot import PipelineSnapshot, event_time_name, frontier_values

# Why rows are removed whose retention is over.
RETENTION = "retention"


@dataclass(frozen=True)
class Batch(Operation):
    """One atomic commit: files, the ranges they hold, and the account of every record."""

    kind: ClassVar[str] = "batch"

    id: str
    epoch: int
    ranges: Sequence[OffsetRange]
    files: Sequence[StagedFile] = ()
    # By the location of their table.
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)
    # JSON values: counts, run, batch number, steps.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The version up to which the history was read and side files applied, before this batch.
    settled: int = -1
    # The newest event times of the parts in which it rose, in microseconds since 1970.
    newest_event_times: Mapping[TopicPartition, int] = field(default_factory=dict)
    # The instant up to which buckets were closed when its rows were found to be late, or not.
    closed_until: datetime | None = None
    # The same for tables of a route, by number.
    closed_targets: Mapping[int, datetime] = field(default_factory=dict)
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # Of the logs, where the ranges end.
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None

    @property
    def added_files(self) -> Sequence[StagedFile]:
        """Files that the entry adds to the table."""
        return self.files

    def field_facts(self) -> dict[str, Any]:
        """Return the files of side tables."""
        return {"side_files": side_files_to_json(self.side_files)}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the frontier, the epoch, the newest event times, and what schema ids mean. Raises SchemaChanged."""
        pipeline = snapshot.pipeline
        range_ends = {offset_range.part: offset_range.end for offset_range in self.ranges}
        event_times = self.newest_event_times.items()
        return {
            **frontier_values(snapshot, range_ends, self.marks),
            f"{pipeline}/epoch": self.epoch,
            f"{pipeline}/settled": self.settled,
            **{event_time_name(pipeline, part): event_time for part, event_time in event_times},
            **new_meanings(snapshot.state.transactions, self.meanings),
        }

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:  # noqa: ARG002 - of the base
        """Raise Fenced, PrivacyChanged, BucketsClosed where rows were judged by others than these closes."""
        log.check_owner(newest, self.epoch, self.ranges)
        check_privacy(log.location, newest, self.privacy)
        if newest.closed_until != self.closed_until:
            raise BucketsClosed(
                f"buckets are closed until {newest.closed_until} by now, rows were judged by {self.closed_until}"
            )
        if newest.closed_targets != self.closed_targets:
            raise BucketsClosed("buckets of tables of the route were closed since rows were judged")


@dataclass(frozen=True)
class Replay(Operation):
    """One atomic commit of dead letters that became rows, or got another reason. It moves no frontier."""

    kind: ClassVar[str] = "replay"

    id: str
    # The number of replays after which the dead letters were read.
    generation: int
    files: Sequence[StagedFile]
    # Dead letters that failed again, with the reason of today.
    side_files: Mapping[str, Sequence[StagedFile]]
    # The offsets whose dead letters go, by the location of their table.
    withdrawn: Mapping[str, OffsetSet]
    facts: Mapping[str, Any]
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None

    @property
    def added_files(self) -> Sequence[StagedFile]:
        """Files that the entry adds to the table."""
        return self.files

    def field_facts(self) -> dict[str, Any]:
        """Return the files of side tables, and which dead letters go."""
        return {"side_files": side_files_to_json(self.side_files), "withdrawn": withdrawn_to_json(self.withdrawn)}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the number of replays, and what schema ids mean. Raises SchemaChanged."""
        meanings = new_meanings(snapshot.state.transactions, self.meanings)
        return {f"{snapshot.pipeline}/replay": self.generation + 1, **meanings}

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise PrivacyChanged, Overtaken where dead letters may have been replayed, or the table was rewound."""
        check_privacy(log.location, newest, self.privacy)
        pipeline = newest.pipeline
        if newest.replays != self.generation:
            raise Overtaken(
                f"another replay of pipeline {pipeline!r} was committed meanwhile; its dead letters are read again"
            )
        if newest.rewinds != previous.rewinds:
            raise Overtaken(f"pipeline {pipeline!r} was rewound meanwhile; its dead letters are read again")


@dataclass(frozen=True)
class RemovedRows:
    """Rows that go on purpose, and why: dedupe, retention, delete, rewind. The log has its fields by their names."""

    why: str
    rows: int


@dataclass(frozen=True)
class Rewrite(Operation):
    """One atomic replacement of files. It moves no offset."""

    kind: ClassVar[str] = "rewrite"

    id: str
    removed: Sequence[BucketFile]
    files: Sequence[StagedFile] = ()
    removed_rows: RemovedRows | None = None
    # JSON values: what was done, at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Rows have other values than they had; else they only move.
    changes: bool = False
    # Files of other buckets that decide which rows go: they have to be in the table, too.
    by: Sequence[BucketFile] = ()

    def __post_init__(self) -> None:
        if not self.removed:
            raise ValueError("a rewrite removes at least one file")
        rows_before = count_rows(self.removed)
        rows_after = count_rows(self.files)
        rows_removed = self.removed_rows.rows if self.removed_rows else 0
        adds_up = rows_before - rows_removed == rows_after or _has_unknown_rows(self.removed)
        if rows_removed < 0 or not adds_up:
            raise ValueError(
                f"a rewrite of {rows_before} rows leaves {rows_after} and takes {rows_removed}: that does not add up"
            )

    @property
    def added_files(self) -> Sequence[StagedFile]:
        """Files that the entry adds to the table."""
        return self.files

    @property
    def removed_files(self) -> Sequence[BucketFile]:
        """Files that the entry removes from the table."""
        return self.removed

    @property
    def moves_only(self) -> bool:
        """Whether the rows that it adds are those that it removes."""
        removes_rows = self.removed_rows is not None and self.removed_rows.rows > 0
        return not self.changes and not removes_rows

    def field_facts(self) -> dict[str, Any]:
        """Return which rows go, and why."""
        return {} if self.removed_rows is None else {"taken": vars(self.removed_rows)}

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise FilesGone where a file is gone that it removes or goes by, LiveDeleteFiles where rows of these are."""
        _check_files(newest, previous, log, [*self.removed, *self.by])
        if self.by:
            log.check_deletes(self.by)


@dataclass(frozen=True)
class BucketChange:
    """How many rows of one bucket a reprocess takes, and how many it adds."""

    bucket: BucketKey
    taken: int
    added: int


@dataclass(frozen=True)
class Reprocess(Operation):
    """One atomic swap of a bucket's rows for what their records are by the rules of today. It moves no offset."""

    kind: ClassVar[str] = "reprocess"
    fault_point: ClassVar[str] = "reprocess"

    id: str
    removed: Sequence[BucketFile]
    # Rows of the removed files that were not read again.
    remainders: Sequence[StagedFile]
    # Rows of the records that were, of whatever bucket.
    files: Sequence[StagedFile]
    buckets: Sequence[BucketChange]
    # Dead letters that were rows.
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)
    # JSON values: moves of each part, at, by, source.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None

    def __post_init__(self) -> None:
        if not self.removed:
            raise ValueError("a reprocess removes at least one file")
        rows_before = count_rows(self.removed)
        rows_left = count_rows(self.remainders)
        rows_written = count_rows(self.files)
        rows_taken = sum(change.taken for change in self.buckets)
        rows_added = sum(change.added for change in self.buckets)
        adds_up = rows_before - rows_taken == rows_left or _has_unknown_rows(self.removed)
        if rows_added != rows_written or not adds_up:
            raise ValueError(
                f"of {rows_before} rows {rows_taken} go, {rows_left} stay, {rows_added} of {rows_written} come: "
                "that does not add up"
            )

    @property
    def added_files(self) -> Sequence[StagedFile]:
        """Files that the entry adds to the table."""
        return [*self.files, *self.remainders]

    @property
    def removed_files(self) -> Sequence[BucketFile]:
        """Files that the entry removes from the table."""
        return self.removed

    def field_facts(self) -> dict[str, Any]:
        """Return the files of side tables, and the rows that each bucket loses and gets."""
        buckets = [[list(change.bucket), change.taken, change.added] for change in self.buckets]
        return {"side_files": side_files_to_json(self.side_files), "buckets": buckets}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return what schema ids mean. Raises SchemaChanged."""
        return new_meanings(snapshot.state.transactions, self.meanings)

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise PrivacyChanged, FilesGone where a file that it removes is not there any more."""
        check_privacy(log.location, newest, self.privacy)
        _check_files(newest, previous, log, self.removed)


def count_rows(files: Iterable[BucketFile | StagedFile]) -> int:
    """Return the rows of files; a file whose number of rows is unknown counts none."""
    return sum(file.rows or 0 for file in files)


def _has_unknown_rows(files: Iterable[BucketFile]) -> bool:
    return any(file.rows is None for file in files)


def _check_files(
    newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog, files: Sequence[BucketFile]
) -> None:
    """Raise FilesGone if an entry after the previous version removes a file of it, or cannot be read any more."""
    if newest.state.metadata["id"] != previous.state.metadata["id"]:
        raise FilesGone(f"the table at {log.location} was removed and made again meanwhile")
    paths = {file.path for file in files}
    since = previous.version
    entries = [(version, actions) for version, actions in log.entries(since) if version <= newest.version]
    if [version for version, _ in entries] != list(range(since + 1, newest.version + 1)):
        raise FilesGone(f"the log of {log.location} has lost versions after {since}; what they removed is unknown")
    for version, actions in entries:
        removed_paths = {unquote(action["remove"]["path"]) for action in actions if "remove" in action}
        if lost_paths := paths & removed_paths:
            raise FilesGone(
                f"version {version} of {log.location} removed {min(lost_paths)}, which was read to rewrite files"
            )
