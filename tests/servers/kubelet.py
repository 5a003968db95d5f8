"""A small kubelet: it runs the pods of a real API server as processes of this machine, and says how they are.

Init containers, native sidecars, probes, restarts, preStop hooks and the grace of an end are as Kubernetes has them.
"""

import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

from tests.servers import volumes
from tests.servers.containers import Container, Image
from tests.servers.kubernetes import Api, Refused

NODE = "node-of-a-test"
_LOOK_S = 0.3
_BACKOFF_S = (0, 2, 4, 8)  # Kubernetes: 10, 20, 40, ... 300
Json = dict[str, Any]


@dataclass
class PodContainer:
    """A container over its restarts."""

    spec: Json
    sidecar: bool = False
    run: Container | None = None
    restarts: int = -1
    due_s: float = 0.0
    ready: bool = False
    began_s: float = 0.0
    waiting: str = "PodInitializing"
    last: int | None = None
    failures: dict[str, int] = field(default_factory=dict)
    probed_s: dict[str, float] = field(default_factory=dict)
    started: bool = False

    @property
    def name(self) -> str:
        return str(self.spec["name"])

    @property
    def running(self) -> bool:
        return self.run is not None and self.run.exit_code() is None

    def status(self) -> Json:
        state: Json
        if self.running:
            state = {"running": {"startedAt": _now()}}
        elif self.run is not None and not self.waiting:
            code = self.run.exit_code() or 0
            reason = "Completed" if code == 0 else "Error"
            state = {"terminated": {"exitCode": code, "reason": reason, "finishedAt": _now(), "startedAt": _now()}}
        else:
            state = {"waiting": {"reason": self.waiting or "ContainerCreating"}}
        return {
            "name": self.name,
            "image": self.spec["image"],
            "imageID": "",
            "ready": self.ready and self.running,
            "restartCount": max(0, self.restarts),
            "state": state,
            "started": self.started,
        }


