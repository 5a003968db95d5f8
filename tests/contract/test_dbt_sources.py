"""`headrace ddl --engine dbt`: a sources.yml with a table's columns, and freshness by its seals. DuckDB runs its text.

tests/engines/test_dbt.py gives it to dbt itself.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import jinja2
import pytest
import yaml
from deltalake import DeltaTable
from hypothesis import given, strategies as st

from headrace.writer.cli.look.ddl import DdlReport, run_ddl
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.engines.dbt_sources import _period, dump_sources, seal_age
from headrace.writer.output.table_choice import choose_tables
from headrace.writer.output.tables import console
from tests.support.documented_lake import DOCS, click_schema, lake_with_schemas
from tests.support.sealed_lake import SealedLake

HOUR = timedelta(hours=1)
PERIODS = {"minute": timedelta(minutes=1), "hour": HOUR, "day": timedelta(days=1)}


def source_of(config: Config, adapter: str = "duckdb", **options: Any) -> dict[str, Any]:
    """The one entry of `sources:`, as the command's JSON has it."""
    (table,) = run_ddl(choose_tables(config, None, None), "dbt", adapter=adapter, **options).document()["tables"]
    assert table["statements"] is None
    source: dict[str, Any] = table["spec"]
    return source


def rendered(value: Any) -> Any:
    """A YAML document with its texts as Jinja gives them."""
    if isinstance(value, str):
        return jinja2.Environment(keep_trailing_newline=True, autoescape=False).from_string(value).render()
    if isinstance(value, dict):
        return {key: rendered(part) for key, part in value.items()}
    return [rendered(part) for part in value] if isinstance(value, list) else value


def external_location(table: Mapping[str, Any]) -> str:
    """The text that dbt-duckdb puts in place of the table."""
    return str(table["config"]["meta"]["external_location"].format_map({"name": table["name"]}))


def test_columns_and_types_are_those_that_duckdb_finds(tmp_path: Path) -> None:
    lake = lake_with_schemas(tmp_path, "parquet", click_schema(DOCS))
    lake.add(5, 10)
    (table,) = source_of(lake.config)["tables"]
    connection = duckdb.connect()
    found = connection.execute(f"DESCRIBE FROM {external_location(table)}").fetchall()
    said = [
        (c["name"], connection.execute(f"SELECT typeof(NULL::{c['data_type']})").fetchall()) for c in table["columns"]
    ]
    assert said == [(name, [(kind,)]) for name, kind, *_ in found]


@pytest.mark.parametrize("form", ["delta", "iceberg", "parquet"])
def test_it_is_as_fresh_as_the_end_of_the_newest_sealed_bucket(tmp_path: Path, form: str) -> None:
    lake = lake_with_schemas(tmp_path, form, click_schema(DOCS))
    for hour in (5, 6, 7):
        lake.add(hour, 10)
    lake.seal(6)
    lake.seal(5)
    (table,) = source_of(lake.config)["tables"]
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'America/New_York'")
    ((loaded_at,),) = connection.execute(table["config"]["loaded_at_query"]).fetchall()
    assert loaded_at.astimezone(UTC) == datetime(2026, 11, 20, 7, tzinfo=UTC)
    # Of an hour: its width, `seal.after` (1 h), `commit.max_delay` (10 min) and five minutes; then an hour more.
    assert table["config"]["freshness"] == {
        "warn_after": {"count": 135, "period": "minute"},
        "error_after": {"count": 195, "period": "minute"},
    }


