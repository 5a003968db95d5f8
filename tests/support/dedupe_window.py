"""A window within which rows of the same key are one."""

from datetime import UTC, datetime, timedelta

from tests.support.sample_records import NOW

BASE = NOW - timedelta(hours=10)


MUCH_LATER = datetime.now(UTC) + timedelta(days=3_650)  # no bucket rests


WINDOW = {"key": ["id"], "window": "3 h"}


def bucket(hour: int) -> tuple[str]:
    return (f"{BASE + timedelta(hours=hour):%Y-%m-%dT%H}",)
