"""Audits a table from the lake alone: every offset in log and ledger, and on request in every file."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from writer.audit.offset_count import WITHOUT_OFFSET, FileOffsets, FileSet, count
from writer.audit.reconciliation import Problem, Reconciliation, compared, compared_raw, state, totals
from writer.audit.table_history import PendingChanges, PendingSideFiles, PipelineTables, TableHistory, read, waiting
from writer.avro.schema_plan import PROVENANCE
from writer.batch.staging.parquet_files import staged_name
from writer.batch.staging.table_file import read_footer
from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.core.files import BucketFile
from writer.core.offsets import TopicPartition
from writer.table.ledger.segment import Answer, LedgerSegment, Removal
from writer.table.table import PipelineTable


@dataclass(frozen=True)
class Account:
    """What the tables should hold by logs and ledgers, and what was taken out of them, by why."""

    reconciliation: Reconciliation
    whole: bool  # from the beginning on
    pending: PendingSideFiles
    rows_taken: Mapping[str, int]  # on purpose: retention, delete, dedupe; by other clients: DELETE
    dead_letters_taken: Mapping[str, int]
    late_taken: Mapping[str, int]  # out of the table of late rows
    raw_taken: Mapping[str, int]  # out of the raw table

    @property
    def unplaced(self) -> int:
        """Rows without offsets: adopted, or backfilled by event time."""
        return self.reconciliation.adopted + self.reconciliation.unplaced

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
                "taken by rewind": -sum(line.back for line in lines),
            }
        )
        for taken in (self.rows_taken, self.dead_letters_taken, self.late_taken):
            counts.update({f"taken by {why}": count for why, count in taken.items()})
        return {why: count for why, count in counts.items() if count}


@dataclass(frozen=True)
class TargetCount:
    """What one table of a route was given by the account, by logs, ledgers and what waits for it."""

    name: str
    location: str
    rows: int  # that were committed for it; of all tables, those of the account, adopted and unplaced ones included
    late: int  # likewise, of its table of late rows
    rows_taken: int  # of these rows, those that went on purpose, by other clients, or by a rewind
    late_taken: int
    waiting: int  # commits that it does not have yet


@dataclass(frozen=True)
class Audit(Account):
    """The result of an audit. `found` is empty unless files were read."""

    found: Mapping[TopicPartition, FileOffsets]
    problems: tuple[Problem, ...]
    uncounted: int  # files whose rows no log says; where there are some, sums are not compared
    accepted: Answer | None  # what another client did, which stands: of rows from before less is proven
    targets: Sequence[TargetCount] = ()  # of a route, when it is whole: those that wait first, then by rows

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
    lake = read(config, pipeline)
    account = _drawn_up(lake, since)
    problems = [*account.reconciliation.problems, *_of_others(lake, account.reconciliation)]
    if account.whole:
        problems += _in_sum(lake, account)
    found: dict[TopicPartition, FileOffsets] = {}
    accepted = account.reconciliation.accepted
    if deep:
        if accepted:
            account = _drawn_up(lake, accepted.version + 1)
        found, more = _in_files(lake, account)
        problems += more
    files = [file for one in (lake.rows, *lake.beside) for file in one.files]
    uncounted = sum(file.rows is None for file in files)
    return Audit(
        **vars(account), found=found, problems=tuple(problems), uncounted=uncounted, accepted=accepted,
        targets=_by_target(lake, account.pending) if account.whole else (),
    )  # fmt: skip


def _by_target(lake: PipelineTables, pending: PendingSideFiles) -> list[TargetCount]:
    """Count what the tables of a route were given. Their sums are those that `_in_sum` compares with the account."""
    tables = {one.place: one for one in (*lake.targets, *lake.late)}

    def count(place: str) -> tuple[int, int, int]:
        """Return how many rows were given to a table, how many were taken of these, and the commits that wait."""
        if (one := tables.get(place)) is None:
            return 0, 0, 0
        files, going = _with_pending([one], pending)
        changes = pending.tables[place]
        taken = sum(_by_operation(one.removals, changes.rewound).values())
        return sum(file.rows or 0 for file in files) - going + taken, taken, changes.commits

    found = []
    for record in dict.fromkeys(lake.target_places.values()):  # a table and that of its late rows have one
        (rows, taken, waiting), (late, late_taken, more) = count(record.location), count(record.late)
        counts = (rows, late, taken, late_taken, max(waiting, more))
        found.append(TargetCount(record.name, record.location, *counts))
    return sorted(found, key=lambda one: (-one.waiting, -one.rows, one.name))


def _drawn_up(lake: PipelineTables, since: int | datetime | None) -> Account:
    chosen, floor = _chosen(lake.rows.history, since)
    reconciliation, pending = state(chosen, lake.frontier, lake.version, floor), waiting(lake)
    taken = [*reconciliation.removals, *(removal for one in lake.targets for removal in one.removals)]

    def rewound(*tables: TableHistory) -> int:
        return sum(pending.tables[one.place].rewound for one in tables)

    return Account(
        reconciliation, floor < 0, pending, _by_operation(taken, rewound(*lake.targets)),
        _by_operation(lake.dead_letters.removals, rewound(lake.dead_letters)),
        *(
            _by_operation([removal for one in tables for removal in one.removals], rewound(*tables))
            for tables in (lake.late, lake.raw)
        ),
    )  # fmt: skip


def _chosen(history: Sequence[LedgerSegment], since: int | datetime | None) -> tuple[list[LedgerSegment], int]:
    """Return the segments from there on, and the version before the first of them: -1 for all."""
    match since:
        case None:
            return list(history), -1
        case int():
            kept = [one for one in history if one.last >= since]
        case _:
            kept = [one for one in history if one.ended is None or one.ended >= since]
    floor = kept[0].first - 1 if kept else history[-1].last
    return kept, floor


def _by_operation(removals: Sequence[Removal], rewound: int = 0) -> dict[str, int]:
    """Add up what was taken, by why; `rewound`: what rewinds are still to take."""
    found: dict[str, int] = {"rewind": rewound} if rewound else {}
    for one in removals:
        found[one.operation] = found.get(one.operation, 0) + (one.rows or 0)
    return found


def _of_others(lake: PipelineTables, reconciliation: Reconciliation) -> list[Problem]:
    """Find what other clients did to the tables, where that cannot be reckoned with."""
    beside = [(history.place, history.removals) for history in lake.beside]
    removed = [(lake.rows.place, reconciliation.removals), *beside]
    unsaid = [
        f"{r.operation} of another client (version {r.version} of {place}) does not say how many rows it took"
        for place, removals in removed
        for r in removals
        if r.rows is None
    ]
    strange = [
        f"{text} in {history.place}" for history in lake.beside for one in history.history for text in one.violations
    ]
    return [Problem(text) for text in (*unsaid, *strange)]


def _in_sum(lake: PipelineTables, account: Account) -> list[Problem]:
    """Compare the rows that the tables' logs count in their files with the accounting."""
    reconciliation, pending = account.reconciliation, account.pending
    rows = reconciliation.total("rows") + account.unplaced - sum(account.rows_taken.values())
    late = reconciliation.total("late") - sum(account.late_taken.values())
    dead_letters = (
        reconciliation.total("dead_letters")
        + reconciliation.total("quarantined")
        - sum(account.dead_letters_taken.values())
    )
    raw = reconciliation.raw - sum(account.raw_taken.values())
    in_targets, going = _with_pending(lake.targets, pending)
    late_fix = _describe_move(lake.late, "seal.late_table")
    dead_letters_fix = _describe_move([lake.dead_letters], "table.dead_letters")
    return [
        *totals("rows of the late table", *_with_pending(lake.late, pending), late, late_fix),
        *totals("rows", [*lake.rows.files, *in_targets], going, rows),
        *totals(
            "rows of the dead-letter table",
            *_with_pending([lake.dead_letters], pending),
            dead_letters,
            dead_letters_fix,
        ),
        *totals("raw records", *_with_pending(lake.raw, pending), raw),
    ]


