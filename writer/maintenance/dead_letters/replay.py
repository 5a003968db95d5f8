"""Replays dead letters: decodes them again with today's code and schemas, and commits the rows exactly once.

A replay is one commit of the main table: the rows, and the offsets whose dead letters go. Redo takes the dead letters
out of their table, as it adds those of any commit. So it may die anywhere, be run again, and run beside the writer: it
moves no frontier and raises no epoch. Two replays cannot both commit on the same dead letters, as each counts the
replays up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.writer.batch.dead_letters import DEAD_LETTERS
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.staging.parquet_files import open_file
from headrace.writer.batch.task import Piece
from headrace.writer.batch.task_report import Counts
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from headrace.writer.maintenance.dead_letters.selection import (
    Selection,
    read_dead_letters,
    split_by_incarnation,
    to_records,
)
from headrace.writer.maintenance.local_pipeline import LocalPipeline
from headrace.writer.maintenance.record_commit import RecordCommit, RecordTable
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.table.log.foreign_writes import Overtaken
from headrace.writer.table.log.operations.rows import Replay
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.row_removal import OFFSET_COLUMNS, PARTITION_COLUMNS, offsets_by_partition

# Dead letters of one commit, which names their offsets.
DEAD_LETTERS_AT_ONCE = 50_000
BYTES_AT_ONCE = 64 * 2**20
# Tries of a commit that other replays overtake.
_TRIES = 10
_REASON_COLUMNS = [*OFFSET_COLUMNS, "schema_id", "outcome", "error"]


@dataclass
class ReplayResult:
    """What became of the chosen dead letters."""

    chosen: int = 0
    rows: int = 0
    # Records that a spec leaves out by now.
    filtered: int = 0
    # By outcome, schema id and reason.
    failed: dict[tuple[str, int | None, str], int] = field(default_factory=dict)
    # Versions of the main table.
    versions: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Attempt:
    """What the tasks made of some dead letters, before the commit."""

    dead_letters: pa.Table
    counts: Mapping[TopicPartition, Counts]
    # Dead letters that failed again, without their bytes.
    failed: pa.Table

    @property
    def rows(self) -> int:
        """The number of rows that they became."""
        return sum(counts.rows for counts in self.counts.values())

    @property
    def filtered(self) -> int:
        """The number of records that a spec leaves out."""
        return sum(counts.filtered for counts in self.counts.values())

    @property
    def has_changes(self) -> bool:
        """Whether some became a row, are left out, or failed for another reason."""
        return bool(self.rows or self.filtered or _has_other_reasons(self.dead_letters, self.failed))


class DeadLetterReplay:
    """A replay of one pipeline's dead letters."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource) -> None:
        """Open the tables. Raises HeadraceError when there are none."""
        self._record_table = RecordTable(name, config, schemas)
        self._older = timedelta(0)

    def run(self, selection: Selection, now: datetime, older: timedelta = timedelta(0)) -> ReplayResult:
        """Replay the chosen dead letters, commit by commit. Raises what a commit raises; what is committed stays.

        `older`: how long ago the broker had them; event times that were believable then are believed.
        """
        self._older = older
        result = ReplayResult()
        offsets_tried = OffsetSet()
        tries = 0
        while True:
            snapshot = self._record_table.refresh()
            pipeline = self._record_table.pipeline
            pipeline.assume_wires()
            try:
                dead_letters = self._read_next(selection, offsets_tried)
                if dead_letters.num_rows == 0:
                    return result
                self._replay(pipeline, dead_letters, snapshot, now, result)
                tries = 0
            except Overtaken:
                tries += 1
                if tries == _TRIES:
                    raise
                continue
            offsets_tried |= offsets_by_partition(dead_letters)

    def _read_next(self, selection: Selection, offsets_tried: OffsetSet) -> pa.Table:
        """Read the next of the chosen dead letters that were not tried yet: as many as one commit carries."""
        table = self._record_table.dead_letters
        snapshot = table.snapshot()
        batches: list[pa.RecordBatch] = []
        rows = 0
        size = 0
        try:
            files = table.bucket_files(snapshot)
            for dead_letters in read_dead_letters(table.store, files, selection, without=offsets_tried):
                # Without its bytes none can be replayed.
                batch = dead_letters.filter(dead_letters.column("value").is_valid())
                batches.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
                if rows >= DEAD_LETTERS_AT_ONCE or size >= BYTES_AT_ONCE:
                    break
        except FileNotFoundError as error:
            if table.snapshot().version == snapshot.version:
                raise
            raise Overtaken(
                f"another replay of pipeline {self._record_table.name!r} wrote dead letters anew while they were read"
            ) from error
        if not batches:
            return DEAD_LETTERS.empty_table()
        return pa.Table.from_batches(batches)

    def _replay(
        self,
        pipeline: LocalPipeline,
        dead_letters: pa.Table,
        snapshot: PipelineSnapshot,
        now: datetime,
        result: ReplayResult,
    ) -> None:
        """Run tasks on dead letters and commit what changed. `snapshot`: of the main table, before they were read."""
        with RecordCommit(self._record_table.tables, pipeline) as commit:
            for incarnation, table in split_by_incarnation(dead_letters):
                records = to_records(table)
                incarnations = dict.fromkeys(pc.unique(records.column("topic")).to_pylist(), incarnation)
                build_plan = partial(self._build_task_plan, pipeline, now, incarnations)
                commit.run_task(incarnations, partial(_read_pieces, records), build_plan)
            failed = self._read_failed(commit.report.dead_letter_files)
            attempt = _Attempt(dead_letters, commit.counts, failed)
            if attempt.has_changes:
                build_operation = partial(self._build_operation, commit, attempt, snapshot.replays, now)
                result.versions.append(commit.append(build_operation, snapshot))
        _add_attempt(result, attempt)

    def _build_task_plan(
        self, pipeline: LocalPipeline, now: datetime, incarnations: Mapping[str, int], _: Piece | None
    ) -> TaskPlan:
        return pipeline.task_plan(now, "replay", incarnations, self._older)

    def _build_operation(self, commit: RecordCommit, attempt: _Attempt, replays: int, now: datetime) -> Replay:
        """Return the entry: the rows, and the offsets whose dead letters go. `replays`: the number of those before."""
        moves = commit.moves(_count_outcomes(attempt.dead_letters))
        return Replay(
            uuid4().hex,
            replays,
            commit.report.files,
            commit.side_files,
            {self._record_table.settings.dead_letters: offsets_by_partition(attempt.dead_letters)},
            {
                "started": now.isoformat(),
                "moves": [{**vars(part), **exits} for part, exits in moves.items()],
                "letters": attempt.dead_letters.num_rows,
                **commit.row_facts(),
            },
            commit.meanings,
            commit.privacy_version,
        )

    def _read_failed(self, files: Sequence[StagedFile]) -> pa.Table:
        """Read dead letters that failed again: without their bytes."""
        schema = pa.schema([DEAD_LETTERS.field(name) for name in _REASON_COLUMNS])
        tables = [schema.empty_table()]
        for file in files:
            source = open_file(self._record_table.dead_letters.store, file.path)
            tables.append(pq.read_table(source, columns=_REASON_COLUMNS).cast(schema))
        return pa.concat_tables(tables)


