"""The `headrace` command, built of the table of commands.

The module of a command is imported when the command is called: `headrace status` does not load what others need, and
`headrace --help` and the completion of a name load none.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from importlib.metadata import version as installed
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from headrace.writer.cli.commands import COMMANDS, Command, CommandGroup
from headrace.writer.cli.config_command import ConfigCommand
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.signals import end_as_process_1

_COMPLETION = ("install_completion", "show_completion")


class LazyCommands(Mapping[str, Any]):
    """The commands by name, each built and imported at its first use."""

    def __init__(self) -> None:
        self._entries = {entry.name: entry for entries in COMMANDS.values() for entry in entries}
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        """Return a command, or a group of commands. Raises KeyError."""
        if name not in self._built:
            self._built[name] = _build(self._entries[name])
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def _build(entry: Command | CommandGroup) -> Any:
    """Import a command, or those of a group, and build what typer runs."""
    if isinstance(entry, Command):
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        _add(app, entry)
    else:
        app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)
        # A group of one command is a group as well.
        app.callback()(lambda: None)
        for command in entry.commands:
            _add(app, command)
    built = typer.main.get_command(app)
    built.name = entry.name
    if isinstance(entry, CommandGroup):
        built.help = f"{entry.summary}."
    # Completion is an option of the root alone.
    built.params = [parameter for parameter in built.params if parameter.name not in _COMPLETION]
    return built


def _add(app: typer.Typer, command: Command) -> None:
    """Add a command with its example; each paragraph of its help wraps at any width."""
    module, _, name = command.function.partition(":")
    function = getattr(import_module(module), name)
    paragraphs = [" ".join(part.split()) for part in (function.__doc__ or "").split("\n\n")]
    register = app.command(
        command.name, cls=ConfigCommand, help="\n\n".join(paragraphs), epilog=f"Example: {command.example}"
    )
    register(function)


class _Commands(TyperGroup):
    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: Any = LazyCommands()
        self._listed = {
            entry.name: TyperCommand(entry.name, help=entry.summary, rich_help_panel=group)
            for group, entries in COMMANDS.items()
            for entry in entries
        }

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        """Return the names of the commands as the table has them. Imports none."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's interface
        """Return a command as help and completion list it, not imported."""
        return self._listed.get(cmd_name)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the arguments, imported."""
        name, command, remaining = super().resolve_command(ctx, args)
        return name, self.commands.get(name, command), remaining

    def invoke(self, ctx: Any) -> Any:
        """Run a command. A value that an option does not take is named without the validator's own words."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ")
            raise


app = typer.Typer(
    name="headrace",
    cls=_Commands,
    help="A streaming warehouse writer: Kafka records into event-time buckets of a lake, exactly once.",
    no_args_is_help=True,
    epilog="Each command has --help, with an example and its exit codes.",
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {installed('headrace')}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Carry Kafka records into event-time buckets of a lake, exactly once."""


def main() -> None:
    """Run the command; an expected failure is one sentence and its exit code.

    No process that it starts, Spark's workers included, imports what lies in the working directory.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    end_as_process_1()
    try:
        app()
    except HeadraceError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(error.exit_code)
