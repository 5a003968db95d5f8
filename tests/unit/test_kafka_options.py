"""Options of Kafka's consumer: passed on, or refused with the reason."""

from typing import Any

import pytest
from confluent_kafka import Consumer
from pydantic import ValidationError

from headrace.writer.config.sections import kafka_client
from headrace.writer.config.sections.connections import Kafka


def kafka(**options: Any) -> Kafka:
    return Kafka.model_validate({"bootstrap_servers": "127.0.0.1:1", "options": options})


def test_values_are_written_as_kafka_does_and_reach_both_clients() -> None:
    found = kafka(**{"client.rack": "a", "fetch.max.bytes": 1_000_000, "enable.metrics.push": False})
    assert kafka_client.options_of_spark(found.options) == {
        "kafka.client.rack": "a", "kafka.fetch.max.bytes": "1000000", "kafka.enable.metrics.push": "false",
    }  # fmt: skip
    assert found.address.settings == {"client.rack": "a", "enable.metrics.push": "false"}


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("isolation.level", "read_uncommitted", "records of aborted transactions would become rows"),
        ("auto.offset.reset", "latest", "a lost offset is a gap in the table's log"),
        ("group.id", "mine", "no group is joined"),
        ("request.timeout.ms", 1, "kafka.request_timeout says it"),
        ("ssl.key.password", "hunter2", "kafka.security says how brokers are reached"),
        ("client.rak", "a", "'client.rak' is no option of Kafka's consumer; did you mean 'client.rack'?"),
        ("fetch.min.bytes", "1 MiB", "fetch.min.bytes is '1 MiB', and must be a whole number"),
    ],
)
def test_an_option_that_would_break_a_promise_is_refused_with_the_reason(
    name: str, value: object, problem: str
) -> None:
    with pytest.raises(ValidationError) as refused:
        kafka(**{name: value})
    assert problem in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_librdkafka_knows_each_option_that_it_is_given() -> None:
    texts = {
        "client.rack": "a",
        "client.id": "a",
        "client.dns.lookup": "use_all_dns_ips",
        "enable.metrics.push": "true",
    }
    options = {name: texts.get(name, "1000") for name in kafka_client._COMMON}
    consumer = Consumer(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0, **kafka(**options).address.settings}
    )
    consumer.close()
