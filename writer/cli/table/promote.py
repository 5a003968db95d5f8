"""`headrace promote`: puts a pipeline's shadow in the place of its table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.audit.comparison import Comparison, PartitionPair, compare
from writer.audit.coverage import Coverage, OffsetShortfall, coverage, lacks, pairs
from writer.cli.read.ddl import CATALOGS, SCHEMA, texts
from writer.cli.table import diff
from writer.cli.table.shadow import OtherFile
from writer.clients.driver_endpoint import check_no_driver
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.config.table_sections import Table
from writer.core import fault_points
from writer.core.errors import ConfigError
from writer.core.offsets import TopicPartition
from writer.core.text import listed, plural
from writer.engines import sql
from writer.engines.table_description import describe_table
from writer.output import tables as lines
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.privacy.path_policies import RecordPolicies, difference, overlaid
from writer.table.factory import existing_table, main_table, table_names
from writer.table.locations import shadow_of
from writer.table.log.foreign_writes import reading
from writer.table.log.snapshot import PipelineSnapshot

_NAMED = 5  # partitions in a sentence
_DELETES = ("delete", "DELETE")  # why rows went, in an audit: by headrace, by another client


@dataclass(frozen=True)
class Request:
    """What is asked for: the pipeline, and its shadow by the file that writes it."""

    first: Config
    other: Config
    file: Path  # of `other`, where what to change stands
    name: str
    location: str  # of the shadow
    leave_history: bool = False
    compares: bool = True


class Switch:
    """The two tables, and the steps that put one in the place of the other. Each is safe to run again."""

    def __init__(self, asked: Request) -> None:
        """Find both tables, by whatever names a catalog knows them. Raises ConfigError, HeadraceError."""
        self.name, self.first = asked.name, asked.first
        self.made = shadow_of(asked.first, asked.other, asked.name, asked.location)
        self.places = self._settings(self.first).location, self._settings(self.made).location
        is_iceberg = self._settings(self.made).format == "iceberg"
        self._names = table_names(self.name, self.first) if is_iceberg else None  # where both are Iceberg's
        if self._names and (known := self._names.find(self.places[0])) is not None:
            self.first = self._called(self.first, known)
        self.old, self.new = existing_table(self.name, self.first), existing_table(self.name, self.made)

    @property
    def is_begun(self) -> bool:
        """Whether the log of the first table is at its end."""
        return self.old.snapshot().superseded_by == self.places[1]

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        is_named = self._names is None or self._names.is_switched(self.places[1])
        heir = self.new.snapshot()
        return self.is_begun and is_named and not heir.superseded_by and not self._lacking(heir)

    def carry_out(self, frontier: Mapping[TopicPartition, int], facts: Mapping[str, Any]) -> None:
        """End the log of the first table at what was checked, then switch names. Raises CommitFailed, ForeignChange."""
        protected = self.old.snapshot().protected_paths  # before names change
        self.old.supersede(frontier, self.places[1], facts)
        fault_points.point("after_supersede")
        if self._names:
            self._names.switch(*self.places)
            fault_points.point("after_renames")
            self.made = self._called(self.made, self._names.main)
            self.new = main_table(self.name, self.made)
        self.new.revive(facts)
        heir = self.new.snapshot()
        self.new.protect_paths(None, overlaid(protected, heir.protected_paths), heir.privacy)

    def _lacking(self, heir: PipelineSnapshot) -> RecordPolicies:
        """Return what the log of the first table has of protected paths, and that of its heir has not."""
        known = heir.protected_paths
        return difference(overlaid(self.old.snapshot().protected_paths, known), known)

    def changes(self, written: Config) -> dict[str, str]:
        """Return what is to be changed in the file by which the shadow is written: key → value."""
        one, before = self.made.pipelines[self.name], written.pipelines[self.name]
        moved = before.table.model_copy(update={"location": one.table.location})
        final = self._called(self.made, self._names.main) if self._names else self.made
        named = [str(config.in_catalog(table)) for config, table in ((final, self._settings(final)), (written, moved))]
        found = {
            "table.location": (one.table.location, before.table.location),
            "table.name": (named[0], named[1]),
            "table.dead_letters": (one.table.dead_letters, before.table.dead_letters),
            "table.raw.location": [table.raw and table.raw.location for table in (one.table, before.table)],
            "seal.late_table": (one.seal.late_table, before.seal.late_table),
        }
        return {f"pipelines.{self.name}.{key}": str(new or "null") for key, (new, old) in found.items() if new != old}

    def statements(self) -> dict[str, list[str]]:
        """Return the SQL by which Trino and Presto go over to the other table, by engine. Iceberg's names do that."""
        about = describe_table(self.name, self.made, self.new)
        if about.format == "iceberg":
            return {}
        found, engines = dict[str, list[str]](), ("trino", "presto")
        for engine in [one for one in engines if one in self._settings(self.made).readers]:
            name = sql.Name(CATALOGS[about.format], SCHEMA, self.name.replace("-", "_"))
            found[engine] = [sql.unregister(name, about, engine), *texts(about, engine, name=str(name), location=None)]
        return found

    def _settings(self, config: Config) -> Table:
        return config.pipelines[self.name].table

    def _called(self, config: Config, table: str) -> Config:
        """Return a configuration where the pipeline's table has this name in its namespace."""
        assert self._names, "it is Iceberg's"
        one = config.pipelines[self.name]
        settings = one.table.model_copy(update={"name": self._names.full(table)})
        return config.model_copy(
            update={"pipelines": {**config.pipelines, self.name: one.model_copy(update={"table": settings})}}
        )


