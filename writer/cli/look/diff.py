"""`headrace diff`: compares two tables that were written of the same offsets."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from headrace.writer.audit.comparison import Comparison, PartitionPair
from headrace.writer.config.loader import load
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.maintenance.table_diff import diff_tables
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import RECORD_VALUES, Report
from headrace.writer.output.tables import Column, TextTable, cell, numbers, sentence
from headrace.writer.table.locations import shadow_config

# Columns of a terminal for a value.
_VALUE_WIDTH = 40


@dataclass(frozen=True)
class ComparedPartition:
    """A topic partition, and the offsets [start, end) that both tables have committed."""

    topic: str
    partition: int
    start: int
    end: int


@dataclass(frozen=True)
class RowDifference:
    """An offset whose rows are not the same, with the values of `columns`; None: there is no row."""

    topic: str
    partition: int
    offset: int
    columns: Sequence[str]
    first: Mapping[str, Any] | None = field(metadata=RECORD_VALUES)
    second: Mapping[str, Any] | None = field(metadata=RECORD_VALUES)

    def rows(self) -> Iterator[list[Any]]:
        """Yield a row for each column that differs; the first says where."""
        position = f"{self.topic}/{self.partition}:{self.offset}"
        if self.first is None or self.second is None:
            sides = ["no row" if row is None else "a row" for row in (self.first, self.second)]
            yield [position, "", *sides]
            return
        for name in self.columns:
            yield [position, name, cell(self.first[name], _VALUE_WIDTH), cell(self.second[name], _VALUE_WIDTH)]
            position = ""


@dataclass(frozen=True)
class DiffReport(Report):
    """How the rows of two tables differ; the numbers are those of `Comparison`."""

    same: bool
    offsets: int
    equal: int
    different: int
    only_first: int
    only_second: int
    columns: Mapping[str, int]
    columns_only_first: Sequence[str]
    columns_only_second: Sequence[str]
    compared: Sequence[ComparedPartition]
    samples: Sequence[RowDifference]

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where the rows differ."""
        return 0 if self.same else 1

    def render(self, out: Console) -> None:
        """Draw the numbers, and the first differences."""
        sentence(
            out,
            f"{plural(self.offsets, 'offset')} that both tables committed: {plural(self.equal, 'row')} equal, "
            f"{self.different:,} different, {self.only_first:,} only in the first, {self.only_second:,} only in the "
            "second.",
            "green" if self.same else "yellow",
        )
        for side, names in (("first", self.columns_only_first), ("second", self.columns_only_second)):
            if names:
                sentence(out, f"Not compared, as only the {side} has them: {', '.join(names)}.")
        if self.columns:
            table = TextTable(out, [Column("column"), *numbers("rows that differ")])
            table.add([[name, f"{rows:,}"] for name, rows in self.columns.items()])
        if self.samples:
            rows: list[list[Any]] = []
            for difference in self.samples:
                rows += difference.rows()
            TextTable(out, [Column("offset"), Column("column"), Column("first"), Column("second")]).add(rows)


def diff_report(comparison: Comparison, partitions: Sequence[PartitionPair]) -> DiffReport:
    """Return what a screen shows of a comparison. `partitions`: those that were compared."""
    return DiffReport(
        same=comparison.is_same,
        offsets=comparison.offsets,
        equal=comparison.equal,
        different=comparison.different,
        only_first=comparison.only_first,
        only_second=comparison.only_second,
        columns=dict(comparison.columns.most_common()),
        columns_only_first=comparison.columns_only_first,
        columns_only_second=comparison.columns_only_second,
        compared=[ComparedPartition(pair.first.topic, pair.first.partition, *pair.offsets) for pair in partitions],
        samples=[
            RowDifference(
                sample.part.topic, sample.part.partition, sample.offset, sample.columns, sample.first, sample.second
            )
            for sample in comparison.samples
        ],
    )


@command(
    exits={
        0: "the same",
        1: "they differ, or a table cannot be read",
        2: "configuration, or they have no offset in common",
    }
)
def diff(
    pipeline: Pipeline,
    other: Annotated[
        Path | None, typer.Option("--with", help="Configuration of the second table. Default: the same file.")
    ] = None,
    other_pipeline: Annotated[
        str | None, typer.Option("--other-pipeline", help="Pipeline of the second table. Default: of the same name.")
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option("--shadow", help="Location of the pipeline's shadow, which is compared in place of the second."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Most differences to show.")] = 10,
) -> DiffReport:
    """Compare the rows of two tables by offset and column: of a pipeline, and of another that read the same topics.

    Only offsets count that both have committed. A row is looked for by topic, partition and offset, wherever it lies;
    the columns of its bucket are compared like any other. Reads the lake only, 200,000 offsets at a time.
    """
    config = pipeline.config
    other_config = config if other is None else load(other)
    other_name = other_config.one(other_pipeline or pipeline.name)
    if shadow is not None:
        other_config = shadow_config(config, other_config, other_name, shadow)
    if other_config is config and other_name == pipeline.name:
        raise ConfigError("both are the same table; name another one, by --with, --other-pipeline or --shadow")
    table_diff = diff_tables(config, pipeline.name, other_config, other_name, samples)
    return diff_report(table_diff.comparison, table_diff.partitions)
