"""One line of `headrace validate`: the check, its result, and the fix."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, Literal

Status = Literal["ok", "warning", "failed", "not_checked"]
MARKS: Final[Mapping[Status, str]] = MappingProxyType({"ok": "✓", "warning": "!", "failed": "✗", "not_checked": "-"})
# For a terminal without Unicode.
PLAIN_MARKS: Final[Mapping[Status, str]] = MappingProxyType({**MARKS, "ok": "+", "failed": "x"})


@dataclass(frozen=True)
class Finding:
    """The result of one check. Each failure has a `fix`, and so has each warning that needs one."""

    check: str
    status: Status
    message: str
    fix: str = ""
    pipeline: str | None = None


def good(check: str, message: str) -> Finding:
    """Return the finding that all is as it should be."""
    return Finding(check, "ok", message)


def doubtful(check: str, message: str, fix: str = "") -> Finding:
    """Return the finding that the writer runs, but a person should know."""
    return Finding(check, "warning", message, fix)


def wrong(check: str, message: str, fix: str) -> Finding:
    """Return the finding that the writer would not run, or would write nothing but dead letters."""
    return Finding(check, "failed", message, fix)


def failure(check: str, error: Exception) -> Finding:
    """Return an error as a finding: its sentence is split into the problem and the fix at its end."""
    text = str(error)
    for mark in (". ", "; "):
        problem, separator, fix = text.rpartition(mark)
        if separator:
            return wrong(check, problem, f"{fix[0].upper()}{fix[1:].removesuffix('.')}.".replace("?.", "?"))
    return wrong(check, text, "")


def not_checked(check: str, why: str) -> Finding:
    """Return the finding of a check that did not run: another failed, or it was not requested."""
    return Finding(check, "not_checked", f"not checked: {why}")
