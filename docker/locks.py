"""Which packages an image holds: of requirements.lock, which is for developers too, what the images need.

The writer's holds what the project asks for. The autoscaler's holds what the modules of its commands import.

python docker/locks.py    writes docker/writer.lock, docker/autoscaler.lock and docker/build.lock
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
HERE = Path(__file__).parent
EXTRAS = ("iceberg", "iceberg-postgres", "openlineage", "opentelemetry", "protobuf")  # what a configuration may ask for
# What functions import that the autoscaler's commands never call, and why they do not.
# tests/unit/test_autoscaler_imports.py runs its commands without these.
NEVER_CALLED = {
    "datafusion": "it decodes, hashes and filters records; the autoscaler reads none",
    **dict.fromkeys(
        ("googleapis-common-protos", "grpcio-tools", "protobuf", "ptars"),
        "they compile schemas and decode values; the autoscaler does neither",
    ),
}
_NAME = re.compile(r"[A-Za-z0-9._-]+")


def texts() -> dict[str, str]:
    """Return each file's text, by its name."""
    project = _project()
    extras = [text for name in EXTRAS for text in _own(name)]
    return {
        "writer.lock": _text(closure([*project["dependencies"], *extras])),
        "autoscaler.lock": _text(autoscaler_packages()),
        "build.lock": _text({"setuptools"}),
    }


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def _own(extra: str) -> list[str]:
    """Return what an extra asks for, without the extras that it builds upon."""
    project = _project()
    return [text for text in project["optional-dependencies"][extra] if not text.startswith(f"{project['name']}[")]


def autoscaler_packages() -> set[str]:
    """Return the names of the packages in the autoscaler's image.

    Raises SystemExit where NEVER_CALLED has a package that is imported, or that nothing imports.
    """
    imports = reachable_imports(autoscaler_modules())
    called = imports.in_functions.keys() - imports.at_import
    if wrong := sorted(NEVER_CALLED.keys() - called):
        raise SystemExit(
            f"NEVER_CALLED of docker/locks.py has {', '.join(wrong)}, which the autoscaler's modules import at their "
            "top, or nowhere. Take it out."
        )
    packages = (imports.at_import | called) - NEVER_CALLED.keys()
    extras = {text for extra in used_extras(packages) for text in _own(extra)}
    return closure(packages | extras)


def used_extras(packages: AbstractSet[str]) -> set[str]:
    """Return the extras of which one package is there, and those that build upon them.

    These count whole: a package may be loaded by a name in a configuration, such as the driver of a catalog's address.
    """
    used = {extra for extra in EXTRAS if {_name(text) for text in _own(extra)} & packages}
    own = _project()["name"]
    lists = _project()["optional-dependencies"]
    return used | {extra for extra in EXTRAS for base in used if f"{own}[{base}]" in lists[extra]}


def autoscaler_modules() -> set[str]:
    """Return the modules with which the commands of the autoscaler begin."""
    from headrace.writer.cli.commands import COMMANDS, CommandGroup

    groups = [entry for entries in COMMANDS.values() for entry in entries if isinstance(entry, CommandGroup)]
    (group,) = [group for group in groups if group.name == "autoscaler"]
    functions = [command.function for command in group.commands]
    return {text.partition(":")[0] for text in [*functions, *_project()["scripts"].values()]}


@dataclass(frozen=True)
class Imports:
    """The packages that modules import, and all modules of the project that these import."""

    # Names of packages: imported as soon as the first modules are.
    at_import: frozenset[str]
    # Modules that import a package inside of functions, or that functions alone import, by its name.
    in_functions: Mapping[str, tuple[str, ...]]
    # Of the project.
    modules: frozenset[str]


