"""The document of `/status` and of `headrace status --json`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from headrace.writer.batch.lateness import BOUNDS_S
from headrace.writer.clients.supervisor_record import HaltRecord
from headrace.writer.core.offsets import OffsetRange
from headrace.writer.core.text import iso
from headrace.writer.hooks.outbox import Health
from headrace.writer.output.health import health
from headrace.writer.output.route_lines import target_order
from headrace.writer.schemas.registry_hold import RegistryWait
from headrace.writer.sealing.bucket_states import BucketCounts, ListedBucket
from headrace.writer.status.lag import lag_sample
from headrace.writer.status.lag_sample import round_seconds
from headrace.writer.status.model import OUTCOMES, Batch, Commit, Totals, View
from headrace.writer.status.pause import Pause
from headrace.writer.status.rate_limit import LimitState
from headrace.writer.status.rates import RATE_WINDOW, Rates, rates
from headrace.writer.status.table_facts import TableContents
from headrace.writer.table.pipeline_tables import TargetState

Source = Literal["driver", "lake"]
_NOT_APPLIED = "no driver has given it what was committed for it; a start does"


def document(views: Iterable[View], now: datetime, source: Source = "driver") -> dict[str, Any]:
    """Describe pipelines as JSON values. `source`: the running driver, or the lake without it."""
    return {"at": iso(now), "pipelines": {view.pipeline: _describe_pipeline(view, now, source) for view in views}}


def _describe_pipeline(view: View, now: datetime, source: Source) -> dict[str, Any]:
    lag = lag_sample(view.logs, view.frontier, now)
    status = {
        "source": source,
        "state": view.state,
        "error": view.error,
        "halted": _halt(view.current_halt),
        "lease_wait": None if view.current_lease_wait is None else view.current_lease_wait.to_json(),
        "pause": None if view.pause is None else _pause(view.pause),
        "rate_limit": _rate_limit(view.rate_limit, now),
        # Without a driver it is not looked at.
        "retention_waits": None if source == "lake" else [wait.to_json() for wait in view.retention_waits.values()],
        "scheduling": {"pool": view.pipeline, **view.scheduling.model_dump()},
        "since": iso(view.since),
        "since_seconds": _age(view.since, now),
        "epoch": view.epoch,
        "epoch_began": _iso(view.epoch_began),
        "run": view.run,
        "batch": None if view.batch is None else _batch(view.batch, now),
        "registry_wait": None if view.registry_wait is None else _registry_wait(view.registry_wait),
        "kafka_error": view.kafka_error or None,
        "lag": lag.to_json(now),
        "rates": _rates(rates(view, lag, now) if source == "driver" else Rates(RATE_WINDOW)),
        "limits": view.limits,
        "last_commit": _commit(view.commits[0]) if view.commits else None,
        "commit_age_seconds": _age(view.committed_at, now),
        "commits": [_commit(commit) for commit in view.commits],
        "totals": _totals(view.totals, view.since),
        "buckets": view.buckets,
        "event_time_newest": _iso(view.event_time_newest),
        "event_time_newest_age_seconds": _behind(view.event_time_newest, now),
        "seals": None if view.bucket_counts is None else buckets(view.bucket_counts, now),
        "lateness": {
            "bounds_seconds": list(BOUNDS_S),
            "behind": view.totals.late.behind,
            "beyond": view.totals.late.beyond,
        },
        "schemas": dict(view.schemas),
        "offset_commit_failures": view.offset_commit_failures,
        "clock_steps": view.clock_steps,
        "table": None if view.contents is None else _contents(view.contents, now),
        "gaps": _gaps(view, now),
        "restarts": view.restarts,
        "targets": _targets(view, now),
        "max_held_bytes": view.max_held_bytes,
        "names_without_table": dict(view.without_table),
        "log_moved": view.log_moved or None,
        "log_cuts": [offset_range.to_json() for offset_range in view.log_cuts],
        "topics": len(view.incarnations),
        "topic_restarts": view.topic_restarts,
        "hooks": {name: _hook(hook, now) for name, hook in view.hooks.items()},
        "recovery": [dict(decision) for decision in view.recovery],
    }
    return {**status, "health": asdict(health(status))}


def _pause(pause: Pause) -> dict[str, str]:
    return {**asdict(pause), "text": pause.text}


def _halt(halt: HaltRecord | None) -> dict[str, Any] | None:
    return None if halt is None else {"since": iso(halt.since), "reason": halt.reason}


def overview(views: Iterable[View], now: datetime) -> dict[str, Any]:
    """Describe the buckets one by one as JSON values."""
    return {
        "at": iso(now),
        "pipelines": {view.pipeline: [_listed_bucket(bucket) for bucket in view.listed_buckets] for view in views},
    }


def _listed_bucket(bucket: ListedBucket) -> dict[str, Any]:
    return {
        "bucket": bucket.name,
        "start": _iso(bucket.start),
        "end": _iso(bucket.end),
        "state": bucket.state.name,
        "rows": bucket.rows,
        "late": bucket.late,
        "version": bucket.version,
        "why": bucket.state.why,
    }


def buckets(bucket_counts: BucketCounts, now: datetime) -> dict[str, Any]:
    """Describe the state of the buckets as JSON values."""
    mark = bucket_counts.watermark
    slowest_part = None
    if mark.held_by is not None:
        slowest_part = {"topic": mark.held_by.topic, "partition": mark.held_by.partition}
    next_bucket = None
    if bucket_counts.next is not None:
        bucket, bucket_end = bucket_counts.next
        next_bucket = {"bucket": bucket, "ends": iso(bucket_end)}
    return {
        "at": iso(bucket_counts.counted_at),
        "watermark": _iso(mark.instant),
        "watermark_delay_seconds": _behind(mark.instant, now),
        "held_by": slowest_part,
        "idle": [{"topic": part.topic, "partition": part.partition} for part in mark.idle],
        "closed_until": _iso(bucket_counts.closed_until),
        "open": bucket_counts.open,
        "closed": bucket_counts.closed,
        "reopened": bucket_counts.reopened,
        "next": next_bucket,
        "blocked": [{"bucket": bucket, "reason": reason} for bucket, reason in bucket_counts.blocked],
        "sealed": bucket_counts.sealed,
        "resealed": bucket_counts.resealed,
        "last": None if bucket_counts.last is None else bucket_counts.last.to_json(),
        "failing": [{"step": step, "reason": reason} for step, reason in bucket_counts.trouble],
    }


def _hook(hook: Health, now: datetime) -> dict[str, Any]:
    return {
        "target": hook.target,
        "delivered": hook.delivered,
        "delivered_since_start": hook.delivered_since_start,
        "failures": hook.failures,
        "waiting": hook.waiting,
        "oldest_waiting_seconds": _age(hook.oldest, now),
        "error": hook.error or None,
    }


def _registry_wait(wait: RegistryWait) -> dict[str, Any]:
    return {"schemas": list(wait.names), "until": _iso(wait.until), "text": wait.text}


def _contents(contents: TableContents, now: datetime) -> dict[str, Any]:
    return {
        "at": iso(contents.counted_at),
        "age_seconds": _age(contents.counted_at, now),
        "rows": contents.rows,
        "files": contents.files,
        "bytes": contents.bytes,
        "dead_letters": contents.dead_letters,
        "lost": contents.lost or None,
    }


def _gaps(view: View, now: datetime) -> dict[str, Any]:
    """Describe the open gaps, and the newest of them; all is null while the table was not read."""
    gaps = view.gaps
    if gaps is None:
        return {"at": None, "age_seconds": None, "count": None, "offsets": None, "in_kafka": None, "last": None}
    ends = view.logs.samples[-1].ends if view.logs.samples else {}
    newest = gaps.records[-1].opened if gaps.records else None
    last = None
    if gaps.records and newest is not None:
        last = {
            "id": gaps.records[-1].id,
            "at": iso(newest.opened_at),
            "cause": newest.cause,
            "offsets": gaps.records[-1].offsets,
            "ranges": [offset_range.to_json() for offset_range in newest.ranges],
        }
    return {
        "at": _iso(gaps.read_at),
        "age_seconds": _age(gaps.read_at, now),
        "count": gaps.open,
        "offsets": gaps.offsets,
        "in_kafka": gaps.offsets_in_kafka(view.incarnations, view.logs.starts, ends),
        "last": last,
    }


def gap_record(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a gap as JSON values: its entry of the log, and its number of offsets."""
    return {
        "id": facts["id"],
        "at": iso(facts["at"]),
        "cause": facts["cause"],
        "run": facts["run"],
        "offsets": sum(OffsetRange.from_json(account).count for account in facts["ranges"]),
        "ranges": facts["ranges"],
    }


