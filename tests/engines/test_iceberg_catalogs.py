"""Iceberg tables in catalogs with a storage and rules of their own: SeaweedFS, as AWS's S3 Tables, and Nessie."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from headrace.writer.audit.audit import audit
from headrace.writer.driver.start.pipeline_start import probe_locations
from headrace.writer.maintenance.vacuum import find_unneeded, remove
from headrace.writer.table.factory import main_table
from headrace.writer.table.iceberg.catalog.catalog_client import client_settings
from headrace.writer.table.log.foreign_writes import ForeignChange
from headrace.writer.table.table import PipelineTable
from tests.servers import catalogs
from tests.servers.catalogs import CatalogServer
from tests.servers.objects import CREDENTIALS, ObjectServer
from tests.support.local_driver import Driver, pipeline_config
from tests.support.log_location import folders_below, write_history
from tests.support.sample_records import NOW
from tests.support.small_files import carry, fill_table, offsets
from tests.support.vacuum_time import days_ahead

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900), pytest.mark.usefixtures("scratch")]
RACES = 40


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CatalogServer]:
    with pytest.MonkeyPatch.context() as patch, catalogs.seaweedfs(tmp_path_factory.mktemp("seaweedfs")) as server:
        for name, value in CREDENTIALS.items():
            patch.setenv(name, value)
        yield server


@pytest.fixture(scope="module")
def nessie(tmp_path_factory: pytest.TempPathFactory, s3: ObjectServer) -> Iterator[CatalogServer]:
    with catalogs.nessie(tmp_path_factory.mktemp("nessie"), s3) as server:
        yield server


@pytest.fixture(params=["seaweedfs", "nessie"])
def catalog(request: pytest.FixtureRequest) -> CatalogServer:
    server: CatalogServer = request.getfixturevalue(request.param)
    return server


@pytest.fixture
def make(catalog: CatalogServer, tmp_path: Path) -> Callable[[int], Driver]:
    """A factory of drivers with so many commits, at a location that is new."""
    table = {"location": f"{catalog.tables}/clicks_{uuid4().hex[:8]}"}
    return lambda commits: fill_table(
        tmp_path, "iceberg", commits, sections=catalog.sections, table=table, seal={"late": "reopen"}
    )


def theirs(driver: Driver) -> Table:
    """Return the table as another client opens it."""
    catalog_table = driver.config.catalog_place("clicks", driver.lake)
    assert catalog_table is not None
    return load_catalog(
        catalog_table.catalog, **client_settings(catalog_table, driver.lake, driver.config.stores)
    ).load_table(catalog_table.identifier)


def test_a_table_lives_there(catalog: CatalogServer, make: Callable[[int], Driver]) -> None:
    driver = make(6)
    probe_locations("clicks", driver.config)
    write_history(driver)
    rows = offsets(driver)
    assert theirs(driver).scan(selected_fields=("_offset",)).to_arrow().num_rows == len(rows) == 70
    if "log_location" in catalog.sections["catalog"]:
        assert folders_below(driver, driver.lake) == folders_below(driver, driver.dead_letters) == {"data", "metadata"}
    waste = find_unneeded(driver.config, "clicks", None, days_ahead())
    remove(waste)
    assert sum(len(location.waste) for location in waste) > 6
    assert offsets(driver) == rows
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up
    again = make(0)
    carry(again, 8)
    assert len(offsets(again)) == 80


def test_another_clients_change_stops_the_writer(make: Callable[[int], Driver]) -> None:
    driver = make(2)
    other, snapshot = theirs(driver), driver.table.snapshot()
    columns = other.schema().as_arrow()
    row = {name: [None] for name in columns.names} | {"id": [7], "at": [NOW], "hour": ["2026-11-20T05"]}
    other.append(pa.table(row, schema=columns))
    with pytest.raises(ForeignChange, match="another client"):
        carry(driver, 2)
    assert driver.table.snapshot().version == snapshot.version + 1, "the log says what it did"
    assert theirs(driver).scan().count() == 21


def test_of_two_committers_for_one_version_one_wins_each_time(
    catalog: CatalogServer, make: Callable[[int], Driver]
) -> None:
    driver = make(0)
    first = driver.table.snapshot().version
    code = f"import sys; from {__name__} import opened; from tests.support.catalog_faults import race\n"
    code += f"print(race(opened(*sys.argv[1:3]), {first + RACES - 1}, sys.argv[3]))"
    sections = json.dumps({**catalog.sections})
    racing = [
        subprocess.Popen(
            [sys.executable, "-c", code, sections, driver.lake, str(number)], stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )
        for number in range(2)
    ]  # fmt: skip
    assert sum(int(racer.communicate(timeout=800)[0]) for racer in racing) == RACES
    assert driver.table.snapshot().version == first + RACES


def opened(sections: str, location: str) -> PipelineTable:
    config = pipeline_config(Path("/nowhere"), "iceberg", sections=json.loads(sections), table={"location": location})
    return main_table("clicks", config)
