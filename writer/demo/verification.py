"""Counts the demo's events in the lake with DuckDB, and compares them with what was produced.

Of the writer's own counts it uses one: the offsets that `headrace audit` expects in no table.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from headrace.writer.audit.audit import audit
from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import Source
from headrace.writer.demo.devstack.events import NEW_FIELD
from headrace.writer.demo.row_digest import COLUMN_COUNT
from headrace.writer.demo.table_reader import ReadTable, TableFile, open_lake
from headrace.writer.demo.value_formats import AVRO, ValueFormat
from headrace.writer.demo.workload import ProducedMessages
from headrace.writer.output.tables import ruled_table
from headrace.writer.sealing.manifest import bucket_path

_MIB = 2**20
_PROVENANCE = {"_topic": "VARCHAR", "_incarnation": "INT", "_partition": "INT", "_offset": "BIGINT"}
_LETTERS = {"outcome": "VARCHAR", "error": "VARCHAR"}


_ROWS = """
    SELECT count(*), count(DISTINCT (_topic, _incarnation, _partition, _offset)), count(new_field),
      coalesce(sum(row_digest), 0),
      min(undeclared)
    FROM events
"""
# Distinct offsets in all tables, and those of them that the logs had.
_DISTINCT_OFFSETS = """
    WITH found AS (
      SELECT _topic AS topic, _incarnation AS incarnation, _partition AS partition, _offset AS position FROM events
      UNION SELECT _topic, _incarnation, _partition, _offset FROM letters
      UNION SELECT _topic, _incarnation, _partition, _offset FROM late_table)
    SELECT count(*), count(*) FILTER (
      incarnation = 1 AND position >= 0 AND position < coalesce(log_end, 0))
    FROM found LEFT JOIN ends USING (topic, partition)
"""
# Dead letters by outcome and reason, without the figures in the reasons.
_REASONS = r"""
    SELECT outcome,
      regexp_replace(regexp_replace(regexp_replace(error, 'Expected \d+ bytes, read \d+', 'Expected more bytes'),
        '^(\w+) is \d.*, outside \[.*\]$', '\1 lies outside what the writer believes'),
        ' \(byte \d+\)$', '') AS reason,
      count(*)
    FROM letters GROUP BY ALL ORDER BY outcome, 3 DESC, reason
