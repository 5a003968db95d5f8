"""`headrace delete-rows`: what would go, taking it out, and what is left of it elsewhere."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.maintenance.deletion import pipeline_deletion
from headrace.writer.maintenance.deletion.dead_letter_deletion import DeadLetters
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest, TableDeletion
from headrace.writer.maintenance.deletion.row_deletion import DeletionResult
from headrace.writer.maintenance.deletion.row_keys import Keys, read_keys, where as condition
from headrace.writer.output.command import Depends, command
from headrace.writer.output.command_inputs import Now, Table
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, numbers, sentence
from headrace.writer.schemas.registry import SchemaSource, source
from headrace.writer.sealing.manifest import bucket_path

_RAW_LEFT = (
    "Records of which no row is left (by dedupe, retention or another client's DELETE), those that event specs left "
    "out, tombstones, and those that cannot be decoded are not found by offset; they stay until table.raw.retention is "
    "over."
)


@dataclass(frozen=True)
class DeletedRows:
    """The rows of one table that are meant, and what was taken out, bucket by bucket."""

    files: int
    # By their statistics, some rows could be there.
    files_read: int
    files_with_rows: int
    rows: int
    deleted: Sequence[DeletionResult]
    buckets: int = field(metadata=SCREEN_ONLY)
    # The cells of each bucket: where nothing was taken out, of what would go.
    bucket_cells: Sequence[Sequence[str]] = field(metadata=SCREEN_ONLY)

    def render(self, title: str, keys: str, out: Console) -> None:
        """Draw what was found, and the buckets. `keys`: how many of which fields were looked for."""
        sentence(
            out,
            f"{title}: {plural(self.rows, 'row')} with {keys}, in {plural(self.files_with_rows, 'file')} of "
            f"{plural(self.buckets, 'bucket')}. Of {self.files:,} files, {self.files_read:,} could hold some "
            "by their statistics and were read.",
        )
        if self.bucket_cells:
            titles = [Column("bucket", width_min=20), *numbers("rows", "files", "version")]
            TextTable(out, titles).add(self.bucket_cells)


@dataclass(frozen=True)
class DeletedDeadLetters:
    """The dead letters that were looked at, and those that are meant. `version`: of their table that has them out."""

    dead_letters: int
    undecodable: int
    meant: int
    version: int | None

    def render(self, out: Console) -> None:
        """Draw how many are meant, and how many nobody can tell of."""
        text = f"Dead letters: {self.meant:,} of {self.dead_letters:,} hold such a row"
        if self.version is not None:
            text += f", taken out in version {self.version} of their table"
        sentence(out, f"{text}.")
        if self.undecodable:
            sentence(
                out,
                f"{plural(self.undecodable, 'dead letter')} cannot be decoded, so it is unknown whose they are: "
                "`headrace dlq show --values` shows them.",
            )


@dataclass(frozen=True)
class DeletionReport(Report):
    """What goes of the tables of a pipeline, or went.

    `late_table`, `raw_records`: None: there is no such table; `dead_letters`: None: they were not looked at.
    """

    pipeline: str
    dry_run: bool
    # Its id, in each of its entries.
    request: str
    table: DeletedRows
    late_table: DeletedRows | None
    dead_letters: DeletedDeadLetters | None
    raw_records: int | None
    raw_versions: Sequence[int]
    # How many values of which fields; never the values.
    keys: str = field(metadata=SCREEN_ONLY)
    # Whether former files stay for readers of an older version.
    keeps_versions: bool = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether a row or a dead letter is meant."""
        tables = [self.table] if self.late_table is None else [self.table, self.late_table]
        return any(table.rows for table in tables) or bool(self.dead_letters and self.dead_letters.meant)

    def render(self, out: Console) -> None:
        """Draw each table, and where the rows are still to be found."""
        self.table.render(self.pipeline, self.keys, out)
        if self.late_table is not None:
            self.late_table.render(f"{self.pipeline}, late table", self.keys, out)
        if self.dead_letters is None:
            sentence(out, "Dead letters were not looked at.")
        else:
            self.dead_letters.render(out)
        if self.raw_records is not None:
            sentence(out, f"Raw table: {plural(self.raw_records, 'record')} at their offsets. {_RAW_LEFT}")
        if self.keeps_versions:
            sentence(
                out,
                f"The former files stay for readers of an older version; `headrace vacuum --pipeline {self.pipeline} "
                "--yes` removes them once table.orphan_retention is over. The log keeps the least and the greatest "
                "value of a column of each file until its retention is over.",
            )
        else:
            sentence(out, "The log keeps the least and the greatest value of a column of each file.")
        sentence(
            out,
            "Kafka keeps the records until its own retention: a backfill or a new table would bring them back. Events "
            "that come from now on are kept.",
        )


