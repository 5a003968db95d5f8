"""Exponential backoff, and that nothing else in the product computes one."""

import re
from pathlib import Path

import pytest

from headrace.writer.core.backoff import Backoff

ROOT = Path(__file__).parents[2]
PACKAGES = ("writer", "recovery", "autoscaler")


def test_delays_double_from_the_first_to_the_limit_however_often_it_fails() -> None:
    backoff = Backoff(0.1, 5)
    assert [backoff.delay_s(attempt) for attempt in range(8)] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert backoff.delay_s(10_000) == 5


def test_a_draw_takes_off_no_more_than_the_jitter() -> None:
    backoff = Backoff(8, 60, jitter=0.5)
    assert [backoff.delay_s(0, draw) for draw in (0, 0.5, 1)] == [4, 6, 8]
    assert all(4 <= backoff.random_delay_s(0) <= 8 for _ in range(100))
    assert Backoff(8, 60, jitter=1).delay_s(3, 0) == 0


@pytest.mark.parametrize("wrong", [(0, 1, 0), (2, 1, 0), (1, 2, 1.5)])
def test_a_backoff_that_is_none_is_refused(wrong: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="a backoff must be positive"):
        Backoff(*wrong)


def test_no_module_computes_delays_of_its_own() -> None:
    own = re.compile(r"(pause|delay|rest|wait)\w* = min\((2 \*|\w+ \* 2)|# noqa: S311 - jitter")
    sources = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    found = [str(path) for path in sources if own.search(path.read_text(encoding="utf-8"))]
    assert found == [str(ROOT / "writer/core/backoff.py")]
