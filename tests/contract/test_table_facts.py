"""What a pipeline's tables hold and which gaps are open, read again and again beside a writer."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.backfill_gaps import skip_offsets, values
from tests.support.local_driver import Driver, log
from writer.core.offsets import TopicPartition
from writer.status.table_facts import GapFacts, TableContents, TableFactsReader

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)


class Clock:
    """Seconds that a test moves; each question takes one."""

    def __init__(self) -> None:
        self.s = 0.0

    def __call__(self) -> float:
        self.s += 1.0
        return self.s


def counted(reader: TableFactsReader) -> TableContents:
    return reader.contents(reader.snapshot(), NOW)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    driver = Driver(tmp_path)
    driver.start()
    return driver


def test_rows_and_dead_letters_are_those_of_the_files(driver: Driver) -> None:
    reader = TableFactsReader("clicks", driver.config, clock=lambda: 0.0)
    empty = counted(reader)
    assert (empty.rows, empty.files, empty.bytes, empty.dead_letters) == (0, 0, 0, 0)
    driver.carry([log(values(0, 20))], {0: 20})
    first = counted(reader)
    rows = driver.table.rows().count_rows()
    dead_letters = driver.side(driver.dead_letters).rows().count_rows()
    assert (first.rows, first.dead_letters) == (rows, dead_letters)
    assert rows > 0
    assert dead_letters > 0
    assert (first.files, first.counted_at) == (len(driver.table.bucket_files(driver.table.snapshot())), NOW)


def test_files_are_listed_with_pauses(driver: Driver) -> None:
    clock = Clock()
    reader = TableFactsReader("clicks", driver.config, clock)
    assert counted(reader).rows == 0
    driver.carry([log(values(0, 20))], {0: 20})
    assert counted(reader).rows == 0, "the first listing took a second, so fifty are a pause"
    clock.s += 60
    assert counted(reader).rows


def test_a_gap_is_gone_at_once_when_it_ends(driver: Driver) -> None:
    reader = TableFactsReader("clicks", driver.config)
    driver.carry([log(values(0, 20))], {0: 20})
    skip_offsets(driver, 60)
    gaps = reader.gaps(reader.snapshot())
    assert (gaps.open, gaps.offsets) == (1, 40)
    part = TopicPartition("clicks", 1, 0)
    assert gaps.unfilled == {part: ((20, 60),)}
    assert gaps.offsets_in_kafka({"clicks": 1}, {("clicks", 0): 30}, {("clicks", 0): 500}) == 30
    assert gaps.offsets_in_kafka({"clicks": 2}, {("clicks", 0): 0}, {("clicks", 0): 500}) == 0, "another incarnation"
    assert gaps.offsets_in_kafka({"clicks": 1}, {}, {}) is None, "Kafka was not asked"
    assert GapFacts(1, 40).offsets_in_kafka({"clicks": 1}, {("clicks", 0): 0}, {("clicks", 0): 500}) is None
