"""Audits a table from the lake alone: every offset in log and ledger, and on request in every file."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from headrace.writer.audit.offset_count import WITHOUT_OFFSET, FileOffsets, FileSet, count_file_offsets
from headrace.writer.audit.reconciliation import (
    Problem,
    Reconciliation,
    compare_files,
    compare_raw_files,
    compare_totals,
    reconcile,
)
from headrace.writer.audit.table_history import (
    PendingSideFiles,
    PipelineHistory,
    TableHistory,
    pending_side_files,
    read_pipeline_history,
)
from headrace.writer.batch.staging.table_file import read_footer
from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketFile, staged_name
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from headrace.writer.core.pages import page_address
from headrace.writer.table.ledger.segment import Answer, LedgerSegment, Removal
from headrace.writer.table.table import PipelineTable


@dataclass(frozen=True)
class Account:
    """What the tables should hold by logs and ledgers, and what was taken out of them, by why."""

    reconciliation: Reconciliation
    # From the first version on.
    is_complete: bool
    pending: PendingSideFiles
    # By commands: retention, delete, dedupe; by other clients: DELETE.
    rows_taken: Mapping[str, int]
    dead_letters_taken: Mapping[str, int]
    # Out of the tables of late rows.
    late_taken: Mapping[str, int]
    # Out of the raw tables.
    raw_taken: Mapping[str, int]

    @property
    def unplaced(self) -> int:
        """Rows without offsets: adopted, or backfilled by event time."""
        return self.reconciliation.adopted + self.reconciliation.unplaced

    @property
    def rows_left(self) -> int:
        """Rows that the table should hold: those of commits and adoptions, without what was taken out."""
        return self.reconciliation.total("rows") + self.unplaced - sum(self.rows_taken.values())

    @property
    def dead_letters_left(self) -> int:
        """Rows that the dead-letter table should hold."""
        committed = self.reconciliation.total("dead_letters") + self.reconciliation.total("quarantined")
        return committed - sum(self.dead_letters_taken.values())

    @property
    def late_left(self) -> int:
        """Rows that the tables of late rows should hold."""
        return self.reconciliation.total("late") - sum(self.late_taken.values())

    @property
    def raw_left(self) -> int:
        """Records that the raw tables should hold."""
        return self.reconciliation.raw - sum(self.raw_taken.values())

    @property
    def in_no_table(self) -> dict[str, int]:
        """Offsets that the account expects in no table, by why; those that a rewind took back count once."""
        lines = self.reconciliation.lines
        counts = Counter(
            {
                "tombstones": self.reconciliation.total("tombstones"),
                "filtered": self.reconciliation.total("filtered"),
                "without a record": sum(line.without_records for line in lines),
                "in gaps": sum(line.gap for line in lines),
                "taken by rewind": -sum(line.rewound for line in lines),
            }
        )
        for taken in (self.rows_taken, self.dead_letters_taken, self.late_taken):
            counts.update({f"taken by {reason}": count for reason, count in taken.items()})
        return {reason: count for reason, count in counts.items() if count}


@dataclass(frozen=True)
class TargetCount:
    """What one table of a route was given by the account, by logs, ledgers and what waits for it."""

    name: str
    location: str
    # Rows that were committed for it. Of all tables these are the account's, adopted and unplaced ones included.
    rows: int
    # Rows that were committed for its table of late rows.
    late_table: int
    # Of these rows, those that commands, other clients or rewinds took.
    rows_removed: int
    late_table_rows_removed: int
    # Commits that it does not have yet.
    commits_waiting: int


@dataclass(frozen=True)
class Audit(Account):
    """The result of an audit."""

    # What the files hold; empty unless they were read.
    file_offsets: Mapping[TopicPartition, FileOffsets]
    problems: tuple[Problem, ...]
    # Files whose rows no log says; where there are some, sums are not compared.
    uncounted: int
    # The acceptance of what another client did: of rows from before less is proven.
    accepted: Answer | None
    # Of a route, when the account is complete: those that wait first, then by rows.
    targets: Sequence[TargetCount] = ()

    @property
    def adds_up(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    @property
    def waiting(self) -> int:
        """Commits whose side files are not applied yet."""
        return self.pending.commits

    @property
    def rows_removed(self) -> int:
        """Rows that were taken out of the table."""
        return sum(self.rows_taken.values())

    @property
    def dead_letters_removed(self) -> int:
        """Dead letters that were removed from their table, except by replays."""
        return sum(self.dead_letters_taken.values())


def audit(config: Config, pipeline: str, *, since: int | datetime | None, deep: bool) -> Audit:
    """Add up the accounting and compare it with what the tables hold.

    `since`: a version, or an instant, from which on commits are looked at; in the ledger it reaches back to the
    beginning of a page. Files are read from the newest acceptance on: what they held before, it gave up. Raises
    CommitFailed, LedgerUnreadable, HeadraceError when there is no table.
    """
    history = read_pipeline_history(config, pipeline)
    account = _build_account(history, since)
    accepted = account.reconciliation.accepted
    problems = [Problem(table.lost.text.removesuffix(".")) for table in history.side_tables if table.lost]
    problems += [*account.reconciliation.problems, *_check_other_clients(history, account.reconciliation)]
    if account.is_complete:
        problems += _compare_row_counts(history, account)
    file_offsets: dict[TopicPartition, FileOffsets] = {}
    if deep:
        if accepted:
            account = _build_account(history, accepted.version + 1)
        file_offsets, file_problems = _compare_files(history, account)
        problems += file_problems
    files = chain.from_iterable(table.files for table in (history.main, *history.side_tables))
    return Audit(
        **vars(account),
        file_offsets=file_offsets,
        problems=tuple(problems),
        uncounted=sum(file.rows is None for file in files),
        accepted=accepted,
        targets=_count_targets(history, account.pending) if account.is_complete else (),
    )


def _count_targets(history: PipelineHistory, pending: PendingSideFiles) -> list[TargetCount]:
    """Count what the tables of a route were given, as `_compare_row_counts` adds it up."""
    tables = {table.location: table for table in (*history.targets, *history.late)}
    counts = []
    # A table and that of its late rows have one record.
    for record in dict.fromkeys(history.target_records.values()):
        rows = _count_table(tables.get(record.location), pending)
        late_rows = _count_table(tables.get(record.late), pending)
        counts.append(
            TargetCount(
                record.name,
                record.location,
                rows=rows.committed,
                late_table=late_rows.committed,
                rows_removed=rows.taken,
                late_table_rows_removed=late_rows.taken,
                commits_waiting=max(rows.waiting_commits, late_rows.waiting_commits),
            )
        )
    return sorted(counts, key=lambda count: (-count.commits_waiting, -count.rows, count.name))


@dataclass(frozen=True)
class _RowCount:
    """Rows that were committed for a table, how many of them were taken, and the commits that it does not have."""

    committed: int = 0
    taken: int = 0
    waiting_commits: int = 0


def _count_table(table: TableHistory | None, pending: PendingSideFiles) -> _RowCount:
    if table is None:
        return _RowCount()
    changes = pending.tables[table.location]
    files, withdrawn = _with_pending([table], pending)
    taken = sum(_sum_by_operation(table.removals, changes.rewound).values())
    rows = sum(file.rows or 0 for file in files) - withdrawn
    return _RowCount(rows + taken, taken, changes.commits)


def _build_account(history: PipelineHistory, since: int | datetime | None) -> Account:
    segments, version_before = _segments_since(history.main.segments, since)
    reconciliation = reconcile(segments, history.frontier, history.version, version_before)
    pending = pending_side_files(history)
    return Account(
        reconciliation,
        is_complete=version_before < 0,
        pending=pending,
        rows_taken=_sum_taken(history.targets, pending, reconciliation.removals),
        dead_letters_taken=_sum_taken([history.dead_letters], pending),
        late_taken=_sum_taken(history.late, pending),
        raw_taken=_sum_taken(history.raw, pending),
    )


def _segments_since(segments: Sequence[LedgerSegment], since: int | datetime | None) -> tuple[list[LedgerSegment], int]:
    """Return the segments from a version or an instant on, and the version before the first of them: -1 for all."""
    match since:
        case None:
            return list(segments), -1
        case int():
            later_segments = [segment for segment in segments if segment.last >= since]
        case _:
            later_segments = [segment for segment in segments if segment.ended is None or segment.ended >= since]
    if not later_segments:
        return [], segments[-1].last
    return later_segments, later_segments[0].first - 1


def _sum_taken(
    tables: Sequence[TableHistory], pending: PendingSideFiles, main_removals: Sequence[Removal] = ()
) -> dict[str, int]:
    """Add up what was taken out of tables, by why; `main_removals`: of the main table, which belong to them."""
    removals = [*main_removals, *chain.from_iterable(table.removals for table in tables)]
    return _sum_by_operation(removals, sum(pending.tables[table.location].rewound for table in tables))


def _sum_by_operation(removals: Iterable[Removal], rewound: int) -> dict[str, int]:
    """Add up what was taken, by why; `rewound`: what rewinds are still to take."""
    sums: dict[str, int] = {}
    if rewound:
        sums["rewind"] = rewound
    for removal in removals:
        sums[removal.operation] = sums.get(removal.operation, 0) + (removal.rows or 0)
    return sums


def _check_other_clients(history: PipelineHistory, reconciliation: Reconciliation) -> list[Problem]:
    """Return what other clients did to the tables, where that cannot be counted."""
    problems = _check_removals(history.main.location, reconciliation.removals)
    for table in history.side_tables:
        problems += _check_removals(table.location, table.removals)
    for table in history.side_tables:
        violations = chain.from_iterable(segment.violations for segment in table.segments)
        problems += [Problem(f"{violation} in {table.location}") for violation in violations]
    return problems


def _check_removals(location: str, removals: Sequence[Removal]) -> list[Problem]:
    return [
        Problem(
            f"{removal.operation} of another client (version {removal.version} of {location}) does not say how many "
            "rows it took"
        )
        for removal in removals
        if removal.rows is None
    ]


def _compare_row_counts(history: PipelineHistory, account: Account) -> list[Problem]:
    """Compare the rows that the tables' logs count in their files with the accounting."""
    pending = account.pending
    target_files, withdrawn = _with_pending(history.targets, pending)
    late_fix = _describe_move(history.late, "seal.late_table")
    dead_letters_fix = _describe_move([history.dead_letters], "table.dead_letters")
    return [
        *compare_totals("rows of the late table", *_with_pending(history.late, pending), account.late_left, late_fix),
        *compare_totals("rows", [*history.main.files, *target_files], withdrawn, account.rows_left),
        *compare_totals(
            "rows of the dead-letter table",
            *_with_pending([history.dead_letters], pending),
            account.dead_letters_left,
            dead_letters_fix,
        ),
        *compare_totals("raw records", *_with_pending(history.raw, pending), account.raw_left),
    ]


