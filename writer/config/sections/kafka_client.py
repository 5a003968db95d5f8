"""What Kafka's clients are told: options of its consumer, TLS, and how they log in.

Options that would break what is promised are refused with their reason.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from headrace.writer.config.base import Strict, did_you_mean
from headrace.writer.config.sections.logins import LoginSection
from headrace.writer.kafka_reader import security as kafka_reader

Protocol = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
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
    "enable.auto.commit": _NO_GROUP,
    "auto.commit.interval.ms": _NO_GROUP,
    "group.id": _NO_GROUP,
    "group.instance.id": _NO_GROUP,
    "group.protocol": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "partition.assignment.strategy": _NO_GROUP,
    "allow.auto.create.topics": "a topic that was deleted would come back, empty",
    "exclude.internal.topics": "topics are named, not matched",
    "key.deserializer": _BYTES,
    "value.deserializer": _BYTES,
    "interceptor.classes": _BYTES,
}
_DENIED_PREFIXES: Mapping[str, str] = {"security.": _SECURITY, "sasl.": _SECURITY, "ssl.": _SECURITY}
# Spark's source takes them beside the native reader, which itself goes by `client.id` and `client.rack`.
_COMMON = (
    "client.dns.lookup",
    "client.id",
    "client.rack",
    "connections.max.idle.ms",
    "enable.metrics.push",
    "metadata.max.age.ms",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "socket.connection.setup.timeout.ms",
)
_CONSUMER = (
    *_COMMON,
    "auto.include.jmx.reporter",
    "fetch.max.bytes",
    "fetch.min.bytes",
    "max.partition.fetch.bytes",
    "max.poll.records",
    "metadata.recovery.strategy",
    "metric.reporters",
    "metrics.num.samples",
    "metrics.recording.level",
    "metrics.sample.window.ms",
    "receive.buffer.bytes",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
)
_NUMBERS = (".ms", ".bytes", ".records", ".samples")


def _texts(options: object) -> object:
    """Write values as Kafka does."""
    if not isinstance(options, dict):
        return options
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in options.items()}


def _check_options(options: dict[str, str]) -> dict[str, str]:
    for name, value in options.items():
        prefixes = (why for prefix, why in _DENIED_PREFIXES.items() if name.startswith(prefix))
        if reason := _DENIED.get(name) or next(prefixes, None):
            raise ValueError(f"{name!r} cannot be set: {reason}")
        if name not in _CONSUMER:
            raise ValueError(f"{name!r} is no option of Kafka's consumer{did_you_mean(name, list(_CONSUMER))}")
        if name.endswith(_NUMBERS) and not value.isdecimal():
            raise ValueError(f"{name} is {value!r}, and must be a whole number")
    return options


KafkaOptions = Annotated[dict[str, str], BeforeValidator(_texts), AfterValidator(_check_options)]


def check_native(options: Mapping[str, str]) -> None:
    """Raise ValueError for an option that only Kafka's own consumer has."""
    for name in options:
        if name not in (*_COMMON, "fetch.max.bytes"):
            raise ValueError(
                f"options has {name}, which only the consumer of Spark's source knows; take it out, or set "
                "`reader: spark`"
            )


def options_of_spark(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of Spark's Kafka source."""
    return {f"kafka.{name}": value for name, value in options.items()}


class Security(Strict):
    """How brokers and clients know each other. Files are looked up on the driver and on every executor."""

    protocol: Protocol = Field("plaintext", description="as Kafka's `security.protocol`, in lower case")
    login: LoginSection | None = Field(None, description="how a user logs in, where the protocol is sasl_…")
    ca_file: Path | None = Field(
        None,
        description="PEM file with the authorities that brokers' certificates come from; default: the machine's "
        "and Java's own",
    )
    client_cert_file: Path | None = Field(
        None,
        description="PEM file with a private key (PKCS#8, without a password) and its certificates, for brokers "
        "that want to know clients by them",
    )
    verify_hostname: bool = Field(True, description="a broker's certificate has to bear the name that it is reached by")

    @model_validator(mode="after")
    def _whole(self) -> "Security":
        has_sasl = self.protocol.startswith("sasl_")
        if has_sasl and self.login is None:
            raise ValueError(f"protocol {self.protocol} needs a 'login'")
        if not has_sasl and self.login is not None:
            raise ValueError(f"a 'login' needs the protocol sasl_ssl or sasl_plaintext, not {self.protocol}")
        if not self.has_tls and (self.ca_file is not None or self.client_cert_file is not None):
            raise ValueError(f"'ca_file' and 'client_cert_file' need the protocol ssl or sasl_ssl, not {self.protocol}")
        for name, path in (("ca_file", self.ca_file), ("client_cert_file", self.client_cert_file)):
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name!r} {path} is no absolute path; executors have other working directories")
        return self

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted."""
        return self.protocol.endswith("ssl")

    @property
    def native(self) -> kafka_reader.Security:
        """What a connection of our own gets."""
        tls = kafka_reader.Tls(self.ca_file, self.client_cert_file, self.verify_hostname) if self.has_tls else None
        return kafka_reader.Security(tls, None if self.login is None else self.login.sasl)
