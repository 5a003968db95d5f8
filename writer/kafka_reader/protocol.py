"""Fields of Kafka's protocol: how requests are written and answers read.

Sources: https://kafka.apache.org/protocol, KIP-482 (flexible versions: compact lengths and tagged fields).
"""

import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator
from enum import IntEnum
from functools import cache
from uuid import UUID

from headrace.writer.kafka_reader.errors import Corrupt

# Of a length, which is a 32-bit number.
_VARINT_BYTES_MAX = 5
# A byte of a varint from which on another byte follows.
_CONTINUES = 0x80


class Api(IntEnum):
    """Requests that headrace sends."""

    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    OFFSET_FOR_LEADER_EPOCH = 23
    DESCRIBE_CONFIGS = 32
    SASL_AUTHENTICATE = 36


# Lowest and highest version of each that is spoken here. Fetch 13 asks by topic id (KIP-516, Kafka 3.1), 12 by name
# (Kafka 2.7). OFFSET_FOR_LEADER_EPOCH says the leader's epoch from version 2 on (Kafka 2.1). Logins
# and API_VERSIONS stay at versions that each broker since Kafka 1.0 knows. The driver's questions about offsets,
# settings and groups have one version each, without compact lengths, which Kafka 2.6 to 4.1 know.
VERSIONS = {
    Api.FETCH: (12, 13),
    Api.LIST_OFFSETS: (5, 5),
    Api.OFFSET_COMMIT: (7, 7),
    Api.OFFSET_FETCH: (5, 5),
    Api.FIND_COORDINATOR: (2, 2),
    Api.DESCRIBE_CONFIGS: (3, 3),
    Api.METADATA: (9, 12),
    Api.SASL_HANDSHAKE: (1, 1),
    Api.SASL_AUTHENTICATE: (1, 1),
    Api.API_VERSIONS: (0, 0),
    Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
}
_FIRST_FLEXIBLE_VERSION = {Api.FETCH: 12, Api.METADATA: 9, Api.OFFSET_FOR_LEADER_EPOCH: 4}
NO_TAGS = b"\0"


class ErrorCode(IntEnum):
    """Errors of brokers that are acted on or named."""

    UNKNOWN = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    ILLEGAL_GENERATION = 22
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    LISTENER_NOT_FOUND = 72
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    OFFSET_NOT_AVAILABLE = 78
    UNKNOWN_TOPIC_ID = 100
    INCONSISTENT_TOPIC_ID = 103


def error_name(code: int) -> str:
    """Name a broker's error as Kafka does."""
    return next((error.name for error in ErrorCode if error == code), f"error {code}")


class FieldReader:
    """Reads the fields of an answer one after the other. Raises Corrupt where they do not fit into it."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self._position = 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Read numbers as `struct` names them, big-endian."""
        compiled = _compile_layout(layout)
        try:
            values = compiled.unpack_from(self.data, self._position)
        except struct.error as error:
            raise Corrupt(f"an answer of a broker ends within a field: {error}") from error
        self._position += compiled.size
        return values

    def number(self, layout: str) -> int:
        """Read one number."""
        return self.numbers(layout)[0]

    def raw(self, size: int) -> memoryview:
        """Read so many bytes."""
        begin = self._position
        if size < 0 or begin + size > len(self.data):
            raise Corrupt(f"an answer of a broker has a field of {size} bytes, and {len(self.data) - begin} are left")
        self._position = begin + size
        return self.data[begin : self._position]

    def length(self) -> int:
        """Read a compact length or count; -1 is null."""
        value = 0
        for digit in range(_VARINT_BYTES_MAX):
            byte = self.number("B")
            value |= (byte & 0x7F) << (7 * digit)
            if byte < _CONTINUES:
                return value - 1
        raise Corrupt("an answer of a broker has a length of more than five bytes")

    def count(self) -> range:
        """Read the count of an array as a range; null is empty."""
        return range(max(self.length(), 0))

    def text(self) -> str | None:
        """Read a compact text."""
        return self._text(self.length())

    def short_text(self) -> str | None:
        """Read a text of the versions that are not flexible."""
        return self._text(self.number("h"))

    def _text(self, size: int) -> str | None:
        return None if size < 0 else self.raw(size).tobytes().decode(errors="replace")

    def short_count(self) -> range:
        """Read the count of an array, of the versions that are not flexible, as a range; null is empty."""
        return range(max(self.number("i"), 0))

    def short_topics(self) -> Iterator[str]:
        """Read an array of topics, and in each an array: the topic comes before each item, which is to be read then."""
        for _ in self.short_count():
            topic = self.short_text() or ""
            for _ in self.short_count():
                yield topic

    def uuid(self) -> UUID:
        """Read a topic id."""
        return UUID(bytes=self.raw(16).tobytes())

    def tags(self) -> dict[int, memoryview]:
        """Read tagged fields, by their numbers."""
        fields = dict[int, memoryview]()
        for _ in range(self.length() + 1):
            number = self.length() + 1
            fields[number] = self.raw(self.length() + 1)
        return fields

    def skip_tags(self) -> None:
        """Skip tagged fields."""
        self.tags()

    def skip_numbers(self) -> None:
        """Skip an array of 32-bit numbers."""
        self.raw(4 * max(self.length(), 0))


@cache
def _compile_layout(layout: str) -> struct.Struct:
    return struct.Struct(f">{layout}")


def length(count: int) -> bytes:
    """Write a compact length or count."""
    value = count + 1
    varint = bytearray()
    while value >= _CONTINUES:
        varint.append(value & 0x7F | _CONTINUES)
        value >>= 7
    varint.append(value)
    return bytes(varint)


def text(value: str) -> bytes:
    """Write a compact text."""
    raw = value.encode()
    return length(len(raw)) + raw


def short_text(value: str) -> bytes:
    """Write a text of the versions that are not flexible."""
    raw = value.encode()
    return struct.pack(">h", len(raw)) + raw


def array(items: Iterable[bytes]) -> bytes:
    """Write a compact array."""
    elements = list(items)
    return length(len(elements)) + b"".join(elements)


def short_array(items: Iterable[bytes]) -> bytes:
    """Write an array of the versions that are not flexible."""
    elements = list(items)
    return struct.pack(">i", len(elements)) + b"".join(elements)


def by_topic(partitions: Iterable[tuple[str, bytes]]) -> bytes:
    """Write partitions below their topics, of the versions that are not flexible. Each has its topic beside it."""
    topics = defaultdict[str, list[bytes]](list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return short_array(short_text(topic) + short_array(members) for topic, members in topics.items())


def is_flexible(api: Api, version: int) -> bool:
    """Return whether a version of a request has compact lengths and tagged fields (KIP-482)."""
    return version >= _FIRST_FLEXIBLE_VERSION.get(api, version + 1)


def request(api: Api, version: int, correlation: int, client: str, body: bytes) -> bytes:
    """Write a request with its frame."""
    tags = NO_TAGS if is_flexible(api, version) else b""
    content = struct.pack(">hhi", api, version, correlation) + short_text(client) + tags + body
    return struct.pack(">i", len(content)) + content
