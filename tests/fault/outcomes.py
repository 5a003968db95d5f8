"""What `make test-long` found, in one file: docs/faults.py makes tests/fault/REPORT.md of it.

A run writes to the file that HEADRACE_OUTCOMES names. Each outcome carries the commit of its run, HEADRACE_COMMIT, and
its product, HEADRACE_PRODUCT: git's hash of the packages and of the lock. So does each shard that passed. Pages are
made of one product and all its shards, or not at all: a test that is mended has its shard run again, not all of them.
What was played once more with Spark's Kafka source lies in a file beside it.

    python -m tests.fault.outcomes begin           forget what other products found
    python -m tests.fault.outcomes passed 2/4      shard 2 of 4 passed
"""

import ast
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

COMMITTED = Path(__file__).with_name("outcomes.json")
WITH_SPARK_READER = Path(__file__).with_name("outcomes_spark.json")
CHAOS = ("format", "minutes", "produced", "held", "taken", "died", "lost", "twice", "unknown")
WANTED = "HEADRACE_OUTCOMES" in os.environ  # then the suites play their whole matrix
Table = Literal["faults", "damages", "levels", "chaos", "shards"]
Outcomes = dict[str, dict[str, dict[str, Any]]]  # table → what was tried → what was found, with its commit and product


class MixedProductsError(Exception):
    """Outcomes of more than one product lie in one file."""


class MissingShardsError(Exception):
    """Some shards of a run did not pass yet."""


def put(table: Table, key: str, values: Mapping[str, Any]) -> None:
    """Write an outcome where it is wanted, at once, in the place of the one before: a run may be cut short."""
    if WANTED:
        with _edit_outcomes() as outcomes:
            run = {"commit": os.environ["HEADRACE_COMMIT"], "product": os.environ["HEADRACE_PRODUCT"]}
            outcomes.setdefault(table, {})[key] = {**values, **run}


def read(path: Path = COMMITTED) -> Outcomes:
    """Return the outcomes of one whole run.

    Raises MixedProductsError, and MissingShardsError.
    """
    outcomes = _load(path)
    products = _values(outcomes, "product")
    if len(products) != 1:
        raise MixedProductsError(f"{path.name}: outcomes of {len(products)} products ({', '.join(products)})")
    missing = missing_shards(outcomes)
    if missing:
        raise MissingShardsError(f"{path.name}: not run or not passed: {', '.join(missing)}. make test-long SHARD=…")
    return outcomes


def list_cells() -> set[str]:
    """Return the tests of the suite that record a fault, as `test_kill.py::test_a_driver_is_killed`."""
    cells = set[str]()
    for path in COMMITTED.parent.glob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_") and _records_fault(node):
                cells.add(f"{path.name}::{node.name}")
    return cells


def _records_fault(test: ast.FunctionDef) -> bool:
    is_marked = any("pytest.mark.cell(" in ast.unparse(mark) for mark in test.decorator_list)
    # The fixture `cell` records what its test puts down.
    return is_marked or any(argument.arg == "cell" or argument.arg.endswith("record") for argument in test.args.args)


def commits(outcomes: Outcomes, digits: int = 40) -> str:
    """Return the commits of outcomes that were read, as "Commit: A" or "Commits of one product: A, B"."""
    hashes = [commit[:digits] for commit in _values(outcomes, "commit")]
    label = "Commit" if len(hashes) == 1 else "Commits of one product"
    return f"{label}: {', '.join(hashes)}"


def missing_shards(outcomes: Outcomes) -> list[str]:
    """Return the shards that did not pass, as `2/4`; all of them when runs were split in different ways."""
    passed = {tuple(map(int, shard.split("/"))) for shard in outcomes.get("shards", {})}
    counts = {count for _, count in passed} or {1}
    return [
        f"{n}/{max(counts)}" for n in range(1, max(counts) + 1) if (n, max(counts)) not in passed or len(counts) > 1
    ]


def _values(outcomes: Outcomes, name: str) -> list[str]:
    return sorted({outcome[name] for table in outcomes.values() for outcome in table.values()})


def _load(path: Path) -> Outcomes:
    outcomes: Outcomes = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return outcomes


@contextmanager
def _edit_outcomes() -> Iterator[Outcomes]:
    """Read, let the caller change, and write; other processes of the run wait meanwhile."""
    path = Path(os.environ["HEADRACE_OUTCOMES"])
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        outcomes = _load(path)
        yield outcomes
        path.write_text(json.dumps(outcomes, indent=1, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def main(what: str, shard: str = "") -> None:
    """Begin a shard, or note that it passed."""
    if what == "begin":
        with _edit_outcomes() as outcomes:
            for table in outcomes.values():
                for key in [key for key, found in table.items() if found["product"] != os.environ["HEADRACE_PRODUCT"]]:
                    del table[key]
        return
    put("shards", shard, {})
    missing = missing_shards(_load(Path(os.environ["HEADRACE_OUTCOMES"])))
    print(
        f"shard {shard} passed; " + (f"missing: {', '.join(missing)}" if missing else "all are there: make reference")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
