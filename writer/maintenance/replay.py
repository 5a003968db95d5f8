"""Replays dead letters: decodes them again with today's code and schemas, and commits the rows exactly once.

A replay is one commit of the main table: the rows, and the offsets whose dead letters go. Redo takes the dead letters
out of their table, as it adds those of any commit. So it may die anywhere, be run again, and run beside the writer: it
moves no frontier and raises no epoch. Two replays cannot both commit on the same dead letters, as each counts the
replays up.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from writer.batch.dead_letters import DEAD_LETTERS
from writer.batch.staging.parquet_files import open_file
from writer.batch.task_report import Report
from writer.commit import builder
from writer.commit.event_specs import check_version
from writer.commit.privacy import RecordedPrivacy, check_policies
from writer.config.pipelines import Config
from writer.core.files import StagedFile
from writer.core.offsets import OffsetSet, TopicPartition
from writer.maintenance.dead_letters import Selection, read_dead_letters, to_records
from writer.maintenance.local_pipeline import LocalPipeline, Piece, open_local_pipeline
from writer.privacy.protected_schema import Privacy
from writer.schemas.registry import SchemaSource
from writer.table.factory import all_tables
from writer.table.log.foreign_writes import Overtaken, PrivacyChanged
from writer.table.log.operations.rows import Replay
from writer.table.row_removal import OFFSET_COLUMNS, PARTITION_COLUMNS, offsets_by_partition

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
    report: Report
    # Dead letters that failed again, without their bytes.
    failed: pa.Table
    # Records that a spec leaves out.
    filtered: Mapping[TopicPartition, int]

    @property
    def row_files(self) -> list[StagedFile]:
        """Files of the rows that they became."""
        return builder.row_files(self.report)

    @property
    def rows(self) -> int:
        """The number of rows that they became."""
        return sum(file.rows for file in self.row_files)

    @property
    def has_changes(self) -> bool:
        """Whether some became a row, are left out, or failed for another reason."""
        return bool(self.rows or self.filtered or _has_other_reasons(self.dead_letters, self.failed))


class DeadLetterReplay:
    """A replay of one pipeline's dead letters."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource) -> None:
        """Open the tables. Raises HeadraceError when there are none."""
        self._name = name
        self._config = config
        self._settings = config.pipelines[name]
        self._source = schemas
        self._tables = all_tables(name, config)
        self._main = self._tables.main
        self._dead_letters = self._tables.side(self._settings.dead_letters)
        self._pipeline: LocalPipeline | None = None
        self._privacy: Privacy | None = None
        self._older = timedelta(0)
        self._main.check_exists()
        self._dead_letters.check_exists()

    def run(self, selection: Selection, now: datetime, older: timedelta = timedelta(0)) -> ReplayResult:
        """Replay the chosen dead letters, commit by commit. Raises what a commit raises; what is committed stays.

        `older`: how long ago the broker had them; event times that were believable then are believed.
        """
        self._older = older
        result = ReplayResult()
        offsets_tried = OffsetSet()
        pipeline = self._open_pipeline()
        tries = 0
        while True:
            replays = self._apply_side_files()
            try:
                dead_letters = self._read_next(selection, offsets_tried)
                if dead_letters.num_rows == 0:
                    return result
                self._replay(pipeline, dead_letters, replays, now, result)
                tries = 0
            except Overtaken as error:
                tries += 1
                if tries == _TRIES:
                    raise
                if isinstance(error, PrivacyChanged):
                    pipeline = self._open_pipeline()
                continue
            offsets_tried |= offsets_by_partition(dead_letters)

    def _open_pipeline(self) -> LocalPipeline:
        """Open the pipeline, with what its table's log has of privacy by now."""
        pipeline = open_local_pipeline(self._name, self._config, self._source, tables=self._tables)
        self._pipeline = pipeline
        self._privacy = pipeline.plan.privacy
        pipeline.assume_wires()
        return pipeline

    def _apply_side_files(self) -> int:
        """Apply side files. Returns the number of replays that the dead-letter table has seen then.

        Raises ConfigError where the writer was started with other event specs meanwhile.
        """
        snapshot = self._main.snapshot()
        check_version(self._name, self._settings, snapshot.specs_fingerprint)
        check_policies(self._name, self._settings, self._privacy, RecordedPrivacy.of(snapshot))
        self._tables.apply_side_files()
        return snapshot.replays

    def _read_next(self, selection: Selection, offsets_tried: OffsetSet) -> pa.Table:
        """Read the next of the chosen dead letters that were not tried yet: as many as one commit carries."""
        snapshot = self._dead_letters.snapshot()
        batches: list[pa.RecordBatch] = []
        rows = 0
        size = 0
        try:
            files = self._dead_letters.bucket_files(snapshot)
            for dead_letters in read_dead_letters(self._dead_letters.store, files, selection, without=offsets_tried):
                # Without its bytes none can be replayed.
                batch = dead_letters.filter(dead_letters.column("value").is_valid())
                batches.append(batch)
                rows += batch.num_rows
                size += batch.nbytes
                if rows >= DEAD_LETTERS_AT_ONCE or size >= BYTES_AT_ONCE:
                    break
        except FileNotFoundError as error:
            if self._dead_letters.snapshot().version == snapshot.version:
                raise
            raise Overtaken(
                f"another replay of pipeline {self._name!r} wrote dead letters anew while they were read"
            ) from error
        if not batches:
            return DEAD_LETTERS.empty_table()
        return pa.Table.from_batches(batches)

    def _replay(
        self, pipeline: LocalPipeline, dead_letters: pa.Table, replays: int, now: datetime, result: ReplayResult
    ) -> None:
        """Run tasks on dead letters and commit what changed. `replays`: the number of those before it."""
        reports: list[Report] = []
        filtered: dict[TopicPartition, int] = {}
        try:
            for incarnation in pc.unique(dead_letters.column("_incarnation")).to_pylist():
                is_of_incarnation = pc.equal(dead_letters.column("_incarnation"), incarnation)
                report = self._run_task(pipeline, dead_letters.filter(is_of_incarnation), incarnation, now)
                reports.append(report)
                for (topic, partition), counts in report.counts.items():
                    if counts.filtered:
                        filtered[TopicPartition(topic, incarnation, partition)] = counts.filtered
            report = builder.merge_reports(reports)
            attempt = _Attempt(dead_letters, report, self._read_failed(report.dead_letter_files), filtered)
            if attempt.has_changes:
                result.versions.append(self._commit(pipeline, attempt, replays, now))
                self._tables.apply_side_files()
            else:
                self._discard(report)
        except Overtaken:
            self._discard(builder.merge_reports(reports))
            raise
        _add_attempt(result, attempt)

    def _run_task(self, pipeline: LocalPipeline, dead_letters: pa.Table, incarnation: int, now: datetime) -> Report:
        """Run a task on the dead letters of one incarnation."""
        records = to_records(dead_letters)
        incarnations = dict.fromkeys(pc.unique(records.column("topic")).to_pylist(), incarnation)
        return pipeline.run(
            lambda _: map(Piece, records.to_batches()),
            lambda _: pipeline.task_plan(now, "replay", incarnations, self._older),
        )

    def _commit(self, pipeline: LocalPipeline, attempt: _Attempt, replays: int, now: datetime) -> int:
        """Commit the rows, and the offsets whose dead letters go. Returns the version of the main table."""
        # The table has the columns before any file has them.
        pipeline.grow(self._main)
        report = attempt.report
        files = attempt.row_files
        facts = {
            "started": now.isoformat(),
            "moves": _moves(attempt, files),
            **builder.spec_facts(report, pipeline.specs),
            "letters": attempt.dead_letters.num_rows,
            **builder.sums(files),
            **builder.target_facts(report),
        }
        operation = Replay(
            uuid4().hex,
            replays,
            report.files,
            pipeline.side_files(report),
            {self._settings.dead_letters: offsets_by_partition(attempt.dead_letters)},
            facts,
            pipeline.schemas.id_meanings(report),
            pipeline.schemas.privacy_version,
        )
        return self._main.append(operation, self._main.snapshot())

    def _read_failed(self, files: Sequence[StagedFile]) -> pa.Table:
        """Read dead letters that failed again: without their bytes."""
        schema = pa.schema([DEAD_LETTERS.field(name) for name in _REASON_COLUMNS])
        tables = [schema.empty_table()]
        for file in files:
            source = open_file(self._dead_letters.store, file.path)
            tables.append(pq.read_table(source, columns=_REASON_COLUMNS).cast(schema))
        return pa.concat_tables(tables)

    def _discard(self, report: Report) -> None:
        """Remove what was staged and will not be committed; what stays is an orphan."""
        assert self._pipeline is not None, "what was staged was staged by it"
        self._tables.discard(report.files, self._pipeline.side_files(report))


