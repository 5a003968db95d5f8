"""Operations that answer to the past of a table: rewinds, and acceptances of what other clients did.

They raise the epoch: older ones are fenced from then on.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar

from headrace.writer.core.files import BucketFile, BucketKey, StagedFile
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, OffsetSet, TopicPartition
from headrace.writer.core.units import microseconds, to_iso
from headrace.writer.table.log.entries import withdrawn_to_json
from headrace.writer.table.log.foreign_writes import Change
from headrace.writer.table.log.operations.operation import CheckedLog, Operation, check_same_version
from headrace.writer.table.log.operations.rows import count_rows
from headrace.writer.table.log.snapshot import (
    NEVER,
    PipelineSnapshot,
    closed_name,
    closed_values,
    event_time_name,
    frontier_values,
    gap_changes_name,
)


@dataclass(frozen=True)
class ReopenedBucket:
    """A bucket that a rewind took rows out of, or that was sealed since the version to which it goes back."""

    bucket: BucketKey
    taken: int
    # Rows that stay.
    left: int


@dataclass(frozen=True)
class TargetRewind:
    """What a rewind takes out of one table of a route: rows at the offsets that it withdraws there."""

    name: str
    location: str
    number: int
    reopened: Sequence[ReopenedBucket] = ()
    # As the earlier version had it.
    closed_until: datetime | None = None

    @property
    def rows(self) -> int:
        """How many rows of the table go."""
        return sum(bucket.taken for bucket in self.reopened)


@dataclass(frozen=True)
class Undo:
    """What other clients did, and how the files of the version before become the table's again."""

    changes: Sequence[Change]
    # Files that the table has now and had not in that version.
    removed: Sequence[BucketFile]
    # Files that the table had in that version and has not now.
    restored: Sequence[StagedFile]
    # As that version had it.
    frontier: Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Acceptance(Operation):
    """Accepts other clients' changes. It moves no file; less is proven about the rows from then on."""

    kind: ClassVar[str] = "accept"
    fault_point: ClassVar[str] = "accept"

    id: str
    changes: Sequence[Change]
    # The rows that the table has fewer by them; negative: more.
    rows: int
    # JSON values: at.
    facts: Mapping[str, Any] = field(default_factory=dict)

    def field_facts(self) -> dict[str, Any]:
        """Return the changes that it answers, and the rows that the table has fewer by them."""
        answers = [vars(change) for change in self.changes]
        return {"answers": answers, "taken": {"why": "accepted", "rows": self.rows}}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the next epoch: older ones are fenced."""
        return {f"{snapshot.pipeline}/epoch": snapshot.epoch + 1}

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise CommitFailed where any entry follows the version that it was made for."""
        outcome = "nothing was accepted. Stop its writer, then look again."
        check_same_version(newest, previous, log.location, outcome)


