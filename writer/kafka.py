"""What the driver asks Kafka directly: topic ids, partitions, log ends. Never records."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from writer.errors import ConfigError, HeadraceError

Source = tuple[str, int]  # topic, partition


class BrokerUnreachable(HeadraceError):
    """No broker answered in time."""


@dataclass(frozen=True)
class Topic:
    """One topic as the cluster knows it now. `id` changes when a topic is deleted and created again (KIP-516)."""

    name: str
    id: str
    partitions: int


class Cluster:
    """Questions to one Kafka cluster, each with a deadline."""

    def __init__(self, bootstrap: str, timeout: timedelta) -> None:
        self._bootstrap, self._seconds = bootstrap, timeout.total_seconds()
        self._admin = AdminClient(
            {"bootstrap.servers": bootstrap, "log_level": 0, "log.connection.close": False}, logger=_quiet()
        )

    def topics(self, names: Iterable[str]) -> dict[str, Topic]:
        """Describe topics. Raises ConfigError for one that does not exist, BrokerUnreachable for silence."""
        wanted = list(names)
        try:
            known = self._admin.list_topics(timeout=self._seconds).topics
        except KafkaException as error:
            raise self._unreachable(error) from error
        for name in wanted:
            if name not in known:
                from writer.config import did_you_mean

                near = did_you_mean(name, sorted(t for t in known if not t.startswith("__")))
                raise ConfigError(f"topic {name!r} does not exist on {self._bootstrap}{near}")
        answers = self._admin.describe_topics(TopicCollection(wanted), request_timeout=self._seconds)
        described = {name: self._result(future) for name, future in answers.items()}
        return {name: Topic(name, str(d.topic_id), len(d.partitions)) for name, d in described.items()}

    def earliest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """First offset still held, by partition."""
        return self._offsets({source: OffsetSpec.earliest() for source in sources})

    def latest(self, sources: Iterable[Source]) -> dict[Source, int]:
        """End of the log (the next offset to be written), by partition."""
        return self._offsets({source: OffsetSpec.latest() for source in sources})

    def at(self, when: datetime, sources: Iterable[Source]) -> dict[Source, int]:
        """First offset with a broker timestamp at or after `when`; the end of the log where there is none."""
        wanted = list(sources)
        milliseconds = int(when.timestamp() * 1000)
        found = self._offsets({source: OffsetSpec.for_timestamp(milliseconds) for source in wanted})
        missing = [source for source, offset in found.items() if offset < 0]
        return {**found, **self.latest(missing)} if missing else found

    def _offsets(self, wanted: Mapping[Source, Any]) -> dict[Source, int]:
        if not wanted:
            return {}
        request = {TopicPartition(topic, partition): spec for (topic, partition), spec in wanted.items()}
        answers = self._admin.list_offsets(request, request_timeout=self._seconds)
        return {(tp.topic, tp.partition): int(self._result(future).offset) for tp, future in answers.items()}

    def _result(self, future: Any) -> Any:
        try:
            return future.result(timeout=self._seconds + 5)
        except (KafkaException, TimeoutError) as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: Exception) -> BrokerUnreachable:
        return BrokerUnreachable(
            f"no Kafka broker answers at {self._bootstrap} within {self._seconds:.0f} s ({error}). "
            "Check kafka.bootstrap_servers and that the cluster is up."
        )


def _quiet() -> Any:
    import logging

    logger = logging.getLogger("headrace.librdkafka")
    logger.setLevel(logging.CRITICAL)
    return logger
