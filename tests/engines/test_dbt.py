"""dbt with the `sources.yml` that `headrace ddl --engine dbt` prints: it parses it, asks how fresh it is, and reads it.

The same clicks lie in a Delta, an Iceberg and a Parquet table. DuckDB reads them all, Trino the first.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.bench.engines.statement import Coordinator
from headrace.bench.engines.trino import register
from headrace.writer.cli.look.ddl import run_ddl
from headrace.writer.engines.dbt_sources import Adapter, dump_sources
from headrace.writer.output.table_choice import choose_tables
from tests.servers.dbt import DbtProject, duckdb_target, trino_target
from tests.support.documented_lake import DOCS, click_schema, lake_with_schemas
from tests.support.sealed_lake import DAY, SealedLake

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
HOUR = timedelta(hours=1)
ROWS = 12
HOURS = "SELECT hour, count(*) AS clicks, max(id) AS newest FROM {{ source('lake', 'clicks') }} GROUP BY hour"


def sealed_lake(root: Path, form: str, *hours: int) -> SealedLake:
    """A table of clicks in some hours since the day began, all of them sealed."""
    root.mkdir()
    lake = lake_with_schemas(root, form, click_schema(DOCS))
    for hour in hours:
        lake.add(hour, ROWS)
    for hour in hours:
        lake.seal(hour)
    return lake


def hours_until_now() -> int:
    """How many hours of the lake's clock have ended."""
    return (datetime.now(UTC) - DAY) // HOUR


def print_sources(lake: SealedLake, adapter: Adapter) -> str:
    report = run_ddl(choose_tables(lake.config, None, None), "dbt", adapter=adapter)
    return dump_sources(table.spec or {} for table in report.tables)


def test_dbt_parses_the_page_without_a_warning_and_finds_each_text(tmp_path: Path) -> None:
    project = DbtProject(tmp_path / "project", duckdb_target(tmp_path))
    page = print_sources(sealed_lake(tmp_path / "lake", "delta", 5), "duckdb")
    project.write("sources.yml", page)
    project.run("parse")
    source = project.sources()["clicks"]
    columns: dict[str, Any] = source["columns"]
    assert source["description"] == "A click."
    assert {name: columns[name]["description"] for name in DOCS} == {name: doc.strip() for name, doc in DOCS.items()}
    written = yaml.safe_load(page)["sources"][0]["tables"][0]
    assert {name: column["data_type"] for name, column in columns.items()} == {
        column["name"]: column["data_type"] for column in written["columns"]
    }
    assert source["freshness"]["warn_after"] == written["config"]["freshness"]["warn_after"]
    assert source["loaded_at_query"] == written["config"]["loaded_at_query"]


@pytest.mark.parametrize("form", ["delta", "iceberg", "parquet"])
def test_in_duckdb_it_is_as_fresh_as_its_newest_sealed_hour_and_has_its_rows(tmp_path: Path, form: str) -> None:
    now = hours_until_now()
    lake = sealed_lake(tmp_path / "lake", form, now - 3, now - 1)
    project = DbtProject(tmp_path / "project", duckdb_target(tmp_path))
    project.write("sources.yml", print_sources(lake, "duckdb"))
    project.run("source", "freshness")
    end = DAY + now * HOUR
    assert project.freshness() == {"clicks": ("pass", end.isoformat())}
    if form == "iceberg":
        # DuckDB's extension for Iceberg is not among dbt's packages; tests/engines/test_iceberg_engines.py has it.
        return
    project.write("hours.sql", HOURS)
    project.run("run")
    read = project.run("show", "--select", "hours", "--output", "json", "--limit", "9")
    for number, hour in enumerate((now - 3, now - 1), 1):
        label = f"{DAY + hour * HOUR:%Y-%m-%dT%H}"
        assert f'"hour": "{label}"' in read
        assert f'"newest": {number * ROWS - 1}' in read


def test_a_table_whose_hours_are_not_sealed_any_more_is_stale(tmp_path: Path) -> None:
    now = hours_until_now()
    lake = sealed_lake(tmp_path / "lake", "delta", now - 9)
    lake.add(now - 1, ROWS)
    project = DbtProject(tmp_path / "project", duckdb_target(tmp_path))
    project.write("sources.yml", print_sources(lake, "duckdb"))
    project.run("source", "freshness", fails=True)
    assert project.freshness() == {"clicks": ("error", (DAY + (now - 8) * HOUR).isoformat())}


def test_in_trino_it_is_as_fresh_as_the_history_of_a_delta_table_says(
    lakes: Path, trino: Coordinator, tmp_path: Path
) -> None:
    now = hours_until_now()
    lake = sealed_lake(lakes / "dbt", "delta", now - 3, now - 1)
    register(trino, "clicks", "local:///dbt/lake/clicks")
    project = DbtProject(tmp_path / "project", trino_target(trino.url))
    page = print_sources(lake, "trino")
    project.write("sources.yml", page)
    project.write("hours.sql", f"{{{{ config(materialized='ephemeral') }}}} {HOURS}")
    project.run("source", "freshness")
    assert project.freshness() == {"clicks": ("pass", (DAY + now * HOUR).isoformat())}
    read = project.run("show", "--select", "hours", "--output", "json", "--limit", "9")
    assert f'"newest": {2 * ROWS - 1}' in read
    named = {
        column["name"]: column["data_type"] for column in yaml.safe_load(page)["sources"][0]["tables"][0]["columns"]
    }
    found = {row[0]: row[1] for row in trino.ask("DESCRIBE delta.lake.clicks").rows}
    assert {name: kind.replace('"', "") for name, kind in named.items()} == found