def _add_attempt(result: ReplayResult, attempt: _Attempt) -> None:
    """Add what became of some dead letters to the result."""
    result.chosen += attempt.dead_letters.num_rows
    result.rows += attempt.rows
    result.filtered += attempt.filtered
    failures = attempt.failed.group_by(["outcome", "schema_id", "error"]).aggregate([([], "count_all")])
    for row in failures.to_pylist():
        failure = (row["outcome"], row["schema_id"], row["error"])
        result.failed[failure] = result.failed.get(failure, 0) + row["count_all"]


def _read_pieces(records: pa.Table, _: SchemaPlan) -> Iterator[Piece]:
    return map(Piece, records.to_batches())


def _count_outcomes(dead_letters: pa.Table) -> dict[TopicPartition, dict[str, int]]:
    """Count the dead letters of each part by their outcome, and its rows: none."""
    counts: dict[TopicPartition, dict[str, int]] = {}
    groups = dead_letters.group_by([*PARTITION_COLUMNS, "outcome"], use_threads=False)
    for row in groups.aggregate([([], "count_all")]).to_pylist():
        part = TopicPartition(*(row[name] for name in PARTITION_COLUMNS))
        part_counts = counts.setdefault(part, {"rows": 0, "dead_letters": 0, "quarantined": 0})
        part_counts["quarantined" if row["outcome"] == "quarantined" else "dead_letters"] += row["count_all"]
    return counts


def _has_other_reasons(before: pa.Table, after: pa.Table) -> bool:
    """Return whether dead letters that failed again did so for other reasons. That the window moved is none."""
    return _reasons(before) != _reasons(after)


def _reasons(dead_letters: pa.Table) -> dict[tuple[Any, ...], tuple[Any, ...]]:
    """Return by which schema, with which outcome and why each record failed, by its offset."""
    reasons = {}
    for row in dead_letters.select(_REASON_COLUMNS).to_pylist():
        offset = tuple(row[name] for name in OFFSET_COLUMNS)
        error, _, _ = row["error"].partition(", outside [")
        reasons[offset] = (row["schema_id"], row["outcome"], error)
    return reasons
