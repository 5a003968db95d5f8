"""Measures the native Kafka reader against confluent_kafka: CPU-microseconds of an event, in turn, on one topic.

    python -m bench.features.kafka_reader [--data 200B] [--events 2M] [--rounds 5] [--partitions 4]

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

from bench.cli import number
from bench.data.dataset import dataset
from bench.data.fill import ends_of, fill
from bench.figures import BenchFailed
from bench.job import PARTITIONS
from writer.clients import java_artifacts
from writer.core.offsets import OffsetRange, Source, TopicPartition
from writer.demo.devstack.stack import Stack
from writer.kafka_reader import record_batches
from writer.kafka_reader.cluster import ClusterAddress
from writer.kafka_reader.columns import ColumnChoice
from writer.kafka_reader.connection import addresses
from writer.kafka_reader.reader import RangeReader, ReadLimits
from writer.kafka_reader.record_batches import Batch
from writer.kafka_reader.requests.fetch import PartitionQuestion

Ends = Mapping[Source, int]
_FETCH_BYTES = ReadLimits().fetch_bytes
_CONSUMED = 20_000  # messages at once; with more of them alive, memory is slower
_SILENCE_S = 30
_CONSUMER = {
    "group.id": "bench", "enable.auto.commit": False, "enable.auto.offset.store": False, "log_level": 3,
    "isolation.level": "read_committed", "check.crcs": True, "fetch.max.bytes": 60 * 2**20,
    "max.partition.fetch.bytes": 16 * 2**20, "queued.min.messages": 1_000_000,
}  # fmt: skip


def fetched(bootstrap: str, ends: Ends) -> int:
    """Fetch one partition after the other and check the sums of its batches. Returns the number of records."""
    records = 0
    with ClusterAddress(addresses(bootstrap)).open() as cluster:
        known = cluster.ask_leaders({topic for topic, _ in ends})
        for source, end in ends.items():
            leader, offset = known.leaders[source], 0
            while offset < end:
                question = PartitionQuestion(*source, leader.epoch, offset, _FETCH_BYTES)
                found = cluster.fetch(
                    leader.node, [question], known.topic_ids, wait_ms=500, bytes_max=_FETCH_BYTES, rack=""
                )
                for one in record_batches.cut_batches(found.partitions[source], source, offset, end):
                    offset = one.after
                    records += one.record_count if isinstance(one, Batch) else 0
    return records


def arrow(bootstrap: str, ends: Ends) -> int:
    """Read everything into Arrow columns. Returns the number of rows."""
    ranges = [OffsetRange(TopicPartition(topic, 1, p), 0, end) for (topic, p), end in ends.items()]
    with ClusterAddress(addresses(bootstrap)).open() as cluster:
        return sum(batch.num_rows for batch in RangeReader(cluster, ranges, ColumnChoice(topic=False)))


def consumed(bootstrap: str, ends: Ends) -> int:
    """Consume all partitions with librdkafka. Returns the number of messages."""
    consumer = Consumer({"bootstrap.servers": bootstrap, **_CONSUMER})
    consumer.assign([Where(*source, 0) for source in ends])
    count, events = 0, sum(ends.values())
    while count < events:
        messages = consumer.consume(min(_CONSUMED, events - count), _SILENCE_S)
        if not messages:
            raise BenchFailed(f"the topic gave nothing for {_SILENCE_S} s with {events - count} records left")
        pa.array([message.value() for message in messages], pa.binary())
        pa.array([message.key() for message in messages], pa.binary())
        count += len(messages)
    consumer.close()
    return count


WAYS: Mapping[str, Callable[[str, Ends], int]] = {"fetch": fetched, "arrow": arrow, "consume": consumed}


def measured(way: Callable[[str, Ends], int], bootstrap: str, ends: Ends) -> tuple[float, float]:
    """Return CPU-microseconds and microseconds of an event. Raises BenchFailed when records are missing."""
    began, cpu = time.perf_counter(), time.process_time()
    count, events = way(bootstrap, ends), sum(ends.values())
    if count != events:
        raise BenchFailed(f"{way.__name__} read {count:,} of {events:,} events")
    return (time.process_time() - cpu) / events * 1e6, (time.perf_counter() - began) / events * 1e6


def main() -> int:
    """Run it. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.features.kafka_reader", description=__doc__)
    parser.add_argument("--data", default="200B")
    parser.add_argument("--events", type=number, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    given = parser.parse_args()
    for bundle in java_artifacts.BUNDLES:
        java_artifacts.fetch(bundle, progress=print)
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as place, Stack(Path(place)) as stack:
        bootstrap, data = stack.broker.bootstrap, dataset(given.data)
        filled = fill(bootstrap, stack.registry.url, "events", data, given.events, partitions=given.partitions)
        print(
            f"{filled.events:,} events of {filled.bytes / filled.events:.0f} bytes, lz4, {given.partitions} partitions"
        )
        ends, found = ends_of(bootstrap, "events", given.partitions), dict[str, list[tuple[float, float]]]()
        for _ in range(given.rounds):
            for name, way in WAYS.items():
                found.setdefault(name, []).append(measured(way, bootstrap, ends))
    print(f"{'µs an event':12} {'CPU':>8} {'least':>8} {'most':>8} {'elapsed':>8}")
    for name, runs in found.items():
        cpu = [one for one, _ in runs]
        print(
            f"{name:12} {median(cpu):8.3f} {min(cpu):8.3f} {max(cpu):8.3f} {median(one for _, one in runs):8.3f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
