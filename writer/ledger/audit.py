"""Proves from the lake alone that every offset is accounted for: log and ledger, and on request every file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import pyarrow.parquet as pq

from writer.config import Config
from writer.errors import HeadraceError
from writer.ledger.book import Book
from writer.ledger.chapter import Chapter, Removal, chapters, since_adoption
from writer.ledger.deep import NOBODY, DataFile, Found, Shelf, count
from writer.ledger.statement import Line, Problem, Statement, state
from writer.rooms.columnar import open_file, staged_name
from writer.rooms.plan import PROVENANCE
from writer.rooms.report import Span
from writer.stores.base import Store
from writer.tables.entry import Committed, landed, said
from writer.tables.formats import main_table, side_table
from writer.tables.parts import Part
from writer.tables.snapshot import PipelineSnapshot
from writer.tables.table import PipelineTable
from writer.tables.withdraw import count as rows_at

_Files = tuple[Store, Sequence[DataFile]]


@dataclass(frozen=True)
class Waiting:
    """Dead letters and late rows that the main table's log lists, and redo has not applied yet."""

    files: Sequence[DataFile]
    late: Sequence[DataFile]
    without: Mapping[Part, Sequence[Span]]  # letters that replays made rows, or rewinds take
    withdrawn: int
    commits: int
    rewound: int = 0  # of these letters, those that rewinds take
    late_without: Mapping[Part, Sequence[Span]] = field(default_factory=dict)
    late_rewound: int = 0  # late rows that rewinds take


@dataclass(frozen=True)
class Audit:
    """What was found. `found` is empty unless files were read."""

    statement: Statement
    found: Mapping[Part, Found]
    problems: tuple[Problem, ...]
    waiting: int  # commits whose dead letters wait for redo
    rows_taken: Mapping[str, int]  # on purpose: retention, delete, dedupe; by other clients: DELETE
    letters_taken: Mapping[str, int]
    late_taken: Mapping[str, int]  # out of the table of late rows

    @property
    def adds_up(self) -> bool:
        """Nothing is wrong."""
        return not self.problems

    @property
    def rows_removed(self) -> int:
        """Rows that were taken out of the table."""
        return sum(self.rows_taken.values())

    @property
    def letters_removed(self) -> int:
        """Letters that were taken out of their table, replays left aside."""
        return sum(self.letters_taken.values())


def audit(config: Config, pipeline: str, *, since: int | datetime | None, deep: bool) -> Audit:
    """Draw the account up and hold it against what the tables hold.

    `since`: a version, or an instant, from which on commits are looked at; in the ledger it reaches back to the
    beginning of a page. Raises CommitFailed, LedgerUnreadable, HeadraceError when there is no table.
    """
    settings = config.pipelines[pipeline]
    location, dead_letters = settings.table.location, settings.dead_letters
    side, main = side_table(pipeline, config, dead_letters), main_table(pipeline, config)
    if not main.exists():
        raise HeadraceError(f"pipeline {pipeline!r} has no table at {location} yet. `headrace run` makes it.")
    # The letters first: what they are by now, the main table's log says by then.
    letters, aside_history = told(side, pipeline) if side.exists() else (None, [])
    lates = side_table(pipeline, config, settings.late_place)
    late, late_history = told(lates, pipeline) if lates.exists() else (None, [])
    snapshot, history = told(main, pipeline)
    chosen, floor = _chosen(history, since)
    statement = state(chosen, snapshot.parts(), snapshot.version, floor)
    applied = {dead_letters: letters, settings.late_place: late}
    letters_at, late_at = ((at, max(one.applied if one else -1, snapshot.settled)) for at, one in applied.items())
    ours = main.files(snapshot.version)
    aside = [] if letters is None else side.files(letters.version)
    late_files = [] if late is None else lates.files(late.version)
    waiting = _waiting(main, snapshot.version, letters_at, late_at, (side.store, aside), (lates.store, late_files))
    set_aside = [*late_files, *waiting.late]
    taken = [removal for one in aside_history for removal in one.removals]
    gone_late = [removal for one in late_history for removal in one.removals]
    problems = [*statement.problems, *_unsaid(statement.removals, location), *_unsaid(taken, dead_letters)]
    problems += _unsaid(gone_late, settings.late_place)
    beside = ((dead_letters, aside_history), (settings.late_place, late_history))
    problems += [Problem(f"{text} in {place}") for place, told_ in beside for one in told_ for text in one.strange]
    rows_taken, letters_taken = _by_operation(statement.removals), _by_operation(taken, waiting.rewound)
    late_taken = _by_operation(gone_late, waiting.late_rewound)
    rows_removed, letters_removed = sum(rows_taken.values()), sum(letters_taken.values())
    late_removed = sum(late_taken.values())
    unplaced = statement.adopted + statement.unplaced
    if floor < 0:
        expected = statement.total("dead_letters") + statement.total("quarantined") - letters_removed
        late_expected = statement.total("late") - late_removed
        problems += _totals("late rows", set_aside, late_expected, waiting.late_rewound)
        problems += _totals("rows", ours, statement.total("rows") + unplaced - rows_removed, 0)
        problems += _totals("dead letters", [*aside, *waiting.files], expected, waiting.withdrawn)
    found: dict[Part, Found] = {}
    if deep:
        shelves = [
            Shelf(main.store, _seen(main, ours)),
            Shelf(lates.store, _seen(lates, set_aside), without=waiting.late_without),
            Shelf(side.store, _seen(side, aside), letters=True, without=waiting.without),
            Shelf(side.store, waiting.files, letters=True),
        ]  # fmt: skip
        found = _counted(shelves, statement, below_is_known=floor >= 0)
        known = {line.part: line for line in statement.lines}
        adopted = unplaced - found.pop(NOBODY, Found()).rows if floor < 0 else 0
        if adopted < 0:
            problems.append(
                Problem(f"{-adopted:,} rows say no offset, beyond those that were adopted or came by event time")
            )
        if adopted > rows_removed:
            what = "that were adopted, or came by event time,"
            problems.append(Problem(f"{adopted - rows_removed:,} rows {what} are not there"))
        removed = rows_removed - max(adopted, 0) + late_removed
        problems += _compared(known, found, removed, letters_removed, exact=floor < 0)
        found.pop(NOBODY, None)
    return Audit(statement, found, tuple(problems), waiting.commits, rows_taken, letters_taken, late_taken)


