"""The verbs that write a table's files anew, or remove those that nobody needs: `compact` and `vacuum`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from writer.options import AsJson, ConfigFile, OnePipeline

if TYPE_CHECKING:
    from writer.config import Config


def compact(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    bucket: Annotated[
        list[str] | None,
        typer.Option("--bucket", help="Only this bucket, as 2026-11-20T05, or hour=2026-11-20T05; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be rewritten; change nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of buckets, in this process. Closed buckets are also sorted and deduped, if configured.

    May be killed, repeated, and run beside the writer: of two rewrites of one file one stands. Readers of a Delta table
    see the same rows at every moment; those of a Parquet table may miss some while files are swapped.

    Exit codes: 0 done, 1 a file is gone or the storage does not answer, 2 configuration.
    """
    from writer.surface import rewrites as verb

    settings, name = _opened(config, pipeline)
    raise typer.Exit(verb.compact(name, settings, bucket, dry_run=dry_run, as_json=as_json))


def vacuum(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than", help="Only what is older than this; default: table.orphan_age, the least that is safe."
        ),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Remove it. Without, it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Find what nobody needs in a pipeline's tables and checkpoints, and remove it with --delete.

    Files that no version names, files that were removed from the table, drafts of writers that died, old manifests,
    checkpoints of runs that nobody continues. Never what a version that is kept, a running batch or the ledger needs. A
    folder inside that is a table of its own is left alone, and named.

    Exit codes: 0 shown or removed, 1 the storage does not answer, 2 configuration.
    """
    from writer.surface import rewrites as verb

    settings, name = _opened(config, pipeline)
    now = datetime.now(UTC)
    raise typer.Exit(verb.vacuum(name, settings, older_than, delete=delete, as_json=as_json, now=now))


def join(app: typer.Typer) -> None:
    """Hang the verbs into the command."""
    app.command()(compact)
    app.command()(vacuum)


def _opened(path: Path, pipeline: str | None) -> "tuple[Config, str]":
    from writer.file import load

    settings = load(path)
    return settings, settings.one(pipeline)
