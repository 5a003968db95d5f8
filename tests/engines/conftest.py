"""The engines, each started once for the whole session, by the first test that asks for it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.bench.engines.statement import Coordinator
from tests.engines.engines import spark_session
from tests.servers.druid import Druid, druid
from tests.servers.iceberg_rest import iceberg_rest
from tests.servers.objects import ObjectServer
from tests.servers.presto import presto
from tests.servers.trino import trino


@pytest.fixture(scope="session")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tables lie that engines are asked about. Trino names a place below it `local:///<path within it>`."""
    return tmp_path_factory.mktemp("lakes")


@pytest.fixture(scope="session", name="trino")
def _trino(lakes: Path, s3: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with trino(tmp_path_factory.mktemp("trino"), lakes, s3) as server:
        yield server


@pytest.fixture(scope="session", name="presto")
def _presto(s3: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinator]:
    with presto(tmp_path_factory.mktemp("presto"), s3) as server:
        yield server


@pytest.fixture(scope="session", name="druid")
def _druid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Druid]:
    with druid(tmp_path_factory.mktemp("druid")) as server:
        yield server


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with spark_session(tmp_path_factory.mktemp("spark")) as session:
        yield session


@pytest.fixture(scope="session")
def iceberg_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a REST catalog of Iceberg tables on local disks."""
    with iceberg_rest(tmp_path_factory.mktemp("iceberg_rest")) as url:
        yield url
