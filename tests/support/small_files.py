"""A table with many small files, and its compaction."""

from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

from headrace.writer.maintenance.compaction.compactor import CompactionResult, Compactor, here
from headrace.writer.table.log.operations.seals import Closing
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, value

HOUR = NOW.replace(minute=0) - timedelta(hours=1)


BUCKET = (f"{HOUR:%Y-%m-%dT%H}",)


def fill_table(root: Path, form: str, commits: int = 6, **settings: Any) -> Driver:
    """Commits of ten events each, all in one hour; an id comes twice in each commit, and in the next again."""
    driver = Driver(root, form, **settings)
    driver.start()
    for n in range(commits):
        carry(driver, n)
    return driver


def carry(driver: Driver, n: int) -> None:
    values = {10 * n + i: value(1, EVENT, row(10 * n + i, i)) for i in range(10)}
    driver.carry([log(values)], {0: 10 * n + 10})


def row(offset: int, i: int) -> dict[str, Any]:
    return {"id": (offset - i) // 10 * 8 + i, "at": HOUR + timedelta(seconds=offset % 3600), "note": None}


def compactor(driver: Driver) -> Compactor:
    return Compactor("clicks", driver.settings, driver.table, driver.config.stores)


def compact_bucket(driver: Driver) -> list[CompactionResult]:
    snapshot = driver.table.snapshot()
    bucket_compactor = compactor(driver)
    pieces = bucket_compactor.plan(snapshot, [BUCKET], open_too=True)[BUCKET]
    return list(bucket_compactor.carry_out(snapshot, pieces, here))


def close(driver: Driver) -> None:
    """Close the bucket, as the watermark does."""
    closing = Closing(uuid4().hex, HOUR + timedelta(hours=1), {"reason": "watermark"})
    driver.table.append(closing, driver.table.snapshot())


def offsets(driver: Driver) -> list[int]:
    """What a reader finds."""
    return sorted(driver.table.rows().to_table(columns=["_offset"]).column("_offset").to_pylist())


def files(driver: Driver) -> int:
    return len(driver.table.bucket_files(driver.table.snapshot(), BUCKET))
