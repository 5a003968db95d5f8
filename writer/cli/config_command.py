"""Commands whose configuration file may be left out, also where another argument follows it."""

from pathlib import Path
from typing import Any

from typer.core import TyperCommand

from writer.core.config_location import default_config


class ConfigCommand(TyperCommand):
    """A command that reads the default configuration file where its first argument is none.

    An argument is a configuration file if it exists, or is called `.yaml` or `.yml`.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default file in front of the arguments, unless they begin with a file."""
        names = [one.name for one in self.params if one.param_type_name == "argument"]
        if names[:1] == ["config"] and len(names) > 1:
            ahead = args[: args.index("--")] if "--" in args else args
            given, _, _ = self.make_parser(ctx).parse_args(args=list(ahead))
            first, second = given.get("config"), given.get(str(names[1]))
            left_out = len(ahead) < len(args) if first is None else not second and not _is_file(first)
            if left_out:
                args = [str(default_config()), *args]
        return super().parse_args(ctx, args)


def _is_file(text: str) -> bool:
    return text.endswith((".yaml", ".yml")) or Path(text).exists()
