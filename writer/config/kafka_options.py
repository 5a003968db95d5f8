"""`kafka.options`: settings of Kafka's consumer that may be tuned, and those that would break what is promised."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator

from writer.config.base import did_you_mean

_NO_GROUP = "no group is joined: Spark plans which offsets are read, and the table holds them"
_BYTES = "records are taken as the bytes that Kafka holds"
_SECURITY = "kafka.security says how brokers are reached, for all clients, and keeps secrets out of options"
_DENIED: Mapping[str, str] = {
    "bootstrap.servers": "kafka.bootstrap_servers says it",
    "request.timeout.ms": "kafka.request_timeout says it, for all clients",
    "default.api.timeout.ms": "kafka.request_timeout says it, for all clients",
    "fetch.max.wait.ms": "kafka.fetch_max_wait says it",
    "isolation.level": "records of aborted transactions would become rows",
    "check.crcs": "damaged records would become rows",
    "auto.offset.reset": "a lost offset is a gap in the table's log, never a jump in silence",
    "enable.auto.commit": _NO_GROUP, "auto.commit.interval.ms": _NO_GROUP, "group.id": _NO_GROUP,
    "group.instance.id": _NO_GROUP, "group.protocol": _NO_GROUP, "group.remote.assignor": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP, "session.timeout.ms": _NO_GROUP, "max.poll.interval.ms": _NO_GROUP,
    "partition.assignment.strategy": _NO_GROUP,
    "allow.auto.create.topics": "a topic that was deleted would come back, empty",
    "exclude.internal.topics": "topics are named, not matched",
    "key.deserializer": _BYTES, "value.deserializer": _BYTES, "interceptor.classes": _BYTES,
}  # fmt: skip
_DENIED_PREFIXES: Mapping[str, str] = {"security.": _SECURITY, "sasl.": _SECURITY, "ssl.": _SECURITY}
# Kafka 3.9 and librdkafka have these in common; the driver's own clients take them as well.
_COMMON = (
    "client.dns.lookup", "client.id", "client.rack", "connections.max.idle.ms", "enable.metrics.push",
    "metadata.max.age.ms", "reconnect.backoff.max.ms", "reconnect.backoff.ms", "retry.backoff.max.ms",
    "retry.backoff.ms", "socket.connection.setup.timeout.ms",
)  # fmt: skip
_CONSUMER = (
    *_COMMON, "auto.include.jmx.reporter", "fetch.max.bytes", "fetch.min.bytes", "max.partition.fetch.bytes",
    "max.poll.records", "metadata.recovery.strategy", "metric.reporters", "metrics.num.samples",
    "metrics.recording.level", "metrics.sample.window.ms", "receive.buffer.bytes", "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
)  # fmt: skip
_NUMBERS = (".ms", ".bytes", ".records", ".samples")


def _texts(options: object) -> object:
    """Write values as Kafka does."""
    if not isinstance(options, dict):
        return options
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _allowed(options: dict[str, str]) -> dict[str, str]:
    for name, value in options.items():
        prefixes = (why for prefix, why in _DENIED_PREFIXES.items() if name.startswith(prefix))
        if reason := _DENIED.get(name) or next(prefixes, None):
            raise ValueError(f"{name!r} cannot be set: {reason}")
        if name not in _CONSUMER:
            raise ValueError(f"{name!r} is no option of Kafka's consumer{did_you_mean(name, [*_CONSUMER, *_DENIED])}")
        if name.endswith(_NUMBERS) and not value.isdigit():
            raise ValueError(f"{name} is {value!r}, and must be a whole number")
    return options


KafkaOptions = Annotated[dict[str, str], BeforeValidator(_texts), AfterValidator(_allowed)]


def check_native(options: Mapping[str, str]) -> None:
    """Raise ValueError for an option that only Kafka's own consumer has."""
    for name in options:
        if name not in (*_COMMON, "fetch.max.bytes"):
            raise ValueError(
                f"options has {name}, which only the consumer of Spark's source knows; take it out, or set "
                "`reader: spark`"
            )


def for_spark(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source."""
    return {f"kafka.{name}": value for name, value in options.items()}


def for_librdkafka(options: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the driver's own clients."""
    return {name: value for name, value in options.items() if name in _COMMON}