def _describe_move(tables: Sequence[TableHistory], setting: str) -> str:
    """Say where missing rows may lie: the log does not tell which location a setting named before."""
    places = " and ".join(table.place for table in tables)
    return (
        f"They belong to {places}. If {setting}, or its default, named another location before, set it back, or move "
        "that table while no driver runs (docs/TABLES.md, Move a table with its history)"
    )


def _with_pending(tables: Sequence[TableHistory], pending: PendingSideFiles) -> tuple[list[BucketFile], int]:
    """Return the files of tables, with those that their logs do not have yet, and how many rows of them are to go."""
    changes = [pending.tables[one.place] for one in tables]
    files = [file for one in tables for file in one.files]
    files += [file for one in changes for file in (*one.files, *one.held)]
    return files, sum(pending.tables[one.place].withdrawn for one in tables)


def _in_files(lake: PipelineTables, account: Account) -> tuple[dict[TopicPartition, FileOffsets], list[Problem]]:
    """Count what the files hold, and hold it against the account. Reads every file."""
    reconciliation, pending, problems = account.reconciliation, account.pending, list[Problem]()
    file_sets = [FileSet(lake.rows.table.store, _seen(lake.rows.table, lake.rows.files))]
    for one in lake.outcomes_beside:
        changes = pending.tables[one.place]
        file_sets += _file_sets(one, changes, dead_letters=one is lake.dead_letters)
        file_sets += [FileSet(lake.rows.table.store, changes.held)] if changes.held else []
    found = _counted(file_sets, reconciliation, below_is_known=not account.whole)
    without_offset = found.pop(WITHOUT_OFFSET, FileOffsets()).rows
    adopted = account.unplaced - without_offset if account.whole else 0
    removed = sum(account.rows_taken.values())
    if adopted < 0:
        problems.append(
            Problem(f"{-adopted:,} rows say no offset, beyond those that were adopted or came by event time")
        )
    if adopted > removed:
        what = "that were adopted, or came by event time,"
        problems.append(Problem(f"{adopted - removed:,} rows {what} are not there"))
    known = {line.part: line for line in reconciliation.lines}
    rows = removed - max(adopted, 0) + sum(account.late_taken.values())
    problems += compared(known, found, rows, sum(account.dead_letters_taken.values()), exact=account.whole)
    raw_sets = [files for one in lake.raw for files in _file_sets(one, pending.tables[one.place])]
    raw = _counted(raw_sets, reconciliation, below_is_known=not account.whole) if raw_sets else {}
    return found, problems + compared_raw(known, raw, sum(account.raw_taken.values()), exact=account.whole)


