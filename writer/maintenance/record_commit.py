"""Commits what tasks make of records that were read again: one entry for all of it, or none."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.batch.task import Admit, Read
from headrace.writer.batch.task_report import EXITS, Counts, Report
from headrace.writer.commit import builder
from headrace.writer.commit.batch_limits import route_spread_max, task_count
from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.local_pipeline import BuildPlan, LocalPipeline, open_local_pipeline
from headrace.writer.maintenance.task_pool import TaskPool
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.operation import Operation
from headrace.writer.table.log.schema_ids import accepted_times
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.lost_tables import refuse_lost_tables
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.row_removal import REFUSALS, RemovalResult, RowMask, stage_remaining_rows
from headrace.writer.table.table import PipelineTable

# Bytes of a row in Parquet, until a commit has shown them.
BYTES_PER_ROW_GUESS = 60.0
_COMMITS_READ = 10


@dataclass(frozen=True)
class _LogState:
    """What a pipeline takes from its table's log when it is opened."""

    columns: pa.Schema
    specs: int
    privacy: int
    # Of schema ids whose other meaning was accepted.
    accepted_times: Mapping[str, int]

    @classmethod
    def of(cls, snapshot: PipelineSnapshot) -> Self:
        """Return that of a version of the table."""
        times = accepted_times(snapshot.state.transactions, snapshot.pipeline)
        return cls(snapshot.columns(), snapshot.specs, snapshot.privacy, times)


class RecordTable:
    """The table of one pipeline, for a command that reads records again and commits them beside the live writer."""

    def __init__(self, name: str, config: Config, schemas: SchemaSource, pool: TaskPool | None = None) -> None:
        """Open the tables. Raises HeadraceError when there are none.

        `pool`: of processes for the tasks; None: each task runs in this process.
        """
        self.name = name
        self.config = config
        self.pool = pool or TaskPool()
        self.settings = config.pipelines[name]
        self.tables = all_tables(name, config)
        self.table = self.tables.main
        self.dead_letters = self.tables.side(self.settings.dead_letters)
        self._schemas = schemas
        self._pipeline: LocalPipeline | None = None
        # Of the log, when the pipeline was opened.
        self._log_state: _LogState | None = None
        self.table.check_exists()
        refuse_lost_tables(self.settings, self.table, self.tables.side)
        self.dead_letters.check_exists()

    @property
    def pipeline(self) -> LocalPipeline:
        """The pipeline, for tasks of the command. Raises RegistryUnreachable, ConfigError, CommitFailed."""
        if self._pipeline is None:
            self._log_state = _LogState.of(self.table.snapshot())
            self._pipeline = open_local_pipeline(self.name, self.config, self._schemas, tables=self.tables)
        return self._pipeline

    @property
    def raw(self) -> str | None:
        """Location of the raw table, where the pipeline keeps records in one."""
        location = self.settings.raw_place
        return location if location in self.table.snapshot().raw_locations else None

    @property
    def bytes_per_row(self) -> float:
        """Parquet bytes of a row, by the newest commits."""
        return builder.bytes_per_row(self.table.recent_commits(_COMMITS_READ)) or BYTES_PER_ROW_GUESS

    def task_count(self, records: int) -> int:
        """Return how many tasks carry so many records of a commit, at most as many as the pool runs at once.

        As in a batch of the driver while more waits: every task has about an eighth of a file of the target size.
        """
        if self.pool.size == 1:
            return 1
        spread_max: int | None = None
        targets = self.pipeline.targets
        if targets is not None:
            spread_max = route_spread_max(records, targets.count)
        return task_count(
            records * self.bytes_per_row,
            self.settings.roll.target_file_size,
            self.pool.size,
            partitions=0,
            behind=True,
            spread_max=spread_max,
        )

    def refresh(self) -> PipelineSnapshot:
        """Apply pending side files. Returns the version of the table before. Raises CommitFailed.

        The pipeline is opened anew where the log has other columns, specs, privacy entries or meanings of ids by now.
        """
        snapshot = self.table.snapshot()
        self.tables.apply_side_files()
        if self._log_state != _LogState.of(snapshot):
            # The live writer has met another schema, or was started with other specs or privacy.
            self._pipeline = None
        return snapshot


