"""A pipeline with a raw table beside its own."""

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.support.audits import OLD
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event

DAY = timedelta(days=1)


VALUES: dict[int, bytes | None] = {
    0: event(0),
    1: event(1),
    2: None,
    3: b"\0\0\0\0\1cut",
    4: event(4, event_time=OLD),
    5: b"",
    6: event(6),
    7: event(1),
}


KEYS = {at: None if at == 6 else f"k{at}".encode() for at in VALUES}


HEADERS = {1: {"trace": b"\xff\0", "empty": b""}, 2: {"why": b"gone"}}


def start_writer(root: Path, form: str, **settings: Any) -> Driver:
    table = {"raw": {"location": str(root / "lake" / "clicks_raw"), **settings.pop("raw", {})}}
    driver = Driver(root, form, table=table, **settings)
    driver.start()
    return driver


def raw_records(driver: Driver) -> dict[int, dict[str, Any]]:
    """Return the raw records that readers see, by offset."""
    location = driver.settings.table.raw.location
    rows = driver.side(location).rows().to_table().to_pylist()
    records = {row["_offset"]: row for row in rows}
    assert len(records) == len(rows), "an offset is there twice"
    return records


def carry_values(driver: Driver, values: Mapping[int, bytes | None], **beside: Any) -> None:
    came = beside.pop("came", NOW)
    driver.carry([log(values, kafka_time=came, **beside)], {0: max(values) + 1})
