"""What a time of Kafka's becomes in a table."""

from datetime import UTC, datetime, timedelta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def expected_instant(number: int, per_second: int = 1_000) -> datetime | None:
    """Compute an instant by Python's integers and its calendar."""
    seconds, remainder = divmod(number, per_second)
    micros = remainder * 1_000_000 // per_second
    try:
        instant = EPOCH + timedelta(seconds=seconds, microseconds=micros)
    except OverflowError:
        return None
    return None if (seconds, micros) == (-1, 999_000) else instant