def _rates(pipeline_rates: Rates) -> dict[str, Any]:
    return {
        "window_seconds": pipeline_rates.window.total_seconds(),
        "arriving_per_second": round_seconds(pipeline_rates.arriving_per_s),
        "committed_per_second": round_seconds(pipeline_rates.committed_per_s),
        "catch_up_seconds": round_seconds(pipeline_rates.catch_up_seconds),
    }


def _rate_limit(state: LimitState, now: datetime) -> dict[str, Any] | None:
    """Describe the rate limit; None: there is none."""
    effective = state.in_force
    if not effective.limit and not effective.error:
        return None
    next_batch_in_s = None
    if state.next_begin is not None:
        next_batch_in_s = round_seconds((state.next_begin - now).total_seconds())
    return {
        **effective.to_json(),
        "holds": state.holds,
        "wait_seconds": round_seconds(state.wait_seconds),
        "next_batch_in_seconds": next_batch_in_s,
    }


def _batch(batch: Batch, now: datetime) -> dict[str, Any]:
    return {
        "number": batch.number,
        "offsets": batch.offsets,
        "phase": batch.phase,
        "seconds": _age(batch.began, now),
        "phase_seconds": _age(batch.phase_began, now),
    }


def _commit(commit: Commit) -> dict[str, Any]:
    facts = commit.facts
    sums = Totals()
    sums.add(facts)
    phases = commit.phases or facts["phases"]
    return {
        "version": commit.version,
        "at": iso(commit.at),
        "run": facts["run"],
        "batch": facts["batch"],
        "reason": facts["reason"],
        "offsets": commit.offsets,
        **{name: sums.records[name] for name in OUTCOMES},
        "late_rows": sums.late_rows,
        "files": facts["files"],
        "bytes": facts["bytes"],
        "buckets": facts["buckets"],
        "seconds": _seconds(commit),
        "began": iso(facts["started"]),
        "tasks": facts["tasks"],
        "phases": {phase: round_seconds(seconds) for phase, seconds in phases.items()},
        "work": facts["work"],
    }