def test_trino_is_asked_for_the_history_that_has_the_seals(tmp_path: Path) -> None:
    (tmp_path / "delta").mkdir()
    lake = lake_with_schemas(tmp_path / "delta", "delta", click_schema(DOCS))
    lake.add(5, 3)
    lake.seal(5)
    delta = source_of(lake.config, "trino")
    assert (delta["database"], delta["schema"], delta["tables"][0]["identifier"]) == ("delta", "lake", "clicks")
    assert delta["tables"][0]["config"]["loaded_at_query"] == (
        "SELECT max(from_iso8601_timestamp(element_at(operation_parameters, 'sealedEnd'))) "
        'FROM "delta"."lake"."clicks$history"'
    )
    types = {column["name"]: column["data_type"] for column in delta["tables"][0]["columns"]}
    assert types["at"] == "timestamp(3) with time zone"
    named = source_of(lake.config, "trino", name="hot.web.events")
    assert (named["database"], named["schema"], named["tables"][0]["identifier"]) == ("hot", "web", "events")
    (tmp_path / "iceberg").mkdir()
    lake = lake_with_schemas(tmp_path / "iceberg", "iceberg", click_schema(DOCS))
    lake.add(5, 3)
    iceberg = source_of(lake.config, "trino")
    (table,) = iceberg["tables"]
    history = f'"{iceberg["database"]}"."{iceberg["schema"]}"."{table["identifier"]}$snapshots"'
    assert history in table["config"]["loaded_at_query"]
    assert "_kafka_partition" in {column["name"] for column in table["columns"]}


def test_engines_see_in_a_tables_history_where_the_newest_bucket_of_a_seal_ends(tmp_path: Path) -> None:
    def seal_two(form: str) -> tuple[SealedLake, list[str]]:
        (tmp_path / form).mkdir()
        lake = SealedLake(tmp_path / form, form)
        for hour in (5, 6):
            lake.add(hour, 3)
        return lake, [str(manifest.to_json()["end"]) for manifest in (lake.seal(6), lake.seal(5))]

    lake, ends = seal_two("delta")
    entries = reversed(DeltaTable(lake.table.location).history())
    shown = [entry["operationParameters"].get("sealedEnd") for entry in entries]
    assert [text for text in shown if text] == ends
    lake, ends = seal_two("iceberg")
    snapshots = json.loads(Path(lake.table.metadata_file()).read_text())["snapshots"]
    shown = [snapshot["summary"].get("headrace.sealed-end") for snapshot in snapshots]
    assert [text for text in shown if text] == ends


def test_parquet_tables_and_tables_without_seals_say_why_they_have_no_freshness(tmp_path: Path) -> None:
    lake = lake_with_schemas(tmp_path, "parquet", click_schema(DOCS))
    (report,) = run_ddl(choose_tables(lake.config, None, None), "dbt", adapter="duckdb").tables
    assert "freshness" not in (report.spec or {})["tables"][0]["config"]
    assert any("no bucket of it is sealed by time yet" in note for note in report.notes)
    lake.add(5, 3)
    (report,) = run_ddl(choose_tables(lake.config, None, None), "dbt", adapter="trino").tables
    assert "freshness" not in (report.spec or {})["tables"][0]["config"]
    assert any("Trino does not see" in note for note in report.notes)


def test_columns_are_described_by_the_newest_schema_that_says_something(tmp_path: Path) -> None:
    older = click_schema({**DOCS, "clean": "Old and clean.", "user": "Old user."}, "An old click.")
    lake = lake_with_schemas(tmp_path, "delta", older, click_schema(DOCS))
    lake.add(5, 3)
    (table,) = source_of(lake.config)["tables"]
    texts = {column["name"]: column.get("description") for column in table["columns"]}
    assert table["description"] == "A click."
    assert texts["user"] == DOCS["user"].strip()
    assert texts["clean"] == "Old and clean."
    assert texts["amount"] is None
    assert texts["_offset"] == "Offset of the record in its partition."


def test_what_record_types_say_differently_is_no_description(tmp_path: Path) -> None:
    other = click_schema({"id": DOCS["id"], "user": "Another one."}, "A view.", "View")
    lake = lake_with_schemas(tmp_path, "delta", click_schema(DOCS), other)
    lake.add(5, 3)
    (table,) = source_of(lake.config)["tables"]
    texts = {column["name"]: column.get("description") for column in table["columns"]}
    assert "description" not in table
    assert texts["id"] == DOCS["id"]
    assert texts["user"] is None


