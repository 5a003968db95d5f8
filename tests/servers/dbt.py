"""dbt on a project, each command in a process of its own, with its adapters for DuckDB and Trino."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.servers import parts

_PROJECT = {
    "name": "shop",
    "version": "1.0",
    "profile": "shop",
    "flags": {"send_anonymous_usage_stats": False, "use_colors": False},
}


class DbtProject:
    """A project of dbt with one target."""

    def __init__(self, root: Path, target: Mapping[str, Any]) -> None:
        """Take an empty directory, and what a profile says of its target."""
        self.root = root
        self._python = parts.dbt()
        (root / "models").mkdir(parents=True)
        profile = {"shop": {"target": "dev", "outputs": {"dev": dict(target)}}}
        (root / "dbt_project.yml").write_text(yaml.safe_dump(_PROJECT))
        (root / "profiles.yml").write_text(yaml.safe_dump(profile))

    def write(self, name: str, text: str) -> None:
        """Write a file of `models/`."""
        (self.root / "models" / name).write_text(text, encoding="utf-8")

    def run(self, *arguments: str, fails: bool = False) -> str:
        """Run a command, and return what it prints. `fails`: it is to end with 1. A warning fails it."""
        command = [str(self._python), "-m", "dbt.cli.main", "--warn-error", *arguments]
        done = subprocess.run(
            [*command, "--project-dir", str(self.root), "--profiles-dir", str(self.root)],
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == int(fails), done.stdout + done.stderr
        return done.stdout

    def sources(self) -> dict[str, Any]:
        """Return the sources as dbt has parsed them, by their tables."""
        manifest = json.loads((self.root / "target" / "manifest.json").read_text())
        return {node["name"]: node for node in manifest["sources"].values()}

    def freshness(self) -> dict[str, tuple[str, str]]:
        """Return status and instant of each table, as the last `source freshness` found them."""
        results = json.loads((self.root / "target" / "sources.json").read_text())["results"]
        return {one["unique_id"].rpartition(".")[2]: (one["status"], one["max_loaded_at"]) for one in results}


def duckdb_target(root: Path) -> dict[str, Any]:
    """Return a target that is DuckDB with its extension for Delta tables, in an empty directory."""
    packages = "lib/python*/site-packages/duckdb_extension_delta"
    (extension,) = parts.dbt().parents[1].glob(f"{packages}/extensions/*/delta.duckdb_extension")
    folder = root / "extensions" / extension.parent.name / "linux_amd64"
    folder.mkdir(parents=True)
    shutil.copy(extension, folder)
    options = {"allow_unsigned_extensions": "true", "extension_directory": str(root / "extensions")}
    return {"type": "duckdb", "path": str(root / "shop.duckdb"), "config_options": options}


def trino_target(url: str) -> dict[str, Any]:
    """Return a target that is a Trino server; its models lie in the catalog `delta`."""
    host, _, port = url.rpartition("//")[2].partition(":")
    login = {"method": "none", "user": "dbt", "http_scheme": "http"}
    return {"type": "trino", **login, "host": host, "port": int(port), "database": "delta", "schema": "lake"}
