"""What fails while executors come and go: autoscaler, executor, driver, the cluster's quota. The table stays exact."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests import oracle
from tests.load import Load
from tests.scaled import Driver, autoscale, on_cluster, started
from tests.servers.standalone import Standalone, standalone
from tests.writing import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
MakeTopic = Callable[..., str]
POLICY = {
    "tick_s": 2, "window_s": 40, "lately_s": 10, "start_s": 10, "stable_s": 10, "stable_max_s": 30, "down_s": 5,
    "after_up_s": 5, "catch_up_s": 30, "slo_s": 60, "facts_age_max_s": 30, "start_max_s": 30,
}  # fmt: skip


def pipeline(site: Site, name: str, records_per_second: int, records_max: int = 30_000) -> Path:
    return site.pipeline(
        "clicks", [name], bucket={"type": "tests.slow:Slow", "records_per_second": records_per_second},
        commit={"max_delay": "3 s", "min_records": 1_000_000, "max_records": records_max},
        roll={"target_file_size": "16 KiB"}, memory={"batch_records": 1_000},
    )  # fmt: skip


def kill_one(cluster: Standalone) -> None:
    """kill -9 one executor of the cluster's workers."""
    for worker in psutil.process_iter(["cmdline"]):
        words = " ".join(worker.info["cmdline"] or [])
        if "CoarseGrainedExecutorBackend" in words and cluster.url.rpartition(":")[2] in _port(worker):
            os.kill(worker.pid, signal.SIGKILL)
            return
    raise AssertionError("no executor runs")


def _port(executor: psutil.Process) -> str:
    """What the executor's worker was told: the master's URL is in it."""
    parent = executor.parent()
    return "" if parent is None else " ".join(parent.cmdline())


def rest(driver: Driver, load: Load) -> None:
    """Send no more, wait until all is in the table, and stop well."""
    load.end()
    driver.writer.until(lambda: driver.lag() == 0, 300)
    driver.writer.stop()


def exact(site: Site, lake: Path, name: str, load: Load) -> None:
    """Every event that was sent is there once."""
    assert sum(oracle.check(lake, "clicks", site.ends(name)).values()) == load.sent


def test_the_autoscaler_an_executor_and_the_driver_are_killed_and_what_was_asked_for_stays(
    site: Site, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(3)
    lake = pipeline(site, name, 1_000)
    with standalone(tmp_path / "cluster", cores=3) as cluster:
        on_cluster(site, cluster.url, executors_max=3, policy=POLICY)
        with started(site) as driver, Load(site, name, 150) as load:
            driver.until_registered(3)
            with autoscale(site) as scaler:
                driver.writer.until(lambda: "executor_told_to_go" in driver.writer.said(), 300)
                scaler.process.send_signal(signal.SIGKILL)  # it asked for fewer, and they are on their way out
                scaler.process.wait(20)
            fewer = driver.executors()["wanted"]
            assert fewer < 3
            driver.until_registered(fewer)
            kill_one(cluster)
            driver.writer.until(lambda: driver.executors()["lost"] == 1, 120)
            driver.until_registered(fewer)  # Spark's own total was never lowered below what was asked for
            with autoscale(site) as scaler:
                scaler.until(lambda: scaler.told()["decision"], 120)
                assert scaler.told()["decision"]["executors"] == fewer, "it goes on with what the one before decided"
                scaler.kill()
            driver.writer.kill()
            with started(site) as again:
                assert f"executors_wanted executors={fewer}" in again.writer.said()
                again.until_registered(fewer)
                assert again.executors()["failed_tasks"] == 0
                rest(again, load)
    exact(site, lake, name, load)


def test_a_cluster_that_grants_no_more_is_told_as_a_quota_and_gives_when_it_can(
    site: Site, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(4)
    lake = pipeline(site, name, 400, 8_000)
    with standalone(tmp_path / "cluster", cores=1) as cluster:
        on_cluster(site, cluster.url, executors_max=3, policy={**POLICY, "window_s": 120, "catch_up_s": 600})
        with started(site) as driver, Load(site, name, 600) as load, autoscale(site) as scaler:
            scaler.until(lambda: scaler.told()["executors"] and (scaler.told()["executors"]["wanted"] or 0) > 1, 240)
            scaler.until(lambda: any(one["by"] == "quota" for one in scaler.told()["events"]), 240)
            assert driver.executors()["registered"] == 1
            cluster.add_worker(2)
            scaler.until(lambda: driver.executors()["registered"] == 3, 300)
            load.per_s = 50
            rest(driver, load)
            assert scaler.stop() == 0
    exact(site, lake, name, load)


def test_executors_that_come_and_go_every_half_minute_for_ten_minutes_leave_the_table_exact(
    site: Site, topic: MakeTopic, tmp_path: Path
) -> None:
    name = topic(3)
    lake = pipeline(site, name, 1_000)
    with standalone(tmp_path / "cluster", cores=3) as cluster:
        on_cluster(site, cluster.url, executors_max=3)
        with started(site) as driver, Load(site, name, 600) as load:
            driver.until_registered(3)
            until = time.monotonic() + float(os.environ.get("HEADRACE_SCALING_MINUTES", "10")) * 60
            turn = 0
            while time.monotonic() < until:
                assert driver.scale((1, 3, 2, 3)[turn % 4])[0] == 202
                turn += 1
                time.sleep(30)
                oracle.check_rows(lake, "clicks")
            told = driver.executors()
            assert (told["failed_tasks"], told["lost"]) == (0, 0)
            assert told["gone"] >= turn // 4
            rest(driver, load)
    exact(site, lake, name, load)
