"""A release of the chart on a cluster whose pods run as processes of this machine, and a lake that all of them see."""

import json
import shutil
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import yaml

from headrace.writer.demo.devstack.process import free_ports
from tests.servers.containers import Container, Image
from tests.servers.headrace_image import headrace_image
from tests.servers.kubelet import Kubelet, kubelet
from tests.servers.kubernetes import Cluster, cluster, until
from tests.support import oracle
from tests.support.class_archive import QUICK_START
from tests.support.cluster_driver import policy_settings
from tests.support.helm_chart import CHART, PLACES
from tests.support.writer_process import Site

Json = dict[str, Any]
SLOT = (
    500  # records a second that a core of an executor is let carry: two real cores would show nothing of more executors
)
# Minutes of the autoscaler are seconds here.
HASTE = {
    "window_s": 60,
    "short_window_s": 15,
    "start_s": 15,
    "stable_s": 15,
    "max_stable_s": 60,
    "down_s": 20,
    "after_up_s": 30,
    "regret_s": 60,
    "catch_up_duration_s": 60,
    "lag_slo_s": 30,
    "max_facts_age_s": 30,
    "down_batches": 1,
    "max_driver_share": 0.9,  # on a busy machine the driver's part is more than half of a small batch
}
RELEASE = "clicks"
DRIVER = "clicks-headrace"
REPOSITORY = "registry.example.com/headrace"
PIPELINE = "clicks"
NEXT = "0.2.0"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["appVersion"]


@dataclass
class Release:
    """One namespace with one release."""

    cluster: Cluster
    node: Kubelet
    namespace: str
    site: Site
    topic: str
    values: Json
    config: Json
    lake: Path
    produced: int = field(default=0)
    start_s: float = field(default=0.0)  # what a start took on this machine, from helm's call to its word

    @property
    def deadline(self) -> str:
        """Return how long an upgrade may take, and as long its way back: a drain and a start, on this machine."""
        return f"{30 + 1.5 * self.start_s:.0f}s"

    def fill(self, count: int) -> None:
        self.produced += 1
        self.site.fill(self.topic, count, seed=self.produced)

    @contextmanager
    def filling(self) -> Iterator[None]:
        """Produce all the while, so that there are always records waiting for a driver that does not commit."""
        over = threading.Event()

        def fill() -> None:
            while not over.wait(1):
                self.fill(20)

        thread = threading.Thread(target=fill)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def helm(self, verb: str, *flags: str, code: int = 0, config: Json | None = None, seconds: float = 600) -> str:
        """Install or upgrade the release."""
        values = {**self.values, "config": yaml.safe_dump(self.config if config is None else config)}
        path = self.site.root / "values.yaml"
        path.write_text(yaml.safe_dump(values))
        return self.cluster.helm(
            verb, RELEASE, CHART, "-n", self.namespace, "-f", path, *flags, code=code, seconds=seconds
        )

    def pods(self, component: str) -> list[Json]:
        """The pods of a component that are not about to go."""
        selector = f"labelSelector=app.kubernetes.io%2Fcomponent%3D{component}"
        pods = self.cluster.api.items(f"{PLACES['Pod'].format(self.namespace)}?{selector}")
        return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]

    def executors(self) -> list[Json]:
        """The executors' pods that run."""
        return [pod for pod in self.pods("executor") if pod["status"].get("phase") == "Running"]

    def executor_status(self) -> Json:
        """What the driver says of its executors; nothing while it does not answer."""
        try:
            with urlopen(f"http://127.0.0.1:{self.values['ports']['driver']}/status", timeout=20) as answer:
                status: Json = json.loads(answer.read())["executors"]
                return status
        except OSError:
            return {}

    def has(self, executors: int) -> bool:
        """Whether so many are wanted, take tasks, and run as pods."""
        status = self.executor_status()
        return (
            status.get("requested") == status.get("registered") == executors
            and not status["draining"]
            and len(self.executors()) == executors
        )

    def driver(self) -> Json:
        pod = self.cluster.api.find(f"{PLACES['Pod'].format(self.namespace)}/{DRIVER}-0")
        return {} if pod is None else pod

    def ready(self) -> bool:
        conditions = self.driver().get("status", {}).get("conditions", [])
        return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)

    def starts(self) -> int:
        """How often a driver began, as the table says."""
        return sum(facts["kind"] == "start" for facts in oracle.replay(self.lake).commits)

    def runs(self) -> set[int]:
        """The checkpoints that its batches came from."""
        return {facts["run"] for facts in oracle.replay(self.lake).commits if facts["kind"] == "batch"}

    def container(self) -> Container | None:
        """The driver's, when its pod is there."""
        pods = [p for p in list(self.node.pods.values()) if p.name == f"{DRIVER}-0" and not p.deleted.is_set()]
        return pods[0].mains[0].run if pods else None

    def output(self) -> str:
        return self.node.output(f"{DRIVER}-0", "driver")

    def until(self, condition: Callable[[], object], description: str, seconds: float = 300) -> None:
        try:
            until(condition, seconds, description)
        except AssertionError as error:
            autoscaler = self.node.output(f"{DRIVER}-0", "autoscaler")[-3000:]
            report = f"{self.driver().get('status')}\n{autoscaler}\n{self.output()[-6000:]}"
            raise AssertionError(f"{error}\n{report}") from None

    def wait_for_commits(self) -> None:
        """Wait until the lake holds all that was produced, each record once."""
        ends = self.site.ends(self.topic)

        def is_committed() -> bool:
            return (self.lake / "_delta_log").exists() and oracle.frontier_of(self.lake, PIPELINE) == ends

        self.until(is_committed, "everything is committed")
        oracle.check(self.lake, PIPELINE, ends)