def told(table: PipelineTable, pipeline: str) -> tuple[PipelineSnapshot, list[Chapter]]:
    """Return a snapshot of a table, and what ledger and log say of it up to there, oldest first."""
    pages = Book(table.store, table.snapshot().state.metadata["id"], pipeline).pages()
    snapshot = table.snapshot()  # at or after the newest page
    after = pages[-1].last if pages else -1
    entries = ((version, actions) for version, actions in table.entries(after) if version <= snapshot.version)
    return snapshot, since_adoption([*pages, *chapters(entries, pipeline, table.rows_at)])


def _chosen(history: Sequence[Chapter], since: int | datetime | None) -> tuple[list[Chapter], int]:
    """Return the chapters from there on, and the version before the first of them: -1 for all."""
    match since:
        case None:
            return list(history), -1
        case int():
            kept = [one for one in history if one.last >= since]
        case _:
            kept = [one for one in history if one.ended is None or one.ended >= since]
    floor = kept[0].first - 1 if kept else history[-1].last
    return kept, floor


def _waiting(
    main: PipelineTable, version: int, letters: tuple[str, int], late: tuple[str, int], letter_files: _Files,
    late_files: _Files,
) -> Waiting:  # fmt: skip
    """Find what redo has still to do for the tables at these places, after the versions that they have."""
    since = min(letters[1], late[1])
    entries = ((n, said(actions)[1]) for n, actions in main.entries(since) if n <= version)
    listed = [one for n, about in entries if (one := landed(n, about)) and (one.side_files or one.withdrawn)]
    files, rows = (
        [DataFile(f.path, f.rows) for one in listed if one.version > at for f in one.side_files.get(place, ())]
        for place, at in (letters, late)
    )
    rewinds = [one for one in listed if one.facts["kind"] == "rewind"]
    replays = [one for one in listed if one.facts["kind"] != "rewind"]
    replayed, going, late_going = _spans(replays, *letters), _spans(rewinds, *letters), _spans(rewinds, *late)
    rewound, late_rewound = _rows_at(*letter_files, going), _rows_at(*late_files, late_going)
    withdrawn = rewound + sum(end - start for spans in replayed.values() for start, end in spans)
    without = {part: [*replayed.get(part, ()), *going.get(part, ())] for part in {**replayed, **going}}
    pending = sum(
        any(one.version > at and (place in one.side_files or place in one.withdrawn) for place, at in (letters, late))
        for one in listed
    )
    return Waiting(files, rows, without, withdrawn, pending, rewound, late_going, late_rewound)


def _spans(commits: Sequence[Committed], place: str, applied: int) -> dict[Part, list[Span]]:
    """Return which offsets of the table at a place go, by commits that it does not have yet."""
    found: dict[Part, list[Span]] = {}
    for one in commits:
        for part, spans in one.withdrawn.get(place, {}).items() if one.version > applied else ():
            found.setdefault(part, []).extend(spans)
    return found


