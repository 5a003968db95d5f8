"""Airflow on loopback, with SQLite: its API, and on request its scheduler. Assets and DAGs are read once."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import Request, urlopen

from headrace.writer.demo.devstack.process import LOOPBACK, Process, free_ports
from tests.servers import parts

USER = "headrace"
PASSWORD = "a-secret,=that no log@may hold"
_SECRET = "a key of tests, which is long enough for what it signs"
_ASSETS = 20
# Seen on a quiet machine: 12 s.
_READY_WITHIN = timedelta(minutes=5)
# Assets that no test delivered to yet. Airflow knows those that a DAG names.
_DAG = f"""
from airflow.sdk import DAG, Asset, task

with DAG("assets"):

    @task(outlets=[Asset(name=f"clicks_{{n}}", uri=f"s3://lake/clicks_{{n}}") for n in range({_ASSETS})])
    def touch():
        pass

    touch()
"""


@dataclass
class Airflow:
    """A server that runs."""

    home: Path
    port: int
    environment: dict[str, str]
    api: Process = field(init=False)
    _assets: int = field(default=0)

    def __post_init__(self) -> None:
        self.api = self.process("api-server")

    @property
    def url(self) -> str:
        """Address of the API."""
        return f"http://{LOOPBACK}:{self.port}"

    def unused_asset(self) -> str:
        """Return the URI of an asset that no test delivered to yet."""
        self._assets += 1
        return f"s3://lake/clicks_{self._assets - 1}"

    def hook(self, asset: str) -> dict[str, Any]:
        """Return the section of a hook that delivers to an asset."""
        return {"type": "airflow", "url": self.url, "asset": asset, "user": USER, "password": PASSWORD}

    def events(self, asset: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the partition and the facts of each event of an asset, oldest first."""
        assets = self.ask("/api/v2/assets", uri_pattern=asset)["assets"]
        (asset_id,) = [known["id"] for known in assets if known["uri"] == asset]
        events = self.ask("/api/v2/assets/events", asset_id=asset_id, order_by="timestamp")["asset_events"]
        return [(event["partition_key"], event["extra"]) for event in events]

    def runs(self, dag: str) -> list[dict[str, Any]]:
        """Return the runs of a DAG, oldest first."""
        runs: list[dict[str, Any]] = self.ask(f"/api/v2/dags/{dag}/dagRuns", order_by="run_after")["dag_runs"]
        return runs

    def ask(self, path: str, **query: Any) -> Any:
        """Ask as the user does."""
        body = json.dumps({"username": USER, "password": PASSWORD}).encode()
        headers = {"Content-Type": "application/json"}
        with urlopen(Request(f"{self.url}/auth/token", body, headers), timeout=120) as answer:
            token = json.load(answer)["access_token"]
        request = Request(f"{self.url}{path}?{urlencode(query)}", headers={"Authorization": f"Bearer {token}"})
        with urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def run_command(self, *command: str) -> None:
        """Run a command of Airflow to its end."""
        done = subprocess.run(
            [str(parts.airflow()), "-m", "airflow", *command],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, f"airflow {' '.join(command)}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}"

    def process(self, name: str) -> Process:
        """Return a server of Airflow that is not started."""
        command = [parts.airflow(), "-m", "airflow", name]
        return Process(name, command, cwd=self.home, log=self.home / f"{name}.log", env=self.environment)

    def start_with(self, **settings: str) -> None:
        """Start the API again, with other settings."""
        self.environment |= settings
        self.api = self.process("api-server")
        self.start()

    def start(self) -> None:
        """Start the API, and wait until it answers."""
        self.api.launch()
        self.api.wait_until(lambda: _answers(f"{self.url}/api/v2/version"), within=_READY_WITHIN)

    def stop(self) -> None:
        """End the API."""
        self.api.stop(grace=timedelta(seconds=20))

    def wait_for_runs(self, dag: str, count: int, scheduler: Process) -> list[dict[str, Any]]:
        """Return the runs of a DAG once there are so many and all have ended."""
        runs: list[dict[str, Any]] = []

        def have_ended() -> bool:
            runs[:] = self.runs(dag)
            time.sleep(0.5)
            return len(runs) >= count and all(run["state"] in ("success", "failed") for run in runs)

        scheduler.wait_until(have_ended, within=_READY_WITHIN)
        return runs


@contextmanager
def airflow(
    home: Path, dags: dict[str, str] | None = None, environment: dict[str, str] | None = None
) -> Iterator[Airflow]:
    """Run Airflow's API until the end of the block. `dags`: further DAGs, by the name of their file."""
    (port,) = free_ports(1)
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({USER: PASSWORD}))
    folder = home / "dags"
    folder.mkdir()
    for name, text in {"assets.py": _DAG, **(dags or {})}.items():
        (folder / name).write_text(text)
    settings = {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:op",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://{LOOPBACK}:{port}/execution/",
        "AIRFLOW__API__HOST": LOOPBACK,
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API__SECRET_KEY": _SECRET,
        "AIRFLOW__API_AUTH__JWT_SECRET": _SECRET,
        "AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC": "1",
        **(environment or {}),
    }
    server = Airflow(home, port, {**os.environ, **settings})
    server.run_command("db", "migrate")
    server.run_command("dags", "reserialize")
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=30) as answer:
            return bool(answer.status)
    except OSError:
        return False
