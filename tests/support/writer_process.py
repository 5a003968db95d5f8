"""Running the real writer as a user does: `headrace run`, in a process of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import yaml
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from headrace.writer.demo.devstack.events import SCHEMAS, encoder, generate, produce
from headrace.writer.demo.devstack.value_encoding import AvroEncoding
from tests.servers.login_broker import LOGIN, with_login, writer_address
from tests.support import oracle, spark_jvm
from tests.support.process import Process
from tests.support.spark_jvm import QUICK_START

JAVA_OPTIONS = "spark.driver.extraJavaOptions"
NOW = datetime(2026, 11, 20, 12, 30, tzinfo=UTC)
_READ = re.compile(r"batch_committed.* read=(\d+)")
READER = os.environ.get("HEADRACE_TEST_READER", "native")  # of Kafka; the suite passes with both


@dataclass
class Site:
    """A place with a configuration, a lake, and topics on the session's broker."""

    root: Path
    bootstrap: str
    registry_url: str
    pipelines: dict[str, Any] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)
    reader: str = READER

    def pipeline(
        self, name: str, topics: list[str] | dict[str, Any], *, form: str = "delta", raw: bool = False, **settings: Any
    ) -> Path:
        """Add a pipeline with small files and a generous time window. Returns its table's location.

        `raw`: with a raw table beside it.
        """
        location = self.root / "lake" / name
        self.pipelines[name] = {
            "topics": topics,
            "table": {"location": str(location), "format": form, **({"raw": f"{location}_raw"} if raw else {})},
            "event_time": {"field": "event_time", "max_age": "36500 d", "max_ahead": "36500 d"},
            "roll": {"target_file_size": "4 MiB"},
            "schemas": {"unknown_id_timeout": "2 s"},
            "seal": {"enabled": False},  # events of a day that is over would be sealed under the tests' hands
            **settings,
        }
        return location

    @property
    def writer_address(self) -> str:
        """Where the writer connects, which is another listener than the test's where the suite has a login."""
        return writer_address(self.bootstrap)

    @property
    def config(self) -> Path:
        """Write the configuration file."""
        path = self.root / "headrace.yaml"
        content = {
            "kafka": {"bootstrap_servers": self.bootstrap, "request_timeout": "10 s", "reader": self.reader},
            "registry": {"url": self.registry_url},
            "catalog": {"type": "sql", "uri": f"sqlite:///{self.root}/catalog.db"},
            "checkpoints": str(self.root / "checkpoints"),
            "spark": {"conf": {JAVA_OPTIONS: QUICK_START}},
            "http": {"port": 0},  # any free one: several writers run on this machine
            "supervisor": {"lease_expiry": "1 s"},  # a start after a kill waits for so long
            "pipelines": self.pipelines,
            **self.overrides,
        }
        content["kafka"] = with_login(content["kafka"])
        path.write_text(yaml.safe_dump(content))
        return path

    def fill(self, topic: str, count: int, *, seed: int = 7, broken: int = 0, kind: str = "clicks") -> int:
        """Produce events. Returns how many messages the topic got."""
        messages = produce(
            self.bootstrap, AvroEncoding(self.registry_url), topic, count, now=NOW, kind=kind, seed=seed, broken=broken
        )
        return sum(messages.per_partition.values())

    def values(
        self, topic: str, count: int, *, seed: int = 7, kind: str = "clicks", subject: str = ""
    ) -> list[tuple[bytes, bytes]]:
        """Keys and encoded values of events; their schema is registered, by default as that of the topic's values."""
        with SchemaRegistryClient({"url": self.registry_url}) as registry:
            schema_id = registry.register_schema(subject or f"{topic}-value", Schema(json.dumps(SCHEMAS[kind]), "AVRO"))
        encode = encoder(SCHEMAS[kind], schema_id)
        return [(key, encode(record)) for key, record in generate(kind, count, now=NOW, seed=seed)]

    def send(
        self, topic: str, messages: Iterable[tuple[bytes, bytes | None]], producer: Producer | None = None
    ) -> None:
        """Produce messages as they are, without asking the registry."""
        sender = producer or Producer({"bootstrap.servers": self.bootstrap})
        for key, value in messages:
            sender.produce(topic, value, key)
            sender.poll(0)
        assert sender.flush(30) == 0

    def ends(self, *topics: str) -> dict[oracle.Source, int]:
        """Ends of the topics' logs."""
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "test"})
        try:
            topics_by_name = consumer.list_topics(timeout=60).topics
            sources = [(topic, p) for topic in topics for p in topics_by_name[topic].partitions]
            return {s: consumer.get_watermark_offsets(TopicPartition(*s), timeout=60)[1] for s in sources}
        finally:
            consumer.close()

    def records(self, topic: str) -> dict[tuple[int, int], tuple[bytes | None, bytes | None]]:
        """Key and value of each record of a topic, by partition and offset."""
        ends = self.ends(topic)
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "test"})
        try:
            consumer.assign([TopicPartition(topic, partition, 0) for _, partition in ends])
            records: dict[tuple[int, int], tuple[bytes | None, bytes | None]] = {}
            while len(records) < sum(ends.values()):
                # Until there are as many as it is asked for, it waits for its timeout.
                messages = consumer.consume(min(10_000, sum(ends.values()) - len(records)), timeout=60)
                assert messages, f"{len(records)} of {sum(ends.values())} records of {topic} came"
                for message in messages:
                    assert message.error() is None, message.error()
                    records[message.partition(), message.offset()] = (message.key(), message.value())
            return records
        finally:
            consumer.close()

    def forget(self, topic: str, before: Mapping[int, int]) -> None:
        """Let Kafka delete the records of partitions before an offset, as retention does."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        wanted = [TopicPartition(topic, partition, offset) for partition, offset in before.items()]
        for future in admin.delete_records(wanted).values():
            future.result(timeout=60)

    def again(self, topic: str, partitions: int = 1) -> None:
        """Delete a topic and create it again under its name."""
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.delete_topics([topic])[topic].result(timeout=60)
        deadline = time.monotonic() + 60
        while True:
            try:
                admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(timeout=60)
            except KafkaException:  # the deletion is still under way
                assert time.monotonic() < deadline
                time.sleep(0.2)
            else:
                return

    def start(self, *flags: str, env: Mapping[str, str] | None = None) -> "Writer":
        """Start the writer."""
        log = self.root / f"writer-{len(list(self.root.glob('writer-*.log')))}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace.writer.cli", "run", str(self.config), *flags],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env={**os.environ, **(env or {})},
            )
        return Writer(process, log)

    def _fits_a_running_jvm(self) -> bool:
        """Return whether nothing is configured that a JVM takes at its start alone, or keeps for its next driver."""
        # Spark keeps consumers for five minutes after the end of a driver. They ask its endpoint for tokens, in vain,
        # and meanwhile no other client of the JVM logs in: Java's logins wait for each other.
        reader = self.overrides.get("kafka", {}).get("reader", self.reader)
        if LOGIN != "none" and reader == "spark":
            return False
        conf = self.overrides.get("spark", {}).get("conf", {})
        clouds = {"s3", "gcs", "azure"}
        return clouds.isdisjoint(self.overrides) and all(item == (JAVA_OPTIONS, QUICK_START) for item in conf.items())

    def once(self, *flags: str, env: Mapping[str, str] | None = None, code: int = 0) -> str:
        """Run the writer to its end. Asserts the exit code; returns what it said."""
        shares = not env and self._fits_a_running_jvm()
        with spark_jvm.SHARED.lend() if shares else nullcontext(cast(Mapping[str, str], {})) as jvm:
            writer = self.start("--once", *flags, env={**jvm, **(env or {})})
            exit_code = writer.wait(240)
        output = writer.output()
        assert exit_code == code, f"exit code {exit_code}, expected {code}:\n{output}"
        return output


class Writer(Process):
    """A running writer."""

    def stop(self) -> str:
        """Ask it to stop as a supervisor does, and expect that it does well. Returns what it said."""
        self.process.send_signal(signal.SIGTERM)
        assert self.wait(120) == 0, self.output()
        return self.output()

    def commits(self) -> int:
        return self.output().count("batch_committed")

    def committed_records(self) -> int:
        """Records that its batches read. A batch may end amid what a test sends, so commits do not count them."""
        return sum(map(int, _READ.findall(self.output())))
