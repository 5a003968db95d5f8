"""The product's code stays as plain as it is: no density of what readers stumble over grows."""

import ast
import textwrap
from pathlib import Path

import pytest

from tests.support.plain_code import (
    PRODUCT,
    Findings,
    assigns_two_things,
    inspect_module,
    inspect_packages,
    names_a_participle,
)

# Densities of the whole product: participles in percent of functions, others per 1,000 code lines. Each has a margin of
# 3 %, so that a feature does not fail for one line. Lower a ceiling when the product is plainer; raise none.
CEILINGS = {
    "participles": 0.5,
    "vague names": 1.4,
    "ternaries": 12.8,
    "tuple assignments": 0.1,
    "fmt skip": 0.1,
    "comments behind code": 0.4,
}


@pytest.fixture(scope="module")
def findings() -> Findings:
    return inspect_packages(PRODUCT)


@pytest.fixture(scope="module")
def densities(findings: Findings) -> dict[str, float]:
    return findings.densities()


def test_no_function_and_no_module_is_too_long(findings: Findings) -> None:
    assert (findings.long_functions, findings.long_modules) == (0, 0)


def test_no_density_is_above_its_ceiling(densities: dict[str, float]) -> None:
    above = {name: round(density, 2) for name, density in densities.items() if density > CEILINGS[name]}
    assert not above, (
        f"{above}, of at most {CEILINGS}. CONTRIBUTING.md, Style, says how code reads here; "
        "`python -m tests.support.plain_code FOLDER --worst 20` lists places"
    )


def test_each_ceiling_is_near_the_density_that_it_holds(densities: dict[str, float]) -> None:
    assert densities.keys() == CEILINGS.keys()
    loose = {name: round(density, 2) for name, density in densities.items() if CEILINGS[name] > 1.2 * density + 1}
    assert not loose, f"lower the ceilings of tests/docs/test_plain_code.py for {loose}"


@pytest.mark.parametrize(
    "name", ["_seen", "_drawn_up", "hashed_too", "built", "worked_off", "_believed", "columns_kept"]
)
def test_a_name_that_ends_in_a_participle_is_counted(name: str) -> None:
    assert names_a_participle(name)


@pytest.mark.parametrize("name", ["is_closed", "has_ended", "read", "_seed", "speed", "with_hashes", "wait_for", "run"])
def test_a_verb_noun_or_question_is_no_participle(name: str) -> None:
    assert not names_a_participle(name)


@pytest.mark.parametrize(
    ("statement", "expected"),
    [
        ("a, b = x, y", True),
        ("self.a, b = x, y", True),
        ("a, b = b, a", False),
        ("a, b = divmod(x, y)", False),
        ("a = x, y", False),
    ],
)
def test_two_assignments_in_one_are_counted_and_a_swap_is_not(statement: str, expected: bool) -> None:
    assert assigns_two_things(ast.parse(statement).body[0]) is expected


def test_a_module_is_counted_by_kind(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        textwrap.dedent(
            '''
            """A module."""

            # A reason above the line.
            LIMIT = 3  # a remark behind it


            class Reader:
                @property
                def closed(self) -> bool:
                    return True

                def opened(self, at: int) -> int:
                    found = 1 if at else 2  # noqa: X1 - a comment for a tool
                    first, second = [1,2], at  # fmt: skip
                    return found + second
            '''
        )
    )
    findings = Findings()
    inspect_module(module, findings)
    assert (findings.modules, findings.classes, findings.functions) == (1, 1, 1)
    assert (findings.comments_above, findings.comments_behind, findings.fmt_skips) == (1, 1, 1)
    assert [place.text for place in findings.participles] == ["opened()"]
    assert sorted(place.text for place in findings.vague_names) == ["at", "found"]
    assert len(findings.ternaries) == 1
    assert [place.text for place in findings.tuple_assignments] == ["first, second"]
    code_lines = 10
    assert findings.code_lines == code_lines
    assert findings.densities()["ternaries"] == pytest.approx(1000 / code_lines)
    assert findings.densities()["participles"] == pytest.approx(100)


@pytest.mark.parametrize(("folder", "names"), [("cli", ["end"]), ("table", ["at", "end"])])
def test_a_key_of_a_document_is_no_vague_name(tmp_path: Path, folder: str, names: list[str]) -> None:
    module = tmp_path / folder / "module.py"
    module.parent.mkdir()
    module.write_text("class Look:\n    at: str\n\n    def ends(self, end: int) -> bool:\n        return end > 0\n")
    findings = Findings()
    inspect_module(module, findings)
    assert sorted(place.text for place in findings.vague_names) == names