def reachable_imports(entries: Iterable[str]) -> Imports:
    """Return what some modules of the project import, directly or by others; wherever these import each other."""
    graph = _graph()
    modules = set(entries)
    for entry in entries:
        modules |= {module for module in graph.find_upstream_modules(entry) if not graph.is_module_squashed(module)}
    # Importing a module imports the packages that it lies in.
    modules |= {parent for module in modules for parent in _parents(module)}
    eager = _eager_modules(entries, modules)
    owners = packages_distributions()
    at_import: set[str] = set()
    in_functions: dict[str, list[str]] = {}
    for module in sorted(modules):
        for name, is_in_function in _external_imports(module):
            for package in map(normal, owners.get(name, ())):
                if is_in_function or module not in eager:
                    in_functions.setdefault(package, []).append(module)
                else:
                    at_import.add(package)
    own = normal(_project()["name"])
    callers = {package: tuple(dict.fromkeys(names)) for package, names in in_functions.items() if package != own}
    return Imports(frozenset(at_import - {own}), callers, frozenset(modules))


@cache
def _graph() -> Any:
    """Return the import graph of the project, without imports for types alone."""
    import grimp

    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return grimp.build_graph(
        *settings["root_packages"], include_external_packages=True, exclude_type_checking_imports=True, cache_dir=None
    )


def _parents(module: str) -> Iterator[str]:
    while "." in module:
        module = module.rpartition(".")[0]
        yield module


def _eager_modules(entries: Iterable[str], modules: AbstractSet[str]) -> set[str]:
    """Return those of some modules that are imported as soon as the first ones are, by no function."""
    eager: set[str] = set()
    waiting = list(entries)
    while waiting:
        module = waiting.pop()
        if module in eager or module not in modules:
            continue
        eager.add(module)
        waiting += _parents(module)
        waiting += [name for name, is_in_function in _imported_names(module) if not is_in_function]
    return eager


def _external_imports(module: str) -> Iterator[tuple[str, bool]]:
    """Yield the first part of each name that a module imports, and whether a function imports it."""
    for name, is_in_function in _imported_names(module):
        yield name.partition(".")[0], is_in_function


def _imported_names(module: str) -> Iterator[tuple[str, bool]]:
    """Yield each name that a module imports, with what it imports from there, and whether a function imports it."""
    spec = find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    waiting: list[tuple[ast.AST, bool]] = [(ast.parse(Path(spec.origin).read_text(encoding="utf-8")), False)]
    while waiting:
        node, is_in_function = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, is_in_function) for alias in node.names)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module, is_in_function
            yield from ((f"{node.module}.{alias.name}", is_in_function) for alias in node.names)
        within = is_in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waiting += [(child, within) for child in ast.iter_child_nodes(node)]


def closure(wanted: Iterable[str]) -> set[str]:
    """Return the names of all packages that these requirements bring on this machine."""
    from packaging.requirements import Requirement

    names: set[str] = set()
    waiting = [Requirement(text) for text in wanted]
    visited: set[str] = set()
    while waiting:
        requirement = waiting.pop()
        if str(requirement) in visited:
            continue
        visited.add(str(requirement))
        names.add(normal(requirement.name))
        for text in _requires(requirement.name):
            further = Requirement(text)
            extras = {"", *requirement.extras}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                waiting.append(further)
    return names


def _requires(name: str) -> list[str]:
    try:
        return requires(name) or []
    except PackageNotFoundError as error:
        raise SystemExit(f"{name} is not installed here. Run `make setup` before.") from error


def _name(requirement: str) -> str:
    """Return the name of a package in the text of a requirement."""
    match = _NAME.match(requirement)
    assert match is not None
    return normal(match[0])


def normal(name: str) -> str:
    """Write a name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _text(names: set[str]) -> str:
    blocks: dict[str, list[str]] = {}
    for line in (ROOT / "requirements.lock").read_text().splitlines():
        if line and not line.startswith((" ", "#")):
            current = blocks.setdefault(_name(line), [])
        current.append(line)
    missing = names - set(blocks)
    if missing:
        raise SystemExit(f"requirements.lock does not hold {', '.join(sorted(missing))}. Run `make lock` before.")
    lines = [line for name in sorted(names) for line in blocks[name]]
    return "# From requirements.lock by docker/locks.py.\n" + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    for name, text in texts().items():
        (HERE / name).write_text(text)
