"""Asks the brokers of a cluster: keeps a connection to each that was asked, and knows the leaders of partitions."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.connection import BrokerAddress, Connection
from headrace.writer.kafka_reader.errors import BrokerClosed, Unavailable
from headrace.writer.kafka_reader.protocol import Api
from headrace.writer.kafka_reader.requests import epoch_ends, fetch, metadata
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd, EpochQuestion
from headrace.writer.kafka_reader.requests.fetch import FetchAnswer, PartitionQuestion
from headrace.writer.kafka_reader.requests.metadata import NO_ID, Leader, Metadata, merge_metadata
from headrace.writer.kafka_reader.security import Security


@dataclass(frozen=True)
class ClusterAddress:
    """Where a cluster is and how it is spoken to. Can be pickled, so that tasks get it from the driver.

    `timeout_s`: of a connection, and of an answer. `client_id`: that quotas of brokers may go by. `rack`: where the
    readers run, so that a replica near to them may be read.
    """

    bootstrap: Sequence[BrokerAddress]
    security: Security = field(default_factory=Security)
    timeout_s: float = 30
    client_id: str = "headrace"
    rack: str = ""

    def __str__(self) -> str:
        return ",".join(map(str, self.bootstrap))

    def open(self, metadata: Metadata | None = None) -> "Cluster":
        """Open it. `metadata`: what was asked before, so that it is not asked again."""
        return Cluster(self, metadata)


class Cluster:
    """Asks brokers, one request at a time. For one thread. Use it as a context manager."""

    def __init__(self, address: ClusterAddress, metadata: Metadata | None = None) -> None:
        if not address.bootstrap:
            raise ValueError("a cluster needs the address of a broker")
        self._address = address
        self._metadata = metadata or Metadata()
        self._connections = dict[BrokerAddress, Connection]()
        # When the pause is over that a broker asked for.
        self._pause_end_s = dict[int, float]()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def metadata(self) -> Metadata:
        """What the cluster said last."""
        return self._metadata

    def leader(self, source: Source) -> Leader | None:
        """Return the leader of a partition, None where none is known."""
        return self._metadata.leaders.get(source)

    def ask_leaders(self, topics: Iterable[str]) -> Metadata:
        """Ask any broker for the leaders of all partitions of some topics.

        Raises Unavailable, AccessDenied, UnsupportedBroker, Corrupt.
        """
        names = sorted(topics)
        failure = OSError("no broker is known")
        brokers = list(self._metadata.brokers.values())
        # So that no broker gets the questions of all readers.
        random.shuffle(brokers)
        for address in dict.fromkeys([*self._connections, *brokers, *self._address.bootstrap]):
            try:
                connection = self._connection(address)
                version = connection.version(Api.METADATA)
                reader = connection.call(Api.METADATA, version, metadata.request_body(names, version))
            except OSError as error:
                self._drop(address)
                failure = error
                continue
            self._metadata = merge_metadata(self._metadata, metadata.answer(reader, version))
            return self._metadata
        raise Unavailable(
            f"no Kafka broker answers at {', '.join(map(str, self._address.bootstrap))} ({failure}). "
            "Check kafka.bootstrap_servers, kafka.security and that the cluster is up."
        ) from failure

    def pause(self, node: int) -> float:
        """Wait as long as a broker asked for with its last answer. Returns the seconds."""
        pause_s = max(0.0, self._pause_end_s.pop(node, 0) - time.monotonic())
        time.sleep(pause_s)
        return pause_s

    def fetch(
        self,
        node: int,
        questions: Sequence[PartitionQuestion],
        topic_ids: Mapping[str, UUID],
        *,
        wait_ms: int,
        bytes_max: int,
        rack: str,
        committed: bool = True,
    ) -> FetchAnswer:
        """Ask a broker for records. Raises OSError, UnsupportedBroker, Corrupt."""
        address = self._broker(node)
        try:
            connection = self._connection(address)
            version = connection.version(Api.FETCH)
            # A cluster may have no topic ids.
            if any(topic_ids.get(question.topic, NO_ID) == NO_ID for question in questions):
                version = min(version, fetch.FIRST_VERSION_BY_ID - 1)
            body = fetch.request_body(
                questions, version, topic_ids, wait_ms=wait_ms, bytes_max=bytes_max, rack=rack, committed=committed
            )
            answer = fetch.answer(connection.call(Api.FETCH, version, body), version, topic_ids)
        except OSError:
            self._drop(address)
            raise
        if answer.throttled_ms > 0:
            self._pause_end_s[node] = time.monotonic() + answer.throttled_ms / 1000
        return answer

    def epoch_ends(self, node: int, questions: Sequence[EpochQuestion]) -> dict[Source, EpochEnd]:
        """Ask a broker where epochs of leaders end in its logs. Raises OSError, UnsupportedBroker, Corrupt."""
        address = self._broker(node)
        try:
            connection = self._connection(address)
            version = connection.version(Api.OFFSET_FOR_LEADER_EPOCH)
            body = epoch_ends.request_body(questions, version)
            return epoch_ends.answer(connection.call(Api.OFFSET_FOR_LEADER_EPOCH, version, body), version)
        except OSError:
            self._drop(address)
            raise

    def _broker(self, node: int) -> BrokerAddress:
        """Return where a broker is. Raises BrokerClosed."""
        address = self._metadata.brokers.get(node)
        if address is None:
            raise BrokerClosed(f"the cluster does not say where broker {node} is")
        return address

    def close(self) -> None:
        """Close all connections."""
        for address in list(self._connections):
            self._drop(address)

    def _connection(self, address: BrokerAddress) -> Connection:
        if address not in self._connections:
            self._connections[address] = Connection(
                address, self._address.security, self._address.timeout_s, self._address.client_id
            )
        return self._connections[address]

    def _drop(self, address: BrokerAddress) -> None:
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()
