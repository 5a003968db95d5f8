"""Configuration sections that all pipelines share: connections to Kafka, registry, storage and Spark."""

import hmac
import os
import re
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field, SecretStr, field_validator, model_validator

from headrace.writer.config.base import Strict
from headrace.writer.config.sections.kafka_client import KafkaOptions, Security, check_native
from headrace.writer.config.sections.logins import MskIamSection
from headrace.writer.core.pages import page_address
from headrace.writer.core.units import Duration
from headrace.writer.kafka_reader.cluster import ClusterAddress
from headrace.writer.kafka_reader.connection import addresses
from headrace.writer.storage.bucket_locations import ACCOUNT
from headrace.writer.storage.settings import RETRY_TIMEOUT, AzureSettings, GcsSettings, S3Settings

# Names of Spark's and Hadoop's settings whose values are secrets; with `file` or `provider` behind them they are none.
_SECRET = re.compile(
    r"(?i)((secret|access)[.]?key|(?<!_)password|session[.]?token|jaas[.]config|authenticate[.]secret|account[.]key.*)$"
)


_HTTP = r"^https?://."


class Kafka(Strict):
    """The cluster to read from."""

    bootstrap_servers: str = Field(description="host:port, several separated by commas")
    request_timeout: Duration = Field(
        timedelta(seconds=30),
        description="how long one question to a broker may take; for Spark's consumers at least 30 s, and a poll twice "
        "as long",
    )
    lag_interval: Duration = Field(timedelta(seconds=15), description="how often the ends of the logs are asked for")
    fetch_max_wait: Duration = Field(
        timedelta(milliseconds=10),
        description="how long a broker may hold back the answer to a fetch of Spark's while it has no more records "
        "(`fetch.max.wait.ms`): a batch waits so long at the end of each partition. 500 ms where brokers before Kafka "
        "3.8 have tiered storage: they give up a read from it after so long",
    )
    reader: Literal["native", "spark"] = Field(
        "native",
        description="who fetches records: native: each task for itself, without the JVM; spark: Spark's own source",
    )
    security: Security = Security.model_validate({})
    options: KafkaOptions = Field(
        default_factory=dict,
        description="settings of Kafka's consumer by their own names, such as `client.rack`, `fetch.max.bytes`; "
        "what would break a promise is refused with the reason",
    )

    @model_validator(mode="after")
    def _fits_the_reader(self) -> "Kafka":
        # Beside Spark's source, too, the driver asks brokers itself what their logs are known by.
        brokers = addresses(self.bootstrap_servers)
        if isinstance(self.security.login, MskIamSection):
            self.security.login.check_brokers([broker.host for broker in brokers])
        if self.reader == "native":
            check_native(self.options)
        return self

    @property
    def address(self) -> ClusterAddress:
        """Where the cluster is and how it is spoken to, as driver and tasks get it."""
        return ClusterAddress(
            addresses(self.bootstrap_servers),
            self.security.native,
            self.request_timeout.total_seconds(),
            client_id=self.options.get("client.id", "headrace"),
            rack=self.options.get("client.rack", ""),
        )


class Spark(Strict):
    """The Spark application."""

    master: str = Field(
        "local[*, 4]", description="Spark master; the default runs on this machine and tries a task four times"
    )
    conf: dict[str, str] = Field(
        default_factory=dict,
        description="further Spark settings, passed on as they are; no secrets: they stand on "
        "the command line of Spark's process",
    )

    @field_validator("conf")
    @classmethod
    def _without_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for key in value:
            if _SECRET.search(key):
                raise ValueError(
                    f"{key} would stand on the command line of Spark's process, where `ps` shows it. Take it out, and "
                    "give it by the environment, a mounted file, or the role of the machine."
                )
        return value


class Http(Strict):
    """What a running driver answers over HTTP: a page, /metrics, /healthz, /readyz, /rolloutz, /status, /buckets."""

    enabled: bool = Field(True, description="serve it")
    host: str = Field("127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 lets other machines ask")
    port: int = Field(9643, ge=0, le=65535, description="port to listen on; 0 takes any that is free")
    certificate: Path | None = Field(
        None,
        description="PEM file with the certificate, and those that lead to its authority: HTTPS, no HTTP; the "
        "supervisor's too",
    )
    key: Path | None = Field(None, description="PEM file with the certificate's private key, without a password")
    expose_records: bool = Field(
        False,
        description="show live records on the page and at /records, to clients with the token; they may hold "
        "personal data",
    )
    token: SecretStr | None = Field(
        None,
        min_length=16,
        description="what has to be shown for that, as `Authorization: Bearer`; take it from `${env:NAME}` or "
        "`${file:/path}`",
    )

    @model_validator(mode="after")
    def _whole(self) -> "Http":
        if (self.certificate is None) != (self.key is None):
            raise ValueError("'certificate' and 'key' go together; give both, or neither")
        if self.expose_records and self.token is None:
            raise ValueError("'expose_records' shows live records and needs a 'token'; take it from ${env:NAME}")
        return self

    @property
    def tls(self) -> tuple[Path, Path] | None:
        """Certificate and key; None: plain HTTP."""
        if self.certificate is None or self.key is None:
            return None
        return (self.certificate, self.key)


