"""What brokers and producers do to a running writer: a restart, another leader, transactions, duplicates, disorder."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

from tests import oracle
from tests.writing import NOW, Site
from writer.embedded import Broker
from writer.embedded.events import SCHEMAS, encoder, generate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers of one cluster; the first is its controller."""
    with Broker(tmp_path / "one") as first, Broker(tmp_path / "two", joins=first) as second:
        yield first, second


def values(site: Site, topic: str, count: int, seed: int = 7) -> list[tuple[bytes, bytes]]:
    """Keys and encoded values of events, their schema registered."""
    with SchemaRegistryClient({"url": site.registry_url}) as registry:
        schema_id = registry.register_schema(f"{topic}-value", Schema(json.dumps(SCHEMAS["clicks"]), "AVRO"))
    encode = encoder(SCHEMAS["clicks"], schema_id)
    return [(key, encode(record)) for key, record in generate("clicks", count, now=NOW, seed=seed)]


def send(producer: Producer, topic: str, messages: list[tuple[bytes, bytes]]) -> None:
    for key, value in messages:
        producer.produce(topic, value, key)
        producer.poll(0)
    assert producer.flush(30) == 0


@pytest.mark.cell("the broker restarts", "while it is read")
def test_a_broker_that_restarts_is_waited_for(tmp_path: Path, registry_url: str) -> None:
    with Broker(tmp_path / "kafka") as broker:
        site = Site(tmp_path, broker.bootstrap, registry_url)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("clicks", 2, 1)])["clicks"].result(30)
        lake = site.pipeline("events", ["clicks"], commit={"max_delay": "2 s"})
        site.fill("clicks", 500)
        writer = site.start()
        writer.until(lambda: writer.commits() >= 1)
        broker.restart()
        site.fill("clicks", 500, seed=8)
        writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_000)
        writer.stop()
        oracle.check(lake, "events", site.ends("clicks"))


@pytest.mark.cell("the leader changes", "while it is read")
def test_another_leader_changes_nothing(tmp_path: Path, pair: tuple[Broker, Broker], registry_url: str) -> None:
    first, second = pair
    both = f"{first.bootstrap},{second.bootstrap}"
    site = Site(tmp_path, both, registry_url)
    admin = AdminClient({"bootstrap.servers": both})
    admin.create_topics([NewTopic("clicks", 2, replica_assignment=[[2, 1], [2, 1]])])["clicks"].result(30)
    lake = site.pipeline("events", ["clicks"], commit={"max_delay": "2 s"})
    site.fill("clicks", 500)
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1)
    second.stop()  # the leader of all partitions
    site.fill("clicks", 500, seed=8)
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_000)
    second.start()
    site.fill("clicks", 500, seed=9)
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_500)
    said = writer.stop()
    assert "gap_recorded" not in said
    oracle.check(lake, "events", site.ends("clicks"))


@pytest.mark.cell("transactions are aborted", "among others, and while one stays open")
def test_records_of_aborted_transactions_never_appear(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    lake = site.pipeline("events", [name])
    events = values(site, name, 600)
    producer = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": f"{name}-a"})
    producer.init_transactions(30)
    for at, end in ((0, "commit_transaction"), (100, "abort_transaction"), (200, "commit_transaction")):
        producer.begin_transaction()
        send(producer, name, events[at : at + 100])
        getattr(producer, end)(30)
    site.once()
    committed = [*range(100), *range(202, 302)]  # each transaction ends in a mark with an offset of its own
    assert oracle.offsets(lake) == {(name, 0): committed}

    producer.begin_transaction()
    send(producer, name, events[300:400])
    other = Producer({"bootstrap.servers": site.bootstrap})
    send(other, name, events[400:500])  # behind what may still be aborted
    site.once()
    assert oracle.offsets(lake) == {(name, 0): committed}, "nothing is read beyond an open transaction"
    producer.abort_transaction(30)
    site.once()
    oracle.check_exactly(lake, {(name, 1, 0): [*committed, *range(403, 503)]})
    assert oracle.rows(lake, "count(*), count(DISTINCT event_id)") == [(300, 300)]


@pytest.mark.cell("the producer sends twice and out of order", "400 events, 150 of them twice")
def test_duplicates_and_disorder_from_the_producer_are_rows_like_any_other(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name])
    events = values(site, name, 400)
    shuffled = [*events, *events[:150]]
    Random(5).shuffle(shuffled)
    send(Producer({"bootstrap.servers": site.bootstrap}), name, shuffled)
    site.once()
    oracle.check(lake, "events", site.ends(name))
    assert oracle.rows(lake, "count(*), count(DISTINCT event_id)") == [(550, 400)]
