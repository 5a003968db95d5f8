"""When a pipeline is started again inside the process, and how its end is told from any other."""

import pytest

from headrace.writer.driver.restart_policy import (
    RESTARTS_MAX,
    WINDOW_S,
    causes,
    java_trace,
    means_data_loss,
    means_new_partition,
    pause_s,
    sentence,
)


def test_pauses_grow_and_then_it_is_given_up():
    at, earlier, pauses = 0.0, [], []
    while (found := pause_s(earlier, at)) is not None:
        earlier.append(at)
        pauses.append(found)
        at += found
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0]
    assert len(pauses) == RESTARTS_MAX


def test_restarts_before_the_window_do_not_count():
    assert pause_s([0.0] * RESTARTS_MAX, WINDOW_S - 1) is None
    assert pause_s([0.0] * RESTARTS_MAX, WINDOW_S) == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "[KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE] Some data may have been lost because they are not available",
        "IllegalStateException: Partition clicks-0's offset was changed from 30 to 10, some data may have been missed",
        "Caused by: org.apache.kafka.clients.consumer.OffsetOutOfRangeException: Fetch position",
        "org.apache.kafka.common.errors.UnknownTopicOrPartitionException: This server does not host this",
    ],
)
def test_lost_offsets_are_recognized_in_the_words_of_spark_and_kafka(text):
    assert means_data_loss(text)


@pytest.mark.parametrize("text", ["java.io.IOException: No space left on device", "AssertionError: records", ""])
def test_other_failures_are_none(text):
    assert not means_data_loss(text)


def test_a_partition_that_appears_while_a_batch_is_planned_is_known():
    text = "StreamingQueryException: key not found: my-clicks-2\n=== Streaming Query ===\n"
    assert means_new_partition(f"{text}UnknownException: java.util.NoSuchElementException: key not found: my-clicks-2")
    assert means_new_partition("java.util.NoSuchElementException: key not found: clicks-2\n\nJVM stacktrace:\n\tat x")
    assert means_new_partition("If startingOffsets contains specific offsets, you must specify all TopicPartitions.")
    assert not means_new_partition("java.util.NoSuchElementException: key not found: spark.sql.shuffle")
    assert not means_new_partition("java.util.NoSuchElementException: None.get")


WORKER = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "/x/writer/storage/disk_space.py", line 50, in told
    yield
  File "pyarrow/error.pxi", line 92, in pyarrow.lib.check_status
OSError: [Errno 28] Error writing bytes to file. Detail: [errno 28] No space left on device

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/x/writer/batch/task.py", line 71, in run
    report = _report_of(task, batches)
             ^^^^^^^^^^^^^^^^^^^^^^^^^
{}

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:581)
Caused by: org.apache.spark.SparkException: Task failed
"""
JAVA = """An error occurred while calling o57.start.
: org.apache.spark.SparkException: Job aborted.
\tat org.apache.spark.sql.Dataset.collect(Dataset.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (WORKER.format("headrace.writer.storage.base.StoreError: cannot write /x: No space. Make room."),
         "cannot write /x: No space. Make room."),
        (WORKER.format("pyarrow.lib.ArrowInvalid: offset overflow: 7"), "ArrowInvalid: offset overflow: 7"),
        (WORKER.format("KeyError: 'hour'\nand more"), "KeyError: 'hour'"),
        (WORKER.format("AssertionError"), "AssertionError"),
        (JAVA, "java.io.IOException: No space left on device"),
        ("[STREAM_FAILED] Query terminated\n=== Plan ===", "Exception: [STREAM_FAILED] Query terminated"),
        ("", "Exception: "),
    ],
)  # fmt: skip
def test_of_what_spark_wraps_the_line_that_says_it_is_told(text, said):
    assert sentence(Exception(text)) == said


def test_the_cause_is_found_below_what_spark_wraps_around_it():
    class Captured(Exception):
        """As Spark's: the cause is in an attribute of its own."""

        def __init__(self, text, cause=None):
            super().__init__(text)
            self._cause = cause

    inner = Captured("KAFKA_DATA_LOSS")
    inner.__context__ = RuntimeError("while reading")
    outer = Captured("the query ended", Captured("job aborted", inner))
    assert causes(outer).splitlines() == [
        "Captured: the query ended", "Captured: job aborted", "Captured: KAFKA_DATA_LOSS",
        "RuntimeError: while reading",
    ]  # fmt: skip
    assert java_trace(outer) == ""
    inner._stackTrace = "\n".join(f"at {n}" for n in range(50))
    assert java_trace(outer).splitlines() == [f"at {n}" for n in range(20)]
    inner.__context__ = outer  # a ring ends
    assert causes(outer).count("the query ended") == 1
    assert causes(None) == ""
