"""The brokers of a cluster as one reader knows them: a connection to each that was asked, and the leaders."""

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self
from uuid import UUID

from writer.core.offsets import Source
from writer.kafka_reader.connection import BrokerAddress, Connection
from writer.kafka_reader.errors import BrokerClosed, Unavailable
from writer.kafka_reader.protocol import Api
from writer.kafka_reader.requests import epoch_ends, fetch, metadata
from writer.kafka_reader.requests.epoch_ends import EpochEnd, EpochQuestion
from writer.kafka_reader.requests.fetch import FetchAnswer, PartitionQuestion
from writer.kafka_reader.requests.metadata import NO_ID, Leader, Metadata
from writer.kafka_reader.security import Security


@dataclass(frozen=True)
class ClusterAddress:
    """Where a cluster is and how it is spoken to. Can be pickled, so that tasks get it from the driver."""

    bootstrap: Sequence[BrokerAddress]
    security: Security = field(default_factory=Security)
    timeout_s: float = 30  # of a connection, and of an answer
    client_id: str = "headrace"  # that quotas of brokers may go by
    rack: str = ""  # where the readers run, so that a replica near to them may be read

    def opened(self, known: Metadata | None = None) -> "Cluster":
        """Open it. `known`: what was asked before, so that it is not asked again."""
        return Cluster(self, known)


class Cluster:
    """Asks brokers, one request at a time. For one thread. Use it as a context manager."""

    def __init__(self, address: ClusterAddress, known: Metadata | None = None) -> None:
        if not address.bootstrap:
            raise ValueError("a cluster needs the address of a broker")
        self._address = address
        self._known, self._connections = known or Metadata(), dict[BrokerAddress, Connection]()
        self._quiet_until_s = dict[int, float]()  # brokers that asked for a pause

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def known(self) -> Metadata:
        """What the cluster said last."""
        return self._known

    def leader(self, source: Source) -> Leader | None:
        """Return the leader of a partition, None where none is known."""
        return self._known.leaders.get(source)

    def ask_leaders(self, topics: Iterable[str]) -> Metadata:
        """Ask any broker for the leaders of all partitions of some topics.

        Raises Unavailable, AccessDenied, UnsupportedBroker, Corrupt.
        """
        names, failure = sorted(topics), OSError("no broker is known")
        brokers = list(self._known.brokers.values())
        random.shuffle(brokers)  # a cluster's load, not a secret
        for address in dict.fromkeys([*self._connections, *brokers, *self._address.bootstrap]):
            try:
                connection = self._connection(address)
                version = connection.version(Api.METADATA)
                reader = connection.call(Api.METADATA, version, metadata.request_body(names, version))
            except OSError as error:
                self._drop(address)
                failure = error
                continue
            self._known = metadata.merged(self._known, metadata.answer(reader, version))
            return self._known
        raise Unavailable(
            f"no Kafka broker answers at {', '.join(map(str, self._address.bootstrap))} ({failure}). "
            "Check kafka.bootstrap_servers, kafka.security and that the cluster is up."
        ) from failure

    def pause(self, node: int) -> float:
        """Wait as long as a broker asked for with its last answer. Returns the seconds."""
        pause_s = max(0.0, self._quiet_until_s.pop(node, 0) - time.monotonic())
        time.sleep(pause_s)
        return pause_s

    def fetch(
        self, node: int, questions: Sequence[PartitionQuestion], topic_ids: Mapping[str, UUID], *,
        wait_ms: int, bytes_max: int, rack: str, committed: bool = True,
    ) -> FetchAnswer:  # fmt: skip
        """Ask a broker for records. Raises OSError, UnsupportedBroker, Corrupt."""
        address = self._broker(node)
        try:
            connection = self._connection(address)
            version = connection.version(Api.FETCH)
            if any(topic_ids.get(one.topic, NO_ID) == NO_ID for one in questions):
                version = min(version, fetch.BY_ID - 1)  # a cluster without topic ids
            body = fetch.request_body(
                questions, version, topic_ids, wait_ms=wait_ms, bytes_max=bytes_max, rack=rack, committed=committed
            )
            found = fetch.answer(connection.call(Api.FETCH, version, body), version, topic_ids)
        except OSError:
            self._drop(address)
            raise
        if found.throttled_ms > 0:
            self._quiet_until_s[node] = time.monotonic() + found.throttled_ms / 1000
        return found

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
        if (address := self._known.brokers.get(node)) is None:
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
        if (connection := self._connections.pop(address, None)) is not None:
            connection.close()
