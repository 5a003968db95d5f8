"""A broker refuses a topic to the user: the sentence names topic and right, at once, and calls no broker silent."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from headrace.writer.clients import kafka_sample
from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.demo.devstack.kafka import Broker
from headrace.writer.kafka_reader.errors import AccessDenied

pytestmark = pytest.mark.slow
NOW = datetime(2026, 11, 20, tzinfo=UTC)
HIDDEN = [("hidden", 0)]  # is denied altogether
SHOWN = [("shown", 0)]  # may be described, and not be read


def allow(topic: str, user: str, operation: AclOperation) -> AclBinding:
    """Return a rule; who has none for a topic that has rules is denied."""
    return AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, user, "*", operation, AclPermissionType.ALLOW
    )


def fill_topics(bootstrap: str) -> None:
    """Create the topics with a record each, and the rules of two of them."""
    names = ("open", "hidden", "shown")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(name, 1, 1) for name in names]).values():
        future.result(30)
    producer = Producer({"bootstrap.servers": bootstrap})
    for name in names:
        producer.produce(name, b"value")
    assert producer.flush(30) == 0
    acls = [
        allow("hidden", "User:other", AclOperation.READ),
        allow("shown", "User:ANONYMOUS", AclOperation.DESCRIBE),
    ]
    for future in admin.create_acls(acls).values():
        future.result(30)


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A broker with rules."""
    rules = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
    }
    with Broker(tmp_path_factory.mktemp("kafka"), overrides=rules) as broker:
        fill_topics(broker.bootstrap)
        yield Kafka.model_validate({"bootstrap_servers": broker.bootstrap, "request_timeout": "20 s"})


@pytest.fixture(scope="module")
def cluster(kafka: Kafka) -> Cluster:
    cluster = Cluster(kafka.address, timedelta(seconds=20))
    deadline = time.monotonic() + 30
    while is_readable(cluster):  # the rules are there some moments later
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return cluster


def is_readable(cluster: Cluster) -> bool:
    try:
        cluster.latest(HIDDEN)
    except BrokerUnreachable:
        return False
    return True


@pytest.mark.parametrize(
    ("ask", "right"),
    [
        (lambda cluster: cluster.topics(["hidden"]), "Describe"),
        (lambda cluster: cluster.sources(["open", "hidden"]), "Describe"),
        (lambda cluster: cluster.latest(HIDDEN), "Describe"),
        (lambda cluster: cluster.earliest([("open", 0), *HIDDEN]), "Describe"),
        (lambda cluster: cluster.readable(HIDDEN), "Describe"),
        (lambda cluster: cluster.offsets_at(NOW, HIDDEN), "Describe"),
        (lambda cluster: cluster.first_records(dict.fromkeys(HIDDEN, 0)), "Describe"),
        (lambda cluster: cluster.retention(["hidden"]), "DescribeConfigs"),
        (lambda cluster: cluster.cleanup(["open", "hidden"]), "DescribeConfigs"),
    ],
)
def test_a_question_about_a_denied_topic_names_it_and_the_right(
    cluster: Cluster, ask: Callable[[Cluster], Any], right: str
) -> None:
    began_s = time.monotonic()
    pattern = rf"refuse an answer about .*hidden.*authorization failed\).* the right {right} on it\.$"
    with pytest.raises(BrokerUnreachable, match=pattern):
        ask(cluster)
    assert time.monotonic() - began_s < 10, "it is said, not waited for"


def test_a_sample_of_a_topic_that_may_not_be_read_names_the_right(cluster: Cluster, kafka: Kafka) -> None:
    assert cluster.latest(SHOWN) == {SHOWN[0]: 1}
    with pytest.raises(AccessDenied, match=r"give the user of kafka\.security READ on topic shown"):
        kafka_sample.read(kafka, {SHOWN[0]: (0, 1)})
    assert kafka_sample.read(kafka, {("open", 0): (0, 1)}).num_rows == 1
