"""How records cross from Kafka through Spark's JVM to a task, and what memory they find there: at little cost."""

import math
from datetime import timedelta
from typing import Any

KAFKA_OPTIONS = {
    # Spark asks the broker for both ends of the log at each poll. At Kafka's 500 records a poll that is most of the
    # time a fetch takes; what one poll can hold is bounded by max.partition.fetch.bytes all the same.
    "kafka.max.poll.records": "5000",
    # Records of a transaction that was aborted never become rows; those of an open one wait for its end.
    "kafka.isolation.level": "read_committed",
    "kafka.allow.auto.create.topics": "false",  # a consumer that asks for a deleted topic must not create it
}
_PATIENCE_MIN = timedelta(seconds=30)  # Kafka's own request.timeout.ms: what is shorter would fail a slow broker
# Blocks come and go by the megabyte. One heap for Arrow and the decoder, which keeps what is freed for the next block,
# spares the kernel handing out cleared pages over and over: an eighth of a task's processor time. glibc's names.
WORKER_ENVIRONMENT = {
    "ARROW_DEFAULT_MEMORY_POOL": "system",
    "MALLOC_MMAP_THRESHOLD_": str(2**30),
    "MALLOC_TRIM_THRESHOLD_": str(2**32),
}
_OUTAGE = timedelta(minutes=3)  # three questions of 60 s: Spark's and Kafka's own values, where the driver asks
_BATCH_BYTES = 16 * 2**20  # larger ones leave the processor's caches: decoding slows down
_UNMEASURED = 2**31 - 1  # the one value that makes Spark leave out the measuring


def kafka_timeouts(request_timeout: timedelta) -> dict[str, str]:
    """Return the time-outs of Spark's Kafka consumers, so that a task whose partition is gone ends in bounded time.

    A request may take `request_timeout`, at least 30 s, and so may the question where a log begins and ends. A poll may
    take twice as long: a consumer that has just come asks for the cluster, the leader and the position first. A try of
    a task on a partition that is gone takes one poll and one question: 90 s, and six minutes with Spark's four tries.
    Kafka's and Spark's own values make that three minutes, and twelve. Between batches Spark waits for a silent broker
    as long as it does with these: three minutes or more.
    """
    patience = max(request_timeout, _PATIENCE_MIN)
    patience_ms = int(patience.total_seconds() * 1000)
    return {
        "kafka.request.timeout.ms": str(patience_ms),
        "kafka.default.api.timeout.ms": str(patience_ms),  # of no less than a request, or Kafka's client refuses it
        "kafkaConsumer.pollTimeoutMs": str(2 * patience_ms),
        "fetchOffset.numRetries": str(max(3, math.ceil(_OUTAGE / patience))),
    }


def arrow_limits(records_max: int, record_bytes: float | None, record_bytes_max: float = 0) -> dict[str, str]:
    """Return Spark's settings for the Arrow batches of one micro-batch.

    `record_bytes` is the mean of the last micro-batch, `record_bytes_max` the mean of its heaviest Arrow batch.

    With a limit in bytes, Spark measures its buffers after every record, for a third of the JVM's processor time
    (docs/adr/0008-bounded-by-count.md). So only the first micro-batch of a start is measured. Later ones are bounded
    by a count at which records may grow a hundredfold within one micro-batch before Arrow's 2 GiB are reached. If they
    do, the tasks fail, nothing is lost, and the next start measures again. Where one topic's records are so much
    heavier than another's that the count for the mean would not hold them, every micro-batch is measured.
    """
    records = max(1, min(records_max, int(_BATCH_BYTES / max(record_bytes or 1, 1))))
    if record_bytes is None or (records > 1 and records * record_bytes_max > _UNMEASURED / 4):
        records, size = records_max, _BATCH_BYTES
    else:
        size = _UNMEASURED
    return {
        "spark.sql.execution.arrow.maxRecordsPerBatch": str(records),
        "spark.sql.execution.arrow.maxBytesPerBatch": str(size),
    }


def handed_over(frame: Any) -> int:
    """Return how many records Spark's scan gave to the tasks of a frame that was collected, by Spark's own count.

    From the metric of the executed plan's leaf. Spark adds up the tasks that succeeded, each partition once, however
    often it was tried.
    """
    return int(_scan(frame).metrics().apply("numOutputRows").value())


def ranges(frame: Any) -> int:
    """Return in how many pieces Spark's scan read what it gave to the tasks of a frame that was collected."""
    return int(_scan(frame).execute().getNumPartitions())  # planned and run before: only counted


def _scan(frame: Any) -> Any:
    plan = frame._jdf.queryExecution().executedPlan()  # noqa: SLF001 - PySpark shows no metrics
    leaves = plan.collectLeaves()
    assert leaves.size() == 1, f"one scan feeds the tasks, but the plan has {leaves.size()}: {plan}"
    return leaves.apply(0)
