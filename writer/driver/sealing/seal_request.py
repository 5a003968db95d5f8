"""Closes and seals buckets at the request of a person, beside the driver or without one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from headrace.writer.clients.kafka import BrokerUnreachable, Cluster
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.files import BucketKey, group_by_bucket
from headrace.writer.core.text import instant
from headrace.writer.driver.sealing.steps import Closer, beside_seals, numbers_now
from headrace.writer.maintenance.compaction.compactor import here
from headrace.writer.sealing.bucket_selection import BucketSelection
from headrace.writer.sealing.idleness import LogEndWatch
from headrace.writer.sealing.manifest import Manifest, Reason, bucket_path
from headrace.writer.sealing.rules import Close, SealBlocked, SealDecision, SealLater, SealNow
from headrace.writer.sealing.sealer import BucketSnapshot, Sealer

_BY_COMMAND: Reason = "command"
# A person waits for the answer of Kafka.
_KAFKA_TIMEOUT_MAX = timedelta(seconds=5)


@dataclass(frozen=True)
class SealRequest:
    """The buckets that a person asks for: those of a selection, or that end by a time, or else all that are due."""

    selection: BucketSelection | None = None
    until: datetime | None = None
    # Also buckets whose records may lie in a gap.
    with_gap: bool = False
    dry_run: bool = False


@dataclass(frozen=True)
class BlockedBucket:
    """A bucket that is not sealed, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class SealResult:
    """What became of the request; in a dry run, what would become of it."""

    closed_until: datetime | None
    manifests: Sequence[Manifest] = ()
    blocked: Sequence[BlockedBucket] = ()
    notes: Sequence[str] = ()
    # Kafka did not say what is due.
    is_kafka_silent: bool = False
    # In a dry run: open buckets would be closed.
    closes_buckets: bool = False


@dataclass(frozen=True)
class _ClosingTime:
    """How far to close buckets, and why; `error` says why Kafka was not asked."""

    until: datetime | None
    reason: Reason = _BY_COMMAND
    error: str = ""


def seal_buckets(
    pipeline: str, config: Config, request: SealRequest, now: datetime, target: str | None = None
) -> SealResult:
    """Close and seal what is asked for. Raises ConfigError, HeadraceError when there is no table, CommitFailed."""
    sealer = Sealer(pipeline, config, target)
    steps = beside_seals(sealer, config.at_target(pipeline, target), here)
    sealer.table.check_exists()
    snapshot = sealer.follow(write=not request.dry_run)
    if request.selection is not None and not request.selection.choose(snapshot.unsealed.buckets):
        return _explain_missing_buckets(sealer, snapshot, request.selection)
    closing = _closing_time(sealer, config, request, snapshot, now)
    if closing.until is not None and closing.until > now:
        raise ConfigError(
            f"{instant(closing.until)} has not come yet: every row until then would be late. Choose an earlier time"
        )
    if closing.until is not None and request.dry_run:
        snapshot = replace(snapshot, closing=closing.until)
    elif closing.until is not None:
        sealer.close(snapshot, closing.until, closing.reason, now)
        snapshot = sealer.follow()
    if "late rows" in steps and not request.dry_run:
        steps["late rows"](sealer, now)
    result = _seal(sealer, snapshot, request, now)
    notes = [f"nothing was closed: {closing.error}"] if closing.error else []
    return replace(
        result,
        notes=[*notes, *result.notes],
        is_kafka_silent=bool(closing.error),
        closes_buckets=snapshot.closed_until != snapshot.table_snapshot.closed_until,
    )


def _closing_time(
    sealer: Sealer, config: Config, request: SealRequest, snapshot: BucketSnapshot, now: datetime
) -> _ClosingTime:
    """Return how far to close buckets: as asked, or else as far as watermark or clock close by now."""
    if request.selection is not None:
        unsealed = snapshot.unsealed.buckets
        ends = [unsealed[bucket].end for bucket in request.selection.choose(unsealed)]
        return _ClosingTime(max((bucket_end for bucket_end in ends if bucket_end is not None), default=None))
    if request.until is not None:
        return _ClosingTime(request.until)
    cluster = Cluster(config.kafka.address, min(config.kafka.request_timeout, _KAFKA_TIMEOUT_MAX))
    try:
        numbers = numbers_now(sealer, cluster)
        closer = Closer(LogEndWatch(cluster, list(numbers)), lambda: numbers)
        _, decision = closer.decide(sealer, now, write=not request.dry_run)
    except BrokerUnreachable as error:
        # Buckets that are closed already can be sealed all the same.
        return _ClosingTime(None, error=str(error))
    if isinstance(decision, Close):
        return _ClosingTime(decision.until, decision.reason)
    return _ClosingTime(None)


def _seal(sealer: Sealer, snapshot: BucketSnapshot, request: SealRequest, now: datetime) -> SealResult:
    states = sealer.due(snapshot, now)
    if request.selection is not None:
        due = {state.bucket: state for state in states}
        # A bucket that does not go by time is never due: only this request closes it.
        states = [due.get(bucket, SealNow(bucket)) for bucket in request.selection.choose(snapshot.unsealed.buckets)]
    ready = [SealNow(state.bucket) for state in states if _is_ready(state, request)]
    remaining = [state for state in states if not _is_ready(state, request)]
    blocked = [state for state in remaining if isinstance(state, SealBlocked)]
    manifests: Sequence[Manifest]
    if request.dry_run:
        manifests, unsound = sealer.build_manifests(snapshot, ready, now)
    else:
        sealer.seal(ready, now)
        manifests = sealer.sealed
        states_after = sealer.due(sealer.follow(), now)
        unsound = [state for state in states_after if isinstance(state, SealBlocked) and SealNow(state.bucket) in ready]
    notes = [
        f"{_bucket_name(sealer, state.bucket)} changed; it is sealed again from {instant(state.due)} on"
        for state in remaining
        if isinstance(state, SealLater)
    ]
    return SealResult(
        snapshot.closed_until,
        tuple(manifests),
        [BlockedBucket(_bucket_name(sealer, state.bucket), state.why) for state in [*blocked, *unsound]],
        notes,
    )


def _is_ready(state: SealDecision, request: SealRequest) -> bool:
    """Return whether a bucket is sealed now: it is due, or the request says so."""
    match state:
        case SealNow():
            return True
        case SealBlocked(by_gap=by_gap):
            return by_gap and request.with_gap
        case SealLater():
            return request.selection is not None


def _explain_missing_buckets(sealer: Sealer, snapshot: BucketSnapshot, selection: BucketSelection) -> SealResult:
    """Return which buckets are sealed already. Raises HeadraceError when there is none."""
    files = sealer.table.bucket_files(snapshot.table_snapshot)
    newest = [sealer.manifests.newest(key) for key in selection.named_among(group_by_bucket(files))]
    manifests = [manifest for manifest in newest if manifest is not None]
    if not manifests:
        raise HeadraceError(f"{sealer.table.location} has no rows in {selection.name}: there is nothing to seal")
    notes = [
        f"{manifest.name} is sealed: manifest {manifest.version} of {instant(manifest.sealed_at)} holds"
        for manifest in manifests
    ]
    return SealResult(snapshot.closed_until, notes=notes)


def _bucket_name(sealer: Sealer, bucket: BucketKey) -> str:
    return bucket_path(sealer.columns, bucket)