class Recovery(Strict):
    """What is kept beside Spark's checkpoints, for the day on which one of them is needed."""

    checkpoint_backups: int = Field(
        10, ge=0, description="copies of a pipeline's checkpoint that are kept; 0: none is made"
    )
    checkpoint_backups_interval: Duration = Field(
        timedelta(minutes=10), description="a copy is made at most this often"
    )
    checkpoint_backups_max_age: Duration = Field(timedelta(days=1), description="older copies go; the newest stays")


class Supervisor(Strict):
    """How `headrace supervisor run` looks after a driver."""

    host: str = Field("127.0.0.1", min_length=1, description="address where the supervisor answers /metrics, /status")
    port: int = Field(9644, ge=0, le=65535, description="port for that; 0 takes any that is free")
    lease_expiry: Duration = Field(
        timedelta(seconds=20),
        description="a supervisor, or a run by hand, that was silent for so long may be replaced by another",
    )
    lease: Literal["store", "kubernetes"] = Field(
        "store",
        description="where the lease of each pipeline is kept: beside its checkpoints, where every process "
        "sees it, or as a Lease of the Kubernetes that the supervisor runs in",
    )
    lease_prefix: str = Field(
        "headrace",
        max_length=63,
        pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$",
        description="with `lease: kubernetes`: what the name of each Lease begins with; then comes the pipeline's",
    )
    start_within: Duration = Field(
        timedelta(minutes=10), description="a driver that has not started its pipelines for so long hangs"
    )
    heartbeat_within: Duration = Field(
        timedelta(minutes=2), description="a driver whose main thread gave no sign for so long hangs"
    )
    stalled_after: Duration = Field(
        timedelta(minutes=30),
        description="a driver that commits nothing for so long while records wait hangs; three times commit.max_delay "
        "where that is more",
    )
    healthy_after: Duration = Field(
        timedelta(minutes=30), description="after so long without a failure the budgets of recovery are new"
    )
    allow_skip_to_latest: bool = Field(
        False,
        description="where Kafka lost what comes next and new runs do not help, skip to the end of its log without "
        "asking; what is skipped is a recorded gap",
    )


class ObjectStore(Strict):
    """What is set for the object stores of each cloud."""

    retry_timeout: Duration = Field(
        RETRY_TIMEOUT, description="how long an operation that fails in passing is tried again"
    )
    requests_per_second: float | None = Field(
        None,
        ge=1,
        description="requests that each process (the driver, each Python worker) sends to one table's folder, at most; "
        "what goes over it waits. Uploads to S3 are charged as they are reckoned. Requests of delta-rs and Spark, and "
        "on S3 those of PyIceberg, are not in it. Default: no limit; where a store throttles, a process sends fewer by "
        "itself",
    )


class S3(ObjectStore):
    """How S3 is reached. Credentials stand nowhere here: they come by the standard chain of AWS."""

    endpoint: str | None = Field(
        None,
        description="URL of a store that speaks S3; default: `AWS_ENDPOINT_URL_S3`, `AWS_ENDPOINT_URL`, else AWS",
    )
    region: str | None = Field(
        None, description="default: `AWS_REGION`, `AWS_DEFAULT_REGION`, the profile's, else us-east-1"
    )
    path_style: bool | None = Field(
        None, description="the bucket stands in the path, not in the host's name; default: where there is an endpoint"
    )

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/@?#\s]+/?", value):
            raise ValueError("'endpoint' is no URL of a host; write it as http://minio:9000, without user and path")
        if value:
            return value.rstrip("/")
        return None

    @property
    def settings(self) -> S3Settings:
        """What stores and tasks get, with what this process's environment adds."""
        settings = S3Settings(self.endpoint, self.region, self.path_style, self.retry_timeout, self.requests_per_second)
        return settings.with_environment(os.environ)


class Gcs(ObjectStore):
    """How Google Cloud Storage is reached. Credentials stand nowhere here: each process finds its own."""

    endpoint: str | None = Field(
        None, description="URL of a store that speaks Google's XML interface; default: `GOOGLE_BASE_URL`, else Google"
    )
    service_account_file: str | None = Field(
        None,
        pattern=r"^/.",
        description="path of a service account's key, which the driver and all executors have; default: what the "
        "environment names, else the service account of the machine or pod",
    )

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/@?#\s]+/?", value):
            raise ValueError("'endpoint' is no URL of a host; write it as http://storage:4443, without user and path")
        if value:
            return value.rstrip("/")
        return None

    @property
    def settings(self) -> GcsSettings:
        """What stores and tasks get, with what this process's environment adds."""
        settings = GcsSettings(self.endpoint, self.service_account_file, self.retry_timeout, self.requests_per_second)
        return settings.with_environment(os.environ)


