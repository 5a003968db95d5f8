"""A cluster of brokers in this process that answers what headrace asks, as a test wants.

What real brokers do is in tests/contract/test_kafka_reader.py; this is for what a single broker never does: leaders
that move, replicas, throttling, old versions, answers that are cut.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from headrace.writer.core.offsets import Source
from headrace.writer.kafka_reader.connection import BrokerAddress
from headrace.writer.kafka_reader.protocol import (
    NO_TAGS,
    Api,
    ErrorCode,
    FieldReader,
    array,
    length,
    short_array,
    short_text,
    text,
)
from tests.support.kafka_batches import Raw

VERSIONS = {
    Api.FETCH: (4, 17),
    Api.METADATA: (0, 13),
    Api.API_VERSIONS: (0, 4),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
    Api.LIST_OFFSETS: (1, 10),
    Api.OFFSET_COMMIT: (2, 9),
    Api.OFFSET_FETCH: (1, 9),
    Api.FIND_COORDINATOR: (0, 6),
    Api.DESCRIBE_CONFIGS: (1, 4),
}
# Whose versions that headrace speaks have no compact lengths.
_OLD_APIS = (
    Api.API_VERSIONS,
    Api.LIST_OFFSETS,
    Api.OFFSET_COMMIT,
    Api.OFFSET_FETCH,
    Api.FIND_COORDINATOR,
    Api.DESCRIBE_CONFIGS,
)


@dataclass(frozen=True)
class PartitionFetch:
    """One partition of a Fetch request."""

    node: int
    topic: str
    partition: int
    epoch: int
    offset: int
    bytes_max: int
    rack: str
    version: int
    last_epoch: int = -1


@dataclass
class PartitionReply:
    """What a broker says of a partition beside its records."""

    error: int = 0
    replica: int = -1
    throttled_ms: int = 0
    log_start: int = 0
    aborted: list[tuple[int, int]] = field(default_factory=list)
    records: bytes | None = None  # None: those of the log


@dataclass
class Cluster:
    """State of the cluster; `say` decides what a broker answers to a question about a partition."""

    logs: dict[Source, list[Raw]]
    nodes: tuple[int, ...] = (1, 2)
    leaders: dict[Source, tuple[int, int]] = field(default_factory=dict)  # node, epoch
    topic_ids: dict[str, UUID] = field(default_factory=dict)
    versions: Mapping[int, tuple[int, int]] = field(default_factory=lambda: VERSIONS)
    say: Callable[[PartitionFetch], PartitionReply] = lambda _: PartitionReply()
    garble: Callable[[bytes], bytes] = lambda answer: answer  # of each Fetch answer
    addresses: dict[int, BrokerAddress] = field(default_factory=dict)
    fetches: list[list[PartitionFetch]] = field(default_factory=list)
    metadata_requests: int = 0
    epoch_errors: list[int] = field(default_factory=list)  # that the next questions about epochs are answered with
    down: set[int] = field(default_factory=set)  # these close each connection
    silent: set[int] = field(default_factory=set)  # these take requests and do not answer
    slow: set[int] = field(default_factory=set)  # these do not answer ListOffsets
    topic_errors: dict[str, list[int]] = field(default_factory=dict)  # of the next answers about a topic
    # Errors that the next questions for an offset are answered with, by partition.
    offset_errors: dict[Source, list[int]] = field(default_factory=dict)
    offset_requests: list[tuple[int, list[Source]]] = field(default_factory=list)  # nodes and what they were asked for
    configs: dict[str, dict[str, str | None]] = field(default_factory=dict)
    coordinator: int = 1
    coordinator_errors: list[int] = field(default_factory=list)  # that the next searches are answered with
    group_errors: list[int] = field(
        default_factory=list
    )  # that the next questions to the coordinator are answered with
    group_offsets: dict[Source, int] = field(default_factory=dict)
    connections: int = 0

    def __post_init__(self) -> None:
        for topic in {topic for topic, _ in self.logs}:
            self.topic_ids.setdefault(topic, UUID(int=hash(topic) % 2**64 + 1))
        for source in self.logs:
            self.leaders.setdefault(source, (self.nodes[0], 1))

    @contextmanager
    def running(self) -> Iterator[list[BrokerAddress]]:
        """Serve; gives the addresses of all brokers."""
        listeners = {node: socket.create_server(("127.0.0.1", 0)) for node in self.nodes}
        self.addresses = {node: BrokerAddress(*listener.getsockname()[:2]) for node, listener in listeners.items()}
        for node, listener in listeners.items():
            threading.Thread(target=self._accept, args=(node, listener), daemon=True).start()
        try:
            yield list(self.addresses.values())
        finally:
            for listener in listeners.values():
                listener.shutdown(socket.SHUT_RDWR)
                listener.close()

    def _accept(self, node: int, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(node, connection), daemon=True).start()

    def _serve(self, node: int, connection: socket.socket) -> None:
        with connection:
            while node not in self.down and (head := _read(connection, 4)):
                request = FieldReader(memoryview(_read(connection, struct.unpack(">i", head)[0])))
                api, version, number = request.numbers("hhi")
                request.short_text()
                is_old = api in _OLD_APIS or (api == Api.OFFSET_FOR_LEADER_EPOCH and version < 4)
                if not is_old:
                    request.skip_tags()
                if node in self.down:
                    return
                while node in self.silent or (api == Api.LIST_OFFSETS and node in self.slow):
                    time.sleep(0.01)
                answer = self._answer(node, api, version, request)
                frame = struct.pack(">i", number) + (b"" if is_old else NO_TAGS) + answer
                connection.sendall(struct.pack(">i", len(frame)) + frame)

    def _answer(self, node: int, api: int, version: int, request: FieldReader) -> bytes:
        if api == Api.API_VERSIONS:
            ranges = [struct.pack(">hhh", api_key, *version_range) for api_key, version_range in self.versions.items()]
            return struct.pack(">hi", 0, len(ranges)) + b"".join(ranges)
        if api == Api.METADATA:
            return self._metadata(version, request)
        if api == Api.OFFSET_FOR_LEADER_EPOCH:
            return self._epoch_ends(node, version, request)
        if api == Api.FETCH:
            return self.garble(self._fetch(node, version, request))
        answers = {
            Api.LIST_OFFSETS: self._list_offsets,
            Api.DESCRIBE_CONFIGS: self._describe_configs,
            Api.FIND_COORDINATOR: self._find_coordinator,
            Api.OFFSET_FETCH: self._fetch_offsets,
            Api.OFFSET_COMMIT: self._commit_offsets,
        }
        return struct.pack(">i", 0) + answers[Api(api)](node, request)

    def _metadata(self, version: int, request: FieldReader) -> bytes:
        self.metadata_requests += 1
        brokers = [
            struct.pack(">i", node) + text(address.host) + struct.pack(">i", address.port) + b"\0" + NO_TAGS
            for node, address in self.addresses.items()
        ]
        topics = []
        names = list[str]()
        count = request.length()
        for _ in range(count):
            if version >= 10:
                request.uuid()
            names.append(request.text() or "")
            request.skip_tags()
        for name in names if count >= 0 else sorted({topic for topic, _ in self.leaders}):
            leaders = [(p, *leader) for (topic, p), leader in self.leaders.items() if topic == name]
            partitions = [struct.pack(">hiii", 0, *leader) + b"\1\1\1" + NO_TAGS for leader in leaders]
            error = 0 if leaders else int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            if self.topic_errors.get(name):
                error = self.topic_errors[name].pop(0)
                partitions = []
            topic_id = self.topic_ids.get(name, UUID(int=0)).bytes if version >= 10 else b""
            rights = struct.pack(">i", 0)
            topics.append(
                struct.pack(">h", error) + text(name) + topic_id + b"\0" + array(partitions) + rights + NO_TAGS
            )
        rights_of_cluster = struct.pack(">i", 0) if version <= 10 else b""
        return (
            struct.pack(">i", 0)
            + array(brokers)
            + b"\0"
            + struct.pack(">i", 1)
            + array(topics)
            + rights_of_cluster
            + NO_TAGS
        )

    def _list_offsets(self, node: int, request: FieldReader) -> bytes:
        replica, committed = request.numbers("ib")
        assert replica == -1, "a consumer asks"
        assert committed in (0, 1)
        asked = list[Source]()
        topics = []
        for _ in request.short_count():
            name = request.short_text() or ""
            partitions = []
            for _ in request.short_count():
                partition, epoch, time_ms = request.numbers("iiq")
                asked.append((name, partition))
                errors = self.offset_errors.get((name, partition))
                if errors:
                    error = errors.pop(0)
                elif (name, partition) in self.leaders:
                    error = self._fence(node, epoch, *self.leaders[name, partition])
                else:
                    error = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
                log = self.logs.get((name, partition), [])
                offset = -1
                if not error and log:
                    offset = {-2: log[0].base, -1: log[-1].after}.get(time_ms, -1)
                partitions.append(struct.pack(">ihqqi", partition, error, -1, offset, -1))
            topics.append(short_text(name) + short_array(partitions))
        self.offset_requests.append((node, asked))
        return short_array(topics)

    def _describe_configs(self, _: int, request: FieldReader) -> bytes:
        results = []
        for _resource in request.short_count():
            assert request.number("b") == 2, "about a topic"
            topic = request.short_text() or ""
            names = [request.short_text() or "" for _name in request.short_count()]
            known = self.configs.get(topic)
            error = 0 if known is not None else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            settings = []
            for name in names if known else []:
                synonym = short_text(f"log.{name}") + _nullable_text(None) + b"\5"
                value = _nullable_text((known or {}).get(name))
                settings.append(short_text(name) + value + b"\0\5\0" + short_array([synonym]) + b"\5" + short_text(""))
            results.append(
                struct.pack(">h", error) + _nullable_text(None) + b"\2" + short_text(topic) + short_array(settings)
            )
        return short_array(results)

    def _find_coordinator(self, _: int, request: FieldReader) -> bytes:
        request.short_text()
        assert request.number("b") == 0, "of a group"
        if self.coordinator_errors and (error := self.coordinator_errors.pop(0)):
            return struct.pack(">h", error) + short_text("no") + struct.pack(">i", -1) + short_text("") + b"\xff" * 4
        broker = self.addresses[self.coordinator]
        head = struct.pack(">h", 0) + _nullable_text(None) + struct.pack(">i", self.coordinator)
        return head + short_text(broker.host) + struct.pack(">i", broker.port)

    def _group_error(self, node: int) -> int:
        if self.group_errors:
            return self.group_errors.pop(0)
        return 0 if node == self.coordinator else int(ErrorCode.NOT_COORDINATOR)

    def _fetch_offsets(self, node: int, request: FieldReader) -> bytes:
        request.short_text()
        error = self._group_error(node)
        topics = []
        for _ in request.short_count():
            name = request.short_text() or ""
            partitions = []
            for _ in request.short_count():
                partition = request.number("i")
                offset = -1 if error else self.group_offsets.get((name, partition), -1)
                partitions.append(struct.pack(">iqi", partition, offset, -1) + _nullable_text(None) + b"\0\0")
            topics.append(short_text(name) + short_array(partitions))
        return short_array([] if error else topics) + struct.pack(">h", error)

    def _commit_offsets(self, node: int, request: FieldReader) -> bytes:
        request.short_text()
        assert request.number("i") == -1, "of no member"
        assert (request.short_text(), request.short_text()) == ("", None)
        error = self._group_error(node)
        topics = []
        for _ in request.short_count():
            name = request.short_text() or ""
            partitions = []
            for _ in request.short_count():
                partition, offset, _epoch = request.numbers("iqi")
                request.short_text()
                if not error:
                    self.group_offsets[name, partition] = offset
                partitions.append(struct.pack(">ih", partition, error))
            topics.append(short_text(name) + short_array(partitions))
        return short_array(topics)

    def _epoch_ends(self, node: int, version: int, request: FieldReader) -> bytes:
        if version >= 3:
            assert request.number("i") == -1, "a consumer asks"
        is_old = version < 4
        topics = []
        for _ in range(request.number("i")) if is_old else request.count():
            name = (request.short_text() if is_old else request.text()) or ""
            partitions = []
            for _ in range(request.number("i")) if is_old else request.count():
                partition, leader, epoch = request.numbers("iii")
                request.raw(0 if is_old else 1)
                leader_epochs = (leader, *self.leaders[name, partition])
                error = self.epoch_errors.pop(0) if self.epoch_errors else self._fence(node, *leader_epochs)
                epoch_end = (-1, -1) if error else self.epoch_end((name, partition), epoch)
                partitions.append(struct.pack(">hiiq", error, partition, *epoch_end) + (b"" if is_old else NO_TAGS))
            request.raw(0 if is_old else 1)
            topics.append(
                short_text(name) + short_array(partitions) if is_old else text(name) + array(partitions) + NO_TAGS
            )
        return struct.pack(">i", 0) + (short_array(topics) if is_old else array(topics) + NO_TAGS)

    def epoch_end(self, source: Source, epoch: int) -> tuple[int, int]:
        """Answer as Kafka's LeaderEpochFileCache.endOffsetFor does, from the batches of the log."""
        log = self.logs[source]
        starts = dict[int, int]()
        for batch in log:
            starts.setdefault(batch.leader_epoch, batch.base)
        newest = max(starts, default=-1)
        if epoch == newest:
            return epoch, log[-1].after
        later = [start_epoch for start_epoch in starts if start_epoch > epoch]
        if not later:
            return -1, -1
        return max((start_epoch for start_epoch in starts if start_epoch <= epoch), default=epoch), starts[min(later)]

    def _fence(self, node: int, fenced_epoch: int, leader: int, epoch: int) -> int:
        if node != leader:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fenced_epoch in (-1, epoch):
            return 0
        return ErrorCode.FENCED_LEADER_EPOCH if fenced_epoch < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH

    def _fetch(self, node: int, version: int, request: FieldReader) -> bytes:
        bytes_left = request.numbers("iiiibii")[3]  # bytes of the answer
        names = {topic_uuid: name for name, topic_uuid in self.topic_ids.items()}
        partitions = list[tuple[str, UUID, int, int, int, int, int]]()
        for _ in request.count():
            topic_id = request.uuid() if version >= 13 else UUID(int=0)
            name = names.get(topic_id, "?") if version >= 13 else request.text() or ""
            for _ in request.count():
                partition, epoch, offset, last_epoch, _, bytes_max = request.numbers("iiqiqi")
                request.skip_tags()
                partitions.append((name, topic_id, partition, epoch, offset, bytes_max, last_epoch))
            request.skip_tags()
        request.length()  # forgotten topics
        rack = request.text() or ""
        questions = [
            PartitionFetch(node, name, p, epoch, start, size, rack, version, last)
            for name, _, p, epoch, start, size, last in partitions
        ]
        self.fetches.append(questions)
        throttled_ms = 0
        topics = []
        is_first = True
        for question, (name, topic_id, *_) in zip(questions, partitions, strict=True):
            reply = self._reply(question)
            throttled_ms = max(throttled_ms, reply.throttled_ms)
            aborted = array(struct.pack(">qq", *transaction) + NO_TAGS for transaction in reply.aborted)
            records = (
                reply.records if reply.records is not None else self._records(question, reply, bytes_left, is_first)
            )
            diverging = self._diverging(question)
            records = b"" if diverging else records
            bytes_left = max(bytes_left - len(records), 0)
            is_first = is_first and not records
            head = struct.pack(">ihqqq", question.partition, reply.error, 0, 0, reply.log_start)
            answer = head + aborted + struct.pack(">i", reply.replica) + length(len(records)) + records
            answer += diverging or NO_TAGS
            topics.append((topic_id.bytes if version >= 13 else text(name)) + array([answer]) + NO_TAGS)
        return struct.pack(">ihi", throttled_ms, 0, 0) + array(topics) + NO_TAGS

    def _diverging(self, question: PartitionFetch) -> bytes:
        """Return the tagged field of a partition whose log differs from what was read before (KIP-595)."""
        log = self.logs.get((question.topic, question.partition), [])
        if question.last_epoch < 0 or len({batch.leader_epoch for batch in log}) == 1:
            return b""
        epoch, end = self.epoch_end((question.topic, question.partition), question.last_epoch)
        if epoch == question.last_epoch and end >= question.offset:
            return b""
        return b"\1" + b"\0" + bytes([13]) + struct.pack(">iq", epoch, end) + NO_TAGS

    def _reply(self, question: PartitionFetch) -> PartitionReply:
        leader, epoch = self.leaders.get((question.topic, question.partition), (-1, -1))
        reply = self.say(question)
        if reply != PartitionReply():
            return reply
        if question.topic == "?":
            return PartitionReply(ErrorCode.UNKNOWN_TOPIC_ID)
        if question.node != leader:
            return PartitionReply(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if question.epoch not in (-1, epoch):
            return PartitionReply(
                ErrorCode.FENCED_LEADER_EPOCH if question.epoch < epoch else ErrorCode.UNKNOWN_LEADER_EPOCH
            )
        return reply

    def _records(self, question: PartitionFetch, reply: PartitionReply, bytes_left: int, is_first: bool) -> bytes:
        """As a broker does: within both limits, but the first batch of the first partition that has one whole."""
        if reply.error or reply.replica >= 0:
            return b""
        log = self.logs[question.topic, question.partition]
        batches = [batch.encode() for batch in log if batch.after > question.offset]
        least = len(batches[0]) if batches and is_first else 0
        return b"".join(batches)[: max(min(question.bytes_max, bytes_left), least)]


def _nullable_text(value: str | None) -> bytes:
    return struct.pack(">h", -1) if value is None else short_text(value)


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        received = connection.recv(size - len(content))
        if not received:
            return b""
        content += received
    return content
