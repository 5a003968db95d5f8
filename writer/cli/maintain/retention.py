"""`headrace retention`: shows and drops buckets whose retention has passed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rich.console import Console

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.text import instant, plural
from headrace.writer.core.units import show_duration, show_size
from headrace.writer.maintenance.retention import ExpiredBucket, Retention, count_rows, table_retentions
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Now, TablesOrRaw, look_at_each_table
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.output.tables import Column, TextTable, count_cell, numbers, sentence
from headrace.writer.sealing.manifest import bucket_path
from headrace.writer.sealing.retention_wait import RetentionWait
from headrace.writer.table.factory import existing_table

# For a person; --json has all.
_BUCKETS_SHOWN = 20


@dataclass(frozen=True)
class DueBucket:
    """A bucket whose retention has passed. `rows`: None: another client wrote a file and does not say."""

    bucket: BucketKey
    start: datetime
    end: datetime
    rows: int | None
    files: int
    bytes: int
    # The folders of its files.
    name: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class TableRetention:
    """What is due of one table, and what was dropped of it."""

    # What ended before it is due.
    before: datetime
    due: Sequence[DueBucket]
    # Of the entries that dropped it.
    versions: Sequence[int]
    rows_dropped: int
    files_dropped: int
    bytes_dropped: int
    # Whether a longer one is in force until --yes.
    waits: bool
    title: str = field(metadata=SCREEN_ONLY)
    kept_for: timedelta = field(metadata=SCREEN_ONLY)
    # Of a shorter retention, before this command or by it.
    wait: RetentionWait | None = field(metadata=SCREEN_ONLY)
    is_accepted: bool = field(metadata=SCREEN_ONLY)
    has_versions: bool = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether buckets are due, or a shorter retention waits."""
        return bool(self.due) or self.wait is not None

    def render(self, out: Console) -> None:
        """Draw what is due, what waits, and what was dropped."""
        condition = f"ended by {instant(self.before)} (retention {show_duration(self.kept_for)})"
        if self.due:
            sentence(out, f"{self.title}: {plural(len(self.due), 'bucket')} {condition}:")
            table = TextTable(out, [Column("bucket", width_min=20), *numbers("rows", "files", "size")])
            table.add([_cells(bucket) for bucket in self.due[:_BUCKETS_SHOWN]])
        else:
            sentence(out, f"{self.title}: no bucket {condition}.")
        if len(self.due) > _BUCKETS_SHOWN:
            sentence(out, f"and {len(self.due) - _BUCKETS_SHOWN:,} more")
        if self.wait is not None:
            sentence(out, _describe_acceptance(self.wait, is_accepted=self.is_accepted))
        if self.versions:
            versions = ", ".join(str(version) for version in self.versions)
            files = "`headrace vacuum --yes` removes the files." if self.has_versions else "Their files are removed."
            rows = plural(self.rows_dropped, "row")
            sentence(out, f"{rows} were dropped (version {versions} of the table). {files}")


@dataclass(frozen=True)
class PipelineRetention:
    """The tables of a pipeline, or of a target of its route, that have a retention; None: it has none."""

    table: TableRetention | None
    late_table: TableRetention | None
    raw_table: TableRetention | None

    @property
    def tables(self) -> list[TableRetention]:
        """Those that have a retention."""
        return [table for table in (self.table, self.late_table, self.raw_table) if table is not None]


