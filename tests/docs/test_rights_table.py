"""The table of rights in docs/LOGINS.md has each command."""

import re
from pathlib import Path

from headrace.writer.cli.commands import COMMANDS

PAGE = Path(__file__).parents[2] / "docs/LOGINS.md"


def test_each_command_stands_in_one_line_of_the_table_of_rights() -> None:
    _, _, section = PAGE.read_text().partition("## Rights\n")
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = [name.split()[0] for row in rows for name in re.findall(r"`([a-z][a-z -]*)`", row)]
    commands = {command.name for group in COMMANDS.values() for command in group}
    assert set(named) == commands
    assert len(named) == len(commands), "a command stands in two lines"
