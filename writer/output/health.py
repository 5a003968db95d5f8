"""How well a pipeline is, in one word and the reasons: what lists of many pipelines are sorted by."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from headrace.writer.core.text import instant, plural, span

Level = Literal["critical", "warning", "ok"]
# The worst comes first.
LEVELS: tuple[Level, ...] = ("critical", "warning", "ok")
# How long until Kafka removes what waits, by its retention.
HEADROOM_LOW_S = 24 * 3600
HEADROOM_BAD_S = 6 * 3600
# The share of all records since the start.
FAILED_BAD = 0.01
# Seconds since Kafka last answered.
SOURCE_OLD_S = 60
# The alert HeadraceTargetBehind has the same limit.
_TARGET_LATE_S = 900
# A commit takes a while beyond the delay.
_SPARE_S = 60


@dataclass(frozen=True)
class Health:
    """The worst level, and every reason, the worst first."""

    level: Level
    reasons: tuple[str, ...]


def is_late(lag: Mapping[str, Any], limits: Mapping[str, Any]) -> bool:
    """Return whether the oldest record waits longer than two commits take: seconds beyond twice the delay."""
    return (lag["seconds"] or 0) > 2 * (limits.get("delay_max_seconds") or 600) + _SPARE_S


def failed_records(totals: Mapping[str, Any]) -> int:
    """Count dead letters and quarantined records, without those that are dead letters by a rule."""
    records = totals["records"]
    return int(records["dead_letters"] + records["quarantined"] - totals.get("dead_letters_by_rule", 0))


def health(pipeline: Mapping[str, Any]) -> Health:
    """Judge a pipeline by its part of `/status`; keys that an older release does not have count as empty."""
    reasons = sorted(_reasons(pipeline), key=lambda reason: LEVELS.index(reason[0]))
    level: Level = "ok"
    if reasons:
        level, _ = reasons[0]
    return Health(level, tuple(reason for _, reason in reasons))


def _reasons(pipeline: Mapping[str, Any]) -> Iterator[tuple[Level, str]]:
    lag = pipeline["lag"]
    records = pipeline["totals"]["records"]
    if pipeline.get("halted"):
        halted = pipeline["halted"]
        yield "critical", f"HALTED since {instant(halted['since'])}: {halted['reason']}"
    elif pipeline.get("lease_wait"):
        lease_wait = pipeline["lease_wait"]
        yield "warning", f"waits since {instant(lease_wait['since'])}: {lease_wait['reason']}"
    elif pipeline["state"] in ("failed", "unreadable"):
        yield "critical", f"{pipeline['state']}: {pipeline['error']}"
    elif pipeline["state"] in ("stopped", "unknown", "not started"):
        yield "warning", "no driver runs it"
    if (pipeline.get("table") or {}).get("lost"):
        yield "critical", pipeline["table"]["lost"].removesuffix(".")
    if pipeline["pause"]:
        yield "warning", "paused"
    if pipeline.get("retention_waits"):
        yield "warning", "a shorter retention waits for `headrace retention --yes`"
    # One that failed, was stopped or waits for its lease asks Kafka nothing, and that is told.
    is_asking = pipeline["state"] not in ("failed", "stopped", "waiting", "unreadable")
    if is_asking and (lag["source_age_seconds"] or 0) > SOURCE_OLD_S:
        reason = f": {pipeline['kafka_error']}" if pipeline.get("kafka_error") else ""
        yield "warning", f"Kafka has not answered for {span(lag['source_age_seconds'])}{reason}"
    elif (
        is_asking and lag["at"] is None and pipeline["source"] == "driver" and pipeline["since_seconds"] > SOURCE_OLD_S
    ):
        reason = f": {pipeline['kafka_error']}" if pipeline.get("kafka_error") else ""
        yield "warning", f"Kafka has not answered yet{reason}"
    elif is_asking and pipeline["source"] == "lake" and lag["offsets"] is None:
        yield "warning", f"lag not known: {pipeline['error'] or 'Kafka named no partition'}"
    if lag["headroom_seconds"] is not None and lag["headroom_seconds"] < HEADROOM_LOW_S:
        headroom_s = lag["headroom_seconds"]
        level: Level = "critical" if headroom_s < HEADROOM_BAD_S else "warning"
        if headroom_s < 0:
            yield level, "retention is over: records are being lost"
        else:
            yield level, f"retention takes the oldest in {span(headroom_s)}"
    if is_late(lag, pipeline["limits"]):
        yield "warning", f"the oldest record waits {span(lag['seconds'])}"
    if pipeline.get("registry_wait"):
        yield "warning", f"the batch {pipeline['registry_wait']['text']}"
    yield from _of_tables(pipeline)
    failed = failed_records(pipeline["totals"])
    if failed > FAILED_BAD * records["read"]:
        yield "warning", f"{failed / max(1, records['read']):.1%} dead letters"
    if pipeline["gaps"]["count"]:
        yield "warning", plural(pipeline["gaps"]["count"], "open gap")


def level_of(target: Mapping[str, Any]) -> Level:
    """Judge a table of a route by its part of `/status`."""
    if target["behind"] is None:
        return "ok"
    if (target["behind_seconds"] or 0.0) > _TARGET_LATE_S:
        return "critical"
    return "warning"


def _of_tables(pipeline: Mapping[str, Any]) -> Iterator[tuple[Level, str]]:
    targets = pipeline.get("targets", ())
    behind = [target for target in targets if target["behind"] is not None]
    if behind:
        worst = max(behind, key=lambda target: target["behind_seconds"] or 0.0)
        level = min((level_of(target) for target in behind), key=LEVELS.index)
        yield (
            level,
            f"{plural(len(behind), 'table')} behind, {worst['name']} for {span(worst['behind_seconds'] or 0.0)}",
        )
    if nameless := sum(pipeline.get("names_without_table", {}).values()):
        yield "warning", f"{plural(nameless, 'name')} without a table"
    seals = pipeline["seals"] or {"blocked": (), "failing": ()}
    if seals["blocked"]:
        yield "warning", f"{plural(len(seals['blocked']), 'bucket')} blocked"
    for target in seals["failing"]:
        yield "warning", f"{target['step']} fails"
    for name, hook in pipeline.get("hooks", {}).items():
        if hook["error"]:
            yield "warning", f"hook {name} fails"
