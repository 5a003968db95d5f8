"""Fields of Kafka's protocol: how requests are written and answers read.

Sources: https://kafka.apache.org/protocol, KIP-482 (flexible versions: compact lengths and tagged fields).
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from uuid import UUID

from writer.kafka_reader.errors import Corrupt

_VARINT_BYTES_MAX = 5  # of a length, which is a 32-bit number


class Api(IntEnum):
    """Requests that the reader sends."""

    FETCH = 1
    METADATA = 3
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    OFFSET_FOR_LEADER_EPOCH = 23
    SASL_AUTHENTICATE = 36


# Lowest and highest version of each that is spoken here. Fetch 13 asks by topic id (KIP-516, Kafka 3.1), 12 by name
# (Kafka 2.7). OFFSET_FOR_LEADER_EPOCH says the leader's epoch from version 2 on (Kafka 2.1). Logins
# and API_VERSIONS stay at versions that each broker since Kafka 1.0 knows.
VERSIONS = {
    Api.FETCH: (12, 13), Api.METADATA: (9, 12), Api.SASL_HANDSHAKE: (1, 1), Api.SASL_AUTHENTICATE: (1, 1),
    Api.API_VERSIONS: (0, 0), Api.OFFSET_FOR_LEADER_EPOCH: (2, 4),
}  # fmt: skip
_FLEXIBLE_FROM = {Api.FETCH: 12, Api.METADATA: 9, Api.OFFSET_FOR_LEADER_EPOCH: 4}  # versions
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
    TOPIC_AUTHORIZATION_FAILED = 29
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_VERSION = 35
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
        self.data, self._at = data, 0

    def take(self, layout: str) -> tuple[int, ...]:
        """Read numbers as `struct` names them, big-endian."""
        numbers = _numbers(layout)
        try:
            found = numbers.unpack_from(self.data, self._at)
        except struct.error as error:
            raise Corrupt(f"an answer of a broker ends within a field: {error}") from error
        self._at += numbers.size
        return found

    def one(self, layout: str) -> int:
        """Read one number."""
        return self.take(layout)[0]

    def raw(self, size: int) -> memoryview:
        """Read so many bytes."""
        end = self._at + size
        if size < 0 or end > len(self.data):
            raise Corrupt(
                f"an answer of a broker has a field of {size} bytes, and {len(self.data) - self._at} are left"
            )
        self._at = end
        return self.data[end - size : end]

    def length(self) -> int:
        """Read a compact length or count; -1 is null."""
        value = 0
        for at in range(_VARINT_BYTES_MAX):
            byte = self.one("B")
            value |= (byte & 0x7F) << (7 * at)
            if byte < 0x80:  # noqa: PLR2004 - the last byte of a varint
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
        return self._text(self.one("h"))

    def _text(self, size: int) -> str | None:
        return None if size < 0 else self.raw(size).tobytes().decode(errors="replace")

    def short_count(self) -> range:
        """Read the count of an array, of the versions that are not flexible, as a range; null is empty."""
        return range(max(self.one("i"), 0))

    def uuid(self) -> UUID:
        """Read a topic id."""
        return UUID(bytes=self.raw(16).tobytes())

    def tags(self) -> dict[int, memoryview]:
        """Read tagged fields, by their numbers."""
        found = dict[int, memoryview]()
        for _ in range(self.length() + 1):
            number = self.length() + 1
            found[number] = self.raw(self.length() + 1)
        return found

    def skip_tags(self) -> None:
        """Skip tagged fields."""
        self.tags()

    def skip_numbers(self) -> None:
        """Skip an array of 32-bit numbers."""
        self.raw(4 * max(self.length(), 0))


@cache
def _numbers(layout: str) -> struct.Struct:
    return struct.Struct(f">{layout}")


def length(count: int) -> bytes:
    """Write a compact length or count."""
    value, out = count + 1, bytearray()
    while value >= 0x80:  # noqa: PLR2004 - more bytes of a varint follow
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


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
    listed = list(items)
    return length(len(listed)) + b"".join(listed)


def short_array(items: Iterable[bytes]) -> bytes:
    """Write an array of the versions that are not flexible."""
    listed = list(items)
    return struct.pack(">i", len(listed)) + b"".join(listed)


def is_flexible(api: Api, version: int) -> bool:
    """Return whether a version of a request has compact lengths and tagged fields (KIP-482)."""
    return version >= _FLEXIBLE_FROM.get(api, version + 1)


def request(api: Api, version: int, correlation: int, client: str, body: bytes) -> bytes:
    """Write a request with its frame."""
    tags = NO_TAGS if is_flexible(api, version) else b""
    content = struct.pack(">hhi", api, version, correlation) + short_text(client) + tags + body
    return struct.pack(">i", len(content)) + content
