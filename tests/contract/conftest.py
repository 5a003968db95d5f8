"""What the contract tests share: whatever holds, holds of each table format."""

from pathlib import Path

import pytest

from tests.bucketed import Lake


@pytest.fixture(params=["delta", "parquet", "iceberg"])
def form(request: pytest.FixtureRequest) -> str:
    """Format of the tables."""
    return str(request.param)


@pytest.fixture
def lake(tmp_path: Path, form: str) -> Lake:
    """A table whose buckets are closed and sealed."""
    return Lake(tmp_path, form)
