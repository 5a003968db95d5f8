"""How the stores are reached: what a configuration says, with what the environment of a process adds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta

from headrace.writer.core.errors import ConfigError

# A batch waits for it; the commit itself tries again after it.
RETRY_TIMEOUT = timedelta(seconds=30)


# Of the environment, whose values nothing else has checked. A user or a query would be a secret in messages.
_ENDPOINT = re.compile(r"https?://[^/@?#\s]+(/[^@?#\s]*)?")


@dataclass(frozen=True)
class S3Settings:
    """How S3 is reached. Credentials are no part of it: each process finds its own by the standard chain of AWS."""

    # A URL; None: AWS itself, or what AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL say.
    endpoint: str | None = None
    # None: AWS_REGION, AWS_DEFAULT_REGION, the profile's, us-east-1.
    region: str | None = None
    # The bucket is in the path, not in the host's name; None: where there is an endpoint.
    path_style: bool | None = None
    # How long an operation is tried again.
    retry_timeout: timedelta = RETRY_TIMEOUT
    # Of each process to one table; None: there is no limit.
    requests_per_second: float | None = None

    def with_environment(self, environment: Mapping[str, str]) -> "S3Settings":
        """Return the settings with what an environment says where they leave it open: tasks may have another."""
        endpoint = self.endpoint or _read_endpoint(environment, "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        region = self.region or environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION")
        path_style = self.path_style
        if path_style is None:
            path_style = bool(endpoint)
        return replace(self, endpoint=endpoint, region=region or None, path_style=path_style)


@dataclass(frozen=True)
class GcsSettings:
    """How Google Cloud Storage is reached. Credentials are no part of it: each process finds its own."""

    # A URL; None: Google itself, or what GOOGLE_BASE_URL says.
    endpoint: str | None = None
    # The file of a service account's key, which each machine has; None: what the environment or the machine gives.
    service_account_file: str | None = None
    # How long an operation is tried again.
    retry_timeout: timedelta = RETRY_TIMEOUT
    # Of each process to one table; None: there is no limit.
    requests_per_second: float | None = None

    def with_environment(self, environment: Mapping[str, str]) -> "GcsSettings":
        """Return the settings with what an environment says where they leave it open: tasks may have another."""
        return replace(self, endpoint=self.endpoint or _read_endpoint(environment, "GOOGLE_BASE_URL"))


@dataclass(frozen=True)
class AzureSettings:
    """How Azure Blob Storage is reached. Credentials are no part of it: each process finds its own."""

    # The account of az:// locations, and the one that the endpoint belongs to; None: AZURE_STORAGE_ACCOUNT_NAME.
    account: str | None = None
    # A URL; None: the account's at Azure, or what AZURE_STORAGE_ENDPOINT or AZURE_ENDPOINT say.
    endpoint: str | None = None
    # How long an operation is tried again.
    retry_timeout: timedelta = RETRY_TIMEOUT
    # Of each process to one table; None: there is no limit.
    requests_per_second: float | None = None

    def with_environment(self, environment: Mapping[str, str]) -> "AzureSettings":
        """Return the settings with what an environment says where they leave it open: tasks may have another."""
        account = self.account or environment.get("AZURE_STORAGE_ACCOUNT_NAME")
        endpoint = self.endpoint or _read_endpoint(environment, "AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
        return replace(self, account=account or None, endpoint=endpoint)


@dataclass(frozen=True)
class StoreSettings:
    """How each kind of store is reached."""

    s3: S3Settings = S3Settings()
    gcs: GcsSettings = GcsSettings()
    azure: AzureSettings = AzureSettings()

    def with_environment(self, environment: Mapping[str, str]) -> "StoreSettings":
        """Return the settings with what an environment says where they leave it open: tasks may have another."""
        return StoreSettings(
            self.s3.with_environment(environment),
            self.gcs.with_environment(environment),
            self.azure.with_environment(environment),
        )


def _read_endpoint(environment: Mapping[str, str], *names: str) -> str | None:
    """Return the first variable that is set; None: none is. Raises ConfigError for what is no URL."""
    for name in names:
        endpoint = environment.get(name)
        if not endpoint:
            continue
        if not _ENDPOINT.fullmatch(endpoint):
            raise ConfigError(
                f"{name} of the environment is no URL of a host; write it as http://minio:9000, without user and query."
            )
        return endpoint
    return None
