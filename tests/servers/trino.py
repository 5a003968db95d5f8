"""Trino on loopback, as the bench starts it, with an S3 and a catalog of Iceberg tables besides."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from headrace.bench.engines import trino as engine
from headrace.bench.engines.statement import Coordinator
from tests.servers import parts
from tests.servers.objects import ObjectServer


@contextmanager
def trino(
    directory: Path,
    location: Path,
    s3: ObjectServer | None = None,
    iceberg: Mapping[str, str] | None = None,
    clouds: Mapping[str, str] | None = None,
) -> Iterator[Coordinator]:
    """Run Trino until the end of the block. Locations below `location` are written `local:///<path within it>`.

    `iceberg`: properties of a catalog of Iceberg tables, which Trino knows as `headrace`. `clouds`: properties by which
    each catalog reaches other stores than that S3.
    """
    storage = {**({} if s3 is None else _bucket(s3)), **(clouds or {})}
    catalogs = {} if iceberg is None else {"headrace": {**iceberg, **storage}}
    plugins = [parts.trino_iceberg()] if iceberg else []
    with engine.trino(
        parts.trino(), directory, location, storage=storage, catalogs=catalogs, plugins=plugins
    ) as server:
        yield server


def _bucket(s3: ObjectServer) -> dict[str, str]:
    """Return settings of catalogs whose files lie in an S3."""
    return {
        "fs.native-s3.enabled": "true",
        "s3.endpoint": s3.url,
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.aws-access-key": s3.key,
        "s3.aws-secret-key": s3.secret,
    }
