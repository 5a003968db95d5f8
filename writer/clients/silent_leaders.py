"""Finds which broker, or which leader of partitions, is silent while other brokers of a cluster answer."""

from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from headrace.writer.core.offsets import Source

PROBE_S = 4.0
_PROBES_AT_ONCE = 16


@dataclass(frozen=True)
class SilentLeader:
    """A leader that does not answer, and the partitions it leads."""

    broker: str | None  # its id and address; None where nobody says which broker it is
    sources: list[Source]


def ask_each(settings: Mapping[str, Any], addresses: Iterable[str], timeout_s: float = PROBE_S) -> list[Any]:
    """Ask brokers for metadata, side by side. Returns confluent_kafka's; None for each that does not answer.

    Each is asked by a client that knows it alone: one that knows more may wait for another, which is silent.
    """
    with ThreadPoolExecutor(_PROBES_AT_ONCE, thread_name_prefix="broker") as pool:
        return list(pool.map(partial(_ask_alone, settings, timeout_s), addresses))


def _ask_alone(settings: Mapping[str, Any], timeout_s: float, address: str) -> Any:
    # Not for offsets: on its way to a leader that is well librdkafka may pause for 3 s.
    try:
        return AdminClient({**settings, "bootstrap.servers": address}).list_topics(timeout=timeout_s)
    except KafkaException:
        return None


def find_silent_broker(settings: Mapping[str, Any], metadata: Any, timeout_s: float = PROBE_S) -> str | None:
    """Return id and address of the first broker that does not answer; None where all do."""
    names = {_address(broker): _name(broker) for _, broker in sorted(metadata.brokers.items())}
    answers = ask_each(settings, names, timeout_s)
    return next((name for name, answer in zip(names.values(), answers, strict=True) if answer is None), None)


def find_silent_leader(
    settings: Mapping[str, Any], metadata: Any, sources: Iterable[Source], timeout_s: float = PROBE_S
) -> SilentLeader | None:
    """Ask each leader for a sign of life. Returns the silent one of the first partition; None where all answer.

    `settings`: those of a client of the cluster. `metadata`: confluent_kafka's, which names the leaders.
    """
    led = _partitions_by_leader(metadata, sources)
    addresses = {leader: _address(metadata.brokers[leader]) for leader in led if leader in metadata.brokers}
    answers = ask_each(settings, addresses.values(), timeout_s)
    alive = {leader for leader, answer in zip(addresses, answers, strict=True) if answer is not None}
    silent = led.keys() - alive
    if not silent:
        return None
    leader = min(silent, key=lambda node: min(led[node]))
    broker = _name(metadata.brokers[leader]) if leader in addresses else None
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


def _name(broker: Any) -> str:
    return f"broker {broker.id} at {_address(broker)}"
