"""What `headrace validate` says of the catalog of Iceberg tables."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.recovery.escalation.error_catalogue import classify
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.config.pipelines import Config
from headrace.writer.preflight.checks import host_checks
from headrace.writer.preflight.checks.finding import Finding
from headrace.writer.preflight.checks.start_check import without_catalog_retries
from headrace.writer.table.factory import main_table
from headrace.writer.table.log.foreign_writes import CommitFailed
from tests.support.sample_records import config


def iceberg(tmp_path: Path, **catalog: Any) -> Config:
    raw = config(tmp_path, table={"location": f"{tmp_path}/lake/clicks", "format": "iceberg"}).model_dump(
        mode="json", exclude_unset=True
    )
    return Config.model_validate({**raw, "catalog": catalog or raw["catalog"]})


def checked(settings: Config, *, offline: bool = False) -> dict[str, Finding]:
    places = host_checks.ProbedLocations(None, settings.catalog_place)
    found = [
        *host_checks.machine(settings, [], places, offline=offline),
        *host_checks.tables("clicks", settings, places, offline=offline),
        *host_checks.nesting("clicks", settings, offline=offline, no_catalog=places.no_catalog),
    ]
    return {one.check: one for one in found}


def test_a_catalog_that_a_start_makes_is_fine_and_the_check_does_not_make_it(tmp_path: Path) -> None:
    found = checked(iceberg(tmp_path))
    assert found["catalog"].message.endswith("; a start makes the namespace headrace")
    assert {found[check].status for check in ("catalog", "table", "dead_letters", "locations")} == {"ok"}
    assert not (tmp_path / "catalog.db").exists()


def test_a_catalog_that_is_not_there_is_said_once_and_its_tables_are_not_checked(tmp_path: Path) -> None:
    settings = without_catalog_retries(iceberg(tmp_path, type="rest", uri="http://127.0.0.1:1"))
    found = checked(settings)
    assert found["catalog"].status == "failed"
    assert "catalog 'headrace' did not answer for table headrace.clicks" in found["catalog"].message
    assert found["catalog"].fix == "Look at the network, and at the section `catalog`."
    assert {found[check].status for check in ("table", "dead_letters", "locations")} == {"not_checked"}
    offline = checked(settings, offline=True)
    assert {offline[check].message for check in ("catalog", "table", "locations")} == {"not checked: --offline"}


def test_a_start_with_a_catalog_that_is_down_is_waited_for(tmp_path: Path) -> None:
    settings = without_catalog_retries(iceberg(tmp_path, type="rest", uri="http://127.0.0.1:1"))
    with pytest.raises(CommitFailed, match=r"cannot open or create a table .* did not answer for table") as error:
        main_table("clicks", settings).create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
    for text in (f"CommitFailed: {error.value}", f"CatalogUnanswered: {error.value.__cause__}"):
        assert classify(text).level is RecoveryLevel.WAIT


def test_a_catalog_without_tables_is_not_asked(tmp_path: Path) -> None:
    settings = config(tmp_path).model_copy(update={"catalog": iceberg(tmp_path).catalog})
    assert checked(settings)["catalog"].message == "no table is Iceberg's"
