"""Removes the tables of a demo from where it was told to put them: `python -m headrace.writer.demo.remove_lake`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.writer.config.loader import addresses
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import plural
from headrace.writer.core.units import show_size
from headrace.writer.demo.devstack.lake import MARKER, Lake, parse_lake
from headrace.writer.storage.base import StoreError


def main(
    location: Annotated[str, typer.Argument(help="What was given to `headrace demo --lake`.")],
    stores: Annotated[
        Path | None,
        typer.Option(help="A configuration file whose sections s3, gcs or azure say how the store is reached."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them.")] = False,
) -> None:
    """Show what is in a folder that a demo has marked as its own. With --yes it is removed."""
    try:
        folder = Lake(parse_lake(location))
        if stores is not None:
            folder.stores = addresses(stores).stores
        if not folder.is_marked():
            sys.exit(f"remove_lake: {folder.location} has no object {MARKER}, so it is no demo's; nothing was removed.")
        if not yes:
            count, size = folder.usage()
            typer.echo(f"{plural(count, 'object')} of {show_size(size)} in {folder.location}; --yes removes them")
            return
        count = folder.remove()
    except (HeadraceError, StoreError) as error:
        sys.exit(f"remove_lake: {error}")
    typer.echo(f"{plural(count, 'object')} removed from {folder.location}")


if __name__ == "__main__":
    typer.run(main)
