"""The command as it is put together: its version, and each verb once."""

import re
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headrace.writer.cli.commands import COMMANDS
from headrace.writer.cli.main import app
from headrace.writer.core import text
from headrace.writer.output import tables
from headrace.writer.output.cli_options import time_of

ROOT = Path(__file__).parents[2]


def test_the_version_is_that_of_the_distribution():
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"headrace {version('headrace')}\n")


def test_every_row_of_the_table_is_a_command_or_a_group_of_that_name():
    commands = get_command(app).commands
    for entries in COMMANDS.values():
        for entry in entries:
            assert commands[entry.name].name == entry.name
            assert commands[entry.name].help, entry.name


def test_a_command_that_there_is_not_is_refused_with_the_nearest():
    told = CliRunner().invoke(app, ["statu"])
    assert told.exit_code == 2
    assert "status" in told.output


@pytest.mark.parametrize("words", [["preview", "x", "--at", "soon"], ["dlq", "list", "x", "--outcome", "soon"]])
def test_a_value_that_an_option_does_not_take_is_named_beside_those_that_it_takes(words):
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2
    assert f"Invalid value for '{words[-2]}': 'soon' is not one of" in " ".join(told.output.split())


@pytest.mark.parametrize(
    ("given", "at"),
    [("2026-11-20T05:00Z", 5), ("2026-11-20T05:00", 5), ("2026-11-20 05:00:00 UTC", 5), ("2026-11-20T05:00+02:00", 3)],
)
def test_a_time_is_read_as_people_write_it_and_as_screens_show_it(given, at):
    assert time_of("--since", given) == datetime(2026, 11, 20, at, tzinfo=UTC)


def test_screens_write_instants_in_one_way():
    other = re.compile(r"""%Y|strftime|isoformat\(["' ]|isoformat\(sep""")
    allowed = {
        "writer/core/text.py", "writer/output/tables.py",  # the one way: to the second, and to the millisecond
        "writer/batch/lateness.py", "writer/batch/schema_reader.py",  # reasons of dead letters, on storage
        "writer/core/logging.py", "writer/offsets/checkpoint_backups.py",  # lines of the log; names of folders
        "writer/demo/verification.py",  # a query
        "writer/lease/kubernetes_lease.py", "writer/scaling/spark_executors.py",  # forms of Kubernetes and Spark
    }  # fmt: skip
    files = [path for top in ("writer", "recovery", "autoscaler") for path in (ROOT / top).rglob("*.py")]
    found = {str(path.relative_to(ROOT)) for path in files if other.search(path.read_text())}
    assert found <= allowed
    assert tables.instant(datetime(2026, 11, 20, 5, tzinfo=UTC)) == "2026-11-20 05:00:00.000 UTC"
    assert text.instant(datetime(2026, 11, 20, 5, tzinfo=UTC)) == "2026-11-20 05:00:00 UTC"


def test_a_command_imports_only_its_own_module():
    script = "import sys; from headrace.writer.cli.main import app; app(['pause', '--help'], standalone_mode=False)"
    others = ("headrace.recovery", "headrace.autoscaler", "headrace.writer.cli.look.")
    script += f"; print(sorted(m for m in sys.modules if m.startswith({others})))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=400, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
