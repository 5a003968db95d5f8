"""Help that helps: groups, examples that parse, text that wraps, completion, and no import that is not needed."""

import os
import re
import shlex
import subprocess
import sys
from functools import cache
from itertools import pairwise

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.writer.cli.commands import COMMANDS as TABLE, examples
from headrace.writer.cli.main import app
from tests.support.json_keys import documented_keys

HEAVY = (
    "boto3",
    "confluent_kafka.schema_registry",
    "datafusion",
    "duckdb",
    "matplotlib",
    "pandas",
    "pyarrow.dataset",
    "pyspark",
)


def commands(group=None, prefix=""):
    """Each command that does something, by all its words."""
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{prefix}{name} ")
        else:
            yield prefix + name, command


COMMANDS = dict(commands())
EXAMPLES = dict(examples())
# The command as the shell calls it.
PROGRAM = "import sys; sys.argv[0] = 'headrace'; from headrace.writer.cli.main import main; main()"
# Packages that the help of the whole command needs nothing of.
OF_COMMANDS = ("headrace.autoscaler", "headrace.bench", "headrace.recovery", "headrace.writer.cli.look.")


@cache
def shown(*words, columns=80):
    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": str(columns)}, terminal_width=columns)
    assert done.exit_code == 0, done.output
    return done.output


def modules(*commands):
    """Return what a process has imported when it has shown the help of commands."""
    script = "import sys; from headrace.writer.cli.main import app\n"
    for command in commands:
        script += f"app({[*command.split(), '--help']}, standalone_mode=False)\n"
    script += "print('\\n' + ' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=400, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_the_page_lists_every_command_once_in_its_group_on_one_line():
    page = shown()
    assert re.findall(r"─ (\w+) ─", page) == ["Options", *TABLE]
    listed = re.findall(r"^│ ([a-z][\w-]*) +\S", page, re.MULTILINE)
    assert listed == [entry.name for entries in TABLE.values() for entry in entries]
    for entries in TABLE.values():
        for entry in entries:
            assert re.search(rf"^│ {entry.name} +{re.escape(entry.summary)} +│$", page, re.MULTILINE), entry.name


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_shows_its_exit_codes_and_an_example_that_it_takes(name):
    page = " ".join(shown(*name.split(), columns=120).split())
    example = EXAMPLES[name]
    assert f"Example: {example}" in page
    assert "Exit codes: 0 " in page
    words = shlex.split(example)
    assert words[: 1 + len(name.split())] == ["headrace", *name.split()]
    COMMANDS[name].make_context(name, words[1 + len(name.split()) :])  # raises for what it does not take


@pytest.mark.parametrize("name", sorted({name.split()[0] for name in COMMANDS if " " in name}))
def test_completion_is_an_option_of_the_root_alone(name):
    assert "--install-completion" in shown()
    assert "completion" not in shown(name)


def test_each_example_is_of_a_command_that_exists():
    assert set(EXAMPLES) == set(COMMANDS)


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_paragraph_fills_its_lines(name, columns):
    page = shown(*name.split(), columns=columns).partition("╭")[0]
    for paragraph in re.split(r"\n\s*\n", page)[1:]:
        lines = [line.strip() for line in paragraph.splitlines()]
        for line, following in pairwise(lines):
            assert len(line) <= columns - 2
            assert len(line) + 1 + len(following.split()[0]) > columns - 2, f"{line!r} ends early"


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_cut_on_a_terminal_of_80_columns(name):
    page = shown(*name.split())
    options = [one for one in COMMANDS[name].params if one.param_type_name == "option"]
    assert [flag for one in options for flag in (*one.opts, *one.secondary_opts) if flag not in page] == []


def test_help_loads_what_it_lists_of_no_command():
    loaded = modules("")
    assert not {"pyarrow", "numpy", "pydantic", "structlog", "confluent_kafka", "deltalake", *HEAVY} & loaded
    assert not [one for one in loaded if one.startswith(OF_COMMANDS)]


def test_commands_do_without_what_takes_long_to_load():
    assert not set(HEAVY) & modules("status", "compact", "preview", "autoscaler explain")


@pytest.mark.parametrize(
    ("line", "offered"),
    [("headrace dlq re", {"replay"}), ("headrace status --wa", {"--watch"})],
)
def test_the_shell_completes_commands_and_options(line, offered):
    last = len(line.split()) - 1
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(last)},
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert set(done.stdout.split()) == offered, done.stderr


def test_json_is_an_option_of_one_wording_whose_keys_are_documented():
    options = {name: option for name, one in COMMANDS.items() for option in one.params if "--json" in option.opts}
    assert options.pop("bench").help.startswith("Write JSON to this file: ")
    assert all(option.help.startswith("Print JSON: ") for option in options.values())
    assert set(options) == set(documented_keys())
    assert set(COMMANDS) - set(options) == {"autoscaler run", "bench", "demo", "init", "run", "supervisor run"}
