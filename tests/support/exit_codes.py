"""Holds the codes that commands end with against those that they declare."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from importlib import import_module
from typing import Any, Literal, get_args, get_origin, get_type_hints

from typer.testing import Result

from headrace.writer.cli.commands import COMMANDS, Command
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.signals import SignalCode
from headrace.writer.output.command import outcome_kinds
from headrace.writer.output.report import Report

# A code above it is that of a signal, and goes without saying.
_SIGNAL_CODES = 128


def _rows() -> Iterator[tuple[str, Command]]:
    for entries in COMMANDS.values():
        for entry in entries:
            if isinstance(entry, Command):
                yield entry.name, entry
            else:
                yield from ((f"{entry.name} {row.name}", row) for row in entry.commands)


# The commands by their words, such as `dlq list`.
ROWS: Mapping[str, Command] = dict(_rows())


def command_function(words: str) -> Callable[..., Any]:
    """Return the function of a command."""
    module, _, name = ROWS[words].function.partition(":")
    function: Callable[..., Any] = getattr(import_module(module), name)
    return function


def declared_codes(words: str) -> frozenset[int]:
    """Return the exit codes that the help of a command lists."""
    return frozenset(command_function(words).exits)  # type: ignore[attr-defined]


def passes_code_on(words: str) -> bool:
    """Return whether the help of a command says that it passes the code of another program on."""
    return "An exit code that is not listed below is that of" in str(command_function(words).__doc__)


def returned_codes(function: Callable[..., Any]) -> frozenset[int] | None:
    """Return the exit codes of what a command returns, by its types; None: any code."""
    codes = [_codes(kind) for kind in outcome_kinds(inspect.unwrap(function))]
    return None if None in codes else frozenset[int]().union(*(kind_codes for kind_codes in codes if kind_codes))


def _codes(kind: Any) -> frozenset[int] | None:
    """Return the exit codes that a type stands for; None: any."""
    if kind is int:
        return None
    if kind is None:
        return frozenset({0})
    if kind is SignalCode:
        return frozenset()
    if get_origin(kind) is Literal:
        return frozenset(get_args(kind))
    if issubclass(kind, Report):
        # A report without a code of its own ends with 0.
        is_inherited = kind.exit_code is Report.exit_code
        return frozenset({0}) if is_inherited else _codes(get_type_hints(kind.exit_code.fget)["return"])
    assert issubclass(kind, Enum), f"{kind} says nothing of exit codes"
    return frozenset(kind)


def check(arguments: Sequence[str], code: int) -> None:
    """Hold the code that a command ended with against those that it declares."""
    words = " ".join(arguments[:2])
    if words not in ROWS:
        words = arguments[0] if arguments else ""
    if words not in ROWS or code > _SIGNAL_CODES or code < 0 or passes_code_on(words):
        return
    assert code in declared_codes(words), f"`headrace {words}` ended with {code}, which its help does not list"


def check_result(arguments: Sequence[str], result: Result) -> None:
    """Hold the end of a command in this process against what it declares. Another error than of headrace is no code."""
    if isinstance(result.exception, HeadraceError):
        check(arguments, result.exception.exit_code)
    elif result.exception is None or isinstance(result.exception, SystemExit):
        check(arguments, result.exit_code)
