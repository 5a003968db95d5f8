"""What logs and ledgers tell of a pipeline's tables, each up to one version: what an audit goes by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from writer.config import Config
from writer.errors import HeadraceError
from writer.ledger.book import Book
from writer.ledger.chapter import Chapter, Removal, chapters, since_adoption
from writer.ledger.deep import DataFile
from writer.tables.formats import main_table, side_table
from writer.tables.parts import Part
from writer.tables.snapshot import PipelineSnapshot
from writer.tables.table import PipelineTable


@dataclass(frozen=True)
class Told:
    """One table, as its log and ledger tell of it, oldest first. Nothing is told of one that is not there."""

    table: PipelineTable
    place: str  # where the configuration has it
    history: Sequence[Chapter] = ()
    files: Sequence[DataFile] = ()
    applied: int = -1  # of a side table: version of the main table up to which its side files are there

    @property
    def removals(self) -> list[Removal]:
        """What was taken out of it."""
        return [removal for one in self.history for removal in one.removals]


@dataclass(frozen=True)
class Lake:
    """All tables of a pipeline. `version`, `settled` and `frontier` are of the main one."""

    rows: Told
    letters: Told
    late: Told
    version: int
    settled: int
    frontier: Mapping[Part, int]


def read(config: Config, pipeline: str) -> Lake:
    """Read logs and ledgers. Raises CommitFailed, LedgerUnreadable, HeadraceError when there is no table."""
    settings = config.pipelines[pipeline]
    main = main_table(pipeline, config)
    if not main.exists():
        place = settings.table.location
        raise HeadraceError(f"pipeline {pipeline!r} has no table at {place} yet. `headrace run` makes it.")
    # The letters first: what they are by now, the main table's log says by then.
    letters, late = (_beside(config, pipeline, place) for place in (settings.dead_letters, settings.late_place))
    snapshot, history = _history(main, pipeline)
    rows = Told(main, settings.table.location, history, main.files(snapshot.version))
    return Lake(rows, letters, late, snapshot.version, snapshot.settled, snapshot.parts())


def _beside(config: Config, pipeline: str, place: str) -> Told:
    table = side_table(pipeline, config, place)
    if not table.exists():
        return Told(table, place)
    snapshot, history = _history(table, pipeline)
    return Told(table, place, history, table.files(snapshot.version), snapshot.applied)


def _history(table: PipelineTable, pipeline: str) -> tuple[PipelineSnapshot, list[Chapter]]:
    """Return a snapshot of a table, and what ledger and log say of it up to there, oldest first."""
    pages = Book(table.store, table.snapshot().state.metadata["id"], pipeline).pages()
    snapshot = table.snapshot()  # at or after the newest page
    after = pages[-1].last if pages else -1
    entries = ((version, actions) for version, actions in table.entries(after) if version <= snapshot.version)
    return snapshot, since_adoption([*pages, *chapters(entries, pipeline, table.rows_at)])
