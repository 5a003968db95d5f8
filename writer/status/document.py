"""The document of `/status` and of `headrace status --json`."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal

from writer.batch.lateness import BOUNDS_S
from writer.core.text import iso
from writer.hooks.outbox import Health
from writer.output.health import health
from writer.output.route_lines import target_order
from writer.sealing.bucket_states import BucketCounts, BucketState
from writer.status.lag import lag_sample
from writer.status.lag_sample import rounded
from writer.status.model import OUTCOMES, Batch, Commit, Totals, View
from writer.status.rate_limit import LimitState, to_json
from writer.status.rates import RATE_WINDOW, Rates, rates

Source = Literal["driver", "lake"]
_NOT_APPLIED = "no driver has given it what was committed for it; a start does"


def document(views: Iterable[View], now: datetime, source: Source = "driver") -> dict[str, Any]:
    """Describe pipelines as JSON values. `source`: the running driver, or the lake without it."""
    return {"at": iso(now), "pipelines": {view.pipeline: _described(view, now, source) for view in views}}


def _described(view: View, now: datetime, source: Source) -> dict[str, Any]:
    lag = lag_sample(view.logs, view.frontier, now)
    found = {
        "source": source,
        "state": view.state,
        "error": view.error,
        "pause": None if view.pause is None else asdict(view.pause),
        "rate_limit": _rate_limit(view.rate_limit, now),
        "scheduling": {"pool": view.pipeline, **view.scheduling.model_dump()},
        "since": iso(view.since),
        "since_seconds": _age(view.since, now),
        "epoch": view.epoch,
        "run": view.run,
        "batch": None if view.batch is None else _batch(view.batch, now),
        "lag": lag.to_json(now),
        "rates": _rates(rates(view, lag, now) if source == "driver" else Rates(RATE_WINDOW)),
        "limits": view.limits,
        "last_commit": _commit(view.commits[0]) if view.commits else None,
        "commit_age_seconds": _age(view.committed_at, now),
        "commits": [_commit(commit) for commit in view.commits],
        "totals": _totals(view.totals, view.since),
        "buckets": view.buckets,
        "event_time_newest": None if view.event_time_newest is None else iso(view.event_time_newest),
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
        "gaps": {
            "count": view.gaps[0],
            "offsets": view.gaps[1],
            "last": None if view.gap_last is None else gap_record(view.gap_last),
        },
        "restarts": view.restarts,
        "targets": _targets(view, now),
        "held_bytes_max": view.held_bytes_max,
        "names_without_table": dict(view.without_table),
        "log_moved": view.log_moved or None,
        "log_cuts": [one.to_dict() for one in view.log_cuts],
        "topics": len(view.incarnations),
        "topic_restarts": view.topic_restarts,
        "hooks": {name: _hook(hook, now) for name, hook in view.hooks.items()},
        "recovery": [dict(decision) for decision in view.recovery],
    }
    return {**found, "health": asdict(health(found))}


def overview(views: Iterable[View], now: datetime) -> dict[str, Any]:
    """Describe the buckets one by one as JSON values."""
    return {
        "at": iso(now),
        "pipelines": {view.pipeline: [_bucket_state(cell) for cell in view.cells] for view in views},
    }


def _bucket_state(cell: BucketState) -> dict[str, Any]:
    return {
        **asdict(cell), "start": None if cell.start is None else iso(cell.start),
        "end": None if cell.end is None else iso(cell.end),
    }  # fmt: skip


def buckets(bucket_counts: BucketCounts, now: datetime) -> dict[str, Any]:
    """Describe how the buckets are as JSON values."""
    mark = bucket_counts.watermark
    held = mark.held_by
    return {
        "at": iso(bucket_counts.counted_at),
        "watermark": None if mark.instant is None else iso(mark.instant),
        "watermark_delay_seconds": _behind(mark.instant, now),
        "held_by": None if held is None else {"topic": held.topic, "partition": held.partition},
        "idle": [{"topic": part.topic, "partition": part.partition} for part in mark.idle],
        "closed_until": None if bucket_counts.closed_until is None else iso(bucket_counts.closed_until),
        "open": bucket_counts.open, "closed": bucket_counts.closed, "reopened": bucket_counts.reopened,
        "next": None if bucket_counts.next is None else {"bucket": bucket_counts.next[0],
        "ends": iso(bucket_counts.next[1])}, "blocked": [{"bucket": bucket, "reason": why} for bucket,
        why in bucket_counts.blocked], "sealed": bucket_counts.sealed, "resealed": bucket_counts.resealed,
        "last": None if bucket_counts.last is None else bucket_counts.last.to_json(),
        "failing": [{"step": step, "reason": why} for step, why in bucket_counts.trouble],
    }  # fmt: skip


def _hook(hook: Health, now: datetime) -> dict[str, Any]:
    return {
        "target": hook.target, "delivered": hook.delivered, "failures": hook.failures, "waiting": hook.waiting,
        "oldest_waiting_seconds": _age(hook.oldest, now), "error": hook.error or None,
    }  # fmt: skip


def gap_record(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a gap as JSON values: its entry of the log, and its number of offsets."""
    return {
        "id": facts["id"], "at": iso(facts["at"]), "cause": facts["cause"], "run": facts["run"],
        "offsets": sum(r["end"] - r["start"] for r in facts["ranges"]), "ranges": facts["ranges"],
    }  # fmt: skip


