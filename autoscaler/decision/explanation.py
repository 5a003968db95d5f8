"""Explains a decision: its facts, the arithmetic line by line, the decision, and what blocked another."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, assert_never

from autoscaler.decision.capacity import Load, batch_worth, ranges_max
from autoscaler.decision.decide import Blocked, Decision, DecisionTerms, Hold, ScaleDown, ScaleUp, Stay, Wait, carried
from autoscaler.decision.policy import Policy
from autoscaler.decision.symptoms import Symptom
from writer.core.text import instant, plural


def verdict(decision: Decision) -> tuple[str, str]:
    """Return the verdict as one word, and as a sentence."""
    n = decision.executors
    stay = f"{plural(n, 'executor')} {'stays' if n == 1 else 'stay'}"
    match decision:
        case Hold(why=Symptom(kind="not_scalable", says=says)):
            return "hold", f"{says}."
        case Hold(why=symptom):
            return "hold", f"{stay}: {symptom.says}."
        case Stay(sums=sums):
            return "stay", f"{stay}: {_share(sums.used_up)} of the limit is wanted, and {_stay(sums)}."
        case Blocked(to=to, by=by) if to == n:
            return "blocked", f"{stay}; that is not enough, and more would not help: {by.says}."
        case Blocked(to=to, by=by):
            word = "more" if to > n else "fewer"
            return "blocked", f"{stay}; {to} would be wanted, but {word} would not help: {by.says}."
        case Wait(to=to, until=until):
            why = "what was asked for must show first" if to > n else "fewer must have been enough throughout"
            return "wait", f"{stay} until {until:%H:%M:%S}, then {to}: {why}."
        case ScaleUp(before=before):
            return "up", f"{_become(before, n)}, at once."
        case ScaleDown(before=before):
            return "down", f"{_become(before, n)}, at the end of the batch: the youngest go, one by one."
        case _:
            assert_never(decision)


def _become(before: int, after: int) -> str:
    return f"{plural(before, 'executor')} {'becomes' if before == 1 else 'become'} {after:,}"


def _stay(sums: DecisionTerms) -> str:
    if sums.used_down > 1:
        return f"fewer would be too few ({_share(sums.used_down)} at utilization_min)"
    return "no other number is better" if not sums.bound_by else f"{' and '.join(sums.bound_by)} allows no other"


def to_dict(decision: Decision, now: datetime) -> dict[str, Any]:
    """Describe a decision as JSON values, its arithmetic included."""
    word, sentence = verdict(decision)
    document: dict[str, Any] = {"at": now.isoformat(), "verdict": word, "why": sentence}
    document["executors"] = decision.executors
    if isinstance(decision, Blocked | Wait):
        document["wanted"] = decision.to
    if isinstance(decision, ScaleUp | ScaleDown):
        document["before"] = decision.before
    if isinstance(decision, Wait):
        document["until"] = decision.until.isoformat()
    document["symptoms"] = [asdict(one) for one in decision.symptoms]
    document["sums"] = None if isinstance(decision, Hold) else _sums(decision.sums)
    return document


def _sums(sums: DecisionTerms) -> dict[str, Any]:
    around = sorted({max(1, (sums.least or sums.want) - 1), sums.least or sums.want, sums.want})
    return {
        "pipelines": [
            {
                "name": one.pipeline.name, "rate": asdict(one.rate), "need": asdict(one.need),
                "ranges_max": ranges_max(one.pipeline), "records_max": one.pipeline.records_max,
                "delay_max_s": one.pipeline.delay_max_s,
            }
            for one in sums.loads
        ],
        "slots_each": sums.slots_each, "start_s": sums.start_s, "growth": asdict(sums.growth),
        "used": {"up": sums.used_up, "target": sums.used_target, "down": sums.used_down},
        "least": sums.least, "want": sums.want, "bound_by": list(sums.bound_by),
        "ceilings": [asdict(one) for one in sums.ceilings], "floors": [asdict(one) for one in sums.floors],
        "carried_per_s": {str(n): carried(sums, n) for n in around},
    }  # fmt: skip


def lines(policy: Policy, decision: Decision, now: datetime) -> list[str]:
    """Write a decision as lines for a person."""
    word, sentence = verdict(decision)
    page = [f"{instant(now)}  {word}: {sentence}"]
    if not isinstance(decision, Hold):
        for load in decision.sums.loads:
            page += ["", *_pipeline(policy, decision.sums, load)]
        page += ["", *_together(policy, decision)]
    for one in decision.symptoms:
        page += ["", f"{one.kind} ({one.effect.replace('_', ' ')}): {one.says}.", f"  {one.advice}"]
    return page


def _pipeline(policy: Policy, sums: DecisionTerms, load: Load) -> list[str]:
    one, seen, asked = load.pipeline, load.rate, load.need
    last = one.batches[-1]
    behind = asked.backlog / asked.catch_up_duration_s
    uncapped = asked.arriving / policy.utilization_target + behind + asked.meanwhile
    rows = {
        "arriving": f"{asked.arriving:,.0f}/s, the higher mean of the window and of {policy.short_window_s:.0f} s",
        "lag": f"{asked.lag_offsets:,} offsets, {asked.backlog:,.0f} beyond what waits in good order (max_delay "
        f"{one.delay_max_s:.0f} s and a batch of {seen.seconds:.0f} s); late by {asked.late_s:.0f} s",
        "batches": f"{seen.batches} in the window, one every {seen.interval_s:.0f} s, of {seen.seconds:.1f} s; "
        f"{seen.overhead_s:.1f} s of it whatever the rows",
        "a slot": f"{seen.per_slot_per_s:,.0f}/s = rows / (task seconds x slots that work all the time); in the last "
        f"batch {batch_worth(last):.1f} of {last.slots}, as {last.ranges} ranges go in waves",
        "needed": f"{uncapped:,.0f}/s = {asked.arriving:,.0f} / utilization_target "
        f"{policy.utilization_target:g} + backlog {behind:,.0f}/s in {asked.catch_up_duration_s:.0f} s + "
        f"{asked.meanwhile:,.0f}/s that piles up in "
        f"the {sums.start_s:.0f} s executors take to come",
        "more above": f"{asked.up:,.0f}/s = {asked.arriving:,.0f} / utilization_max "
        f"{policy.utilization_max:g} + backlog",
        "fewer below": f"{asked.down:,.0f}/s = {asked.arriving:,.0f} / utilization_min "
        f"{policy.utilization_min:g} + the rest of needed",
        "rate limit": ""
        if one.rate_limit_per_s is None
        else f"{one.rate_limit_per_s:,.0f}/s: no more than that is asked for, whatever would be needed",
        "of use": f"{ranges_max(one)} slots: as many ranges or files has a full batch",
    }
    return [one.name, *(f"  {label:<11} {text}" for label, text in rows.items() if text)]


def _together(policy: Policy, decision: Stay | Blocked | Wait | ScaleUp | ScaleDown) -> list[str]:
    sums = decision.sums
    have = decision.before if isinstance(decision, ScaleUp | ScaleDown) else decision.executors
    page = [f"executors of {sums.slots_each} slots; an added slot brings {sums.growth.yield_:.0%} of one that is there"]
    numbers = sorted({have, sums.want, *([sums.least] if sums.least is not None else [])})
    for n in numbers:
        each = ", ".join(f"{name} {per_s:,.0f}/s" for name, per_s in carried(sums, n).items())
        page.append(f"  {n:>4} carry   {each or 'nothing is asked of them'}")
    limits = ", ".join(f"{one.name} {one.executors}" for one in (*sums.floors, *sums.ceilings))
    decides = f"{' and '.join(sums.bound_by)} decides" if sums.bound_by else "none decides"
    rows = {
        "used now": f"{_share(sums.used_up)} at utilization_max (over 100 %: more), {_share(sums.used_down)} at "
        "utilization_min (over 100 %: not fewer)",
        "least": f"{sums.least if sums.least is not None else 'no number'} that carries what is needed",
        "limits": f"{limits}; {decides}",
        "wanted": str(sums.want),
    }
    page += [f"  {label:<11} {text}" for label, text in rows.items()]
    if policy.cost_per_executor_hour:
        page.append(f"  cost        {sums.want * policy.cost_per_executor_hour:,.2f} an hour")
    return page


def _share(value: float) -> str:
    return "more than a hundred times" if value > 100 else f"{value:.0%}"  # noqa: PLR2004
