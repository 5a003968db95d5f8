"""How the tests are laid out: what several of them need is in tests/support and tests/servers."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Imports from the tests, wherever they stand: to parse these alone takes a tenth of the time.
IMPORT = re.compile(r"^[ \t]*((?:from|import)[ \t]+tests\b(?:[^\n(]*\([^)]*\)|[^\n]*))", re.MULTILINE)


def imports(module: Path) -> Iterator[str]:
    """Yield the modules of tests that a module imports, and the names that it takes from them, with dots."""
    statements = "\n".join(IMPORT.findall(module.read_text(encoding="utf-8")))
    for node in ast.walk(ast.parse(statements)):
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
    module.write_text(
        "from tests.unit.test_config import base\n"
        "import tests.unit.test_fleet\n"
        "def late():\n    from tests.unit import (\n        test_init,\n    )  # below\n    return test_init\n"
    )
    assert list(imports(module)) == ["tests.unit.test_config.base", "tests.unit.test_fleet", "tests.unit.test_init"]
