"""A client of the Kubernetes API with the pod's account; errors are one sentence."""

import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from headrace.writer.core.errors import ConfigError
from headrace.writer.core.http import Answer, RequestFailed, ask

# What a kubelet mounts, and renews.
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
# Less than a quarter of a lease of 20 s, so that a question which hangs costs one renewal.
_ANSWER_S = 4.0
# The statuses that say something of a Lease.
_STATUSES = {"get": (200, 404), "create": (200, 201, 409), "update": (200, 404, 409)}
# A Lease that is created is put under its name too: only so may an account be allowed to create certain ones.
_METHODS = {"get": "GET", "create": "PUT", "update": "PUT"}
_NOT_FOUND = 404
_CONFLICT = 409
Json = dict[str, Any]
Verb = Literal["get", "create", "update"]


class ApiFailed(OSError):
    """The API did not answer, or refused for another reason than a conflict."""


@dataclass(frozen=True)
class Reply:
    """The API's reply: the object, its absence, or a conflict."""

    status: int
    body: Json

    @property
    def is_missing(self) -> bool:
        """There is no such object."""
        return self.status == _NOT_FOUND

    @property
    def is_conflict(self) -> bool:
        """The object is another one by now."""
        return self.status == _CONFLICT


@dataclass(frozen=True)
class Api:
    """An API server, and the folder with `token`, `ca.crt` and `namespace`, which are read for each request."""

    url: str
    account: Path = ACCOUNT

    @property
    def namespace(self) -> str:
        """The namespace of the pod. Raises ApiFailed."""
        return self._read("namespace")

    def lease(self, verb: Verb, name: str, body: Json | None = None) -> Reply:
        """Ask for a Lease of the pod's namespace, or put one. Raises ApiFailed."""
        namespace = self.namespace
        path = f"/apis/coordination.k8s.io/v1/namespaces/{quote(namespace)}/leases/{quote(name)}"
        headers = {"Authorization": f"Bearer {self._token()}", "Accept": "application/json"}
        data = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            data = json.dumps(body).encode()
        problem = f"cannot {verb} lease {name} of namespace {namespace} at {self.url}"
        try:
            answer = ask(
                self.url + path,
                method=_METHODS[verb],
                body=data,
                headers=headers,
                timeout_s=_ANSWER_S,
                trust=self._trust(),
                proxies=False,
            )
            lease = answer.json() if answer.body else {}
        except RequestFailed as error:
            raise ApiFailed(f"{problem}: {error}. It is asked again.") from error
        if not isinstance(lease, dict):
            lease = {}
        if answer.ok and not (lease.get("metadata") or {}).get("resourceVersion"):
            raise ApiFailed(
                f"{problem}: {answer.summary()} is no Lease. Does an API server of Kubernetes answer there?"
            )
        if answer.status in _STATUSES[verb]:
            return Reply(answer.status, lease)
        if verb == "create" and _is_there_already(lease):
            return Reply(_CONFLICT, lease)
        raise ApiFailed(f"{problem}: {_message(answer, lease)}. {_fix(answer.status, verb, name)}")

    def _token(self) -> str:
        token = self._read("token")
        # HTTP would refuse any other token in a sentence that holds it.
        if len(token.split()) != 1 or not token.isascii():
            raise ApiFailed(f"{self.account / 'token'} holds no token. {_MOUNT}")
        return token

    def _read(self, name: str) -> str:
        try:
            return (self.account / name).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ApiFailed(f"{self.account / name} cannot be read ({error}). {_MOUNT}") from error

    def _trust(self) -> ssl.SSLContext | None:
        if not self.url.startswith("https:"):
            return None
        ca = self.account / "ca.crt"
        try:
            context = ssl.create_default_context(cafile=str(ca))
        except (OSError, ValueError) as error:
            # ssl.SSLError is an OSError.
            raise ApiFailed(f"{ca} is no authority to trust ({error}). {_MOUNT}") from error
        # The authorities of clusters lack what the strict check asks for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context


def in_pod(environment: Mapping[str, str]) -> Api:
    """Return the API of the cluster in which this process runs. Raises ConfigError where it runs in none."""
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        raise ConfigError(
            "supervisor.lease is kubernetes, and this process runs in no pod: KUBERNETES_SERVICE_HOST is not set. Run "
            "it in the cluster, or set supervisor.lease to store."
        )
    if ":" in host:
        # An address of IPv6.
        host = f"[{host}]"
    port = environment.get("KUBERNETES_SERVICE_PORT_HTTPS") or environment.get("KUBERNETES_SERVICE_PORT") or "443"
    return Api(f"https://{host}:{port}")


_MOUNT = "Let the pod have the token of its account: automountServiceAccountToken, as the chart sets it."


def _is_there_already(status: Json) -> bool:
    """Return whether a Lease that was to be created is there: then the API wants to know which one is replaced."""
    causes = (status.get("details") or {}).get("causes") or []
    return any(cause.get("field") == "metadata.resourceVersion" for cause in causes)


def _message(answer: Answer, status: Json) -> str:
    message = status.get("message")
    return f"{answer.status}: {message}" if message else answer.summary()


def _fix(status: int, verb: Verb, name: str) -> str:
    match status:
        case 401:
            return f"The token of the pod's account is not taken. {_MOUNT}"
        case 403:
            return (
                f"Give the account's Role the verb `{verb}` on leases of coordination.k8s.io with the name {name}; the "
                "chart does with supervisor.lease=kubernetes and rbac.create=true."
            )
        case 400 | 422:
            return "Look at the Lease with kubectl; deleted, it is put anew."
    return "It is asked again."
