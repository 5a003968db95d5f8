"""`headrace table accept`: accepts changes of other clients to a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import uuid4

from rich.console import Console

import bucketers
from writer.cli.read.audit import name_of
from writer.clients.driver_endpoint import check_no_driver
from writer.config.pipelines import Config
from writer.config.table_sections import layout
from writer.core.errors import ConfigError
from writer.core.offsets import TopicPartition
from writer.core.text import plural
from writer.maintenance.retention import rows_of
from writer.output import tables as lines
from writer.table.factory import all_tables
from writer.table.log.entries import unanswered
from writer.table.log.foreign_writes import Change, reading
from writer.table.log.operations import Acceptance
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

_NAMED = 5  # parts in a sentence


@dataclass(frozen=True)
class AcceptedChange:
    """One change, and what it did to the table's files and rows."""

    change: Change
    files_gone: int
    files_added: int
    rows_before: int
    rows_after: int


@dataclass(frozen=True)
class Plan:
    """What is accepted, ready to be written."""

    snapshot: PipelineSnapshot
    effects: Sequence[AcceptedChange]

    @property
    def rows_fewer(self) -> int:
        """How many rows the table has fewer by the changes; negative: more."""
        return sum(effect.rows_before - effect.rows_after for effect in self.effects)


def run_accept(config: Config, name: str, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show what other clients did and what is no longer proven, and accept it if asked.

    Returns whether there is anything to accept.

    Raises ConfigError where there is no table of the pipeline's, or its frontier went back; CommitFailed, DriverAlive.
    """
    tables, settings = all_tables(name, config), config.pipelines[name]
    if not tables.main.exists():
        raise ConfigError(f"pipeline {name!r} has no table at {tables.main.location}; there is nothing to accept.")
    is_log = settings.route is not None  # which has no buckets
    buckets = () if is_log else bucketers.build(settings.bucket).columns
    tables.main.check_identity(buckets, "" if is_log else layout(settings.bucket))
    plan, version = _plan(tables.main), None
    if write and plan.effects:
        check_no_driver(config, name, "Stop it, then accept.")
        changes = [effect.change for effect in plan.effects]
        wanted = Acceptance(uuid4().hex, changes, plan.rows_fewer, {"at": now.isoformat()})
        version = tables.main.accept(plan.snapshot, wanted)
        tables.apply_side_files()
    if as_json:
        lines.emit_whole(_document(name, plan, version))
    else:
        _show(out, name, plan, version)
    return bool(plan.effects)


def _plan(table: PipelineTable) -> Plan:
    snapshot = table.snapshot()
    entries = [entry for entry in table.entries(-1) if entry[0] <= snapshot.version]
    changes = unanswered(entries)
    with reading(table.location):
        effects = [_effect(table, change) for change in changes]
    if changes:
        _check_frontier(table.at(changes[0].version - 1), snapshot, changes[0])
    return Plan(snapshot, effects)


def _check_frontier(before: PipelineSnapshot, now: PipelineSnapshot, first: Change) -> None:
    """Raise ConfigError when offsets went back with the rows: their dead letters and late rows did not."""
    for part, at in sorted(before.parts().items()):
        if (found := now.frontier(part)) != at:
            raise ConfigError(
                f"{first}, and the table's frontier of {name_of(part)} went from {at} to {found} with it: dead letters "
                f"and late rows of these offsets would be there twice. `headrace rewind --to {before.version}` takes "
                "the change back, and `--to` the version that it went back to reads on from there."
            )


def _effect(table: PipelineTable, change: Change) -> AcceptedChange:
    before, after = (
        {file.path: file for file in table.bucket_files(table.at(version))}
        for version in (change.version - 1, change.version)
    )
    rows = {path: rows_of(table.store, file) for path, file in {**before, **after}.items()}
    return AcceptedChange(
        change, len(before.keys() - after), len(after.keys() - before), sum(rows[path] for path in before),
        sum(rows[path] for path in after),
    )  # fmt: skip


def _document(name: str, plan: Plan, version: int | None) -> Mapping[str, Any]:
    return {
        "pipeline": name, "table_version": plan.snapshot.version, "version": version, "rows_fewer": plan.rows_fewer,
        "changes": [{**vars(effect), "change": None, **vars(effect.change)} for effect in plan.effects],
        "not_proven_below": [{**vars(part), "offset": at} for part, at in sorted(plan.snapshot.parts().items())],
    }  # fmt: skip


def _show(out: Console, name: str, plan: Plan, version: int | None) -> None:
    if not plan.effects:
        lines.sentence(out, f"{name}: no other client did anything that needs to be accepted.")
        return
    for one in plan.effects:
        lines.sentence(
            out,
            f"{name}: {one.change}: {plural(one.files_gone, 'file')} went and {one.files_added:,} came; "
            f"{plural(one.rows_before, 'row')} before, {one.rows_after:,} after.",
        )
    lines.sentence(
        out,
        "`headrace audit` can then no longer prove that rows of these offsets are what Kafka held, each there once: "
        f"{_below(plan.snapshot.parts())}. That each offset was read once, and which became dead letters or late rows, "
        "it still proves from the beginning.",
    )
    lines.sentence(out, "The frontier stays: rows that are missing now are not read again.")
    if version is None:
        to = plan.effects[0].change.version - 1
        lines.sentence(out, f"`headrace rewind --to {to}` undoes it instead. Stop the driver, if one runs.")
    else:
        lines.sentence(
            out, f"Accepted, as version {version} of the table. Start the pipeline; from there on every row is proven."
        )


def _below(parts: Mapping[TopicPartition, int]) -> str:
    shown = [f"{name_of(part)} below {at:,}" for part, at in sorted(parts.items())]
    return ", ".join(shown[:_NAMED]) + (f" and {len(shown) - _NAMED:,} more" if len(shown) > _NAMED else "")
