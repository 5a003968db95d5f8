"""Retired keys, values, commands and variables: each fails with its heir's name, and each heir exists."""

import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel
from typer.testing import CliRunner

from autoscaler.decision.policy import DEFAULTS, assigned, parameters
from writer.cli.main import InstalledCommands, app
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core import retired
from writer.core.errors import ConfigError


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return a mapping that has the value at a path; `*` is a pipeline `clicks`."""
    for part in reversed(path.split(".")):
        value = {"clicks" if part == "*" else part: value}
    return dict(value)


def keys(model: type[BaseModel], at: str = "") -> set[str]:
    """Return the paths of all keys of a section."""
    found: set[str] = set()
    for name, field in model.model_fields.items():
        path = f"{at}{name}"
        found.add(path)
        todo: list[Any] = [field.annotation]
        while todo:
            one = todo.pop()
            if isinstance(one, type) and issubclass(one, BaseModel):
                found |= keys(one, f"{path}." if path != "pipelines" else "pipelines.*.")
            todo += get_args(one)
    return found


def refusal(tmp_path: Path, raw: dict[str, Any]) -> str:
    path = tmp_path / "headrace.yaml"
    path.write_text(yaml.safe_dump(raw))
    with pytest.raises(ConfigError) as refused:
        load(path)
    return str(refused.value)


@pytest.mark.parametrize("old", retired.KEYS)
def test_a_retired_key_is_refused_with_the_name_of_its_heir(tmp_path: Path, old: str) -> None:
    shown = old.replace("*", "clicks")
    assert f"  {shown}: is now {retired.KEYS[old]}\n" in refusal(tmp_path, nested(old, 1)) + "\n"


def test_every_heir_is_a_key_that_exists_and_no_retired_key_is_one() -> None:
    known = keys(Config) | {f"autoscaler.policy.{name}" for name in parameters()}
    for old, new in retired.KEYS.items():
        *above, _ = old.split(".")
        section = [retired.KEYS.get(part, part) if i == 0 else part for i, part in enumerate(above)]
        assert ".".join([*section, new]) in known
        assert old not in known


@pytest.mark.parametrize(("at", "new"), retired.VALUES.items())
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_retired_value_is_refused_with_its_heir(tmp_path: Path, at: tuple[str, str], new: str, wrapped: bool) -> None:
    path, old = at
    text = refusal(tmp_path, nested(path, [old] if wrapped else old))
    assert f"{path.replace('*', 'clicks')}: {old!r} is now {new!r}" in text


@pytest.mark.parametrize(("old", "new"), retired.COMMANDS.items())
def test_a_retired_command_is_refused_with_its_heir(old: str, new: str) -> None:
    said = CliRunner().invoke(app, [*old.split(), "headrace.yaml"])
    assert (said.exit_code, f"`headrace {old}` is now `headrace {new}`." in " ".join(said.output.split())) == (2, True)
    assert new in InstalledCommands()
    assert old not in InstalledCommands()


@pytest.mark.parametrize(("old", "new"), retired.OPTIONS.items())
def test_a_retired_option_is_refused_with_its_heir(old: str, new: str) -> None:
    *command, option = old.split()
    said = CliRunner().invoke(app, [*command, "headrace.yaml", option])
    assert (said.exit_code, f"`headrace {old}` is now `headrace {new}`." in " ".join(said.output.split())) == (2, True)


@pytest.mark.parametrize(("old", "new"), retired.VARIABLES.items())
def test_a_retired_variable_is_refused_with_its_heir(old: str, new: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "writer.cli", "validate", "none.yaml"], env={old: "x"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, f"headrace: the environment variable {old} is now {new}. Rename it.\n")


@pytest.mark.parametrize(("old", "new"), retired.POLICY.items())
def test_a_retired_parameter_of_the_policy_is_refused_with_its_heir(old: str, new: str) -> None:
    with pytest.raises(ConfigError, match=f"the parameter '{old}' is now '{new}'"):
        assigned(DEFAULTS, [f"{old}=1"])
    assert new in parameters()