def _add_attempt(result: ReplayResult, attempt: _Attempt) -> None:
    """Add what became of some dead letters to the result."""
    result.chosen += attempt.dead_letters.num_rows
    result.rows += attempt.rows
    result.filtered += sum(attempt.filtered.values())
    failures = attempt.failed.group_by(["outcome", "schema_id", "error"]).aggregate([([], "count_all")])
    for row in failures.to_pylist():
        failure = (row["outcome"], row["schema_id"], row["error"])
        result.failed[failure] = result.failed.get(failure, 0) + row["count_all"]


def _moves(attempt: _Attempt, files: Sequence[StagedFile]) -> list[dict[str, Any]]:
    """Return what the replay changes of each part's outcomes: in sum nothing, from what was read and written."""
    moves: dict[TopicPartition, dict[str, int]] = {}
    for table, sign in ((attempt.dead_letters, -1), (attempt.failed, 1)):
        for part, outcome, count in _count_outcomes(table):
            part_moves = moves.setdefault(part, {"rows": 0, "dead_letters": 0, "quarantined": 0})
            part_moves["quarantined" if outcome == "quarantined" else "dead_letters"] += sign * count
    for part, count in attempt.filtered.items():
        moves[part]["filtered"] = count
    for part_moves in moves.values():
        part_moves["rows"] = -sum(part_moves.values())
    rows = sum(part_moves["rows"] for part_moves in moves.values())
    assert rows == sum(file.rows for file in files), f"{moves}, {files}"
    return [{**vars(part), **part_moves} for part, part_moves in moves.items()]


def _count_outcomes(dead_letters: pa.Table) -> Iterator[tuple[TopicPartition, str, int]]:
    """Yield the number of dead letters of each part and outcome."""
    groups = dead_letters.group_by([*PARTITION_COLUMNS, "outcome"], use_threads=False)
    for row in groups.aggregate([([], "count_all")]).to_pylist():
        part = TopicPartition(*(row[name] for name in PARTITION_COLUMNS))
        yield part, row["outcome"], row["count_all"]


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