"""


@dataclass(frozen=True)
class Bucket:
    """One bucket of the table: `first` and `last` are event times."""

    name: str
    rows: int
    files: int
    bytes: int
    first: datetime
    last: datetime
    # Rows whose event time lies before `since`.
    delayed: int
    # Rows whose event time lies outside the bucket.
    astray: int


@dataclass(frozen=True)
class Account:
    """Where everything is that the logs held. Counts are of messages."""

    produced: int
    rows: int
    # By (_topic, _incarnation, _partition, _offset).
    rows_distinct: int
    quarantined: int
    dead_letters: int
    # Offsets in no table, less those that the audit expects in none.
    lost: int
    # Rows and dead letters beyond the first of their offset.
    twice: int
    # Offsets that were never produced.
    unknown: int
    # Rows with a value of the field that came half-way.
    new_field: int
    # The sum of the digests of the rows.
    row_digest: int
    # The members of one row that no column is declared for, as JSON text; None: no row has any.
    undeclared_members: str | None
    buckets: tuple[Bucket, ...]
    # Outcome, reason and count.
    reasons: tuple[tuple[str, str, int], ...]
    # Rows of the table of late rows.
    late_table: int = 0
    # Offsets that the audit expects in no table, by the reason.
    in_no_table: Mapping[str, int] = field(default_factory=dict)

    @property
    def delayed(self) -> int:
        """Rows whose event time lies before `since`."""
        return sum(b.delayed for b in self.buckets)

    def damage(self) -> list[str]:
        """What is wrong whatever was produced, each as a phrase; empty when nothing is."""
        astray = sum(b.astray for b in self.buckets)
        return _phrases(
            {
                f"{self.lost:,} of {self.produced:,} offsets are in no table": self.lost,
                f"{self.twice:,} offsets are there twice": self.twice,
                f"{self.unknown:,} offsets were never produced": self.unknown,
                f"{astray:,} rows lie in the bucket of another hour": astray,
                f"{self.rows:,} rows have {self.rows_distinct:,} distinct offsets": self.rows - self.rows_distinct,
            }
        )

    def differences(self, produced: ProducedMessages) -> list[str]:
        """What does not add up with what was produced, each as a phrase; empty when everything does."""
        counts_by_kind = (produced.good, produced.delayed, produced.ahead, produced.broken)
        good, delayed, ahead, broken = (counts.total() for counts in counts_by_kind)
        has_other_values = produced.row_digest is not None and produced.row_digest.total != self.row_digest
        return self.damage() + _phrases(
            {
                f"{good + delayed:,} good events became {self.rows:,} rows": self.rows - good - delayed,
                f"{delayed:,} delayed events became {self.delayed:,} delayed rows": self.delayed - delayed,
                f"{ahead:,} events from the future left {self.quarantined:,} quarantined": self.quarantined - ahead,
                f"{broken:,} broken values became {self.dead_letters:,} dead letters": self.dead_letters - broken,
                f"{produced.new_field:,} events had {NEW_FIELD}, {self.new_field:,} rows have it": self.new_field
                - produced.new_field,
                "the rows hold other values than the events": has_other_values,
            }
        )


def committed_account(
    settings: Config,
    pipeline: str,
    ends: Mapping[Source, int],
    *,
    since: datetime,
    value_format: ValueFormat = AVRO,
    scratch: Path | None = None,
) -> Account:
    """Account for a pipeline's tables, less what its audit expects in none of them. Raises HeadraceError, StoreError.

    `scratch`: for copies of files that lie in a bucket; None: the directory for temporary files.
    """
    tables = settings.pipelines[pipeline]
    report = audit(settings, pipeline, since=None, deep=False)
    with open_lake(settings.stores, scratch) as reader:

        def open_table(location: str) -> ReadTable:
            return reader.open(location, settings.catalog_place(pipeline, location))

        return account_of(
            tables.table.location,
            tables.dead_letters,
            ends,
            open_table,
            since=since,
            value_format=value_format,
            late_table=tables.late_place,
            in_no_table=report.in_no_table,
        )


def account_of(
    location: str,
    dead_letters: str,
    ends: Mapping[Source, int],
    open_table: Callable[[str], ReadTable],
    *,
    since: datetime,
    value_format: ValueFormat = AVRO,
    late_table: str | None = None,
    in_no_table: Mapping[str, int] | None = None,
) -> Account:
    """Ask DuckDB over what the tables hold, of Iceberg by a scan; `ends` is where each partition's log ends.

    Each log begins at offset 0. Rows with an event time before `since` are delayed. `in_no_table`: offsets that were
    taken out of the tables, or held nothing to keep, by why. `open_table`: of a location.
    """
    import duckdb

    table = open_table(location)
    db = duckdb.connect()
    db.execute("CREATE TABLE ends (topic VARCHAR, partition INT, log_end BIGINT)")
    db.executemany("INSERT INTO ends VALUES (?, ?, ?)", [[*source, log_end] for source, log_end in ends.items()])
    _load_events(db, table, value_format)
    open_table(dead_letters).show_as(db, "letters", _PROVENANCE | _LETTERS)
    late = open_table(late_table) if late_table else ReadTable([])
    late.show_as(db, "late_table", _PROVENANCE)
    rows, rows_distinct, new_field, row_digest, undeclared_members = db.execute(_ROWS).fetchone()
    distinct, known_offsets = db.execute(_DISTINCT_OFFSETS).fetchone()
    reasons = db.execute(_REASONS).fetchall()
    quarantined = sum(count for outcome, _, count in reasons if outcome == "quarantined")
    dead_letter_rows = sum(count for _, _, count in reasons)
    late_rows = db.execute("SELECT count(*) FROM late_table").fetchone()[0]
    produced = sum(ends.values())
    absent = in_no_table or {}
    return Account(
        produced=produced,
        rows=rows,
        rows_distinct=rows_distinct,
        quarantined=quarantined,
        dead_letters=dead_letter_rows - quarantined,
        lost=produced - known_offsets - sum(absent.values()),
        twice=rows + late_rows + dead_letter_rows - distinct,
        unknown=distinct - known_offsets,
        new_field=new_field,
        row_digest=int(row_digest),
        undeclared_members=undeclared_members,
        buckets=_buckets(db, table.files, since),
        reasons=tuple(reasons),
        late_table=late_rows,
        in_no_table=absent,
    )


def show(account: Account) -> RenderableType:
    """Tables of buckets and of what became no row, for a person."""
    buckets = ruled_table(
        "bucket",
        "rows",
        "delayed",
        "files",
        "MiB",
        "first event",
        "last event",
        title="The lake, as DuckDB reads it",
    )
    for b in account.buckets:
        delayed = Text(f"{b.delayed:,}", "yellow") if b.delayed else ""
        times = f"{b.first:%H:%M:%S}", f"{b.last:%H:%M:%S}"
        name = bucket_path(["hour"], (b.name,))
        buckets.add_row(name, f"{b.rows:,}", delayed, f"{b.files:,}", f"{b.bytes / _MIB:.2f}", *times)
    files = sum(b.files for b in account.buckets)
    size = sum(b.bytes for b in account.buckets)
    buckets.add_section()
    buckets.add_row(
        "all", f"{account.rows:,}", f"{account.delayed:,}", f"{files:,}", f"{size / _MIB:.2f}", style="bold"
    )
    dead_letter_rows = ruled_table(
        "outcome", "reason", "events", left=2, title="What became no row: kept whole, with the reason"
    )
    for outcome, reason, count in account.reasons:
        dead_letter_rows.add_row(outcome.replace("_", " "), Text(reason), f"{count:,}")
    return Group(buckets, "", dead_letter_rows, "")


def sentence(account: Account) -> str:
    """One line that accounts for every message."""
    terms = {
        "rows": account.rows,
        "quarantined": account.quarantined,
        "dead letters": account.dead_letters,
    }
    if account.late_table:
        terms["rows of the late table"] = account.late_table
    terms |= {**account.in_no_table, "lost": account.lost}
    sums = " + ".join(f"{count:,} {label}" for label, count in terms.items())
    return f"{account.produced:,} produced = {sums}, {account.twice:,} twice"


def details(account: Account, value_format: ValueFormat) -> list[str]:
    """What else was counted, a line each."""
    examples = []
    if account.undeclared_members is not None:
        examples.append(f"rest of one of them: {account.undeclared_members}")
    return [
        f"{account.rows_distinct:,} distinct (_topic, _incarnation, _partition, _offset) in {account.rows:,} rows",
        f"{account.delayed:,} delayed rows, each in the bucket of its own hour",
        "delayed: sent hours after the event; late: the bucket was closed by then",
        f"{account.new_field:,} rows {value_format.change_rows}, as many as were produced with it",
        *examples,
        f"every row has the values of its event: a digest of {COLUMN_COUNT} columns is equal",
    ]


def _phrases(differences: Mapping[str, int]) -> list[str]:
    return [phrase for phrase, difference in differences.items() if difference]


def _load_events(db: Any, table: ReadTable, value_format: ValueFormat) -> None:
    """Copy what the account needs of each row into the table `events`."""
    table.show_as(db, "event_rows", {**_PROVENANCE, "hour": "VARCHAR", **value_format.columns})
    db.execute(
        f"CREATE TABLE events AS SELECT {', '.join(_PROVENANCE)}, hour, event_time, "  # noqa: S608 - our own names
        f"{value_format.new_field} AS new_field, {value_format.undeclared} AS undeclared, "
        f"{value_format.row_digest} AS row_digest FROM event_rows"
    )


def _buckets(db: Any, files: list[TableFile], since: datetime) -> tuple[Bucket, ...]:
    groups = db.execute(
        """
        SELECT hour, count(*), epoch_us(min(event_time)), epoch_us(max(event_time)),
          count(*) FILTER (event_time < $1),
          count(*) FILTER (strftime(make_timestamp(epoch_us(event_time)), '%Y-%m-%dT%H') != hour)
        FROM events GROUP BY hour ORDER BY hour
        """,
        [since],
    ).fetchall()
    sizes = defaultdict[str, list[int]](list)
    for file in files:
        sizes[file.folder].append(file.bytes)
    return tuple(
        Bucket(name, rows, len(own), sum(own), _utc(first), _utc(last), delayed, astray)
        for name, rows, first, last, delayed, astray in groups
        for own in [sizes[bucket_path(["hour"], (name,))]]
    )


def _utc(microseconds: int) -> datetime:
    return datetime.fromtimestamp(microseconds / 1e6, UTC)
