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

tally = Tally()  # of all verdicts in this process
Source = tuple[str, int]  # topic, partition


@dataclass(frozen=True)
class Log:
    """A Delta log, replayed entry by entry."""

    version: int
    files: dict[str, dict[str, str | None]]  # path → partition values
    frontier: dict[str, int]  # txn appId → version
    commits: list[dict[str, object]]  # headrace's own facts, oldest first


def replay(table: Path) -> Log:
    """Read every entry of a table's log; each must be whole."""
    files: dict[str, dict[str, str | None]] = {}
    frontier: dict[str, int] = {}
    commits: list[dict[str, object]] = []
    entries = _entries(table)
    for entry in entries:
        for line in entry.read_text().rstrip("\n").split("\n"):  # a value may hold what `splitlines` takes for an end
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


def rows(table: Path, what: str, tail: str = "") -> list[tuple[object, ...]]:
    """Ask DuckDB over the files that readers see: `SELECT what FROM files tail`."""
    files = _files(table)
    if not files:
        return []
    return duckdb.execute(f"SELECT {what} FROM read_parquet($1, union_by_name=true) {tail}", [files]).fetchall()


def scanned(table: Path, *columns: str) -> dict[str, list[object]]:
    """Return columns of an Iceberg table by the names that its catalog has: what a scan returns, rows in any order."""
    metadata = _iceberg(table)
    assert metadata is not None, f"{table} is in no catalog"
    found: dict[str, list[object]] = (
        StaticTable.from_metadata(metadata).scan(selected_fields=columns).to_arrow().to_pydict()
    )
    return found


def count(table: Path) -> int:
    """Count the rows that readers see."""
    found = rows(table, "count(*)")
    return int(str(found[0][0])) if found else 0


def _parquet(table: Path) -> Path | None:
    log = table / "_headrace" / "log"
    return log if log.is_dir() else None


def _iceberg(table: Path) -> str | None:
    """Return the metadata that the SQLite catalog in a folder above has for a table; None: it is not in one."""
    for folder in table.parents:
        if (catalog := folder / "catalog.db").exists():
            with closing(sqlite3.connect(catalog)) as asked:
                if not asked.execute("SELECT 1 FROM sqlite_master WHERE name = 'iceberg_tables'").fetchall():
                    return None  # it is just being made
                found = asked.execute("SELECT metadata_location FROM iceberg_tables").fetchall()
            return next((row[0] for row in found if row[0].startswith(f"{table}/metadata/")), None)
    return None


def _entries(table: Path) -> list[Path]:
    """Return the entries of a table's log; of an Iceberg table also the draft of one that its catalog names already."""
    entries = sorted((_parquet(table) or table / "_delta_log").glob("[0-9]*[0-9].json"))
    assert [int(e.stem) for e in entries] == list(range(len(entries))), "a version is missing in the log"
    metadata = _iceberg(table)
    named = {} if metadata is None else StaticTable.from_metadata(metadata).properties
    if int(named.get("headrace.version", -1)) < len(entries):
        return entries
    draft = table / "_headrace" / "log" / named["headrace.entry"]
    return [*entries, draft] if draft.exists() else _entries(table)  # it was put in its place meanwhile


def _files(table: Path) -> list[str]:
    if (metadata := _iceberg(table)) is not None:
        planned = StaticTable.from_metadata(metadata).scan().plan_files()
        return [task.file.file_path.removeprefix("file://") for task in planned]
    if _parquet(table):
        return [str(file) for file in table.rglob("*.parquet")]
    return [str(table / path) for path in replay(table).files] if table.exists() else []


def offsets(table: Path) -> dict[Source, list[int]]:
    """Offsets of the rows, by source, sorted, duplicates kept."""
    found = rows(table, "_topic, _partition, list_sort(list(_offset))", "GROUP BY ALL")
    return {(str(t), int(p)): list(o) for t, p, o in found}  # type: ignore[arg-type,call-overload]


def by_part(table: Path) -> dict[tuple[str, int, int], list[int]]:
    """Offsets of the rows by topic, incarnation and partition, sorted, duplicates kept."""
    raw = rows(table, "_topic, _incarnation, _partition, list_sort(list(_offset))", "GROUP BY ALL")
    return {(str(t), int(i), int(p)): list(o) for t, i, p, o in raw}  # type: ignore[arg-type,call-overload]


