"""Operations on gap records: a gap is recorded, filled by a backfill, or given up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.table.log.entries import side_files_to_json
from headrace.writer.table.log.foreign_writes import Overtaken
from headrace.writer.table.log.operations.operation import CheckedLog, Operation, check_privacy
from headrace.writer.table.log.schema_ids import new_meanings
from headrace.writer.table.log.snapshot import PipelineSnapshot, frontier_values, gap_changes_name


@dataclass(frozen=True)
class Gap(Operation):
    """Ranges that no record will come from: the frontier moves over them without files."""

    kind: ClassVar[str] = "gap"

    # Of the gap record; the same when the commit is tried again.
    id: str
    epoch: int
    ranges: Sequence[OffsetRange]
    cause: str
    # JSON values: run, at, hints; by and reason of a person.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # The epoch rises with it: the holder of this one is fenced.
    takes_over: bool = False
    # No start continues this run or an older one: they would begin before the ranges.
    closed_run: int = 0

    @property
    def offsets(self) -> int:
        """How many offsets it holds."""
        return sum(offset_range.count for offset_range in self.ranges)

    def field_facts(self) -> dict[str, Any]:
        """Return the gap record: its cause and ranges."""
        return {"cause": self.cause, "ranges": [offset_range.to_json() for offset_range in self.ranges]}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the frontier behind the ranges, the epoch, and the sums of gaps."""
        pipeline = snapshot.pipeline
        sums = snapshot.gap_sums
        range_ends = {offset_range.part: offset_range.end for offset_range in self.ranges}
        values = {
            **frontier_values(snapshot, range_ends, {}),
            f"{pipeline}/epoch": self.epoch + int(self.takes_over),
            f"{pipeline}/gaps": sums["gaps"] + 1,
            f"{pipeline}/gap_offsets": sums["gap_offsets"] + self.offsets,
        }
        if self.closed_run:
            values[f"{pipeline}/closed"] = max(self.closed_run, snapshot.closed)
        return values

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:  # noqa: ARG002 - of the base
        """Raise Fenced."""
        log.check_owner(newest, self.epoch, self.ranges)


@dataclass(frozen=True)
class Fill(Operation):
    """One atomic commit of a backfill: records of a gap, and which of its offsets are settled. It moves no frontier."""

    kind: ClassVar[str] = "fill"
    fault_point: ClassVar[str] = "fill"

    id: str
    # The id of the gap record.
    gap: str
    # The number of changes of the gap record after which the open offsets were read.
    generation: int
    # Offsets that it settles.
    offsets: int
    # Offsets that are open after it.
    left: int
    # The gap record ends with it; with offsets left only if the source knows none.
    done: bool
    files: Sequence[StagedFile] = ()
    # By the location of their table.
    side_files: Mapping[str, Sequence[StagedFile]] = field(default_factory=dict)
    # JSON values: account of each part, rows, by, source, at.
    facts: Mapping[str, Any] = field(default_factory=dict)
    # Fingerprints of the schemas that schema ids mean, by the name of the `txn`.
    meanings: Mapping[str, int] = field(default_factory=dict)
    # The version of the privacy entries by which rows were made; None: rows of no record.
    privacy: int | None = None

    def __post_init__(self) -> None:
        if self.offsets < 0 or self.left < 0:
            raise ValueError(f"a fill settles and leaves at least nothing, got {self.offsets} and {self.left}")
        if not self.left and not self.done:
            raise ValueError("a fill that leaves no offset ends its gap record")

    @property
    def added_files(self) -> Sequence[StagedFile]:
        """Files that the entry adds to the table."""
        return self.files

    def field_facts(self) -> dict[str, Any]:
        """Return the gap, how many of its offsets are settled and open, and the files of side tables."""
        return {
            "gap": self.gap,
            "offsets": self.offsets,
            "left": self.left,
            "done": self.done,
            "side_files": side_files_to_json(self.side_files),
        }

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the changes of the gap, the sums of gaps, and what schema ids mean. Raises SchemaChanged."""
        closed_offsets = self.offsets + (self.left if self.done else 0)
        values = _change_values(snapshot, self, closed_offsets, is_end=self.done)
        return values | new_meanings(snapshot.state.transactions, self.meanings)

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:  # noqa: ARG002 - of the base
        """Raise PrivacyChanged, Overtaken when the gap record changed since it was read."""
        check_privacy(log.location, newest, self.privacy)
        _check_change(newest, self)


@dataclass(frozen=True)
class Loss(Operation):
    """One atomic entry that closes a gap without its records."""

    kind: ClassVar[str] = "lost"

    id: str
    # The id of the gap record.
    gap: str
    # The number of changes of the gap record after which it was read.
    generation: int
    # Offsets that are given up.
    left: int
    # JSON values: by, reason, at.
    facts: Mapping[str, Any] = field(default_factory=dict)

    def field_facts(self) -> dict[str, Any]:
        """Return the gap, and how many offsets are given up."""
        return {"gap": self.gap, "left": self.left}

    def transactions(self, snapshot: PipelineSnapshot) -> dict[str, int]:
        """Return the changes of the gap, and the sums of gaps."""
        return _change_values(snapshot, self, self.left, is_end=True)

    def check(self, newest: PipelineSnapshot, previous: PipelineSnapshot, log: CheckedLog) -> None:  # noqa: ARG002 - of the base
        """Raise Overtaken when the gap record changed since it was read."""
        _check_change(newest, self)


def _change_values(
    snapshot: PipelineSnapshot, change: Fill | Loss, closed_offsets: int, *, is_end: bool
) -> dict[str, int]:
    """Return the `txn` values that a change of a gap record sets.

    `closed_offsets`: how many offsets it fills or gives up; `is_end`: the gap record ends with it.
    """
    pipeline = snapshot.pipeline
    sums = snapshot.gap_sums
    return {
        gap_changes_name(pipeline, change.gap): change.generation + 1,
        f"{pipeline}/gaps_ended": sums["gaps_ended"] + int(is_end),
        f"{pipeline}/gap_offsets_ended": sums["gap_offsets_ended"] + closed_offsets,
    }


def _check_change(newest: PipelineSnapshot, change: Fill | Loss) -> None:
    """Raise Overtaken where a change of a gap record is not the next one."""
    if newest.gap_changes(change.gap) != change.generation:
        raise Overtaken(f"gap {change.gap} of pipeline {newest.pipeline!r} changed meanwhile: look again what is open")
