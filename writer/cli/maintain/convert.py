"""`headrace convert`: makes Iceberg tables of a pipeline's Delta or Parquet tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console

from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.config.pipelines import Config
from headrace.writer.core.text import plural
from headrace.writer.core.units import show_size
from headrace.writer.maintenance.migration.conversion import PipelineConversion, TableConversion
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import sentence

_FORMATS = {"delta": "a Delta table", "parquet": "a table in Parquet format"}
_READERS = {
    "delta": "Readers of Delta keep the rows of today, until compaction or retention takes files that those need; none "
    "can write there. Remove _delta_log when no one reads it any more.",
    "parquet": "Readers of the folders see files there that do not count: let them read by the catalog.",
}


@dataclass(frozen=True)
class ConversionReport(Report):
    """The tables of a pipeline that are to be Iceberg's, or are."""

    pipeline: str
    tables: Sequence[TableConversion]
    # Whether a table was left to convert, before this command.
    is_due: bool = field(metadata=SCREEN_ONLY)
    is_written: bool = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether a table is left to convert."""
        return self.is_due

    def render(self, out: Console) -> None:
        """Draw what becomes of each table, and what to do next."""
        for table in self.tables:
            sentence(out, f"{self.pipeline}: {_describe_table(table)}")
        pending = [table for table in self.tables if not table.done]
        if not pending:
            sentence(out, "Start the pipeline." if self.is_written else "Nothing is left to convert.")
            return
        for old_format in sorted({table.old_format for table in pending}):
            sentence(out, _READERS[old_format])
        sentence(out, "There is no way back. First stop the pipeline's driver.")


def _describe_table(table: TableConversion) -> str:
    location = table.work.old.location
    contents = f"{plural(table.rows, 'row')} in {plural(table.files, 'file')}, {show_size(table.bytes)}"
    if table.done:
        return f"{location} is table {table.name} of the catalog: {contents}."
    progress = "half of it is done; " if table.begun else ""
    return (
        f"{location}, {_FORMATS[table.old_format]} at version {table.version}, becomes table {table.name} of the "
        f"catalog: {progress}{contents}. No file is written anew, and the log goes on."
    )


@command(
    exits={
        0: "shown or converted",
        1: "a driver runs, or storage or catalog failed",
        2: "it cannot be converted",
    }
)
def convert(pipeline: Pipeline, *, write: bool) -> ConversionReport:
    """Make Iceberg tables of a pipeline's Delta or Parquet tables, without writing a file anew.

    Set `table.format: iceberg` in the configuration first, or that of a target of its route, which is converted alone
    where the route's log stays or is an Iceberg table already. The table, its dead letters and its late rows stay where
    they are, with their history, offsets and seals; the catalog knows them from then on, and the old log takes no more
    entries. If it breaks off, run it again.
    """
    return run_convert(pipeline.config, pipeline.name, write=write, now=datetime.now(UTC))


def run_convert(config: Config, name: str, *, write: bool, now: datetime) -> ConversionReport:
    """Find what becomes of a pipeline's tables, and convert them if asked.

    Raises ConfigError where it cannot be, ForeignChange, CommitFailed, DriverAlive.
    """
    conversion = PipelineConversion(config, name)
    is_due = conversion.is_due
    if is_due:
        conversion.check()
    if is_due and write:
        check_no_driver(config, name, "Stop it, then convert.")
        conversion.carry_out({"to": "iceberg", "at": now.isoformat()})
    return ConversionReport(name, conversion.tables(), is_due, is_due and write)
