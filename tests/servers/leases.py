"""Leases of a Kubernetes API in memory, as far as a supervisor asks for them.

`tests/contract/test_lease.py` asks the same of it and of a real one.
"""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.servers.scripted import HttpRequest, Reply, serve_script

NAMESPACE = "lake"
TOKEN = "token-of-a-test"
_PLACE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/"


class LeaseApi:
    """Objects by name; one is replaced only by who names its uid and resourceVersion."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._version = 0

    def answer(self, request: HttpRequest) -> Reply:
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return refusal(401, "Unauthorized")
        assert request.path.startswith(_PLACE), request.path
        name = request.path.removeprefix(_PLACE)
        with self._lock:
            if request.method == "GET":
                lease = self.objects.get(name)
                return Reply(200, lease) if lease else refusal(404, f'leases "{name}" not found')
            return self._put(name, request.json())

    def _put(self, name: str, body: dict[str, Any]) -> Reply:
        metadata = body["metadata"]
        former = self.objects.get(name)
        uid = metadata.get("uid")
        version = metadata.get("resourceVersion")
        if former is None and uid:
            return refusal(409, "Precondition failed: UID")
        if former is not None and not version:
            cause = {"reason": "FieldValueInvalid", "field": "metadata.resourceVersion"}
            return refusal(422, "must be specified for an update", causes=[cause])
        if former is not None and (uid, version) != (former["metadata"]["uid"], former["metadata"]["resourceVersion"]):
            return refusal(409, "the object has been modified")
        self._version += 1
        identity = {"uid": uid or str(uuid.uuid4()), "resourceVersion": str(self._version)}
        self.objects[name] = {**body, "metadata": {**metadata, **identity}}
        return Reply(201 if former is None else 200, self.objects[name])


def refusal(status: int, message: str, causes: list[dict[str, str]] | None = None) -> Reply:
    """What an API server says instead of an object."""
    return Reply(status, {"kind": "Status", "message": message, "details": {"causes": causes or []}})


def account(folder: Path, token: str = TOKEN, namespace: str = NAMESPACE, ca: bytes = b"") -> Path:
    """Lay out what a kubelet mounts into a pod."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "token").write_text(token)
    (folder / "namespace").write_text(namespace)
    (folder / "ca.crt").write_bytes(ca)
    return folder


@contextmanager
def lease_api() -> Iterator[tuple[LeaseApi, str]]:
    """Serve it until the end of the block. Gives it, and its URL."""
    api = LeaseApi()
    with serve_script(api.answer) as script:
        yield api, script.url
