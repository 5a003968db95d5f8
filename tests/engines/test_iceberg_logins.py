"""Engines log in to a REST catalog by what `headrace ddl` prints: a secret, a token, a signature of AWS."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.writer.engines.iceberg import trino_properties
from headrace.writer.engines.registration import registration
from headrace.writer.engines.table_description import TableDescription, describe_table
from tests.servers import duckdb_extensions
from tests.servers.catalog_proxy import Login, OAuth, SigV4, catalog_proxy
from tests.servers.iceberg_rest import iceberg_rest
from tests.servers.objects import ObjectServer
from tests.servers.trino import trino
from tests.support.local_driver import Driver, log
from tests.support.sample_records import EVENT, NOW, value

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(600)]
CLIENT, SECRET, TOKEN, SERVICE = "engines", "a-secret-of-engines", "a-token-of-engines", "glue"
LOGINS: dict[str, tuple[str, dict[str, Any]]] = {  # what a reader writes for <secret>, and the catalog's section
    "credential": (f"{CLIENT}:{SECRET}", {"credential": f"{CLIENT}:{SECRET}", "options": {"scope": "lake:read"}}),
    "token": (TOKEN, {"token": TOKEN}),
    "sigv4": (
        "",
        {
            "options": {
                "rest.sigv4-enabled": "true", "rest.signing-name": SERVICE, "rest.signing-region": "us-east-1",
            }
        },
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def url(s3: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with iceberg_rest(tmp_path_factory.mktemp("rest"), s3) as server:
        yield server


def login(kind: str, s3: ObjectServer) -> Login:
    if kind == "sigv4":
        return SigV4(s3.key, s3.secret, "us-east-1", SERVICE)
    return OAuth(CLIENT, SECRET, "lake:read", given={TOKEN: time.monotonic() + 3600})


def written(root: Path, sections: dict[str, Any], table: dict[str, str]) -> TableDescription:
    """Let the writer log in, too, and commit ten rows."""
    driver = Driver(root, "iceberg", sections=sections, table=table)
    driver.start()
    driver.carry(
        [log({offset: value(1, EVENT, {"id": offset, "at": NOW, "note": None}) for offset in range(10)})], {0: 10}
    )
    return describe_table("clicks", driver.config, driver.table)


@pytest.mark.parametrize("kind", LOGINS)
def test_engines_log_in_by_what_ddl_says(
    kind: str, url: str, s3: ObjectServer, spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3.url)
    secret, catalog = LOGINS[kind]
    with catalog_proxy(url, login(kind, s3)) as proxy:
        sections = {
            "catalog": {"type": "rest", "uri": proxy.url, **catalog},
            "s3": {"endpoint": s3.url, "path_style": True, "region": "us-east-1"},
        }
        (tmp_path / "local").mkdir()
        (tmp_path / "remote").mkdir()
        name = f"logins_{kind}"
        local = written(
            tmp_path / "local", sections, {"location": str(tmp_path / "lake"), "name": f"{name}.local"}
        )  # fmt: skip
        remote = written(
            tmp_path / "remote", sections, {"location": f"{s3.bucket()}/lake/clicks", "name": f"{name}.remote"}
        )  # fmt: skip
        total = "SELECT count(*), sum(id) FROM {}"

        for key, own in (("aws.accessKeyId", s3.key), ("aws.secretAccessKey", s3.secret)):
            spark._jvm.java.lang.System.setProperty(key, own)  # as its machine has them
        session = spark.newSession()  # a session keeps the catalogs that it has opened
        for statement in registration(local, "spark", name=f"spark_{kind}", location=None):
            assert SECRET not in statement
            session.sql(statement.replace("<secret>", secret))
        assert [tuple(row) for row in session.sql(total.format(f"spark_{kind}")).collect()] == [(10, 45)]

        if kind != "sigv4":  # DuckDB signs for hosts of AWS alone
            filled = SECRET if kind == "credential" else secret
            told = registration(remote, "duckdb", name=None, location=None)
            told = [one.replace("<id>", CLIENT).replace("<secret>", filled) for one in told]
            assert [tuple(map(int, row)) for row in duckdb_extensions.ask([*told, total.format("clicks")])] == [
                (10, 45)
            ]

        properties = dict(line.split("=", 1) for line in trino_properties(remote))
        properties = {key: one.replace("<secret>", secret) for key, one in properties.items()}
        with trino(tmp_path / "trino", tmp_path, s3, properties) as server:
            for statement in registration(remote, "trino", name=None, location=None):
                server.ask(statement)
            assert server.ask(total.format(f"headrace.{name}.remote_view")).rows == [(10, 45)]
