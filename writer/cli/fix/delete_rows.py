"""`headrace delete-rows`: what would go, taking it out, and what is left of it elsewhere."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.maintenance.deletion import dead_letter_deletion, pipeline_deletion
from writer.maintenance.deletion.dead_letter_deletion import DeadLetters
from writer.maintenance.deletion.pipeline_deletion import DeletionRequest, PipelineDeletion, TableDeletion
from writer.maintenance.deletion.row_keys import Keys, read_keys, where as condition
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, OneTarget
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.table_choice import load_table
from writer.output.tables import Column, TextTable, console, emit_whole, numbers, sentence
from writer.schemas.registry import SchemaSource, source
from writer.sealing.manifest import bucket_path

_RAW_LEFT = (
    "Records of which no row is left (by dedupe, retention or another client's DELETE), those that event specs left "
    "out, tombstones, and those that cannot be decoded are not found by offset; they stay until table.raw.retention is "
    "over."
)


def run_delete(
    config: Config, request: DeletionRequest, source: SchemaSource, *, write: bool, as_json: bool, out: Console
) -> bool:
    """Take the rows out of a pipeline's tables, or only show what would go. Returns whether any would go.

    Raises HeadraceError.
    """
    deletion = pipeline_deletion.delete_rows(config, request, source, write=write)
    if as_json:
        emit_whole({"pipeline": request.pipeline, "dry_run": not write, "request": request.id, **_document(deletion)})
    else:
        _show(out, request, deletion)
    return deletion.has_rows


def _document(deletion: PipelineDeletion) -> Mapping[str, Any]:
    dead_letters = deletion.dead_letters
    return {
        **_table_document(deletion.table),
        "late_table": deletion.late_table and _table_document(deletion.late_table),
        "dead_letters": dead_letters and dead_letter_deletion.to_dict(dead_letters),
        "raw_records": deletion.raw_records,
        "raw_versions": deletion.raw_versions,
    }


def _table_document(table: TableDeletion) -> Mapping[str, Any]:
    return {
        "files": table.scan.files,
        "files_read": table.scan.candidates,
        "files_with_rows": len(table.scan.hits),
        "rows": table.scan.rows,
        "deleted": [
            {"bucket": list(result.bucket), "rows": result.rows, "files": result.files, "version": result.version}
            for result in table.results
        ],
    }


def _show(out: Console, request: DeletionRequest, deletion: PipelineDeletion) -> None:
    _show_table(out, request.pipeline, request.keys, deletion, deletion.table)
    if deletion.late_table:
        _show_table(out, f"{request.pipeline}, late table", request.keys, deletion, deletion.late_table)
    _show_dead_letters(out, deletion.dead_letters)
    if deletion.raw_records is not None:
        sentence(out, f"Raw table: {plural(deletion.raw_records, 'record')} at their offsets. {_RAW_LEFT}")
    _show_what_stays(out, request.pipeline, keeps_versions=deletion.keeps_versions)


def _show_table(out: Console, name: str, keys: Keys, deletion: PipelineDeletion, table: TableDeletion) -> None:
    scan = table.scan
    sentence(
        out,
        f"{name}: {plural(scan.rows, 'row')} with {plural(keys.count, 'value')} of {', '.join(keys.fields)}, in "
        f"{plural(len(scan.hits), 'file')} of {plural(len(scan.buckets), 'bucket')}. Of {scan.files:,} files, "
        f"{scan.candidates:,} could hold some by their statistics and were read.",
    )
    if table.results:
        rows = [(result.bucket, result.rows, result.files, str(result.version)) for result in table.results]
    else:
        rows = [(bucket, sum(hit.rows for hit in hits), len(hits), "-") for bucket, hits in scan.buckets.items()]
    if rows:
        titles = [Column("bucket", width_min=20), *numbers("rows", "files", "version")]
        TextTable(out, titles).add(
            [
                [bucket_path(deletion.bucket_columns, bucket), f"{count:,}", f"{files:,}", version]
                for bucket, count, files, version in rows
            ]
        )


def _show_dead_letters(out: Console, dead_letters: DeadLetters | None) -> None:
    if dead_letters is None:
        sentence(out, "Dead letters were not looked at.")
        return
    text = f"Dead letters: {dead_letters.meant:,} of {dead_letters.dead_letters:,} hold such a row"
    if dead_letters.version is not None:
        text += f", taken out in version {dead_letters.version} of their table"
    sentence(out, f"{text}.")
    if dead_letters.undecodable:
        sentence(
            out,
            f"{plural(dead_letters.undecodable, 'dead letter')} cannot be decoded, so it is unknown whose they are: "
            "`headrace dlq show --values` shows them.",
        )


def _show_what_stays(out: Console, name: str, *, keeps_versions: bool) -> None:
    """Say where the rows are still to be found."""
    if keeps_versions:
        sentence(
            out,
            f"The former files stay for readers of an older version; `headrace vacuum --pipeline {name} --yes` removes "
            "them once table.orphan_retention is over. The log keeps the least and the greatest value of a column of "
            "each file until its retention is over.",
        )
    else:
        sentence(out, "The log keeps the least and the greatest value of a column of each file.")
    sentence(
        out,
        "Kafka keeps the records until its own retention: a backfill or a new table would bring them back. Events "
        "that come from now on are kept.",
    )


def delete_rows(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    where: Annotated[
        str | None,
        typer.Option("--where", help='Which rows: "user_id = 42", "user_id IN (42, 43) AND country = \'DE\'".'),
    ] = None,
    keys: Annotated[Path | None, typer.Option("--keys", help="CSV file with a head: a value a line.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="With --keys: the column, in table and file.")] = None,
    title: Annotated[
        str | None, typer.Option("--file-column", help="With --keys: its name in the file, if it is another one.")
    ] = None,
    dead_letters: Annotated[
        bool, typer.Option("--dead-letters/--no-dead-letters", help="Decode the dead letters and take theirs out too.")
    ] = True,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take rows out by their keys, for good: from the table, and from the dead letters that can be decoded.

    Bucket by bucket, in entries that `audit` knows and that say how many rows went, never whose. If the command is
    interrupted, run it again; the writer may run meanwhile. Says what is left, and where.

    Exit codes: 0 done or shown, 1 the storage or the registry does not answer, 2 configuration, or no such column.
    """
    table = load_table(config, pipeline, target)
    row_keys = _read_row_keys(where, keys, column, title)
    schemas = source(table.file_config.registry)
    request = DeletionRequest(table.pipeline, row_keys, datetime.now(UTC), table.target, dead_letters)
    work = partial(run_delete, table.file_config, request, schemas, as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _read_row_keys(where: str | None, file: Path | None, column: str | None, title: str | None) -> Keys:
    """Return the keys that a condition or a file has. Raises ConfigError."""
    if where is not None and file is None and column is None:
        return condition(where)
    if where is None and file is not None and column is not None:
        return read_keys(file, column, title)
    raise ConfigError("say which rows: either --where, or --keys with --column")
