"""What a pipeline's tables hold and which gaps are open, read again and again beside a writer."""

import json
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.clients.kafka import BrokerUnreachable
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.driver.table_watch import TableWatch
from headrace.writer.status import from_table
from headrace.writer.status.model import View
from headrace.writer.status.progress import Progress
from headrace.writer.status.table_facts import GapFacts, TableContents, TableFactsReader
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.web.endpoints import FRESH_STATUS, answer
from tests.support.backfill_gaps import fill_from_archives, skip_offsets, values, write_archive
from tests.support.local_driver import Driver, log

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


def view_of_lake(driver: Driver) -> View:
    return from_table.view("clicks", driver.config, BrokerUnreachable("no Kafka broker answers"), NOW)


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


def test_a_count_is_as_old_as_the_last_look_by_the_clock_that_measures(driver: Driver) -> None:
    clock = Clock()
    reader = TableFactsReader("clicks", driver.config, clock)
    snapshot = reader.snapshot()
    assert reader.contents(snapshot, NOW).counted_at == NOW
    clock.s += 10
    day = timedelta(days=1)
    contents = reader.contents(snapshot, NOW - day)
    assert contents.counted_at == NOW - day - timedelta(seconds=12), "the wall clock was set back meanwhile"
    clock.s += 60
    assert reader.contents(snapshot, NOW + day).counted_at == NOW + day, "the tables are as they were"


def keep_broken_ledger(tmp_path: Path) -> Driver:
    """Return a driver whose table has an open gap, and a page of the ledger that nobody can read."""
    driver = Driver(tmp_path, interval=5)
    driver.start()
    driver.carry([log(values(0, 20))], {0: 20})
    skip_offsets(driver, 60)
    driver.start()
    for end in range(70, 120, 10):
        driver.carry([log(values(60, end))], {0: end})
    pages = list(Path(driver.lake).glob("_headrace/ledger/*/*.json"))
    assert pages
    for page in pages:
        page.write_text("{}")
    return driver


def test_a_ledger_that_cannot_be_read_hides_only_the_records_of_gaps(tmp_path: Path) -> None:
    driver = keep_broken_ledger(tmp_path)
    view = view_of_lake(driver)
    assert (view.state, (view.gaps.open, view.gaps.offsets), view.gaps.records) == ("unknown", (1, 40), None)
    assert "Use the one that wrote it" in view.error
    assert view.contents is not None
    progress = Progress("clicks")
    TableWatch("clicks", driver.config, progress).read()
    shown = progress.view()
    assert (shown.gaps.open, shown.gaps.offsets, shown.gaps.records) == (1, 40, None)
    assert shown.contents is not None
    assert shown.contents.rows == view.contents.rows


def test_dead_letters_that_cannot_be_read_hide_only_the_counts(driver: Driver) -> None:
    driver.carry([log(values(0, 20))], {0: 20})
    for entry in Path(driver.side(driver.dead_letters).location).glob("_delta_log/*.json"):
        entry.write_text("no entry")
    view = view_of_lake(driver)
    assert (view.state, view.contents, len(view.commits)) == ("unknown", None, 1)
    assert driver.dead_letters in view.error


def test_a_watch_that_cannot_read_says_so_once(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    progress = Progress("clicks")
    watch = TableWatch("clicks", driver.config, progress)
    log_folder = Path(driver.lake) / "_delta_log"
    log_folder.rename(log_folder.with_name("away"))
    for _ in range(2):
        watch.read_or_log()
    log_folder.with_name("away").rename(log_folder)
    watch.read_or_log()
    events = [line for line in caplog.messages if "table_facts" in line]
    assert ["failed" in event for event in events] == [True, False]
    assert progress.view().contents is not None


class HangingReader(TableFactsReader):
    """Reads from a storage that does not answer until a test lets it."""

    def __init__(self, driver: Driver) -> None:
        super().__init__("clicks", driver.config)
        self.is_asked = threading.Event()
        self.may_answer = threading.Event()

    def snapshot(self) -> PipelineSnapshot:
        self.is_asked.set()
        assert self.may_answer.wait(60)
        return super().snapshot()


def test_a_stop_does_not_wait_for_a_storage_that_hangs_and_shows_nothing_that_comes_later(driver: Driver) -> None:
    progress = Progress("clicks")
    reader = HangingReader(driver)
    watch = TableWatch("clicks", driver.config, progress)
    watch._reader = reader
    watch.start()
    assert reader.is_asked.wait(60)
    began_s = time.monotonic()
    watch.close()
    assert time.monotonic() - began_s < 1
    reader.may_answer.set()
    assert watch._thread.close(60)
    assert progress.view().contents is None


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


def status_of(progress: Progress, path: str) -> dict[str, Any]:
    _, _, body = answer(path, "", {"clicks": progress}, datetime.now(UTC))
    pipeline: dict[str, Any] = json.loads(body)["pipelines"]["clicks"]
    return pipeline


def test_a_gap_that_was_filled_is_gone_from_the_next_status_that_a_person_asks_for(
    driver: Driver, tmp_path: Path
) -> None:
    driver.carry([log(values(0, 20))], {0: 20})
    skip_offsets(driver, 60)
    progress = Progress("clicks")
    watch = TableWatch("clicks", driver.config, progress)
    watch.start()
    try:
        shown = status_of(progress, FRESH_STATUS)
        assert (shown["gaps"]["count"], shown["gaps"]["offsets"]) == (1, 40)
        rows = shown["table"]["rows"]
        fill_from_archives(driver, write_archive(tmp_path, values(20, 60)))
        shown = status_of(progress, FRESH_STATUS)
        assert (shown["gaps"]["count"], shown["gaps"]["offsets"]) == (0, 0)
        assert shown["gaps"]["age_seconds"] < 60
        assert driver.table.rows().count_rows() > rows
        assert status_of(progress, "/status")["gaps"]["count"] == 0, "and from those that others ask for"
    finally:
        watch.close()


def test_a_status_does_not_wait_long_for_a_storage_that_hangs(driver: Driver) -> None:
    progress = Progress("clicks")
    progress.set(gaps=GapFacts(1, 40, read_at=datetime.now(UTC) - timedelta(minutes=10)))
    reader = HangingReader(driver)
    watch = TableWatch("clicks", driver.config, progress)
    watch._reader = reader
    watch.start()
    try:
        began_s = time.monotonic()
        gaps = status_of(progress, FRESH_STATUS)["gaps"]
        assert time.monotonic() - began_s < 1.9, "`headrace status` waits two seconds"
        assert gaps["count"] == 1
        assert gaps["age_seconds"] >= 600
    finally:
        reader.may_answer.set()
        watch.close()