@dataclass(frozen=True)
class Findings:
    """What was found before the switch."""

    frontier: Mapping[TopicPartition, int]  # of the first table
    older: int = 0  # offsets and rows that only the first table has, and keeps
    deleted: int = 0  # rows that were deleted from the first table, and from that of its late rows
    compared: Sequence[PartitionPair] = ()
    comparison: Comparison | None = None


def _find(asked: Request, switch: Switch) -> Findings:
    """Look at both tables, and compare their rows where the switch is still to be made.

    A run that ends a broken one finds what that one did: the log of the first table is at its end. Raises ConfigError
    with all that is in the way of a switch that was not begun.
    """
    frontier = switch.old.snapshot().parts()
    one, two = coverage(switch.first, asked.name), coverage(switch.made, asked.name)
    shortfalls = list(lacks(one, two))
    older = sum(lack.older for lack in shortfalls) + max(0, one.audit.unplaced - two.audit.unplaced)
    if not switch.is_begun and (wrong := list(_obstacles(asked, two, shortfalls, older))):
        raise ConfigError("nothing is promoted:\n  " + "\n  ".join(wrong))
    taken = (one.audit.rows_taken, one.audit.late_taken)
    deleted = sum(rows.get(why, 0) for rows in taken for why in _DELETES)
    compared = pairs(one, two)
    if switch.is_done or not (asked.compares and compared):
        return Findings(frontier, older, deleted)
    with reading(" or ".join(switch.places)):
        rows = switch.old.rows(), switch.new.rows()
        return Findings(frontier, older, deleted, compared, compare(*rows, compared, 0))


def _obstacles(asked: Request, shadow: Coverage, found: Sequence[OffsetShortfall], older: int) -> Iterator[str]:
    if shadow.audit.problems:
        what = shadow.audit.problems[0].what
        yield f"the audit of the shadow at {shadow.location} does not add up: {what}. `headrace audit` says more."
    if behind := _listed(found, "behind"):
        yield (
            f"The shadow is behind: {behind}. Run `headrace shadow` with the same location, while the writer of the "
            "first table is stopped; then promote."
        )
    if gaps := _listed(found, "gap"):
        yield f"The shadow has gaps where the first table has none: {gaps}. Fill them by `headrace backfill`."
    if older and not asked.leave_history:
        yield (
            f"The first table has {older:,} offsets from before the shadow's start: {_listed(found, 'older')}. With "
            "--leave-history they stay there alone; a shadow with --from start has them, as far as Kafka does."
        )


