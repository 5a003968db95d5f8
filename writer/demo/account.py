"""What DuckDB finds in the demo's lake. It reads the files, and knows nothing of the writer's own counts."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
from deltalake import DeltaTable
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from writer.rooms.report import Source

_MIB = 2**20
_PROVENANCE = {"_topic": "VARCHAR", "_incarnation": "INT", "_partition": "INT", "_offset": "BIGINT"}


@dataclass(frozen=True)
class Bucket:
    """One bucket of the table: `first` and `last` are event times."""

    name: str
    rows: int
    files: int
    bytes: int
    first: datetime
    last: datetime
    astray: int  # rows whose event time lies outside the bucket


@dataclass(frozen=True)
class Account:
    """All that was produced, and where it is. Counts are of messages."""

    good: int  # produced, and a row is expected
    broken: int  # produced, and a dead letter is expected
    rows: int
    rows_distinct: int  # by (_topic, _incarnation, _partition, _offset)
    dead_letters: int
    lost: int  # offsets in neither table
    twice: int  # rows and dead letters beyond the first of their offset
    unknown: int  # offsets that were never produced
    buckets: tuple[Bucket, ...]
    reasons: Mapping[str, int]

    @property
    def produced(self) -> int:
        """All messages that the broker acknowledged."""
        return self.good + self.broken

    def differences(self) -> list[str]:
        """What does not add up, each as a phrase; empty when everything does."""
        astray = sum(b.astray for b in self.buckets)
        found = {
            f"{self.lost:,} of {self.produced:,} offsets are in neither table": self.lost,
            f"{self.twice:,} offsets are there twice": self.twice,
            f"{self.unknown:,} offsets were never produced": self.unknown,
            f"{astray:,} rows lie in the bucket of another hour": astray,
            f"{self.rows:,} rows have {self.rows_distinct:,} distinct offsets": self.rows - self.rows_distinct,
            f"{self.good:,} good events became {self.rows:,} rows": self.rows - self.good,
            f"{self.broken:,} broken values became {self.dead_letters:,} dead letters": self.dead_letters - self.broken,
        }
        return [phrase for phrase, difference in found.items() if difference]


def of(lake: Path, dead_letters: Path, *, good: Mapping[Source, int], broken: Mapping[Source, int]) -> Account:
    """Ask DuckDB over the files that both tables name; `good` and `broken` are what each partition was given.

    Each partition's log begins at offset 0, and holds nothing else.
    """
    import duckdb

    table = _files(lake)
    db = duckdb.connect()
    ends = Counter(good) + Counter(broken)
    db.execute("CREATE TABLE ends (topic VARCHAR, partition INT, log_end BIGINT)")
    db.executemany("INSERT INTO ends VALUES (?, ?, ?)", [[*source, end] for source, end in ends.items()])
    _load(db, "events", table, _PROVENANCE | {"hour": "VARCHAR", "event_time": "TIMESTAMPTZ", "filename": "VARCHAR"})
    _load(db, "letters", _files(dead_letters), _PROVENANCE | {"error": "VARCHAR"})
    rows, rows_distinct = db.execute(
        "SELECT count(*), count(DISTINCT (_topic, _incarnation, _partition, _offset)) FROM events"
    ).fetchone()
    letters, distinct, known = db.execute(
        """
        WITH found AS (
          SELECT _topic AS topic, _incarnation AS incarnation, _partition AS partition, _offset AS position FROM events
          UNION SELECT _topic, _incarnation, _partition, _offset FROM letters)
        SELECT (SELECT count(*) FROM letters), count(*), count(*) FILTER (
          incarnation = 1 AND position >= 0 AND position < coalesce(log_end, 0))
        FROM found LEFT JOIN ends USING (topic, partition)
        """
    ).fetchone()
    reasons = db.execute(
        r"""
        SELECT regexp_replace(error, 'Expected \d+ bytes, read \d+', 'Expected more bytes') AS reason, count(*)
        FROM letters GROUP BY reason ORDER BY 2 DESC, 1
        """
    ).fetchall()
    return Account(
        good=sum(good.values()), broken=sum(broken.values()), rows=rows, rows_distinct=rows_distinct,
        dead_letters=letters, lost=ends.total() - known, twice=rows + letters - distinct, unknown=distinct - known,
        buckets=_buckets(db, table), reasons=dict(reasons),
    )  # fmt: skip


def show(found: Account) -> RenderableType:
    """Tables of buckets and dead letters for a person."""
    buckets = Table(box=box.SIMPLE_HEAD, title="The lake, as DuckDB reads it", title_justify="left", title_style="bold")
    buckets.add_column("bucket (hour, UTC)")
    for name in ("rows", "files", "MiB", "first event", "last event"):
        buckets.add_column(name, justify="right")
    for b in found.buckets:
        buckets.add_row(
            b.name, f"{b.rows:,}", str(b.files), f"{b.bytes / _MIB:.2f}", f"{b.first:%H:%M:%S}", f"{b.last:%H:%M:%S}"
        )
    files, size = sum(b.files for b in found.buckets), sum(b.bytes for b in found.buckets)
    buckets.add_section()
    buckets.add_row("all", f"{found.rows:,}", str(files), f"{size / _MIB:.2f}", style="bold")
    letters = Table(
        box=box.SIMPLE_HEAD, title="Dead letters: kept whole, with the reason", title_justify="left", title_style="bold"
    )
    letters.add_column("reason")
    letters.add_column("messages", justify="right")
    for reason, count in found.reasons.items():
        letters.add_row(Text(reason), f"{count:,}")
    return Group(buckets, letters)


def sentence(found: Account) -> str:
    """One line that accounts for every message."""
    return (
        f"{found.produced:,} produced = {found.rows:,} rows + {found.dead_letters:,} dead letters "
        f"+ {found.lost:,} lost, {found.twice:,} twice"
    )


def _files(location: Path) -> list[Path]:
    """Files of the table's newest version; none if there is no table."""
    if not DeltaTable.is_deltatable(str(location)):
        return []
    return [location / unquote(path) for path in pa.table(DeltaTable(location).get_add_actions())["path"].to_pylist()]


def _load(db: Any, name: str, files: list[Path], columns: Mapping[str, str]) -> None:
    """Copy the columns that the account needs into a table; an empty one where there are no files."""
    db.execute(f"CREATE TABLE {name} ({', '.join(f'{column} {kind}' for column, kind in columns.items())})")
    if files:
        options = "union_by_name = true, hive_partitioning = true, hive_types_autocast = false, filename = true"
        query = f"SELECT {', '.join(columns)} FROM read_parquet($1, {options})"  # noqa: S608 - our own names
        db.execute(f"INSERT INTO {name} {query}", [[str(file) for file in files]])


def _buckets(db: Any, files: list[Path]) -> tuple[Bucket, ...]:
    found = db.execute(
        """
        SELECT hour, count(*), list(DISTINCT filename), epoch_us(min(event_time)), epoch_us(max(event_time)),
          count(*) FILTER (strftime(make_timestamp(epoch_us(event_time)), '%Y-%m-%dT%H') != hour)
        FROM events GROUP BY hour ORDER BY hour
        """
    ).fetchall()
    sizes = {str(file): file.stat().st_size for file in files}
    return tuple(
        Bucket(name, rows, len(names), sum(sizes[n] for n in names), _utc(first), _utc(last), astray)
        for name, rows, names, first, last, astray in found
    )


def _utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)
