"""Rows of a table from before headrace."""

from datetime import timedelta
from typing import Any

import pyarrow as pa

from tests.support.sample_records import NOW

HOUR = timedelta(hours=1)


def old_rows(**more: Any) -> pa.Table:
    """Six rows of three hours, as a plain job writes them."""
    times = [NOW - n % 3 * HOUR for n in range(6)]
    return pa.table(
        {
            "id": pa.array(range(1000, 1006), pa.int64()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
            "note": ["old"] * 6,
            "legacy": [1] * 6,
            "hour": [f"{time:%Y-%m-%dT%H}" for time in times],
            **more,
        }
    )
