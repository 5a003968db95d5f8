"""Data of time zones as tests need them: any rule, as any version of the database."""

import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace import bucketers
from headrace.bucketers.zone_data import ZoneData

MEXICO = "America/Mexico_City"
HOURLY = {"type": "event_time", "width": timedelta(hours=1), "zone": MEXICO}
JULY = datetime(2023, 7, 15, 6, 30, tzinfo=UTC)
# Rules of Mexico until 2022, and since, as POSIX writes them.
SUMMER_TIME = "CST6CDT,M4.1.0,M10.5.0"
NO_SUMMER_TIME = "CST6"


def tzif(rule: str) -> bytes:
    """Return a compiled file (RFC 8536) of one rule for all times."""
    name = b"CST\0"
    header = struct.pack(">4sc15x6l", b"TZif", b"2", 0, 0, 0, 0, 1, len(name))
    body = struct.pack(">lbB", -6 * 3600, 0, 0) + name
    return (header + body) * 2 + f"\n{rule}\n".encode()


def zone_data(rule: str, version: str, zone: str = MEXICO) -> ZoneData:
    return ZoneData(zone, version, tzif(rule))


def label(bucket: Mapping[str, Any] = HOURLY, instant: datetime = JULY) -> str | None:
    """Return the label of the bucket of an instant, by the data of zones that this process has."""
    times = pa.array([instant], pa.timestamp("us", "UTC"))
    ((value,),) = bucketers.build(bucket).assign(pa.table({"x": [1]}), times).values
    return value


def write_zones(folder: Path, data: ZoneData) -> Path:
    """Write a folder as PYTHONTZPATH names it."""
    path = folder / data.zone
    path.parent.mkdir(parents=True)
    path.write_bytes(data.tzif)
    (folder / "tzdata.zi").write_text(f"# version {data.version}\n# This zic input file is in the public domain.\n")
    return folder


OLD = zone_data(SUMMER_TIME, "2022a")
NEW = zone_data(NO_SUMMER_TIME, "2026b")