def _rows_at(store: Store, files: Sequence[DataFile], offsets: Mapping[Part, Sequence[Span]]) -> int:
    """Count rows at these offsets. What a rewind takes was there when it landed: nobody commits before its redo."""
    return sum(rows_at(store, file, offsets) for file in files) if offsets else 0


def _by_operation(removals: Sequence[Removal], rewound: int = 0) -> dict[str, int]:
    """Add up what was taken, by why; `rewound`: what rewinds are still to take."""
    found: dict[str, int] = {"rewind": rewound} if rewound else {}
    for one in removals:
        found[one.operation] = found.get(one.operation, 0) + (one.rows or 0)
    return found


def _seen(table: PipelineTable, named: Sequence[DataFile]) -> list[DataFile]:
    """Return the files that readers see: where another client wrote, its files too, and what is left of ours.

    Raises HeadraceError where one of them says nothing of where its rows come from.
    """
    foreign = table.foreign() if table.exists() else []
    if not foreign:
        return list(named)
    for path in foreign:
        with open_file(table.store, path) as source:
            if not {*PROVENANCE.names} <= {*pq.read_schema(source).names}:
                raise HeadraceError(
                    f"{table.location}/{path} was not written by headrace, and readers take its rows for the table's. "
                    "Move it away."
                )
    left = [file for file in named if any(map(table.store.mark, (file.path, staged_name(file.path))))]
    return [*left, *(DataFile(path, None) for path in foreign)]


def _unsaid(removals: Sequence[Removal], location: str) -> list[Problem]:
    return [
        Problem(
            f"{r.operation} of another client (version {r.version} of {location}) does not say how many rows it took"
        )
        for r in removals
        if r.rows is None
    ]


def _totals(noun: str, files: Sequence[DataFile], expected: int, withdrawn: int) -> list[Problem]:
    """Compare the rows that the tables' logs count in their files. Files of other clients may say nothing."""
    if any(file.rows is None for file in files):
        return []
    there = sum(file.rows or 0 for file in files) - withdrawn
    return [] if there == expected else [Problem(f"the files hold {there:,} {noun}, the account has {expected:,}")]


def _counted(shelves: Sequence[Shelf], statement: Statement, *, below_is_known: bool) -> dict[Part, Found]:
    ranges = {line.part: (line.start, line.end) for line in statement.lines}
    gaps = {line.part: line.gaps for line in statement.lines if line.gaps}
    try:
        return count(shelves, ranges, gaps, below_is_known=below_is_known)
    except FileNotFoundError as error:
        raise HeadraceError(
            f"a file that the table names is gone: {error}. Restore it; without it the rows that it held are lost."
        ) from error


def _compared(
    lines: Mapping[Part, Line], found: Mapping[Part, Found], rows_removed: int, letters_removed: int, *, exact: bool
) -> list[Problem]:
    """Hold what was counted in the files against the account, part by part; removed rows are known only in sum."""
    problems: list[Problem] = []
    short: list[Problem] = []
    rows_short = letters_short = 0
    for part, there in found.items():
        line = lines.get(part)
        if there.astray:
            problems.append(
                Problem("offsets that no commit accounts for have rows or letters", part, tuple(there.astray))
            )
        if line is None:
            continue
        if there.twice:
            problems.append(Problem("offsets are there more than once", part, tuple(there.twice)))
        rows, letters = (
            line.outcomes["rows"] + line.outcomes["late"] - there.rows,
            line.letters - sum(there.letters.values()),
        )
        rows_short, letters_short = rows_short + rows, letters_short + letters
        if rows > 0 or letters > 0:
            short.append(Problem(_missing(line, there, rows, letters), part, tuple(there.nowhere)))
        elif (rows < 0 or letters < 0) and not there.twice:
            what = f"there are {-rows:,} rows and {-letters:,} dead letters more than the account has"
            problems.append(Problem(what, part))
    explained = rows_short == rows_removed and letters_short == letters_removed
    if not exact:
        explained = rows_short <= rows_removed and letters_short <= letters_removed
    return problems if explained and not problems else [*problems, *short]


def _missing(line: Line, there: Found, rows: int, letters: int) -> str:
    parts = [
        f"{count:,} {noun} are not there" for noun, count in (("rows", rows), ("dead letters", letters)) if count > 0
    ]
    unheld = line.holes + line.outcomes["tombstones"]
    among = f", among them {unheld:,} that were tombstones or held no record" if unheld else ""
    return f"{' and '.join(parts)}; {there.nowhere_offsets:,} offsets are in neither table{among}"
