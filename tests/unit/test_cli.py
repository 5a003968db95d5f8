"""The command as it is put together: its version, and each verb once."""

import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

from typer.main import get_command
from typer.testing import CliRunner

from writer.cli.main import app

ROOT = Path(__file__).parents[2]


def test_the_version_is_that_of_the_distribution():
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"headrace {version('headrace')}\n")


def test_every_entry_point_is_a_command_or_a_group_of_that_name():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["headrace.commands"]
    commands = get_command(app).commands
    assert set(commands) == set(declared), "stale: run `make setup`"
    for name in declared:
        assert commands[name].name == name
        assert commands[name].help, name


def test_a_command_that_there_is_not_is_refused_with_the_nearest():
    told = CliRunner().invoke(app, ["statu"])
    assert told.exit_code == 2
    assert "status" in told.output


def test_a_command_imports_only_its_own_module():
    script = "import sys; from writer.cli.main import app; app(['pause', '--help'], standalone_mode=False)"
    script += "; print(sorted(m for m in sys.modules if m.startswith(('recovery', 'autoscaler', 'writer.cli.read.'))))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
