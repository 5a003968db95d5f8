"""What `make test` may cost: tests/BUDGET.md has a line for each growth of more than a tenth."""

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.support.suites import COLLECTED, IN_MAKE_SLOW, LONG, is_long, matches

TESTS = Path(__file__).parents[1]
SECONDS = json.loads((TESTS / "seconds.json").read_text(encoding="utf-8"))
RECORD = "Record it: make record ONLY=<its file>"


def test_each_slow_test_has_recorded_seconds(request: pytest.FixtureRequest) -> None:
    unknown = [test for test in request.config.stash[IN_MAKE_SLOW] if test not in SECONDS]
    assert not unknown, f"no seconds in tests/seconds.json. {RECORD}"


def test_the_sum_of_recorded_seconds_is_within_a_tenth_of_the_budget() -> None:
    sum_s = sum(seconds for test, seconds in SECONDS.items() if not is_long(test))
    assert sum_s <= 1.1 * budget_s(), (
        f"make slow grew from {budget_s():,} to {sum_s:,.0f} recorded seconds. Make tests cheaper, move what has a "
        "brother to tests/long.txt, or add a line to tests/BUDGET.md that says what the time buys."
    )


def test_each_pattern_of_long_tests_matches_a_test(request: pytest.FixtureRequest) -> None:
    collected = defaultdict[str, list[str]](list)  # by module
    for test in request.config.stash[COLLECTED]:
        collected[test.partition("::")[0]].append(test)
    for pattern in LONG:
        module = re.split(r"\*|::", pattern)[0]
        assert (TESTS.parent / module).exists(), f"tests/long.txt: {pattern} names no module"
        if module in collected:
            assert any(matches(pattern, test) for test in collected[module]), f"tests/long.txt: {pattern} names no test"


def budget_s() -> int:
    """Return the recorded seconds of the last line of the table."""
    lines = [line for line in (TESTS / "BUDGET.md").read_text(encoding="utf-8").splitlines() if line.startswith("| 2")]
    return int(lines[-1].split("|")[2].replace(",", ""))
