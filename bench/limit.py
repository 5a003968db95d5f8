"""The steps of headrace in one process without Spark: librdkafka in, Parquet out. The limit of this design.

No commit, no frontier, no second attempt: what it writes is not exactly once. Every record of one fetch carries the
time of its first, because asking each record for its own would be a call a record.

By itself: python -m bench.limit JOB.json
"""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, Message, TopicPartition

from bench.job import BUCKET, Job, load, mark
from writer.avro.schema_plan import PROVENANCE, SchemaPlan
from writer.batch.bucketing import TimeRule
from writer.batch.task import Task, TaskPlan
from writer.config.pipelines import Memory, Roll
from writer.core.errors import HeadraceError

_SILENCE_S = 30  # of the broker
_FETCH = 20_000  # records asked for at once; with more of them alive at a time, memory is slower
_CONSUMER = {
    "fetch.max.bytes": 60 * 2**20,
    "max.partition.fetch.bytes": 16 * 2**20,
    "queued.min.messages": 1_000_000,
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "log_level": 3,
}


class NoMoreEvents(HeadraceError):
    """The broker gives fewer events than the topic was filled with."""


def run(job: Job, now: datetime) -> None:
    """Carry the topic into files, batch after batch, each of as many events as the others commit at once."""
    plan = _plan(job, now)
    records_max: int = Memory.model_validate({}).batch_records
    fetches = _Fetches(job)
    for batch, start in enumerate(range(0, job.events, job.batch_events)):
        task, left = Task(plan), min(job.batch_events, job.events - start)
        while left:
            size = min(records_max, left)
            task.take(fetches.take(size))
            left -= size
        report = task.finish()
        mark(batch, sum(counts.rows for counts in report.counts.values()), report.seconds)


def _plan(job: Job, now: datetime) -> TaskPlan:
    schemas = SchemaPlan(pa.schema([]), frozenset(c.lower() for c in (*PROVENANCE.names, BUCKET)))
    ever = timedelta(days=36_500)
    return TaskPlan(
        now=now, frontier={}, incarnations={job.topic: 1}, schemas=schemas.extend(job.schema_id, job.schema_text),
        time_rule=TimeRule(job.time_field, "auto", ever, ever),
        bucket={"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"},
        table=str(job.table), dead_letters=f"{job.directory}/dead_letters", prefix="limit",
        budget=Memory.model_validate({}).buffer, target_file_size=Roll.model_validate({}).target_file_size,
    )  # fmt: skip


class _Fetches:
    """The topic, one partition after the other: so offsets are known without asking each record for its own."""

    def __init__(self, job: Job) -> None:
        self._job, self._partition = job, -1
        self._first = self._end = 0
        self._consumer = Consumer({"bootstrap.servers": job.bootstrap, "group.id": "bench", **_CONSUMER})

    def take(self, count: int) -> pa.RecordBatch:
        """Return the next `count` records. Raises NoMoreEvents."""
        parts: list[pa.RecordBatch] = []
        while count:
            while self._first == self._end:
                self._open(self._partition + 1)
            messages = self._consumer.consume(min(_FETCH, count, self._end - self._first), timeout=_SILENCE_S)
            if not messages or messages[-1].offset() != self._first + len(messages) - 1:
                raise NoMoreEvents(
                    f"{self._job.topic}/{self._partition} gave {len(messages)} records from offset {self._first} "
                    f"within {_SILENCE_S} s, or not in a row; look at the log of the broker {self._job.bootstrap}."
                )
            parts.append(_records(self._job.topic, self._partition, self._first, messages))
            self._first += len(messages)
            count -= len(messages)
        return pa.concat_batches(parts)

    def _open(self, partition: int) -> None:
        if partition == self._job.partitions:
            raise NoMoreEvents(f"topic {self._job.topic} holds fewer than {self._job.events} events; fill it again.")
        here = TopicPartition(self._job.topic, partition, 0)
        self._partition = partition
        self._first, self._end = self._consumer.get_watermark_offsets(here, timeout=_SILENCE_S)
        self._consumer.assign([here])


def _records(topic: str, partition: int, first: int, messages: list[Message]) -> pa.RecordBatch:
    """Give the records the shape in which Spark hands them to a task."""
    count = len(messages)
    columns = {
        "topic": pa.repeat(topic, count),
        "partition": pa.repeat(pa.scalar(partition, pa.int32()), count),
        "offset": pa.array(np.arange(first, first + count)),
        "timestamp": pa.repeat(pa.scalar(messages[0].timestamp()[1], pa.timestamp("ms", "UTC")), count),
        "key": pa.nulls(count, pa.binary()),
        "value": pa.array([message.value() for message in messages], pa.binary()),
    }
    return pa.RecordBatch.from_pydict(columns)


if __name__ == "__main__":
    run(load(Path(sys.argv[1])), datetime.now(UTC))
