"""The documentation is true: it is fresh, its links lead somewhere, its commands and keys exist."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from headrace.recovery.escalation.error_catalogue import catalogue
from headrace.recovery.escalation.levels import RecoveryLevel
from tests.fault import outcomes
from tests.support import checkpoint_damages

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        ROOT / "bench" / "README.md",
        ROOT / "tests" / "INVARIANTS.md",
        ROOT / "tests" / "fault" / "REPORT.md",
    ]
)


@pytest.mark.parametrize(
    ("page", "script"),
    [
        ("REFERENCE", "reference"),
        ("METRICS", "metrics"),
        ("FAULTS", "faults"),
        ("RECOVERY", "error_catalogue"),
        ("AUTOSCALING", "autoscaling"),
        ("LICENSES", "licenses"),
        ("VERSIONS", "versions"),
        ("TYPES", "features"),
    ],
)
def test_a_generated_page_is_what_the_code_says(page: str, script: str) -> None:
    assert (ROOT / "docs" / f"{page}.md").read_text() == _module(script).text(), "stale: run `make reference`"


def test_the_results_of_autoscaling_are_what_was_recorded() -> None:
    page = ROOT / "docs" / "AUTOSCALING_RESULTS.md"
    assert page.read_text() == _module("autoscaling").results(), "stale: run `make reference`"


def test_the_schema_for_editors_is_that_of_the_configuration() -> None:
    written = (ROOT / "docs" / "headrace.schema.json").read_text()
    assert written == _module("reference").schema_text(), "stale: run `make reference`"


def _module(script: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"docs_{script}", ROOT / "docs" / f"{script}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_report_holds_every_cell_of_the_suite_or_says_that_it_is_newer() -> None:
    cells = outcomes.read()["faults"].values()
    recorded = {cell["test"] for cell in cells}
    suite = outcomes.list_cells()
    assert recorded <= suite, "the suite lacks what was recorded: run `make test-long`"
    report = (ROOT / "tests" / "fault" / "REPORT.md").read_text()
    assert [test for test in suite - recorded if f"- `{test}`" not in report] == [], "stale: run `make reference`"
    assert all((cell["lost"], cell["twice"], cell["seen_twice"]) == (0, 0, 0) for cell in cells)
    # An autoscaler by itself carries no records.
    assert all(cell["records"] for cell in cells if cell["on"] != "autoscaler, in-process")


def test_the_report_holds_each_damage_and_each_row_of_the_catalogue() -> None:
    found = outcomes.read()["damages"].values()
    tried = {
        (one["row"], one["damage"].rpartition("(")[2].rstrip(")"), one["moment"].startswith("a batch")) for one in found
    }
    assert {(case.row, case.detail, case.half) for case in checkpoint_damages.CASES} <= tried, (
        "stale: run `make test-long`"
    )
    rows = {one["row"] for one in found}
    for damage in catalogue():
        assert damage.row in rows or damage.not_run or damage.elsewhere, f"row {damage.row} is not tried: why not?"
    assert all((one["lost"], one["twice"]) == (0, 0) and one["records"] for one in found)


def test_the_report_holds_each_level_of_recovery_and_five_runs_of_chaos() -> None:
    found = outcomes.read()
    assert {tried[:2] for tried in found["levels"]} >= {level.label for level in RecoveryLevel}, (
        "stale: run `make test-long`"
    )
    assert len(found["chaos"]) >= 5
    assert all((one["lost"], one["twice"], one["unknown"]) == (0, 0, 0) for one in found["chaos"].values())


def test_the_report_is_made_of_the_recorded_outcomes() -> None:
    assert (ROOT / "tests" / "fault" / "REPORT.md").read_text() == _module("faults").report(), "run `make reference`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_file_named_in_the_docs_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"`((?:writer|bucketers|tests|docs)/[\w/.-]+\.(?:py|md))`", page.read_text()):
            # tests/INVARIANTS.md names tests by their place below tests.
            assert (ROOT / name).exists() or (page.parent / name).exists(), f"{page.name} names {name}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_make_target_of_a_page_exists(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text()
    named = set(re.findall(r"(?:`|^)make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE))
    assert named
    assert {target for target in named if not re.search(rf"^{target}:", makefile, re.MULTILINE)} == set()


def test_every_dependency_has_its_reason() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    project = tomllib.loads(text)["project"]
    for requirement in project["dependencies"]:
        (line,) = [line for line in text.splitlines() if f'"{requirement}"' in line]
        assert "#" in line, f"{requirement} has no reason beside it"
