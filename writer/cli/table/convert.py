"""`headrace convert`: makes Iceberg tables of a pipeline's Delta or Parquet tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

import bucketers
from writer.clients.driver_endpoint import check_no_driver
from writer.config.pipelines import Config
from writer.config.table_sections import Table, layout
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.core.units import show_size
from writer.maintenance.retention import rows_of
from writer.output import tables as lines
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, opened
from writer.output.confirmation import DryRun, Yes, confirmed
from writer.output.tables import console
from writer.table.factory import Tables, conversion
from writer.table.log.foreign_writes import CommitFailed, reading
from writer.table.log.snapshot import PipelineSnapshot, TargetRecord, recorded
from writer.table.table import PipelineTable

if TYPE_CHECKING:
    from writer.table.iceberg.conversion import Conversion  # a second, for pyiceberg

_FORMATS = {"delta": "a Delta table", "parquet": "a table in Parquet format"}
_READERS = {
    "delta": "Readers of Delta keep the rows of today, until compaction or retention takes files that those need; none "
    "can write there. Remove _delta_log when no one reads it any more.",
    "parquet": "Readers of the folders see files there that do not count: let them read by the catalog.",
}


@dataclass(frozen=True)
class Plan:
    """One table that is to be converted, or was."""

    work: "Conversion"
    name: str  # in the catalog
    version: int  # of the old log
    begun: bool  # the old log is at its end
    done: bool  # the catalog knows the table
    files: int
    rows: int
    bytes: int

    @property
    def old_format(self) -> str:
        """Format that the table has, or had."""
        return "delta" if self.work.is_delta else "parquet"

    def to_json(self) -> dict[str, Any]:
        """Write it as `--json` does."""
        return {
            "location": self.work.old.location, "name": self.name, "from": self.old_format, "version": self.version,
            "files": self.files, "rows": self.rows, "bytes": self.bytes, "begun": self.begun, "done": self.done,
        }  # fmt: skip


def run_convert(config: Config, name: str, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show what becomes of a pipeline's tables, and convert them if asked. Returns whether anything is left to do.

    Raises ConfigError where it cannot be, ForeignChange, CommitFailed, DriverAlive.
    """
    works = _works(config, name)
    plans = _plans(works)
    is_due = not all(plan.done for plan in plans)
    if is_due:
        _check(plans)
    if is_due and write:
        check_no_driver(config, name, "Stop it, then convert.")
        _convert(config, name, works, {"to": "iceberg", "at": now.isoformat()})
        plans = _plans(works)
    if as_json:
        lines.emit_whole({"pipeline": name, "tables": [plan.to_json() for plan in plans]})
    else:
        _show(out, name, plans, written=is_due and write)
    return is_due


def _works(config: Config, name: str) -> dict[str, "Conversion"]:
    """Return the tables that are there, by location: the pipeline's own first. Raises ConfigError."""
    settings = config.pipelines[name]
    if settings.table.format != "iceberg":
        raise ConfigError(
            f"pipelines.{name}.table.format is {settings.table.format}: set it to iceberg, with a section `catalog` "
            "and table.name, as the table is to be; then convert."
        )
    if (main := conversion(name, config, settings.table.location)) is None:
        raise ConfigError(f"there is no table at {settings.table.location}; `headrace run` makes one.")
    if not main.is_begun:
        is_log = settings.route is not None  # which has no buckets
        columns = () if is_log else bucketers.build(settings.bucket).columns
        main.old.check_identity(columns, "" if is_log else layout(settings.bucket))
    beside = {settings.dead_letters: settings.table}
    beside |= {settings.late_table: settings.table} if settings.late_table else {}
    beside |= dict.fromkeys(main.old.snapshot().raw_places, settings.table)
    for record, table in _targets(config, name, main.old.snapshot()).values():
        beside |= {place: table for place in (record.location, record.late) if place}
    works = {place: conversion(name, config, place, table) for place, table in beside.items()}
    return {main.old.location: main, **{place: work for place, work in works.items() if work is not None}}


