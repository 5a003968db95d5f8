"""`headrace convert`: makes Iceberg tables of a pipeline's Delta or Parquet tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Console

import bucketers
from writer.clients.driver_endpoint import check_no_driver
from writer.commit.target_table import check_settings
from writer.config.pipelines import Config
from writer.config.table_sections import Table, layout
from writer.core import fault_points
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.core.units import show_size
from writer.maintenance.retention import rows_of
from writer.output import tables as lines
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.table.factory import Tables, all_tables, conversion, main_table
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
class ConversionWork:
    """The tables of a pipeline that are to be Iceberg's, or are."""

    log: PipelineTable  # the pipeline's own table, as it is now
    main: "Conversion | None"  # of the pipeline's own table; None: its format stays
    beside: Mapping[str, "Conversion"]  # of the others that are there, by location
    targets: Mapping[int, TargetRecord]  # those among them that a route fills, as the log is to have them

    @property
    def ends_log(self) -> bool:
        """Whether the pipeline's own table is still to be converted."""
        return self.main is not None and not self.main.is_done

    @property
    def unrecorded(self) -> dict[int, TargetRecord]:
        """The targets that the log has otherwise."""
        known = self.log.snapshot().targets()
        return {number: one for number, one in self.targets.items() if known[number] != one}


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
    work = _work(config, name)
    plans = _plans(work)
    is_due = not all(plan.done for plan in plans) or bool(work.unrecorded)
    if is_due:
        _check(plans)
    if is_due and write:
        check_no_driver(config, name, "Stop it, then convert.")
        (_convert if work.ends_log else _convert_targets)(config, name, work, {"to": "iceberg", "at": now.isoformat()})
        plans = _plans(work)
    if as_json:
        lines.emit_whole({"pipeline": name, "tables": [plan.to_json() for plan in plans]})
    else:
        _show(out, name, plans, written=is_due and write)
    return is_due


def _work(config: Config, name: str) -> ConversionWork:
    """Return the tables that are there. Raises ConfigError."""
    settings, main = config.pipelines[name], None
    if not settings.needs_catalog:
        raise ConfigError(
            f"pipelines.{name}.table.format is {settings.table.format}: set it to iceberg, with a section `catalog` "
            "and table.name, as the table is to be; or the format of a target of its route. Then convert."
        )
    beside: dict[str, Table] = {}
    if settings.table.format == "iceberg":
        main = conversion(name, config, settings.table.location)
        beside = {settings.dead_letters: settings.table}
        beside |= {settings.late_table: settings.table} if settings.late_table else {}
    log = main_table(name, config) if main is None or main.is_done else main.old
    if not log.exists():
        raise ConfigError(f"there is no table at {settings.table.location}; `headrace run` makes one.")
    if main is not None and not main.is_done and not main.is_begun:
        is_log = settings.route is not None  # which has no buckets
        columns = () if is_log else bucketers.build(settings.bucket).columns
        log.check_identity(columns, "" if is_log else layout(settings.bucket))
    beside |= dict.fromkeys(log.snapshot().raw_places if main else (), settings.table)
    targets = _targets(config, name, log.snapshot())
    for record, table in targets.values():
        beside |= {place: table for place in (record.location, record.late) if place}
    works = {place: conversion(name, config, place, table) for place, table in beside.items()}
    there = {place: work for place, work in works.items() if work is not None}
    _check_there(log.snapshot(), [number for number, (record, _) in targets.items() if record.location not in there])
    return ConversionWork(log, main, there, {number: record for number, (record, _) in targets.items()})


def _check_there(log: PipelineSnapshot, missing: Sequence[int]) -> None:
    """Raise CommitFailed where a target is missing that was made: it would be waited for in a format it never gets."""
    for one in (log.targets()[number] for number in missing):
        if one.id and one.format != "iceberg":
            raise CommitFailed(
                f"nothing is converted: the table of target {one.name!r} at {one.location} is not there. Its storage "
                "is away, or it was removed; repair that, then convert."
            )


