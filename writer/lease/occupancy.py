"""Refuses a run by hand while a supervisor renews the lease of its pipeline.

The run would fence the supervisor's driver. That loses nothing, but it stops what the supervisor keeps going. No clocks
are compared: the run watches whether the lease changes, as a candidate for it does.
"""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta

from writer.core import logging
from writer.core.errors import Occupied
from writer.lease.lease import LeaseRecord, ObservedLease, is_free, observe

# Reads a lease; None: it was never taken. Raises OSError.
Look = Callable[[], LeaseRecord | None]
_LOOK_S = 0.5


def check_unoccupied(looks: Mapping[str, Look], expires_after: timedelta) -> None:
    """Return once no pipeline's lease is held by a living process. `looks`: by pipeline.

    A lease that was not released blocks for `expires_after`: its holder may have died. One that cannot be read blocks
    nothing, as the table fences its other writer in any case. Raises Occupied when a holder renews its lease.
    """
    observed = dict[str, ObservedLease]()
    awaited = dict(looks)
    while awaited:
        for pipeline in list(awaited):
            if _is_free(pipeline, awaited[pipeline], observed, expires_after):
                del awaited[pipeline]
        if awaited:
            time.sleep(_LOOK_S)


def _is_free(pipeline: str, look: Look, observed: dict[str, ObservedLease], expires_after: timedelta) -> bool:
    """Look at a lease once more. Raises Occupied."""
    try:
        record = look()
    except OSError as error:
        logging.warning("lease_unreadable", pipeline=pipeline, error=str(error))
        return True
    before = observed.get(pipeline)
    now_s = time.monotonic()
    lease = observe(before, record, now_s)
    observed[pipeline] = lease
    if is_free(lease, now_s, expires_after):
        return True
    assert record is not None, "a lease that was never taken is free"
    if before is None:
        logging.event("lease_awaited", pipeline=pipeline, holder=record.holder, reason="its holder may have ended")
    elif lease is not before:
        raise Occupied(_refusal(pipeline, record))
    return False


def _refusal(pipeline: str, record: LeaseRecord) -> str:
    return (
        f"supervisor {record.holder} runs pipeline {pipeline!r} and renews its lease. Stop it first, or take the "
        "pipeline over with `headrace run --take-over`: the supervisor's driver then ends with exit 4."
    )
