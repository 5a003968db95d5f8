"""Reads the history that an audit uses: logs and ledgers of a pipeline's tables, each up to one version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.core.files import BucketFile
from writer.core.offsets import Span, TopicPartition
from writer.table import held_files
from writer.table.factory import all_tables
from writer.table.gap_records import read_history
from writer.table.ledger.segment import LedgerSegment, Removal, clear_before_adoption
from writer.table.log.entries import CommittedEntry, parse_commit_info, parse_committed_entry
from writer.table.log.snapshot import TargetRecord
from writer.table.row_removal import count_rows
from writer.table.table import PipelineTable


@dataclass(frozen=True)
class TableHistory:
    """The history of one table by log and ledger, oldest first; empty for a table that does not exist."""

    table: PipelineTable
    place: str  # where the configuration has it
    history: Sequence[LedgerSegment] = ()
    files: Sequence[BucketFile] = ()
    applied: int = -1  # of a side table: version of the main table up to which its side files are there

    @property
    def removals(self) -> list[Removal]:
        """What was taken out of it."""
        return [removal for one in self.history for removal in one.removals]


@dataclass(frozen=True)
class PipelineTables:
    """All tables of a pipeline. `version`, `settled` and `frontier` are of the main one.

    `targets`: tables of a route, which hold the rows then.
    """

    rows: TableHistory
    dead_letters: TableHistory
    late: Sequence[TableHistory]  # tables of late rows: of the pipeline, of each target
    version: int
    settled: int
    frontier: Mapping[TopicPartition, int]
    targets: Sequence[TableHistory] = ()
    target_places: Mapping[str, TargetRecord] = field(default_factory=dict)  # of these and of their late rows
    raw: Sequence[TableHistory] = ()  # raw tables, which hold each record once more

    @property
    def outcomes_beside(self) -> list[TableHistory]:
        """The tables but the main one that hold what became of records."""
        return [self.dead_letters, *self.late, *self.targets]

    @property
    def beside(self) -> list[TableHistory]:
        """All tables but the main one."""
        return [*self.outcomes_beside, *self.raw]


def read(config: Config, pipeline: str) -> PipelineTables:
    """Read logs and ledgers. Raises CommitFailed, LedgerUnreadable, HeadraceError when there is no table."""
    settings = config.pipelines[pipeline]
    tables = all_tables(pipeline, config)
    main = tables.main
    main.check_exists()
    # Those beside it first: what they are by now, the main table's log says by then.
    known = main.snapshot().targets().values()
    target_places = {one.location for one in known}
    late_places = dict.fromkeys([settings.late_place, *(one.late for one in known if one.late)])
    late = [_beside(tables.side(place)) for place in late_places if place not in target_places]
    dead_letters = _beside(tables.side(settings.dead_letters))
    targets = [_beside(tables.side(one.location)) for one in known if _is_there(tables.side(one.location), one)]
    raw = [_beside(tables.side(place)) for place in main.snapshot().raw_locations]
    snapshot, segments = read_history(main, pipeline, main.rows_at)
    rows = TableHistory(main, settings.table.location, clear_before_adoption(segments), main.bucket_files(snapshot))
    return PipelineTables(
        rows, dead_letters, late, snapshot.version, snapshot.settled, snapshot.parts(), targets,
        snapshot.targets_by_location, raw,
    )  # fmt: skip


def _is_there(table: PipelineTable, target: TargetRecord) -> bool:
    """Return whether a table of a route was made. Raises HeadraceError for one that was, and is not there."""
    there = table.exists()
    if target.id and not there:
        raise HeadraceError(
            f"the table of target {target.name!r} at {target.location} is not there: its storage is away, or it was "
            "removed. Its rows cannot be counted; repair that, then audit again."
        )
    return there


def _beside(table: PipelineTable) -> TableHistory:
    if not table.exists():
        return TableHistory(table, table.location)
    snapshot, segments = read_history(table, table.pipeline, table.rows_at)
    return TableHistory(
        table, table.location, clear_before_adoption(segments), table.bucket_files(snapshot), snapshot.applied
    )


@dataclass(frozen=True)
class PendingChanges:
    """What the main table's log lists for one table beside it, and that table does not have yet."""

    files: Sequence[BucketFile] = ()
    held: Sequence[BucketFile] = ()  # that wait at the main table's location, by their paths there
    without: Mapping[TopicPartition, Sequence[Span]] = field(default_factory=dict)  # offsets whose rows go
    withdrawn: int = 0  # rows that go: dead letters that replays made rows, and what rewinds take
    rewound: int = 0  # of these, what rewinds take
    commits: int = 0  # that list something for it


@dataclass(frozen=True)
class PendingSideFiles:
    """What the main table's log lists for the tables beside it and is not applied yet, by their locations."""

    commits: int
    tables: Mapping[str, PendingChanges]


def waiting(lake: PipelineTables) -> PendingSideFiles:
    """Find what the log lists for the tables beside the main one, after the versions that they have."""
    at = {one.place: max(one.applied, lake.settled) for one in lake.beside}
    entries = (
        (n, parse_commit_info(actions)[1])
        for n, actions in lake.rows.table.entries(min(at.values()))
        if n <= lake.version
    )
    store = lake.rows.table.store
    committed = [one for n, about in entries if (one := parse_committed_entry(n, about, store)) is not None]
    listed = [one for one in committed if one.side_files or one.withdrawn]
    pending = sum(
        any(one.version > until and (place in one.side_files or place in one.withdrawn) for place, until in at.items())
        for one in listed
    )
    found = {}
    for table in lake.beside:
        of_table = [one for one in listed if one.version > at[table.place]]
        found[table.place] = _pending(table, of_table, lake.target_places.get(table.place))
    return PendingSideFiles(pending, found)


def _pending(table: TableHistory, commits: Sequence[CommittedEntry], target: TargetRecord | None) -> PendingChanges:
    """Return what commits list for a table that does not have them. What a rewind takes was there when it landed."""
    files, held = list[BucketFile](), list[BucketFile]()
    for entry in [one.side_entry(table.place, target) for one in commits]:
        for file in entry.files:
            at = (
                held_files.source_and_target(entry.held_folder, file, hidden=table.table.hidden)[0]
                if entry.held_folder
                else file.path
            )
            (held if entry.held_folder else files).append(BucketFile(at, file.bucket, file.rows, file.bytes))
    going = _spans([one for one in commits if one.facts["kind"] == "rewind"], table.place)
    replayed = _spans([one for one in commits if one.facts["kind"] != "rewind"], table.place)
    rewound = sum(count_rows(table.table.store, file, going) for file in table.files) if going else 0
    withdrawn = rewound + sum(end - start for spans in replayed.values() for start, end in spans)
    without = {part: [*replayed.get(part, ()), *going.get(part, ())] for part in {**replayed, **going}}
    concerned = sum(table.place in one.side_files or table.place in one.withdrawn for one in commits)
    return PendingChanges(files, held, without, withdrawn, rewound, concerned)


def _spans(commits: Sequence[CommittedEntry], place: str) -> dict[TopicPartition, list[Span]]:
    """Return which offsets of the table at a place go by these commits."""
    found: dict[TopicPartition, list[Span]] = {}
    for one in commits:
        for part, spans in one.withdrawn.get(place, {}).items():
            found.setdefault(part, []).extend(spans)
    return found