class Azure(ObjectStore):
    """How Azure Blob Storage is reached. Credentials stand nowhere here: each process finds its own."""

    account: str | None = Field(
        None,
        description="storage account of az:// locations, and the one that `endpoint` belongs to; default: "
        "`AZURE_STORAGE_ACCOUNT_NAME`",
    )
    endpoint: str | None = Field(
        None,
        description="URL of the account, where that is not https://ACCOUNT.blob.core.windows.net; default: "
        "`AZURE_STORAGE_ENDPOINT`, `AZURE_ENDPOINT`",
    )

    @field_validator("account")
    @classmethod
    def _name(cls, value: str | None) -> str | None:
        if value is not None and not ACCOUNT.fullmatch(value):
            raise ValueError("'account' is no name of a storage account: 3 to 24 lower-case letters and digits")
        return value

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"https?://[^/@?#\s]+(/[a-z0-9]+)?/?", value):
            raise ValueError(
                "'endpoint' is no URL of an account; write it as https://account.blob.core.windows.net, or "
                "http://host:10000/account, without user and query"
            )
        if value:
            return value.rstrip("/")
        return None

    @property
    def settings(self) -> AzureSettings:
        """What stores and tasks get, with what this process's environment adds."""
        return AzureSettings(
            self.account, self.endpoint, self.retry_timeout, self.requests_per_second
        ).with_environment(os.environ)


class Autoscaler(Strict):
    """How `headrace autoscaler run` scales the executors of a driver."""

    token: SecretStr | None = Field(
        None,
        min_length=8,
        description="a request with this token may scale; the same for driver and autoscaler, such as "
        "${env:HEADRACE_SCALE_TOKEN}. Without it none may",
    )
    min_executors: int = Field(1, ge=1, description="never fewer executors")
    max_executors: int = Field(100, ge=1, description="never more executors; batches are cut for so many")
    drain_within: Duration = Field(
        timedelta(minutes=10), description="an executor that is to go has so long for its tasks; then it is killed"
    )
    host: str = Field("127.0.0.1", min_length=1, description="address where the autoscaler answers /metrics, /status")
    port: int = Field(9645, ge=0, le=65535, description="port for that; 0 takes any that is free")
    policy: dict[str, Any] = Field(
        default_factory=dict,
        description="parameters of the autoscaler by name, such as utilization_target: 0.7 "
        f"({page_address('docs/AUTOSCALING.md')})",
    )

    @model_validator(mode="after")
    def _apart(self) -> "Autoscaler":
        if self.max_executors < self.min_executors:
            raise ValueError(
                f"max_executors {self.max_executors} is below min_executors {self.min_executors}; raise it, or lower "
                "the other"
            )
        for name in ("min_executors", "max_executors"):
            if name in self.policy:
                raise ValueError(f"{name} stands in autoscaler itself, not in its policy; move it one level up")
        return self

    def opens(self, authorization: bytes) -> bool:
        """Return whether an Authorization header carries the token."""
        if self.token is None:
            return False
        return hmac.compare_digest(authorization, f"Bearer {self.token.get_secret_value()}".encode())


Kind = Literal[
    "records_missed",
    "missing_offsets",
    "gap_opened",
    "topic_recreated",
    "log_cut",
    "topic_gone",
    "topics_beyond_max",
    "targets_beyond_max",
    "target_refused",
    "target_behind",
    "offsets_rebuilt",
    "skipped_to_latest",
    "pipeline_halted",
    "lease_lost",
]

KINDS: tuple[Kind, ...] = get_args(Kind)


class Notifications(Strict):
    """Notifications for people when records are lost, skipped or in doubt, or a pipeline was given up."""

    url_env: str | None = Field(
        None,
        min_length=1,
        description="name of the environment variable with the URL to POST to (a Slack-compatible webhook, or any "
        "server); default: no notification is sent",
    )
    kinds: tuple[Kind, ...] = Field(
        KINDS, description="which events are sent; leave `missing_offsets` out for compacted and transactional topics"
    )
    timeout: Duration = Field(timedelta(seconds=10), description="how long an answer may take")
    retry_timeout: Duration = Field(timedelta(hours=1), description="how long a message that fails is tried again")


class OpenLineage(Strict):
    """Lineage events of each commit, for a receiver of OpenLineage such as Marquez."""

    url: str | None = Field(
        None, pattern=_HTTP, description="of the receiver, such as http://marquez:5000; default: no event is sent"
    )
    api_key: SecretStr | None = Field(
        None, description="sent as `Authorization: Bearer`; take it from `${env:NAME}` or `${file:/path}`"
    )
    namespace: str = Field("headrace", min_length=1, description="namespace of the jobs, which are the pipelines")
    timeout: Duration = Field(timedelta(seconds=5), description="how long an answer may take; no batch waits for it")


class OpenTelemetry(Strict):
    """A trace of each batch, for a collector that takes OTLP over HTTP. OTEL_EXPORTER_OTLP_HEADERS is honoured."""

    url: str | None = Field(
        None,
        pattern=_HTTP,
        description="where spans are sent, such as http://collector:4318/v1/traces; default: no span is sent",
    )
    timeout: Duration = Field(timedelta(seconds=5), description="how long an answer may take; no batch waits for it")
