"""The runbook is true: every command that it shows exists as it is written, every test that it names is there."""

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from writer.cli.main import app

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "RUNBOOK.md").read_text()
COMMANDS = sorted(
    {
        line.split("  #")[0].strip()
        for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("headrace ")
    }
)
INLINE = sorted(set(re.findall(r"`(headrace [a-z][a-z -]*(?: --[a-z-]+)*)`", PAGE)))
PLAYBOOKS = re.findall(r"^### (.+)$", PAGE.partition("\n## Playbooks")[2], re.MULTILINE)


def verb(words: list[str]) -> tuple[Any, list[str]]:
    """Find the verb that words begin with. Returns it, and the words after it."""
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        assert words[0] in command.commands, f"there is no {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    return command, words


def test_a_command_that_is_not_as_it_should_be_is_noticed() -> None:
    for line in ("rewind pipelines.yaml", "rewind pipelines.yaml --to 1 --sure", "gaps show"):
        command, words = verb(line.split())
        with pytest.raises(Exception, match=r"(?i)missing|no such option"):
            command.make_context(line, words)


def test_the_page_shows_commands() -> None:
    assert len(COMMANDS) > 30
    assert len(INLINE) > 5


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_of_the_page_is_understood_as_it_stands_there(line: str) -> None:
    command, words = verb(shlex.split(line)[1:])
    command.make_context(line, words)  # raises for an option that there is not, a value that is none, what is missing


@pytest.mark.parametrize("words", INLINE)
def test_a_verb_that_the_text_names_exists_with_its_flags(words: str) -> None:
    command, rest = verb(words.split()[1:])
    known = {opt for parameter in command.params for opt in (*parameter.opts, *parameter.secondary_opts)}
    assert set(rest) <= known, words


def test_each_playbook_names_tests_that_there_are() -> None:
    assert set(PLAYBOOKS) == {
        "Checkpoints corrupt", "Storage down for an hour", "Catalog down", "Topic deleted", "Log cut",
        "Schema mismatch", "A start would put a field in the clear", "Wrong data landed",
        "Another client changed the table", "Move to another cluster", "Retention about to bite",
    }  # fmt: skip
    for title, text in re.findall(
        r"^### (.+?)\n(.*?)(?=^### |\Z)", PAGE.partition("\n## Playbooks")[2], re.MULTILINE | re.DOTALL
    ):
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", text)
        assert named, f"{title} is executed by no test"
        for path, name in named:
            tree = ast.parse((ROOT / path).read_text())
            assert any(isinstance(one, ast.FunctionDef) and one.name == name for one in ast.walk(tree)), name


def test_every_place_of_the_page_that_is_linked_is_there() -> None:
    titles = {re.sub(r"[^\w -]", "", t).lower().replace(" ", "-") for t in re.findall(r"^#+ (.+)$", PAGE, re.MULTILINE)}
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= titles
