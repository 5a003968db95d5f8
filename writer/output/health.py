"""How well a pipeline is, in one word and the reasons: what lists of many pipelines are sorted by."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from writer.core.text import plural, span

Level = Literal["critical", "warning", "ok"]
LEVELS: tuple[Level, ...] = ("critical", "warning", "ok")  # the worst first
HEADROOM_LOW_S, HEADROOM_BAD_S = 24 * 3600, 6 * 3600  # until Kafka's retention takes what waits
FAILED_BAD = 0.01  # of all records since the start
SOURCE_OLD_S = 60  # since Kafka last answered
_TARGET_LATE_S = 900  # as the alert HeadraceTargetBehind has it
_SPARE_S = 60  # a commit takes a while beyond the delay


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
    found = sorted(_reasons(pipeline), key=lambda one: LEVELS.index(one[0]))
    return Health(found[0][0] if found else "ok", tuple(reason for _, reason in found))


def _reasons(pipeline: Mapping[str, Any]) -> Iterator[tuple[Level, str]]:
    lag, records = pipeline["lag"], pipeline["totals"]["records"]
    if pipeline["state"] in ("failed", "unreadable"):
        yield "critical", f"{pipeline['state']}: {pipeline['error']}"
    elif pipeline["state"] in ("stopped", "unknown", "not started"):
        yield "warning", "no driver runs it"
    if pipeline["pause"]:
        yield "warning", "paused"
    if lag["source_age_seconds"] is not None and lag["source_age_seconds"] > SOURCE_OLD_S:
        yield "warning", f"Kafka has not answered for {span(lag['source_age_seconds'])}"
    if lag["headroom_seconds"] is not None and lag["headroom_seconds"] < HEADROOM_LOW_S:
        left_s = lag["headroom_seconds"]
        words = f"takes the oldest in {span(left_s)}" if left_s >= 0 else "is over: records are being lost"
        yield "critical" if left_s < HEADROOM_BAD_S else "warning", f"retention {words}"
    if is_late(lag, pipeline["limits"]):
        yield "warning", f"the oldest record waits {span(lag['seconds'])}"
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
    return "critical" if (target["behind_seconds"] or 0.0) > _TARGET_LATE_S else "warning"


def _of_tables(pipeline: Mapping[str, Any]) -> Iterator[tuple[Level, str]]:
    targets = pipeline.get("targets", ())
    behind = [one for one in targets if one["behind"] is not None]
    if behind:
        worst = max(behind, key=lambda one: one["behind_seconds"] or 0.0)
        level = min((level_of(one) for one in behind), key=LEVELS.index)
        yield (
            level,
            f"{plural(len(behind), 'table')} behind, {worst['name']} for {span(worst['behind_seconds'] or 0.0)}",
        )
    if nameless := sum(pipeline.get("names_without_table", {}).values()):
        yield "warning", f"{plural(nameless, 'name')} without a table"
    seals = pipeline["seals"] or {"blocked": (), "failing": ()}
    if seals["blocked"]:
        yield "warning", f"{plural(len(seals['blocked']), 'bucket')} not sealed"
    for one in seals["failing"]:
        yield "warning", f"{one['step']} fails"
    for name, hook in pipeline.get("hooks", {}).items():
        if hook["error"]:
            yield "warning", f"hook {name} fails"
