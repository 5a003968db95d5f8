"""Iceberg tables that AWS Glue knows, on S3: moto's Glue, and pyiceberg's client."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.table import Table

from headrace.writer.config.sections.table import Catalog
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.errors import Fenced
from headrace.writer.core.files import StagedFile
from headrace.writer.table.factory import table_at
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.iceberg.catalog.catalog_client import client_settings
from headrace.writer.table.iceberg.table_names import TableNames
from headrace.writer.table.log.foreign_writes import ForeignChange
from headrace.writer.table.log.operations.rows import Rewrite
from headrace.writer.table.table import PipelineTable
from tests.servers.objects import ObjectServer
from tests.support.catalog_faults import TWICE, fail
from tests.support.catalog_switches import check_switches
from tests.support.table_formats import in_catalog
from tests.support.tables import COLUMNS, P0, batch, begin, write_file

HOUR = "2026-11-20T05"
Stage = Callable[[int], StagedFile]


def place(url: str, location: str) -> CatalogTable:
    settings = Catalog.model_validate({"type": "glue", "namespace": "lake", "options": {"glue.endpoint": url}})
    return settings.place(location, f"lake.{in_catalog(location).table}_{location.split('/')[2][-12:]}", is_main=True)


def opened(url: str, location: str) -> PipelineTable:
    return table_at("iceberg", location, "events", catalog=place(url, location))


def theirs(url: str, location: str) -> Table:
    catalog_table = place(url, location)
    return load_catalog(catalog_table.catalog, **client_settings(catalog_table, location)).load_table(
        catalog_table.identifier
    )


@pytest.fixture
def table(on_s3: ObjectServer) -> PipelineTable:
    new_table = opened(on_s3.url, f"{on_s3.bucket()}/lake")
    new_table.create(COLUMNS, ["hour"])
    return new_table


@pytest.fixture
def stage(table: PipelineTable) -> Stage:
    return lambda rows: write_file(table.location, HOUR, rows, "iceberg")


def test_the_promises_of_a_table_hold_where_glue_knows_it(
    table: PipelineTable, on_s3: ObjectServer, stage: Stage
) -> None:
    epoch = begin(table)
    for offset in range(2):
        table.append(batch(epoch, 10 * offset, 10 * offset + 10, stage(10)), table.snapshot())
    table.grow([pa.field("price", pa.float64())], epoch)
    table.append(Rewrite("merge", table.bucket_files(table.snapshot()), [stage(20)]), table.snapshot())
    next_start = opened(on_s3.url, table.location)
    newer = begin(next_start)
    with pytest.raises(Fenced, match="another writer runs"):
        table.append(batch(epoch, 20, 30, stage(10)), table.snapshot())
    next_start.append(batch(newer, 20, 30, stage(10)), next_start.snapshot())
    other = theirs(on_s3.url, table.location)
    assert (other.scan().count(), next_start.snapshot().frontier(P0)) == (30, 30)
    assert other.schema().column_names == [*COLUMNS.names, "price"]
    snapshot = next_start.snapshot()
    other.append(pa.table({"id": [1], "hour": [HOUR], "price": [1.0]}, schema=other.schema().as_arrow()))
    with pytest.raises(ForeignChange, match="another client ran INSERT"):
        next_start.append(batch(newer, 30, 40, stage(10)), snapshot)


@pytest.mark.parametrize("commits", [5, pytest.param(200, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_of_two_committers_for_one_version_one_wins(table: PipelineTable, on_s3: ObjectServer, commits: int) -> None:
    begin(table)
    code = f"import sys; from {__name__} import opened; from tests.support.catalog_faults import race\n"
    code += "print(race(opened(*sys.argv[1:3]), int(sys.argv[3]), sys.argv[4]))"
    command = [sys.executable, "-c", code, on_s3.url, table.location, str(commits)]
    racing = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        for number in range(2)
    ]
    assert sum(int(racer.communicate(timeout=1700)[0]) for racer in racing) == commits
    assert table.snapshot().version == commits + 1


@pytest.fixture
def names(table: PipelineTable, on_s3: ObjectServer) -> TableNames:
    """The names of the table and its shadow's."""
    catalog_table = place(on_s3.url, table.location)
    shadow = f"{table.location}_2"
    table_at("iceberg", shadow, "events", catalog=replace(catalog_table, table=f"{catalog_table.table}_shadow")).create(
        COLUMNS, ["hour"]
    )
    return TableNames(catalog_table, table.location)


def test_a_switch_of_names_that_dies_at_any_request_is_ended_by_the_next(
    table: PipelineTable, names: TableNames, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = {GlueCatalog: ("_create_glue_table", "drop_table")}
    check_switches(names, (table.location, f"{table.location}_2"), effects, monkeypatch)


def test_columns_that_a_shadow_got_by_its_old_name_after_a_switch_that_died_stay(
    table: PipelineTable, names: TableNames, on_s3: ObjectServer
) -> None:
    catalog_table, shadow = place(on_s3.url, table.location), f"{table.location}_2"
    catalog_client.CatalogClient(catalog_table, table.location).forget()
    old = replace(catalog_table, table=f"{catalog_table.table}_shadow")
    catalog = catalog_client.open_catalog(
        catalog_table.catalog, tuple(sorted(client_settings(catalog_table, table.location).items()))
    )
    catalog.register_table(catalog_table.identifier, catalog.load_table(old.identifier).metadata_location)
    writer = table_at("iceberg", shadow, "events", catalog=old)
    writer.grow([*COLUMNS, pa.field("extra", pa.string())])
    names.switch(table.location, shadow)
    assert names.is_switched(shadow)
    assert "extra" in table_at("iceberg", shadow, "events", catalog=catalog_table).snapshot().columns().names


def test_an_answer_that_is_lost_takes_no_name_away(
    table: PipelineTable, names: TableNames, on_s3: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog_table = place(on_s3.url, table.location)
    client = catalog_client.open_catalog(
        catalog_table.catalog, tuple(sorted(client_settings(catalog_table, table.location).items()))
    )
    with fail(monkeypatch, client, TWICE, "drop_table") as failed:
        names.switch(table.location, f"{table.location}_2")
    assert (failed(), names.is_switched(f"{table.location}_2"), len(names._names())) == (2, True, 2)
