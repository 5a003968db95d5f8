"""What the contract tests share: whatever holds, holds of each table format."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers.cloud_stores import AzureStore, GcsStore, python_azure, python_gcs
from tests.servers.cloud_tokens import CloudTokens, cloud_tokens
from tests.servers.csfle import CsfleRegistry, serving
from tests.support.bucket_lake import Lake
from tests.support.field_encryption import SECRET


@pytest.fixture(params=["delta", "parquet", "iceberg"])
def form(request: pytest.FixtureRequest) -> str:
    """Format of the tables."""
    return str(request.param)


@pytest.fixture
def lake(tmp_path: Path, form: str) -> Lake:
    """A table whose buckets are closed and sealed."""
    return Lake(tmp_path, form)


@pytest.fixture
def secret_of_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the secret of their KEK where `privacy.decrypt` looks for it."""
    monkeypatch.setenv("SHOP_SECRET", SECRET)


@pytest.fixture
def registry(secret_of_producers: None) -> Iterator[CsfleRegistry]:  # noqa: ARG001 - pytest's way
    """A registry with data keys."""
    with serving(CsfleRegistry()) as server:
        yield server


@pytest.fixture
def tokens() -> Iterator[CloudTokens]:
    """Who gives tokens for clouds."""
    with cloud_tokens() as services:
        yield services


@pytest.fixture(scope="module")
def demanding_gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GcsStore]:
    """A server that plays Google Cloud Storage, which the module tells to demand tokens."""
    with python_gcs(tmp_path_factory.mktemp("gcs")) as store:
        yield store


@pytest.fixture(scope="module")
def demanding_azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AzureStore]:
    """A server that plays Azure Blob Storage, which the module tells to demand tokens."""
    with python_azure(tmp_path_factory.mktemp("azure")) as store:
        yield store
