"""A time at which a vacuum finds files old enough."""

from datetime import UTC, datetime, timedelta


def days_ahead(days: float = 8) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)
