"""A real Kubernetes without nodes: etcd, API server, controllers and, if asked for, the scheduler, on loopback.

`make test-engines` builds the programs. Nodes, and pods that run, are `tests/servers/kubelet.py`.
"""

import base64
import json
import os
import ssl
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import HTTPSHandler, ProxyHandler, Request, build_opener

import pytest
import yaml

from headrace.writer.clients.java_artifacts import cache_dir
from headrace.writer.demo.devstack.process import LOOPBACK, Process, free_ports

KUBERNETES = "v1.34.1"
ETCD = "v3.5.21"
HELM = "v3.22.0"
SCHEMAS = "1.37.0"
READY_WITHIN = timedelta(seconds=120)  # seen: 5 s
_ADMIN = "admin-of-a-test"
Json = dict[str, Any]


def program(name: str, version: str = KUBERNETES) -> Path:
    """Return a program that was built. Fails where it is not there."""
    path = cache_dir() / f"{name}-{version}" / name
    if not path.exists():
        pytest.fail(f"{path} is not there: `make test-engines` builds it.", pytrace=False)
    return path


class Refused(Exception):
    """The API server said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


@cache
def _opener(ca: Path) -> Any:
    context = ssl.create_default_context(cafile=str(ca))
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return build_opener(ProxyHandler({}), HTTPSHandler(context=context))


@dataclass(frozen=True)
class Api:
    """The API server, asked by whom the token names."""

    url: str
    ca: Path
    token: str

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        """Ask, and return the answer. Raises Refused."""
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind, "Accept": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        deadline = time.monotonic() + 30
        while True:
            try:
                with _opener(self.ca).open(
                    Request(self.url + path, data, headers, method=method), timeout=30
                ) as answer:
                    document: Json = json.loads(answer.read() or b"{}")
                    return document
            except HTTPError as error:
                with error:
                    message = error.read().decode(errors="replace")
                    if error.code != 429 or time.monotonic() > deadline:  # it is busy, or begins to store a new kind
                        raise Refused(error.code, message) from None
            time.sleep(0.5)

    def get(self, path: str) -> Json:
        return self.call("GET", path)

    def find(self, path: str) -> Json | None:
        """Return what is there; None when nothing is."""
        try:
            return self.call("GET", path)
        except Refused as refused:
            if refused.status == 404:
                return None
            raise

    def items(self, path: str) -> list[Json]:
        objects: list[Json] = self.get(path)["items"]
        return objects

    def create(self, path: str, body: Json) -> Json:
        return self.call("POST", path, body)

    def merge(self, path: str, body: Json) -> Json:
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def apply(self, path: str, body: Json, *, dry_run: bool = False) -> Json:
        """Apply on the server, which refuses fields that it does not know."""
        flags = "fieldManager=test&force=true&fieldValidation=Strict" + ("&dryRun=All" if dry_run else "")
        return self.call("PATCH", f"{path}?{flags}", body, "application/apply-patch+yaml")

    def delete(self, path: str, body: Json | None = None) -> Json:
        return self.call("DELETE", path, body)

    def may(self, verb: str, resource: str, namespace: str, group: str = "", name: str = "") -> bool:
        """Whether the one who asks may do it, as `kubectl auth can-i` finds out."""
        resource, _, sub = resource.partition("/")
        target = {"group": group, "resource": resource, "subresource": sub, "name": name}
        attributes = {"verb": verb, "namespace": namespace, **target}
        review = {"kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        answer = self.create(path, {"apiVersion": "authorization.k8s.io/v1", **review})
        return bool(answer["status"]["allowed"])

    def token_of(self, namespace: str, account: str) -> str:
        """Return a token of a service account, as a kubelet asks for it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 3600},
        }
        return str(self.create(path, request)["status"]["token"])

    def of(self, namespace: str, account: str) -> "Api":
        """Return the same server, asked by a service account."""
        return Api(self.url, self.ca, self.token_of(namespace, account))


