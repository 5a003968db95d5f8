"""How every command that removes or rewrites asks: it shows what it would do, and does it with --yes."""

import sys
from typing import Annotated, Protocol

import typer

from writer.output.tables import console, sentence

Yes = Annotated[bool, typer.Option("--yes", help="Do it. Without, it is only shown; on a terminal you are asked.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only show it, also beside --yes, and do not ask.")]


class CommandBody(Protocol):
    """The body of a command that removes or rewrites."""

    def __call__(self, *, write: bool) -> bool:
        """Show what it would do, or do it and show that. Returns whether there is anything to do."""


def confirm(work: CommandBody, *, yes: bool, dry_run: bool, as_json: bool = False) -> None:
    """Do it with `--yes`, or where a person at a terminal agrees to what was shown; else only show it."""
    if yes and not dry_run:
        work(write=True)
        return
    if not work(write=False) or as_json:
        return
    if dry_run or not (sys.stdin.isatty() and sys.stdout.isatty()):
        sentence(console(), "Nothing was changed. The same with --yes does it.")
    elif typer.confirm("Do it?"):
        work(write=True)
    else:
        sentence(console(), "Nothing was changed.")
