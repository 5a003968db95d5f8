"""The group `headrace schema`: what a schema is to a pipeline's table."""

from pathlib import Path
from typing import Annotated

import typer

from writer.options import AsJson, ConfigFile, OnePipeline

schema = typer.Typer(
    name="schema", help="What a schema is to a pipeline's table.", no_args_is_help=True, pretty_exceptions_enable=False
)


@schema.callback()
def _group() -> None:
    """What a schema is to a pipeline's table."""


@schema.command()
def plan(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    schema_id: Annotated[int | None, typer.Option("--id", help="A schema of the registry, by its id.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", help="A schema in a file (.avsc), registered or not.", dir_okay=False)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a schema would do: columns added and widened, casts, defaults, or why its records would be parked.

    It is looked at as the next one, on top of the table's columns and of all registered schemas. Changes nothing.

    Exit codes: 0 every record becomes a row, 1 its records would be parked, or the registry does not answer,
    2 configuration.
    """
    from writer.file import load
    from writer.surface import schema as verb

    raise typer.Exit(verb.plan(load(config), pipeline, schema_id=schema_id, file=file, as_json=as_json))
