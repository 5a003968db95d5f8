"""Reads the history that an audit uses: logs and ledgers of a pipeline's tables, each up to one version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from writer.config.pipelines import Config
from writer.core.files import BucketFile
from writer.core.offsets import Span, TopicPartition
from writer.table.factory import all_tables
from writer.table.gap_records import history
from writer.table.ledger.segment import LedgerSegment, Removal, since_adoption
from writer.table.log.entries import CommittedEntry, parse_commit_info, parse_committed
from writer.table.row_removal import count
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
class Lake:
    """All tables of a pipeline. `version`, `settled` and `frontier` are of the main one.

    `targets`: tables of a route, which hold the rows then.
    """

    rows: TableHistory
    dead_letters: TableHistory
    late: TableHistory
    version: int
    settled: int
    frontier: Mapping[TopicPartition, int]
    targets: Sequence[TableHistory] = ()


def read(config: Config, pipeline: str) -> Lake:
    """Read logs and ledgers. Raises CommitFailed, LedgerUnreadable, HeadraceError when there is no table."""
    settings = config.pipelines[pipeline]
    tables = all_tables(pipeline, config)
    main = tables.main
    main.check_exists()
    # Those beside it first: what they are by now, the main table's log says by then.
    dead_letters, late = (_beside(tables.side(place)) for place in (settings.dead_letters, settings.late_place))
    targets = [_beside(tables.side(one.location)) for one in main.snapshot().targets().values()]
    snapshot, segments = history(main, pipeline, main.rows_at)
    rows = TableHistory(main, settings.table.location, since_adoption(segments), main.bucket_files(snapshot))
    return Lake(rows, dead_letters, late, snapshot.version, snapshot.settled, snapshot.parts(), targets)


def _beside(table: PipelineTable) -> TableHistory:
    if not table.exists():
        return TableHistory(table, table.location)
    snapshot, segments = history(table, table.pipeline, table.rows_at)
    return TableHistory(table, table.location, since_adoption(segments), table.bucket_files(snapshot), snapshot.applied)


@dataclass(frozen=True)
class Waiting:
    """Dead letters and late rows in side files that the main table's log lists and that are not applied yet."""

    files: Sequence[BucketFile]
    late: Sequence[BucketFile]
    without: Mapping[TopicPartition, Sequence[Span]]  # dead letters that replays made rows, or rewinds take
    withdrawn: int
    commits: int
    rewound: int = 0  # of these dead letters, those that rewinds take
    late_without: Mapping[TopicPartition, Sequence[Span]] = field(default_factory=dict)
    late_rewound: int = 0  # late rows that rewinds take
    targets: Mapping[str, Sequence[BucketFile]] = field(default_factory=dict)  # by the location of the table


def waiting(lake: Lake) -> Waiting:
    """Find what the log lists for the tables beside the main one, after the versions that they have."""
    dead_letters, late = lake.dead_letters, lake.late
    at = {one.place: max(one.applied, lake.settled) for one in (dead_letters, late, *lake.targets)}
    entries = (
        (n, parse_commit_info(actions)[1])
        for n, actions in lake.rows.table.entries(min(at.values()))
        if n <= lake.version
    )
    listed = [one for n, about in entries if (one := parse_committed(n, about)) and (one.side_files or one.withdrawn)]
    files = {
        place: [
            BucketFile(file.path, file.bucket, file.rows, file.bytes)
            for one in listed
            if one.version > until
            for file in one.side_files.get(place, ())
        ]
        for place, until in at.items()
    }
    rewinds = [one for one in listed if one.facts["kind"] == "rewind"]
    replays = [one for one in listed if one.facts["kind"] != "rewind"]
    replayed, going = (_spans(commits, dead_letters.place, at[dead_letters.place]) for commits in (replays, rewinds))
    late_going = _spans(rewinds, late.place, at[late.place])
    rewound, late_rewound = _rows_at(dead_letters, going), _rows_at(late, late_going)
    withdrawn = rewound + sum(end - start for spans in replayed.values() for start, end in spans)
    without = {part: [*replayed.get(part, ()), *going.get(part, ())] for part in {**replayed, **going}}
    pending = sum(
        any(one.version > until and (place in one.side_files or place in one.withdrawn) for place, until in at.items())
        for one in listed
    )
    return Waiting(
        files[dead_letters.place], files[late.place], without, withdrawn, pending, rewound, late_going, late_rewound,
        {one.place: files[one.place] for one in lake.targets},
    )  # fmt: skip


def _spans(commits: Sequence[CommittedEntry], place: str, applied: int) -> dict[TopicPartition, list[Span]]:
    """Return which offsets of the table at a place go, by commits that it does not have yet."""
    found: dict[TopicPartition, list[Span]] = {}
    for one in commits:
        for part, spans in one.withdrawn.get(place, {}).items() if one.version > applied else ():
            found.setdefault(part, []).extend(spans)
    return found


def _rows_at(side_history: TableHistory, offsets: Mapping[TopicPartition, Sequence[Span]]) -> int:
    """Count rows at these offsets. What a rewind takes was there when it landed: side files come first."""
    return sum(count(side_history.table.store, file, offsets) for file in side_history.files) if offsets else 0