class Pod(threading.Thread):
    """One pod, from its binding to its removal."""

    def __init__(self, kubelet: "Kubelet", pod: Json, address: str) -> None:
        super().__init__(name=pod["metadata"]["name"], daemon=True)
        self.kubelet = kubelet
        self.api = kubelet.api
        self.pod = pod
        self.address = address
        self.path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        self.folder = kubelet.folder / pod["metadata"]["uid"]
        self.folder.mkdir(parents=True)
        self.inits = [
            PodContainer(spec, spec.get("restartPolicy") == "Always") for spec in pod["spec"].get("initContainers", [])
        ]
        self.mains = [PodContainer(spec) for spec in pod["spec"]["containers"]]
        self.deleted = threading.Event()
        self.grace_s = 30.0
        self.last_status: Json = {}

    def run(self) -> None:
        try:
            paths = self._prepare()
            if paths is not None and self._run_init_containers(paths):
                self._main(paths)
        finally:
            self._end()

    def _prepare(self) -> Mapping[str, Path] | None:
        """Wait for images and volumes."""
        while not self.deleted.is_set() and not self.kubelet.over.is_set():
            missing = {k.spec["image"] for k in [*self.inits, *self.mains]} - set(self.kubelet.images)
            for container in [*self.inits, *self.mains]:
                container.waiting = "ImagePullBackOff" if container.spec["image"] in missing else "ContainerCreating"
            if not missing:
                try:
                    return volumes.volumes(self.api, self.pod, self.folder / "volumes")
                except volumes.ObjectMissing:
                    pass
            self._tell("Pending")
            self.deleted.wait(_LOOK_S)
        return None

    def _run_init_containers(self, paths: Mapping[str, Path]) -> bool:
        """Run the init containers in their order; a sidecar stays."""
        for container in self.inits:
            self._start(container, paths)
            while (
                not container.sidecar
                and not self._is_over()
                and (container.running or (container.run and container.run.exit_code() != 0))
            ):
                if not container.running:
                    if self.pod["spec"]["restartPolicy"] == "Never":
                        self._tell("Failed")
                        return False
                    self._start(container, paths)
                self._tell("Pending")
                self.deleted.wait(_LOOK_S)
            if not container.sidecar:
                container.waiting = ""
        return not self._is_over()

    def _main(self, paths: Mapping[str, Path]) -> None:
        """Run the others until the pod is over, or is to go."""
        for container in self.mains:
            self._start(container, paths)
        policy = self.pod["spec"]["restartPolicy"]
        while not self._is_over():
            for container in [*(k for k in self.inits if k.sidecar), *self.mains]:
                self._look(container, "Always" if container.sidecar else policy, paths)
            exit_codes = [k.run.exit_code() for k in self.mains if k.run and not k.running and not k.waiting]
            if len(exit_codes) == len(self.mains):
                for container in self.inits:
                    self._finish(container, 5)
                self._tell("Failed" if any(exit_codes) else "Succeeded")
                self.deleted.wait()
                return
            self._tell("Running")
            self.deleted.wait(_LOOK_S)

    def _look(self, container: PodContainer, policy: str, paths: Mapping[str, Path]) -> None:
        """Restart what has ended, and probe what runs."""
        assert container.run is not None
        if container.running:
            self._probe(container)
            return
        code = container.run.exit_code()
        if policy == "Never" or (policy == "OnFailure" and code == 0):
            container.waiting = ""
        elif not container.waiting:
            container.due_s = time.monotonic() + _BACKOFF_S[min(container.restarts, len(_BACKOFF_S) - 1)]
            container.waiting = "CrashLoopBackOff"
            container.ready = False
        elif time.monotonic() >= container.due_s:
            self._start(container, paths)

    def _start(self, container: PodContainer, paths: Mapping[str, Path]) -> None:
        """Start a container once more."""
        container.restarts += 1
        env = volumes.environment(self.api, self.pod, container.spec, self.address)
        security = {**self.pod["spec"].get("securityContext", {}), **container.spec.get("securityContext", {})}
        image = self.kubelet.images[container.spec["image"]]
        command = [*container.spec.get("command", []), *container.spec.get("args", [])]
        if "command" in container.spec:
            image = Image((), image.env, image.mounts)
        container.run = Container(
            self.folder / f"{container.name}-{container.restarts}",
            self.log(container.name),
            image,
            volumes.expand(command, env),
            env,
            volumes.mounts(container.spec, paths),
            read_only=security.get("readOnlyRootFilesystem", False),
            user=security.get("runAsUser", 0),
        )
        container.run.start()
        container.waiting = ""
        container.began_s = time.monotonic()
        container.failures = {}
        container.started = "startupProbe" not in container.spec
        container.ready = "readinessProbe" not in container.spec and container.started

    def _probe(self, container: PodContainer) -> None:
        now_s = time.monotonic()
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            probe = container.spec.get(kind)
            if probe is None or (kind == "startupProbe") == container.started:
                continue
            if now_s - container.probed_s.get(kind, container.began_s) < min(
                probe.get("periodSeconds", 10), self.kubelet.period_s
            ):
                continue
            container.probed_s[kind] = now_s
            well = self._is_well(probe)
            container.failures[kind] = 0 if well else container.failures.get(kind, 0) + 1
            if kind == "startupProbe" and well:
                container.started = True
                container.ready = "readinessProbe" not in container.spec
            elif kind == "readinessProbe":
                container.ready = well
            elif container.failures[kind] >= probe.get("failureThreshold", 3) and container.run is not None:
                self._finish(container, self.grace_s)

    def _is_well(self, probe: Json) -> bool:
        port = probe["httpGet"]["port"]
        named = {p.get("name"): p["containerPort"] for c in self.pod["spec"]["containers"] for p in c.get("ports", [])}
        with suppress(OSError, HTTPException):
            connection = HTTPConnection(self.address, named.get(port, port), timeout=probe.get("timeoutSeconds", 1))
            try:
                connection.request("GET", probe["httpGet"].get("path", "/"))
                return connection.getresponse().status < 400
            finally:
                connection.close()
        return False

    def _finish(self, container: PodContainer, grace_s: float) -> None:
        """Run the hook before the end, ask for it, wait, and kill."""
        if not container.running or container.run is None:
            return
        deadline = time.monotonic() + grace_s
        hook = container.spec.get("lifecycle", {}).get("preStop", {}).get("exec")
        if hook:
            container.run.run_inside(hook["command"], grace_s)
        container.run.signal(signal.SIGTERM)
        while container.running and time.monotonic() < deadline:
            self._tell(self.last_status.get("phase", "Running"))
            time.sleep(0.1)
        if container.running:
            container.run.kill()

    def _is_over(self) -> bool:
        return self.deleted.is_set() or self.kubelet.over.is_set()

    def _end(self) -> None:
        """Stop all, side by side but for the sidecars, which go last; then let the API server forget the pod."""
        grace_s = 0.0 if self.kubelet.over.is_set() else self.grace_s
        stops = [threading.Thread(target=self._finish, args=(container, grace_s)) for container in self.mains]
        for stop in stops:
            stop.start()
        for stop in stops:
            stop.join()
        for container in reversed(self.inits):
            self._finish(container, min(grace_s, 10))
        for container in [*self.mains, *self.inits]:
            container.ready = False
        if not self.kubelet.over.is_set():
            while not self.deleted.wait(_LOOK_S) and not self.kubelet.over.is_set():
                pass
            with suppress(Refused, OSError):
                uid = {"preconditions": {"uid": self.pod["metadata"]["uid"]}, "gracePeriodSeconds": 0}
                self.api.delete(self.path, {"apiVersion": "v1", "kind": "DeleteOptions", **uid})
        volumes.forget(self.folder)
        self.kubelet.forget(self)

    def log(self, container: str) -> Path:
        name = f"{self.pod['metadata']['name']}_{self.pod['metadata']['uid'][:5]}_{container}.log"
        return self.kubelet.folder / name

    def _tell(self, phase: str) -> None:
        """Say how the pod is, where that has changed."""
        mains = [container.status() for container in self.mains]
        ready = phase == "Running" and all(status["ready"] for status in mains)
        begun = phase != "Pending"
        status: Json = {
            "phase": phase,
            "podIP": self.address,
            "podIPs": [{"ip": self.address}],
            "hostIP": "127.0.0.1",
            "startTime": self.pod["metadata"]["creationTimestamp"],
            "containerStatuses": mains,
            "conditions": [
                {"type": name, "status": str(value), "lastTransitionTime": None}
                for name, value in {
                    "PodScheduled": True,
                    "Initialized": begun,
                    "ContainersReady": ready,
                    "Ready": ready,
                }.items()
            ],
        }
        if self.inits:
            status["initContainerStatuses"] = [container.status() for container in self.inits]
        shape = _timeless(status)
        if shape == self.last_status.get("shape"):
            return
        self.last_status = {"shape": shape, "phase": phase}
        with suppress(Refused, OSError):
            self.api.merge(f"{self.path}/status", {"status": status})


