"""Reads the history that an audit uses: logs and ledgers of a pipeline's tables, each up to one version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketFile, StagedFile
from headrace.writer.core.offsets import OffsetSet, TopicPartition
from headrace.writer.table import held_files
from headrace.writer.table.factory import all_tables
from headrace.writer.table.gap_records import read_history
from headrace.writer.table.ledger.segment import LedgerSegment, Removal, clear_before_adoption
from headrace.writer.table.log.entries import CommittedEntry, SideEntry, parse_commit_info, parse_committed_entry
from headrace.writer.table.log.snapshot import PipelineSnapshot, TargetRecord
from headrace.writer.table.lost_tables import (
    DEAD_LETTER_TABLE,
    LATE_TABLE,
    RAW_TABLE,
    LostTable,
    find_lost_side_table,
    last_lost_version,
)
from headrace.writer.table.row_removal import count_rows
from headrace.writer.table.table import PipelineTable


@dataclass(frozen=True)
class TableHistory:
    """The history of one table by log and ledger; empty for a table that does not exist."""

    table: PipelineTable
    # Where the configuration has it.
    location: str
    # Oldest first.
    segments: Sequence[LedgerSegment] = ()
    files: Sequence[BucketFile] = ()
    # Of a side table: the version of the main table up to which it has its side files.
    applied: int = -1
    # How a side table was lost, and its kind; None: it is there, or the log does not know it.
    lost: LostTable | None = None
    kind: str = ""

    @property
    def removals(self) -> list[Removal]:
        """Removals of rows from the table."""
        return list(chain.from_iterable(segment.removals for segment in self.segments))


@dataclass(frozen=True)
class PipelineHistory:
    """The histories of all tables of a pipeline. `version`, `settled` and `frontier` are of the main table."""

    main: TableHistory
    dead_letters: TableHistory
    # Tables of late rows: of the pipeline, and of each target.
    late: Sequence[TableHistory]
    version: int
    settled: int
    frontier: Mapping[TopicPartition, int]
    # Tables of a route, which hold the rows in place of the main table.
    targets: Sequence[TableHistory] = ()
    # By the location of a target, and by that of its table of late rows.
    target_records: Mapping[str, TargetRecord] = field(default_factory=dict)
    # Raw tables, which hold each record once more.
    raw: Sequence[TableHistory] = ()

    @property
    def side_outcome_tables(self) -> list[TableHistory]:
        """The tables except the main one that hold outcomes of records."""
        return [self.dead_letters, *self.late, *self.targets]

    @property
    def side_tables(self) -> list[TableHistory]:
        """All tables except the main one."""
        return [*self.side_outcome_tables, *self.raw]


def read_pipeline_history(config: Config, pipeline: str) -> PipelineHistory:
    """Read logs and ledgers. Raises CommitFailed, LedgerUnreadable, HeadraceError when there is no table."""
    settings = config.pipelines[pipeline]
    tables = all_tables(pipeline, config)
    main = tables.main
    main.check_exists()
    # Side tables are read before the main one, so that its log lists all that they have by then.
    log = main.snapshot()
    target_records = log.targets().values()
    target_locations = {target.location for target in target_records}
    late_locations = [settings.late_place, *(target.late for target in target_records if target.late)]
    late = [
        _read_known_history(tables.side(location), LATE_TABLE, log, main)
        for location in dict.fromkeys(late_locations)
        if location not in target_locations
    ]
    dead_letters = _read_known_history(tables.side(settings.dead_letters), DEAD_LETTER_TABLE, log, main)
    targets = [
        _read_side_history(tables.side(target.location))
        for target in target_records
        if _exists(tables.side(target.location), target)
    ]
    raw = [_read_known_history(tables.side(location), RAW_TABLE, log, main) for location in log.raw_locations]
    snapshot, segments = read_history(main, pipeline, main.rows_at)
    history = PipelineHistory(
        main=TableHistory(main, settings.table.location, clear_before_adoption(segments), main.bucket_files(snapshot)),
        dead_letters=dead_letters,
        late=late,
        version=snapshot.version,
        settled=snapshot.settled,
        frontier=snapshot.parts(),
        targets=targets,
        target_records=snapshot.targets_by_location,
        raw=raw,
    )
    return _find_lost_versions(history)


def _find_lost_versions(history: PipelineHistory) -> PipelineHistory:
    """Return the history with what waits for tables that are not there: of commits whose files are gone, nothing."""
    commits = list[CommittedEntry]()
    if any(table.lost for table in history.side_tables):
        commits = _commits_after(history, history.settled)

    def with_version(table: TableHistory) -> TableHistory:
        if table.lost is None:
            return table
        version = last_lost_version(table.table, commits)
        return replace(table, applied=max(table.applied, version))

    return replace(
        history,
        dead_letters=with_version(history.dead_letters),
        late=[with_version(table) for table in history.late],
        raw=[with_version(table) for table in history.raw],
    )


def _read_known_history(table: PipelineTable, kind: str, log: PipelineSnapshot, main: PipelineTable) -> TableHistory:
    """Read the history of a table beside a log, and whether it was lost. `kind`: as in "dead-letter table"."""
    lost = find_lost_side_table(table, kind, log, main.location)
    return replace(_read_side_history(table), lost=lost, kind=kind)


def _exists(table: PipelineTable, target: TargetRecord) -> bool:
    """Return whether the table of a target exists. Raises HeadraceError if it does not, but was made before."""
    exists = table.exists()
    if target.id and not exists:
        raise HeadraceError(
            f"the table of target {target.name!r} at {target.location} is not there: its storage is away, or it was "
            "removed. Its rows cannot be counted; repair that, then audit again."
        )
    return exists


def _read_side_history(table: PipelineTable) -> TableHistory:
    if not table.exists():
        return TableHistory(table, table.location)
    snapshot, segments = read_history(table, table.pipeline, table.rows_at)
    return TableHistory(
        table, table.location, clear_before_adoption(segments), table.bucket_files(snapshot), snapshot.applied
    )


@dataclass(frozen=True)
class PendingChanges:
    """What the main table's log lists for one side table, and the table does not have yet."""

    files: Sequence[BucketFile] = ()
    # Files that wait at the main table's location, by their paths there.
    held_files: Sequence[BucketFile] = ()
    # Offsets whose rows leave the table.
    removed_offsets: OffsetSet = field(default_factory=OffsetSet)
    # The number of rows that leave: dead letters that replays made rows, and rows that rewinds take.
    withdrawn: int = 0
    # Of these, the rows that rewinds take.
    rewound: int = 0
    # The number of commits that list something for the table.
    commits: int = 0


