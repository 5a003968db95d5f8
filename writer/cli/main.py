"""The `headrace` command. Installed packages list its commands as entry points of the group `headrace.commands`.

The module of a command is imported when the command is called: `headrace status` does not load what others need, and
`headrace --help` and the completion of a name load none.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points, version as installed
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from writer.cli.command_catalogue import EXAMPLES, GROUPS
from writer.cli.config_command import ConfigCommand
from writer.core.errors import HeadraceError
from writer.core.signals import end_as_process_1

_COMPLETION = ("install_completion", "show_completion")


class InstalledCommands(Mapping[str, Any]):
    """The commands by name. An entry point names a function, which is a command, or a Typer, which is a group."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        entries = {entry.name: entry for entry in sorted(entry_points(group="headrace.commands"))}
        ordered: dict[str, EntryPoint] = {}
        for names in GROUPS.values():
            ordered |= {name: entries[name] for name in names if name in entries}
        # Those that no group lists come last.
        return ordered | {name: entry for name, entry in entries.items() if name not in ordered}

    def __getitem__(self, name: str) -> Any:
        """Return a command, imported at its first use. Raises KeyError."""
        if name not in self._built:
            target = self._entries[name].load()
            if not isinstance(target, typer.Typer):
                command_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
                command_app.command(name, cls=ConfigCommand)(target)
                target = command_app
            self._built[name] = typer.main.get_command(target)
            self._built[name].name = name
            _finish(self._built[name], name)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def _finish(command: Any, name: str) -> None:
    """Give a command, or each of a group, its example, and paragraphs that wrap at any width."""
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    if name in EXAMPLES:
        command.epilog = f"Example: {EXAMPLES[name]}"
    # Completion is an option of the root alone.
    command.params = [parameter for parameter in command.params if parameter.name not in _COMPLETION]
    for part, inner in getattr(command, "commands", {}).items():
        _finish(inner, f"{name} {part}")


class _Commands(TyperGroup):
    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: Any = InstalledCommands()
        self._listed = {
            name: TyperCommand(name, help=line, rich_help_panel=group)
            for group, lines in GROUPS.items()
            for name, line in lines.items()
        }

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's interface
        """Return the names of the commands, those that a group lists first. Imports none."""
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command as help and completion list it; one that no group lists is imported for that."""
        listed = self._listed.get(cmd_name) if cmd_name in self.commands else None
        return listed or super().get_command(ctx, cmd_name)

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
    help="A streaming warehouse writer: Kafka Avro events into event-time buckets of a lake, exactly once.",
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
    """Carry Kafka Avro events into event-time buckets of a lake, exactly once."""


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
