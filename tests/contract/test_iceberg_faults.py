"""An Iceberg table whose catalog fails, or whose writers die or race: nothing is lost or doubled."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.exceptions import CommitFailedException

from headrace.writer.core.files import StagedFile
from headrace.writer.table.factory import table_at
from headrace.writer.table.iceberg.catalog import catalog_client
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.rows import Rewrite
from headrace.writer.table.table import PipelineTable
from tests.support.catalog_faults import FAULTS, fail
from tests.support.effect_failures import Died
from tests.support.iceberg_effects import _client_key, die_after_effects
from tests.support.table_formats import iceberg_table, in_catalog
from tests.support.tables import COLUMNS, P0, batch, begin, create_table, rows, write_file

HOUR = "2026-11-20T05"


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "lake")


@pytest.fixture
def table(location: str) -> PipelineTable:
    return create_table(location, "iceberg")


@pytest.fixture
def stage(location: str) -> Callable[[int], StagedFile]:
    return lambda rows: write_file(location, HOUR, rows, "iceberg")


# --- the catalog fails --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_catalog_does_to_a_request_it_has_each_commit_once(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    with fail(monkeypatch, catalog_client.open_catalog(*_client_key(table)), fault) as failed:
        epoch = begin(table)
        for offset in range(2):
            table.append(batch(epoch, 10 * offset, 10 * offset + 10, stage(10)), table.snapshot())
        table.grow([pa.field("price", pa.float64())], epoch)
        table.append(Rewrite("merge", table.bucket_files(table.snapshot()), [stage(20)]), table.snapshot())
    assert failed() == 5
    next_start = iceberg_table(table.location, "events")
    epoch = begin(next_start)
    next_start.append(batch(epoch, 20, 30, stage(10)), next_start.snapshot())
    assert (rows(next_start), next_start.snapshot().frontier(P0)) == (30, 30)
    kinds = [entry.kind for entry in next_start.history()]
    assert kinds == ["batch", "start", "rewrite", "columns", "batch", "batch", "start", "create"]


@pytest.mark.parametrize("fault", FAULTS)
def test_a_table_is_made_once_whatever_the_catalog_does_to_the_request(
    location: str, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    table = iceberg_table(location, "events")
    with fail(monkeypatch, catalog_client.open_catalog(*_client_key(table)), fault, "create_table") as failed:
        table.create(COLUMNS, ["hour"])
    assert failed() >= 1
    again = create_table(location, "iceberg")
    assert (again.snapshot().version, begin(again), rows(again)) == (0, 1, 0)
    assert [entry.kind for entry in again.history()] == ["start", "create"]


def test_a_catalog_that_refuses_every_commit_is_an_error_after_the_retry_timeout(
    location: str, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    create_table(location, "iceberg")
    brief = timedelta(milliseconds=200)
    catalog_table = replace(in_catalog(location), retry_timeout=brief)
    table = table_at("iceberg", location, "events", catalog=catalog_table, retry_timeout=brief)
    epoch = begin(table)

    def refused(*_: Any) -> Any:
        raise CommitFailedException("Requirement failed")

    monkeypatch.setattr(catalog_client.open_catalog(*_client_key(table)), "commit_table", refused)
    with pytest.raises(CommitFailed, match="took no commit for"):
        table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    monkeypatch.undo()
    assert (rows(table), table.snapshot().frontier(P0)) == (0, 0)


# --- writers die --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", range(8))
def test_a_writer_that_dies_after_any_effect_of_a_commit_loses_and_doubles_nothing(
    table: PipelineTable, stage: Callable[[int], StagedFile], monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    deaths = die_after_effects(monkeypatch, table, after)
    next(deaths)
    with suppress(Died):
        table.append(batch(epoch, 10, 20, stage(10)), table.snapshot())
    next(deaths)
    next_start = iceberg_table(table.location, "events")
    offset = next_start.snapshot().frontier(P0)
    assert offset in (10, 20)
    assert rows(next_start) == offset
    epoch = next_start.begin({P0: 0}, {"clicks": ["uuid-1"]})
    if offset == 10:
        next_start.append(batch(epoch, 10, 20, stage(10)), next_start.snapshot())
    next_start.append(batch(epoch, 20, 30, stage(10)), next_start.snapshot())
    assert (rows(next_start), next_start.snapshot().frontier(P0)) == (30, 30)
    assert [entry.version for entry in next_start.history()] == list(range(next_start.snapshot().version, -1, -1))


@pytest.mark.parametrize("after", range(4))
def test_a_start_that_dies_while_it_makes_the_table_is_followed_by_one_that_makes_it(
    location: str, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    Path(location).parent.mkdir(parents=True, exist_ok=True)
    table = iceberg_table(location, "events")
    deaths = die_after_effects(monkeypatch, table, after)
    next(deaths)
    with suppress(Died):
        table.create(COLUMNS, ["hour"])
    next(deaths)
    again = create_table(location, "iceberg")
    assert (again.snapshot().version, begin(again), rows(again)) == (0, 1, 0)


# --- two at once --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("commits", [20, pytest.param(1000, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_of_two_committers_for_one_version_one_wins(table: PipelineTable, commits: int) -> None:
    begin(table)
    code = "import sys; from tests.support.table_formats import iceberg_table\n"
    code += "from tests.support.catalog_faults import race\n"
    code += "place, versions, number = sys.argv[1:]; print(race(iceberg_table(place, 'events'), int(versions), number))"
    command = [sys.executable, "-c", code, table.location, str(commits)]
    racing = [
        subprocess.Popen([*command, str(number)], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
        for number in range(2)
    ]
    assert sum(int(racer.communicate(timeout=1700)[0]) for racer in racing) == commits
    assert table.snapshot().version == commits + 1
