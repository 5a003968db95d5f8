"""The steps of headrace in one process without Spark: Kafka in, Parquet out. The limit of this design.

No commit, no frontier, no second attempt: what it writes is not exactly once.

By itself: python -m headrace.bench.contenders.limit JOB.json
"""

import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa

from headrace.bench.data.fill import ends_of
from headrace.bench.job import BUCKET, Job, load, mark
from headrace.writer.batch import range_task
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.range_task import ReadPlan
from headrace.writer.batch.task_report import Report
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan
from headrace.writer.config.sections.resource_limits import Memory
from headrace.writer.config.sections.table import Roll
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.kafka_reader.reader import ReadLimits


def run(job: Job, now: datetime) -> None:
    """Carry the topic into files, batch after batch, each of as many events as the others commit at once."""
    plan = _plan(job, now)
    cluster = ClusterAddress(addresses(job.bootstrap))
    shares = list(_batches(ends_of(job.bootstrap, job.topic, job.partitions), job.batch_events))
    with cluster.open() as connection:
        leaders = connection.ask_leaders({job.topic})
    limits = ReadLimits(rows=Memory.model_validate({}).batch_records)
    reading = ReadPlan(cluster, leaders, leaders.topic_ids, ColumnChoice(topic=False), limits, shares)
    for batch in range(len(shares)):
        (rows,) = range_task.run(batch, plan, reading)
        report = Report.from_json(rows["report"][0].as_py())
        mark(batch, sum(counts.rows for counts in report.counts.values()), report.seconds)


def _batches(ends: Mapping[Source, int], events: int) -> Sequence[Sequence[OffsetRange]]:
    """Cut the topic into batches of so many events, of all partitions alike."""
    each = -(-events // len(ends))
    return [
        [
            OffsetRange(TopicPartition(topic, 1, partition), start, min(start + each, log_end))
            for (topic, partition), log_end in ends.items()
            if start < log_end
        ]
        for start in range(0, max(ends.values()), each)
    ]


def _plan(job: Job, now: datetime) -> TaskPlan:
    schemas = SchemaPlan(pa.schema([]), frozenset(c.lower() for c in (*PROVENANCE.names, BUCKET)))
    for schema_id, text in [(job.schema_id, job.schema_text), *job.older_schemas]:
        schemas = schemas.extend(schema_id, text)
    ever = timedelta(days=36_500)
    return TaskPlan(
        now=now,
        frontier={},
        incarnations={job.topic: 1},
        schemas=schemas,
        time_rule=TimeRule(job.time_field, "auto", ever, ever),
        bucket={"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"},
        table=str(job.table),
        dead_letters=f"{job.directory}/dead_letters",
        prefix="limit",
        budget=Memory.model_validate({}).buffer,
        target_file_size=Roll.model_validate({}).target_file_size,
        topic=job.topic,
    )


if __name__ == "__main__":
    run(load(Path(sys.argv[1])), datetime.now(UTC))
