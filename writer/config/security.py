"""TLS and SASL settings of Kafka, for Spark's client in the JVM and for librdkafka.

A password stands in the options of Spark's Kafka source and in the settings of a client, in memory. Neither is shown:
Spark keeps what `spark.redaction.regex` matches out of plans, UI and event log, and this module's values have no repr.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, model_validator

from writer.config.base import Strict

Protocol = Literal["plaintext", "ssl", "sasl_plaintext", "sasl_ssl"]
Mechanism = Literal["plain", "scram-sha-256", "scram-sha-512"]
_MODULES: Mapping[Mechanism, str] = {
    "plain": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "scram-sha-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "scram-sha-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


class Security(Strict):
    """How brokers and clients know each other. Files are looked up on the driver and on every executor."""

    protocol: Protocol = Field("plaintext", description="as Kafka's `security.protocol`, in lower case")
    mechanism: Mechanism = Field("scram-sha-512", description="how a user logs in, where the protocol is sasl_…")
    user: str | None = Field(None, min_length=1, description="user name, where the protocol is sasl_…")
    password: SecretStr | None = Field(
        None, min_length=1, description="with `user`; take it from `${env:NAME}` or `${file:/path}`"
    )
    ca_file: Path | None = Field(
        None, description="PEM file with the authorities that brokers' certificates come from; default: the machine's "
        "and Java's own",
    )  # fmt: skip
    client_cert_file: Path | None = Field(
        None, description="PEM file with a private key (PKCS#8, without a password) and its certificates, for brokers "
        "that want to know clients by them",
    )  # fmt: skip
    verify_hostname: bool = Field(True, description="a broker's certificate has to bear the name that it is reached by")

    @model_validator(mode="after")
    def _whole(self) -> "Security":
        sasl, tls = self.protocol.startswith("sasl_"), self.protocol.endswith("ssl")
        if sasl != (self.user is not None) or sasl != (self.password is not None):
            raise ValueError(
                f"protocol {self.protocol} needs 'user' and 'password'" if sasl else
                f"'user' and 'password' need the protocol sasl_ssl or sasl_plaintext, not {self.protocol}"
            )  # fmt: skip
        if not tls and (self.ca_file is not None or self.client_cert_file is not None):
            raise ValueError(f"'ca_file' and 'client_cert_file' need the protocol ssl or sasl_ssl, not {self.protocol}")
        for name, path in (("ca_file", self.ca_file), ("client_cert_file", self.client_cert_file)):
            if path is not None and not path.is_absolute():
                raise ValueError(f"{name!r} {path} is no absolute path; executors have other working directories")
        return self

    @property
    def ours(self) -> dict[str, str]:
        """Settings of librdkafka."""
        properties: dict[str, str] = {"security.protocol": self.protocol}
        if self.user is not None and self.password is not None:
            properties |= {
                "sasl.mechanism": self.mechanism.upper(), "sasl.username": self.user,
                "sasl.password": self.password.get_secret_value(),
            }  # fmt: skip
        if self.protocol.endswith("ssl"):
            properties["ssl.endpoint.identification.algorithm"] = "https" if self.verify_hostname else "none"
        if self.ca_file is not None:
            properties["ssl.ca.location"] = str(self.ca_file)
        if self.client_cert_file is not None:
            properties |= {
                "ssl.certificate.location": str(self.client_cert_file),
                "ssl.key.location": str(self.client_cert_file),
            }
        return {} if self.protocol == "plaintext" else properties

    @property
    def sparks(self) -> dict[str, str]:
        """Options of Spark's Kafka source."""
        properties: dict[str, str] = {"kafka.security.protocol": self.protocol.upper()}
        if self.user is not None and self.password is not None:
            login = f"username={_quoted(self.user)} password={_quoted(self.password.get_secret_value())}"
            properties |= {
                "kafka.sasl.mechanism": self.mechanism.upper(),
                "kafka.sasl.jaas.config": f"{_MODULES[self.mechanism]} required {login};",
            }
        if self.protocol.endswith("ssl") and not self.verify_hostname:
            properties["kafka.ssl.endpoint.identification.algorithm"] = ""
        if self.ca_file is not None:
            properties |= {"kafka.ssl.truststore.type": "PEM", "kafka.ssl.truststore.location": str(self.ca_file)}
        if self.client_cert_file is not None:
            properties |= {"kafka.ssl.keystore.type": "PEM", "kafka.ssl.keystore.location": str(self.client_cert_file)}
        return {} if self.protocol == "plaintext" else properties


@dataclass(frozen=True)
class Address:
    """A cluster: where it is, and how it is spoken to."""

    bootstrap: str  # host:port, several separated by commas
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # of librdkafka; a password may be in them

    def __str__(self) -> str:
        return self.bootstrap


def _quoted(text: str) -> str:
    """Write a word as Java's parser of login modules reads it back."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
