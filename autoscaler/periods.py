"""In which minutes nothing is scaled: cron expressions, by a wall clock."""

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from writer.errors import ConfigError


@lru_cache(maxsize=4096)
def _matches(expression: str, minute: datetime) -> bool:
    """Tell whether a minute is one of the expression's: the next after the one before it."""
    try:
        return next(CronSim(expression, minute - timedelta(minutes=1)), None) == minute
    except CronSimError as error:
        raise ConfigError(
            f"excluded {expression!r} is no cron expression of five fields, such as `* 9-17 * * MON-FRI`: {error}"
        ) from error


def check(expression: str) -> None:
    """Raise ConfigError for an expression that cannot be read."""
    _matches(expression, datetime(2026, 1, 1))  # noqa: DTZ001 - a wall clock


def period(expressions: Iterable[str], zone: str, now: datetime) -> str | None:
    """Return the first expression that holds at this instant. Raises ConfigError for one that cannot be read."""
    found = None
    for expression in expressions:
        # Without its zone a wall clock has no minute that is there twice, or is not there.
        minute = now.astimezone(ZoneInfo(zone)).replace(second=0, microsecond=0, tzinfo=None)
        if _matches(expression, minute):
            found = found or expression
    return found
