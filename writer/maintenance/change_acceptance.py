"""Acceptance of changes that other clients made to a pipeline's table: its rows stay as they are."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from headrace import bucketers
from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import layout
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import BucketFile
from headrace.writer.maintenance.retention import rows_of
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.entries import unanswered_changes
from headrace.writer.table.log.foreign_writes import Change, reading
from headrace.writer.table.log.operations.rewinds import Acceptance
from headrace.writer.table.log.snapshot import PipelineSnapshot


@dataclass(frozen=True)
class ChangeEffect:
    """One change, and what it did to the table's files and rows."""

    change: Change
    files_gone: int
    files_added: int
    rows_before: int
    rows_after: int


@dataclass(frozen=True)
class AcceptancePlan:
    """What is accepted, ready to be written."""

    snapshot: PipelineSnapshot
    effects: Sequence[ChangeEffect]

    @property
    def rows_fewer(self) -> int:
        """How many rows the table has fewer by the changes; negative: more."""
        return sum(effect.rows_before - effect.rows_after for effect in self.effects)


class ChangeAcceptance:
    """The table that other clients changed, and the step that accepts their changes."""

    def __init__(self, config: Config, pipeline: str) -> None:
        """Find the table. Raises ConfigError where the pipeline has none."""
        self.config = config
        self.pipeline = pipeline
        self._tables = all_tables(pipeline, config)
        self._table = self._tables.main
        if not self._table.exists():
            raise ConfigError(
                f"pipeline {pipeline!r} has no table at {self._table.location}; there is nothing to accept."
            )
        settings = config.pipelines[pipeline]
        if settings.route is None:
            self._table.check_identity(bucketers.build(settings.bucket).columns, layout(settings.bucket))
        else:
            # The table of a route is its log, which has no buckets.
            self._table.check_identity((), "")

    def plan(self) -> AcceptancePlan:
        """Return what other clients did since the last entry of headrace's own or the last acceptance.

        Raises ConfigError where committed offsets went back, CommitFailed, OSError.
        """
        snapshot = self._table.snapshot()
        entries = [entry for entry in self._table.entries(-1) if entry[0] <= snapshot.version]
        changes = unanswered_changes(entries)
        with reading(self._table.location):
            effects = [self._effect_of(change) for change in changes]
        if changes:
            _check_offsets(self._table.snapshot_at(changes[0].version - 1), snapshot, changes[0])
        return AcceptancePlan(snapshot, effects)

    def carry_out(self, plan: AcceptancePlan, facts: Mapping[str, Any]) -> int:
        """Write the acceptance. Returns the version that holds it. Raises CommitFailed, DriverAlive."""
        check_no_driver(self.config, self.pipeline, "Stop it, then accept.")
        changes = [effect.change for effect in plan.effects]
        version = self._table.append(Acceptance(uuid4().hex, changes, plan.rows_fewer, facts), plan.snapshot)
        self._tables.apply_side_files()
        return version

    def _effect_of(self, change: Change) -> ChangeEffect:
        before = self._files_at(change.version - 1)
        after = self._files_at(change.version)
        rows = {path: rows_of(self._table.store, file) for path, file in (before | after).items()}
        return ChangeEffect(
            change,
            files_gone=len(before.keys() - after),
            files_added=len(after.keys() - before),
            rows_before=sum(rows[path] for path in before),
            rows_after=sum(rows[path] for path in after),
        )

    def _files_at(self, version: int) -> dict[str, BucketFile]:
        return {file.path: file for file in self._table.bucket_files(self._table.snapshot_at(version))}


def _check_offsets(before: PipelineSnapshot, now: PipelineSnapshot, change: Change) -> None:
    """Raise ConfigError when offsets went back with the rows: their dead letters and late rows did not."""
    for part, offset in sorted(before.parts().items()):
        offset_now = now.frontier(part)
        if offset_now != offset:
            raise ConfigError(
                f"{change}, and the table's frontier of {part.full_name} went from {offset} to {offset_now} with it: "
                f"dead letters and late rows of these offsets would be there twice. `headrace rewind --to "
                f"{before.version}` takes the change back, and `--to` the version that it went back to reads on from "
                "there."
            )
