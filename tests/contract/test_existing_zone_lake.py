"""Lakes that know the data of their time zones, as they were made, and lakes from before."""

from pathlib import Path

import pytest

from headrace.writer.config.loader import load
from tests.support.fixture_lakes import FIXTURES, kinds_of, table_of, unpack
from tests.support.local_driver import Driver
from tests.support.sample_records import EVENT, Schemas
from tests.support.time_zones import MEXICO, NEW


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_lake_says_by_which_data_its_newest_labels_were_made(tmp_path: Path, form: str) -> None:
    unpack(FIXTURES / "log-1-zones.tar.xz", tmp_path)
    config = load(tmp_path / f"zones_{form}" / "headrace.yaml")
    assert table_of(config).snapshot().zone_data == {MEXICO: NEW}
    driver = Driver(tmp_path / f"zones_{form}", configuration=config, schemas=Schemas({1: EVENT}, [1]))
    driver.start()
    assert kinds_of(driver.table).count("zones") == 3


def test_a_lake_from_before_knows_none(tmp_path: Path) -> None:
    for name in unpack(FIXTURES / "log-1.tar.xz", tmp_path):
        assert table_of(load(tmp_path / name / "headrace.yaml")).snapshot().zone_data == {}, name
