"""What care does to sealed buckets: a delete is told by the next manifest, retention ends them, a pause waits."""

from datetime import datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from headrace import bucketers
from headrace.writer.audit.audit import audit
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.cli.maintain import table_adopt
from headrace.writer.driver.sealing.rounds import Rounds
from headrace.writer.driver.sealing.steps import seal_due
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.retention import MARK, Retention
from headrace.writer.sealing.manifest import FOLDER
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.status.pause import Pause
from headrace.writer.status.progress import Progress
from headrace.writer.table.log.operations.seals import Closing
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, config, event

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
HOURS = bucketers.build({"type": "event_time", "width": HOUR, "zone": "UTC"})
ELEVEN = ("2026-11-20T11",)


@pytest.fixture
def driver(form: str, tmp_path: Path) -> Driver:
    """Ten rows in each of three hours, all sealed."""
    new_driver = Driver(tmp_path, form)
    new_driver.start()
    new_driver.carry([log({n: event(n // 3, event_time=NOW - n % 3 * HOUR) for n in range(30)})], {0: 30})
    new_driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), new_driver.table.snapshot())
    seal_due(Sealer("clicks", new_driver.config), NOW + DAY)
    return new_driver


def test_a_delete_is_told_by_the_next_manifest_of_each_bucket_that_it_reached(driver: Driver) -> None:
    sealer = Sealer("clicks", driver.config)
    assert {m.bucket: (m.version, m.rows) for m in sealer.manifests.all()}[ELEVEN] == (1, 10)
    run_deletion(driver.config, DeletionRequest("clicks", where("id = 3"), NOW), driver.schemas, write=True)
    assert {value.bucket for value in sealer.follow().unsealed.buckets.values()} >= {ELEVEN}
    seal_due(sealer, datetime.now(NOW.tzinfo) + DAY)
    newest = {m.bucket: m for m in sealer.manifests.all()}
    assert (newest[ELEVEN].version, newest[ELEVEN].rows, newest[ELEVEN].added) == (2, 9, -1)
    assert sealer.follow().unsealed.buckets == {}
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_retention_ends_a_sealed_bucket_and_its_manifests_stay(driver: Driver) -> None:
    list(Retention(driver.table, HOURS, 2 * HOUR).run(NOW + HOUR))
    sealer = Sealer("clicks", driver.config)
    assert sealer.follow().unsealed.buckets == {}
    version = driver.table.snapshot().version
    seal_due(sealer, NOW + 2 * DAY)
    assert driver.table.snapshot().version == version, "nothing is left to seal"
    gone = ("2026-11-20T10",)
    assert sealer.manifests.versions(gone) == [1]
    assert driver.table.store.read(f"{FOLDER}/hour={gone[0]}/{MARK}") is not None


def test_a_paused_pipeline_neither_closes_nor_seals_and_then_does(driver: Driver) -> None:
    driver.carry([log({30: event(1, event_time=NOW)})], {0: 31})
    calls: list[datetime] = []
    progress = Progress("clicks")
    rounds = Rounds(Sealer("clicks", driver.config), {"step": lambda _, now: calls.append(now)}, progress)
    progress.set(pause=Pause("2026-11-20T12:00:00+00:00", "ada@ops", ""))
    rounds.once()
    assert calls == []
    assert progress.view().bucket_counts is not None, "it goes on saying how the buckets are"
    progress.set(pause=None)
    rounds.once()
    assert len(calls) == 1


def test_the_old_buckets_of_a_table_that_was_taken_over_are_sealed_as_any(tmp_path: Path) -> None:
    times = [NOW - n % 2 * HOUR for n in range(6)]
    old = pa.table(
        {
            "id": pa.array(range(6), pa.int64()), "at": pa.array(times, pa.timestamp("us", "UTC")),
            "hour": [f"{time:%Y-%m-%dT%H}" for time in times],
        }
    )  # fmt: skip
    write_deltalake(str(tmp_path / "lake" / "clicks"), old, partition_by=["hour"])
    settings = config(tmp_path, start="earliest")
    table_adopt.run_adopt(settings, "clicks", write=True, now=NOW)
    driver = Driver(tmp_path, start="earliest")
    driver.start()
    driver.carry([log({n: event(n, event_time=NOW) for n in range(4)})], {0: 4})
    driver.table.append(Closing("c", NOW + DAY, {"reason": "command"}), driver.table.snapshot())
    sealer = Sealer("clicks", driver.config)
    seal_due(sealer, NOW + DAY)
    assert {m.bucket: m.rows for m in sealer.manifests.all()} == {ELEVEN: 3, ("2026-11-20T12",): 7}
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
