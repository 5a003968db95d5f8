"""Records that become dead letters, and the schemas that read them later."""

from datetime import timedelta

from headrace.writer.maintenance.dead_letters.selection import Selection
from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, event, value

ALL = Selection()


FUTURE = NOW + timedelta(days=3)


def wider_value(number: int) -> bytes:
    return value(2, WIDER, {"id": number, "at": NOW, "note": None, "extra": number})


def mixed_values(start: int, end: int) -> dict[int, bytes | None]:
    """Of ten records one has a schema that is not known yet, one is from the future, one is cut for good."""
    values: dict[int, bytes | None] = {offset: event(offset) for offset in range(start, end)}
    for offset in range(start, end):
        if offset % 10 == 2:
            values[offset] = wider_value(offset)
        elif offset % 10 == 4:
            values[offset] = event(offset, event_time=FUTURE)
        elif offset % 10 == 6:
            values[offset] = b"\0\0\0\0\1cut"
    return values


BOTH_SCHEMAS = Schemas({1: EVENT, 2: WIDER}, [1])
