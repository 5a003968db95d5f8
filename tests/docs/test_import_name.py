"""Everything is imported as `headrace.<package>`, wherever a module is named."""

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINKS = ROOT / "src" / "headrace"
PACKAGES = ("autoscaler", "bench", "bucketers", "recovery", "writer")
# A module in an import, in quotes, in code of a page, or after `python -m`. A path has slashes; an attribute no quote.
NAMED = re.compile(rf"""(?:["'`]|-m |import |from )((?:{"|".join(PACKAGES)})\.[a-z_]+)""")


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").is_file()


def modules_without_package(text: str) -> list[str]:
    return [name for name in NAMED.findall(text) if is_module(name)]


def repository_texts() -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file that git knows."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and path.suffix not in {".lock", ".png", ".xz"} and path != Path(__file__):
            yield name, path.read_text(encoding="utf-8")


def test_each_package_is_a_link_in_the_one_that_is_imported() -> None:
    links = {path.name: path for path in LINKS.iterdir() if path.is_symlink()}
    assert sorted(links) == sorted(PACKAGES)
    for name, path in links.items():
        assert not path.readlink().is_absolute()
        assert path.resolve() == ROOT / name
    own = {path.name for path in LINKS.iterdir()} - {"__pycache__", *PACKAGES}
    assert own == {"__init__.py", "py.typed"}


def test_a_folder_with_product_code_is_one_of_the_packages() -> None:
    others = {"docker", "docs", "release", "src", "tests"}
    folders = {path.parent.name for path in ROOT.glob("*/*.py")} - others
    assert folders == set(PACKAGES)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    assert settings["importlinter"]["root_packages"] == settings["mypy"]["packages"] == ["headrace"]


def test_no_file_names_a_module_without_the_package() -> None:
    wrong = {name: modules_without_package(text) for name, text in repository_texts()}
    assert {name: modules for name, modules in wrong.items() if modules} == {}


def test_a_module_without_the_package_would_be_named() -> None:
    for text in (
        "import writer.cli",
        "from writer.core import units",
        "`bench.guard`",
        "'recovery.cli:run'",
        "-m writer.cli",
    ):
        assert len(modules_without_package(text)) == 1, text
    for text in ("from headrace.writer.core import units", "writer.output()", "`autoscaler.policy`", "writer/cli.py"):
        assert modules_without_package(text) == [], text


def test_the_linter_refuses_an_import_without_the_package() -> None:
    lines = [f"import {name}\nfrom {name}.cli import main\n" for name in PACKAGES]
    command = [sys.executable, "-m", "ruff", "check", "--no-cache", "--select", "TID251", "--output-format", "concise"]
    given = "".join(lines)
    done = subprocess.run(
        [*command, "--stdin-filename", "tests/example.py", "-"],
        cwd=ROOT, input=given, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.count("TID251") == 2 * len(PACKAGES), done.stdout + done.stderr
