"""Dagster on loopback, with SQLite: its web server, and on request its daemon, which starts runs."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from headrace.writer.demo.devstack.process import LOOPBACK, Process, free_ports
from tests.servers import parts

_ASSETS = 20
# Seen on a quiet machine: 8 s.
_READY_WITHIN = timedelta(minutes=5)
# Assets that no test delivered to yet.
_DEFINITIONS = f"""
import dagster as dg

HOURS = dg.HourlyPartitionsDefinition(start_date="2026-11-20T00", fmt="%Y-%m-%dT%H")
defs = dg.Definitions(assets=[dg.AssetSpec(["lake", f"clicks_{{n}}"], partitions_def=HOURS) for n in range({_ASSETS})])
"""
_EVENTS = """
query Events($asset: AssetKeyInput!) {
  assetOrError(assetKey: $asset) {
    ... on Asset {
      assetMaterializations {
        partition
        metadataEntries {
          label
          ... on TextMetadataEntry { text }
          ... on IntMetadataEntry { intValue }
          ... on BoolMetadataEntry { boolValue }
        }
      }
    }
  }
}
"""
_ASSETS_DEFINED = "query { assetNodes { id } }"
_RUNS = "query { runsOrError { ... on Runs { results { status tags { key value } } } } }"


@dataclass
class Dagster:
    """A server that runs."""

    home: Path
    port: int
    environment: dict[str, str]
    web: Process = field(init=False)
    _assets: int = field(default=0)

    def __post_init__(self) -> None:
        self.web = self.process("webserver", ["-m", "dagster_webserver", "-h", LOOPBACK, "-p", str(self.port)])

    @property
    def url(self) -> str:
        """Address of the web server."""
        return f"http://{LOOPBACK}:{self.port}"

    def unused_asset(self) -> str:
        """Return the key of an asset that no test delivered to yet."""
        self._assets += 1
        return f"lake/clicks_{self._assets - 1}"

    def hook(self, asset: str) -> dict[str, Any]:
        """Return the section of a hook that delivers to an asset."""
        return {"type": "dagster", "url": self.url, "asset": asset}

    def events(self, asset: str) -> list[tuple[str, dict[str, Any]]]:
        """Return the partition and the facts of each materialisation of an asset, oldest first."""
        known = self.query(_EVENTS, asset={"path": asset.split("/")})["assetOrError"]
        return [
            (event["partition"], {entry["label"]: _value(entry) for entry in event["metadataEntries"]})
            for event in reversed(known.get("assetMaterializations", []))
        ]

    def runs(self) -> list[tuple[str, str]]:
        """Return the partition and the state of each run, oldest first."""
        runs = self.query(_RUNS)["runsOrError"]["results"]
        tags = [{tag["key"]: tag["value"] for tag in run["tags"]} for run in runs]
        return [(of_run["dagster/partition"], run["status"]) for run, of_run in zip(runs, tags, strict=True)][::-1]

    def query(self, query: str, **variables: Any) -> Any:
        """Run a query of GraphQL."""
        body = json.dumps({"query": query, "variables": variables}).encode()
        request = Request(f"{self.url}/graphql", body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=120) as answer:
            document = json.load(answer)
        assert "errors" not in document, document["errors"]
        return document["data"]

    def start_with(self, **settings: str) -> None:
        """Start the web server again, with other settings."""
        self.environment |= settings
        self.web = self.process("webserver", ["-m", "dagster_webserver", "-h", LOOPBACK, "-p", str(self.port)])
        self.start()

    def start(self) -> None:
        """Start the web server, and wait until it answers and knows the assets of its code location."""
        self.web.launch()
        self.web.wait_until(lambda: _answers(f"{self.url}/server_info"), within=_READY_WITHIN)
        self.web.wait_until(lambda: bool(self.query(_ASSETS_DEFINED)["assetNodes"]), within=_READY_WITHIN)

    def stop(self) -> None:
        """End the web server."""
        self.web.stop(grace=timedelta(seconds=20))

    def process(self, name: str, command: list[str]) -> Process:
        """Return a server of Dagster that is not started, with the code location."""
        return Process(
            name,
            [parts.dagster(), *command, "-f", self.home / "definitions.py"],
            cwd=self.home,
            log=self.home / f"{name}.log",
            env=self.environment,
        )

    def wait_for_runs(self, count: int, daemon: Process) -> list[tuple[str, str]]:
        """Return the runs once there are so many and all have ended."""
        runs: list[tuple[str, str]] = []

        def have_ended() -> bool:
            runs[:] = self.runs()
            return len(runs) >= count and all(state in ("SUCCESS", "FAILURE") for _, state in runs)

        daemon.wait_until(have_ended, within=_READY_WITHIN)
        return runs


@contextmanager
def dagster(
    home: Path, definitions: str = _DEFINITIONS, environment: dict[str, str] | None = None
) -> Iterator[Dagster]:
    """Run the web server until the end of the block. `definitions`: the code location."""
    (port,) = free_ports(1)
    (home / "definitions.py").write_text(definitions)
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    settings = {**os.environ, "DAGSTER_HOME": str(home), **(environment or {})}
    server = Dagster(home, port, settings)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _value(entry: dict[str, Any]) -> Any:
    values = [entry[name] for name in ("text", "intValue", "boolValue") if entry.get(name) is not None]
    return values[0] if values else None


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=30) as answer:
            return bool(answer.status)
    except OSError:
        return False
