"""Options of Kafka's consumer: passed on, or refused with the reason."""

from typing import Any

import pytest
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
    assert (found.address.rack, found.address.client_id) == ("a", "headrace")
    assert kafka(**{"client.id": "team"}).address.client_id == "team"


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
