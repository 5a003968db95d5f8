"""A lease as a Kubernetes Lease object, one for each pipeline.

`leaseTransitions` is the epoch. Whatever is put names the object that it replaces, by uid and resourceVersion: of two
that replace the same one, the API takes one. What is decided is pure; KubernetesLeases asks and does.
"""

import copy
import hashlib
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from recovery.lease.kubernetes_api import Api, ApiFailed, Json, Verb
from recovery.lease.lease import LeaseRecord

PIPELINE, RELEASED_BY = "headrace/pipeline", "headrace/released-by"  # annotations
_TRIES = 5  # a Lease may change under a renewal: `kubectl label` changes it too
_PLAIN = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


@dataclass(frozen=True)
class PutLease:
    """Put this object. A decision is None instead where another holder has the lease."""

    verb: Verb
    body: Json


@dataclass(frozen=True)
class LeaseContent:
    """What is written into a Lease, by any holder."""

    name: str
    pipeline: str
    expires_after: timedelta

    @property
    def seconds(self) -> int:
        """How long a reader should wait for a silent holder."""
        return max(1, math.ceil(self.expires_after.total_seconds()))


def lease_name(prefix: str, pipeline: str) -> str:
    """Name the Lease of a pipeline. Characters that Kubernetes does not allow are replaced; a digest keeps it unique.

    helm/headrace/templates/_helpers.tpl does the same.
    """
    if _PLAIN.fullmatch(pipeline):
        return f"{prefix}-{pipeline}"
    digest = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
    return f"{prefix}-{pipeline.replace('_', '-')}-{digest}"


def seen(lease: Json) -> LeaseRecord:
    """Read a Lease; one that another tool made may have anything."""
    about, spec = lease.get("metadata") or {}, lease.get("spec") or {}
    holder = str(spec.get("holderIdentity") or "")
    by = str((about.get("annotations") or {}).get(RELEASED_BY) or "")
    return LeaseRecord(int(spec.get("leaseTransitions") or 0), holder or by, _mark(lease), released=not holder)


def taking(
    found: Json | None, looked: LeaseRecord | None, epoch: int, holder: str, about: LeaseContent, now: datetime
) -> PutLease | None:
    """Decide on taking a lease. `looked`: what was judged to be free, where one looked; another one is not."""
    if found is None:
        return _anew(epoch, holder, about, now)
    is_now = seen(found)
    if is_now.epoch >= epoch or (looked is not None and looked.mark != is_now.mark):
        return None
    return _written(found, epoch, holder, about, now, acquired=True)


def renewing(found: Json | None, epoch: int, holder: str, about: LeaseContent, now: datetime) -> PutLease | None:
    """Decide on a renewal. One that was removed, or set back, is put anew; a higher epoch or another holder has it."""
    if found is None:
        return _anew(epoch, holder, about, now)
    is_now = seen(found)
    if is_now.epoch > epoch or (is_now.epoch == epoch and is_now.holder != holder):
        return None
    return _written(found, epoch, holder, about, now, acquired=is_now.epoch < epoch)


def releasing(found: Json | None, epoch: int, holder: str, now: datetime) -> PutLease | None:
    """Decide on a release: the holder goes, the epoch stays."""
    if found is None or (seen(found).epoch, seen(found).holder) != (epoch, holder):
        return None
    body = copy.deepcopy(found)
    body["metadata"].setdefault("annotations", {})[RELEASED_BY] = holder
    body["spec"] |= {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": _micro(now)}
    return PutLease("update", body)


class KubernetesLeases:
    """The lease of one pipeline in the API of a cluster."""

    def __init__(
        self, api: Api, about: LeaseContent, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api, self._about, self._clock = api, about, clock
        self._looked: LeaseRecord | None = None  # and judged by the reader
        self._held: Json | None = None  # as this one put it last

    def look(self) -> LeaseRecord | None:
        """Read the Lease. Raises ApiFailed."""
        found = self._found()
        self._looked = None if found is None else seen(found)
        return self._looked

    def take(self, epoch: int, holder: str) -> bool:
        """Create the Lease, or replace the one that was read."""
        decision = taking(self._found(), self._looked, epoch, holder, self._about, self._clock())
        self._looked = None
        return self._put(decision)

    def renew(self, epoch: int, holder: str) -> bool:
        """Replace the holder's own last one; if it is gone, find the new holder."""
        return self._replace(lambda found: renewing(found, epoch, holder, self._about, self._clock()))

    def release(self, epoch: int, holder: str) -> None:
        """Leave the Lease without a holder."""
        self._replace(lambda found: releasing(found, epoch, holder, self._clock()))
        self._held = None

    def _found(self) -> Json | None:
        reply = self._api.lease("get", self._about.name)
        return None if reply.nothing else reply.body

    def _replace(self, decide: Callable[[Json | None], PutLease | None]) -> bool:
        """Put what is decided of one's own last Lease, then of the one that is there. False: another holder has it."""
        found = self._held or self._found()
        for _ in range(_TRIES):
            decision = decide(found)
            if self._put(decision):
                return True
            if decision is None:
                return False
            found = self._found()
        raise ApiFailed(
            f"lease {self._about.name} was changed by others {_TRIES} times while it was put: see with "
            f"`kubectl get lease {self._about.name} -o yaml --show-managed-fields` who writes it, and stop that."
        )

    def _put(self, decision: PutLease | None) -> bool:
        self._held = None  # until the API says that it is: an answer may be lost
        if decision is None:
            return False
        reply = self._api.lease(decision.verb, self._about.name, decision.body)
        if reply.nothing or reply.overtaken:
            return False
        self._held = reply.body
        return True


def _anew(epoch: int, holder: str, about: LeaseContent, now: datetime) -> PutLease:
    metadata = {"name": about.name, "labels": {"app.kubernetes.io/name": "headrace"}}
    lease: Json = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    return PutLease("create", _written(lease, epoch, holder, about, now, acquired=True).body)


def _written(found: Json, epoch: int, holder: str, about: LeaseContent, now: datetime, *, acquired: bool) -> PutLease:
    """Return the object with its holder; what others wrote to it stays."""
    body = copy.deepcopy(found)
    annotations = body["metadata"].get("annotations") or {}
    annotations.pop(RELEASED_BY, None)
    body["metadata"]["annotations"] = {**annotations, PIPELINE: about.pipeline}
    spec = body.get("spec") or {}
    times = {"renewTime": _micro(now)} | ({"acquireTime": _micro(now)} if acquired else {})
    body["spec"] = {
        **spec, **times, "holderIdentity": holder, "leaseDurationSeconds": about.seconds, "leaseTransitions": epoch,
    }  # fmt: skip
    return PutLease("update", body)


def _mark(lease: Json) -> tuple[str, str]:
    about = lease.get("metadata") or {}
    return str(about.get("uid", "")), str(about.get("resourceVersion", ""))


def _micro(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