@dataclass(frozen=True)
class SideTableLoss:
    """A table beside the log that was lost, and what went with it."""

    kind: str
    location: str
    # Rows that the account has and its tables do not.
    rows: int
    # The version of the log up to which what commits listed for the table is gone.
    version: int


def find_losses(config: Config, pipeline: str) -> list[SideTableLoss]:
    """Return the tables beside the log that were lost. Raises CommitFailed, LedgerUnreadable, HeadraceError.

    Where rows of several tables of late rows, or of raw records, are missing, they count for the first.
    """
    history = read_pipeline_history(config, pipeline)
    if not any(table.lost for table in history.side_tables):
        return []
    account = _build_account(history, None)
    losses = []
    for tables, expected in (
        ([history.dead_letters], account.dead_letters_left),
        (history.late, account.late_left),
        (history.raw, account.raw_left),
    ):
        files, withdrawn = _with_pending(tables, account.pending)
        missing_rows = max(0, expected - sum(file.rows or 0 for file in files) + withdrawn)
        for table in tables:
            if table.lost:
                version = max(table.applied, history.settled)
                losses.append(SideTableLoss(table.kind, table.location, missing_rows, version))
                missing_rows = 0
    return losses


def _describe_move(tables: Sequence[TableHistory], setting: str) -> str:
    """Say where missing rows may lie: the log does not tell which location a setting named before."""
    if any(table.lost for table in tables):
        return "They went with the table that is lost"
    locations = " and ".join(table.location for table in tables)
    return (
        f"They belong to {locations}. If {setting}, or its default, named another location before, set it back, or "
        f"move that table while no driver runs ({page_address('docs/TABLES.md#move-a-table-with-its-history')})"
    )


