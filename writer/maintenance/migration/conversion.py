"""Conversion: makes Iceberg tables of a pipeline's Delta or Parquet tables, in steps that can be run again."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace import bucketers
from headrace.writer.commit.target_table import check_settings
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import Table, layout
from headrace.writer.core import fault_points
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.retention import rows_of
from headrace.writer.table.factory import all_tables, conversion, main_table
from headrace.writer.table.log.foreign_writes import CommitFailed, reading
from headrace.writer.table.log.snapshot import PipelineSnapshot, TargetRecord, targets_property
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import PipelineTable

if TYPE_CHECKING:
    # pyiceberg takes a second to import.
    from headrace.writer.table.iceberg.conversion import Conversion


@dataclass(frozen=True)
class TableConversion:
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
            "location": self.work.old.location,
            "name": self.name,
            "from": self.old_format,
            "version": self.version,
            "files": self.files,
            "rows": self.rows,
            "bytes": self.bytes,
            "begun": self.begun,
            "done": self.done,
        }


class PipelineConversion:
    """The tables of a pipeline that are to be Iceberg's, or are, and the steps that make them so."""

    def __init__(self, config: Config, name: str) -> None:
        """Find the tables that are there. Raises ConfigError, and CommitFailed where one is missing."""
        self.config = config
        self.name = name
        settings = config.pipelines[name]
        if not settings.needs_catalog:
            raise ConfigError(
                f"pipelines.{name}.table.format is {settings.table.format}: set it to iceberg, with a section "
                "`catalog` and table.name, as the table is to be; or the format of a target of its route. Then convert."
            )
        self._main: Conversion | None = None
        if settings.table.format == "iceberg":
            self._main = conversion(name, config, settings.table.location)
        # The pipeline's own table, as it is now.
        self._log = main_table(name, config) if self._main is None or self._main.is_done else self._main.old
        if not self._log.exists():
            raise ConfigError(f"there is no table at {settings.table.location}; `headrace run` makes one.")
        if self._main is not None and not self._main.is_done and not self._main.is_begun:
            self._check_layout(settings)
        targets = _list_targets(config, name, self._log.snapshot())
        tables = self._list_locations(settings, targets)
        conversions = {location: conversion(name, config, location, table) for location, table in tables.items()}
        # The other tables that are there, by location.
        self._beside = {location: work for location, work in conversions.items() if work is not None}
        # Those among them that a route fills, as the log is to have them.
        self._targets = {number: record for number, (record, _) in targets.items()}
        missing = [number for number, record in self._targets.items() if record.location not in self._beside]
        _check_targets_exist(self._log.snapshot(), missing)

    @property
    def is_due(self) -> bool:
        """Whether anything is left to do."""
        return not all(map(self._is_done, self._works())) or bool(self._unrecorded_targets)

    def tables(self) -> list[TableConversion]:
        """Return the tables that are to be converted, or were. Reads the files' footers for their rows."""
        return [self._table(work) for work in self._works()]

    def check(self) -> None:
        """Raise ConfigError with all that is in the way of any table."""
        works = [work for work in self._works() if not work.is_done]
        obstacles = [f"{work.old.location}: {obstacle}" for work in works for obstacle in work.obstacles()]
        if obstacles:
            raise ConfigError("nothing is converted:\n  " + "\n  ".join(obstacles))

    def carry_out(self, facts: Mapping[str, Any]) -> None:
        """Convert what is left. Raises ConfigError, CommitFailed, ForeignChange."""
        if self._ends_log:
            self._convert_log(facts)
        else:
            self._convert_targets(facts)

    @property
    def _ends_log(self) -> bool:
        """Whether the pipeline's own table is still to be converted."""
        return self._main is not None and not self._main.is_done

    @property
    def _unrecorded_targets(self) -> dict[int, TargetRecord]:
        """The targets that the log has otherwise."""
        recorded_targets = self._log.snapshot().targets()
        return {number: record for number, record in self._targets.items() if recorded_targets[number] != record}

    def _works(self) -> "list[Conversion]":
        works = [self._main] if self._main else []
        works += self._beside.values()
        # A table that is done and was never begun never had another format.
        return [work for work in works if work.is_begun or not work.is_done]

    def _is_done(self, work: "Conversion") -> bool:
        """Return whether the catalog knows the table, and the log knows that of a target."""
        pending = {} if self._ends_log else self._unrecorded_targets
        unrecorded = {location for record in pending.values() for location in (record.location, record.late)}
        return work.is_done and work.old.location not in unrecorded

    def _table(self, work: "Conversion") -> TableConversion:
        snapshot = work.old.snapshot()
        files = work.old.bucket_files(snapshot)
        with reading(work.old.location):
            rows = sum(rows_of(work.old.store, file) for file in files)
        return TableConversion(
            work,
            name=work.name,
            version=snapshot.version,
            begun=work.is_begun,
            done=self._is_done(work),
            files=len(files),
            rows=rows,
            bytes=sum(file.bytes for file in files),
        )

    def _check_layout(self, settings: Pipeline) -> None:
        # The log of a route is a table without buckets.
        if settings.route is not None:
            self._log.check_identity((), "")
        else:
            self._log.check_identity(bucketers.build(settings.bucket).columns, layout(settings.bucket))

    def _list_locations(
        self, settings: Pipeline, targets: Mapping[int, tuple[TargetRecord, Table]]
    ) -> dict[str, Table]:
        """Return where the tables beside the pipeline's own may be, with their settings."""
        tables: dict[str, Table] = {}
        if settings.table.format == "iceberg":
            tables[settings.dead_letters] = settings.table
            if settings.late_table:
                tables[settings.late_table] = settings.table
        if self._main:
            tables |= dict.fromkeys(self._log.snapshot().raw_locations, settings.table)
        for record, table in targets.values():
            tables |= {location: table for location in (record.location, record.late) if location}
        return tables

    def _convert_log(self, facts: Mapping[str, Any]) -> None:
        """Convert all tables, the pipeline's own last: no start finds it in the catalog without the others."""
        assert self._main is not None, "the pipeline's own table is to be converted"

        def old_table(location: str, _: TargetRecord | None) -> PipelineTable:
            work = self._beside.get(location) or conversion(self.name, self.config, location)
            if work is None:
                raise ConfigError(
                    f"rows of {self._log.location} wait for a table at {location}, which is gone; restore it."
                )
            return work.old

        tables = Tables(self._log, old_table)
        tables.apply_side_files()
        _check_none_behind(tables.behind)
        targets = {**self._log.snapshot().targets(), **self._targets}
        self._main.end_log(facts, targets_property(targets) if self._targets else {})
        # Those of what was committed before the log was at its end.
        Tables(self._log, old_table).apply_side_files()
        self._register_beside(facts)
        self._main.register()

    def _convert_targets(self, facts: Mapping[str, Any]) -> None:
        """Convert tables of a route whose log goes on: until it knows of that, a start refuses their new format."""
        tables = all_tables(self.name, self.config)
        tables.apply_side_files()
        # What came for a table after its own log was at its end is applied to the Iceberg table, by the next start.
        _check_none_behind({
            location: reason
            for location, reason in tables.behind.items()
            if location not in self._beside or not self._beside[location].is_begun
        })  # fmt: skip
        self._register_beside(facts)
        fault_points.point("before_targets_convert")
        self._log.convert_targets(facts, self._unrecorded_targets)

    def _register_beside(self, facts: Mapping[str, Any]) -> None:
        for work in self._beside.values():
            if not work.is_done:
                work.end_log(facts)
                work.register()