def _targets(config: Config, name: str, log: PipelineSnapshot) -> dict[int, tuple[TargetRecord, Table]]:
    """Return the tables of a route that are to be Iceberg's, by number: as the log is to have them, and their settings.

    One that the configuration no longer names keeps its format.
    """
    settings, found = config.pipelines[name], {}
    for number, record in log.targets().items() if settings.route else ():
        if (rule := settings.rule_of(record.name, record.location)) is not None:
            table = settings.of_target(rule, record.name).table
            if table.format == "iceberg":
                named = str(config.in_catalog(table))
                found[number] = record._replace(format=table.format, table=named), table
    return found


def _plans(works: Mapping[str, "Conversion"]) -> list[Plan]:
    plans = []
    for place, work in works.items():
        snapshot, files = work.old.snapshot(), work.old.bucket_files(work.old.snapshot())
        with reading(place):
            rows = sum(rows_of(work.old.store, file) for file in files)
        size = sum(file.bytes for file in files)
        plans.append(Plan(work, work.name, snapshot.version, work.is_begun, work.is_done, len(files), rows, size))
    return plans


def _check(plans: Sequence[Plan]) -> None:
    """Raise ConfigError with all that is in the way of any table."""
    found = [f"{one.work.old.location}: {text}" for one in plans if not one.done for text in one.work.obstacles()]
    if found:
        raise ConfigError("nothing is converted:\n  " + "\n  ".join(found))


def _convert(config: Config, name: str, works: Mapping[str, "Conversion"], facts: Mapping[str, Any]) -> None:
    """Convert the tables, the pipeline's own last: no start finds it in the catalog without the others."""

    def side(location: str, _: TargetRecord | None) -> PipelineTable:
        if (work := works.get(location) or conversion(name, config, location)) is None:
            raise ConfigError(f"rows of {main.old.location} wait for a table at {location}, which is gone; restore it.")
        return work.old

    main, *beside = works.values()
    tables = Tables(main.old, side)
    tables.apply_side_files()
    if tables.behind:
        place, why = next(iter(tables.behind.items()))
        raise CommitFailed(f"nothing is converted: rows wait for the table at {place}, which refuses them: {why}")
    log = main.old.snapshot()
    targets = {number: record for number, (record, _) in _targets(config, name, log).items()}
    main.end(facts, recorded({**log.targets(), **targets}) if targets else {})
    Tables(main.old, side).apply_side_files()  # of what was committed before the log was at its end
    for work in beside:
        work.end(facts)
        work.register()
    main.register()


def _show(out: Console, name: str, plans: Sequence[Plan], *, written: bool) -> None:
    for one in plans:
        what = f"{plural(one.rows, 'row')} in {plural(one.files, 'file')}, {show_size(one.bytes)}"
        if one.done:
            lines.sentence(out, f"{name}: {one.work.old.location} is table {one.name} of the catalog: {what}.")
        else:
            half = "half of it is done; " if one.begun else ""
            lines.sentence(
                out,
                f"{name}: {one.work.old.location}, {_FORMATS[one.old_format]} at version {one.version}, becomes table "
                f"{one.name} of the catalog: {half}{what}. No file is written anew, and the log goes on.",
            )
    if all(one.done for one in plans):
        lines.sentence(out, "Start the pipeline." if written else "Nothing is left to convert.")
        return
    lines.sentence(out, _READERS[plans[0].old_format])
    lines.sentence(out, "There is no way back. First stop the pipeline's driver.")


def convert(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make Iceberg tables of a pipeline's Delta or Parquet tables, without writing a file anew.

    Set `table.format: iceberg` in the configuration first. The table, its dead letters and its late rows stay where
    they are, with their history, offsets and seals; the catalog knows them from then on, and the old log takes no more
    entries. If it breaks off, run it again.

    Exit codes: 0 shown or converted, 1 a driver runs, or storage or catalog failed, 2 it cannot be converted.
    """
    settings, name = opened(config, pipeline)
    work = partial(run_convert, settings, name, now=datetime.now(UTC), as_json=as_json, out=console())
    confirmed(work, yes=yes, dry_run=dry_run, as_json=as_json)
