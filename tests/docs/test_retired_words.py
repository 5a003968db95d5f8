"""Words that the vocabulary does not have any more are no part of an identifier, nor of the served page."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[2]

# Words that are no part of an identifier in the product's code any more.
WORDS = frozenset({
    "bookmark", "brood", "chapter", "chapters", "courier", "couriers", "forsaken", "hands", "hear", "heard", "hole",
    "holes", "keeper", "mend", "mended", "nobody", "parcel", "parcels", "patience", "patient", "patients", "poison",
    "provenz", "redo", "rung", "rungs", "said", "shelf", "somebody", "stood", "stretch", "stretches", "tell", "tells",
    "ticket", "tickets", "told", "torn", "unwell", "ward", "who", "whoever", "witness",
})  # fmt: skip
# A method of Python's files.
METHODS = frozenset({"tell"})
PACKAGES = ("writer", "recovery", "autoscaler", "bucketers")


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
        if name not in METHODS
        if WORDS & set(words) or ({"letter", "letters"} & set(words) and "dead" not in words)
    )


def test_no_identifier_has_a_retired_word() -> None:
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert modules
    found = {str(path.relative_to(ROOT)): retired_words(identifiers(path.read_text())) for path in modules}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_file_of_tests_has_a_retired_word() -> None:
    stems = [path.stem for path in (ROOT / "tests").rglob("*.py")]
    assert stems
    assert retired_words(stems) == []


def test_a_retired_word_would_be_found() -> None:
    assert retired_words(identifiers("class Torn:\n    def next_rung(self, letters): self.ok = dead_letters = 1")) == [
        "Torn", "letters", "next_rung"
    ]  # fmt: skip


def test_the_page_has_no_retired_word() -> None:
    page = (ROOT / "writer" / "web" / "page.html").read_text()
    assert set(re.findall(r"[a-z]+", page.lower())) & WORDS == set()
