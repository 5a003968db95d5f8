"""The verbs with which people take care of a pipeline and its table."""

import getpass
import socket
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from writer.config.pipelines import Config
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, Pipelines
from writer.status import pause
from writer.table.factory import main_table

if TYPE_CHECKING:
    pass


def paused(
    config: Config, names: Sequence[str], *, by: str | None, reason: str, now: datetime, as_json: bool, out: Console
) -> int:
    """Ask for a pause of the pipelines, and show the one that stands. Raises StoreError."""
    who = by or f"{getpass.getuser()}@{socket.gethostname()}"
    told = {name: pause.pause(main_table(name, config).store, who, reason, now) for name in names}
    if as_json:
        tables.emit_whole({name: {"paused": asdict(one), "new": new} for name, (one, new) in told.items()})
        return 0
    for name, (one, new) in told.items():
        after = "A driver finishes its batch first. `headrace resume` ends it." if new else "It stays so."
        tables.sentence(out, f"{name}: {'' if new else 'already '}{one.words}. {after}")
    return 0


def resumed(config: Config, names: Sequence[str], *, as_json: bool, out: Console) -> int:
    """End the pause of the pipelines, and show what stood. Raises StoreError."""
    told = {name: pause.resume(main_table(name, config).store) for name in names}
    if as_json:
        tables.emit_whole({name: {"was_paused": None if one is None else asdict(one)} for name, one in told.items()})
        return 0
    for name, one in told.items():
        what = "it was not paused" if one is None else f"it was {one.words}; a driver goes on within seconds"
        tables.sentence(out, f"{name}: {what}.")
    return 0


def pause(
    config: ConfigFile,
    pipeline: Pipelines = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever finds it paused.")] = "",
    by: Annotated[
        str | None, typer.Option("--by", help="Who asks. Default: this user at this machine.", show_default=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Hold the pipelines: a driver finishes its batch, then commits nothing until `headrace resume`. It stays healthy.

    A start waits, too; with `run --once` it ends with exit 5. The lag goes on being measured, and SIGTERM still drains.
    Verbs that people run, such as `dlq replay` and `delete`, are not held.

    Exit codes: 0 paused, by this or an earlier call, 1 the storage does not answer, 2 configuration.
    """
    from writer.config.loader import load
    from writer.output.tables import console

    settings, now = load(config), datetime.now(UTC)
    names = settings.chosen(pipeline)
    raise typer.Exit(paused(settings, names, by=by, reason=reason, now=now, as_json=as_json, out=console()))


def resume(config: ConfigFile, pipeline: Pipelines = None, as_json: AsJson = False) -> None:
    """End the pause of the pipelines. A driver goes on within seconds.

    Exit codes: 0 no pipeline is paused any more, 1 the storage does not answer, 2 configuration.
    """
    from writer.config.loader import load
    from writer.output.tables import console

    settings = load(config)
    raise typer.Exit(resumed(settings, settings.chosen(pipeline), as_json=as_json, out=console()))


def retention(
    config: ConfigFile,
    pipeline: Pipelines = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what is due.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop the buckets that ended longer ago than `retention` says. A running driver does so by itself.

    Each entry of the table's log says how many rows it takes, so `audit` still adds up.

    Exit codes: 0 done or shown, 1 the storage does not answer, 2 configuration.
    """
    from writer.cli.write import retention as retiring
    from writer.config.loader import load
    from writer.output.tables import console

    settings, now = load(config), datetime.now(UTC)
    names = settings.chosen(pipeline)
    raise typer.Exit(retiring.run_retention(settings, names, dry_run=dry_run, now=now, as_json=as_json, out=console()))


def delete(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    where: Annotated[
        str | None,
        typer.Option("--where", help='Which rows: "user_id = 42", "user_id IN (42, 43) AND country = \'DE\'".'),
    ] = None,
    keys: Annotated[Path | None, typer.Option("--keys", help="CSV file with a head: a value a line.")] = None,
    column: Annotated[str | None, typer.Option("--column", help="With --keys: the column, in table and file.")] = None,
    title: Annotated[
        str | None, typer.Option("--file-column", help="With --keys: its name in the file, if it is another one.")
    ] = None,
    letters: Annotated[
        bool, typer.Option("--dead-letters/--no-dead-letters", help="Decode the dead letters and take theirs out too.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Take rows out by their keys, for good: from the table, and from the dead letters that can be decoded.

    Bucket by bucket, in entries that `audit` knows and that say how many rows went, never whose. May be broken off and
    run again, beside the writer. Says what is left, and where.

    Exit codes: 0 done or shown, 1 the storage or the registry does not answer, 2 configuration, or no such column.
    """
    from writer.cli.write import delete as deleting
    from writer.config.loader import load
    from writer.core.errors import ConfigError
    from writer.maintenance.row_keys import from_file
    from writer.maintenance.row_keys import where as condition
    from writer.output.tables import console
    from writer.schemas.registry import source

    settings = load(config)
    if (where is None) == (keys is None) or (keys is None) != (column is None):
        raise ConfigError("say which rows: either --where, or --keys with --column")
    wanted = condition(where) if where is not None else from_file(keys or Path(), column or "", title)
    code = deleting.run_delete(
        settings, settings.one(pipeline), wanted, source(settings.registry), with_letters=letters,
        dry_run=dry_run, now=datetime.now(UTC), as_json=as_json, out=console(),
    )  # fmt: skip
    raise typer.Exit(code)


table = typer.Typer(no_args_is_help=True, help="Tables that other clients made, or changed.")


@table.callback()
def _group() -> None:
    """Take a table over that another writer made, or accept what another client did to the pipeline's own."""


@table.command()
def adopt(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write it. Without, it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a Delta table that headrace did not make the pipeline's, with the rows that it has.

    Its partition columns must be the pipeline's buckets, and its protocol reader 1, writer 2; what is in the way is
    said, all at once. `start` in the configuration says where to read on. Columns that say where a row came from are
    added, and the old rows are a term of the account: `audit` adds up.

    Exit codes: 0 shown or written, 1 somebody wrote the table meanwhile, 2 it cannot be adopted.
    """
    from writer.cli.write import table_adopt
    from writer.config.loader import load
    from writer.output.tables import console

    settings, now = load(config), datetime.now(UTC)
    name = settings.one(pipeline)
    raise typer.Exit(table_adopt.run_adopt(settings, name, write=yes, now=now, as_json=as_json, out=console()))


@table.command()
def accept(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write it. Without, it is only shown.")] = False,
    as_json: AsJson = False,
) -> None:
    """Accept what another client did to the pipeline's table, such as UPDATE or RESTORE: its rows stay as they are.

    The writer refuses to go on from it, as offsets did not move with the rows; `headrace rewind` takes it back. Once it
    is accepted, the writer goes on from its frontier, and `audit` proves the rows from there on; of those before, it
    says that they were accepted.

    Exit codes: 0 shown or written, 1 a driver runs, or somebody wrote the table meanwhile, 2 configuration.
    """
    from writer.cli.write import table_accept
    from writer.config.loader import load
    from writer.output.tables import console

    settings, now = load(config), datetime.now(UTC)
    name = settings.one(pipeline)
    raise typer.Exit(table_accept.run_accept(settings, name, write=yes, now=now, as_json=as_json, out=console()))


def join(app: typer.Typer) -> None:
    """Hang the verbs into the command."""
    app.command()(pause)
    app.command()(resume)
    app.command()(retention)
    app.command()(delete)
    app.add_typer(table, name="table")
