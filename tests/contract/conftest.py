"""What the contract tests share: whatever holds, holds of each table format."""

from collections.abc import Iterator
from pathlib import Path

import pytest

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
