"""Names that docs/UPGRADES.md lists as retired occur nowhere else, but on storage."""

import re
import subprocess
from pathlib import Path

import pytest

from writer.core import retired

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "UPGRADES.md"

# Files that must speak of retired names: the tables, their tests, and what the release 0.1.0 left behind.
APART = (
    "docs/UPGRADES.md", "writer/core/retired.py", "tests/docs/test_retired_words.py", "tests/unit/test_retired.py",
    "tests/existing.py", "tests/fixtures/",
)  # fmt: skip

# Identifiers of the code that are retired without a table of their own.
IDENTIFIERS = ("provenz", "_Told", "Physician")


def tables() -> dict[str, dict[str, str]]:
    """Return the tables of retired names by their headings: old name → new name."""
    found: dict[str, dict[str, str]] = {}
    heading = ""
    for line in PAGE.read_text().partition("## Retired names")[2].splitlines():
        if line.startswith("### "):
            heading = line[4:]
        if row := re.fullmatch(r"\| `([^`]+)` \| `([^`]+)` \|", line):
            found.setdefault(heading, {})[row[1]] = row[2]
    return found


def texts() -> list[tuple[str, str]]:
    """Return the text files of the repository, with their names."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found = []
    for name in listed.splitlines():
        if not name.startswith(APART) and (path := ROOT / name).is_file():
            try:
                found.append((name, path.read_text()))
            except UnicodeDecodeError:
                continue
    return found


@pytest.fixture(scope="module")
def repository() -> list[tuple[str, str]]:
    return texts()


def occurrences(repository: list[tuple[str, str]], words: set[str]) -> list[str]:
    """Return where one of the words stands as a whole word."""
    pattern = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(words)))})(?![\w-])")
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for name, text in repository
        for match in pattern.finditer(text)
    ]


def retired_names() -> set[str]:
    """Return the names that are words of their own: metrics, events, variables, parameters and last parts of keys."""
    found = tables()
    keys = {old.rpartition(".")[2] for old in found["Configuration"]}
    keys = {
        key for key in keys if "_" in key and retired.POLICY.get(key) != key.removesuffix("_s")
    }  # fields have units
    answers = {old for old in found["Keys of JSON answers"] if "_" in old}
    return {
        *keys, *answers, *found["Metrics"], *found["Log events"], *retired.VARIABLES, *IDENTIFIERS
    }  # fmt: skip


def test_the_page_lists_what_the_code_refuses() -> None:
    found = tables()
    assert found["Commands and environment variables"] == {**retired.COMMANDS, **retired.VARIABLES}
    listed = found["Configuration"]
    assert retired.POLICY.items() <= listed.items()
    for old, new in retired.KEYS.items():
        if not old.startswith(("autoscale.", "autoscaler.", "notify.")):
            assert listed[old] == new


def test_no_retired_name_is_left(repository: list[tuple[str, str]]) -> None:
    assert occurrences(repository, retired_names()) == []


def test_no_retired_command_is_left(repository: list[tuple[str, str]]) -> None:
    assert occurrences(repository, {f"headrace {old}" for old in retired.COMMANDS}) == []


def test_a_retired_name_would_be_found() -> None:
    old = next(iter(tables()["Metrics"]))
    assert occurrences([("a.py", f"x = 1\nsum({old})")], retired_names()) == [f"a.py:2: {old}"]


def test_heirs_of_metrics_exist() -> None:
    catalogue = (ROOT / "docs" / "METRICS.md").read_text()
    assert [new for new in tables()["Metrics"].values() if f"`{new}`" not in catalogue] == []