@dataclass(frozen=True)
class Cluster:
    """An API server that runs, helm beside it, and what was asked of the server."""

    api: Api
    folder: Path

    def namespace(self, name: str, labels: Mapping[str, str] | None = None) -> str:
        """Make a namespace, and wait for what its pods need."""
        self.api.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": dict(labels or {})}})
        until(
            lambda: (
                self.api.find(f"/api/v1/namespaces/{name}/serviceaccounts/default") is not None
                and self.api.find(f"/api/v1/namespaces/{name}/configmaps/kube-root-ca.crt") is not None
            ),
            30,
            f"the accounts of {name}",
        )
        return name

    def helm(self, *arguments: str | Path, code: int = 0, seconds: float = 120) -> str:
        """Run helm. Returns what it said; its exit code is what is expected."""
        process = subprocess.run(
            [program("helm", HELM), *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=seconds,
            env=self.environment(),
        )
        output = process.stdout + process.stderr
        assert process.returncode == code, f"helm {' '.join(map(str, arguments))}: {process.returncode}\n{output}"
        return output

    def environment(self) -> dict[str, str]:
        folders = {f"HELM_{name}_HOME": str(self.folder / "helm" / name) for name in ("CACHE", "CONFIG", "DATA")}
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.folder),
            "KUBECONFIG": str(self.folder / "kubeconfig"),
        } | folders

    def requests_of(self, account: str) -> set[tuple[str, str]]:
        """Verb and resource of all that an account of any namespace asked for and was given."""
        return {(verb, resource) for verb, resource, code in self._audit_events(account) if code < 400 or code == 404}

    def refusals_of(self, account: str) -> set[tuple[str, str]]:
        """Verb and resource of all that it asked for and may not."""
        return {(verb, resource) for verb, resource, code in self._audit_events(account) if code == 403}

    def _audit_events(self, account: str) -> Iterator[tuple[str, str, int]]:
        for line in (self.folder / "audit.log").read_text().splitlines():
            event = json.loads(line)
            target = event.get("objectRef", {})
            if event["user"]["username"].endswith(f":{account}"):
                resource = "/".join(filter(None, (target.get("resource"), target.get("subresource"))))
                yield event["verb"], resource, event.get("responseStatus", {}).get("code", 0)


def until(condition: Any, seconds: float, description: str) -> Any:
    """Wait until something is so, and return it."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {seconds} s: {description}"
        time.sleep(0.2)
    return value


@contextmanager
def cluster(folder: Path, *, scheduler: bool = False) -> Iterator[Cluster]:
    """Run a cluster until the end of the block."""
    etcd, peer, secure = free_ports(3)
    pki = folder / "pki"
    pki.mkdir(parents=True)
    _files(folder, pki)
    url = f"http://{LOOPBACK}:{etcd}"
    with ExitStack() as after:

        def launch(name: str, command: list[str | Path]) -> Process:
            process = Process(name, command, cwd=folder, log=folder / f"{name}.log", env={"GOMAXPROCS": "2"})
            after.callback(process.stop, grace=timedelta(0))
            process.launch()
            return process

        launch(
            "etcd",
            [
                program("etcd", ETCD),
                "--data-dir",
                folder / "etcd",
                "--listen-client-urls",
                url,
                "--log-level",
                "warn",
                "--advertise-client-urls",
                url,
                "--listen-peer-urls",
                f"http://{LOOPBACK}:{peer}",
                "--unsafe-no-fsync",
            ],
        )
        server = launch("kube-apiserver", _api_server_command(folder, pki, url, secure))
        ca = pki / "apiserver.crt"
        api = Api(f"https://{LOOPBACK}:{secure}", ca, _ADMIN)
        server.wait_until(lambda: ca.exists() and _answers(api), within=READY_WITHIN)
        _kubeconfig(folder / "kubeconfig", api)
        shared = [f"--kubeconfig={folder}/kubeconfig", "--leader-elect=false", "--secure-port=0"]
        launch(
            "kube-controller-manager",
            [
                program("kube-controller-manager"),
                *shared,
                f"--service-account-private-key-file={pki}/sa.key",
                f"--root-ca-file={ca}",
                "--controllers=*,-node-lifecycle-controller,-cloud-node-lifecycle-controller",
            ],
        )
        if scheduler:
            launch("kube-scheduler", [program("kube-scheduler"), *shared])
        yield Cluster(api, folder)


def _api_server_command(folder: Path, pki: Path, etcd_url: str, port: int) -> list[str | Path]:
    """Return the command of an API server that authenticates by tokens, and audits what service accounts ask for."""
    return [
        program("kube-apiserver"),
        f"--etcd-servers={etcd_url}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--cert-dir={pki}",
        "--service-cluster-ip-range=10.96.0.0/24",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.key",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=RBAC",
        f"--token-auth-file={folder}/tokens.csv",
        f"--audit-policy-file={folder}/audit.yaml",
        f"--audit-log-path={folder}/audit.log",
    ]


def _files(folder: Path, pki: Path) -> None:
    key = ["openssl", "genrsa", "-out", str(pki / "sa.key"), "2048"]
    subprocess.run(key, check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f"{_ADMIN},admin,admin,system:masters\n")
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
    rule = {"level": "Metadata", "userGroups": ["system:serviceaccounts"]}
    (folder / "audit.yaml").write_text(yaml.safe_dump({**policy, "rules": [rule, {"level": "None"}]}))


def _kubeconfig(path: Path, api: Api) -> None:
    ca = base64.b64encode(api.ca.read_bytes()).decode()
    path.write_text(
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "test",
                "clusters": [{"name": "test", "cluster": {"server": api.url, "certificate-authority-data": ca}}],
                "users": [{"name": "admin", "user": {"token": api.token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
            }
        )
    )
    path.chmod(0o600)


def _answers(api: Api) -> bool:
    try:
        api.call("GET", "/version")
        return api.find("/api/v1/namespaces/kube-system") is not None
    except (URLError, OSError, Refused, ValueError):
        return False
