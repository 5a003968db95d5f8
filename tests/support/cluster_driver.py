"""A driver on a cluster, and the autoscaler beside it, as a user runs them: both in processes of their own."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import psutil

from tests.support import class_archive
from tests.support.process import Process
from tests.support.supervisor_process import Supervised
from tests.support.writer_process import QUICK_START, Site

ROOT = Path(__file__).parents[2]
TOKEN = "a-token-of-the-tests"
LOOPBACK = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def policy_settings(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of the policy, times in seconds, as the configuration has them: `window_s` 40 is `window` 40 s."""
    return {name.removesuffix("_s"): f"{value} s" if name.endswith("_s") else value for name, value in fields.items()}


def on_cluster(
    site: Site, master: str, *, max_executors: int, policy: Mapping[str, Any] | None = None, **autoscaler: Any
) -> None:
    """Let the site's driver run on a cluster, with executors of one core. `policy`: fields, times in seconds."""
    conf = {
        **LOOPBACK,
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.cores.max": str(max_executors),
        "spark.executor.extraJavaOptions": class_archive.QUICK_START,
        "spark.driver.extraJavaOptions": QUICK_START,
        # An executor runs in a folder of its own, and imports tests.support.slow_bucketer.
        "spark.executorEnv.PYTHONPATH": str(ROOT),
    }
    site.overrides["spark"] = {"master": master, "conf": conf}
    site.overrides["kafka"] = {
        "bootstrap_servers": site.bootstrap,
        "request_timeout": "20 s",
        "lag_interval": "2 s",
    }
    site.overrides["autoscaler"] = {
        "token": TOKEN,
        "port": 0,
        "max_executors": max_executors,
        "policy": policy_settings(policy or {}),
        **autoscaler,
    }


def scale(url: str, executors: object, token: str | None = TOKEN, **parameters: object) -> tuple[int, str]:
    """`POST /scale`, with what is said beside: verdict, why, right."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=60)
    try:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        connection.request("POST", f"/scale?{urlencode({'executors': executors, **parameters})}", headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


@dataclass
class Driver:
    """A driver that runs, asked over HTTP."""

    writer: Process

    @property
    def url(self) -> str:
        urls = re.findall(r"http_listening url=(\S+)", self.writer.output())
        return str(urls[-1])

    def status(self) -> dict[str, Any]:
        with urlopen(f"{self.url}/status", timeout=60) as answer:
            status: dict[str, Any] = json.loads(answer.read())
            return status

    def pipeline(self, name: str) -> dict[str, Any]:
        """Ask how a pipeline is, without a command's process: what a test asks until it is so."""
        pipeline: dict[str, Any] = self.status()["pipelines"][name]
        return pipeline

    def executors(self) -> dict[str, Any]:
        executors: dict[str, Any] = self.status()["executors"]
        return executors

    def commits(self) -> list[dict[str, Any]]:
        """The last commits, of all pipelines, that say what their tasks had."""
        return [
            commit
            for pipeline in self.status()["pipelines"].values()
            for commit in pipeline["commits"]
            if commit["work"]
        ]

    def lag(self) -> int | None:
        """Offsets that wait, of all pipelines; None while Kafka has not said it."""
        lags = [pipeline["lag"]["offsets"] for pipeline in self.status()["pipelines"].values()]
        return None if None in lags else sum(lags)

    def scale(self, executors: object, token: str | None = TOKEN) -> tuple[int, str]:
        return scale(self.url, executors, token)

    def wait_for_executors(self, executors: int, seconds: float = 240) -> None:
        """Wait until so many take tasks, and none drains."""
        self.writer.until(lambda: self._is(executors), seconds)

    def _is(self, executors: int) -> bool:
        executor_status = self.executors()
        return executor_status["registered"] == executors and not executor_status["draining"]


@contextmanager
def start_driver(site: Site, *flags: str, env: Mapping[str, str] | None = None) -> Iterator[Driver]:
    """Start a driver, and wait until Spark has executors. Whatever happens, nothing of it is left."""
    driver = Driver(site.start(*flags, env=env))
    try:
        driver.writer.until(lambda: "executor_added" in driver.writer.output(), 240)
        yield driver
    finally:
        if driver.writer.process.poll() is None:
            driver.writer.kill()


@dataclass
class Autoscaler(Supervised):
    """`headrace autoscaler run`, and what it says."""

    def ask(self, path: str = "/status") -> Any:
        url = re.findall(r"autoscaler_listening url=(\S+)", self.output())[-1]
        with urlopen(url + path, timeout=60) as answer:
            text = answer.read().decode()
        return json.loads(text) if path == "/status" else text


@contextmanager
def autoscale(site: Site, *flags: str) -> Iterator[Autoscaler]:
    """Start the autoscaler of a site. Whatever happens, nothing of it is left."""
    log = site.root / f"autoscaler-{len(list(site.root.glob('autoscaler-*.log')))}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace.writer.cli", "autoscaler", "run", str(site.config), *flags],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ,
        )
    scaler = Autoscaler(process, Path(log))
    try:
        scaler.until(lambda: scaler.times("autoscaler_listening"))
        yield scaler
    finally:
        if process.poll() is None:
            scaler.kill()


def kill_executor(driver: Driver) -> None:
    """kill -9 one executor of a driver on a local cluster."""
    for process in driver.writer.family():
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):
            if "CoarseGrainedExecutorBackend" in " ".join(process.cmdline()):
                process.kill()
                return
    raise AssertionError("no executor runs")
