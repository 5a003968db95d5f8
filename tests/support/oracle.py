"""What a reader finds in the lake, worked out without headrace and without delta-rs: the log replayed by hand, DuckDB
over the files: those that a Delta log names, and all that lie in the folders of a Parquet table. The judge of every
crash test.
"""

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from urllib.parse import unquote

import duckdb
from pyiceberg.table import StaticTable

from tests.support.fault_cells import Tally

# Of all verdicts in this process.
tally = Tally()
# Topic and partition.
Source = tuple[str, int]


@dataclass(frozen=True)
class Log:
    """A Delta log, replayed entry by entry."""

    version: int
    # Partition values by path.
    files: dict[str, dict[str, str | None]]
    # Version by the appId of a txn.
    frontier: dict[str, int]
    # The facts that headrace wrote, oldest first.
    commits: list[dict[str, object]]


def replay(table: Path) -> Log:
    """Read every entry of a table's log; each must be whole."""
    files: dict[str, dict[str, str | None]] = {}
    frontier: dict[str, int] = {}
    commits: list[dict[str, object]] = []
    entries = _entries(table)
    for entry in entries:
        # A value may hold what `splitlines` takes for the end of a line.
        for line in entry.read_text().rstrip("\n").split("\n"):
            action = json.loads(line)
            match action:
                case {"add": add}:
                    files[unquote(add["path"])] = add["partitionValues"]
                case {"remove": remove}:
                    files.pop(unquote(remove["path"]), None)
                case {"txn": txn}:
                    frontier[txn["appId"]] = txn["version"]
                case {"commitInfo": {"headrace": text}}:
                    commits.append(json.loads(text))
    return Log(len(entries) - 1, files, frontier, commits)


def rows(table: Path, columns: str, tail: str = "") -> list[tuple[object, ...]]:
    """Ask DuckDB over the files that readers see: `SELECT what FROM files tail`."""
    files = _files(table)
    if not files:
        return []
    return duckdb.execute(f"SELECT {columns} FROM read_parquet($1, union_by_name=true) {tail}", [files]).fetchall()


def scan(table: Path, *columns: str) -> dict[str, list[object]]:
    """Return columns of an Iceberg table by the names that its catalog has: what a scan returns, rows in any order."""
    metadata = _iceberg_metadata(table)
    assert metadata is not None, f"{table} is in no catalog"
    values: dict[str, list[object]] = (
        StaticTable.from_metadata(metadata).scan(selected_fields=columns).to_arrow().to_pydict()
    )
    return values


def count(table: Path) -> int:
    """Count the rows that readers see."""
    counts = rows(table, "count(*)")
    return int(str(counts[0][0])) if counts else 0


def _parquet_log(table: Path) -> Path | None:
    log = table / "_headrace" / "log"
    return log if log.is_dir() else None


def _iceberg_metadata(table: Path) -> str | None:
    """Return the metadata that the SQLite catalog in a folder above has for a table; None: it is not in one."""
    for folder in table.parents:
        if (catalog := folder / "catalog.db").exists():
            with closing(sqlite3.connect(catalog)) as connection:
                # The catalog is just being made.
                if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchall():
                    return None
                locations = connection.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
            return next((row[0] for row in locations if row[0].startswith(f"{table}/metadata/")), None)
    return None


def _entries(table: Path) -> list[Path]:
    """Return the entries of a table's log; of an Iceberg table also the draft of one that its catalog names already."""
    entries = sorted((_parquet_log(table) or table / "_delta_log").glob("[0-9]*[0-9].json"))
    assert [int(e.stem) for e in entries] == list(range(len(entries))), "a version is missing in the log"
    metadata = _iceberg_metadata(table)
    properties = {} if metadata is None else StaticTable.from_metadata(metadata).properties
    if int(properties.get("headrace.version", -1)) < len(entries):
        return entries
    draft = table / "_headrace" / "log" / properties["headrace.entry"]
    if draft.exists():
        return [*entries, draft]
    # The draft became an entry meanwhile.
    return _entries(table)


def _files(table: Path) -> list[str]:
    if (metadata := _iceberg_metadata(table)) is not None:
        tasks = StaticTable.from_metadata(metadata).scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in tasks]
    if _parquet_log(table):
        return [str(file) for file in table.rglob("*.parquet")]
    return [str(table / path) for path in replay(table).files] if table.exists() else []


def offsets(table: Path) -> dict[Source, list[int]]:
    """Offsets of the rows, by source, sorted, duplicates kept."""
    groups = rows(table, "_topic, _partition, list_sort(list(_offset))", "GROUP BY ALL")
    return {(str(topic), int(partition)): list(some) for topic, partition, some in groups}  # type: ignore[arg-type,call-overload]


def by_part(table: Path) -> dict[tuple[str, int, int], list[int]]:
    """Offsets of the rows by topic, incarnation and partition, sorted, duplicates kept."""
    groups = rows(table, "_topic, _incarnation, _partition, list_sort(list(_offset))", "GROUP BY ALL")
    return {
        (str(topic), int(incarnation), int(partition)): list(some)  # type: ignore[call-overload]
        for topic, incarnation, partition, some in groups
    }


