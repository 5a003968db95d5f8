"""A raw table fills the gaps of another table with the same records, and only of the same topics."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.recovery.backfill import source_factory
from headrace.recovery.backfill.fill_gaps import BackfillRequest, GapOutcome, fill_gaps
from headrace.recovery.backfill.source import SourceFailed
from headrace.writer.cli.fix.delete_rows import run_deletion
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.maintenance.deletion.pipeline_deletion import DeletionRequest
from headrace.writer.maintenance.deletion.row_keys import where
from headrace.writer.maintenance.record_commit import RecordTable
from tests.support.audits import describe_problems, run_audit
from tests.support.backfill_gaps import Silent, skip_offsets
from tests.support.local_driver import Driver, log
from tests.support.raw_table import DAY, HEADERS, KEYS, VALUES, carry_values, raw_records, start_writer
from tests.support.sample_records import NOW, event


def brought(driver: Driver, place: str, rows_max: int = 500_000) -> list[GapOutcome]:
    """Fill the gaps of a table from a raw table."""
    filling = RecordTable("clicks", driver.config, driver.schemas)
    wish = BackfillRequest(rows_max=rows_max, by="ann")
    return fill_gaps(filling, lambda _: [source_factory.raw(filling, place)], wish, Silent())


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_gap_is_filled_from_the_raw_table_of_an_earlier_table(tmp_path: Path, form: str) -> None:
    before = start_writer(tmp_path / "before", form)
    carry_values(before, VALUES, headers=HEADERS, keys=KEYS)
    carry_values(before, {n: event(n) for n in range(8, 12)}, came=NOW + DAY)
    carry_values(before, {n: event(n) for n in range(12, 15)})
    run_deletion(before.config, DeletionRequest("clicks", where("id = 9"), NOW), before.schemas, write=True)
    table = {"location": str(tmp_path / "lake" / "clicks"), "raw": str(tmp_path / "lake" / "clicks_raw")}
    driver = Driver(tmp_path, form, table=table, limits={"max_failed_ratio": 1})
    driver.start()
    skip_offsets(driver, 14)
    driver.start()
    driver.carry([log({14: event(14)})], {0: 15})
    (outcome,) = brought(driver, before.settings.table.raw.location, rows_max=3)
    assert [(r.start, r.end) for r in outcome.absent.ranges()] == [(9, 10)], "what was deleted does not come back"
    assert sorted(raw_records(driver)) == [n for n in range(15) if n != 9]
    theirs = raw_records(before)
    assert {offset: {**row, "day": ""} for offset, row in raw_records(driver).items()} == {
        offset: {**row, "day": ""} for offset, row in theirs.items()
    }
    seen = run_audit(driver)
    assert seen.adds_up, describe_problems(seen)
    assert (seen.reconciliation.total("tombstones"), seen.reconciliation.total("dead_letters")) == (1, 2)
    version = driver.table.snapshot().version
    (again,) = brought(driver, before.settings.table.raw.location)
    assert (again.chunks, driver.table.snapshot().version) == ([], version)


def test_a_raw_table_of_another_incarnation_and_none_at_all_are_refused(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "delta")
    driver.start()
    skip_offsets(driver, 8)
    driver.start()
    with pytest.raises(ConfigError, match="there is no table in the format"):
        brought(driver, str(tmp_path / "nowhere"))
    other = start_writer(tmp_path / "other", "delta")
    carry_values(other, VALUES)
    raw = other.side(other.settings.table.raw.location)
    (file,) = raw.bucket_files(raw.snapshot())
    path = Path(raw.location) / file.path
    rows = pq.ParquetFile(path).read()
    index = rows.column_names.index("_incarnation")
    twos = pa.repeat(pa.scalar(2, pa.int32()), rows.num_rows)
    pq.write_table(rows.set_column(index, "_incarnation", twos), path)
    with pytest.raises(SourceFailed, match="incarnation 2 of topic 'clicks', the gap is of incarnation 1"):
        brought(driver, raw.location)


def test_a_raw_table_of_a_topic_that_was_created_again_since_is_refused(tmp_path: Path) -> None:
    """Both know the topic as incarnation 1; each means another one."""
    other = start_writer(tmp_path / "other", "delta")
    carry_values(other, VALUES)
    driver = Driver(tmp_path, "delta")
    driver.table.begin({TopicPartition("clicks", 1, 0): 0}, {"clicks": ["uuid-2"]})
    skip_offsets(driver, 8, topic_id="uuid-2")
    driver.epoch = driver.table.begin({TopicPartition("clicks", 1, 0): 8}, {"clicks": ["uuid-2"]})
    driver.specs = 0
    driver.carry([log({8: event(8)})], {0: 9})
    with pytest.raises(SourceFailed, match="topic"):
        brought(driver, other.settings.table.raw.location)
    assert not [row for row in driver.table.rows().to_table().to_pylist() if row["_offset"] < 8]
