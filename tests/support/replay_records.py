"""Records that become dead letters, and the schemas that read them later."""

from datetime import timedelta

from tests.support.sample_records import EVENT, NOW, WIDER, Schemas, event, value
from writer.maintenance.dead_letters.selection import Selection

ALL = Selection()


FUTURE = NOW + timedelta(days=3)


def wider_value(number: int) -> bytes:
    return value(2, WIDER, {"id": number, "at": NOW, "note": None, "extra": number})


def mixed_values(start: int, end: int) -> dict[int, bytes | None]:
    """Of ten records one has a schema that is not known yet, one is from the future, one is cut for good."""
    made: dict[int, bytes | None] = {at: event(at) for at in range(start, end)}
    for at in range(start, end):
        if at % 10 == 2:
            made[at] = wider_value(at)
        elif at % 10 == 4:
            made[at] = event(at, event_time=FUTURE)
        elif at % 10 == 6:
            made[at] = b"\0\0\0\0\1cut"
    return made


BOTH_SCHEMAS = Schemas({1: EVENT, 2: WIDER}, [1])