class RecordCommit:
    """One entry of a table's log, made of records that tasks take again. A context manager.

    The steps, in this order:

    1. `run_task` runs a task on the records of one incarnation of their topics, which stages files, and `run_tasks`
       several at once; `add_report` takes files that were staged otherwise. `remove_rows` stages what is left of
       files whose rows go. `discard_side_files` removes what tasks staged for other tables, where the entry names
       none of it.
    2. `append` checks the age of what was staged: a vacuum removes old files that no entry names.
    3. It enters in the log what schemas said is to be protected, and gives the table its columns. So both are there
       before an entry names files.
    4. It appends the entry, which names all that was staged.
    5. The end of the block applies side files.

    What was staged is removed where no entry can name it: if the block ends before step 4, in whatever way, and if the
    log refuses the entry (`REFUSALS`). It stays where an entry may name it: after any other error and any interruption
    of step 4, and whatever fails after it. A vacuum removes files that stay and that no entry names; the next command
    applies side files that are left.
    """

    def __init__(
        self,
        tables: Tables,
        pipeline: LocalPipeline,
        table: PipelineTable | None = None,
        start: datetime | None = None,
    ) -> None:
        """`table`: that gets rows and entry; None: the pipeline's own. `start`: from when on it stages; None: now."""
        self.start = start or datetime.now(UTC)
        # What became of the records of each part.
        self.counts: dict[TopicPartition, Counts] = {}
        self._tables = tables
        self._pipeline = pipeline
        self._table = table or tables.main
        self._reports: list[Report] = []
        self._has_side_files = True
        self._destinations: list[Destination] = []
        # An entry may name what was staged.
        self._may_be_named = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Apply side files, or remove what was staged. Raises as `Tables.apply_side_files` does."""
        if not self._may_be_named:
            self._discard()
        elif error is None:
            self._tables.apply_side_files()

    @property
    def report(self) -> Report:
        """The reports of all tasks."""
        return builder.merge_reports(self._reports)

    @property
    def side_files(self) -> Mapping[str, Sequence[StagedFile]]:
        """Files that the tasks staged for other tables, by the locations of these."""
        if not self._has_side_files:
            return {}
        return self._pipeline.side_files(self.report)

    @property
    def meanings(self) -> Mapping[str, int]:
        """Fingerprints of the schemas that the records' schema ids mean, by the name of the `txn`."""
        return self._pipeline.schemas.id_meanings(self.report)

    @property
    def privacy_version(self) -> int | None:
        """The version of the privacy entries by which rows were made."""
        return self._pipeline.schemas.privacy_version

    def run_task(self, incarnations: Mapping[str, int], read: Read, build_plan: BuildPlan) -> Report:
        """Run a task in this process on the records that `read` gives; for the rest see `LocalPipeline.run`.

        `incarnations`: of the records' topics.
        """
        report = self._pipeline.run(read, build_plan)
        self._add_reports(incarnations, [report])
        return report

    def run_tasks(
        self,
        incarnations: Mapping[str, int],
        groups: Sequence[Iterable[Read]],
        build_plan: BuildPlan,
        pool: TaskPool,
        admit: Admit,
    ) -> Report:
        """Run a task on each group of reads, at once in processes of their own. Returns their sum.

        `admit`: as `TaskPool.run` asks it. For the rest see `LocalPipeline.run_tasks`.
        """
        pool.start_processes(len(groups))
        reports = self._pipeline.run_tasks(groups, build_plan, partial(pool.run, admit=admit))
        self._add_reports(incarnations, reports)
        return builder.merge_reports(reports)

    def _add_reports(self, incarnations: Mapping[str, int], reports: Sequence[Report]) -> None:
        """Take the reports of tasks that shared the records of some parts."""
        self._reports += reports
        for (topic, partition), counts in builder.merge_reports(reports).counts.items():
            part = TopicPartition(topic, incarnations[topic], partition)
            assert part not in self.counts, f"{part}: the tasks of one call take all of its records"
            self.counts[part] = counts

    def add_report(self, report: Report) -> None:
        """Take what was staged otherwise than by a task."""
        self._reports.append(report)

    def remove_rows(
        self,
        files: Sequence[BucketFile],
        count_removed: Callable[[BucketFile], int],
        mask_removed: RowMask,
        *,
        columns: Sequence[str],
        prefix: str,
        rule: TimeRule,
    ) -> RemovalResult:
        """Stage what is left of files when rows are removed from them; see `stage_remaining_rows`."""
        table = self._table
        destination = Destination(table.store, tuple(columns), prefix, 0, hidden=table.hidden, below=table.folder)
        self._destinations.append(destination)
        return stage_remaining_rows(destination, files, count_removed, mask_removed, rule)

    def discard_side_files(self) -> None:
        """Remove what the tasks staged for other tables: the entry names none of it."""
        with suppress(OSError, CommitFailed):
            self._tables.discard((), self.side_files)
        self._has_side_files = False

    def moves(self, before: Mapping[TopicPartition, Mapping[str, int]]) -> dict[TopicPartition, dict[str, int]]:
        """Return how many records more than before each exit has, of each part; in sum none.

        `before`: how many had an exit. Exits that no record had or has are left out, but those of `before`. Example: of
        five rows two became dead letters: {"rows": -2, "dead_letters": 2}.
        """
        rows = sum(counts.rows for counts in self.counts.values())
        assert rows == sum(file.rows for file in builder.row_files(self.report)), "each row is in a file"
        moves = {}
        for part, counts in self.counts.items():
            exits_before = before[part]
            exits = {name: getattr(counts, name) for name in EXITS}
            names = [name for name in EXITS if exits[name] or name in exits_before]
            moves[part] = {name: exits[name] - exits_before.get(name, 0) for name in names}
            assert not sum(moves[part].values()), f"{part}: {counts}, before {exits_before}"
        return moves

    def row_facts(self) -> dict[str, Any]:
        """Return what an entry says of rows, of tables of a route and of specs, as JSON values."""
        report = self.report
        return {
            **builder.sums(builder.row_files(report)),
            **builder.target_facts(report),
            **builder.spec_facts(report, self._pipeline.specs),
        }

    def append(self, build_operation: Callable[[], Operation], snapshot: PipelineSnapshot) -> int:
        """Append the entry of an operation. Returns its version.

        `build_operation` is called once the log has what is to be protected: `privacy_version` says so. `snapshot`: the
        version of the table that the operation is made for. Raises StagedTooLongAgo, PrivacyChanged, CommitFailed, and
        as `Appender.append` does.
        """
        settings = self._pipeline.config.pipelines[self._pipeline.name]
        builder.check_age(self.start, datetime.now(UTC), settings.table.orphan_retention)
        self._pipeline.grow(self._tables.main, self._table)
        operation = build_operation()
        self._may_be_named = True
        try:
            return self._table.append(operation, snapshot)
        except REFUSALS:
            self._may_be_named = False
            raise

    def _discard(self) -> None:
        """Remove what was staged, as far as the storage lets it; what stays is an orphan."""
        # An error here is one of the storage itself, and would hide why the block ended.
        with suppress(OSError, CommitFailed):
            for destination in self._destinations:
                destination.remove()
            self._table.discard(self.report.files)
            self._tables.discard((), self.side_files)
