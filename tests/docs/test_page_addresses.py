"""A message that names a page of the documentation gives its address, and the page and the place in it are there."""

import ast
import json
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from headrace.writer.cli.main import app
from headrace.writer.config.pipelines import Config
from headrace.writer.core.pages import ADDRESS, page_address

ROOT = Path(__file__).parents[2]
PACKAGES = ("autoscaler", "bench", "bucketers", "recovery", "writer")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
OTHER_FILES = [
    ROOT / "recovery" / "alerts.yaml",
    ROOT / "writer" / "web" / "page.html",
    ROOT / "helm" / "headrace" / "rules" / "alerts.yaml",
    ROOT / "helm" / "headrace" / "templates" / "NOTES.txt",
]
ADDRESSES = re.compile(re.escape(ADDRESS) + r"/([\w./-]+\.md(?:#[\w-]+)?)")
# Between two literals that are one text.
LINE_JOINT = re.compile(r"""["']\s*\n\s*[bfr]*["']""")
# The name of a page without its address.
BARE = re.compile(r"(?<![\w./-])(?:docs/)?(?:adr/)?[A-Z][A-Z_]{2,}\.md|(?<![\w./-])docs/[\w/.-]+\.(?:md|json)")


def test_the_address_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"{project['urls']['Source']}/blob/main" == ADDRESS


def test_each_address_in_code_and_rules_leads_to_a_page_and_a_place_in_it() -> None:
    targets = list(named_pages())
    assert len(targets) > 50
    for source, target in targets:
        path, _, anchor = target.partition("#")
        assert (ROOT / path).is_file(), f"{source} names {target}"
        assert not anchor or anchor in anchors_of(ROOT / path), f"{source} names {target}"


def test_no_message_names_a_page_without_its_address() -> None:
    for path in SOURCES:
        # Most modules name no page, and need not be parsed. A text may be split over lines.
        if not BARE.search(ADDRESSES.sub("", LINE_JOINT.sub("", path.read_text()))):
            continue
        for text in message_texts(parse(path)):
            assert not BARE.search(text), f"{path}: {text!r}: use page_address"


def test_neither_help_nor_the_json_schema_names_a_page_without_its_address() -> None:
    texts = [*help_texts(typer.main.get_command(app)), json.dumps(Config.json_schema())]
    assert len(texts) > 50
    assert [match[0] for text in texts for match in BARE.finditer(ADDRESSES.sub("", text))] == []


def test_the_rules_of_alerts_name_no_page_without_its_address() -> None:
    for path in OTHER_FILES:
        assert not BARE.search(ADDRESSES.sub("", path.read_text())), path


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def named_pages() -> Iterator[tuple[str, str]]:
    """Yield the file, and the page that it gives the address of."""
    for path in [*SOURCES, *OTHER_FILES]:
        text = path.read_text()
        for match in ADDRESSES.finditer(text):
            yield path.name, match[1]
        if path.suffix != ".py" or "page_address" not in text:
            continue
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "page_address":
                (argument,) = node.args
                assert isinstance(argument, ast.Constant), f"{path}: a test can look up a constant only"
                yield path.name, argument.value


def message_texts(module: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that are neither docstrings nor arguments of page_address."""
    hidden = set[int]()
    for node in ast.walk(module):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            hidden.add(id(node.value))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "page_address":
            hidden |= {id(argument) for argument in node.args}
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in hidden:
            yield ADDRESSES.sub("", node.value)


def help_texts(command: Any) -> Iterator[str]:
    """Yield the help of a command and its options, and of those below it."""
    yield command.help or ""
    for parameter in command.params:
        yield getattr(parameter, "help", "") or ""
    for inner in getattr(command, "commands", {}).values():
        yield from help_texts(inner)


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
    return set(plain)


def test_an_anchor_is_checked() -> None:
    assert "move-a-table-with-its-history" in anchors_of(ROOT / "docs" / "TABLES.md")
    assert "nowhere" not in anchors_of(ROOT / "docs" / "TABLES.md")
    assert BARE.search("read docs/TABLES.md")
    assert BARE.search("see AUTOSCALING.md")
    assert not BARE.search(ADDRESSES.sub("", page_address("docs/TABLES.md#vacuum")))
