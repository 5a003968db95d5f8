"""A cluster of three brokers, and what an operator does to it."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.clients import java_artifacts
from headrace.writer.demo.devstack.stack import Broker
from tests.servers.login_broker import add_login
from tests.servers.network_hosts import THIS_HOST, Host


@dataclass(frozen=True)
class ThreeBrokers:
    """Brokers 1, 2 and 3 of one cluster, each in the rack of its number; the first is its only controller."""

    brokers: Sequence[Broker]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.bootstrap for broker in self.brokers)

    def create(self, topic: str, replicas: Sequence[Sequence[int]], **settings: str) -> None:
        """Create a topic with these replicas of each partition, the leader first."""
        new = NewTopic(
            topic, len(replicas), replica_assignment=[list(assignment) for assignment in replicas], config=settings
        )
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([new])[topic].result(30)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node that leads a partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return int(admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader)

    def in_sync(self, topic: str, partition: int = 0) -> set[int]:
        """Return the nodes that have all records of a partition."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        return set(admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].isrs)

    def reassign(self, topic: str, partition: int, replicas: Sequence[int]) -> None:
        """Move a partition to other replicas, and return once it is there."""
        self._admin("reassign", topic, str(partition), ",".join(map(str, replicas)))

    def kill(self, node: int) -> None:
        """End a broker as a power cut does."""
        broker = self.brokers[node - 1]
        assert broker.pid is not None
        os.killpg(broker.pid, signal.SIGKILL)
        broker.stop()

    def throttle(self, client: str, bytes_per_second: int | None) -> None:
        """Bound what consumers with this client id may read; None: no longer."""
        self._admin("quota", client, "none" if bytes_per_second is None else str(bytes_per_second))

    def _admin(self, *arguments: str) -> None:
        jars = java_artifacts.fetch("kafka", progress=lambda _: None)
        source = Path(__file__).with_name("KafkaAdmin.java")
        command = [str(java_artifacts.java()), "-cp", f"{jars}/*", str(source), self.bootstrap, *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stderr


@contextmanager
def three_brokers(folder: Path, hosts: Sequence[Host] = (THIS_HOST,) * 3) -> Iterator[ThreeBrokers]:
    """Run them, each on its host."""
    with ExitStack() as running:
        brokers = list[Broker]()
        for node, host in enumerate(hosts, 1):
            broker = Broker(
                folder / str(node),
                joins=brokers[0] if brokers else None,
                host=host.address,
                overrides={"node.id": str(node), **_in_rack(node)},
            )
            # No other host reaches the server of tokens.
            if host is THIS_HOST:
                add_login(broker)
            with host.enter():
                broker.launch()
            running.callback(broker.stop)
            brokers.append(broker)
            if node == 1:
                broker.wait()
        for broker in brokers:
            broker.wait()
        yield ThreeBrokers(brokers)


def _in_rack(node: int) -> dict[str, str]:
    return {
        "broker.rack": str(node),
        "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    }
