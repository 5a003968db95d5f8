"""Iceberg tables that an SQL catalog on PostgreSQL knows."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from headrace.writer.config.sections.table import Catalog
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.errors import ConfigError, Fenced
from headrace.writer.core.files import StagedFile
from headrace.writer.table.factory import table_at
from headrace.writer.table.log.foreign_writes import ForeignChange
from headrace.writer.table.log.operations.rows import Rewrite
from headrace.writer.table.table import PipelineTable
from tests.servers.postgres import PASSWORD, postgres
from tests.support.tables import COLUMNS, P0, batch, begin, write_file

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1800)]
HOUR = "2026-11-20T05"
RACES = 200


@pytest.fixture(scope="module")
def uri() -> Iterator[str]:
    with postgres() as server:
        yield server


def place(uri: str, location: str, password: str = PASSWORD) -> CatalogTable:
    settings = Catalog.model_validate({"type": "sql", "uri": uri, "password": password})
    return settings.place(location, f"lake.{Path(location).parent.name}", is_main=True)


def opened(uri: str, location: str) -> PipelineTable:
    return table_at("iceberg", location, "events", catalog=place(uri, location))


@pytest.fixture
def table(uri: str, tmp_path: Path) -> PipelineTable:
    new_table = opened(uri, str(tmp_path / "lake"))
    new_table.create(COLUMNS, ["hour"])
    return new_table


@pytest.fixture
def stage(table: PipelineTable) -> Callable[[int], StagedFile]:
    return lambda rows: write_file(table.location, HOUR, rows, "iceberg")


def test_the_promises_of_a_table_hold_where_postgresql_knows_it(
    uri: str, table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    for at in range(2):
        table.append(batch(epoch, 10 * at, 10 * at + 10, stage(10)), table.snapshot())
    table.grow([pa.field("price", pa.float64())], epoch)
    table.append(Rewrite("merge", table.bucket_files(table.snapshot()), [stage(20)]), table.snapshot())
    next_start = opened(uri, table.location)
    newer = begin(next_start)
    with pytest.raises(Fenced, match="another writer runs"):
        table.append(batch(epoch, 20, 30, stage(10)), table.snapshot())
    next_start.append(batch(newer, 20, 30, stage(10)), next_start.snapshot())
    at = place(uri, table.location)
    other = load_catalog(at.catalog, **dict(at.settings)).load_table(at.identifier)
    assert (other.scan().count(), next_start.snapshot().frontier(P0)) == (30, 30)
    snapshot = next_start.snapshot()
    other.append(pa.table({"id": [1], "hour": [HOUR], "price": [1.0]}, schema=other.schema().as_arrow()))
    with pytest.raises(ForeignChange, match="another client ran INSERT"):
        next_start.append(batch(newer, 30, 40, stage(10)), snapshot)


def test_a_wrong_password_is_a_sentence_without_it(uri: str, tmp_path: Path) -> None:
    location = str(tmp_path / "lake")
    table = table_at("iceberg", location, "events", catalog=place(uri, location, "another-secret"))
    with pytest.raises(ConfigError, match=r"refused the login for table .* Correct catalog\.password") as error:
        table.create(COLUMNS, ["hour"])
    assert "another-secret" not in str(error.value)


def test_of_two_committers_for_one_version_one_wins(uri: str, table: PipelineTable) -> None:
    begin(table)
    code = f"import sys; from {__name__} import opened; from tests.support.catalog_faults import race\n"
    code += f"print(race(opened(*sys.argv[1:3]), {RACES}, sys.argv[3]))"
    command = [sys.executable, "-c", code, uri, table.location]
    racing = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        for number in range(2)
    ]
    assert sum(int(racer.communicate(timeout=1700)[0]) for racer in racing) == RACES
    assert table.snapshot().version == RACES + 1
