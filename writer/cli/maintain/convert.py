"""`headrace convert`: makes Iceberg tables of a pipeline's Delta or Parquet tables."""

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

from rich.console import Console

from writer.clients.driver_endpoint import check_no_driver
from writer.config.pipelines import Config
from writer.core.text import plural
from writer.core.units import show_size
from writer.maintenance.migration.conversion import PipelineConversion, TableConversion
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console, emit_whole, sentence

_FORMATS = {"delta": "a Delta table", "parquet": "a table in Parquet format"}
_READERS = {
    "delta": "Readers of Delta keep the rows of today, until compaction or retention takes files that those need; none "
    "can write there. Remove _delta_log when no one reads it any more.",
    "parquet": "Readers of the folders see files there that do not count: let them read by the catalog.",
}


def run_convert(config: Config, name: str, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show what becomes of a pipeline's tables, and convert them if asked. Returns whether anything is left to do.

    Raises ConfigError where it cannot be, ForeignChange, CommitFailed, DriverAlive.
    """
    conversion = PipelineConversion(config, name)
    is_due = conversion.is_due
    if is_due:
        conversion.check()
    if is_due and write:
        check_no_driver(config, name, "Stop it, then convert.")
        conversion.carry_out({"to": "iceberg", "at": now.isoformat()})
    tables = conversion.tables()
    if as_json:
        emit_whole({"pipeline": name, "tables": [table.to_json() for table in tables]})
    else:
        _show(out, name, tables, written=is_due and write)
    return is_due


def _show(out: Console, name: str, tables: Sequence[TableConversion], *, written: bool) -> None:
    for table in tables:
        location = table.work.old.location
        contents = f"{plural(table.rows, 'row')} in {plural(table.files, 'file')}, {show_size(table.bytes)}"
        if table.done:
            sentence(out, f"{name}: {location} is table {table.name} of the catalog: {contents}.")
        else:
            progress = "half of it is done; " if table.begun else ""
            sentence(
                out,
                f"{name}: {location}, {_FORMATS[table.old_format]} at version {table.version}, becomes table "
                f"{table.name} of the catalog: {progress}{contents}. No file is written anew, and the log goes on.",
            )
    pending = [table for table in tables if not table.done]
    if not pending:
        sentence(out, "Start the pipeline." if written else "Nothing is left to convert.")
        return
    for old_format in sorted({table.old_format for table in pending}):
        sentence(out, _READERS[old_format])
    sentence(out, "There is no way back. First stop the pipeline's driver.")


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
