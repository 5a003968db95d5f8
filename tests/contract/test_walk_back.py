"""L4 on a table whose last commit was not followed by its side files: a dead letter that waits proves an offset too."""

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyiceberg.expressions import EqualTo

from headrace.recovery.checkpoints.walk_back import RebuiltOffsets, proven_offsets, walk_back
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.table.kafka_timestamps import read_kafka_timestamps
from tests.support.checkpoint_files import CheckpointRun
from tests.support.forgotten_offsets import forget
from tests.support.local_driver import Died, Driver, log
from tests.support.sample_records import event
from tests.support.simulated_cluster import Cluster
from tests.support.tables import iceberg_table_of


class OneTopic(Cluster):
    def sources(self, _topics: list[str]) -> list[Source]:
        return [("clicks", partition) for partition in range(len(self.held))]


def test_files_that_another_client_of_an_iceberg_table_wrote_anew_prove_offsets(tmp_path: Path) -> None:
    driver = Driver(tmp_path, "iceberg")
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(8)})], {0: 8})
    other = iceberg_table_of(driver.lake, driver.config.catalog_place("clicks", driver.lake))
    other.delete(EqualTo("_offset", 3))
    part = TopicPartition("clicks", 1, 0)
    files = driver.table.bucket_files(driver.table.snapshot())
    assert any("_kafka_partition" in pq.read_schema(f"{driver.lake}/{file.path}").names for file in files)
    assert proven_offsets(driver.config, "clicks") == {part: 8}
    assert sorted(read_kafka_timestamps(driver.table, part, 2, 6)) == [2, 4, 5]


def test_a_dead_letter_that_waits_is_not_read_again(tmp_path: Path) -> None:
    driver = Driver(tmp_path)
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(5)})], {0: 5})
    with pytest.raises(Died):
        driver.carry([log({5: b"no Avro"})], {0: 6}, die="after_commit")
    CheckpointRun(Path(driver.config.checkpoints)).started(0).planned(0, 5).committed(0).planned(1, 6)
    forget(Path(driver.lake))
    outcome = walk_back(driver.config, "clicks", OneTopic((0, 6), id_="uuid-1"))  # type: ignore[arg-type]
    assert isinstance(outcome, RebuiltOffsets), outcome
    assert outcome.offsets == {TopicPartition("clicks", 1, 0): 6}
    assert driver.side(driver.dead_letters).rows().count_rows() == 1
