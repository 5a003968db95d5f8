"""Names that docs/UPGRADES.md lists as retired occur nowhere else, but on storage."""

import ast
import re
import subprocess
from collections.abc import Iterable
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

# Words that are no part of an identifier in the product's code any more.
WORDS = frozenset({
    "bookmark", "brood", "chapter", "chapters", "courier", "couriers", "forsaken", "hands", "hear", "heard", "hole",
    "holes", "keeper", "mend", "mended", "nobody", "parcel", "parcels", "patience", "patient", "patients", "poison",
    "provenz", "redo", "rung", "rungs", "said", "shelf", "somebody", "stood", "stretch", "stretches", "tell", "tells",
    "ticket", "tickets", "told", "torn", "unwell", "ward", "who", "whoever", "witness",
})  # fmt: skip
PACKAGES = ("writer", "recovery", "autoscaler", "bucketers")


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
        *keys, *answers, *found["Metrics"], *found["Log events"], *retired.VARIABLES, "provenz"
    }  # fmt: skip


def test_the_page_lists_what_the_code_refuses() -> None:
    found = tables()
    assert found["Commands and environment variables"] == {**retired.COMMANDS, **retired.OPTIONS, **retired.VARIABLES}
    listed = found["Configuration"]
    assert retired.POLICY.items() <= listed.items()
    for old, new in retired.KEYS.items():
        if not old.startswith(("autoscale.", "autoscaler.", "notify.")):
            assert listed[old] == new


def test_no_retired_name_is_left(repository: list[tuple[str, str]]) -> None:
    assert occurrences(repository, retired_names()) == []


def test_no_retired_command_is_left(repository: list[tuple[str, str]]) -> None:
    assert occurrences(repository, {f"headrace {old}" for old in (*retired.COMMANDS, *retired.OPTIONS)}) == []


def identifiers(source: str) -> set[str]:
    """Return the names that Python code defines: classes, functions, arguments, variables and attributes."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                found.add(name)
            case ast.arg(arg=name):
                found.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                found.add(name)
    return found


def retired_words(names: Iterable[str]) -> list[str]:
    """Return the names that have a retired word, and those that say `letters` without `dead`."""
    parts = {name: [part.lower() for part in re.findall(r"[A-Z]?[a-z]+", name)] for name in names}
    return sorted(
        name
        for name, words in parts.items()
        if WORDS & set(words) or ({"letter", "letters"} & set(words) and "dead" not in words)
    )


def test_no_identifier_has_a_retired_word() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert modules
    found = {str(path.relative_to(ROOT)): retired_words(identifiers(path.read_text())) for path in modules}
    assert {name: names for name, names in found.items() if names} == {}


def test_a_retired_word_would_be_found() -> None:
    assert retired_words(identifiers("class Torn:\n    def next_rung(self, letters): self.ok = dead_letters = 1")) == [
        "Torn", "letters", "next_rung"
    ]  # fmt: skip


def test_the_page_has_no_retired_word() -> None:
    page = (ROOT / "writer" / "web" / "page.html").read_text()
    assert set(re.findall(r"[a-z]+", page.lower())) & WORDS == set()


def test_a_retired_name_would_be_found() -> None:
    old = next(iter(tables()["Metrics"]))
    assert occurrences([("a.py", f"x = 1\nsum({old})")], retired_names()) == [f"a.py:2: {old}"]


def test_heirs_of_metrics_exist() -> None:
    catalogue = (ROOT / "docs" / "METRICS.md").read_text()
    assert [new for new in tables()["Metrics"].values() if f"`{new}`" not in catalogue] == []
