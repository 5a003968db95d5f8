"""The `headrace` command. Installed packages list its commands as entry points of the group `headrace.commands`.

The module of a command is imported when the command is called: `headrace status` does not load what others need.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points, version as installed
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from writer.core import retired
from writer.core.errors import ConfigError, HeadraceError


class InstalledCommands(Mapping[str, Any]):
    """The commands by name. An entry point names a function, which is a command, or a Typer, which is a group."""

    def __init__(self) -> None:
        self._built: dict[str, Any] = {}

    @cached_property
    def _entries(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in sorted(entry_points(group="headrace.commands"))}

    def __getitem__(self, name: str) -> Any:
        """Return a command, imported at its first use. Raises KeyError."""
        if name not in self._built:
            target = self._entries[name].load()
            if not isinstance(target, typer.Typer):
                alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
                alone.command(name)(target)
                target = alone
            self._built[name] = typer.main.get_command(target)
            self._built[name].name = name
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


class _Commands(TyperGroup):
    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self.commands: Any = InstalledCommands()

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command of the arguments. A retired name or option is a usage error that names its heir."""
        for old in (" ".join(args[:1]), " ".join(args[:2])):
            if heir := retired.COMMANDS.get(old):
                ctx.fail(f"`headrace {old}` is now `headrace {heir}`.")
        for old, heir in retired.OPTIONS.items():
            *command, option = old.split()
            if args[: len(command)] == command and option in args:
                ctx.fail(f"`headrace {old}` is now `headrace {heir}`.")
        return super().resolve_command(ctx, args)

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
    pretty_exceptions_enable=False,
    add_completion=False,
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
    """Run the command; an expected failure is one sentence and its exit code."""
    try:
        for old in retired.VARIABLES.keys() & os.environ.keys():
            raise ConfigError(f"the environment variable {old} is now {retired.VARIABLES[old]}. Rename it.")
        app()
    except HeadraceError as error:
        typer.echo(f"headrace: {error}", err=True)
        sys.exit(error.exit_code)