def _with_pending(tables: Sequence[TableHistory], pending: PendingSideFiles) -> tuple[list[BucketFile], int]:
    """Return the files of tables, with those that wait for them, and how many rows of them are to leave."""
    files = list(chain.from_iterable(table.files for table in tables))
    withdrawn = 0
    for table in tables:
        changes = pending.tables[table.location]
        files += [*changes.files, *changes.held_files]
        withdrawn += changes.withdrawn
    return files, withdrawn


def _compare_files(
    history: PipelineHistory, account: Account
) -> tuple[dict[TopicPartition, FileOffsets], list[Problem]]:
    """Count what the files hold, and compare it with the account. Reads every file."""
    reconciliation = account.reconciliation
    file_offsets = _count_file_offsets(_outcome_file_sets(history, account.pending), account)
    rows_without_offset = file_offsets.pop(WITHOUT_OFFSET, FileOffsets()).rows
    rows_removed = sum(account.rows_taken.values())
    missing_unplaced = 0
    if account.is_complete:
        missing_unplaced = account.unplaced - rows_without_offset
    lines = {line.part: line for line in reconciliation.lines}
    # Which rows of a table were removed is not known: those that are missing without an offset are some of them.
    removed_with_offset = rows_removed - max(missing_unplaced, 0) + sum(account.late_taken.values())
    problems = _check_unplaced(missing_unplaced, rows_removed)
    problems += compare_files(
        lines,
        file_offsets,
        removed_with_offset,
        sum(account.dead_letters_taken.values()),
        is_exact=account.is_complete,
    )
    raw_file_sets = list(chain.from_iterable(_side_file_sets(table, account.pending) for table in history.raw))
    raw_offsets: Mapping[TopicPartition, FileOffsets] = {}
    if raw_file_sets:
        raw_offsets = _count_file_offsets(raw_file_sets, account)
    raw_removed = sum(account.raw_taken.values())
    problems += compare_raw_files(lines, raw_offsets, raw_removed, is_exact=account.is_complete)
    return file_offsets, problems


