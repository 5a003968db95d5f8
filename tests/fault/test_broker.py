"""What brokers and producers do to a running writer: a restart, another leader, transactions, duplicates, disorder."""

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.writer.demo.devstack.stack import Broker
from tests.servers.login_broker import add_login
from tests.support import oracle
from tests.support.fault_cells import FORMATS
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MakeTopic = Callable[..., str]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Broker, Broker]]:
    """Two brokers of one cluster; the first is its controller."""
    first = add_login(Broker(tmp_path / "one"))
    second = add_login(Broker(tmp_path / "two", joins=first))
    with first, second:
        yield first, second


@pytest.mark.cell("the broker restarts", "while it is read")
@pytest.mark.parametrize("form", FORMATS)
def test_a_broker_that_restarts_is_waited_for(tmp_path: Path, registry_url: str, form: str) -> None:
    with add_login(Broker(tmp_path / "kafka")) as broker:
        site = Site(tmp_path, broker.bootstrap, registry_url)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("clicks", 2, 1)])["clicks"].result(30)
        lake = site.pipeline("events", ["clicks"], form=form, commit={"max_delay": "2 s"})
        site.fill("clicks", 500)
        writer = site.start()
        writer.until(lambda: writer.commits() >= 1)
        broker.stop()
        broker.start()
        oracle.check_rows(lake, "events")
        site.fill("clicks", 500, seed=8)
        writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_000)
        writer.stop()
        oracle.check(lake, "events", site.ends("clicks"))


@pytest.mark.cell("the leader changes", "while it is read")
@pytest.mark.parametrize("form", FORMATS)
def test_another_leader_changes_nothing(
    tmp_path: Path, pair: tuple[Broker, Broker], registry_url: str, form: str
) -> None:
    first, second = pair
    both = f"{first.bootstrap},{second.bootstrap}"
    site = Site(tmp_path, both, registry_url)
    admin = AdminClient({"bootstrap.servers": both})
    admin.create_topics([NewTopic("clicks", 2, replica_assignment=[[2, 1], [2, 1]])])["clicks"].result(30)
    lake = site.pipeline("events", ["clicks"], form=form, commit={"max_delay": "2 s"})
    site.fill("clicks", 500)
    writer = site.start()
    writer.until(lambda: writer.commits() >= 1)
    second.stop()  # the leader of all partitions
    oracle.check_rows(lake, "events")
    site.fill("clicks", 500, seed=8)
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_000)
    second.start()
    site.fill("clicks", 500, seed=9)
    writer.until(lambda: sum(oracle.frontier_of(lake, "events").values()) == 1_500)
    output = writer.stop()
    assert "gap_recorded" not in output
    oracle.check(lake, "events", site.ends("clicks"))


@pytest.mark.cell("transactions are aborted", "among others, and while one stays open")
@pytest.mark.parametrize("reader", ["native", "spark"])
def test_records_of_aborted_transactions_never_appear(site: Site, topic: MakeTopic, reader: str) -> None:
    name, site.reader = topic(1), reader
    lake = site.pipeline("events", [name])
    events = site.values(name, 600)
    producer = Producer({"bootstrap.servers": site.bootstrap, "transactional.id": f"{name}-a"})
    producer.init_transactions(30)
    for at, end in ((0, "commit_transaction"), (100, "abort_transaction"), (200, "commit_transaction")):
        producer.begin_transaction()
        site.send(name, events[at : at + 100], producer)
        getattr(producer, end)(30)
    site.once()
    committed = [*range(100), *range(202, 302)]  # each transaction ends in a mark with an offset of its own
    assert oracle.offsets(lake) == {(name, 0): committed}

    producer.begin_transaction()
    site.send(name, events[300:400], producer)
    site.send(name, events[400:500])  # behind what may still be aborted
    site.once()
    assert oracle.offsets(lake) == {(name, 0): committed}, "nothing is read beyond an open transaction"
    oracle.check_rows(lake, "events")
    producer.abort_transaction(30)
    site.once()
    oracle.check_exactly(lake, {(name, 1, 0): [*committed, *range(403, 503)]})
    assert oracle.rows(lake, "count(*), count(DISTINCT event_id)") == [(300, 300)]


@pytest.mark.cell("the producer sends twice and out of order", "400 events, 150 of them twice")
@pytest.mark.parametrize("form", FORMATS)
def test_duplicates_and_disorder_from_the_producer_are_rows_like_any_other(
    site: Site, topic: MakeTopic, form: str
) -> None:
    name = topic(2)
    lake = site.pipeline("events", [name], form=form)
    events = site.values(name, 400)
    shuffled = [*events, *events[:150]]
    Random(5).shuffle(shuffled)
    site.send(name, shuffled)
    site.once()
    oracle.check_rows(lake, "events")
    oracle.check(lake, "events", site.ends(name))
    assert oracle.rows(lake, "count(*), count(DISTINCT event_id)") == [(550, 400)]
