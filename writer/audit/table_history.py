"""Reads the history that an audit uses: logs and ledgers of a pipeline's tables, each up to one version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from writer.config.pipelines import Config
from writer.core.files import BucketFile
from writer.core.offsets import Span, TopicPartition
from writer.table.factory import main_table, side_table
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
    """All tables of a pipeline. `version`, `settled` and `frontier` are of the main one."""

    rows: TableHistory
    dead_letters: TableHistory
    late: TableHistory
    version: int
    settled: int
    frontier: Mapping[TopicPartition, int]


def read(config: Config, pipeline: str) -> Lake:
    """Read logs and ledgers. Raises CommitFailed, LedgerUnreadable, HeadraceError when there is no table."""
    settings = config.pipelines[pipeline]
    main = main_table(pipeline, config)
    main.check_exists()
    # The dead letters first: what they are by now, the main table's log says by then.
    dead_letters, late = (_beside(config, pipeline, place) for place in (settings.dead_letters, settings.late_place))
    snapshot, segments = history(main, pipeline, main.rows_at)
    rows = TableHistory(main, settings.table.location, since_adoption(segments), main.bucket_files(snapshot))
    return Lake(rows, dead_letters, late, snapshot.version, snapshot.settled, snapshot.parts())


def _beside(config: Config, pipeline: str, place: str) -> TableHistory:
    table = side_table(pipeline, config, place)
    if not table.exists():
        return TableHistory(table, place)
    snapshot, segments = history(table, pipeline, table.rows_at)
    return TableHistory(table, place, since_adoption(segments), table.bucket_files(snapshot), snapshot.applied)


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


def waiting(lake: Lake) -> Waiting:
    """Find what the log lists for the tables of dead letters and of late rows, after the versions that they have."""
    dead_letters, late = lake.dead_letters, lake.late
    at = {side_history.place: max(side_history.applied, lake.settled) for side_history in (dead_letters, late)}
    entries = (
        (n, parse_commit_info(actions)[1])
        for n, actions in lake.rows.table.entries(min(at.values()))
        if n <= lake.version
    )
    listed = [one for n, about in entries if (one := parse_committed(n, about)) and (one.side_files or one.withdrawn)]
    files, rows = (
        [
            BucketFile(file.path, file.bucket, file.rows, file.bytes)
            for one in listed
            if one.version > at[place]
            for file in one.side_files.get(place, ())
        ]
        for place in (dead_letters.place, late.place)
    )
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
    return Waiting(files, rows, without, withdrawn, pending, rewound, late_going, late_rewound)


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
