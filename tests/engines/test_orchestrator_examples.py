"""The examples of docs/examples on the real Airflow and Dagster: exactly the hour that changed runs again."""

import csv
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from headrace.writer.hooks.delivery import HookDelivery
from headrace.writer.hooks.dispatcher import deliveries
from headrace.writer.maintenance.retention import Retention
from tests.servers.airflow import airflow
from tests.servers.dagster import dagster
from tests.support.sealed_lake import SealedLake

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(1500)]
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def write_and_seal(lake: SealedLake, delivery: HookDelivery, hour: int, rows: range, *, minute: int = 0) -> None:
    """Commit rows to an hour, seal it, and deliver."""
    assert lake.offset == rows.start
    lake.add(hour, len(rows), minute=minute)
    lake.seal(hour)
    assert delivery.run_round(datetime.now(UTC)).pending == (), delivery.health.error


def read_counts(directory: Path) -> dict[str, dict[str, int]]:
    """Return what the example counted, by hour and user."""
    counts = {}
    for file in directory.glob("*.csv"):
        with file.open(newline="") as lines:
            counts[file.stem] = {user: int(clicks) for user, clicks in csv.reader(lines)}
    return counts


def expected_counts(*offsets: range) -> dict[str, int]:
    """Count the users of rows, by the offsets that were written."""
    return dict(Counter(f"u{offset % 7}" for some in offsets for offset in some))


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    counts = tmp_path / "counts"
    counts.mkdir()
    return {"CLICKS_TABLE": str(tmp_path / "lake" / "clicks"), "CLICKS_COUNTS": str(counts)}


def test_airflow_runs_again_exactly_the_hour_that_changed(tmp_path: Path, environment: dict[str, str]):
    dag = (EXAMPLES / "airflow" / "clicks_by_user.py").read_text()
    home = tmp_path / "airflow"
    home.mkdir()
    environment["AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION"] = "False"
    with airflow(home, {"clicks_by_user.py": dag}, environment) as server:
        lake = SealedLake(tmp_path, hooks=[{"timeout": "120 s", **server.hook("s3://lake/clicks")}])
        (delivery,) = deliveries("clicks", lake.config)
        delivery.begin()
        scheduler = server.process("scheduler")
        scheduler.launch()
        try:
            write_and_seal(lake, delivery, 5, range(20))
            write_and_seal(lake, delivery, 6, range(20, 26))
            counts = Path(environment["CLICKS_COUNTS"])
            assert _ended(server.wait_for_runs("clicks_by_user", 2, scheduler)) == ["05 success", "06 success"]
            assert read_counts(counts)["2026-11-20T05"] == expected_counts(range(20))
            write_and_seal(lake, delivery, 5, range(26, 31), minute=30)
            runs = server.wait_for_runs("clicks_by_user", 3, scheduler)
            assert _ended(runs) == ["05 success", "06 success", "05 success"]
            assert read_counts(counts) == {
                "2026-11-20T05": expected_counts(range(20), range(26, 31)),
                "2026-11-20T06": expected_counts(range(20, 26)),
            }
            _retire(lake, delivery)
            runs = server.wait_for_runs("clicks_by_user", 4, scheduler)
            assert _ended(runs)[3:] == ["05 success"]
            assert list(read_counts(counts)) == ["2026-11-20T06"]
        finally:
            scheduler.stop()


def _ended(runs: list[dict[str, str]]) -> list[str]:
    return [f"{run['partition_key'][-2:]} {run['state']}" for run in runs]


def test_dagster_runs_again_exactly_the_hour_that_changed(tmp_path: Path, environment: dict[str, str]):
    definitions = (EXAMPLES / "dagster" / "clicks_by_user.py").read_text()
    home = tmp_path / "dagster"
    home.mkdir()
    with dagster(home, definitions, environment) as server:
        lake = SealedLake(tmp_path, hooks=[{"timeout": "120 s", **server.hook("lake/clicks")}])
        (delivery,) = deliveries("clicks", lake.config)
        delivery.begin()
        daemon = server.process("daemon", ["-m", "dagster._daemon", "run"])
        daemon.launch()
        try:
            write_and_seal(lake, delivery, 5, range(20))
            write_and_seal(lake, delivery, 6, range(20, 26))
            counts = Path(environment["CLICKS_COUNTS"])
            assert sorted(server.wait_for_runs(2, daemon)) == _succeeded("05", "06")
            assert read_counts(counts)["2026-11-20T05"] == expected_counts(range(20))
            write_and_seal(lake, delivery, 5, range(26, 31), minute=30)
            assert server.wait_for_runs(3, daemon)[2:] == _succeeded("05")
            assert read_counts(counts) == {
                "2026-11-20T05": expected_counts(range(20), range(26, 31)),
                "2026-11-20T06": expected_counts(range(20, 26)),
            }
            _retire(lake, delivery)
            assert server.wait_for_runs(4, daemon)[3:] == _succeeded("05")
            assert list(read_counts(counts)) == ["2026-11-20T06"]
        finally:
            daemon.stop()


def _succeeded(*hours: str) -> list[tuple[str, str]]:
    return [(f"2026-11-20T{hour}", "SUCCESS") for hour in hours]


def _retire(lake: SealedLake, delivery: HookDelivery) -> None:
    """Let retention take the hour of 05, and deliver that."""
    (dropped,) = Retention(lake.table, lake.bucketer, timedelta(days=1)).run(datetime(2026, 11, 21, 6, tzinfo=UTC))
    assert dropped.buckets == (("2026-11-20T05",),)
    assert delivery.run_round(datetime.now(UTC)).pending == (), delivery.health.error
