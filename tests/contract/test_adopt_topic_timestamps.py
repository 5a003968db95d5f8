"""Before a topic is adopted, the table's last rows are compared with the log's: they are found whoever wrote them."""

import pytest
from deltalake import DeltaTable

from headrace.writer.core.offsets import TopicPartition
from headrace.writer.table.kafka_timestamps import read_kafka_timestamps
from tests.support.local_driver import Driver, log
from tests.support.sample_records import NOW, event

PART = TopicPartition("clicks", 1, 1)


@pytest.fixture(params=["delta", "parquet"])
def driver(request: pytest.FixtureRequest, tmp_path) -> Driver:
    new_driver = Driver(tmp_path, request.param)
    new_driver.start(2)
    for end in (20, 40):
        new_driver.carry(
            [log({offset: event(offset) for offset in range(end)}, partition) for partition in (0, 1)], {0: end, 1: end}
        )
    return new_driver


def test_the_last_rows_of_a_part_are_found_by_their_offsets(driver):
    assert read_kafka_timestamps(driver.table, PART, 15, 25) == dict.fromkeys(range(15, 25), NOW)
    assert read_kafka_timestamps(driver.table, TopicPartition("clicks", 2, 1), 15, 25) == {}


@pytest.mark.parametrize("driver", ["delta"], indirect=True)
def test_timestamps_are_found_in_files_without_bounds_of_their_columns(driver):
    """As Spark does beyond the 32nd column; deltalake's own dataset would find nothing there."""
    table = DeltaTable(driver.lake)
    table.alter.set_table_properties({"delta.dataSkippingNumIndexedCols": "1"})
    table.optimize.compact()
    assert any(file.offset_min is None for file in driver.table.bucket_files(driver.table.snapshot()))
    assert read_kafka_timestamps(driver.table, PART, 15, 25) == dict.fromkeys(range(15, 25), NOW)
