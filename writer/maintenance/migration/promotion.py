"""Promotion: puts a pipeline's shadow in the place of its table, in steps that are each safe to run again."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.writer.audit.comparison import Comparison, PartitionPair, compare
from headrace.writer.audit.coverage import Coverage, OffsetShortfall, coverage, offset_shortfalls, partition_pairs
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import Table
from headrace.writer.core import fault_points
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.core.text import join_first
from headrace.writer.engines.registration import promotion_statements
from headrace.writer.engines.table_description import describe_table
from headrace.writer.privacy.path_policies import RecordPolicies, difference, overlay_policies
from headrace.writer.table.factory import existing_table, main_table, table_names
from headrace.writer.table.locations import shadow_config
from headrace.writer.table.log.foreign_writes import reading
from headrace.writer.table.log.snapshot import PipelineSnapshot

_PARTITIONS_NAMED = 5  # in a sentence
_DELETE_REASONS = ("delete", "DELETE")  # in an audit: by headrace, by another client


@dataclass(frozen=True)
class PromotionRequest:
    """What is asked for: the pipeline, and its shadow by the file that writes it."""

    first: Config
    other: Config
    file: Path  # of `other`, where what to change stands
    pipeline: str
    location: str  # of the shadow
    leave_history: bool = False
    compares_rows: bool = True


class Promotion:
    """The two tables, and the steps that put the shadow in the place of the first."""

    def __init__(self, request: PromotionRequest) -> None:
        """Find both tables, by whatever names a catalog knows them. Raises ConfigError, HeadraceError."""
        self.pipeline = request.pipeline
        self.first = request.first
        self.shadow = shadow_config(request.first, request.other, request.pipeline, request.location)
        self.first_location = self._table_settings(self.first).location
        self.shadow_location = self._table_settings(self.shadow).location
        is_iceberg = self._table_settings(self.shadow).format == "iceberg"
        # Only Iceberg tables have names in a catalog that change.
        self._names = table_names(self.pipeline, self.first) if is_iceberg else None
        if self._names is not None:
            name_of_first = self._names.find(self.first_location)
            if name_of_first is not None:
                self.first = self._with_table_name(self.first, name_of_first)
        self.first_table = existing_table(self.pipeline, self.first)
        self.shadow_table = existing_table(self.pipeline, self.shadow)

    @property
    def locations(self) -> tuple[str, str]:
        """Locations of the first table and of the shadow."""
        return self.first_location, self.shadow_location

    @property
    def is_begun(self) -> bool:
        """Whether the log of the first table is at its end."""
        return self.first_table.snapshot().superseded_by == self.shadow_location

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        is_named = self._names is None or self._names.is_switched(self.shadow_location)
        shadow = self.shadow_table.snapshot()
        return self.is_begun and is_named and not shadow.superseded_by and not self._missing_policies(shadow)

    def carry_out(self, committed: Mapping[TopicPartition, int], facts: Mapping[str, Any]) -> None:
        """End the log of the first table at the offsets that were checked, then switch the names.

        Raises CommitFailed, ForeignChange.
        """
        # Read before names change: afterwards the first table has another name.
        protected = self.first_table.snapshot().protected_paths
        self.first_table.supersede(committed, self.shadow_location, facts)
        fault_points.point("after_supersede")
        if self._names:
            self._names.switch(self.first_location, self.shadow_location)
            fault_points.point("after_renames")
            self.shadow = self._with_table_name(self.shadow, self._names.main)
            self.shadow_table = main_table(self.pipeline, self.shadow)
        self.shadow_table.revive(facts)
        shadow = self.shadow_table.snapshot()
        self.shadow_table.protect_paths(None, overlay_policies(protected, shadow.protected_paths), shadow.privacy)

    def list_settings(self, written: Config) -> dict[str, str]:
        """Return what is to be changed in the file by which the shadow is written: key → value."""
        settings = self.shadow.pipelines[self.pipeline]
        before = written.pipelines[self.pipeline]
        moved = before.table.model_copy(update={"location": settings.table.location})
        final = self._with_table_name(self.shadow, self._names.main) if self._names else self.shadow
        new_name = str(final.in_catalog(self._table_settings(final)))
        old_name = str(written.in_catalog(moved))
        values = {
            "table.location": (settings.table.location, before.table.location),
            "table.name": (new_name, old_name),
            "table.dead_letters": (settings.table.dead_letters, before.table.dead_letters),
            "table.raw.location": (_raw_location(settings.table), _raw_location(before.table)),
            "seal.late_table": (settings.seal.late_table, before.seal.late_table),
        }
        return {
            f"pipelines.{self.pipeline}.{key}": str(new or "null") for key, (new, old) in values.items() if new != old
        }

    def statements(self) -> dict[str, list[str]]:
        """Return the SQL that points Trino and Presto to the other table, by engine; none where names do that."""
        table = describe_table(self.pipeline, self.shadow, self.shadow_table)
        return promotion_statements(table, self._table_settings(self.shadow).readers)

    def _missing_policies(self, shadow: PipelineSnapshot) -> RecordPolicies:
        """Return the protected paths that the log of the first table has, and that of the shadow has not."""
        policies = shadow.protected_paths
        return difference(overlay_policies(self.first_table.snapshot().protected_paths, policies), policies)

    def _table_settings(self, config: Config) -> Table:
        return config.pipelines[self.pipeline].table

    def _with_table_name(self, config: Config, name: str) -> Config:
        """Return a configuration where the pipeline's table has this name in its namespace."""
        assert self._names, "it is Iceberg's"
        settings = config.pipelines[self.pipeline]
        table = settings.table.model_copy(update={"name": self._names.full(name)})
        pipelines = {**config.pipelines, self.pipeline: settings.model_copy(update={"table": table})}
        return config.model_copy(update={"pipelines": pipelines})


