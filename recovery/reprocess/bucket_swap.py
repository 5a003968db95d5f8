"""Makes the rows of one bucket anew and swaps them in one entry of the table's log.

The records at the offsets of the bucket's rows are read from the sources and go through the steps of a task, in this
process. What the sources do not have stays as it is. The entry lands only while each file that it removes is there: a
delete, a compaction or another reprocess in between makes the bucket be done again.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa

from recovery.backfill.chunk_commit import BackfilledTable
from recovery.backfill.source import Source
from recovery.backfill.throttle import BackfillPace
from recovery.reprocess.bucket_rows import BucketRows
from recovery.reprocess.places import Places, at_places, count, size
from recovery.reprocess.records import Records, by_incarnation
from recovery.reprocess.same_rows import same_rows
from writer.batch.plan import TaskPlan
from writer.batch.task_report import EXITS, Report
from writer.commit import builder
from writer.commit.failed_records_limit import check as check_failed_records
from writer.commit.privacy import record_privacy
from writer.core import fault_points
from writer.core.errors import HeadraceError
from writer.core.files import BucketKey, StagedFile
from writer.core.offsets import TopicPartition
from writer.maintenance.local_pipeline import age_of
from writer.storage.base import OutcomeUnknown
from writer.table.log.foreign_writes import CommitFailed
from writer.table.log.operations import BucketChange, Reprocess
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.row_removal import RemovalResult, stage_without_rows

PREFIX = "reprocess"  # of the names of files


@dataclass(frozen=True)
class BucketOutcome:
    """What became of the rows of one bucket."""

    bucket: BucketKey
    version: int | None = None  # of the table; None: every row is as it was
    rows: int = 0  # whose records were read again
    stay: int = 0  # rows of them in the same bucket
    moved: int = 0  # rows of them in other buckets
    dead_letters: int = 0
    quarantined: int = 0
    filtered: int = 0
    absent: int = 0  # rows whose records no source has, or late ones that are no rows now; they stay as they are
    unplaced: int = 0  # rows that say no offset; they stay as they are
    into: Mapping[BucketKey, int] = field(default_factory=dict)  # rows that other buckets got
    paths: Sequence[str] = ()  # of the files that were added
    seconds: float = 0.0
    late: bool = False  # of the table of late rows


@dataclass
class ReprocessOutput:
    """What the tasks made of the records: one for each incarnation of the topics."""

    reports: list[Report] = field(default_factory=list)
    found: dict[TopicPartition, np.ndarray] = field(default_factory=dict)  # offsets whose records came
    moves: dict[TopicPartition, dict[str, int]] = field(default_factory=dict)

    @property
    def report(self) -> Report:
        """The reports of all tasks."""
        return builder.merged(self.reports)

    @property
    def sums(self) -> Counter[str]:
        """What became of the rows, of all parts."""
        found: Counter[str] = Counter()
        for moves in self.moves.values():
            found.update(moves)
        return found

    @property
    def read(self) -> int:
        """How many records came."""
        return size(self.found)


class BucketSwap:
    """Swaps buckets of one pipeline's table, one at a time."""

    def __init__(
        self, filling: BackfilledTable, sources: Sequence[Source], pace: BackfillPace, facts: Mapping[str, Any]
    ) -> None:
        """`facts`: what entries say of who did it, and from which source."""
        self._filling, self._sources, self._pace, self._facts = filling, sources, pace, facts
        self.table = filling.table

    def run(self, snapshot: PipelineSnapshot, held: BucketRows, now: datetime) -> BucketOutcome:
        """Make the bucket's rows anew. `snapshot`: where its files were listed; `now`: of the window of event times.

        Raises FilesGone, FileNotFoundError when another process rewrote files meanwhile, SourceFailed, LimitReached,
        CommitFailed.
        """
        began, began_s = datetime.now(UTC), time.monotonic()
        fault_points.point("before_reprocess_read")
        made = ReprocessOutput()
        try:
            for incarnation, places in by_incarnation(held.places).items():
                self._task(made, incarnation, places, held, now)
            report = made.report
            self._settle(made)
            if not made.read or self._is_same(snapshot, held, made, report):
                self._discard(made)
                return BucketOutcome(
                    held.bucket, rows=made.read, stay=made.read, absent=held.rows - made.read, unplaced=held.unplaced
                )  # fmt: skip
            fault_points.point("before_reprocess_swap")
            version = self._commit(snapshot, held, made, report, began)
        except (CommitFailed, OutcomeUnknown):
            raise  # an entry may name the files by now, or may yet
        except Exception:  # not where a person interrupts it: an entry may be there
            self._discard(made)
            raise
        self._filling.tables.apply_side_files()
        sums, came = made.sums, _rows_by_bucket(report.files)
        return BucketOutcome(
            held.bucket, version, made.read, came.pop(held.bucket, 0), sum(came.values()), sums["dead_letters"],
            sums["quarantined"], sums["filtered"], held.rows - made.read, held.unplaced, came,
            [file.path for file in report.files], round(time.monotonic() - began_s, 3),
        )  # fmt: skip

    def _task(self, made: ReprocessOutput, incarnation: int, places: Places, held: BucketRows, now: datetime) -> None:
        """Run a task on the records of one incarnation of the topics."""
        walk, records = self._filling.walk, Records(self._sources, places, self._pace.pieces)
        incarnations = {part.topic: incarnation for part in places}
        older = age_of(held.came, now)
        report = walk.run(records.pieces, lambda _: self._plan(now, incarnations, older))
        made.reports.append(report)
        made.found |= records.found()
        for (topic, partition), counts in report.counts.items():
            found = {name: getattr(counts, name) for name in EXITS if getattr(counts, name)}
            part = TopicPartition(topic, incarnation, partition)
            made.moves[part] = {**found, "rows": found.get("rows", 0) - counts.read}
            assert not sum(made.moves[part].values()), f"{part}: {counts}"

    def _plan(self, now: datetime, incarnations: Mapping[str, int], older: timedelta) -> TaskPlan:
        return self._filling.walk.task_plan(now, PREFIX, incarnations, older)

    def _settle(self, made: ReprocessOutput) -> None:
        """See that what came of the records may take the place of the rows. Raises LimitReached."""
        check_failed_records(self._filling.name, made.report, self._filling.settings.limits)

    def _is_same(self, snapshot: PipelineSnapshot, held: BucketRows, made: ReprocessOutput, report: Report) -> bool:
        """Return whether the records became the rows that are there."""
        if any(moves["rows"] for moves in made.moves.values()) or {f.bucket for f in report.files} != {held.bucket}:
            return False
        names = snapshot.state.metadata["partitionColumns"]
        columns = pa.schema([column for column in snapshot.columns() if column.name not in names])
        budget = self._filling.settings.memory.buffer
        return same_rows(self.table.store, columns, held.files, made.found, report.files, budget)

    def _commit(
        self, snapshot: PipelineSnapshot, held: BucketRows, made: ReprocessOutput, report: Report, began: datetime
    ) -> int:
        table = self.table
        record_privacy(self._filling.table, self._filling.walk.schemas, None)
        table.grow(list(self._filling.walk.schemas.columns()))  # before any file has them
        counted, goes = partial(count, table.store, places=made.found), partial(at_places, places=made.found)
        with stage_without_rows(
            table.store, held.files, counted, goes, columns=snapshot.state.metadata["partitionColumns"],
            hidden=table.hidden, folder=table.folder, prefix=PREFIX, rule=self._filling.walk.time_rule,
        ) as left:  # fmt: skip
            if left.rows != made.read:
                raise HeadraceError(
                    f"{made.read} records were read of rows of a bucket of the table at {table.location}, "
                    f"{left.rows} rows are at their offsets. `headrace audit --deep` looks at each."
                )
            builder.check_age(began, datetime.now(UTC), self._filling.settings.table.orphan_retention)
            return self._swap(snapshot, held, made, report, left, began)

    def _swap(
        self, snapshot: PipelineSnapshot, held: BucketRows, made: ReprocessOutput, report: Report, left: RemovalResult,
        began: datetime,
    ) -> int:  # fmt: skip
        """Put the entry. Returns its version."""
        walk, came = self._filling.walk, _rows_by_bucket(report.files)
        taken = Counter({held.bucket: left.rows})
        changes = [BucketChange(bucket, taken[bucket], came[bucket]) for bucket in dict.fromkeys([*taken, *came])]
        facts = {
            "at": began.isoformat(), "bucket": list(held.bucket), **self._facts,
            "moves": [{**vars(part), **moves} for part, moves in made.moves.items() if any(moves.values())],
            **builder.sums(report.files), **builder.spec_facts(report, walk.specs),
        }  # fmt: skip
        planned = Reprocess(
            uuid4().hex, left.removed, left.rewritten, report.files, changes, walk.side_files(report), facts,
            walk.schemas.meant(report), walk.schemas.privacy_version,
        )  # fmt: skip
        return self.table.reprocess(snapshot, planned)

    def _discard(self, made: ReprocessOutput) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        report = made.report
        self._filling.tables.discard(report.files, self._filling.walk.side_files(report))


def _rows_by_bucket(files: Iterable[StagedFile]) -> Counter[BucketKey]:
    found: Counter[BucketKey] = Counter()
    for file in files:
        found[file.bucket] += file.rows
    return found
