"""The stack of a chaos run: real broker, registry, supervisor and driver below one directory."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import psutil
import yaml
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import headrace
from headrace.bench.chaos.damage import damage
from headrace.bench.chaos.schedule import TOPICS, Event, Fault
from headrace.bench.chaos.verification import TopicLife, read_offsets, subtract_spans
from headrace.writer.clients.kafka import Cluster
from headrace.writer.config.loader import load
from headrace.writer.core.errors import TopicMissing
from headrace.writer.demo.devstack.events import produce
from headrace.writer.demo.devstack.process import Process
from headrace.writer.demo.devstack.stack import Stack
from headrace.writer.demo.devstack.value_encoding import AvroEncoding
from headrace.writer.demo.devstack.workspace import Workspace
from headrace.writer.driver.child_processes import DAEMON_MODULE
from headrace.writer.table.factory import main_table

PIPELINE = "chaos"
_ANSWER = timedelta(seconds=30)
# These flags take a third off the start on two cores.
_QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_POLL_S = 0.2
# The share of operations that fail, and the delay of the others in seconds.
_FAILING = "0.25 0.3"
_DRAINED_WITHIN_S = 120.0


class ChaosStack:
    """Faults are done one after the other. Launch it on the main thread: its servers end with that thread."""

    def __init__(self, workspace: Workspace) -> None:
        self.directory = directory = workspace.directory
        self.config = directory / "headrace.yaml"
        self.lake = directory / "lake" / PIPELINE
        self.dead_letters = directory / "lake" / f"{PIPELINE}_dead_letters"
        self.log = directory / "writer.log"
        # The keys are topic ids.
        self.lives: dict[str, TopicLife] = {}
        self._table_format = workspace.format
        self._trouble = directory / "trouble"
        self._scratch = directory / "scratch"
        self._stack = workspace.stack = Stack(directory / "servers")
        self._supervisor: Process | None = None

    def start(self) -> None:
        """Start all. Raises ServerFailed, ArtifactError, KafkaException."""
        self._stack.start()
        self._admin = AdminClient({"bootstrap.servers": self._stack.broker.bootstrap, "log_level": 0})
        for topic in TOPICS:
            self._create(topic)
        self.config.write_text(self._configuration())
        self._headrace = load(self.config)
        self._launch()

    def stop(self) -> None:
        """End the supervisor, whatever state it is in; all else ends with the ground."""
        if self._supervisor is not None:
            self._supervisor.stop(grace=timedelta(0))

    def produce(self, events: int, seed: int, broken: int = 0) -> None:
        """Produce so many events to each topic."""
        for turn, topic in enumerate(TOPICS):
            produce(
                self._stack.broker.bootstrap,
                AvroEncoding(self._stack.registry.url),
                topic,
                events,
                kind="clicks",
                now=datetime.now(UTC),
                seed=seed + turn,
                broken=broken,
            )

    def strike(self, event: Event) -> str:
        """Do a fault, and undo it where it lasts. Returns what was done where chance or the moment decided it."""
        rnd = Random(event.seed)  # noqa: S311 - no secret
        match event.fault:
            case Fault.KILL_DRIVER | Fault.KILL_JVM | Fault.KILL_WORKER | Fault.KILL_SUPERVISOR:
                return self._kill(event.fault)
            case Fault.PAUSE:
                return self._pause(event.seconds)
            case Fault.DAMAGE:
                runs = sorted((self.directory / "checkpoints" / PIPELINE).glob("[0-9]*"))
                done = "there is no checkpoint yet"
                if runs:
                    done = damage(runs[-1], event.target, rnd)
                return f"{done}; {self._kill(Fault.KILL_DRIVER)}"
            case Fault.BROKER:
                self._stack.broker.stop()
                time.sleep(event.seconds)
                self._stack.broker.start()
                return ""
            case Fault.STORAGE:
                self._trouble.write_text(_FAILING)
                time.sleep(event.seconds)
                self._trouble.unlink()
                return ""
            case Fault.RETENTION:
                return self._apply_retention(event.target, rnd)
            case Fault.RECREATE:
                return self._recreate(event.target)

    def settle(self) -> bool:
        """Let the writer read to the end of the logs. False when it does not, for as long as a last resort takes."""
        deadline = time.monotonic() + 10 * 60
        while time.monotonic() < deadline:
            if self._has_caught_up():
                return True
            self._revive()
            time.sleep(_POLL_S * 5)
        return False

    def finish(self) -> int | None:
        """Ask the supervisor to drain and end. Returns its exit code, None when it does not end."""
        process = self._process()
        if process is None:
            return None
        process.send_signal(signal.SIGTERM)
        with suppress(psutil.TimeoutExpired):
            return int(process.wait(_DRAINED_WITHIN_S))
        return None

    def note_ends(self) -> None:
        """Note how far the logs are, of the lives that there are now."""
        cluster = Cluster(self._stack.broker.bootstrap, _ANSWER)
        for topic in cluster.topics(list(TOPICS)).values():
            ends = cluster.latest([(topic.name, p) for p in range(topic.partitions)])
            life = self.lives.setdefault(topic.id, TopicLife(topic.name, {}))
            life.ends = {p: log_end for (_, p), log_end in ends.items()}

    def _has_caught_up(self) -> bool:
        """Return whether the lake holds the last record of each log, as far as retention left one."""
        self.note_ends()
        # The newest life of each partition that has rows, and the offset that it reaches.
        newest: dict[tuple[str, int], tuple[int, int]] = {}
        for (topic, number, partition), offsets in read_offsets([self.lake, self.dead_letters]).items():
            progress = (number, max(stop for _, stop in offsets.spans))
            newest[topic, partition] = max(newest.get((topic, partition), (0, 0)), progress)
        for life in self.lives.values():
            if life.deleted:
                continue
            for partition, log_end in life.ends.items():
                last_offset = newest.get((life.topic, partition), (0, 0))[1]
                if any(subtract_spans((min(last_offset, log_end), log_end), sorted(life.taken.get(partition, ())))):
                    return False
        return True

    def _kill(self, fault: Fault) -> str:
        process = self._find_process(fault)
        if process is None:
            return "there is none at the moment"
        with suppress(psutil.NoSuchProcess):
            process.kill()
        if fault is Fault.KILL_SUPERVISOR:
            self._revive()
        return ""

    def _pause(self, seconds: float) -> str:
        """Let driver and JVM stand still together, as a frozen machine does."""
        driver = self._find_process(Fault.KILL_DRIVER)
        if driver is None:
            return "there is none at the moment"
        with suppress(psutil.NoSuchProcess):
            processes = [driver, *driver.children(recursive=True)]
            for process in processes:
                process.suspend()
            time.sleep(seconds)
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.resume()
        return ""

    def _apply_retention(self, topic: str, rnd: Random) -> str:
        """Delete records up to an offset somewhere in what is held, as retention does."""
        cluster = Cluster(self._stack.broker.bootstrap, _ANSWER)
        metadata = cluster.topics([topic])[topic]
        sources = [(topic, number) for number in range(metadata.partitions)]
        earliest = cluster.earliest(sources)
        ends = cluster.latest(sources)
        partition = rnd.randrange(metadata.partitions)
        start = earliest[topic, partition]
        log_end = ends[topic, partition]
        until = rnd.randint(start, log_end)
        requests = [TopicPartition(topic, partition, until)]
        for future in self._admin.delete_records(requests).values():
            future.result(_ANSWER.total_seconds())
        self.lives[metadata.id].taken.setdefault(partition, []).append((start, until))
        return f"{topic}/{partition} begins at {until}, ends at {log_end}"

    def _recreate(self, topic: str) -> str:
        """Delete a topic and create it again under its name. The life that ends keeps its last ends."""
        self.note_ends()
        topic_life = next(life for life in self.lives.values() if life.topic == topic and not life.deleted)
        topic_life.deleted = True
        self._admin.delete_topics([topic])[topic].result(_ANSWER.total_seconds())
        self._create(topic)
        return f"{topic} had {sum(topic_life.ends.values())} records"

    def _create(self, topic: str) -> None:
        deadline = time.monotonic() + _ANSWER.total_seconds()
        while True:
            try:
                future = self._admin.create_topics([NewTopic(topic, TOPICS[topic], 1)])[topic]
                future.result(_ANSWER.total_seconds())
                break
            except KafkaException as error:
                deleting = error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
                if not deleting or time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        self.note_life(topic)

    def note_life(self, topic: str) -> None:
        """Note the life that a topic has now; the broker may know it some time after it said that it made it."""
        cluster = Cluster(self._stack.broker.bootstrap, _ANSWER)
        deadline = time.monotonic() + _ANSWER.total_seconds()
        while True:
            try:
                metadata = cluster.topics([topic])[topic]
                break
            except TopicMissing:
                if time.monotonic() > deadline:
                    raise
                time.sleep(_POLL_S)
        self.lives[metadata.id] = TopicLife(topic, dict.fromkeys(range(metadata.partitions), 0))

    def _launch(self) -> None:
        environment = {
            "HEADRACE_TROUBLE": str(self._trouble),
            "TMPDIR": str(self._scratch),
            "SPARK_LOCAL_DIRS": str(self._scratch),
            "PYTHONPATH": os.pathsep.join(
                [str(Path(headrace.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
            ),
        }
        command: list[str | Path] = [sys.executable, "-m", "headrace.writer.cli", "supervisor", "run", self.config]
        self._supervisor = Process("the supervisor", command, cwd=self._scratch, log=self.log, env=environment)
        self._supervisor.launch()

    def _revive(self) -> None:
        """Start the supervisor again if it is gone, as systemd or a pod would."""
        if self._process() is None:
            if self._supervisor is not None:
                self._supervisor.stop(grace=timedelta(0))
            self._launch()

    def _process(self) -> psutil.Process | None:
        """Return the supervisor, if it lives."""
        pid = self._supervisor and self._supervisor.pid
        with suppress(psutil.NoSuchProcess):
            if pid:
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    return process
        return None

    def _find_process(self, fault: Fault) -> psutil.Process | None:
        """Return the process that a fault is for. Among several workers, the oldest."""
        supervisor = self._process()
        if supervisor is None or fault is Fault.KILL_SUPERVISOR:
            return supervisor
        with suppress(psutil.Error):
            for process in supervisor.children(recursive=True):
                command_line = process.cmdline()
                if _matches_process(fault, command_line):
                    return process
        return None

    def _configuration(self) -> str:
        return yaml.safe_dump(
            {
                "kafka": {"bootstrap_servers": self._stack.broker.bootstrap, "request_timeout": "10 s"},
                "registry": {"url": self._stack.registry.url},
                "checkpoints": str(self.directory / "checkpoints"),
                "http": {"port": 0},
                # A run has as many faults as months of operation elsewhere.
                "supervisor": {"port": 0, "healthy_after": "20 s"},
                "spark": {"conf": {"spark.driver.extraJavaOptions": _QUICK_START}},
                "pipelines": {
                    PIPELINE: {
                        "topics": list(TOPICS),
                        "table": {
                            "location": str(self.lake),
                            "format": self._table_format,
                            "dead_letters": str(self.dead_letters),
                        },
                        "event_time": {"field": "event_time"},
                        "bucket": {"type": "event_time", "width": "1 h"},
                        "commit": {"max_delay": "2 s", "max_offsets": 5000},
                        "roll": {"target_file_size": "4 MiB"},
                        "limits": {"max_failed_ratio": 1.0},
                        "on_data_loss": "record",
                        "on_topic_recreated": "start",
                    }
                },
            },
            sort_keys=False,
        )

    def numbers(self) -> dict[str, int]:
        """Return the number that the table gives each life, by topic id."""
        incarnations = main_table(PIPELINE, self._headrace).snapshot().incarnations()
        return {life: number for lives in incarnations.values() for number, life in enumerate(lives, 1)}


def _matches_process(fault: Fault, command_line: Sequence[str]) -> bool:
    line = " ".join(command_line)
    match fault:
        case Fault.KILL_JVM:
            return "org.apache.spark.deploy.SparkSubmit" in line
        case Fault.KILL_WORKER:
            return DAEMON_MODULE in line
        case _:
            return "headrace.writer.cli" in line and " run " in f"{line} " and "supervisor" not in command_line
