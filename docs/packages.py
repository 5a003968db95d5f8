"""Writes docs/PACKAGES.md, the table of packages, from the layers contracts of import-linter. `make reference`.

The contracts in pyproject.toml give the packages and their floors; the first line of a package's docstring says what it
does.
"""

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src"
PACKAGE = "headrace"
PAGE = ROOT / "docs" / "PACKAGES.md"
INTRODUCTION = """# Packages

Written by `make reference` from the contracts in `pyproject.toml`; do not edit.

The trees are folders at the top of the repository, imported as `headrace.<folder>`.

A package may import packages on lower floors of its tree, and the trees below: `writer` may import `bucketers`;
`autoscaler`, `recovery` and `bench` may import both. Packages on one floor do not import each other. import-linter
checks this in `make check`. It also keeps Spark and Kafka clients out of `avro`, `batch` and `storage`, so the steps
run the same in a task, in `headrace preview` and in a test. The lines below the table show the order of the trees,
and the order inside `headrace.writer.avro` and `headrace.writer.table`; an arrow means "may import".

The commands of all packages stand in one table, `writer/cli/commands.py`.
[Architecture](ARCHITECTURE.md) says how the process works.
"""


def text() -> str:
    """Return the whole page, with the table of packages as pyproject.toml has it now."""
    return "\n".join([INTRODUCTION, *packages(contracts()), ""])


def contracts() -> list[Mapping[str, Any]]:
    """Return the contracts of type `layers`, in the order of pyproject.toml."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    return [contract for contract in linter["contracts"] if contract["type"] == "layers"]


def packages(layered: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of the table, the top floor first; then a line for each contract about a part of a package."""
    floors_by_package: dict[str, Sequence[str]] = {}
    orders: list[Sequence[str]] = []
    for contract in layered:
        if "containers" not in contract:
            orders.append(contract["layers"])
        for container in contract.get("containers", []):
            floors_by_package[container] = contract["layers"]
    roots = floors_by_package.pop(PACKAGE)
    yield from ("| floor | package | what it does |", "| ---: | --- | --- |")
    for root in (f"{PACKAGE}.{name}" for name in _siblings(roots)):
        yield f"| | **`{root}`** | {summary(root)} |"
        floors = floors_by_package.get(root, [])
        for floor, layer in zip(range(len(floors), 0, -1), floors, strict=True):
            for name in _siblings([layer]):
                yield f"| {floor} | `{root}.{name}` | {summary(f'{root}.{name}')} |"
                yield from (f"| | `{below}` | {summary(below)} |" for below in _below(f"{root}.{name}"))
    for layers in [roots, *orders]:
        yield from ("", _arrows(layers))
    for package, floors in floors_by_package.items():
        if package.count(".") > 1:
            yield from ("", f"Inside `{package}`: {_arrows(floors)}")


def summary(name: str) -> str:
    """Return the first line of the docstring of a package or module. Raises ValueError when it has none."""
    path = SOURCES.joinpath(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    if not said:
        raise ValueError(f"{path.relative_to(ROOT)} has no docstring: write one line that says what the package does")
    return said.splitlines()[0].replace("|", "\\|")


def _arrows(layers: Sequence[str]) -> str:
    """Return floors as one line, the top floor first."""
    return "`" + "` → `".join(layers) + "`"


def _siblings(layers: Sequence[str]) -> Iterator[str]:
    for layer in layers:
        yield from (name.strip() for name in layer.split("|"))


def _below(name: str) -> list[str]:
    """Names of the packages inside a package."""
    modules = sorted(SOURCES.joinpath(*name.split(".")).glob("*/**/__init__.py"))
    return [".".join(path.parent.relative_to(SOURCES).parts) for path in modules]


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
