"""Removes the tables of a demo from where it was told to put them: `python -m headrace.writer.demo.remove_lake`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from headrace.writer.config.loader import addresses
from headrace.writer.core.errors import HeadraceError
from headrace.writer.demo.devstack.lake import MARKER, Lake, parse_lake
from headrace.writer.storage.base import StoreError


def main(
    location: Annotated[str, typer.Argument(help="What was given to `headrace demo --lake`.")],
    stores: Annotated[
        Path | None,
        typer.Option(help="A configuration file whose sections s3, gcs or azure say how the store is reached."),
    ] = None,
) -> None:
    """Remove all that is in a folder that a demo has marked as its own."""
    try:
        folder = Lake(parse_lake(location))
        if stores is not None:
            folder.stores = addresses(stores).stores
        if not folder.is_marked():
            sys.exit(f"remove_lake: {folder.location} has no object {MARKER}, so it is no demo's; nothing was removed.")
        count = folder.remove()
    except (HeadraceError, StoreError) as error:
        sys.exit(f"remove_lake: {error}")
    typer.echo(f"{count:,} objects removed from {folder.location}")


if __name__ == "__main__":
    typer.run(main)