class Kubelet(threading.Thread):
    """The node. `images`: what each name of an image stands for; one that is not there cannot be pulled."""

    def __init__(self, api: Api, folder: Path, images: Mapping[str, Image], *, period_s: float = 1.0) -> None:
        """`period_s`: at most so long passes between two probes, whatever the pod says."""
        super().__init__(name="kubelet", daemon=True)
        self.api = api
        self.folder = folder
        self.images = dict(images)
        self.period_s = period_s
        self.over = threading.Event()
        self.pods: dict[str, Pod] = {}
        self._lock = threading.Lock()
        self._next = 1

    def run(self) -> None:
        while not self.over.wait(_LOOK_S):
            with suppress(Refused, OSError):
                self._round()

    def _round(self) -> None:
        bound_pods = {}
        for pod in self.api.items(f"/api/v1/pods?fieldSelector=spec.nodeName%3D{NODE}"):
            uid = pod["metadata"]["uid"]
            bound_pods[uid] = pod
            with self._lock:
                pod_thread = self.pods.get(uid)
                if pod_thread is None and "deletionTimestamp" not in pod["metadata"]:
                    pod_thread = self.pods[uid] = Pod(self, pod, f"127.77.{self._next // 250}.{self._next % 250 + 1}")
                    self._next += 1
                    pod_thread.start()
            if "deletionTimestamp" in pod["metadata"]:
                if pod_thread is None:
                    self.api.delete(
                        f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}",
                        {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0},
                    )
                else:
                    pod_thread.grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds", 30))
                    pod_thread.deleted.set()
        with self._lock:
            for uid, running_pod in self.pods.items():
                if uid not in bound_pods:
                    running_pod.grace_s = 0.0
                    running_pod.deleted.set()

    def forget(self, pod: Pod) -> None:
        """Forget a pod that is over."""
        with self._lock:
            self.pods.pop(pod.pod["metadata"]["uid"], None)

    def output(self, pod: str, container: str) -> str:
        """All that the pods of this name said, oldest first."""
        logs = sorted(self.folder.glob(f"{pod}_*_{container}.log"), key=lambda path: path.stat().st_ctime)
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def close(self) -> None:
        self.over.set()
        for pod in list(self.pods.values()):
            pod.deleted.set()
        for pod in list(self.pods.values()):
            pod.join(30)


@contextmanager
def kubelet(api: Api, folder: Path, images: Mapping[str, Image]) -> Iterator[Kubelet]:
    """Run a node until the end of the block."""
    folder.mkdir(parents=True)
    folder.chmod(0o755)
    size = {"cpu": "32", "memory": "256Gi", "pods": "100", "ephemeral-storage": "1Ti"}
    labels = {"kubernetes.io/os": "linux", "kubernetes.io/hostname": NODE, "topology.kubernetes.io/zone": "here"}
    api.create("/api/v1/nodes", {"metadata": {"name": NODE, "labels": labels}})
    ready = {"type": "Ready", "status": "True", "reason": "Test", "lastHeartbeatTime": _now()}
    api.merge(
        f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": size, "allocatable": size, "conditions": [ready]}}
    )
    api.merge(f"/api/v1/nodes/{NODE}", {"spec": {"taints": []}})
    node = Kubelet(api, folder, images)
    node.start()
    try:
        yield node
    finally:
        node.close()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if not key.endswith("At")}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