def _check_unplaced(missing: int, removed: int) -> list[Problem]:
    """Check the number of rows without an offset; below zero: there are more than the account has."""
    if missing < 0:
        return [Problem(f"{-missing:,} rows say no offset, beyond those that were adopted or came by event time")]
    if missing > removed:
        return [Problem(f"{missing - removed:,} rows that were adopted, or came by event time, are not there")]
    return []


def _outcome_file_sets(history: PipelineHistory, pending: PendingSideFiles) -> list[FileSet]:
    """Return the files that hold outcomes of records, with those that wait for their tables."""
    main = history.main.table
    file_sets = [FileSet(main.store, _visible_files(main, history.main.files))]
    for table in history.side_outcome_tables:
        file_sets += _side_file_sets(table, pending, dead_letters=table is history.dead_letters)
        waiting_files = pending.tables[table.location].held_files
        if waiting_files:
            file_sets.append(FileSet(main.store, waiting_files))
    return file_sets


def _side_file_sets(history: TableHistory, pending: PendingSideFiles, *, dead_letters: bool = False) -> list[FileSet]:
    """Return the files of a side table, and those at its location that it does not have yet."""
    table = history.table
    changes = pending.tables[history.location]
    return [
        FileSet(
            table.store,
            _visible_files(table, history.files),
            dead_letters=dead_letters,
            removed_offsets=changes.removed_offsets,
        ),
        FileSet(table.store, changes.files, dead_letters=dead_letters),
    ]


def _visible_files(table: PipelineTable, files: Sequence[BucketFile]) -> list[BucketFile]:
    """Return the files that readers see: where another client wrote, its files too, and what is left of ours.

    Raises HeadraceError where one of them says nothing of where its rows come from.
    """
    foreign_paths = table.foreign_paths() if table.exists() else []
    if not foreign_paths:
        return list(files)
    for path in foreign_paths:
        if not {*PROVENANCE.names} <= {*read_footer(table.store, path).schema.to_arrow_schema().names}:
            raise HeadraceError(
                f"{table.location}/{path} was not written by headrace, and readers take its rows for the table's. "
                "Move it away."
            )
    own_files = [file for file in files if any(map(table.store.mark, (file.path, staged_name(file.path))))]
    return [*own_files, *(BucketFile(path, (), None, 0) for path in foreign_paths)]


def _count_file_offsets(file_sets: Sequence[FileSet], account: Account) -> dict[TopicPartition, FileOffsets]:
    """Count what files hold of the account's partitions. Raises HeadraceError if a file is gone."""
    lines = account.reconciliation.lines
    ranges = [line.range for line in lines]
    gaps = OffsetSet({line.part: line.gaps for line in lines})
    try:
        return count_file_offsets(file_sets, ranges, gaps, below_is_known=not account.is_complete)
    except FileNotFoundError as error:
        raise HeadraceError(
            f"a file that the table names is gone: {error}. Restore it; without it the rows that it held are lost."
        ) from error
