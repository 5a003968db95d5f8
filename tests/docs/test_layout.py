"""Where tests lie: helpers in tests/support, and no server in tests/unit and tests/property."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
# Fixtures that start a broker, a registry, an object store, or Spark.
SERVERS = frozenset({
    "azure", "bootstrap", "gcs", "on_azure", "on_gcs", "on_s3", "registry_url", "s3", "site", "stack", "topic",
})  # fmt: skip


def parameters_of_tests(source: str) -> Iterator[tuple[str, set[str]]]:
    """Yield the name of each test and fixture with its parameters."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            is_fixture = any("fixture" in ast.unparse(decorator) for decorator in node.decorator_list)
            if node.name.startswith("test_") or is_fixture:
                yield node.name, {argument.arg for argument in node.args.args}


def local_fixtures(source: str) -> set[str]:
    """Return the names of fixtures and of parametrized arguments that a module has of its own."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for decorator in node.decorator_list:
                text = ast.unparse(decorator)
                if "fixture" in text:
                    names.add(node.name)
                if "parametrize" in text or "given" in text:
                    names |= {argument.arg for argument in node.args.args}
    return names


def server_tests(source: str) -> list[str]:
    """Return the tests and fixtures of a module that ask for a server."""
    servers = SERVERS - local_fixtures(source)
    return [name for name, parameters in parameters_of_tests(source) if servers & parameters]


def test_no_test_of_units_and_properties_asks_for_a_server() -> None:
    modules = [*(TESTS / "unit").glob("*.py"), *(TESTS / "property").glob("*.py")]
    assert modules
    with_servers = {module.name: server_tests(module.read_text(encoding="utf-8")) for module in modules}
    assert {name: tests for name, tests in with_servers.items() if tests} == {}


def test_a_test_with_a_server_would_be_named() -> None:
    assert server_tests("def test_a_row_is_read(stack, tmp_path): ...") == ["test_a_row_is_read"]
    assert server_tests("@pytest.fixture\ndef site(): ...\ndef test_a_row_is_read(site): ...") == []


def test_helpers_lie_in_support_alone() -> None:
    top = {path.name for path in TESTS.glob("*.py")}
    assert top == {"__init__.py", "conftest.py"}
    for folder in ("contract", "property", "spark", "unit"):
        helpers = [path.name for path in (TESTS / folder).glob("*.py") if not path.name.startswith("test_")]
        assert [name for name in helpers if name != "conftest.py"] == [], folder
