"""The `headrace` command. Verbs of other packages join through the entry-point group `headrace.commands`."""

import sys
from functools import cache
from importlib.metadata import entry_points
from importlib.metadata import version as installed
from typing import Annotated

import typer

from writer.cli.read.buckets import join as join_buckets
from writer.cli.read.dlq import join as join_ledger
from writer.cli.read.hooks import join as join_hooks
from writer.cli.read.schema import schema
from writer.cli.write.compact import join as join_rewrites
from writer.cli.write.pause import join as join_care
from writer.cli.write.seal import seal
from writer.cli.write.topic_adopt import topic
from writer.core.errors import HeadraceError

app = typer.Typer(
    name="headrace",
    help="A streaming warehouse writer: Kafka Avro events into event-time buckets of a lake, exactly once.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(f"headrace {installed('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_say_version, is_eager=True)
    ] = False,
) -> None:
    """Carry Kafka Avro events into event-time buckets of a lake, exactly once."""


app.command()(seal)
app.add_typer(schema)
app.add_typer(topic, name="topic")
join_ledger(app)
join_care(app)
join_rewrites(app)
join_buckets(app)
join_hooks(app)


@cache
def compose() -> typer.Typer:
    """Return the command with the verbs of all installed packages, each joined once. An entry point is a package's."""
    for entry in entry_points(group="headrace.commands"):
        entry.load()(app)
    return app


def main() -> None:
    """Run the command; an expected failure is one sentence and its exit code."""
    compose()
    try:
        app()
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
