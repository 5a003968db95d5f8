"""`headrace vacuum`: removes objects that no version of the table needs."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import instant, iso, plural
from writer.core.units import duration, show_duration, show_size
from writer.maintenance.vacuum import VacuumLocation, find_unneeded, remove
from writer.maintenance.vacuum_plan import DESCRIPTIONS
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, emit_whole, numbers, sentence

_OTHER_TABLE = "a table of its own or a link: what lies there is not looked at"
_OBJECT_COLUMNS = [Column("what"), *numbers("objects", "size"), Column("oldest"), Column("why")]


def run_vacuum(name: str, config: Config, older_than: str | None, *, write: bool, as_json: bool, now: datetime) -> bool:
    """Show what is not needed, and remove it if asked. Returns whether there is any."""
    age_min = _parse_age(older_than)
    locations = find_unneeded(config, name, age_min, now)
    if write:
        remove(locations)
    if as_json:
        emit_whole(_document(name, locations, deleted=write))
    else:
        age_min = age_min or config.pipelines[name].table.orphan_retention
        _show(console(), name, locations, age_min, deleted=write)
    return any(location.waste for location in locations)


def _parse_age(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return duration(text)
    except ValueError as error:
        raise ConfigError(f"--older-than {error}") from error


def _document(name: str, locations: Sequence[VacuumLocation], *, deleted: bool) -> dict[str, Any]:
    return {
        "pipeline": name,
        "deleted": deleted,
        "bytes": sum(unneeded.bytes for location in locations for unneeded in location.waste),
        "locations": [_location_document(location) for location in locations],
    }


def _location_document(location: VacuumLocation) -> dict[str, Any]:
    return {
        "location": location.location,
        "left_alone": list(location.left_alone),
        "objects": [{**vars(unneeded), "touched": iso(unneeded.touched)} for unneeded in location.waste],
    }


def _show(out: Console, name: str, locations: Sequence[VacuumLocation], age_min: timedelta, *, deleted: bool) -> None:
    for location in locations:
        _show_location(out, location)
    objects = sum(len(location.waste) for location in locations)
    if not objects:
        sentence(out, f"{name}: nothing that has been unneeded for {show_duration(age_min)}", "bold")
        return
    verb = "removed " if deleted else ""
    size = show_size(sum(unneeded.bytes for location in locations for unneeded in location.waste))
    summary = f"{plural(objects, 'object')} of {size} that nothing has needed for {show_duration(age_min)}"
    sentence(out, f"{name}: {verb}{summary}", "bold")


def _show_location(out: Console, location: VacuumLocation) -> None:
    sentence(out, location.location, "bold")
    table = TextTable(out, _OBJECT_COLUMNS)
    for kind in dict.fromkeys(unneeded.why for unneeded in location.waste):
        objects = [unneeded for unneeded in location.waste if unneeded.why == kind]
        size = show_size(sum(unneeded.bytes for unneeded in objects))
        oldest = instant(min(unneeded.touched for unneeded in objects))
        table.add([[kind, f"{len(objects):,}", size, oldest, DESCRIPTIONS[kind]]])
    for path in location.left_alone:
        folder = f"{location.location}/{path}".rstrip("/")
        sentence(out, f"left alone: {folder}, {_OTHER_TABLE}")


def vacuum(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="Only what is older than this; default: table.orphan_retention, the least that is safe.",
        ),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Find what is not needed in a pipeline's tables and checkpoints, and remove it with --yes.

    Files that no version names, files that were removed from the table, drafts of writers that died, old manifests,
    checkpoints of runs that will not continue. Never what a version that is kept, a running batch or the ledger needs.
    A folder inside that is a table of its own is left alone, and named.

    Exit codes: 0 shown or removed, 1 the storage does not answer, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(run_vacuum, name, settings, older_than, as_json=as_json, now=datetime.now(UTC))
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
