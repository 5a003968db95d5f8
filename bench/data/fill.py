"""Fills a topic once with a pinned data set, for all contenders.

By itself: python -m headrace.bench.data.fill BOOTSTRAP REGISTRY_URL TOPIC [DATA] [EVENTS]
"""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic, OffsetSpec
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.bench.data.dataset import DataSet, dataset
from headrace.bench.job import PARTITIONS
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import Source

# The most events that are encoded at once and sent to one partition.
_BLOCK_MAX = 20_000
_IN_FLIGHT_MAX = 200_000
_DELIVERED_WITHIN_S = 120
_CREATED_WITHIN_S = 120
# The most partitions that one request creates.
_CREATED_AT_ONCE = 4_000
_USUAL_PARTITIONS_MAX = 1_000
_SILENCE_S = 30


class NotFilled(HeadraceError):
    """The topic does not hold what was sent to it."""


@dataclass(frozen=True)
class FilledTopic:
    """A topic that holds a data set: how many events, how many bytes their values have.

    `older_ids`: of the schemas of older producers, where the set has such.
    """

    topic: str
    schema_id: int
    older_ids: tuple[int, ...]
    events: int
    bytes: int
    seconds: float


def ends_of(bootstrap: str, topic: str, partitions: int) -> dict[Source, int]:
    """Ask for the ends of a topic's partitions."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    try:
        partitions_by_source = {(topic, number): TopicPartition(topic, number) for number in range(partitions)}
        return {
            source: consumer.get_watermark_offsets(partition, timeout=_SILENCE_S)[1]
            for source, partition in partitions_by_source.items()
        }
    finally:
        consumer.close()


def block(events: int, partitions: int) -> int:
    """Return how many events are sent to one partition before it is the next one's turn."""
    return min(_BLOCK_MAX, -(-events // partitions))


def fill(
    bootstrap: str,
    registry_url: str,
    topic: str,
    data: DataSet,
    events: int,
    *,
    partitions: int = PARTITIONS,
    progress: Callable[[int], None] = lambda _: None,
) -> FilledTopic:
    """Create the topic and send the first `events` events of the set; their schema is registered, but of JSON.

    Its subject is `<topic>-value`; the schema id of JSON is 0.
    They go to the partitions in turn, `block` by block. `progress` gets the number sent so far.
    Raises NotFilled, KafkaException, SchemaRegistryError.
    """
    began = time.monotonic()
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    _create(admin, topic, partitions)
    schemas = [Schema(text, "AVRO") for text in [*reversed(data.older_schema_texts), data.schema_text]]
    if data.form == "protobuf":
        schemas = [Schema(data.proto_text, "PROTOBUF")]
    if data.form == "json":
        schemas = []
    with SchemaRegistryClient({"url": registry_url}) as registry:
        ids = [registry.register_schema(f"{topic}-value", schema) for schema in schemas]
    schema_id, *older_ids = reversed(ids or [0])
    encode = partial(data.encode, schema_id=schema_id, older_ids=older_ids)
    size = _send(bootstrap, topic, data, encode, events, partitions=partitions, progress=progress)
    ends = admin.list_offsets({TopicPartition(topic, p): OffsetSpec.latest() for p in range(partitions)})
    record_count = sum(log_end.result(timeout=30).offset for log_end in ends.values())
    if record_count != events:
        raise NotFilled(f"topic {topic!r} on {bootstrap} holds {record_count} of {events} events. Fill another topic.")
    return FilledTopic(topic, schema_id, tuple(older_ids), events, size, time.monotonic() - began)


def _create(admin: AdminClient, topic: str, partitions: int) -> None:
    """Create the topic. Raises KafkaException.

    A broker keeps two indexes of each partition in memory, of ten megabytes by default, and takes 10,000 changes at
    once.
    """
    config = {"segment.index.bytes": "65536"} if partitions > _USUAL_PARTITIONS_MAX else {}
    first = min(partitions, _CREATED_AT_ONCE)
    admin.create_topics([NewTopic(topic, num_partitions=first, replication_factor=1, config=config)])[topic].result(
        timeout=_CREATED_WITHIN_S
    )
    for count in range(2 * _CREATED_AT_ONCE, partitions + _CREATED_AT_ONCE, _CREATED_AT_ONCE):
        request = NewPartitions(topic, min(count, partitions))
        admin.create_partitions([request])[topic].result(timeout=_CREATED_WITHIN_S)
    deadline_s = time.monotonic() + _CREATED_WITHIN_S
    while len(admin.list_topics(topic, timeout=30).topics[topic].partitions) < partitions:
        if time.monotonic() > deadline_s:
            raise NotFilled(f"topic {topic!r} has not got {partitions:,} partitions within {_CREATED_WITHIN_S} s.")
        time.sleep(0.1)


def _send(
    bootstrap: str,
    topic: str,
    data: DataSet,
    encode: Callable[[int, int], pa.BinaryArray],
    events: int,
    *,
    partitions: int,
    progress: Callable[[int], None],
) -> int:
    """Send block after block, to the partitions in turn. Returns the bytes of all values.

    `encode` returns the values of some events.
    """
    failures: list[KafkaError] = []

    def note_failure(error: KafkaError | None, _: Message) -> None:
        if error is not None:
            failures.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            # With idempotence a retry doubles no event.
            "enable.idempotence": True,
            "compression.type": "lz4",
            "linger.ms": 50,
            "batch.size": 2**20,
            "queue.buffering.max.messages": 2 * _IN_FLIGHT_MAX,
            # A call for each message would cost more than the message.
            "delivery.report.only.error": True,
            "log_level": 3,
        }
    )
    size = 0
    block_events = block(events, partitions)
    for turn, start in enumerate(range(0, events, block_events)):
        values = encode(start, min(block_events, events - start))
        size += values.buffers()[2].size
        while len(producer) > _IN_FLIGHT_MAX:
            producer.poll(0.05)
        partition = turn % partitions
        if data.has_headers:
            # A batch cannot have headers.
            for value, headers in zip(values.to_pylist(), data.headers(start, len(values)), strict=True):
                producer.produce(topic, value, partition=partition, headers=headers, on_delivery=note_failure)
            queued = len(values)
        else:
            messages = [{"value": value} for value in values.to_pylist()]
            queued = producer.produce_batch(topic, messages, partition=partition, on_delivery=note_failure)
        producer.poll(0)
        if failures or queued != len(values):
            break
        progress(start + len(values))
    left = producer.flush(_DELIVERED_WITHIN_S)
    if failures:
        raise KafkaException(failures[0])
    if left:
        raise NotFilled(f"{left} events were not taken by {bootstrap} within {_DELIVERED_WITHIN_S} s: look at its log.")
    return size


def main() -> None:
    """Fill a topic of a broker that runs already."""
    bootstrap, registry_url, topic, *options = sys.argv[1:]
    name, events = (*options, *("200B", "1000000")[len(options) :])
    print(fill(bootstrap, registry_url, topic, dataset(name), int(events)))


if __name__ == "__main__":
    main()
