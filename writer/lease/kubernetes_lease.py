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

from headrace.writer.lease.kubernetes_api import Api, ApiFailed, Json, Verb
from headrace.writer.lease.lease import LeaseRecord, parse_time

# Annotations of a Lease.
PIPELINE = "headrace/pipeline"
RELEASED_BY = "headrace/released-by"
# A Lease may change under a renewal: `kubectl label` changes it too.
_TRIES = 5
_PLAIN_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")


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
    if _PLAIN_NAME.fullmatch(pipeline):
        return f"{prefix}-{pipeline}"
    digest = hashlib.sha256(pipeline.encode()).hexdigest()[:8]
    return f"{prefix}-{pipeline.replace('_', '-')}-{digest}"


def parse_record(lease: Json) -> LeaseRecord:
    """Read a Lease; one that another tool made may have anything."""
    metadata = lease.get("metadata") or {}
    spec = lease.get("spec") or {}
    holder = str(spec.get("holderIdentity") or "")
    released_by = str((metadata.get("annotations") or {}).get(RELEASED_BY) or "")
    epoch = int(spec.get("leaseTransitions") or 0)
    taken_at = parse_time(spec.get("acquireTime"))
    return LeaseRecord(epoch, holder or released_by, _mark(lease), released=not holder, taken_at=taken_at)


def decide_take(
    lease: Json | None, looked: LeaseRecord | None, epoch: int, holder: str, content: LeaseContent, now: datetime
) -> PutLease | None:
    """Decide on taking a lease. `looked`: what was judged to be free, where one looked; another one is not."""
    if lease is None:
        return _create(epoch, holder, content, now)
    record = parse_record(lease)
    if record.epoch >= epoch:
        return None
    if looked is not None and looked.mark != record.mark:
        return None
    return _update(lease, epoch, holder, content, now, is_acquired=True)


def decide_renewal(
    lease: Json | None, epoch: int, holder: str, content: LeaseContent, now: datetime
) -> PutLease | None:
    """Decide on a renewal. One that was removed, or set back, is put anew; a higher epoch or another holder has it."""
    if lease is None:
        return _create(epoch, holder, content, now)
    record = parse_record(lease)
    if record.epoch > epoch:
        return None
    if record.epoch == epoch and record.holder != holder:
        return None
    return _update(lease, epoch, holder, content, now, is_acquired=record.epoch < epoch)


def decide_release(lease: Json | None, epoch: int, holder: str, now: datetime) -> PutLease | None:
    """Decide on a release: the holder goes, the epoch stays."""
    if lease is None:
        return None
    record = parse_record(lease)
    if (record.epoch, record.holder) != (epoch, holder):
        return None
    body = copy.deepcopy(lease)
    body["metadata"].setdefault("annotations", {})[RELEASED_BY] = holder
    body["spec"] |= {"holderIdentity": None, "leaseDurationSeconds": 1, "renewTime": _timestamp(now)}
    return PutLease("update", body)


class KubernetesLeases:
    """The lease of one pipeline in the API of a cluster."""

    def __init__(
        self, api: Api, content: LeaseContent, clock: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._api = api
        self._content = content
        self._clock = clock
        # What was read last, and judged by the reader.
        self._looked: LeaseRecord | None = None
        # The Lease as this holder put it last.
        self._own_lease: Json | None = None

    def look(self) -> LeaseRecord | None:
        """Read the Lease. Raises ApiFailed."""
        lease = self._read()
        self._looked = None if lease is None else parse_record(lease)
        return self._looked

    def take(self, epoch: int, holder: str) -> bool:
        """Create the Lease, or replace the one that was read."""
        decision = decide_take(self._read(), self._looked, epoch, holder, self._content, self._clock())
        self._looked = None
        return self._put(decision)

    def renew(self, epoch: int, holder: str) -> bool:
        """Replace the holder's own last one; if it is gone, find the new holder."""
        return self._replace(lambda lease: decide_renewal(lease, epoch, holder, self._content, self._clock()))

    def release(self, epoch: int, holder: str) -> None:
        """Leave the Lease without a holder."""
        self._replace(lambda lease: decide_release(lease, epoch, holder, self._clock()))
        self._own_lease = None

    def _read(self) -> Json | None:
        reply = self._api.lease("get", self._content.name)
        return None if reply.is_missing else reply.body

    def _replace(self, decide: Callable[[Json | None], PutLease | None]) -> bool:
        """Put what is decided of one's own last Lease, then of the one that is there. False: another holder has it."""
        lease = self._own_lease or self._read()
        for _ in range(_TRIES):
            decision = decide(lease)
            if self._put(decision):
                return True
            if decision is None:
                return False
            lease = self._read()
        name = self._content.name
        raise ApiFailed(
            f"lease {name} was changed by others {_TRIES} times while it was put: see with "
            f"`kubectl get lease {name} -o yaml --show-managed-fields` who writes it, and stop that."
        )

    def _put(self, decision: PutLease | None) -> bool:
        # Until the API confirms it: an answer may be lost.
        self._own_lease = None
        if decision is None:
            return False
        reply = self._api.lease(decision.verb, self._content.name, decision.body)
        if reply.is_missing or reply.is_conflict:
            return False
        self._own_lease = reply.body
        return True


def _create(epoch: int, holder: str, content: LeaseContent, now: datetime) -> PutLease:
    lease: Json = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": content.name, "labels": {"app.kubernetes.io/name": "headrace"}},
    }
    return PutLease("create", _update(lease, epoch, holder, content, now, is_acquired=True).body)


def _update(
    lease: Json, epoch: int, holder: str, content: LeaseContent, now: datetime, *, is_acquired: bool
) -> PutLease:
    """Return the object with its holder; what others wrote to it stays."""
    body = copy.deepcopy(lease)
    annotations = body["metadata"].get("annotations") or {}
    annotations.pop(RELEASED_BY, None)
    body["metadata"]["annotations"] = {**annotations, PIPELINE: content.pipeline}
    spec = body.get("spec") or {}
    spec["renewTime"] = _timestamp(now)
    if is_acquired:
        spec["acquireTime"] = _timestamp(now)
    spec["holderIdentity"] = holder
    spec["leaseDurationSeconds"] = content.seconds
    spec["leaseTransitions"] = epoch
    body["spec"] = spec
    return PutLease("update", body)


def _mark(lease: Json) -> tuple[str, str]:
    """Return what changes with each change of a Lease."""
    metadata = lease.get("metadata") or {}
    return str(metadata.get("uid", "")), str(metadata.get("resourceVersion", ""))


def _timestamp(time: datetime) -> str:
    """Return a time as a MicroTime of Kubernetes."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