def _check_targets_exist(log: PipelineSnapshot, missing: Sequence[int]) -> None:
    """Raise CommitFailed where a target is missing that was made: it would be waited for in a format it never gets."""
    for number in missing:
        target = log.targets()[number]
        if target.id and target.format != "iceberg":
            raise CommitFailed(
                f"nothing is converted: the table of target {target.name!r} at {target.location} is not there. Its "
                "storage is away, or it was removed; repair that, then convert."
            )


def _list_targets(config: Config, name: str, log: PipelineSnapshot) -> dict[int, tuple[TargetRecord, Table]]:
    """Return the tables of a route that are to be Iceberg's, by number: as the log is to have them, and their settings.

    One that the configuration no longer names keeps its format. Raises ConfigError where one has another name already.
    """
    settings = config.pipelines[name]
    targets = dict[int, tuple[TargetRecord, Table]]()
    if not settings.route:
        return targets
    for number, record in log.targets().items():
        rule = settings.rule_of(record.name, record.location)
        if rule is None:
            continue
        target = settings.of_target(rule, record.name)
        if target.table.format == "iceberg":
            table_name = str(config.in_catalog(target.table))
            if record.format == "iceberg":
                check_settings(record, target, table_name)
            targets[number] = record._replace(format=target.table.format, table=table_name), target.table
    return targets


def _check_none_behind(behind: Mapping[str, str]) -> None:
    for location, reason in behind.items():
        raise CommitFailed(f"nothing is converted: rows wait for the table at {location}, which refuses them: {reason}")