def _file_sets(one: TableHistory, changes: PendingChanges, *, dead_letters: bool = False) -> list[FileSet]:
    """Return the files of a table beside the main one, and those that it does not have yet."""
    there = FileSet(one.table.store, _seen(one.table, one.files), dead_letters=dead_letters, without=changes.without)
    return [there, FileSet(one.table.store, changes.files, dead_letters=dead_letters)]


def _seen(table: PipelineTable, named: Sequence[BucketFile]) -> list[BucketFile]:
    """Return the files that readers see: where another client wrote, its files too, and what is left of ours.

    Raises HeadraceError where one of them says nothing of where its rows come from.
    """
    foreign = table.foreign_paths() if table.exists() else []
    if not foreign:
        return list(named)
    for path in foreign:
        if not {*PROVENANCE.names} <= {*read_footer(table.store, path).schema.to_arrow_schema().names}:
            raise HeadraceError(
                f"{table.location}/{path} was not written by headrace, and readers take its rows for the table's. "
                "Move it away."
            )
    left = [file for file in named if any(map(table.store.mark, (file.path, staged_name(file.path))))]
    return [*left, *(BucketFile(path, (), None, 0) for path in foreign)]


def _counted(
    file_sets: Sequence[FileSet], reconciliation: Reconciliation, *, below_is_known: bool
) -> dict[TopicPartition, FileOffsets]:
    ranges = {line.part: (line.start, line.end) for line in reconciliation.lines}
    gaps = {line.part: line.gaps for line in reconciliation.lines if line.gaps}
    try:
        return count(file_sets, ranges, gaps, below_is_known=below_is_known)
    except FileNotFoundError as error:
        raise HeadraceError(
            f"a file that the table names is gone: {error}. Restore it; without it the rows that it held are lost."
        ) from error