def check(table: Path, pipeline: str, ends: Mapping[Source, int] | None = None) -> dict[Source, int]:
    """Assert that every offset below the frontier is in the table, a table beside it or a gap exactly once, none above.

    Beside it are dead letters and late rows. A raw table has all of them but those in gaps, each once.

    With `ends`: that the frontier has reached them. Returns the frontier.
    """
    rows_by_source = offsets(table)
    dead_letters = offsets(table.with_name(f"{table.name}_dead_letters"))
    late_rows = offsets(table.with_name(f"{table.name}_late"))
    gap_offsets = gaps(table)
    frontier = frontier_of(table, pipeline)
    raw = table.with_name(f"{table.name}_raw")
    for source, end in frontier.items() if raw.exists() else ():
        _check_once(source, end, [*offsets(raw).get(source, []), *gap_offsets.get(source, [])])
    exits = (rows_by_source, dead_letters, late_rows, gap_offsets)
    for source, end in frontier.items():
        _check_once(source, end, [offset for exit_ in exits for offset in exit_.get(source, [])])
    for source in {*rows_by_source, *dead_letters, *late_rows}:
        assert source in frontier, f"{source} has rows and no frontier"
    if ends is not None:
        assert frontier == dict(ends)
    return frontier


def _check_once(source: Source, frontier: int, offsets: Iterable[int]) -> None:
    expected = set(range(frontier))
    actual = sorted(offsets)
    tally.checks += 1
    tally.records += frontier
    tally.lost += len(expected - set(actual))
    tally.twice += len(actual) - len(set(actual) & expected)
    assert actual == list(range(frontier)), f"{source}: frontier {frontier}; {_difference(actual, frontier)}"


def check_exactly(table: Path, expected: Mapping[tuple[str, int, int], Sequence[int]]) -> None:
    """Assert that the rows of each (topic, incarnation, partition) are those of these offsets, each once."""
    actual = by_part(table)
    for part, wanted in expected.items():
        offsets = actual.get(part, [])
        tally.checks += 1
        tally.records += len(wanted)
        tally.lost += len(set(wanted) - set(offsets))
        tally.twice += len(offsets) - len(set(offsets) & set(wanted))
    assert actual == {part: list(wanted) for part, wanted in expected.items()}


def identities(table: Path, below: Mapping[Source, int] | None = None) -> tuple[int, str]:
    """Count the rows, and sum up which they are: a hash of their places in Kafka, one line each, sorted.

    With `below`: only of rows below these offsets.
    """
    names: list[str] = []
    for (topic, incarnation, partition), offsets in sorted(by_part(table).items()):
        part = f"{topic}@{incarnation}/{partition}"
        names.extend(
            f"{part}:{offset}" for offset in offsets if below is None or offset < below.get((topic, partition), 0)
        )
    return len(names), sha256("\n".join(names).encode()).hexdigest()


def gaps(table: Path) -> dict[Source, list[int]]:
    """Offsets that are recorded as lost and that no backfill has brought, by source."""
    gaps: dict[Source, list[int]] = {}
    for commit in replay(table).commits:
        for gap in commit["ranges"] if commit["kind"] == "gap" else []:  # type: ignore[attr-defined]
            gaps.setdefault((gap["topic"], gap["partition"]), []).extend(range(gap["start"], gap["end"]))
        for fill in commit["ranges"] if commit["kind"] == "fill" else []:  # type: ignore[attr-defined]
            for start, end in fill["spans"]:
                for offset in range(start, end):
                    # This fails for an offset that is in no gap, or that an earlier fill brought.
                    gaps[fill["topic"], fill["partition"]].remove(offset)
    return {source: offsets for source, offsets in gaps.items() if offsets}


def check_rows(main_table: Path, pipeline: str) -> None:
    """Assert what holds at every moment, also before a restart: no row twice, none above the frontier.

    The rows are read first: beside a writer at work, the frontier may have moved since, never back.
    """
    side_tables = [main_table.with_name(main_table.name + suffix) for suffix in ("_dead_letters", "_raw")]
    offsets_by_table = [(side_table.name, by_part(side_table)) for side_table in (main_table, *side_tables)]
    frontier = replay(main_table).frontier
    tally.looks += 1
    for name, parts in offsets_by_table:
        for (topic, incarnation, partition), offsets in parts.items():
            part = f"{topic}@{incarnation}/{partition}"
            below = frontier[f"{pipeline}/{part}"]
            tally.seen_twice += len(offsets) - len(set(offsets) & set(range(below)))
            assert len(offsets) == len(set(offsets)), f"{name}: {part} has offsets twice"
            assert offsets[-1] < below, f"{name}: {part} has rows above its frontier"


def frontier_of(table: Path, pipeline: str) -> dict[Source, int]:
    """First offset of each source that is not committed."""
    if not table.exists():
        return {}
    frontier: dict[Source, int] = {}
    for app_id, offset in replay(table).frontier.items():
        owner, *source = app_id.split("/")
        if owner == pipeline and len(source) == 2:
            topic = source[0].rsplit("@", 1)[0]
            frontier[topic, int(source[1])] = offset
    return frontier


def _difference(offsets: Sequence[int], frontier: int) -> str:
    lost = sorted(set(range(frontier)) - set(offsets))
    # Above this, counting each would take minutes.
    twice = sorted({offset for offset in offsets if offsets.count(offset) > 1}) if len(offsets) < 100_000 else "some"
    return f"lost {lost[:5]} ({len(lost)}), twice or above {twice[:5]}"


def describe(table: Path) -> list[tuple[object, ...]]:
    """Columns of the table, as DuckDB sees them over all its files."""
    files = _files(table)
    return duckdb.execute("DESCRIBE SELECT * FROM read_parquet($1, union_by_name=true)", [files]).fetchall()