@dataclass(frozen=True)
class PendingSideFiles:
    """What the main table's log lists for its side tables and is not applied yet, by their locations."""

    commits: int
    tables: Mapping[str, PendingChanges]


def pending_side_files(history: PipelineHistory) -> PendingSideFiles:
    """Return what the log lists for the side tables after the versions that they have."""
    settled = {table.location: max(table.applied, history.settled) for table in history.side_tables}
    commits = _commits_after(history, min(settled.values()))
    pending_commits = sum(
        any(commit.version > version and _concerns(commit, location) for location, version in settled.items())
        for commit in commits
    )
    changes = {}
    for table in history.side_tables:
        commits_of_table = [commit for commit in commits if commit.version > settled[table.location]]
        changes[table.location] = _pending_changes(table, commits_of_table, history.target_records.get(table.location))
    return PendingSideFiles(pending_commits, changes)


def _commits_after(history: PipelineHistory, version: int) -> list[CommittedEntry]:
    """Return the entries of the main table's log after a version that list something for a side table."""
    store = history.main.table.store
    commits = []
    for entry_version, actions in history.main.table.entries(version):
        if entry_version > history.version:
            continue
        _, commit_info = parse_commit_info(actions)
        commit = parse_committed_entry(entry_version, commit_info, store)
        if commit is not None and (commit.side_files or commit.withdrawn):
            commits.append(commit)
    return commits


def _concerns(commit: CommittedEntry, location: str) -> bool:
    """Return whether a commit lists files or withdrawn rows for the table at a location."""
    return location in commit.side_files or location in commit.withdrawn


def _pending_changes(
    table: TableHistory, commits: Sequence[CommittedEntry], target: TargetRecord | None
) -> PendingChanges:
    """Return what commits list for a table that does not have them. A rewind takes rows that the table has."""
    files = []
    waiting_files = []
    for commit in commits:
        entry = commit.side_entry(table.location, target)
        if entry.held_folder:
            waiting_files += [_held_file(entry, file, hidden=table.table.hidden) for file in entry.files]
        else:
            files += [BucketFile(file.path, file.bucket, file.rows, file.bytes) for file in entry.files]
    rewinds = [commit for commit in commits if commit.facts["kind"] == "rewind"]
    replays = [commit for commit in commits if commit.facts["kind"] != "rewind"]
    rewound_offsets = OffsetSet.union(_withdrawn_offsets(rewinds, table.location))
    # Two replays may each withdraw a dead letter at an offset: the second one that of the first.
    replayed_offsets = _withdrawn_offsets(replays, table.location)
    rewound = 0
    if rewound_offsets:
        rewound = sum(count_rows(table.table.store, file, rewound_offsets) for file in table.files)
    return PendingChanges(
        files=files,
        held_files=waiting_files,
        removed_offsets=OffsetSet.union([*replayed_offsets, rewound_offsets]),
        withdrawn=rewound + sum(offsets.count for offsets in replayed_offsets),
        rewound=rewound,
        commits=sum(_concerns(commit, table.location) for commit in commits),
    )


def _held_file(entry: SideEntry, file: StagedFile, *, hidden: bool) -> BucketFile:
    """Return a file of an entry by the path where it waits at the main table's location."""
    source, _ = held_files.source_and_target(entry.held_folder, file, hidden=hidden)
    return BucketFile(source, file.bucket, file.rows, file.bytes)


def _withdrawn_offsets(commits: Sequence[CommittedEntry], location: str) -> list[OffsetSet]:
    """Return the offsets whose rows leave the table at a location, by each of these commits."""
    return [commit.withdrawn[location] for commit in commits if location in commit.withdrawn]
