"""How far this machine's clock is from a server's, which is a common reason why tokens are refused."""

from collections.abc import Mapping
from email.utils import parsedate_to_datetime

# A clock that is nearer is no reason: servers allow as much, and an answer takes its time.
SKEW_MIN_S = 30


def measure_skew(headers: Mapping[str, str], asked_s: float) -> float | None:
    """Return by how much this machine's clock is ahead, in seconds; None where the answer has no date.

    `headers`: of the answer, with names in lower case. `asked_s`: when it was asked for, by this machine's clock.
    """
    try:
        return asked_s - parsedate_to_datetime(headers["date"]).timestamp()
    except (LookupError, TypeError, ValueError, OverflowError):
        return None


def skew_text(skew_s: float | None, server: str) -> str:
    """Say how far the clocks are from each other, where it may be a reason; else nothing. Begins with a blank."""
    if skew_s is None or abs(skew_s) < SKEW_MIN_S:
        return ""
    direction = "ahead of" if skew_s > 0 else "behind"
    return f" This machine's clock is {abs(skew_s):.0f} s {direction} that of {server}: set it right."
