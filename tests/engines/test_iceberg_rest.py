"""Iceberg tables that a REST catalog knows: Iceberg's own server, and pyiceberg's client."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema

from headrace.writer.cli.maintain.convert import run_convert
from headrace.writer.cli.maintain.table_adopt import run_adopt
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import Catalog
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.files import StagedFile
from headrace.writer.table.factory import main_table, table_at
from headrace.writer.table.iceberg.table_names import TableNames
from headrace.writer.table.log.foreign_writes import ForeignChange
from headrace.writer.table.table import PipelineTable
from tests.servers.iceberg_rest import iceberg_rest
from tests.support.catalog_switches import check_switches
from tests.support.foreign_iceberg import BY_HOUR, COLUMNS as FIELDS
from tests.support.foreign_rows import old_rows
from tests.support.local_driver import Driver, log, pipeline_config
from tests.support.promotion import check_there_and_back
from tests.support.reprocess_check import check_reprocess
from tests.support.sample_records import NOW, event
from tests.support.shadow_lake import Lake, writer_fixture  # noqa: F401 - a fixture
from tests.support.tables import COLUMNS, P0, batch, begin, write_file

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
HOUR = "2026-11-20T05"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with iceberg_rest(tmp_path_factory.mktemp("rest")) as server:
        yield server


def place(url: str, location: str) -> CatalogTable:
    settings = Catalog.model_validate({"type": "rest", "uri": url})
    return settings.place(location, f"lake.{Path(location).parent.name}", is_main=True)


@pytest.fixture
def table(url: str, tmp_path: Path) -> PipelineTable:
    location = str(tmp_path / "lake")
    new_table = opened(url, location)
    new_table.create(COLUMNS, ["hour"])
    return new_table


@pytest.fixture
def stage(table: PipelineTable) -> Callable[[int], StagedFile]:
    return lambda rows: write_file(table.location, HOUR, rows, "iceberg")


def theirs(url: str, table: PipelineTable) -> Any:
    catalog_table = place(url, table.location)
    return load_catalog(catalog_table.catalog, **dict(catalog_table.settings)).load_table(catalog_table.identifier)


def test_commits_columns_and_another_clients_change_pass_through_it(
    url: str, table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    table.grow([pa.field("price", pa.float64())], epoch)
    table.append(batch(epoch, 10, 20, stage(10)), table.snapshot())
    assert theirs(url, table).scan().count() == 20
    assert theirs(url, table).schema().column_names == [*COLUMNS.names, "price"]
    snapshot, other = table.snapshot(), theirs(url, table)
    other.append(pa.table({"id": [1], "hour": [HOUR], "price": [1.0]}, schema=other.schema().as_arrow()))
    with pytest.raises(ForeignChange, match="another client ran INSERT"):
        table.append(batch(epoch, 20, 30, stage(10)), snapshot)


def opened(url: str, location: str) -> PipelineTable:
    return table_at("iceberg", location, "events", catalog=place(url, location))


@pytest.mark.parametrize("races", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_of_two_committers_for_one_version_one_wins_each_time(url: str, table: PipelineTable, races: int) -> None:
    begin(table)
    code = f"import sys; from {__name__} import opened; from tests.support.catalog_faults import race\n"
    code += f"print(race(opened(*sys.argv[1:3]), {races}, sys.argv[3]))"
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", code, url, table.location, str(number)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(2)
    ]
    assert sum(int(racer.communicate(timeout=800)[0]) for racer in racing) == races
    assert table.snapshot().version == races + 1


def test_a_delta_table_is_converted_and_a_table_of_another_client_adopted(url: str, tmp_path: Path) -> None:
    def settings(root: Path, name: str) -> Config:
        found = pipeline_config(root, "iceberg", table={"name": name}, start={"offsets": {"clicks": {0: 10}}})
        return found.model_copy(update={"catalog": Catalog.model_validate({"type": "rest", "uri": url})})

    driver = Driver(tmp_path / "delta")
    driver.start()
    driver.carry([log({offset: event(offset) for offset in range(10)})], {0: 10})
    converted, taken = settings(tmp_path / "delta", "lake.converted"), settings(tmp_path / "other", "lake.taken")
    assert run_convert(converted, "clicks", write=True, now=NOW).has_changes
    catalog_table = taken.catalog_place("clicks", taken.pipelines["clicks"].table.location)
    assert catalog_table is not None
    other = load_catalog(catalog_table.catalog, **dict(catalog_table.settings))
    new_table = other.create_table(
        catalog_table.identifier, Schema(*FIELDS), str(tmp_path / "other/lake/clicks"), BY_HOUR
    )
    new_table.append(old_rows())
    run_adopt(taken, "clicks", write=True, now=NOW)
    for config, rows in ((converted, 10), (taken, 6)):
        table = main_table("clicks", config)
        table.begin({P0: 10}, {"clicks": ["uuid-1"]})
        assert table.snapshot().frontier(P0) == 10
        at = config.catalog_place("clicks", table.location)
        assert at is not None
        assert (table.rows().count_rows(), other.load_table(at.identifier).scan().count()) == (rows, rows)


def test_a_switch_of_names_that_dies_at_any_request_is_ended_by_the_next(
    url: str, table: PipelineTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog_table, shadow = place(url, table.location), f"{table.location}_2"
    table_at("iceberg", shadow, "events", catalog=replace(catalog_table, table=f"{catalog_table.table}_shadow")).create(
        COLUMNS, ["hour"]
    )
    places = table.location, shadow
    check_switches(TableNames(catalog_table, table.location), places, {RestCatalog: ("rename_table",)}, monkeypatch)


def test_a_shadow_takes_the_place_of_the_first_and_gives_it_back(
    url: str, tmp_path: Path, writer: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    catalog = {"type": "rest", "uri": url, "namespace": "shadowed"}
    check_there_and_back(Lake(tmp_path, "iceberg", sections={"catalog": catalog}), writer, monkeypatch)


def test_old_rules_and_a_reprocess_give_what_the_new_rules_give_from_the_start(url: str, tmp_path: Path) -> None:
    check_reprocess(tmp_path, "iceberg", sections={"catalog": {"type": "rest", "uri": url, "namespace": "reprocessed"}})
