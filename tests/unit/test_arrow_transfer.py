"""Arrow batches on their way into Python stay far from Arrow's 2 GiB, whatever the records weigh."""

from datetime import timedelta

import pytest
from hypothesis import given, strategies as st

from headrace.writer.driver.readers.spark_reader import arrow_limits, kafka_timeouts

RECORDS, BYTES = "spark.sql.execution.arrow.maxRecordsPerBatch", "spark.sql.execution.arrow.maxBytesPerBatch"
UNMEASURED = str(2**31 - 1)


def test_the_first_micro_batch_is_measured():
    assert arrow_limits(25_000, None) == {RECORDS: "25000", BYTES: str(16 * 2**20)}


def test_small_records_are_bounded_by_their_count_alone():
    assert arrow_limits(25_000, 200.0) == {RECORDS: "25000", BYTES: UNMEASURED}


@given(st.integers(1, 1_000_000), st.floats(0, 1e9))
def test_records_may_grow_a_hundredfold_before_a_batch_is_too_large(records_max, record_bytes):
    limits = arrow_limits(records_max, record_bytes)
    records = int(limits[RECORDS])
    assert 1 <= records <= records_max
    assert limits[BYTES] == UNMEASURED
    assert records == 1 or 100 * records * record_bytes < 2**31


def test_where_one_topic_is_far_heavier_than_the_mean_every_micro_batch_is_measured():
    """At the count for 1 kB, a partition of records of 1 MB would fill an Arrow batch of 14 GB."""
    assert arrow_limits(25_000, 1_200.0, 1e6) == arrow_limits(25_000, None)


@given(st.integers(1, 1_000_000), st.floats(0, 1e7), st.floats(0, 1e7))
def test_no_batch_as_heavy_as_one_that_was_seen_comes_near_two_gigabytes_unmeasured(records_max, mean, heaviest):
    limits = arrow_limits(records_max, mean, heaviest)
    records = int(limits[RECORDS])
    assert limits[BYTES] != UNMEASURED or records == 1 or records * heaviest <= 2**29


@pytest.mark.parametrize(("request_s", "expected_ms", "tries"), [(3, 30_000, 6), (30, 30_000, 6), (120, 120_000, 3)])
def test_a_task_on_a_partition_that_is_gone_ends_after_a_poll_and_a_question(request_s, expected_ms, tries):
    """Never sooner than Kafka's own clients give up a request: a short request_timeout fails no slow broker."""
    assert kafka_timeouts(timedelta(seconds=request_s)) == {
        "kafka.request.timeout.ms": str(expected_ms),
        "kafka.default.api.timeout.ms": str(expected_ms),
        "kafkaConsumer.pollTimeoutMs": str(2 * expected_ms),
        "fetchOffset.numRetries": str(tries),
    }
