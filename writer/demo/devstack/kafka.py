"""Runs a real Kafka broker, on loopback unless told: one KRaft node, for the demo and the tests."""

import base64
import os
import subprocess
from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.clients import java_artifacts
from headrace.writer.demo.devstack.process import (
    LOOPBACK,
    Process,
    Server,
    ServerFailed,
    free_ports,
    is_listening,
    java_options,
    require_free,
)

HEAP_MEGABYTES = 512
# A start takes 3 s; on two cores beside fifteen busy processes more than 60.
READY_WITHIN = timedelta(seconds=180)
NODE_ID = 1
_TOPIC_WITHIN = timedelta(seconds=30)


class Broker(Server):
    """A single node, broker and controller in one, whose data live in `directory`; auto-creates no topic unless told.

    One that `joins` another, which runs already, is a further broker of its cluster, and no controller. A directory
    that holds data is opened again as the same cluster. `overrides` are lines of server.properties that win over the
    ones written here. `host`: an address of this machine, where it listens. `jvm_options` are of its Java.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        auto_create: bool = False,
        joins: "Broker | None" = None,
        overrides: Mapping[str, str] | None = None,
        host: str = LOOPBACK,
        jvm_options: Sequence[str] = (),
    ) -> None:
        self._jvm_options = jvm_options
        self._directory = directory.absolute()
        self.host = host
        free = free_ports(2)
        self.port = port or free[0]
        self.controller_port = free[1]
        self._joins = joins
        self._settings = {
            **_settings(self._directory, host, self.port, self.controller_port),
            "controller.quorum.voters": (joins or self).voter,
            **({} if joins is None else _second_broker_settings(host, self.port)),
            "auto.create.topics.enable": str(auto_create).lower(),
            **(overrides or {}),
        }
        self.cluster_id = ""

    @property
    def bootstrap(self) -> str:
        """`host:port`, as Kafka clients take it."""
        return f"{self.host}:{self.port}"

    @property
    def voter(self) -> str:
        """The controller, as `controller.quorum.voters` names it."""
        return f"{NODE_ID}@{self.host}:{self.controller_port}"

    def launch(self) -> None:
        """Format the directory if it is new and start the broker. `wait` waits until it answers.

        Raises ArtifactError, JavaMissing, ServerFailed.
        """
        jars = java_artifacts.fetch("kafka", progress=lambda _: None)
        java = java_artifacts.java()
        require_free("kafka", self.port, self.host)
        self._directory.mkdir(parents=True, exist_ok=True)
        properties = self._directory / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings.items()))
        command = [
            str(java),
            *java_options(self._directory, heap_megabytes=HEAP_MEGABYTES),
            *self._jvm_options,
            "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
            "-Dorg.slf4j.simpleLogger.showDateTime=true",
            "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd HH:mm:ss.SSSZ",
            "-cp",
            f"{jars}/*",
        ]
        self._format([*command, "kafka.tools.StorageTool"], properties)
        self.cluster_id = _cluster_id(self._directory)
        self._process = Process(
            "kafka",
            [*command, "kafka.Kafka", properties],
            cwd=self._directory,
            log=self._directory / "kafka.log",
        )
        self._process.launch()

    def wait(self) -> None:
        """Return once the broker answers clients. Raises ServerFailed."""
        assert self._process is not None, "launch comes before wait"
        self._process.wait_until(self._answers, within=READY_WITHIN)

    def _format(self, tool: list[str], properties: Path) -> None:
        if (self._directory / "data" / "meta.properties").exists():
            return
        cluster_id = self._joins and self._joins.cluster_id
        cluster_id = cluster_id or base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        out = subprocess.run(  # noqa: S603
            [*tool, "format", f"--cluster-id={cluster_id}", "--config", str(properties)],
            capture_output=True,
            text=True,
            timeout=READY_WITHIN.total_seconds(),
            check=False,
        )
        if out.returncode != 0:
            # A stack trace follows the first line.
            output = (out.stderr or out.stdout).strip().partition("\n")[0]
            raise ServerFailed(f"kafka cannot format {self._directory}: {output}")

    def _answers(self) -> bool:
        if not is_listening(self.port, self.host):
            return False
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        try:
            metadata = admin.list_topics(timeout=2)
        except KafkaException:
            return False
        if metadata.cluster_id != self.cluster_id:
            raise ServerFailed(
                f"{self.bootstrap} is answered by another cluster ({metadata.cluster_id}). Take another port."
            )
        return True


def create_topics(bootstrap: str, topics: Mapping[str, int]) -> None:
    """Create the topics that do not exist. `topics`: name → partitions. Raises KafkaException."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for created in admin.create_topics([NewTopic(name, count, 1) for name, count in topics.items()]).values():
        try:
            created.result(_TOPIC_WITHIN.total_seconds())
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise


def _settings(directory: Path, host: str, port: int, controller_port: int) -> dict[str, str]:
    return {
        "process.roles": "broker,controller",
        "node.id": str(NODE_ID),
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{host}:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": f"{directory}/data",
        # It counts from a record's own timestamp, which may be years ago.
        "log.retention.ms": "-1",
        # One node cannot replicate, and one partition of an internal topic starts faster than fifty.
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "group.initial.rebalance.delay.ms": "0",
        # It is taken from the heap; the default is 128 MiB.
        "log.cleaner.dedupe.buffer.size": str(8 * 2**20),
    }


def _second_broker_settings(host: str, port: int) -> dict[str, str]:
    """Return the settings that differ for a second broker of a cluster, which is no controller."""
    return {
        "process.roles": "broker",
        "node.id": str(NODE_ID + 1),
        "listeners": f"PLAINTEXT://{host}:{port}",
    }


def _cluster_id(directory: Path) -> str:
    lines = (directory / "data" / "meta.properties").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if "=" in line)["cluster.id"]
