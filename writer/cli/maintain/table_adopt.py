"""`headrace table`: adopts a table of another client, and accepts changes of other clients."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.text import instant, join_first, plural
from headrace.writer.maintenance.change_acceptance import ChangeAcceptance, ChangeEffect
from headrace.writer.maintenance.lost_table_acceptance import LostTableAcceptance
from headrace.writer.maintenance.migration.table_adoption import TableAdoption
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import sentence

_PARTITIONS_NAMED = 5


@dataclass(frozen=True)
class AdoptionReport(Report):
    """A table that becomes the pipeline's. `version`: of the entry; None: nothing was written."""

    pipeline: str
    version: int | None
    rows: int
    files: int
    buckets: int
    rows_compared: int
    columns_added: Sequence[str]
    # As in the configuration.
    start: str | Mapping[str, Any]
    location: str = field(metadata=SCREEN_ONLY)
    # Of the table before; below zero: it has none of headrace's log yet.
    version_before: int = field(metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw what the table has, what is added, and what to do next."""
        contents = f"{plural(self.rows, 'row')} in {plural(self.files, 'file')} of {plural(self.buckets, 'bucket')}"
        if self.version_before >= 0:
            contents += f", at version {self.version_before}"
        sentence(out, f"{self.pipeline}: the table at {self.location} has {contents}.")
        sentence(out, f"The buckets of {plural(self.rows_compared, 'row')} were worked out anew: all are right.")
        columns = "It has all columns."
        if self.columns_added:
            columns = f"Columns {', '.join(self.columns_added)} are added, null in these rows."
        sentence(out, f"{columns} The pipeline begins at {_describe_start(self.start)}.")
        if self.version is None:
            sentence(out, "First stop all other writers of the table.")
            return
        sentence(
            out,
            f"Written as version {self.version}: the table is the pipeline's from there on, and its rows are a term of "
            "the account. Nobody else may add rows now. Start the pipeline.",
        )


def _describe_start(start: str | Mapping[str, Any]) -> str:
    if isinstance(start, str):
        return start
    if "timestamp" in start:
        return f"timestamp {instant(start['timestamp'])}"
    return ", ".join(f"{key} {value}" for key, value in start.items())


@dataclass(frozen=True)
class ChangeReport:
    """A change of another client, and what it did to the table's files and rows."""

    version: int
    operation: str
    files_gone: int
    files_added: int
    rows_before: int
    rows_after: int
    text: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class PartitionOffset:
    """The offset of a topic partition below which the audit proves less."""

    topic: str
    incarnation: int
    partition: int
    offset: int

    @property
    def name(self) -> str:
        """The topic partition with its offset."""
        part = TopicPartition(self.topic, self.incarnation, self.partition)
        return f"{part.full_name} below {self.offset:,}"


@dataclass(frozen=True)
class LostTableReport:
    """A lost table beside the log. `version`: of the entry in the new one; None: nothing was written."""

    kind: str
    location: str
    rows: int
    version: int | None


@dataclass(frozen=True)
class AcceptanceReport(Report):
    """Changes of other clients, and lost tables, that are accepted. `version`: of the entry; None: none was written."""

    pipeline: str
    table_version: int
    version: int | None
    rows_fewer: int
    changes: Sequence[ChangeReport]
    not_proven_below: Sequence[PartitionOffset]
    lost_tables: Sequence[LostTableReport]

    @property
    def has_changes(self) -> bool:
        """Whether there is anything to accept."""
        return bool(self.changes or self.lost_tables)

    def render(self, out: Console) -> None:
        """Draw each lost table, each change, and what is no longer proven."""
        if not self.has_changes:
            sentence(
                out, f"{self.pipeline}: no other client did anything that needs to be accepted, and no table is lost."
            )
            return
        for lost in self.lost_tables:
            rows = f"{plural(lost.rows, 'row')} went with it"
            if lost.version is None:
                text = f"the {lost.kind} at {lost.location} is lost: {rows}. An empty one would be made in its place."
            else:
                text = f"the {lost.kind} at {lost.location} was made anew, empty: {rows}, which `headrace audit` shows."
            sentence(out, f"{self.pipeline}: {text}")
        if self.changes:
            self._render_changes(out)

    def _render_changes(self, out: Console) -> None:
        for change in self.changes:
            sentence(
                out,
                f"{self.pipeline}: {change.text}: {plural(change.files_gone, 'file')} went and {change.files_added:,} "
                f"came; {plural(change.rows_before, 'row')} before, {change.rows_after:,} after.",
            )
        offsets = join_first([partition.name for partition in self.not_proven_below], _PARTITIONS_NAMED)
        sentence(
            out,
            "`headrace audit` can then no longer prove that rows of these offsets are what Kafka held, each there "
            f"once: {offsets}. That each offset was read once, and which became dead letters or late rows, it still "
            "proves from the beginning.",
        )
        sentence(out, "The frontier stays: rows that are missing now are not read again.")
        if self.version is None:
            undone_version = self.changes[0].version - 1
            sentence(out, f"`headrace rewind --to {undone_version}` undoes it instead. Stop the driver, if one runs.")
            return
        sentence(
            out,
            f"Accepted, as version {self.version} of the table. Start the pipeline; from there on every row is proven.",
        )


@command(
    exits={0: "shown or written", 1: "another process wrote the table meanwhile", 2: "it cannot be adopted"},
)
def adopt(pipeline: Pipeline, *, write: bool) -> AdoptionReport:
    """Make a Delta or Iceberg table that headrace did not make the pipeline's, with the rows that it has.

    Its partition columns must be the pipeline's buckets, and its protocol reader 1, writer 2, or its format version 2;
    what is in the way is said, all at once. `start` in the configuration says where to read on. Columns that say where
    a row came from are added, and the old rows are a term of the account: `audit` adds up.
    """
    return run_adopt(pipeline.config, pipeline.name, write=write, now=datetime.now(UTC))


def run_adopt(config: Config, name: str, *, write: bool, now: datetime) -> AdoptionReport:
    """Plan the adoption of a pipeline's table, and write it if asked. Raises ConfigError when it cannot be."""
    adoption = TableAdoption(config, name)
    plan = adoption.plan()
    version = None
    if write:
        version = adoption.carry_out(plan, {"at": now.isoformat()})
    return AdoptionReport(
        pipeline=name,
        version=version,
        rows=plan.rows,
        files=plan.files,
        buckets=plan.buckets,
        rows_compared=plan.rows_compared,
        columns_added=plan.columns_added,
        start=adoption.settings.start,
        location=adoption.location,
        version_before=plan.snapshot.version,
    )


@command(
    exits={
        0: "shown or written",
        1: "a driver runs, or another process wrote the table meanwhile",
        2: "configuration",
    }
)
def accept(pipeline: Pipeline, *, write: bool) -> AcceptanceReport:
    """Accept what another client did to the pipeline's table, such as UPDATE or RESTORE: its rows stay as they are.

    The writer refuses to go on from it, as offsets did not move with the rows; `headrace rewind` takes it back. Once it
    is accepted, the writer goes on from its frontier, and `audit` proves the rows from there on; of those before, it
    says that they were accepted.

    A table of dead letters, late rows or raw records that is lost for good is made anew, empty, and `audit` counts the
    rows that went with it as taken by this command. Restore the table instead, if you can.
    """
    return run_accept(pipeline.config, pipeline.name, write=write, now=datetime.now(UTC))


def run_accept(config: Config, name: str, *, write: bool, now: datetime) -> AcceptanceReport:
    """Find what other clients did, which tables are lost and what is no longer proven, and accept it if asked.

    Raises ConfigError where there is no table of the pipeline's, or its frontier went back; CommitFailed, DriverAlive.
    """
    acceptance = ChangeAcceptance(config, name)
    plan = acceptance.plan()
    lost_table_acceptance = LostTableAcceptance(config, name)
    losses = lost_table_acceptance.plan()
    lost_tables = [LostTableReport(loss.kind, loss.location, loss.rows, None) for loss in losses]
    version = None
    if write and losses:
        lost_tables = [
            LostTableReport(accepted.loss.kind, accepted.loss.location, accepted.loss.rows, accepted.version)
            for accepted in lost_table_acceptance.carry_out(losses)
        ]
    if write and plan.effects:
        version = acceptance.carry_out(plan, {"at": now.isoformat()})
    offsets = [
        PartitionOffset(part.topic, part.incarnation, part.partition, offset)
        for part, offset in sorted(plan.snapshot.parts().items())
    ]
    changes = [_report_change(effect) for effect in plan.effects]
    return AcceptanceReport(name, plan.snapshot.version, version, plan.rows_fewer, changes, offsets, lost_tables)


def _report_change(effect: ChangeEffect) -> ChangeReport:
    return ChangeReport(
        version=effect.change.version,
        operation=effect.change.operation,
        files_gone=effect.files_gone,
        files_added=effect.files_added,
        rows_before=effect.rows_before,
        rows_after=effect.rows_after,
        text=str(effect.change),
    )
