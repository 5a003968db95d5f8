"""The verbs of recovery, which join the `headrace` command through the entry-point group `headrace.commands`."""

import typer

from recovery import doctor, gaps, rewind_verb, verbs
from recovery.backfill import verb as backfill
from recovery.chaos import verb as chaos


def join(app: typer.Typer) -> None:
    """Add the verbs to the command."""
    doctor.join(app)
    verbs.join(app)
    gaps.join(app)
    backfill.join(app)
    rewind_verb.join(app)
    chaos.join(app)
