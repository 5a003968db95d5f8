"""`headrace diff`: compares two tables that were written of the same offsets."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.audit.comparison import Comparison, Difference, PartitionPair
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.maintenance.table_diff import diff_tables
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.tables import Column, TextTable, cell, console, emit_whole, numbers, plain, sentence
from writer.table.locations import shadow_config

# Columns of a terminal for a value.
_VALUE_WIDTH = 40


def comparison_document(comparison: Comparison, partitions: Sequence[PartitionPair]) -> dict[str, Any]:
    """Return a comparison as JSON values."""
    return {
        "same": comparison.is_same,
        "offsets": comparison.offsets,
        "equal": comparison.equal,
        "different": comparison.different,
        "only_first": comparison.only_first,
        "only_second": comparison.only_second,
        "columns": dict(comparison.columns),
        "columns_only_first": list(comparison.columns_only_first),
        "columns_only_second": list(comparison.columns_only_second),
        "compared": [_partition_document(partition) for partition in partitions],
        "samples": [_difference_document(difference) for difference in comparison.samples],
    }


def _partition_document(partition: PartitionPair) -> dict[str, Any]:
    return {
        "topic": partition.first.topic,
        "partition": partition.first.partition,
        "start": partition.offsets[0],
        "end": partition.offsets[1],
    }


def _difference_document(difference: Difference) -> dict[str, Any]:
    return {
        "topic": difference.part.topic,
        "partition": difference.part.partition,
        "offset": difference.offset,
        "columns": list(difference.columns),
        "first": plain(difference.first),
        "second": plain(difference.second),
    }


def show_comparison(comparison: Comparison, out: Console) -> None:
    """Print a comparison."""
    sentence(
        out,
        f"{plural(comparison.offsets, 'offset')} that both tables committed: {plural(comparison.equal, 'row')} equal, "
        f"{comparison.different:,} different, {comparison.only_first:,} only in the first, "
        f"{comparison.only_second:,} only in the second.",
        "green" if comparison.is_same else "yellow",
    )
    for side, names in (("first", comparison.columns_only_first), ("second", comparison.columns_only_second)):
        if names:
            sentence(out, f"Not compared, as only the {side} has them: {', '.join(names)}.")
    if comparison.columns:
        table = TextTable(out, [Column("column"), *numbers("rows that differ")])
        table.add([[name, f"{rows:,}"] for name, rows in comparison.columns.most_common()])
    if comparison.samples:
        rows: list[list[Any]] = []
        for difference in comparison.samples:
            rows += _difference_rows(difference)
        TextTable(out, [Column("offset"), Column("column"), Column("first"), Column("second")]).add(rows)


def _difference_rows(difference: Difference) -> Iterator[list[Any]]:
    """Yield a row for each column that differs; the first says where."""
    position = f"{difference.part.name}:{difference.offset}"
    if difference.first is None or difference.second is None:
        sides = ["no row" if row is None else "a row" for row in (difference.first, difference.second)]
        yield [position, "", *sides]
        return
    for name in difference.columns:
        yield [position, name, cell(difference.first[name], _VALUE_WIDTH), cell(difference.second[name], _VALUE_WIDTH)]
        position = ""


def diff(
    config: ConfigFile,
    other: Annotated[
        Path | None, typer.Option("--with", help="Configuration of the second table. Default: the same file.")
    ] = None,
    pipeline: OnePipeline = None,
    other_pipeline: Annotated[
        str | None, typer.Option("--other-pipeline", help="Pipeline of the second table. Default: of the same name.")
    ] = None,
    shadow: Annotated[
        str | None,
        typer.Option("--shadow", help="Location of the pipeline's shadow, which is compared in place of the second."),
    ] = None,
    samples: Annotated[int, typer.Option("--samples", min=0, help="Most differences to show.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Compare the rows of two tables by offset and column: of a pipeline, and of another that read the same topics.

    Only offsets count that both have committed. A row is looked for by topic, partition and offset, wherever it lies;
    the columns of its bucket are compared like any other. Reads the lake only, 200,000 offsets at a time.

    Exit codes: 0 the same, 1 they differ, or a table cannot be read, 2 configuration, or they have no offset in common.
    """
    settings, name = load_pipeline(config, pipeline)
    others = settings if other is None else load_pipeline(other, other_pipeline or name)[0]
    second = others.one(other_pipeline or name)
    if shadow is not None:
        others = shadow_config(settings, others, second, shadow)
    if others is settings and second == name:
        raise ConfigError("both are the same table; name another one, by --with, --other-pipeline or --shadow")
    table_diff = diff_tables(settings, name, others, second, samples)
    if as_json:
        emit_whole(comparison_document(table_diff.comparison, table_diff.partitions))
    else:
        show_comparison(table_diff.comparison, console())
    if not table_diff.comparison.is_same:
        raise typer.Exit(1)