def _listed(found: Sequence[OffsetShortfall], what: str) -> str:
    counts = [(f"{one.part.topic}/{one.part.partition}", getattr(one, what)) for one in found]
    return listed([f"{name} by {count:,}" for name, count in counts if count], _NAMED)


def run_promote(asked: Request, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show what becomes of the two tables, and switch them if asked. Returns whether anything is left to do.

    Raises ConfigError where it cannot be, ForeignChange, CommitFailed, DriverAlive.
    """
    switch = Switch(asked)
    is_due = not switch.is_done
    if is_due:
        check_no_driver(switch.first, asked.name, "Stop it, then promote.")
        check_no_driver(switch.made, asked.name, "It writes the shadow. Stop it, then promote.")
    found = _find(asked, switch)
    if is_due and write:
        switch.carry_out(found.frontier, {"at": now.isoformat()})
    if as_json:
        lines.emit_whole(_document(asked, switch, found, done=write or not is_due))
    else:
        _show(out, asked, switch, found, done=write or not is_due)
    return is_due


def _document(asked: Request, switch: Switch, found: Findings, *, done: bool) -> dict[str, Any]:
    compared = found.comparison and diff.document(found.comparison, found.compared)
    return {
        "pipeline": asked.name, "first": switch.places[0], "shadow": switch.places[1], "done": done,
        "older": found.older, "deleted": found.deleted, "diff": compared, "file": str(asked.file),
        "changes": switch.changes(asked.other), "statements": switch.statements(),
    }  # fmt: skip


def _show(out: Console, asked: Request, switch: Switch, found: Findings, *, done: bool) -> None:
    first, shadow = switch.places
    if found.comparison is not None:
        diff.show(found.comparison, out)
    if found.older:
        lines.sentence(out, f"{found.older:,} offsets from before the shadow's start stay at {first} alone.")
    if found.deleted:
        lines.sentence(
            out,
            f"{plural(found.deleted, 'row')} went from the first table by `headrace delete-rows` or another client. "
            "The shadow may have read their records: delete them there as well.",
        )
    verb = "is" if done else "becomes"
    lines.sentence(
        out, f"{asked.name}: the table at {shadow} {verb} the pipeline's; the one at {first} takes no more entries."
    )
    lines.sentence(out, f"Then set in {asked.file}, and start the pipeline:" if not done else f"Set in {asked.file}:")
    for key, value in switch.changes(asked.other).items():
        out.print(f"  {key}: {value}", soft_wrap=True, highlight=False, markup=False)
    for engine, statements in switch.statements().items():
        lines.sentence(out, f"In {engine.capitalize()}, by the names that its catalog has:")
        for statement in statements:
            out.print(f"  {statement};", soft_wrap=True, highlight=False, markup=False)
    if done:
        lines.sentence(out, f"To go back, promote {first} (docs/SHADOW.md). It stays whole until you remove it.")


def promote(
    config: ConfigFile,
    shadow: Annotated[str, typer.Option("--shadow", help="Location of the shadow.")],
    pipeline: OnePipeline = None,
    other: OtherFile = None,
    leave_history: Annotated[
        bool,
        typer.Option("--leave-history", help="What the first table has from before the shadow's start stays there."),
    ] = False,
    no_diff: Annotated[bool, typer.Option("--no-diff", help="Do not read the rows of both tables.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put a pipeline's shadow in the place of its table.

    Both writers are stopped. The shadow has every offset that the first table has; the rows may differ, and it is shown
    by how many. Then the log of the first table is at its end, and Iceberg tables change their names in the catalog. If
    it breaks off, run it again. Nothing is copied or removed, and the other direction goes back.

    Exit codes: 0 shown or promoted, 1 a driver runs, or storage or catalog failed, 2 it cannot be promoted.
    """
    first, name = load_pipeline(config, pipeline)
    asked = Request(first, load(other) if other else first, other or config, name, shadow, leave_history, not no_diff)
    work = partial(run_promote, asked, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