@dataclass(frozen=True)
class Rewind(Operation):
    """One atomic step back: the frontier returns to where an earlier version had it, and all rows from there on go.

    With `undo`, what other clients did is taken back before: files and rows are those of the version before them.
    It is the only entry that lowers a frontier, or `closed_until`.
    """

    kind: ClassVar[str] = "rewind"
    fault_point: ClassVar[str] = "rewind"

    id: str
    # The version of the table.
    to: int
    # From where the frontier returns to, up to where it was.
    ranges: Sequence[OffsetRange]
    removed: Sequence[BucketFile]
    # Rows of the removed files that stay.
    files: Sequence[StagedFile]
    # The offsets whose rows go, by the location of their side table.
    withdrawn: Mapping[str, OffsetSet]
    reopened: Sequence[ReopenedBucket] = ()
    # As the earlier version had them.
    newest_event_times: Mapping[TopicPartition, int | None] = field(default_factory=dict)
    closed_until: datetime | None = None
    # The number of offsets of the open gap records that were recorded since, by their ids.
    gaps: Mapping[str, int] = field(default_factory=dict)
    # Runs up to this one read beyond: they are not continued.
    closed: int = 0
    # JSON values: at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    undo: Undo | None = None
    targets: Sequence[TargetRewind] = ()
    # Of the logs, as the earlier version had them.
    marks: Mapping[TopicPartition, LogMark] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows of the table itself go."""
        return sum(bucket.taken for bucket in self.reopened)

    def __post_init__(self) -> None:
        has_empty_range = not all(offset_range.count for offset_range in self.ranges)
        if has_empty_range or not (self.ranges or self.undo):
            raise ValueError("a rewind takes at least one offset back of each part that it names")
        rows_before = count_rows(self.removed)
        rows_after = count_rows(self.files)
        if rows_before - self.rows != rows_after and not self.undo:
            raise ValueError(
                f"a rewind of {rows_before} rows leaves {rows_after} and takes {self.rows}: that does not add up"
            )

    @property
    def added_files(self) -> Sequence[StagedFile]:
        """Files that the entry adds to the table.

        A restored file that the rewind removes rows of does not come: what is left of it does.
        """
        if self.undo is None:
            return self.files
        removed_paths = {file.path for file in self.removed}
        return [*self.files, *(file for file in self.undo.restored if file.path not in removed_paths)]

    @property
    def removed_files(self) -> Sequence[BucketFile]:
        """Files that the entry removes from the table. A restored file is not in it, so it does not go."""
        if self.undo is None:
            return self.removed
        restored_paths = {file.path for file in self.undo.restored}
        return [*self.undo.removed, *(file for file in self.removed if file.path not in restored_paths)]

    def field_facts(self) -> dict[str, Any]:
        """Return where it goes back to, the rows, buckets, gaps and offsets that it takes, and what it answers."""
        facts: dict[str, Any] = {
            "to": self.to,
            "taken": {"why": "rewind", "rows": self.rows},
            **_reopening_facts(self),
            "gaps": list(self.gaps),
        }
        if self.targets:
            # By location: names may have been given to another table since.
            facts["targets"] = {
                target.location: {"name": target.name, "number": target.number, **_reopening_facts(target)}
                for target in self.targets
            }
        if self.undo:
            facts["answers"] = [vars(change) for change in self.undo.changes]
        facts["withdrawn"] = withdrawn_to_json(self.withdrawn)
        facts["ranges"] = [offset_range.to_json() for offset_range in self.ranges]
        return facts

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the frontier, event times, closes and gaps as they were, and the next epoch."""
        pipeline = snapshot.pipeline
        values = self._frontier_values(snapshot)
        for part, event_time in self.newest_event_times.items():
            values[event_time_name(pipeline, part)] = NEVER if event_time is None else event_time
        values |= closed_values(snapshot, self.closed_until)
        for target in self.targets:
            until = target.closed_until
            if until != snapshot.closed_target(target.number):
                values[closed_name(pipeline, target.number)] = NEVER if until is None else microseconds(until)
        for gap in self.gaps:
            # It fences a backfill.
            values[gap_changes_name(pipeline, gap)] = snapshot.gap_changes(gap) + 1
        gap_sums = snapshot.gap_sums
        return {
            **values,
            f"{pipeline}/gaps_ended": gap_sums["gaps_ended"] + len(self.gaps),
            f"{pipeline}/gap_offsets_ended": gap_sums["gap_offsets_ended"] + sum(self.gaps.values()),
            f"{pipeline}/closed": max(self.closed, snapshot.closed),
            f"{pipeline}/epoch": snapshot.epoch + 1,
            f"{pipeline}/rewinds": snapshot.rewinds + 1,
        }

    def _frontier_values(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the `txn` values of the frontier: of what is undone, then of the ranges that are taken back."""
        undone_frontier = self.undo.frontier if self.undo else {}
        frontiers = {part: offset for part, offset in undone_frontier.items() if snapshot.frontier(part) != offset}
        frontiers |= {offset_range.part: offset_range.start for offset_range in self.ranges}
        return frontier_values(snapshot, frontiers, self.marks)

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:
        """Raise CommitFailed where any entry follows the version that it was made for."""
        outcome = "nothing was rewound. Stop the pipeline's driver, then look again."
        check_same_version(newest, previous, log.location, outcome)
        frontiers = newest.parts() if self.undo is None else self.undo.frontier
        for offset_range in self.ranges:
            part = offset_range.part
            assert frontiers.get(part) == offset_range.end, f"{part}: a rewind ends at the frontier"


def _reopening_facts(rewind: Rewind | TargetRewind) -> dict[str, Any]:
    buckets = [[list(bucket.bucket), bucket.taken, bucket.left] for bucket in rewind.reopened]
    return {"reopened": buckets, "closed_until": to_iso(rewind.closed_until)}
