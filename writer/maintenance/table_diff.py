"""Compares the rows of two tables that read the same topics, and hides what either log protects."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.writer.audit.comparison import Comparison, Difference, PartitionPair, compare
from headrace.writer.audit.coverage import coverage, partition_pairs
from headrace.writer.commit.privacy import hidden_columns
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.privacy.record_sealing import RecordScreen
from headrace.writer.table.factory import existing_table
from headrace.writer.table.log.foreign_writes import reading


@dataclass(frozen=True)
class TableDiff:
    """How the rows of two tables differ, and which offsets were compared."""

    comparison: Comparison
    partitions: Sequence[PartitionPair]


def diff_tables(first: Config, first_name: str, second: Config, second_name: str, samples: int) -> TableDiff:
    """Compare the tables of two pipelines at the offsets that both have committed. `samples`: most differences kept.

    Raises ConfigError where nothing can be compared, HeadraceError where there is no table, CommitFailed, OSError.
    """
    first_location = first.one_table(first_name).table.location
    second_location = second.one_table(second_name).table.location
    if first_location == second_location:
        raise ConfigError(f"both are the table at {first_location}")
    partitions = partition_pairs(coverage(first, first_name), coverage(second, second_name))
    if not partitions:
        raise ConfigError(
            f"{first_location} and {second_location} have no offset in common: they read other topics, or from other "
            "positions"
        )
    with reading(f"{first_location} or {second_location}"):
        first_rows = existing_table(first_name, first).rows()
        second_rows = existing_table(second_name, second).rows()
        comparison = compare(first_rows, second_rows, partitions, samples)
    columns = [*first_rows.schema.names, *second_rows.schema.names]
    hidden = hidden_columns(first_name, first, columns) | hidden_columns(second_name, second, columns)
    comparison.samples = [_hide_columns(difference, hidden) for difference in comparison.samples]
    return TableDiff(comparison, partitions)


def _hide_columns(difference: Difference, columns: Collection[str]) -> Difference:
    """Return a difference that only says of protected columns whether there is a value: an old row may have it."""
    return replace(
        difference, first=_hide_values(difference.first, columns), second=_hide_values(difference.second, columns)
    )


def _hide_values(row: Mapping[str, Any] | None, columns: Collection[str]) -> Mapping[str, Any] | None:
    if row is None:
        return None
    hidden_value = RecordScreen(hides=True).text("")
    return {name: hidden_value if name in columns and value is not None else value for name, value in row.items()}
