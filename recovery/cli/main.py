"""The verbs of recovery, which join the `headrace` command through the entry-point group `headrace.commands`."""

import typer

from recovery.cli import backfill, chaos, doctor, gaps, recover, rewind


def join(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    doctor.join(app)
    recover.join(app)
    gaps.join(app)
    backfill.join(app)
    rewind.join(app)
    chaos.join(app)
