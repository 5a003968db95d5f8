"""`POST /scale` and `headrace autoscaler run` on real executors: a local cluster of processes."""

import re
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support import oracle
from tests.support.cluster_driver import autoscale, kill_executor, on_cluster, start_driver
from tests.support.writer_process import Site

pytestmark = pytest.mark.slow
MakeTopic = Callable[..., str]


def test_executors_go_without_a_failed_task_come_back_and_one_that_is_killed_is_replaced(
    site: Site, topic: MakeTopic
) -> None:
    name = topic(1)
    lake = site.pipeline(
        "events", [name], bucket={"type": "tests.support.slow_bucketer:SlowBucketer", "records_per_second": 800},
        commit={"max_delay": "3 s", "min_offsets": 500, "max_offsets": 1_500}, roll={"target_file_size": "64 KiB"},
    )  # fmt: skip
    on_cluster(site, "local-cluster[2,1,1024]", max_executors=2)
    site.fill(name, 3_000)
    with start_driver(site) as driver:
        writer = driver.writer
        driver.wait_for_executors(2)
        assert driver.scale(1, token=None)[0] == driver.scale(1, token="wrong")[0] == 403
        assert driver.scale(3) == (400, "executors='3' is no number from min_executors 1 to max_executors 2\n")
        assert driver.scale(1)[0] == 202
        driver.wait_for_executors(1)
        told = driver.executors()
        assert (told["gone"], told["lost"], told["failed_tasks"]) == (1, 0, 0)
        site.fill(name, 600, seed=8)
        writer.until(lambda: any(commit["work"]["slots"] == 1 for commit in driver.commits()))
        assert driver.scale(2)[0] == 202
        driver.wait_for_executors(2)
        site.fill(name, 4_000, seed=9)  # more than a batch holds
        writer.until(lambda: any(commit["tasks"] == 2 and commit["reason"] == "backlog" for commit in driver.commits()))
        site.fill(name, 1_000, seed=10)
        kill_executor(driver)
        writer.until(lambda: "executor_lost" in writer.output())
        driver.wait_for_executors(2)
        writer.until(lambda: driver.lag() == 0)
        assert driver.executors()["lost"] == 1
        told_last = driver.commits()
        output = writer.stop()
    oracle.check(lake, "events", site.ends(name))
    assert output.count("executor_decommission_requested") == 1
    backlogs = [one for one in told_last if one["reason"] == "backlog"]
    assert all(backlog["work"]["ranges"] >= backlog["tasks"] for backlog in backlogs), "of one partition"


def test_a_driver_without_executors_says_what_to_use_instead(site: Site, topic: MakeTopic) -> None:
    name = topic(1)
    site.pipeline("events", [name])
    site.overrides["autoscaler"] = {"token": "a-secret", "port": 0}
    done = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "autoscaler", "run", str(site.config)],
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert "there are no executors to scale. Set spark.master to spark://host:7077" in done.stderr


def test_the_autoscaler_asks_the_driver_and_dies_without_harm(site: Site, topic: MakeTopic) -> None:
    name = topic(2)
    site.pipeline("events", [name], commit={"max_delay": "3 s", "min_offsets": 200})
    on_cluster(site, "local-cluster[1,1,1024]", max_executors=1)
    site.fill(name, 1_000)
    with start_driver(site) as driver, autoscale(site, "--interval", "1 s") as scaler:
        scaler.until(lambda: scaler.times("scaling_decided") >= 1)
        scaler.until(lambda: (scaler.ask()["executors"] or {}).get("requested") == 1)
        assert "headrace_executors_registered 1.0" in scaler.ask("/metrics")
        assert scaler.ask("/healthz") == "ok\n"
        done = subprocess.run(
            [sys.executable, "-m", "headrace.writer.cli", "status", str(site.config)],
            capture_output=True, text=True, timeout=400, check=True,
        )  # fmt: skip
        assert re.search(r"^  executors +1 registered; 1 requested$", done.stdout, re.MULTILINE), done.stdout
        assert re.search(
            r"^  autoscaler +(hold|stay|wait|blocked), at .* UTC: 1 executor stays", done.stdout, re.MULTILINE
        )
        scaler.kill()
        assert driver.executors()["requested"] == 1
        driver.writer.stop()
