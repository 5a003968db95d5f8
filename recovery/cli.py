"""Joins the verbs of recovery to the command."""

import typer

from recovery.chaos.verb import join as join_chaos


def join(app: typer.Typer) -> None:
    """Add the verbs of this package."""
    join_chaos(app)
