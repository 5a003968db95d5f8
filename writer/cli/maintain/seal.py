"""`headrace seal`: closes and seals buckets now, or shows what would be sealed."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

import bucketers
from writer.core.errors import ConfigError
from writer.core.text import instant, plural
from writer.driver.sealing.seal_request import SealRequest, SealResult, seal_buckets
from writer.output.cli_options import (
    AsJson,
    ConfigFile,
    OnePipeline,
    OneTarget,
    buckets_help,
    time_of,
)
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.table_choice import ChosenTable, load_table
from writer.output.tables import Column, TextTable, console, emit_whole, hanging, numbers, sentence
from writer.sealing.bucket_selection import parse_buckets
from writer.sealing.manifest import Manifest


def seal(
    config: ConfigFile,
    bucket: Annotated[str | None, typer.Argument(help=buckets_help("Only these buckets"))] = None,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Close every bucket that ends by this time, and seal them.")
    ] = None,
    with_gap: Annotated[
        bool, typer.Option("--with-gap", help="Also those whose records may lie in a gap: Kafka lost them.")
    ] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Seal buckets: say in a manifest what each holds, once no more rows are expected on time.

    Without BUCKET or --until, what is due by watermark or clock, as the driver does by itself. With one of them, on
    your word that the rows are there: what still comes is late. Without Spark; may run beside the writer.

    Exit codes: 0 sealed or shown, or nothing to do, 1 a bucket could not be sealed, or Kafka does not answer, 2 it
    cannot be so.
    """
    table = load_table(config, pipeline, target)
    if bucket is not None and until is not None:
        raise ConfigError("give BUCKET or --until, not both")
    selection = None
    if bucket is not None:
        selection = parse_buckets(bucket, bucketers.build(table.config.pipelines[table.pipeline].bucket))
    request = SealRequest(selection, time_of("--until", until), with_gap)
    work = partial(run_seal, table, request, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def run_seal(
    table: ChosenTable,
    request: SealRequest,
    *,
    write: bool,
    now: datetime,
    as_json: bool,
    out: Console,
) -> bool:
    """Seal what is asked for, or show what would be sealed. Returns whether there is anything to do.

    Raises HeadraceError, and Exit where a bucket could not be sealed, or Kafka did not say what is due.
    """
    request = replace(request, dry_run=not write)
    result = seal_buckets(table.pipeline, table.file_config, request, now, table.target)
    if as_json:
        emit_whole(_document(result, dry_run=request.dry_run))
    else:
        _show(result, out, dry_run=request.dry_run)
    if write and (result.blocked or result.is_kafka_silent):
        raise typer.Exit(1)
    return bool(result.manifests) or result.closes_buckets


def _document(result: SealResult, *, dry_run: bool) -> Mapping[str, Any]:
    return {
        "dry_run": dry_run,
        "closed_until": result.closed_until and result.closed_until.isoformat(),
        "sealed": [manifest.to_json() for manifest in result.manifests],
        "blocked": [{"bucket": bucket.name, "reason": bucket.reason} for bucket in result.blocked],
        "notes": list(result.notes),
    }


def _show(result: SealResult, out: Console, *, dry_run: bool) -> None:
    closed = "nothing is closed yet"
    if result.closed_until is not None:
        closed = f"closed until {instant(result.closed_until)}"
    verb = "would be sealed" if dry_run else "sealed"
    sentence(out, f"{closed}; {plural(len(result.manifests), 'bucket')} {verb}")
    if result.manifests:
        columns = [Column("bucket"), *numbers("version", "rows", "files", "late"), Column("why")]
        TextTable(out, columns).add([_row(manifest) for manifest in result.manifests])
    for bucket in result.blocked:
        hanging(out, f"{bucket.name} is not sealed: ", bucket.reason, "yellow")
    for note in result.notes:
        sentence(out, note)


def _row(manifest: Manifest) -> list[str]:
    numbers = [f"{number:,}" for number in (manifest.rows, manifest.files, manifest.late)]
    reason: str = manifest.reason
    if manifest.with_gap:
        reason += ", with a gap"
    return [manifest.name, str(manifest.version), *numbers, reason]