@dataclass(frozen=True)
class RetentionReport(Report):
    """What is due of each table, by its title, and what was dropped."""

    dry_run: bool
    pipelines: Mapping[str, PipelineRetention]
    # The key of the configuration, by the titles of those without a retention.
    keys: Mapping[str, str] = field(metadata=SCREEN_ONLY)
    # Of tables that cannot be read or written.
    failure: HeadraceError | None = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether anything is due, or a shorter retention waits."""
        return any(table.has_changes for retention in self.pipelines.values() for table in retention.tables)

    def render(self, out: Console) -> None:
        """Draw each table; a table beside another one only if there is something to say of it."""
        for title, retention in self.pipelines.items():
            if title in self.keys:
                sentence(out, f"{title}: no retention is set ({self.keys[title]}); every bucket stays.")
            for table in retention.tables:
                if table is retention.table or table.has_changes:
                    table.render(out)


@command(exits={0: "done or shown", 1: "the storage does not answer", 2: "configuration"})
def retention(tables: TablesOrRaw, now: Now, *, write: bool) -> RetentionReport:
    """Drop the buckets that ended longer ago than `retention` says. A running driver does so by itself.

    It does so by the retention that is in force. With --yes that is the one of the file from now on; until then a
    shorter one waits.

    Each entry of the table's log says how many rows it takes, so `audit` still adds up.
    """
    return run_retention(tables, write=write, now=now)


def run_retention(tables: Sequence[ChosenTable], *, write: bool, now: datetime) -> RetentionReport:
    """Find what is due, and drop it if asked.

    A table that fails keeps no other one. Raises HeadraceError where all of them fail.
    """
    keys = {
        table.title: f"pipelines.{table.pipeline}.retention"
        for table in tables
        if table.config.pipelines[table.pipeline].retention is None
    }
    pipelines, failure = look_at_each_table(tables, lambda table: _run_pipeline(table, write=write, now=now))
    return RetentionReport(not write, pipelines, keys, failure)


def _run_pipeline(table: ChosenTable, *, write: bool, now: datetime) -> PipelineRetention:
    if table.config.pipelines[table.pipeline].retention is not None:
        existing_table(table.pipeline, table.config).check_current()
    reports: dict[str, TableRetention] = {}
    for name, table_retention in _retention_by_table(table.config, table.pipeline).items():
        title = f"{table.title}, {name.replace('_', ' ')}"
        if name == "table":
            title = table.title
        has_versions = table.config.pipelines[table.pipeline].table.format == "delta"
        reports[name] = _run_table(title, table_retention, has_versions=has_versions, write=write, now=now)
    return PipelineRetention(reports.get("table"), reports.get("late_table"), reports.get("raw_table"))


def _retention_by_table(config: Config, name: str) -> dict[str, Retention]:
    """Return the retention of a pipeline's table and of those beside it."""
    tables = dict(zip(("table", "late_table"), table_retentions(name, config), strict=False))
    if config.pipelines[name].table.raw is not None:
        tables |= dict(zip(("raw_table",), table_retentions(name, config.at_raw(name)), strict=False))
    return tables


def _run_table(title: str, retention: Retention, *, has_versions: bool, write: bool, now: datetime) -> TableRetention:
    expired = retention.due(now)
    wait = retention.find_wait(now)
    dropped = []
    if write:
        retention.accept(now)
        dropped = list(retention.run(now))
    return TableRetention(
        before=now - retention.kept_for,
        due=[_due_bucket(bucket, retention.columns) for bucket in expired],
        versions=[entry.version for entry in dropped],
        rows_dropped=sum(entry.rows for entry in dropped),
        files_dropped=sum(entry.files for entry in dropped),
        bytes_dropped=sum(entry.bytes for entry in dropped),
        waits=wait is not None and not write,
        title=title,
        kept_for=retention.kept_for,
        wait=wait,
        is_accepted=write,
        has_versions=has_versions,
    )


def _describe_acceptance(wait: RetentionWait, *, is_accepted: bool) -> str:
    if is_accepted:
        return f"The retention of {show_duration(wait.configured)} is in force now."
    state = "Every bucket is kept"
    if wait.in_force is not None:
        state = f"{show_duration(wait.in_force)} stays in force"
    return f"{state} until --yes; {plural(wait.buckets, 'bucket')} of these would not go before."


def _due_bucket(bucket: ExpiredBucket, columns: Sequence[str]) -> DueBucket:
    start, end = bucket.interval
    rows = count_rows(bucket.files)
    name = bucket_path(columns, bucket.bucket)
    return DueBucket(bucket.bucket, start, end, rows, len(bucket.files), bucket.bytes, name)


def _cells(bucket: DueBucket) -> list[str]:
    return [bucket.name, count_cell(bucket.rows, "?"), f"{bucket.files:,}", show_size(bucket.bytes)]