def check(lake: Path, pipeline: str, ends: Mapping[Source, int] | None = None) -> dict[Source, int]:
    """Assert that every offset below the frontier is in the table, a table beside it or a gap exactly once, none above.

    Beside it are dead letters and late rows. A raw table has all of them but those in gaps, each once.

    With `ends`: that the frontier has reached them. Returns the frontier.
    """
    good, bad, late = (offsets(lake.with_name(lake.name + beside)) for beside in ("", "_dead_letters", "_late"))
    frontier, lost = frontier_of(lake, pipeline), gaps(lake)
    raw = lake.with_name(lake.name + "_raw")
    for source, end in frontier.items() if raw.exists() else ():
        _check_once(source, end, [*offsets(raw).get(source, []), *lost.get(source, [])])
    for source, end in frontier.items():
        _check_once(source, end, [each for there in (good, bad, late, lost) for each in there.get(source, [])])
    for source in {*good, *bad, *late}:
        assert source in frontier, f"{source} has rows and no frontier"
    if ends is not None:
        assert frontier == dict(ends)
    return frontier


def _check_once(source: Source, end: int, there: Iterable[int]) -> None:
    found = sorted(there)
    tally.checks += 1
    tally.records += end
    tally.lost += len(set(range(end)) - set(found))
    tally.twice += len(found) - len(set(found) & set(range(end)))
    assert found == list(range(end)), f"{source}: frontier {end}; {_difference(found, end)}"


def check_exactly(table: Path, expected: Mapping[tuple[str, int, int], Sequence[int]]) -> None:
    """Assert that the rows of each (topic, incarnation, partition) are those of these offsets, each once."""
    found = by_part(table)
    for part, wanted in expected.items():
        have = found.get(part, [])
        tally.checks += 1
        tally.records += len(wanted)
        tally.lost += len(set(wanted) - set(have))
        tally.twice += len(have) - len(set(have) & set(wanted))
    assert found == {part: list(wanted) for part, wanted in expected.items()}


def identities(table: Path, below: Mapping[Source, int] | None = None) -> tuple[int, str]:
    """Count the rows, and sum up which they are: a hash of their places in Kafka, one line each, sorted.

    With `below`: only of rows below these offsets.
    """
    found = [
        f"{topic}@{incarnation}/{partition}:{offset}"
        for (topic, incarnation, partition), some in sorted(by_part(table).items())
        for offset in some
        if below is None or offset < below.get((topic, partition), 0)
    ]
    return len(found), sha256("\n".join(found).encode()).hexdigest()


def gaps(table: Path) -> dict[Source, list[int]]:
    """Offsets that are recorded as lost and that no backfill has brought, by source."""
    found: dict[Source, list[int]] = {}
    for commit in replay(table).commits:
        for r in commit["ranges"] if commit["kind"] == "gap" else []:  # type: ignore[attr-defined]
            found.setdefault((r["topic"], r["partition"]), []).extend(range(r["start"], r["end"]))
        for r in commit["ranges"] if commit["kind"] == "fill" else []:  # type: ignore[attr-defined]
            for at in (at for start, end in r["spans"] for at in range(start, end)):
                found[r["topic"], r["partition"]].remove(at)  # fails for one that is in no gap, or was brought before
    return {source: offsets for source, offsets in found.items() if offsets}


def check_rows(lake: Path, pipeline: str) -> None:
    """Assert what holds at every moment, also before a restart: no row twice, none above the frontier.

    The rows are read first: beside a writer at work, the frontier may have moved since, never back.
    """
    beside = [lake.with_name(lake.name + name) for name in ("_dead_letters", "_raw")]
    found = [(table.name, by_part(table)) for table in (lake, *beside)]
    frontier = replay(lake).frontier
    tally.looks += 1
    for name, parts in found:
        for (topic, incarnation, partition), offsets in parts.items():
            part = f"{topic}@{incarnation}/{partition}"
            below = frontier[f"{pipeline}/{part}"]
            tally.seen_twice += len(offsets) - len(set(offsets) & set(range(below)))
            assert len(offsets) == len(set(offsets)), f"{name}: {part} has offsets twice"
            assert offsets[-1] < below, f"{name}: {part} has rows above its frontier"


def frontier_of(lake: Path, pipeline: str) -> dict[Source, int]:
    """First offset of each source that is not committed."""
    if not lake.exists():
        return {}
    found: dict[Source, int] = {}
    for name, value in replay(lake).frontier.items():
        owner, *rest = name.split("/")
        if owner == pipeline and len(rest) == 2:
            found[rest[0].rsplit("@", 1)[0], int(rest[1])] = value
    return found


def _difference(found: Iterable[int], end: int) -> str:
    have = list(found)
    lost = sorted(set(range(end)) - set(have))
    twice = sorted({o for o in have if have.count(o) > 1}) if len(have) < 100_000 else "some"
    return f"lost {lost[:5]} ({len(lost)}), twice or above {twice[:5]}"


def describe(table: Path) -> list[tuple[object, ...]]:
    """Columns of the table, as DuckDB sees them over all its files."""
    files = _files(table)
    return duckdb.execute("DESCRIBE SELECT * FROM read_parquet($1, union_by_name=true)", [files]).fetchall()
