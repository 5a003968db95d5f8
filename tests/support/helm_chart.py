"""The chart of `helm/headrace`, rendered by helm as a user does it."""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from headrace.writer.clients.java_artifacts import cache_dir
from tests.servers.kubernetes import HELM, SCHEMAS, program

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "headrace"
VALUES = sorted((CHART / "ci").glob("*.yaml"))
CRDS = sorted((ROOT / "tests" / "servers" / "crds").glob("*.yaml"))
MONITORING = ("PodMonitor", "ServiceMonitor", "PrometheusRule")
Json = dict[str, Any]
# Where the API server has each kind that the chart renders.
PLACES = {
    "ConfigMap": "/api/v1/namespaces/{}/configmaps",
    "CronJob": "/apis/batch/v1/namespaces/{}/cronjobs",
    "Ingress": "/apis/networking.k8s.io/v1/namespaces/{}/ingresses",
    "Job": "/apis/batch/v1/namespaces/{}/jobs",
    "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
    "Pod": "/api/v1/namespaces/{}/pods",
    "PodDisruptionBudget": "/apis/policy/v1/namespaces/{}/poddisruptionbudgets",
    "PodMonitor": "/apis/monitoring.coreos.com/v1/namespaces/{}/podmonitors",
    "PrometheusRule": "/apis/monitoring.coreos.com/v1/namespaces/{}/prometheusrules",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "Service": "/api/v1/namespaces/{}/services",
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "ServiceMonitor": "/apis/monitoring.coreos.com/v1/namespaces/{}/servicemonitors",
    "StatefulSet": "/apis/apps/v1/namespaces/{}/statefulsets",
}


def helm(*arguments: str | Path) -> tuple[int, str]:
    """Run helm without a cluster. Returns its exit code, and what it said."""
    command = [program("helm", HELM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=400)
    return done.returncode, done.stdout + done.stderr


def render(values: Path, *flags: str, release: str = "clicks", namespace: str = "lake") -> list[Json]:
    """Every object of a release with these values."""
    code, output = helm("template", release, CHART, "-n", namespace, "-f", values, *flags)
    assert code == 0, output
    return [manifest for manifest in yaml.safe_load_all(output) if manifest]


def wrong(objects: Mapping[str, Json], versions: Sequence[str]) -> tuple[list[str], dict[str, dict[str, str]]]:
    """Ask the schemas of versions of Kubernetes. Returns all versions that have some, and what is wrong in which."""
    packages = cache_dir() / f"kubernetes-schemas-{SCHEMAS}-py{sys.version_info.major}.{sys.version_info.minor}"
    if not packages.exists():
        pytest.fail(f"{packages} is not there: `make test-chart` fetches it.", pytrace=False)
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "engines" / "schemas.py", *versions],
        check=False,
        timeout=300,
        input=json.dumps(objects),
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(packages)},
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    return answer["known"], answer["wrong"]


def pods(objects: list[Json]) -> Iterator[tuple[str, Json]]:
    """Each template of a pod in them, named: also the executors', which is a file of the ConfigMap."""
    for manifest in objects:
        name = f"{manifest['kind']}/{manifest['metadata']['name']}"
        match manifest:
            case {"kind": "CronJob"}:
                yield name, manifest["spec"]["jobTemplate"]["spec"]["template"]
            case {"kind": "StatefulSet" | "Job"}:
                yield name, manifest["spec"]["template"]
            case {"kind": "Pod"}:
                yield name, manifest
            case {"kind": "ConfigMap", "data": {"executor.yaml": text}}:
                executor = yaml.safe_load(text)
                executor["spec"]["containers"][0]["image"] = "an-image"  # Spark's part
                yield name, executor
