"""How the tests are laid out: what several of them need is in tests/support and tests/servers."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imports(module: Path) -> Iterator[str]:
    """Yield the modules that a module imports, and the names that it takes from them, with dots."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_module_imports_another() -> None:
    imports_of_tests = [
        f"{path.relative_to(TESTS)} imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in imports(path)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split(".")[1:3])
    ]
    assert not imports_of_tests, f"move what they share to tests/support: {imports_of_tests}"


def test_an_import_of_a_test_module_is_seen(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text("from tests.unit.test_config import base\nimport tests.unit.test_fleet\n")
    assert list(imports(module)) == ["tests.unit.test_config.base", "tests.unit.test_fleet"]
