"""How fast records come and are committed, both over one window, and how long the rest takes at these rates. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from headrace.writer.status.lag_sample import LagSample
from headrace.writer.status.model import Commit, View

RATE_WINDOW = timedelta(minutes=1)


@dataclass(frozen=True)
class Rates:
    """Offsets per second over `window`; None where it is not known, or no driver runs."""

    window: timedelta
    arriving_per_s: float | None = None
    committed_per_s: float | None = None
    # Until nothing waits at these rates; None: it is not behind, or does not catch up.
    catch_up_seconds: float | None = None


def rates(view: View, lag: LagSample, now: datetime) -> Rates:
    """Return the rates of a pipeline that a driver runs. The window is a minute, or kafka.lag_interval if longer."""
    window = max(RATE_WINDOW, lag.interval)
    if view.state not in ("starting", "running", "paused", "draining"):
        return Rates(window)
    arriving = lag.arriving_per_s(window.total_seconds()) if lag.is_fresh(now) else None
    committed = committed_per_s(view.commits, now, window)
    catch_up = None
    # A batch that is held catches up with nothing, however fast the ones before it were.
    is_held = view.pause is not None or view.registry_wait is not None
    is_behind = (lag.seconds or 0.0) > (view.limits.get("delay_max_seconds") or 0.0)
    if is_behind and not is_held and lag.offsets and arriving is not None and committed > arriving:
        catch_up = lag.offsets / (committed - arriving)
    return Rates(window, arriving, committed, catch_up)


def committed_per_s(commits: Sequence[Commit], now: datetime, window: timedelta) -> float:
    """Return the mean of the window that ends now. `commits`: newest first.

    Of several commits in it the oldest only marks where the mean begins, so that a drain is not spread over the quiet
    time before it.
    """
    recent = [commit for commit in commits if commit.at >= now - window]
    if len(recent) < 2:  # noqa: PLR2004 - a span has two ends
        return sum(commit.offsets for commit in recent) / window.total_seconds()
    seconds = (now - recent[-1].at).total_seconds()
    return sum(commit.offsets for commit in recent[:-1]) / seconds if seconds > 0 else 0.0
