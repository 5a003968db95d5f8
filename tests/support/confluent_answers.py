"""What confluent_kafka answers to the questions of the driver: the oracle of headrace's own client."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from confluent_kafka import (
    OFFSET_INVALID,
    Consumer,
    ConsumerGroupTopicPartitions,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from headrace.writer.core.offsets import Source, Span

_TIMEOUT_S = 60


class ConfluentAnswers:
    """Questions to a cluster by confluent_kafka."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def topics(self, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Ids and counts of partitions."""
        futures = self._admin.describe_topics(TopicCollection(list(names)), request_timeout=_TIMEOUT_S)
        answers = {name: future.result() for name, future in futures.items()}
        return {name: (str(answer.topic_id), len(answer.partitions)) for name, answer in answers.items()}

    def offsets(self, times_ms: Mapping[Source, int], *, committed: bool = False) -> dict[Source, tuple[int, int]]:
        """Offsets and timestamps. `times_ms`: as list_offsets has them."""
        specs = {-1: OffsetSpec.latest(), -2: OffsetSpec.earliest()}
        request = {
            TopicPartition(*source): specs.get(time_ms) or OffsetSpec.for_timestamp(time_ms)
            for source, time_ms in times_ms.items()
        }
        level = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        deadline_s = time.monotonic() + _TIMEOUT_S
        while True:
            futures = self._admin.list_offsets(request, isolation_level=level, request_timeout=_TIMEOUT_S)
            with suppress(KafkaException):
                results = {(tp.topic, tp.partition): future.result() for tp, future in futures.items()}
                answers = {source: (result.offset, result.timestamp) for source, result in results.items()}
                if all(offset != OFFSET_INVALID for offset, _ in answers.values()):
                    return answers
            # Where a leader has moved, it does not ask again; of one that is gone it gives an offset that is none.
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
            self._admin = AdminClient({"bootstrap.servers": self._bootstrap, "log_level": 0})

    def settings(self, topics: Iterable[str]) -> dict[str, dict[str, str]]:
        """All settings of topics."""
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
        futures = self._admin.describe_configs(resources, request_timeout=_TIMEOUT_S)
        return {
            resource.name: {name: entry.value for name, entry in future.result().items()}
            for resource, future in futures.items()
        }

    def group_offsets(self, group: str, sources: Iterable[Source]) -> dict[Source, int]:
        """Offsets that a group has committed, where it has."""
        request = [ConsumerGroupTopicPartitions(group, [TopicPartition(*source) for source in sources])]
        (future,) = self._admin.list_consumer_group_offsets(request, request_timeout=_TIMEOUT_S).values()
        partitions = future.result().topic_partitions
        return {(tp.topic, tp.partition): tp.offset for tp in partitions if tp.offset >= 0 and not tp.error}

    def next_record(self, source: Source, span: Span) -> int | None:
        """The first committed record within a span, where there is one."""
        consumer = Consumer({
            "bootstrap.servers": self._bootstrap, "group.id": "next", "enable.auto.commit": False,
            "isolation.level": "read_committed", "enable.partition.eof": True, "auto.offset.reset": "earliest",
            "log_level": 0,
        })  # fmt: skip
        try:
            consumer.assign([TopicPartition(*source, span[0])])
            while (message := consumer.poll(_TIMEOUT_S)) is not None:
                if message.error() is None:
                    return message.offset() if message.offset() < span[1] else None
                if message.error().code() == KafkaError._PARTITION_EOF:
                    return None
            raise AssertionError(f"no answer about {source}")
        finally:
            consumer.close()
