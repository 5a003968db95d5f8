"""Run `headrace` in a process where only some packages can be imported: limited_imports.py PACKAGES ARGUMENT...

PACKAGES: names as indexes compare them, separated by commas. At its end the process writes to standard error which
packages it imported, as one line of JSON.
"""

import atexit
import json
import re
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import packages_distributions
from typing import Any


def package_names(owners: Sequence[str]) -> set[str]:
    return {re.sub(r"[-_.]+", "-", owner).lower() for owner in owners}


class LimitedImports:
    """Finds modules as Python does, but for those of other packages: these are as if they were not installed."""

    def __init__(self, allowed: set[str]) -> None:
        self.allowed = {*allowed, "headrace"}
        self.owners = {name: package_names(owners) for name, owners in packages_distributions().items()}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        owners = self.owners.get(name.partition(".")[0], set())
        if owners and not owners & self.allowed:
            return None
        return PathFinder.find_spec(name, path, target)

    def imported(self) -> set[str]:
        """Return the packages of the modules that this process has imported."""
        tops = {name.partition(".")[0] for name in sys.modules}
        return {owner for top in tops for owner in self.owners.get(top, ())} & self.allowed


def main() -> None:
    finder = LimitedImports(set(sys.argv.pop(1).split(",")))
    sys.meta_path[sys.meta_path.index(PathFinder)] = finder
    atexit.register(lambda: print(json.dumps(sorted(finder.imported())), file=sys.stderr))
    from headrace.writer.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
