"""The runbook is true: every test that a playbook names is there, and every place that is linked."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "RUNBOOK.md").read_text()
PLAYBOOKS = re.findall(r"^### (.+)$", PAGE.partition("\n## Playbooks")[2], re.MULTILINE)


def test_each_playbook_names_tests_that_there_are() -> None:
    assert set(PLAYBOOKS) == {
        "Checkpoints corrupt", "Storage down for an hour", "Bucket or table gone", "Catalog down", "Topic deleted",
        "Log cut", "Schema mismatch", "A start would put a field in the clear", "Wrong data landed",
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