def _seconds(commit: Commit) -> float | None:
    """Return the wall seconds of a commit without its wait; None: it is of another driver."""
    seconds = [phase_s for phase, phase_s in commit.phases.items() if phase != "wait"]
    return round_seconds(sum(seconds)) if seconds else None


def _targets(view: View, now: datetime) -> list[dict[str, Any]]:
    """Describe the tables of a route: those that are behind first, then by their rows since the start."""
    targets = [
        _target(name, state, view.totals.targets.get(name, Counter()), now) for name, state in view.targets.items()
    ]
    return sorted(targets, key=target_order)


def _target(name: str, state: TargetState, sums: Counter[str], now: datetime) -> dict[str, Any]:
    behind_s = None
    reason = None
    if state.is_behind:
        behind_s = _age(state.pending.since, now) or 0.0
        reason = state.why or _NOT_APPLIED
    return {
        "name": name,
        "location": state.location,
        **{key: sums[key] for key in ("rows", "bytes", "files")},
        "applied_version": state.pending.applied,
        "waiting_entries": state.pending.entries,
        "held_bytes": state.pending.held_bytes,
        "behind_seconds": behind_s,
        "behind": reason,
    }


def _totals(totals: Totals, since: datetime) -> dict[str, Any]:
    return {
        "since": iso(since),
        "commits": dict(totals.commits),
        "records": {name: totals.records[name] for name in OUTCOMES},
        "late_rows": totals.late_rows,
        "late_rows_by": totals.late.by_policy,
        "dead_letters_by_rule": totals.dead_letters_by_rule,
        "filtered_by": {spec: dict(rules) for spec, rules in totals.filtered.items()},
        "unfit_members": dict(totals.unfit_members),
        "value_bytes": totals.value_bytes,
        "files": totals.files,
        "bytes": totals.bytes,
        "dead_letter_bytes": totals.dead_letter_bytes,
        "spilled_bytes": totals.spilled_bytes,
        "raw_records": totals.raw_records,
        "raw_bytes": totals.raw_bytes,
        "raw_files": totals.raw_files,
        "offsets_without_records": totals.offsets_without_records,
        "step_cpu_seconds": {step: round(seconds, 3) for step, seconds in totals.steps.items()},
    }


def _iso(time: datetime | None) -> str | None:
    return None if time is None else iso(time)


def _behind(time: datetime | None, now: datetime) -> float | None:
    """Return the seconds since an instant; below zero if it is still to come."""
    return None if time is None else round_seconds((now - time).total_seconds())


def _age(time: datetime | None, now: datetime) -> float | None:
    return None if time is None else round_seconds(max(0.0, (now - time).total_seconds()))
