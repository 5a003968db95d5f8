"""Each command ends with an exit code that its help lists."""

from dataclasses import dataclass
from typing import Literal

import pytest
from rich.console import Console
from typer.testing import CliRunner

from headrace.writer.cli.main import app
from headrace.writer.core.errors import ExitCode
from headrace.writer.core.signals import SignalCode
from headrace.writer.output.report import Report
from tests.support.exit_codes import (
    ROWS,
    check,
    command_function,
    declared_codes,
    passes_code_on,
    returned_codes,
)

# Done; a crash, which any command may come to; a mistake in an option or in the configuration.
ANY_COMMAND = {ExitCode.DONE, ExitCode.CRASH, ExitCode.CONFIGURATION}
# A command runs what others run, and cannot come to all of their codes.
IMPOSSIBLE_CODES = {"shadow": {ExitCode.OCCUPIED: "it takes no lease"}}


@pytest.mark.parametrize("words", ROWS)
def test_help_lists_each_code_that_a_command_returns(words: str) -> None:
    codes = returned_codes(command_function(words))
    if codes is None:
        assert passes_code_on(words), "it returns int: say whose code it passes on, or use Literal"
    else:
        assert codes - IMPOSSIBLE_CODES.get(words, {}).keys() == codes & declared_codes(words)


@pytest.mark.parametrize("words", ROWS)
def test_help_lists_the_codes_of_any_command(words: str) -> None:
    assert declared_codes(words) >= ANY_COMMAND


@pytest.mark.parametrize("words", ROWS)
def test_only_a_command_that_returns_any_code_says_that_it_passes_one_on(words: str) -> None:
    assert passes_code_on(words) == (returned_codes(command_function(words)) is None)


@dataclass(frozen=True)
class Plain(Report):
    """A report without a code of its own."""


@dataclass(frozen=True)
class Limited(Report):
    """A report with codes of its own."""

    @property
    def exit_code(self) -> Literal[0, 5]:
        return 5

    def render(self, out: Console) -> None:
        out.print("limited")


@dataclass(frozen=True)
class Derived(Limited):
    """A report that has the codes of another."""


def _nothing() -> None: ...
def _any_code() -> int: ...
def _any_code_or_report() -> Plain | int: ...
def _plain() -> Plain: ...
def _two_reports() -> Plain | Limited: ...
def _derived() -> Derived: ...
def _code_or_signal() -> Literal[0, 1] | SignalCode: ...
def _report_or_process_code() -> Plain | ExitCode: ...


@pytest.mark.parametrize(
    ("function", "codes"),
    [
        (_nothing, {0}),
        (_any_code, None),
        (_any_code_or_report, None),
        (_plain, {0}),
        (_two_reports, {0, 5}),
        (_derived, {0, 5}),
        (_code_or_signal, {0, 1}),
        (_report_or_process_code, set(ExitCode)),
    ],
)
def test_the_type_that_a_command_returns_says_its_codes(function, codes) -> None:
    assert returned_codes(function) == codes


@pytest.mark.parametrize(("code", "is_listed"), [(0, True), (2, True), (4, False), (7, False), (143, True), (-9, True)])
def test_a_code_that_help_does_not_list_is_found(code: int, is_listed: bool) -> None:
    if is_listed:
        check(["audit", "pipelines.yaml"], code)
        return
    with pytest.raises(AssertionError, match=f"`headrace audit` ended with {code}"):
        check(["audit", "pipelines.yaml"], code)


def test_a_command_of_a_group_is_checked_by_its_own_codes() -> None:
    check(["dlq", "replay", "pipelines.yaml"], 1)
    with pytest.raises(AssertionError, match="`headrace dlq replay` ended with 6"):
        check(["dlq", "replay", "pipelines.yaml"], 6)
    # The code of a driver.
    check(["supervisor", "run", "pipelines.yaml"], 77)


def test_every_command_that_tests_invoke_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    function = command_function("limit")
    monkeypatch.setattr(function, "exits", {0: "shown"})
    with pytest.raises(AssertionError, match="`headrace limit` ended with 2"):
        CliRunner().invoke(app, ["limit", "no-such.yaml"])
