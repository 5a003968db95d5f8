"""A cluster of brokers in this process that answers Metadata, Fetch and OffsetForLeaderEpoch, as a test wants.

What real brokers do is in tests/contract/test_kafka_reader.py; this is for what a single broker never does: leaders
that move, replicas, throttling, old versions, answers that are cut.
"""

import socket
import struct
import threading
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
}


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
            threading.Thread(target=self._serve, args=(node, connection), daemon=True).start()

    def _serve(self, node: int, connection: socket.socket) -> None:
        with connection:
            while node not in self.down and (head := _read(connection, 4)):
                request = FieldReader(memoryview(_read(connection, struct.unpack(">i", head)[0])))
                api, version, number = request.numbers("hhi")
                request.short_text()
                is_old = api == Api.API_VERSIONS or (api == Api.OFFSET_FOR_LEADER_EPOCH and version < 4)
                if not is_old:
                    request.skip_tags()
                if node in self.down:
                    return
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
        return self.garble(self._fetch(node, version, request))

    def _metadata(self, version: int, request: FieldReader) -> bytes:
        self.metadata_requests += 1
        brokers = [
            struct.pack(">i", node) + text(address.host) + struct.pack(">i", address.port) + b"\0" + NO_TAGS
            for node, address in self.addresses.items()
        ]
        topics = []
        for _ in request.count():
            if version >= 10:
                request.uuid()
            name = request.text() or ""
            request.skip_tags()
            leaders = [(p, *leader) for (topic, p), leader in self.leaders.items() if topic == name]
            partitions = [struct.pack(">hiii", 0, *leader) + b"\1\1\1" + NO_TAGS for leader in leaders]
            error = 0 if leaders else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
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


def _read(connection: socket.socket, size: int) -> bytes:
    content = b""
    while len(content) < size:
        received = connection.recv(size - len(content))
        if not received:
            return b""
        content += received
    return content