def _targets(config: Config, name: str, log: PipelineSnapshot) -> dict[int, tuple[TargetRecord, Table]]:
    """Return the tables of a route that are to be Iceberg's, by number: as the log is to have them, and their settings.

    One that the configuration no longer names keeps its format. Raises ConfigError where one has another name already.
    """
    settings, found = config.pipelines[name], {}
    for number, record in log.targets().items() if settings.route else ():
        if (rule := settings.rule_of(record.name, record.location)) is not None:
            target = settings.of_target(rule, record.name)
            if (table := target.table).format == "iceberg":
                named = str(config.in_catalog(table))
                if record.format == "iceberg":
                    check_settings(record, target, named)
                found[number] = record._replace(format=table.format, table=named), table
    return found


def _plans(work: ConversionWork) -> list[Plan]:
    plans, pending = [], {} if work.ends_log else work.unrecorded
    unknown = {place for record in pending.values() for place in (record.location, record.late)}
    for one in [*([work.main] if work.main else []), *work.beside.values()]:
        if one.is_done and not one.is_begun:
            continue  # it never was of another format
        place, snapshot, files = one.old.location, one.old.snapshot(), one.old.bucket_files(one.old.snapshot())
        with reading(place):
            rows = sum(rows_of(one.old.store, file) for file in files)
        size, done = sum(file.bytes for file in files), one.is_done and place not in unknown
        plans.append(Plan(one, one.name, snapshot.version, one.is_begun, done, len(files), rows, size))
    return plans


def _check(plans: Sequence[Plan]) -> None:
    """Raise ConfigError with all that is in the way of any table."""
    todo = [one.work for one in plans if not one.work.is_done]
    if found := [f"{one.old.location}: {text}" for one in todo for text in one.obstacles()]:
        raise ConfigError("nothing is converted:\n  " + "\n  ".join(found))


def _convert(config: Config, name: str, work: ConversionWork, facts: Mapping[str, Any]) -> None:
    """Convert the tables, the pipeline's own last: no start finds it in the catalog without the others."""
    assert work.main is not None, "the pipeline's own table is to be converted"

    def side(location: str, _: TargetRecord | None) -> PipelineTable:
        if (one := work.beside.get(location) or conversion(name, config, location)) is None:
            raise ConfigError(f"rows of {work.log.location} wait for a table at {location}, which is gone; restore it.")
        return one.old

    tables = Tables(work.log, side)
    tables.apply_side_files()
    _check_none_behind(tables.behind)
    new = {**work.log.snapshot().targets(), **work.targets}
    work.main.end(facts, recorded(new) if work.targets else {})
    Tables(work.log, side).apply_side_files()  # of what was committed before the log was at its end
    _make(work, facts)
    work.main.register()


def _convert_targets(config: Config, name: str, work: ConversionWork, facts: Mapping[str, Any]) -> None:
    """Convert tables of a route whose log goes on: until it knows of that, a start refuses their new format."""
    tables = all_tables(name, config)
    tables.apply_side_files()
    # What came for a table after its own log was at its end is applied to the Iceberg table, by the next start.
    _check_none_behind({place: why for place, why in tables.behind.items() if not _is_begun(work, place)})
    _make(work, facts)
    fault_points.point("before_targets_convert")
    work.log.convert_targets(facts, work.unrecorded)


def _is_begun(work: ConversionWork, place: str) -> bool:
    return place in work.beside and work.beside[place].is_begun


def _check_none_behind(behind: Mapping[str, str]) -> None:
    for place, why in behind.items():
        raise CommitFailed(f"nothing is converted: rows wait for the table at {place}, which refuses them: {why}")


def _make(work: ConversionWork, facts: Mapping[str, Any]) -> None:
    for one in work.beside.values():
        if not one.is_done:
            one.end(facts)
            one.register()


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
    left = [one for one in plans if not one.done]
    if not left:
        lines.sentence(out, "Start the pipeline." if written else "Nothing is left to convert.")
        return
    for form in sorted({one.old_format for one in left}):
        lines.sentence(out, _READERS[form])
    lines.sentence(out, "There is no way back. First stop the pipeline's driver.")


def convert(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make Iceberg tables of a pipeline's Delta or Parquet tables, without writing a file anew.

    Set `table.format: iceberg` in the configuration first, or that of a target of its route, which is converted alone
    where the route's log stays or is an Iceberg table already. The table, its dead letters and its late rows stay where
    they are, with their history, offsets and seals; the catalog knows them from then on, and the old log takes no more
    entries. If it breaks off, run it again.

    Exit codes: 0 shown or converted, 1 a driver runs, or storage or catalog failed, 2 it cannot be converted.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(run_convert, settings, name, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
