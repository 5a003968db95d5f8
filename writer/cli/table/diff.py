"""`headrace diff`: compares two tables that were written of the same offsets."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.audit.comparison import Comparison, Difference, PartitionPair, compare
from writer.audit.coverage import Coverage, coverage, pairs
from writer.commit.privacy import hidden_columns
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.tables import Column, TextTable, cell, console, emit_whole, numbers, plain, sentence
from writer.privacy.record_sealing import RecordScreen
from writer.table.factory import existing_table
from writer.table.locations import shadow_config
from writer.table.log.foreign_writes import reading

_VALUE = 40  # columns of a terminal for a value


def in_common(first: Coverage, second: Coverage) -> list[PartitionPair]:
    """Return what is compared. Raises ConfigError where there is nothing."""
    if not (found := pairs(first, second)):
        raise ConfigError(
            f"{first.location} and {second.location} have no offset in common: they read other topics, or from other "
            "positions"
        )
    return found


def without_protected(one: Difference, columns: Collection[str]) -> Difference:
    """Return a difference to be shown: of protected columns that there is a value. A row from before may have it."""
    screen = RecordScreen(hides=True)

    def shown(row: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        if row is None:
            return None
        return {
            name: screen.text("") if name in columns and value is not None else value for name, value in row.items()
        }

    return replace(one, first=shown(one.first), second=shown(one.second))


def document(found: Comparison, compared: Sequence[PartitionPair]) -> dict[str, Any]:
    """Write it as `--json` does."""
    return {
        "same": found.is_same, "offsets": found.offsets, "equal": found.equal, "different": found.different,
        "only_first": found.only_first, "only_second": found.only_second, "columns": dict(found.columns),
        "columns_only_first": list(found.first_alone), "columns_only_second": list(found.second_alone),
        "compared": [
            {"topic": one.first.topic, "partition": one.first.partition, "start": one.offsets[0], "end": one.offsets[1]}
            for one in compared
        ],
        "samples": [
            {
                "topic": one.part.topic, "partition": one.part.partition, "offset": one.offset,
                "columns": list(one.columns), "first": plain(one.first), "second": plain(one.second),
            }
            for one in found.samples
        ],
    }  # fmt: skip


def show(found: Comparison, out: Console) -> None:
    """Print it."""
    sentence(
        out,
        f"{plural(found.offsets, 'offset')} that both tables committed: {plural(found.equal, 'row')} equal, "
        f"{found.different:,} different, {found.only_first:,} only in the first, {found.only_second:,} only in the "
        "second.",
        "green" if found.is_same else "yellow",
    )
    for which, names in (("first", found.first_alone), ("second", found.second_alone)):
        if names:
            sentence(out, f"Not compared, as only the {which} has them: {', '.join(names)}.")
    if found.columns:
        sheet = TextTable(out, [Column("column"), *numbers("rows that differ")])
        sheet.add([[name, f"{rows:,}"] for name, rows in found.columns.most_common()])
    if found.samples:
        sheet = TextTable(out, [Column("offset"), Column("column"), Column("first"), Column("second")])
        sheet.add([row for one in found.samples for row in _lines(one)])


def _lines(one: Difference) -> Iterator[list[Any]]:
    where = f"{one.part.topic}/{one.part.partition}:{one.offset}"
    if one.first is None or one.second is None:
        yield [where, "", *("no row" if side is None else "a row" for side in (one.first, one.second))]
        return
    for at, name in enumerate(one.columns):
        yield [where if at == 0 else "", name, cell(one.first[name], _VALUE), cell(one.second[name], _VALUE)]


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
    places = [settings.one_table(name).table.location, others.one_table(second).table.location]
    if places[0] == places[1]:
        raise ConfigError(f"both are the table at {places[0]}")
    compared = in_common(coverage(settings, name), coverage(others, second))
    with reading(" or ".join(places)):
        tables = [existing_table(name, settings).rows(), existing_table(second, others).rows()]
        found = compare(tables[0], tables[1], compared, samples)
    columns = [*tables[0].schema.names, *tables[1].schema.names]
    hidden = hidden_columns(name, settings, columns) | hidden_columns(second, others, columns)
    found.samples = [without_protected(one, hidden) for one in found.samples]
    if as_json:
        emit_whole(document(found, compared))
    else:
        show(found, console())
    if not found.is_same:
        raise typer.Exit(1)
