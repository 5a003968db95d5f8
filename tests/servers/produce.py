"""Hands a broker a record batch of any bytes: Kafka's clients refuse what the oldest and the oddest producers send."""

import socket
import struct
from dataclasses import replace

from headrace.writer.kafka_reader.connection import BrokerAddress
from tests.support.kafka_batches import Raw

_PRODUCE = 0
_VERSION = 7
_ALL_REPLICAS = -1
_TIMEOUT_MS = 30_000


def produce(bootstrap: str, topic: str, partition: int, batch: Raw) -> int:
    """Let a broker append a batch, whose first offset is 0. Returns the first offset that it got.

    Source: "Produce API (Key: 0)" in Kafka's documentation, version 7.
    """
    records = replace(batch, sequence=-1, leader_epoch=-1).encode()
    name = topic.encode()
    body = struct.pack(">hhii", -1, _ALL_REPLICAS, _TIMEOUT_MS, 1)
    body += struct.pack(">h", len(name)) + name
    body += struct.pack(">iii", 1, partition, len(records)) + records
    head = struct.pack(">hhih", _PRODUCE, _VERSION, 1, -1)
    address = BrokerAddress.parse(bootstrap)
    with socket.create_connection((address.host, address.port), timeout=_TIMEOUT_MS / 1_000) as connection:
        connection.sendall(struct.pack(">i", len(head + body)) + head + body)
        answer = _read(connection, struct.unpack(">i", _read(connection, 4))[0])
    # Correlation, topics, name, partitions, index; then the error and the first offset.
    error, offset = struct.unpack_from(">hq", answer, 4 + 4 + 2 + len(name) + 4 + 4)
    assert error == 0, f"the broker answers {error}"
    return int(offset)


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the broker closed the connection"
        data += part
    return data