@dataclass(frozen=True)
class PromotionReview:
    """What both tables hold before the switch."""

    committed: Mapping[TopicPartition, int]  # offsets of the first table
    older: int = 0  # offsets and rows that only the first table has, and keeps
    deleted: int = 0  # rows that were deleted from the first table, and from that of its late rows
    partitions: Sequence[PartitionPair] = ()  # whose rows were compared
    comparison: Comparison | None = None


def review_promotion(request: PromotionRequest, promotion: Promotion) -> PromotionReview:
    """Look at both tables, and compare their rows where the switch is still to be made.

    A run that ends a broken one sees what that one did: the log of the first table is at its end. Raises ConfigError
    with all that is in the way of a switch that was not begun.
    """
    committed = promotion.first_table.snapshot().parts()
    first = coverage(promotion.first, request.pipeline)
    shadow = coverage(promotion.shadow, request.pipeline)
    shortfalls = list(offset_shortfalls(first, shadow))
    unplaced = max(0, first.audit.unplaced - shadow.audit.unplaced)
    older = sum(shortfall.older for shortfall in shortfalls) + unplaced
    if not promotion.is_begun:
        obstacles = list(_list_obstacles(request, shadow, shortfalls, older))
        if obstacles:
            raise ConfigError("nothing is promoted:\n  " + "\n  ".join(obstacles))
    removals = (first.audit.rows_taken, first.audit.late_taken)
    deleted = sum(rows.get(reason, 0) for rows in removals for reason in _DELETE_REASONS)
    partitions = partition_pairs(first, shadow)
    if promotion.is_done or not (request.compares_rows and partitions):
        return PromotionReview(committed, older, deleted)
    with reading(" or ".join(promotion.locations)):
        comparison = compare(promotion.first_table.rows(), promotion.shadow_table.rows(), partitions, 0)
    return PromotionReview(committed, older, deleted, partitions, comparison)


def _list_obstacles(
    request: PromotionRequest, shadow: Coverage, shortfalls: Sequence[OffsetShortfall], older: int
) -> Iterator[str]:
    if shadow.audit.problems:
        problem = shadow.audit.problems[0].description
        yield f"the audit of the shadow at {shadow.location} does not add up: {problem}. `headrace audit` says more."
    behind = _name_partitions((shortfall.part, shortfall.behind) for shortfall in shortfalls)
    if behind:
        yield (
            f"The shadow is behind: {behind}. Run `headrace shadow` with the same location, while the writer of the "
            "first table is stopped; then promote."
        )
    gaps = _name_partitions((shortfall.part, shortfall.gap) for shortfall in shortfalls)
    if gaps:
        yield f"The shadow has gaps where the first table has none: {gaps}. Fill them by `headrace backfill`."
    if older and not request.leave_history:
        partitions = _name_partitions((shortfall.part, shortfall.older) for shortfall in shortfalls)
        yield (
            f"The first table has {older:,} offsets from before the shadow's start: {partitions}. With "
            "--leave-history they stay there alone; a shadow with --from start has them, as far as Kafka does."
        )


def _name_partitions(counts: Iterator[tuple[TopicPartition, int]]) -> str:
    names = [f"{part.name} by {count:,}" for part, count in counts if count]
    return join_first(names, _PARTITIONS_NAMED)


def _raw_location(table: Table) -> str | None:
    return table.raw.location if table.raw else None
