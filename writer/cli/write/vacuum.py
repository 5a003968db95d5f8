"""`headrace vacuum`: removes objects that no version of the table needs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer

from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import instant, iso, plural
from writer.core.units import duration, show_duration, show_size
from writer.maintenance.vacuum import VacuumLocation, find_unneeded, remove
from writer.maintenance.vacuum_plan import WORDS
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, emit_whole, numbers

_APART = "a table of its own or a link: what lies there is not looked at"
_WASTE = [Column("what"), *numbers("objects", "size"), Column("oldest"), Column("why")]


def run_vacuum(name: str, config: Config, older_than: str | None, *, write: bool, as_json: bool, now: datetime) -> bool:
    """Show what is not needed, and remove it if asked. Returns whether there is any."""
    out = console()
    try:
        age = None if older_than is None else duration(older_than)
    except ValueError as error:
        raise ConfigError(f"--older-than {error}") from error
    found = find_unneeded(config, name, age, now)
    if write:
        remove(found)
    objects = sum(len(place.waste) for place in found)
    if as_json:
        emit_whole(_to_dict(name, found, deleted=write))
        return bool(objects)
    size = show_size(sum(waste.bytes for place in found for waste in place.waste))
    least = show_duration(age or config.pipelines[name].table.orphan_retention)
    what = f"{plural(objects, 'object')} of {size} that nothing has needed for {least}"
    if not objects:
        what = f"nothing that has been unneeded for {least}"
    for place in found:
        tables.sentence(out, place.location, "bold")
        sheet = TextTable(out, _WASTE)
        for why in dict.fromkeys(waste.why for waste in place.waste):
            these = [waste for waste in place.waste if waste.why == why]
            oldest = instant(min(waste.touched for waste in these))
            sheet.add([[why, f"{len(these):,}", show_size(sum(w.bytes for w in these)), oldest, WORDS[why]]])
        for path in place.left_alone:
            tables.sentence(out, f"left alone: {f'{place.location}/{path}'.rstrip('/')}, {_APART}")
    tables.sentence(out, f"{name}: {'removed ' if write and objects else ''}{what}", "bold")
    return bool(objects)


def _to_dict(name: str, found: Sequence[VacuumLocation], *, deleted: bool) -> dict[str, Any]:
    return {
        "pipeline": name, "deleted": deleted,
        "bytes": sum(waste.bytes for place in found for waste in place.waste),
        "locations": [
            {
                "location": place.location, "left_alone": list(place.left_alone),
                "objects": [{**vars(waste), "touched": iso(waste.touched)} for waste in place.waste],
            }
            for place in found
        ],
    }  # fmt: skip


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
