"""One leader of several is silent: it is named, and none that answers is."""

import socket
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from headrace.writer.clients.silent_leaders import SilentLeader, find_silent_broker, find_silent_leader
from headrace.writer.core.offsets import Source

SETTINGS = {"log_level": 0}
WAIT_S = 0.7


@pytest.fixture(scope="module")
def mock_broker() -> Iterator[Any]:
    """A broker of librdkafka's own in this process."""
    owner = AdminClient({**SETTINGS, "test.mock.num.brokers": 1})
    yield owner.list_topics("clicks", timeout=10).brokers[1]
    del owner


@pytest.fixture
def silent_broker() -> Iterator[Any]:
    """A broker that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield SimpleNamespace(id=2, host="127.0.0.1", port=server.getsockname()[1])


@pytest.fixture
def closed_broker() -> Any:
    """A broker that takes no connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return SimpleNamespace(id=2, host="127.0.0.1", port=port)


def metadata(brokers: dict[int, Any], leaders: Sequence[int]) -> Any:
    """Metadata of a topic, given the leaders of its partitions."""
    partitions = {number: SimpleNamespace(leader=leader) for number, leader in enumerate(leaders)}
    return SimpleNamespace(brokers=brokers, topics={"clicks": SimpleNamespace(partitions=partitions)})


def sources(count: int) -> list[Source]:
    return [("clicks", partition) for partition in range(count)]


def find_silent(cluster: Any, wanted: list[Source]) -> SilentLeader | None:
    return find_silent_leader(SETTINGS, cluster, wanted, WAIT_S)


def test_leaders_that_all_answer_are_none(mock_broker: Any) -> None:
    all_led_by_one = metadata({1: mock_broker}, [1, 1])
    assert find_silent(all_led_by_one, sources(2)) is None


@pytest.mark.parametrize("kind", ["silent_broker", "closed_broker"])
@pytest.mark.parametrize("silent_id", [0, 2])
def test_the_leader_that_does_not_answer_is_named_and_not_one_that_does(
    mock_broker: Any, request: pytest.FixtureRequest, kind: str, silent_id: int
) -> None:
    silent = request.getfixturevalue(kind)
    silent.id = silent_id
    cluster = metadata({1: mock_broker, silent_id: silent}, [1, silent_id, 1, silent_id])
    leader = find_silent(cluster, sources(4))
    assert leader == SilentLeader(f"broker {silent_id} at 127.0.0.1:{silent.port}", [("clicks", 1), ("clicks", 3)])


def test_of_two_silent_leaders_that_of_the_first_partition_is_named_with_its_own_partitions(
    silent_broker: Any, closed_broker: Any
) -> None:
    closed_broker.id = 1
    cluster = metadata({1: closed_broker, 2: silent_broker}, [2, 1, 2])
    leader = find_silent(cluster, sources(3))
    assert leader == SilentLeader(f"broker 2 at 127.0.0.1:{silent_broker.port}", [("clicks", 0), ("clicks", 2)])


@pytest.mark.parametrize("node", [-1, 7])
def test_a_partition_without_a_leader_that_can_be_asked_is_named(mock_broker: Any, node: int) -> None:
    leader = find_silent(metadata({1: mock_broker}, [1, node]), sources(2))
    assert leader == SilentLeader(None, [("clicks", 1)])


def test_a_partition_that_the_cluster_does_not_know_has_no_silent_leader(mock_broker: Any) -> None:
    assert find_silent(metadata({1: mock_broker}, [1]), [("gone", 0), ("clicks", 9)]) is None


def test_an_address_of_ipv6_has_brackets() -> None:
    nobody = SimpleNamespace(id=1, host="::1", port=1)
    leader = find_silent(metadata({1: nobody}, [1]), sources(1))
    assert leader == SilentLeader("broker 1 at [::1]:1", [("clicks", 0)])


def test_a_silent_broker_is_named_whatever_it_leads(mock_broker: Any, silent_broker: Any) -> None:
    brokers = {1: mock_broker, 2: silent_broker}
    assert find_silent_broker(SETTINGS, metadata(brokers, [1]), WAIT_S) == f"broker 2 at 127.0.0.1:{silent_broker.port}"
    assert find_silent_broker(SETTINGS, metadata({1: mock_broker}, [1]), WAIT_S) is None
