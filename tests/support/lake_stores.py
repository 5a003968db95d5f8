"""Places for lakes in each kind of store that a table may lie in."""

from pathlib import Path

import pytest

# Names of parameters of tests, which tests.support.suites knows.
BUCKETS = ("s3", "gs", "az")
_FIXTURES = {"s3": "on_s3", "gs": "on_gcs", "az": "on_azure"}


def new_home(request: pytest.FixtureRequest, kind: str, directory: Path) -> str:
    """Return the location of a new bucket, or the directory. `kind`: local, or one of BUCKETS."""
    if kind == "local":
        return str(directory)
    server = request.getfixturevalue(_FIXTURES[kind])
    bucket = str(server.bucket())
    is_iceberg = "form" in request.fixturenames and request.getfixturevalue("form") == "iceberg"
    if kind == "az" and is_iceberg:
        return full_azure_name(bucket, server.account)
    return bucket


def full_azure_name(location: str, account: str) -> str:
    """Return an az:// location as one that names its account, which clients of Iceberg know."""
    container, separator, folder = location.removeprefix("az://").partition("/")
    return f"abfss://{container}@{account}.dfs.core.windows.net{separator}{folder}"
