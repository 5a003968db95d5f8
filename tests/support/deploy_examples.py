"""What platform teams paste, of docs/examples/kubernetes: the values that each example gives the chart."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.clients.java_artifacts import cache_dir
from tests.support.json_schema import fits

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples" / "kubernetes"
TERRAFORM = FOLDER / "terraform"
CHART = ROOT / "helm" / "headrace"
Json = dict[str, Any]


@dataclass(frozen=True)
class ChartValues:
    """Values of one example. `is_whole`: with the file of the pipelines; else they are laid over others."""

    name: str
    values: Json
    is_whole: bool

    def faults(self) -> list[str]:
        """Return the keys whose values the chart's schema refuses."""
        schema = values_schema()
        return [key for key, value in self.values.items() if not fits({key: value}, schema)]


@cache
def values_schema() -> Json:
    """Return the schema of the chart's values."""
    schema: Json = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
    return schema


def list_manifests() -> Iterator[tuple[str, Json]]:
    """Yield the objects of Argo CD and of Flux, each with the name of its file."""
    for path in sorted(FOLDER.glob("*.yaml")):
        if not path.name.startswith("values-"):
            for manifest in yaml.safe_load_all(path.read_text(encoding="utf-8")):
                # Kinds of Kubernetes itself stand beside: a claim of a volume.
                if "/" in manifest["apiVersion"]:
                    yield path.name, manifest


def list_values() -> Iterator[ChartValues]:
    """Yield the values of each example; those of Terraform without what only its own parser can tell."""
    for name, manifest in list_manifests():
        match manifest:
            case {"kind": "Application", "spec": {"source": {"helm": {"valuesObject": values}}}}:
                yield ChartValues(name, values, is_whole=True)
            case {"kind": "HelmRelease", "spec": {"values": values}}:
                yield ChartValues(name, values, is_whole=True)
    for path in sorted(FOLDER.glob("values-*.yaml")):
        yield ChartValues(path.name, yaml.safe_load(path.read_text(encoding="utf-8")), is_whole=False)
    of_terraform = yaml.safe_load((TERRAFORM / "values.yaml").read_text(encoding="utf-8"))
    config = (TERRAFORM / "pipelines.yaml").read_text(encoding="utf-8")
    yield ChartValues("terraform", {**of_terraform, "config": config}, is_whole=True)


def tool(name: str) -> Path:
    """Return what tests/engines/deploy_tools.sh made. Fails where it has not."""
    here = ROOT / "tests" / "engines"
    sources = [here / "deploy_tools.sh", here / "terraform.lock", *sorted((here / "programs").glob("*.go"))]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:12]
    path = cache_dir() / f"deploy-tools-{digest}" / name
    if not path.exists():
        pytest.fail(f"{path} is not there: `make test-deploy` makes it.", pytrace=False)
    return path


def merge_values(values: Mapping[str, Any], over: Mapping[str, Any]) -> Json:
    """Lay values over others as helm does: mappings key by key, all else as a whole."""
    merged = dict(values)
    for key, value in over.items():
        below = merged.get(key)
        merged[key] = merge_values(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged
