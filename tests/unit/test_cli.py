"""The command as it is put together: its version, and each verb once."""

from importlib.metadata import entry_points, version

from typer.main import get_command
from typer.testing import CliRunner

from writer.cli.main import app


def test_the_version_is_that_of_the_distribution():
    told = CliRunner().invoke(app, ["--version"])
    assert (told.exit_code, told.stdout) == (0, f"headrace {version('headrace')}\n")


def test_verbs_of_other_packages_join_once():
    assert app is app
    names = [command.name or command.callback.__name__ for command in app.registered_commands]
    names += [group.name or group.typer_instance.info.name for group in app.registered_groups]
    assert len(names) == len(set(names))
    assert {"bench", "recovery"} <= {entry.name for entry in entry_points(group="headrace.commands")}
    assert {"bench", "recover", "doctor", "gaps", "backfill", "rewind", "chaos"} <= get_command(app).commands.keys()
