"""Two tables that one topic fills, as the real engines read them: each was told of its table by a hook of its own."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from deltalake import DeltaTable

from headrace.bench.engines.statement import Coordinator
from tests.engines.engines import delta_view
from tests.servers.druid import Druid
from tests.support.process import say
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1200)]
COUNTS = {"Click": ("clicks", 300), "Install": ("installs", 120)}
_WITHIN_S = 180  # Druid serves new segments a moment after it has them


def test_two_tables_of_one_topic_in_all_five_engines(
    lakes: Path, bootstrap: str, registry_url: str, topic: Callable[..., str], trino: Coordinator, presto: Coordinator,
    druid: Druid, spark: Any,
) -> None:  # fmt: skip
    name = topic(2, prefix="routed")
    site = Site(lakes / "routed_site", bootstrap, registry_url)
    site.root.mkdir()
    tables = lakes / "routed"
    site.pipeline(
        "app", [name], table={"location": str(lakes / "routed_log")},
        route={"targets": {"*": str(tables / "{name}")}}, seal={"enabled": True},
        hooks=[
            {"type": "trino", "url": trino.url, "table": "delta.lake.{name}", "location": "local:///routed/{name}"},
            {"type": "presto", "url": presto.url, "table": "delta.lake.{name}", "location": f"file://{tables}/{{name}}"},
            {"type": "druid", "url": druid.overlord, "datasource": "{name}"},
        ],
    )  # fmt: skip
    for kind, count in COUNTS.values():
        site.send(name, site.values(name, count, kind=kind, subject=f"{name}-{kind}"))
    site.once()
    for target in COUNTS:
        say("hooks", "run", str(site.config), "--target", f"headrace.demo.{target}")

    def found() -> dict[tuple[str, str], Any]:
        return {(engine, table): answered(ask, table) for engine, ask in asks.items() for table in COUNTS}

    asks: dict[str, Callable[[str], Any]] = {
        "trino": lambda table: trino.ask(_counted(f"delta.lake.{table.lower()}")).rows,
        "presto": lambda table: presto.ask(_counted(f"delta.lake.{table.lower()}")).rows,
        "druid": lambda table: druid.ask(_counted(f'"{table}"')),
        "spark": lambda table: spark.sql(_counted(f"delta.`{tables / table}`")).collect(),
        "duckdb": lambda table: _duckdb(str(tables / table)),
    }
    expected = {(engine, table): (count, count) for engine in asks for table, (_, count) in COUNTS.items()}
    deadline = time.monotonic() + _WITHIN_S
    while (now := found()) != expected:
        assert time.monotonic() < deadline, now
        time.sleep(1)
    assert "It adds up." in say("audit", str(site.config), "--deep")


def answered(ask: Callable[[str], Any], table: str) -> Any:
    try:
        ((rows, distinct),) = ask(table)
    except AssertionError as error:  # Druid's broker has not heard of the datasource yet
        return str(error)
    return rows, distinct


def _counted(table: str) -> str:
    return f"SELECT count(*), count(DISTINCT event_id) FROM {table}"


def _duckdb(location: str) -> Any:
    with duckdb.connect() as connection:
        delta_view(connection, "routed", location, DeltaTable(location).metadata().partition_columns)
        return connection.execute(_counted("routed")).fetchall()
