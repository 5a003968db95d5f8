"""What audits are made of, and what one said, for tests of it."""

from datetime import timedelta
from pathlib import Path

import pytest

from headrace.writer.audit.audit import Audit, audit
from headrace.writer.core.offsets import TopicPartition
from tests.support.local_driver import Driver
from tests.support.sample_records import NOW, event

OLD = NOW - timedelta(days=400)


P0 = TopicPartition("clicks", 1, 0)


def mixed_values(start: int, end: int) -> dict[int, bytes | None]:
    """Of ten records one is a tombstone, one is cut, one is too old."""
    kinds = {3: None, 5: b"\0\0\0\0\1cut", 7: None}
    return {
        offset: kinds[offset % 10]
        if offset % 10 in (3, 5)
        else event(offset, event_time=OLD if offset % 10 == 7 else None)
        for offset in range(start, end)
    }


@pytest.fixture
def form() -> str:
    """Format of the tables, where a test does not choose."""
    return "delta"


@pytest.fixture
def driver(tmp_path: Path, form: str) -> Driver:
    new_driver = Driver(tmp_path, form)
    new_driver.start(2)
    return new_driver


def run_audit(driver: Driver, since=None, *, deep: bool = True) -> Audit:
    return audit(driver.config, "clicks", since=since, deep=deep)


def describe_problems(audit_result: Audit) -> str:
    return "; ".join(f"{p.description} {p.part} {p.spans}" for p in audit_result.problems)