@contextmanager
def node(folder: Path) -> Iterator[tuple[Cluster, Kubelet]]:
    """Run a cluster with one node until the end of the block."""
    folder.mkdir(parents=True, exist_ok=True)
    healthy = headrace_image(folder)
    # It dies whenever it is about to commit.
    sick = Image(healthy.entrypoint, {**healthy.env, "HEADRACE_FAULT": "before_commit:1"}, healthy.mounts)
    images = {f"{REPOSITORY}:{tag}": healthy for tag in (VERSION, NEXT)}
    images[f"{REPOSITORY}:cannot-commit"] = sick
    with (
        cluster(folder / "cluster", scheduler=True) as running_cluster,
        kubelet(running_cluster.api, folder / "node", images) as running_node,
    ):
        yield running_cluster, running_node


def prepare_release(cluster_and_node: tuple[Cluster, Kubelet], site: Site, topic: str, name: str) -> Release:
    """Prepare a release, and a volume for its lake; nothing is there yet, not even the namespace."""
    cluster, node = cluster_and_node
    shared = site.root / "shared"
    shared.mkdir()
    shared.chmod(stat.S_IRWXU | stat.S_IRWXG | stat.S_IRWXO)
    driver, supervisor, autoscaler, spark, blocks = free_ports(5)
    values = {
        "image": {"repository": REPOSITORY},
        "executors": {
            "instances": 2,
            "cores": 1,
            "memory": "512m",
            "memoryOverhead": "512m",
            "apiServer": cluster.api.url,
        },
        "autoscaler": {
            "minimum": 1,
            "maximum": 3,
            "interval": "5 s",
            "arguments": [
                word for name, value in policy_settings(HASTE).items() for word in ("--set", f"{name}={value}")
            ],
        },
        "driver": {"memory": "512m", "terminationGracePeriodSeconds": 45},
        "sparkConf": {"spark.executor.extraJavaOptions": QUICK_START},
        "ports": {
            "driver": driver,
            "supervisor": supervisor,
            "autoscaler": autoscaler,
            "sparkDriver": spark,
            "sparkBlocks": blocks,
        },
        "volumes": [{"name": "lake", "persistentVolumeClaim": {"claimName": "lake"}}],
        "volumeMounts": [{"name": "lake", "mountPath": "/lake"}],
    }
    slow = {"type": "tests.support.slow_bucketer:SlowBucketer", "records_per_second": SLOT}
    site.pipeline(
        PIPELINE,
        [topic],
        bucket=slow,
        commit={"max_delay": "5 s", "min_offsets": 1_000_000, "max_offsets": 24_000},
        roll={"target_file_size": "16 KiB"},
        memory={"batch_records": 1_000},  # so that a batch has work for every core
    )
    config = yaml.safe_load(site.config.read_text())
    del config["http"]
    # Its table is Delta, and the chart refuses a catalog in a file.
    del config["catalog"]
    config |= {"checkpoints": "/lake/checkpoints", "supervisor": {"lease_expiry": "6 s"}}
    config["kafka"]["lag_interval"] = "2 s"
    config["pipelines"][PIPELINE]["table"]["location"] = f"/lake/{PIPELINE}"
    return Release(cluster, node, name, site, topic, values, config, shared / PIPELINE)


def prepare_namespace(release: Release) -> None:
    """Let its namespace take restricted pods only, and have the volume."""
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    release.cluster.api.merge(f"/api/v1/namespaces/{release.namespace}", {"metadata": {"labels": label}})
    _volume(release.cluster, release.namespace, release.lake.parent)


def _volume(cluster: Cluster, name: str, path: Path) -> None:
    size = {"storage": "1Gi"}
    shared = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    volume = {
        **shared,
        "capacity": size,
        "hostPath": {"path": str(path)},
        "claimRef": {"name": "lake", "namespace": name},
    }
    cluster.api.create("/api/v1/persistentvolumes", {"metadata": {"name": f"lake-{name}"}, "spec": volume})
    claim = {**shared, "resources": {"requests": size}, "volumeName": f"lake-{name}"}
    path_ = f"/api/v1/namespaces/{name}/persistentvolumeclaims"
    cluster.api.create(path_, {"metadata": {"name": "lake"}, "spec": claim})


def uninstall(release: Release) -> None:
    """Remove the release, and wait until its pods are gone."""
    release.cluster.helm("uninstall", RELEASE, "-n", release.namespace)
    pods = PLACES["Pod"].format(release.namespace)
    tests = "labelSelector=app.kubernetes.io%2Fcomponent%3Dtest"  # helm leaves them
    release.cluster.api.delete(f"{pods}?{tests}")
    check = f"{PLACES['Job'].format(release.namespace)}/{DRIVER}-check"  # one that failed stays, for the same reason
    if release.cluster.api.find(check) is not None:
        release.cluster.api.delete(f"{check}?propagationPolicy=Background")
    release.until(lambda: not release.cluster.api.items(pods), "no pod is left")
    shutil.rmtree(release.site.root / "shared", ignore_errors=True)
