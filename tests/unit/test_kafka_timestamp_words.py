"""What Spark says of a Kafka timestamp that it cannot count in microseconds, by its versions."""

import pytest

from headrace.writer.driver.readers.spark_reader import _is_beyond_spark

OVERFLOW = "SparkException: Job aborted\nCaused by: java.lang.ArithmeticException: long overflow"


@pytest.mark.parametrize(
    ("text", "is_beyond"),
    [
        (f"{OVERFLOW}\n\tat org.apache.spark.sql.kafka010.KafkaRecordToRowConverter.toInternalRow", True),
        ("SparkException: [KAFKA_MALFORMED_RECORD_TIMESTAMP] Record at topic clicks partition 0 offset 7", True),
        (f"{OVERFLOW}\n\tat org.apache.spark.sql.catalyst.expressions.Add.eval", False),
        ("SparkException: Job aborted", False),
    ],
)
def test_only_such_a_timestamp_sends_the_batch_to_the_native_reader(text: str, is_beyond: bool) -> None:
    assert _is_beyond_spark(RuntimeError(text)) is is_beyond
