"""What fails while executors come and go: autoscaler, executor, driver, the cluster's quota. The table stays exact."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.servers.standalone import Standalone, standalone
from tests.support import oracle
from tests.support.cluster_driver import Driver, autoscale, on_cluster, start_driver
from tests.support.event_load import Load
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
MakeTopic = Callable[..., str]
POLICY = {
    "interval_s": 2, "window_s": 40, "short_window_s": 10, "start_s": 10, "stable_s": 10, "max_stable_s": 30,
    "down_s": 5, "after_up_s": 5, "catch_up_duration_s": 30, "lag_slo_s": 60, "max_facts_age_s": 30, "max_start_s": 30,
}  # fmt: skip


@dataclass(frozen=True)
class Work:
    """What runs while executors come and go."""

    cluster: Standalone
    driver: Driver
    load: Load
    lake: Path

    def rest(self, driver: Driver) -> None:
        """Send no more, wait until a driver has all in the table, and stop it well."""
        self.load.end()
        driver.writer.until(lambda: driver.lag() == 0, 300)
        driver.writer.stop()


@contextmanager
def at_work(
    site: Site, name: str, load_per_s: float, *, cores: int, slot_per_s: int = 1_000, offsets_max: int = 30_000,
    **policy: float,
) -> Iterator[Work]:  # fmt: skip
    """A cluster of so many cores, a driver on it, and load. In the end every event that was sent is there once."""
    lake = site.pipeline(
        "clicks", [name], bucket={"type": "tests.support.slow_bucketer:SlowBucketer", "records_per_second": slot_per_s},
        commit={"max_delay": "3 s", "min_offsets": 1_000_000, "max_offsets": offsets_max},
        roll={"target_file_size": "16 KiB"}, memory={"batch_records": 1_000},
    )  # fmt: skip
    with standalone(site.root / "cluster", cores=cores) as cluster:
        on_cluster(site, cluster.url, max_executors=3, policy={**POLICY, **policy})
        with start_driver(site) as driver, Load(site, name, load_per_s) as load:
            yield Work(cluster, driver, load, lake)
    assert sum(oracle.check(lake, "clicks", site.ends(name)).values()) == load.sent


def executors(cluster: Standalone) -> list[psutil.Process]:
    """Processes of executors on the cluster's workers, which know the master's URL; those that are ending too."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with suppress(psutil.NoSuchProcess):
            worker = (
                process.parent() if "CoarseGrainedExecutorBackend" in " ".join(process.info["cmdline"] or []) else None
            )
            if worker is not None and cluster.url in worker.cmdline():
                found.append(process)
    return found


def test_the_autoscaler_an_executor_and_the_driver_are_killed_and_what_was_asked_for_stays(
    site: Site, topic: MakeTopic
) -> None:
    with at_work(site, topic(3), 150, cores=3) as work:
        driver = work.driver
        driver.wait_for_executors(3)
        with autoscale(site) as scaler:
            driver.writer.until(lambda: "executor_decommission_requested" in driver.writer.output(), 300)
            scaler.process.send_signal(signal.SIGKILL)  # it asked for fewer, and they are on their way out
            scaler.process.wait(20)
        fewer = driver.executors()["requested"]
        assert fewer < 3
        driver.wait_for_executors(fewer)
        driver.writer.until(lambda: len(executors(work.cluster)) == fewer)  # the others have gone for good
        executors(work.cluster)[0].kill()
        driver.writer.until(lambda: driver.executors()["lost"] == 1)
        driver.wait_for_executors(fewer)  # Spark's own total was never lowered below what was asked for
        with autoscale(site) as scaler:
            scaler.until(lambda: scaler.ask()["decision"])
            assert scaler.ask()["decision"]["executors"] == fewer, "it goes on with what the one before decided"
            scaler.kill()
        driver.writer.kill()
        with start_driver(site) as again:
            assert f"executors={fewer} reason='a driver before this one had this request'" in again.writer.output()
            again.wait_for_executors(fewer)
            assert again.executors()["failed_tasks"] == 0
            work.rest(again)


def test_a_cluster_that_grants_no_more_is_told_as_a_quota_and_gives_when_it_can(site: Site, topic: MakeTopic) -> None:
    slow = {"slot_per_s": 400, "offsets_max": 8_000, "window_s": 120, "catch_up_duration_s": 600}
    with at_work(site, topic(4), 600, cores=1, **slow) as work, autoscale(site) as scaler:
        driver = work.driver
        scaler.until(lambda: scaler.ask()["executors"] and (scaler.ask()["executors"]["requested"] or 0) > 1, 240)
        scaler.until(lambda: any(event["by"] == "quota" for event in scaler.ask()["events"]), 240)
        assert driver.executors()["registered"] == 1
        work.cluster.add_worker(2)
        scaler.until(lambda: driver.executors()["registered"] == 3, 300)
        work.load.per_s = 50
        work.rest(driver)
        assert scaler.stop() == 0


def test_executors_that_come_and_go_every_half_minute_for_ten_minutes_leave_the_table_exact(
    site: Site, topic: MakeTopic
) -> None:
    with at_work(site, topic(3), 600, cores=3) as work:
        driver = work.driver
        driver.wait_for_executors(3)
        until = time.monotonic() + float(os.environ.get("HEADRACE_SCALING_MINUTES", "10")) * 60
        turn = 0
        while time.monotonic() < until:
            assert driver.scale((1, 3, 2, 3)[turn % 4])[0] == 202
            turn += 1
            time.sleep(30)
            oracle.check_rows(work.lake, "clicks")
        told = driver.executors()
        assert (told["failed_tasks"], told["lost"]) == (0, 0)
        assert told["gone"] >= turn // 4
        work.rest(driver)
