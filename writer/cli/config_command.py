"""Commands whose configuration file may be left out, also where another argument follows it."""

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from headrace.writer.core.config_location import default_config


class ConfigCommand(TyperCommand):
    """A command that reads the default configuration file where its first argument is none.

    An argument is a configuration file if it exists, or is called `.yaml` or `.yml`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default file in front of the arguments, unless they begin with a file."""
        names = [parameter.name for parameter in self.params if parameter.param_type_name == "argument"]
        if names[:1] == ["config"] and len(names) > 1 and self._lacks_file(ctx, args, str(names[1])):
            args = [str(default_config()), *args]
        return super().parse_args(ctx, args)

    def _lacks_file(self, ctx: Any, args: list[str], second_argument: str) -> bool:
        """Return whether the arguments begin with the second one."""
        options = args[: args.index("--")] if "--" in args else args
        values, _, _ = self.make_parser(ctx).parse_args(args=list(options))
        config = values.get("config")
        if config is None:
            # What follows `--` are further arguments.
            return len(options) < len(args)
        return not values.get(second_argument) and not _is_file(config)


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or Path(text).exists()