def _read_row_keys(
    where: Annotated[
        str | None,
        typer.Option("--where", help='Which rows: "user_id = 42", "user_id IN (42, 43) AND country = \'DE\'".'),
    ] = None,
    keys: Annotated[Path | None, typer.Option("--keys", help="CSV file with a head: a value a line.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="With --keys: the column, in table and file.")] = None,
    title: Annotated[
        str | None, typer.Option("--file-column", help="With --keys: its name in the file, if it is another one.")
    ] = None,
) -> Keys:
    """Return the keys that a condition or a file has. Raises ConfigError."""
    if where is not None and keys is None and column is None:
        return condition(where)
    if where is None and keys is not None and column is not None:
        return read_keys(keys, column, title)
    raise ConfigError("say which rows: either --where, or --keys with --column")


@command(
    exits={
        0: "done or shown",
        1: "the storage or the registry does not answer",
        2: "configuration, or no such column",
    }
)
def delete_rows(
    table: Table,
    row_keys: Annotated[Keys, Depends(_read_row_keys)],
    now: Now,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters/--no-dead-letters", help="Decode the dead letters and take theirs out too.")
    ] = True,
    *,
    write: bool,
) -> DeletionReport:
    """Take rows out by their keys, for good: from the table, and from the dead letters that can be decoded.

    Bucket by bucket, in entries that `audit` knows and that say how many rows went, never whose. If the command is
    interrupted, run it again; the writer may run meanwhile. Says what is left, and where.
    """
    request = DeletionRequest(table.pipeline, row_keys, now, table.target, dead_letters)
    return run_deletion(table.file_config, request, source(table.file_config.registry_of(table.pipeline)), write=write)


def run_deletion(config: Config, request: DeletionRequest, source: SchemaSource, *, write: bool) -> DeletionReport:
    """Take the rows out of a pipeline's tables, or only find what would go. Raises HeadraceError."""
    deletion = pipeline_deletion.delete_rows(config, request, source, write=write)
    columns = deletion.bucket_columns
    late_table = None
    if deletion.late_table is not None:
        late_table = _table_rows(deletion.late_table, columns)
    dead_letters = None
    if deletion.dead_letters is not None:
        dead_letters = _dead_letters(deletion.dead_letters)
    return DeletionReport(
        pipeline=request.pipeline,
        dry_run=not write,
        request=request.id,
        table=_table_rows(deletion.table, columns),
        late_table=late_table,
        dead_letters=dead_letters,
        raw_records=deletion.raw_records,
        raw_versions=deletion.raw_versions,
        keys=f"{plural(request.keys.count, 'value')} of {', '.join(request.keys.fields)}",
        keeps_versions=deletion.keeps_versions,
    )


def _table_rows(table: TableDeletion, columns: Sequence[str]) -> DeletedRows:
    scan = table.scan
    if table.results:
        rows = [(result.bucket, result.rows, result.files, str(result.version)) for result in table.results]
    else:
        rows = [(bucket, sum(hit.rows for hit in hits), len(hits), "-") for bucket, hits in scan.buckets.items()]
    return DeletedRows(
        files=scan.files,
        files_read=scan.candidates,
        files_with_rows=len(scan.hits),
        rows=scan.rows,
        deleted=table.results,
        buckets=len(scan.buckets),
        bucket_cells=[
            [bucket_path(columns, bucket), f"{count:,}", f"{files:,}", version]
            for bucket, count, files, version in rows
        ],
    )


def _dead_letters(result: DeadLetters) -> DeletedDeadLetters:
    return DeletedDeadLetters(result.dead_letters, result.undecodable, result.meant, result.version)
