"""Finds which leader of partitions is silent while other brokers of its cluster answer."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from writer.core.offsets import Source

_PROBE_S = 4.0
_PROBES_AT_ONCE = 16


@dataclass(frozen=True)
class SilentLeader:
    """A leader that does not answer, and the partitions it leads."""

    broker: str | None  # its id and address; None where nobody says which broker it is
    sources: list[Source]


def find_silent_leader(
    settings: Mapping[str, Any], metadata: Any, sources: Iterable[Source], timeout_s: float = _PROBE_S
) -> SilentLeader | None:
    """Ask each leader for a sign of life. Returns the silent one of the first partition; None where all answer.

    `settings`: those of a client of the cluster. `metadata`: confluent_kafka's, which names the leaders.
    """
    led = _partitions_by_leader(metadata, sources)
    addresses = {leader: _address(metadata.brokers[leader]) for leader in led if leader in metadata.brokers}
    with ThreadPoolExecutor(_PROBES_AT_ONCE) as pool:
        signs = pool.map(partial(_is_alive, settings, timeout_s), addresses.values())
        alive = {leader for leader, is_alive in zip(addresses, signs, strict=True) if is_alive}
    silent = led.keys() - alive
    if not silent:
        return None
    leader = min(silent, key=lambda node: min(led[node]))
    broker = f"broker {leader} at {addresses[leader]}" if leader in addresses else None
    return SilentLeader(broker, sorted(led[leader]))


def _partitions_by_leader(metadata: Any, sources: Iterable[Source]) -> dict[int, list[Source]]:
    led: dict[int, list[Source]] = {}
    for topic, partition in sources:
        if topic in metadata.topics and partition in metadata.topics[topic].partitions:
            led.setdefault(metadata.topics[topic].partitions[partition].leader, []).append((topic, partition))
    return led


def _address(broker: Any) -> str:
    host = f"[{broker.host}]" if ":" in broker.host else broker.host
    return f"{host}:{broker.port}"


def _is_alive(settings: Mapping[str, Any], timeout_s: float, address: str) -> bool:
    """Return whether a broker answers a client that knows it alone, and so waits for no other that is silent.

    It is asked for metadata: librdkafka waits up to 3 s before it asks a leader of its own accord for offsets.
    """
    try:
        AdminClient({**settings, "bootstrap.servers": address}).list_topics(timeout=timeout_s)
    except KafkaException:
        return False
    return True
