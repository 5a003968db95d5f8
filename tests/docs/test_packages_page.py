"""PACKAGES.md lists the packages of the import-linter contracts; INVARIANTS.md names tests that exist."""

import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).parents[2]
INVARIANTS = (ROOT / "tests" / "INVARIANTS.md").read_text()


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_packages", ROOT / "docs" / "packages.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def defined_in(path: Path) -> set[str]:
    return set(re.findall(r"^\s*def (test_\w+)\(", path.read_text(), re.MULTILINE))


def test_the_page_lists_the_packages_as_the_contracts_layer_them() -> None:
    made = generator()
    assert made.PAGE.read_text() == made.text(), "stale: run `make reference`"


def test_the_table_follows_the_contracts() -> None:
    layered = [
        {"containers": ["headrace"], "layers": ["recovery | bench", "writer"]},
        {"containers": ["headrace.writer"], "layers": ["cli", "table", "avro | core"]},
        {"layers": ["headrace.writer.columns.schema_plan", "headrace.writer.avro.schema"]},
        {"containers": ["headrace.writer.table"], "layers": ["table", "ledger | takeover", "log"]},
    ]
    lines = list(generator().packages(layered))
    named = re.findall(r"^\| (\d*) ?\| \**`([\w.]+)`", "\n".join(lines), re.MULTILINE)
    assert named == [
        ("", "headrace.recovery"),
        ("", "headrace.bench"),
        ("", "headrace.writer"),
        ("3", "headrace.writer.cli"),
        ("", "headrace.writer.cli.fix"),
        ("", "headrace.writer.cli.look"),
        ("", "headrace.writer.cli.maintain"),
        ("", "headrace.writer.cli.recover"),
        ("", "headrace.writer.cli.run"),
        ("", "headrace.writer.cli.scale"),
        ("2", "headrace.writer.table"),
        ("", "headrace.writer.table.iceberg"),
        ("", "headrace.writer.table.iceberg.catalog"),
        ("", "headrace.writer.table.iceberg.metadata"),
        ("", "headrace.writer.table.ledger"),
        ("", "headrace.writer.table.log"),
        ("", "headrace.writer.table.log.commits"),
        ("", "headrace.writer.table.log.operations"),
        ("1", "headrace.writer.avro"),
        ("", "headrace.writer.avro.decoding"),
        ("1", "headrace.writer.core"),
    ]
    assert lines[-3:] == [
        "`headrace.writer.columns.schema_plan` → `headrace.writer.avro.schema`",
        "",
        "Inside `headrace.writer.table`: `table` → `ledger | takeover` → `log`",
    ]


def test_every_package_has_a_docstring() -> None:
    made = generator()
    roots = set(re.findall(r"^\| \| \*\*`headrace\.(\w+)`\*\*", made.text(), re.MULTILINE))
    assert roots == {"autoscaler", "bench", "bucketers", "recovery", "writer"}
    for root in roots:
        for path in ROOT.joinpath(root).glob("**/__init__.py"):
            assert made.summary(".".join(["headrace", *path.parent.relative_to(ROOT).parts]))


def test_invariants_are_numbered_and_each_has_a_check() -> None:
    found = re.findall(r"^(\d+)\. (.*?)(?=^\d+\. |\Z)", INVARIANTS, re.MULTILINE | re.DOTALL)
    assert [int(number) for number, _ in found] == list(range(1, len(found) + 1))
    assert len(found) >= 100
    for number, text in found:
        assert re.search(r"`\w+/test_\w+\.py|Asserted in each task", text), f"invariant {number} names no test"


def test_every_test_that_an_invariant_names_exists() -> None:
    named = re.findall(r"`(?:tests/)?(\w+/test_\w+\.py)(?:::(\w+))?`", INVARIANTS)
    assert len(named) > 100
    for file, name in named:
        path = ROOT / "tests" / file
        assert path.exists(), f"tests/{file} does not exist"
        assert not name or name in defined_in(path), f"tests/{file} has no test {name}"
    plain = re.findall(r"`((?:tests|docker|writer)/[\w./]+)`", INVARIANTS)
    assert [name for name in plain if not (ROOT / name).exists()] == []
