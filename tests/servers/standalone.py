"""A standalone Spark cluster: a master and workers as processes, from the installed pyspark."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from headrace.writer.clients import java_artifacts
from headrace.writer.demo.devstack.process import Process, free_ports, is_listening
from tests.servers.network_hosts import THIS_HOST, Host

_WITHIN = timedelta(minutes=3)  # a JVM, on a machine that has other work


@dataclass
class Standalone:
    """A cluster that runs."""

    directory: Path
    url: str
    _ui: str
    _servers: list[Process] = field(default_factory=list)

    def add_worker(self, cores: int, memory: str = "8g", host: Host = THIS_HOST) -> Process:
        """Start another worker on a host, and wait until the master knows it."""
        count = len(self.status()["workers"])
        number = len(self._servers)
        folder = self.directory / f"worker-{number}"
        worker = _server(
            f"worker-{number}",
            "worker.Worker",
            self.directory,
            "--host",
            host.address,
            "--port",
            "0",
            "--webui-port",
            "0",
            "--cores",
            str(cores),
            "--memory",
            memory,
            "--work-dir",
            str(folder),
            self.url,
        )
        self._servers.append(worker)
        with host.enter():
            worker.launch()
        worker.wait_until(lambda: len(self.status()["workers"]) > count, within=_WITHIN)
        return worker

    def answers(self) -> bool:
        """Whether the master tells of its workers yet."""
        try:
            return "workers" in self.status()
        except OSError:
            return False

    def status(self) -> dict[str, Any]:
        """What the master says of workers and applications."""
        with urlopen(f"{self._ui}/json/", timeout=20) as answer:
            status: dict[str, Any] = json.loads(answer.read())
            return status


def _server(name: str, kind: str, directory: Path, *options: str) -> Process:
    import pyspark

    home = Path(pyspark.__file__).parent
    java = java_artifacts.spark_java()
    environment = {
        "SPARK_HOME": str(home),
        "JAVA_HOME": str(java.parent.parent),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_DIRS": str(directory),
    }
    command = [home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *options]
    return Process(name, command, cwd=directory, log=directory / f"{name}.log", env=environment)


@contextmanager
def standalone(directory: Path, *, cores: int, host: Host = THIS_HOST) -> Iterator[Standalone]:
    """Run a master and one worker on a host while inside."""
    directory.mkdir(parents=True, exist_ok=True)
    port, ui = free_ports(2)
    master = _server(
        "master", "master.Master", directory, "--host", host.address, "--port", str(port), "--webui-port", str(ui)
    )
    cluster = Standalone(directory, f"spark://{host.address}:{port}", f"http://{host.address}:{ui}", [master])
    try:
        with host.enter():
            master.launch()
        master.wait_until(lambda: is_listening(port, host.address) and cluster.answers(), within=_WITHIN)
        cluster.add_worker(cores, host=host)
        yield cluster
    finally:
        for server in reversed(cluster._servers):
            server.stop()
