"""Facts of a commit, as the status records them."""

from tests.support import commits


def facts(**changes):
    account = {
        "topic": "clicks",
        "incarnation": 1,
        "partition": 0,
        "start": 0,
        "end": 10,
        "read": 9,
        "rows": 6,
        "dead_letters": 2,
        "quarantined": 1,
        "tombstones": 0,
    }
    return {
        **commits.facts(0, 10),
        "reason": "size",
        "ranges": [account],
        "files": 2,
        "bytes": 600,
        "dead_letter_bytes": 50,
        "spilled_bytes": 7,
        "seconds": {"decode": 0.5, "stage": 0.25},
        "event_time_max": "2026-11-20T11:00:00+00:00",
        "started": "2026-11-20T11:00:00+00:00",
        "assembled": "2026-11-20T11:00:00+00:00",
        **changes,
    }