def _rates(found: Rates) -> dict[str, Any]:
    return {
        "window_seconds": found.window.total_seconds(), "arriving_per_second": rounded(found.arriving_per_s),
        "committed_per_second": rounded(found.committed_per_s), "catch_up_seconds": rounded(found.catch_up_seconds),
    }  # fmt: skip


def _rate_limit(state: LimitState, now: datetime) -> dict[str, Any] | None:
    """Describe the rate limit; None where there is none."""
    known = state.in_force
    if not known.limit and not known.error:
        return None
    begin = state.next_begin
    return {
        **to_json(known.limit), "override": None if known.override is None else asdict(known.override),
        "error": known.error or None, "holds": state.holds, "wait_seconds": rounded(state.wait_seconds),
        "next_batch_in_seconds": None if begin is None else rounded((begin - now).total_seconds()),
    }  # fmt: skip


def _batch(batch: Batch, now: datetime) -> dict[str, Any]:
    return {
        "number": batch.number, "offsets": batch.offsets, "phase": batch.phase,
        "seconds": _age(batch.began, now), "phase_seconds": _age(batch.phase_began, now),
    }  # fmt: skip


def _commit(commit: Commit) -> dict[str, Any]:
    facts = commit.facts
    sums = Totals()
    sums.add(facts)
    return {
        "version": commit.version, "at": iso(commit.at), "run": facts["run"], "batch": facts["batch"],
        "reason": facts["reason"], **{name: sums.records[name] for name in OUTCOMES},
        "late_rows": sums.late_rows, "files": facts["files"],
        "bytes": facts["bytes"], "buckets": facts["buckets"], "seconds": _seconds(commit),
        "began": iso(facts["started"]), "tasks": facts["tasks"],
        "phases": {phase: rounded(spent) for phase, spent in (commit.phases or facts["phases"]).items()},
        "work": facts["work"],
    }  # fmt: skip


def _seconds(commit: Commit) -> float | None:
    spent = [seconds for phase, seconds in commit.phases.items() if phase != "wait"]
    return rounded(sum(spent)) if spent else None


def _targets(view: View, now: datetime) -> list[dict[str, Any]]:
    """Describe the tables of a route: those that are behind first, then by their rows since the start."""
    found = []
    for name, state in view.targets.items():
        sums, waiting = view.totals.targets.get(name, Counter[str]()), state.pending
        found.append(
            {
                "name": name, "location": state.location, **{what: sums[what] for what in ("rows", "bytes", "files")},
                "applied_version": waiting.applied, "waiting_entries": waiting.entries,
                "held_bytes": waiting.held_bytes,
                "behind_seconds": (_age(waiting.since, now) or 0.0) if state.is_behind else None,
                "behind": (state.why or _NOT_APPLIED) if state.is_behind else None,
            }
        )  # fmt: skip
    return sorted(found, key=target_order)


def _totals(totals: Totals, since: datetime) -> dict[str, Any]:
    return {
        "since": iso(since), "commits": dict(totals.commits),
        "records": {name: totals.records[name] for name in OUTCOMES}, "late_rows": totals.late_rows,
        "late_rows_by": totals.late.by_policy, "dead_letters_by_rule": totals.dead_letters_by_rule,
        "filtered_by": {spec: dict(rules) for spec, rules in totals.filtered.items()},
        "value_bytes": totals.value_bytes,
        "files": totals.files, "bytes": totals.bytes,
        "dead_letter_bytes": totals.dead_letter_bytes, "spilled_bytes": totals.spilled_bytes,
        "raw_records": totals.raw_records, "raw_bytes": totals.raw_bytes, "raw_files": totals.raw_files,
        "offsets_without_records": totals.offsets_without_records,
        "step_cpu_seconds": {step: round(seconds, 3) for step, seconds in totals.steps.items()},
    }  # fmt: skip


def _behind(at: datetime | None, now: datetime) -> float | None:
    """Seconds since then; below zero when it is still to come."""
    return None if at is None else rounded((now - at).total_seconds())


def _age(at: datetime | None, now: datetime) -> float | None:
    return None if at is None else rounded(max(0.0, (now - at).total_seconds()))
