"""Finds tables beside a pipeline's log that are gone, or are others than the log knows: none is made anew in silence.

The log has the id of each table beside it. Where it has none, nothing is known of that table: it is made where it is
missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import staged_name
from headrace.writer.table.log.entries import CommittedEntry
from headrace.writer.table.log.foreign_writes import reading
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

# Kinds of these tables.
DEAD_LETTER_TABLE = "dead-letter table"
LATE_TABLE = "late table"
RAW_TABLE = "raw table"
# Where it is not known which of them it is.
ANY_TABLE = "table"
_FIX = (
    "Restore it with its log. If it is lost for good, `headrace table accept` makes an empty one and enters the loss; "
    "`headrace audit` says how many rows that is."
)


class SideTableLost(ConfigError):
    """A table beside a pipeline's log is not there, or is another than the log knows."""


@dataclass(frozen=True)
class LostTable:
    """A table that is not there, though a run has written to it. `reason`: a sentence without its full stop."""

    reason: str
    fix: str

    @property
    def text(self) -> str:
        """Both as sentences."""
        return f"{self.reason}. {self.fix}"


def find_lost_side_table(
    table: PipelineTable, kind: str, snapshot: PipelineSnapshot, log_location: str
) -> LostTable | None:
    """Return how a table beside a log was lost; None where it is there, or the log does not know it.

    `kind`: as in "dead-letter table"; `snapshot`: of the log that lies at `log_location`. Raises CommitFailed.
    """
    if table.location not in snapshot.side_table_ids:
        return None
    side_snapshot = table.snapshot() if table.exists() else None
    return side_table_loss(table.location, side_snapshot, kind, snapshot, log_location)


def side_table_loss(
    location: str, side_snapshot: PipelineSnapshot | None, kind: str, snapshot: PipelineSnapshot, log_location: str
) -> LostTable | None:
    """Return the same for the newest version of the table; None: it is not there."""
    table_id = snapshot.side_table_ids.get(location)
    if table_id is None:
        return None
    if side_snapshot is None:
        return LostTable(
            f"the {kind} at {location} is not there any more: the log at {log_location} says that it was made, and "
            "counts what was written to it. It was removed, or its bucket or disk was made anew",
            _FIX,
        )
    if table_id not in (side_snapshot.table_id, side_snapshot.replaces):
        return LostTable(
            f"the {kind} at {location} is not the one that the log at {log_location} knows: that was removed, and "
            "another was made in its place",
            _FIX,
        )
    return None


def side_table_kinds(settings: Pipeline) -> dict[str, str]:
    """Return the kinds of the tables beside a log that a start makes, by location; those of a route left aside."""
    kinds = {settings.dead_letters: DEAD_LETTER_TABLE}
    if settings.late_table is not None:
        kinds[settings.late_table] = LATE_TABLE
    if settings.raw_place is not None:
        kinds[settings.raw_place] = RAW_TABLE
    return kinds


def find_lost_side_tables(
    settings: Pipeline, main: PipelineTable, side: Callable[[str], PipelineTable], snapshot: PipelineSnapshot
) -> dict[str, LostTable]:
    """Return the tables beside a log that were lost, by location.

    `side` opens the table at a location; `snapshot`: of the log, `main`. Raises CommitFailed.
    """
    lost_tables = {}
    for location, kind in side_table_kinds(settings).items():
        lost = find_lost_side_table(side(location), kind, snapshot, main.location)
        if lost is not None:
            lost_tables[location] = lost
    return lost_tables


def former_side_tables(settings: Pipeline, snapshot: PipelineSnapshot) -> list[str]:
    """Return where tables beside a log were made that the configuration does not name any more, nor one of a route."""
    named = {*side_table_kinds(settings), settings.late_place, *snapshot.raw_locations}
    return [location for location in snapshot.side_table_ids if location not in named]


def refuse_lost_tables(settings: Pipeline, main: PipelineTable, side: Callable[[str], PipelineTable]) -> None:
    """Raise SideTableLost where a command would pass over rows that may come back with a lost table; CommitFailed.

    Raw tables of before, and late rows of before, count as well.
    """
    snapshot = main.snapshot()
    kinds = {
        settings.late_place: LATE_TABLE,
        **dict.fromkeys(snapshot.raw_locations, RAW_TABLE),
        **side_table_kinds(settings),
    }
    for location, kind in kinds.items():
        lost = find_lost_side_table(side(location), kind, snapshot, main.location)
        if lost is not None:
            raise SideTableLost(lost.text)


def last_lost_version(table: PipelineTable, commits: Sequence[CommittedEntry]) -> int:
    """Return the version of the newest commit a file of which is not at a lost table's location; -1: none is missing.

    What later commits list still waits for the table, and is applied when it is back. `commits`: of the log, those that
    are not known to be applied, oldest first. Raises CommitFailed.
    """
    with reading(table.location):
        for commit in reversed(commits):
            for file in commit.side_files.get(table.location, ()):
                if not any(map(table.store.mark, {file.path, staged_name(file.path)})):
                    return commit.version
    return -1
