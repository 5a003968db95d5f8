"""The log of an Iceberg table elsewhere: some catalogs allow nothing but `data` and `metadata` below a table."""

from pathlib import Path
from typing import Any

import pytest

from headrace.writer.audit.audit import audit
from headrace.writer.core.errors import ConfigError
from headrace.writer.driver.start.pipeline_start import probe_locations
from headrace.writer.maintenance.vacuum import find_unneeded, remove
from headrace.writer.table.factory import conversion, main_table
from tests.support import oracle
from tests.support.iceberg_routes import apply_waiting, start_route
from tests.support.local_driver import Driver, pipeline_config
from tests.support.log_location import folders_below, write_history
from tests.support.route_targets import hold_row
from tests.support.small_files import fill_table, offsets
from tests.support.vacuum_time import days_ahead

pytestmark = pytest.mark.usefixtures("scratch")  # a vacuum removes what it finds


def catalog(root: Path, log_location: str | None = None) -> dict[str, Any]:
    return {
        "type": "sql",
        "uri": f"sqlite:///{root}/catalog.db",
        **({"log_location": log_location} if log_location else {}),
    }


def apart(root: Path, commits: int = 6) -> Driver:
    return fill_table(
        root, "iceberg", commits, sections={"catalog": catalog(root, f"{root}/logs")}, seal={"late": "reopen"}
    )


def test_a_table_has_only_data_and_metadata_below_it(tmp_path: Path) -> None:
    driver = apart(tmp_path)
    probe_locations("clicks", driver.config)
    write_history(driver)
    for location in (driver.lake, driver.dead_letters):
        assert folders_below(driver, location) == {"data", "metadata"}
    logs = tmp_path / "logs" / "headrace"
    assert {path.name for path in logs.iterdir()} == {"clicks", "clicks_dead_letters"}
    assert {path.name for path in (logs / "clicks").iterdir()} == {"_headrace"}
    assert {"log", "sealed"} <= {path.name for path in (logs / "clicks" / "_headrace").iterdir()}
    before = offsets(driver)
    waste = find_unneeded(driver.config, "clicks", None, days_ahead())
    remove(waste)
    assert any(one.waste for one in waste)
    assert offsets(driver) == before
    assert audit(driver.config, "clicks", since=None, deep=True).adds_up


def test_rows_that_wait_for_a_table_of_a_route_wait_beside_the_log(tmp_path: Path) -> None:
    route = start_route(tmp_path, ("a",), catalog={"log_location": f"{tmp_path}/logs"})
    hold_row(route, str(tmp_path / "a"), 1)
    assert (tmp_path / "logs" / "headrace" / "log" / "_headrace" / "held" / "1").is_dir()
    assert apply_waiting(route) == {}
    assert oracle.count(tmp_path / "a") == 1
    assert not (tmp_path / "a" / "_headrace").exists()


def test_another_log_location_than_the_table_s_is_refused(tmp_path: Path) -> None:
    driver = apart(tmp_path, 1)
    moved = pipeline_config(tmp_path, "iceberg", sections={"catalog": catalog(tmp_path, f"{tmp_path}/others")})
    without = pipeline_config(tmp_path, "iceberg")
    for config, text in ((moved, f"{tmp_path}/others/headrace/clicks"), (without, driver.lake)):
        with pytest.raises(
            ConfigError, match=f"lies at {tmp_path}/logs/headrace/clicks, and the configuration says {text}"
        ):
            main_table("clicks", config).exists()


def test_logs_inside_a_table_are_refused(tmp_path: Path) -> None:
    for location in (f"{tmp_path}/lake/clicks/logs", f"{tmp_path}/lake"):
        with pytest.raises(ValueError, match=r"catalog\.log_location: give it a folder beside the table"):
            pipeline_config(tmp_path, "iceberg", sections={"catalog": catalog(tmp_path, location)})


def test_a_table_whose_log_has_a_place_keeps_it_when_its_format_changes(tmp_path: Path) -> None:
    fill_table(tmp_path, "parquet", 1)
    config = pipeline_config(tmp_path, "iceberg", sections={"catalog": catalog(tmp_path, f"{tmp_path}/logs")})
    work = conversion("clicks", config, str(tmp_path / "lake" / "clicks"))
    assert work is not None
    assert work.obstacles() == ["Its log stays where it is: take catalog.log_location away, or keep the format."]
