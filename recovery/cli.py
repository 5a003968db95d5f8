"""The verbs of recovery, which join the `headrace` command through the entry-point group `headrace.commands`."""

import typer

from recovery import doctor, verbs
from recovery.chaos import verb as chaos


def join(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    doctor.join(app)
    verbs.join(app)
    chaos.join(app)
