"""One line of `headrace validate`: the check, its result, and the fix."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

Status = Literal["ok", "warning", "failed", "not_checked"]
MARKS: Final[Mapping[Status, str]] = MappingProxyType({"ok": "✓", "warning": "!", "failed": "✗", "not_checked": "-"})
PLAIN_MARKS: Final[Mapping[Status, str]] = MappingProxyType({**MARKS, "ok": "+", "failed": "x"})  # without Unicode


@dataclass(frozen=True)
class Finding:
    """The result of one check. Each failure has a `fix`, and so has each warning that needs one."""

    check: str
    status: Status
    message: str
    fix: str = ""
    pipeline: str | None = None

    def document(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        found = asdict(self)
        return {name: found[name] for name in ("check", "pipeline", "status", "message", "fix")}


def good(check: str, message: str) -> Finding:
    """As it should be."""
    return Finding(check, "ok", message)


def doubtful(check: str, message: str, fix: str = "") -> Finding:
    """The writer runs, but a person should know."""
    return Finding(check, "warning", message, fix)


def wrong(check: str, message: str, fix: str) -> Finding:
    """The writer would not run, or would write nothing but dead letters."""
    return Finding(check, "failed", message, fix)


def failure(check: str, error: Exception) -> Finding:
    """Split an error's sentence into the problem and the fix at its end."""
    text = str(error)
    for mark in (". ", "; "):
        what, found, fix = text.rpartition(mark)
        if found:
            return wrong(check, what, f"{fix[0].upper()}{fix[1:].removesuffix('.')}.".replace("?.", "?"))
    return wrong(check, text, "")


def skipped(check: str, why: str) -> Finding:
    """A check that did not run, because another failed or because it was not requested."""
    return Finding(check, "not_checked", f"not checked: {why}")
