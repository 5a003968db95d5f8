"""`headrace vacuum`: removes objects that no version of the table needs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import instant, plural
from headrace.writer.core.units import duration, show_duration, show_size
from headrace.writer.maintenance.vacuum import VacuumLocation, find_unneeded, remove
from headrace.writer.maintenance.vacuum_plan import DESCRIPTIONS, UnneededObject
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Now, Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, numbers, sentence

_OTHER_TABLE = "a table of its own or a link: what lies there is not looked at"
_OBJECT_COLUMNS = [Column("what"), *numbers("objects", "size"), Column("oldest"), Column("why")]


@dataclass(frozen=True)
class LocationReport:
    """A location, its unneeded objects, and folders in it that are not looked at."""

    location: str
    left_alone: Sequence[str]
    objects: Sequence[UnneededObject]

    def render(self, out: Console) -> None:
        """Draw its objects by their kind."""
        sentence(out, self.location, "bold")
        table = TextTable(out, _OBJECT_COLUMNS)
        for kind in dict.fromkeys(unneeded.why for unneeded in self.objects):
            objects = [unneeded for unneeded in self.objects if unneeded.why == kind]
            size = show_size(sum(unneeded.bytes for unneeded in objects))
            oldest = instant(min(unneeded.touched for unneeded in objects))
            table.add([[kind, f"{len(objects):,}", size, oldest, DESCRIPTIONS[kind]]])
        for path in self.left_alone:
            folder = f"{self.location}/{path}".rstrip("/")
            sentence(out, f"left alone: {folder}, {_OTHER_TABLE}")


@dataclass(frozen=True)
class VacuumReport(Report):
    """What no version needs, and whether it was removed."""

    pipeline: str
    deleted: bool
    bytes: int
    locations: Sequence[LocationReport]
    age_min: timedelta = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether anything is unneeded."""
        return any(location.objects for location in self.locations)

    def render(self, out: Console) -> None:
        """Draw each location, and the sums."""
        for location in self.locations:
            location.render(out)
        objects = sum(len(location.objects) for location in self.locations)
        age = show_duration(self.age_min)
        if not objects:
            sentence(out, f"{self.pipeline}: nothing that has been unneeded for {age}", "bold")
            return
        verb = "removed " if self.deleted else ""
        summary = f"{plural(objects, 'object')} of {show_size(self.bytes)} that nothing has needed for {age}"
        sentence(out, f"{self.pipeline}: {verb}{summary}", "bold")


@command(exits={0: "shown or removed", 1: "the storage does not answer", 2: "configuration"})
def vacuum(
    pipeline: Pipeline,
    now: Now,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            help="Only what is older than this; default: table.orphan_retention, the least that is safe.",
        ),
    ] = None,
    *,
    write: bool,
) -> VacuumReport:
    """Find what is not needed in a pipeline's tables and checkpoints, and remove it with --yes.

    Files that no version names, files that were removed from the table, drafts of writers that died, old manifests,
    checkpoints of runs that will not continue. Never what a version that is kept, a running batch or the ledger needs.
    A folder inside that is a table of its own is left alone, and named.
    """
    return run_vacuum(pipeline.name, pipeline.config, older_than, write=write, now=now)


def run_vacuum(name: str, config: Config, older_than: str | None, *, write: bool, now: datetime) -> VacuumReport:
    """Find what is not needed, and remove it if asked. Raises ConfigError, StoreError, CommitFailed."""
    age_min = _parse_age(older_than)
    locations = find_unneeded(config, name, age_min, now)
    if write:
        remove(locations)
    size = sum(unneeded.bytes for location in locations for unneeded in location.waste)
    age_min = age_min or config.pipelines[name].table.orphan_retention
    return VacuumReport(name, write, size, [_report_location(location) for location in locations], age_min)


def _report_location(location: VacuumLocation) -> LocationReport:
    return LocationReport(location.location, location.left_alone, location.waste)


def _parse_age(text: str | None) -> timedelta | None:
    if text is None:
        return None
    try:
        return duration(text)
    except ValueError as error:
        raise ConfigError(f"--older-than {error}") from error
