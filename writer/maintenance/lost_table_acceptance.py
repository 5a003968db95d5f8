"""Acceptance of lost tables beside a pipeline's log: each is made anew, empty, with an entry of what was lost."""

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.writer.audit.audit import SideTableLoss, find_losses
from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.commit.side_tables import list_side_tables
from headrace.writer.config.pipelines import Config
from headrace.writer.table.factory import all_tables
from headrace.writer.table.lost_tables import find_lost_side_tables


@dataclass(frozen=True)
class AcceptedLoss:
    """A lost table in whose place there is another one by now. `version`: of its entry that says so."""

    loss: SideTableLoss
    version: int


class LostTableAcceptance:
    """The lost tables of a pipeline, and the step that makes them anew."""

    def __init__(self, config: Config, pipeline: str) -> None:
        self._config = config
        self._pipeline = pipeline

    def plan(self) -> list[SideTableLoss]:
        """Return the lost tables that a start would make. Raises CommitFailed, LedgerUnreadable, HeadraceError."""
        settings = self._config.pipelines[self._pipeline]
        tables = all_tables(self._pipeline, self._config)
        lost_tables = find_lost_side_tables(settings, tables.main, tables.side, tables.main.snapshot())
        if not lost_tables:
            return []
        return [loss for loss in find_losses(self._config, self._pipeline) if loss.location in lost_tables]

    def carry_out(self, losses: Sequence[SideTableLoss]) -> list[AcceptedLoss]:
        """Make the tables, and enter in each what was lost. A second time does nothing.

        Raises CommitFailed, ConfigError where something else lies at a location, DriverAlive.
        """
        check_no_driver(self._config, self._pipeline, "Stop it, then accept.")
        tables = all_tables(self._pipeline, self._config)
        log = tables.main.snapshot()
        specs = {
            spec.location: spec for spec in list_side_tables(self._config.pipelines[self._pipeline], log.columns())
        }
        accepted = []
        for loss in losses:
            spec = specs[loss.location]
            table = tables.side(loss.location)
            table.create(spec.columns, spec.bucket_columns, spec.layout)
            version = table.enter_loss(log.side_table_ids[loss.location], loss.version, loss.rows)
            accepted.append(AcceptedLoss(loss, version))
        return accepted
