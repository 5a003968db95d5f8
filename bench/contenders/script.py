"""The script that a team writes without Spark: confluent_kafka, fastavro, deltalake. Offsets and rows are two commits.

By itself: python -m headrace.bench.contenders.script JOB.json
"""

import json
import sys
from io import BytesIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, TopicPartition
from deltalake import WriterProperties, write_deltalake
from fastavro import parse_schema, schemaless_reader

from headrace.bench.data.fill import ends_of
from headrace.bench.job import BUCKET, Job, load, mark
from headrace.writer.core.errors import HeadraceError

_HEADER_BYTES = 5
# The most messages that one call consumes.
_AT_ONCE = 10_000
_SILENCE_S = 30


class NoMoreEvents(HeadraceError):
    """The broker gives fewer events than the topic holds."""


def run(job: Job) -> None:
    """Carry the topic into a Delta table. Raises NoMoreEvents."""
    schema = parse_schema(json.loads(job.schema_text))
    consumer = Consumer({"bootstrap.servers": job.bootstrap, "group.id": "script", "enable.auto.commit": False})
    consumer.assign([TopicPartition(*source, 0) for source in ends_of(job.bootstrap, job.topic, job.partitions)])
    for batch, start in enumerate(range(0, job.events, job.batch_events)):
        left = min(job.batch_events, job.events - start)
        rows = list[pa.Table]()
        events = left
        while left:
            messages = consumer.consume(min(left, _AT_ONCE), _SILENCE_S)
            if not messages:
                raise NoMoreEvents(f"{job.topic} gave nothing for {_SILENCE_S} s with {left:,} events left.")
            rows.append(pa.Table.from_pylist([_event(message.value(), schema) for message in messages]))
            left -= len(messages)
        _append(job, pa.concat_tables(rows, promote_options="permissive"))
        consumer.commit(asynchronous=False)
        mark(batch, events)
    consumer.close()


def _event(value: bytes, schema: Any) -> Any:
    source = BytesIO(value)
    source.seek(_HEADER_BYTES)
    return schemaless_reader(source, schema, None)


def _append(job: Job, rows: pa.Table) -> None:
    hour = pc.strftime(pc.floor_temporal(rows.column(job.time_field), unit="hour"), "%Y-%m-%d-%H")
    write_deltalake(
        str(job.table),
        rows.append_column(BUCKET, hour),
        mode="append",
        partition_by=[BUCKET],
        writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
    )


if __name__ == "__main__":
    run(load(Path(sys.argv[1])))
