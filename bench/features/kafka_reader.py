"""Measures the native Kafka reader against confluent_kafka: CPU-microseconds of an event, in turn, on one topic.

    python -m headrace.bench.features.kafka_reader [--data 200B] [--events 2M] [--rounds 5] [--partitions 4]

Ways: `fetch` is connection, Fetch answers, checksums; `arrow` is all of it, to Arrow columns; `consume` is
confluent_kafka's consumer with its Python objects, whose values and keys become Arrow columns.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import pyarrow as pa
from confluent_kafka import Consumer, TopicPartition as Where

from headrace.bench.cli import number
from headrace.bench.data.dataset import dataset
from headrace.bench.data.fill import ends_of, fill
from headrace.bench.figures import BenchFailed
from headrace.bench.job import PARTITIONS
from headrace.writer.clients import java_artifacts
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.kafka_reader import record_batches
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.columns import ColumnChoice
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.kafka_reader.reader import RangeReader, ReadLimits
from headrace.writer.kafka_reader.record_batches import Batch
from headrace.writer.kafka_reader.requests.fetch import PartitionQuestion

Ends = Mapping[Source, int]
_FETCH_BYTES = ReadLimits().fetch_bytes
# The most messages that one call consumes. With more of them alive, memory is slower.
_CONSUMED = 20_000
_SILENCE_S = 30
_CONSUMER = {
    "group.id": "bench",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "log_level": 3,
    "isolation.level": "read_committed",
    "check.crcs": True,
    "fetch.max.bytes": 60 * 2**20,
    "max.partition.fetch.bytes": 16 * 2**20,
    "queued.min.messages": 1_000_000,
}


def fetch_records(bootstrap: str, ends: Ends) -> int:
    """Fetch one partition after the other and check the sums of its batches. Returns the number of records."""
    records = 0
    with ClusterAddress(addresses(bootstrap)).open() as cluster:
        metadata = cluster.ask_leaders({topic for topic, _ in ends})
        for source, log_end in ends.items():
            leader = metadata.leaders[source]
            offset = 0
            while offset < log_end:
                question = PartitionQuestion(*source, leader.epoch, offset, _FETCH_BYTES)
                response = cluster.fetch(
                    leader.node, [question], metadata.topic_ids, wait_ms=500, bytes_max=_FETCH_BYTES, rack=""
                )
                for batch in record_batches.cut_batches(response.partitions[source], source, offset, log_end):
                    offset = batch.after
                    if isinstance(batch, Batch):
                        records += batch.record_count
    return records


def arrow(bootstrap: str, ends: Ends) -> int:
    """Read everything into Arrow columns. Returns the number of rows."""
    ranges = [
        OffsetRange(TopicPartition(topic, 1, partition), 0, log_end) for (topic, partition), log_end in ends.items()
    ]
    with ClusterAddress(addresses(bootstrap)).open() as cluster:
        return sum(batch.num_rows for batch in RangeReader(cluster, ranges, ColumnChoice(topic=False)))


def consume_messages(bootstrap: str, ends: Ends) -> int:
    """Consume all partitions with librdkafka. Returns the number of messages."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **_CONSUMER})
    consumer.assign([Where(*source, 0) for source in ends])
    count = 0
    events = sum(ends.values())
    while count < events:
        messages = consumer.consume(min(_CONSUMED, events - count), _SILENCE_S)
        if not messages:
            raise BenchFailed(f"the topic gave nothing for {_SILENCE_S} s with {events - count} records left")
        pa.array([message.value() for message in messages], pa.binary())
        pa.array([message.key() for message in messages], pa.binary())
        count += len(messages)
    consumer.close()
    return count


WAYS: Mapping[str, Callable[[str, Ends], int]] = {"fetch": fetch_records, "arrow": arrow, "consume": consume_messages}


def measure(way: Callable[[str, Ends], int], bootstrap: str, ends: Ends) -> tuple[float, float]:
    """Return CPU-microseconds and microseconds of an event. Raises BenchFailed when records are missing."""
    began = time.perf_counter()
    cpu = time.process_time()
    count = way(bootstrap, ends)
    events = sum(ends.values())
    if count != events:
        raise BenchFailed(f"{way.__name__} read {count:,} of {events:,} events")
    return (time.process_time() - cpu) / events * 1e6, (time.perf_counter() - began) / events * 1e6


def main() -> int:
    """Run it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m headrace.bench.features.kafka_reader", description=__doc__)
    parser.add_argument("--data", default="200B")
    parser.add_argument("--events", type=number, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    options = parser.parse_args()
    for name in java_artifacts.DEMO_BUNDLES:
        java_artifacts.fetch(name, progress=print)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as directory, Stack(Path(directory)) as stack:
        bootstrap = stack.broker.bootstrap
        data = dataset(options.data)
        filled = fill(bootstrap, stack.registry.url, "events", data, options.events, partitions=options.partitions)
        event_bytes = filled.bytes / filled.events
        print(f"{filled.events:,} events of {event_bytes:.0f} bytes, lz4, {options.partitions} partitions")
        ends = ends_of(bootstrap, "events", options.partitions)
        times: dict[str, list[tuple[float, float]]] = {}
        for _ in range(options.rounds):
            for name, way in WAYS.items():
                times.setdefault(name, []).append(measure(way, bootstrap, ends))
    print(f"{'µs an event':12} {'CPU':>8} {'least':>8} {'most':>8} {'elapsed':>8}")
    for name, runs in times.items():
        cpu = [cpu_us for cpu_us, _ in runs]
        elapsed = median(elapsed_us for _, elapsed_us in runs)
        print(f"{name:12} {median(cpu):8.3f} {min(cpu):8.3f} {max(cpu):8.3f} {elapsed:8.3f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
