"""The exit code of an error, and of a process whose pipelines end differently."""

import pytest

from headrace.writer.core.errors import (
    CheckpointUnusable,
    ConfigError,
    ExitCode,
    Fenced,
    LimitReached,
    Occupied,
    exit_code,
    most_severe,
)


def test_an_error_says_its_code_and_what_headrace_does_not_know_is_a_crash() -> None:
    errors = (RuntimeError, LimitReached, ConfigError, CheckpointUnusable, Occupied, Fenced)
    codes = [exit_code(None), *(exit_code(error("x")) for error in errors)]
    assert codes == list(ExitCode) == [0, 1, 5, 2, 3, 6, 4]
    assert (ExitCode(137), ExitCode(-9), f"{ExitCode.FENCED}") == (ExitCode.CRASH, ExitCode.CRASH, "4")


@pytest.mark.parametrize(
    ("codes", "worst"),
    [([], 0), ([0, 0], 0), ([0, 1], 1), ([1, 5], 5), ([5, 2], 2), ([3, 2], 3), ([4, 3], 4), ([137], 1)],
)
def test_the_most_severe_code_is_that_of_the_process(codes: list[int], worst: int) -> None:
    assert most_severe(codes) == most_severe(reversed(codes)) == worst