def test_a_spec_carries_descriptions_to_the_columns_that_it_makes(tmp_path: Path) -> None:
    spec = {
        "rename": {"user": "visitor"},
        "columns": {"exclude": ["price"]},
        "derive": {"amount": "CAST(id AS DOUBLE)"},
    }
    lake = lake_with_schemas(tmp_path, "delta", click_schema(DOCS), specs={"shop.Click": spec})
    lake.add(5, 3)
    (table,) = source_of(lake.config)["tables"]
    texts = {column["name"]: column.get("description") for column in table["columns"]}
    assert texts["id"] == DOCS["id"]
    assert texts["price"] is None, "the spec leaves it out"
    assert texts["user"] is None, "its record fills another column"
    assert texts["amount"] is None, "an expression makes it"


def test_one_page_has_all_tables_and_dbt_reads_back_what_was_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        lake = lake_with_schemas(tmp_path / name, "delta", click_schema(DOCS))
        lake.add(5, 3)
        reports.append(run_ddl(choose_tables(lake.config, None, None), "dbt", adapter="duckdb"))
    DdlReport("dbt", [table for report in reports for table in report.tables]).render(console())
    (source,) = rendered(yaml.safe_load(capsys.readouterr().out))["sources"]
    assert [table["name"] for table in source["tables"]] == ["clicks", "clicks"]
    locations = [external_location(table) for table in source["tables"]]
    assert locations == [f"delta_scan('{tmp_path}/{name}/lake/clicks')" for name in ("one", "two")]
    texts = {column["name"]: column.get("description") for column in source["tables"][0]["columns"]}
    assert (texts["id"], texts["user"], texts["price"]) == (DOCS["id"], DOCS["user"].strip(), DOCS["price"])


def test_the_registry_is_needed_and_said_to_be_silent(tmp_path: Path) -> None:
    lake = SealedLake(tmp_path)
    lake.add(5, 3)
    with pytest.raises(HeadraceError, match=r"http://127\.0\.0\.1:1"):
        source_of(lake.config)


def test_options_that_say_nothing_to_dbt_are_refused(tmp_path: Path) -> None:
    lake = lake_with_schemas(tmp_path, "delta", click_schema(DOCS))
    lake.add(5, 3)
    tables = choose_tables(lake.config, None, None)
    with pytest.raises(ConfigError, match="give it with --engine dbt"):
        run_ddl(tables, "trino", adapter="trino")
    with pytest.raises(ConfigError, match="leave --location out"):
        run_ddl(tables, "dbt", location="local:///clicks")
    with pytest.raises(ConfigError, match=r"catalog\.schema\.table"):
        run_ddl(tables, "dbt", name="clicks")
    with pytest.raises(ConfigError, match="leave --table out"):
        run_ddl(tables, "dbt", adapter="duckdb", name="a.b.c")


# Signs of YAML and Jinja among letters, and any other character that a document of Avro may hold.
TEXTS = st.text(
    st.sampled_from("{}%#-+:'\"\\ \n\t&*!|>@`,[]?aß\u2028") | st.characters(exclude_categories=["Cs"]), max_size=40
)


@given(TEXTS)
def test_any_text_is_read_back_by_yaml_and_jinja(text: str) -> None:
    source = {"name": "lake", "schema": "main", "tables": [{"name": "t", "description": text, "meta": {"a": [text]}}]}
    (read,) = rendered(yaml.safe_load(dump_sources([source])))["sources"]
    # Jinja writes one kind of line end.
    expected = text.replace("\r\n", "\n").replace("\r", "\n")
    assert read["tables"] == [{"name": "t", "description": expected, "meta": {"a": [expected]}}]


@given(st.timedeltas(timedelta(seconds=1), timedelta(days=4000)), st.timedeltas(timedelta(0), timedelta(days=40)))
def test_an_age_is_in_whole_units_and_never_too_short(width: timedelta, delay: timedelta) -> None:
    age = seal_age(width, delay)
    assert age.error_after - age.warn_after == width
    period = _period(age.warn_after)
    written = period["count"] * PERIODS[period["period"]]
    assert timedelta(0) <= written - age.warn_after < timedelta(minutes=1)
    larger = [unit for unit in PERIODS.values() if unit > PERIODS[period["period"]]]
    assert all(written % unit for unit in larger)
