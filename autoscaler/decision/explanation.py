"""Explains a decision: its facts, the arithmetic line by line, the decision, and what blocked another."""

from dataclasses import asdict
from datetime import datetime
from typing import Any, assert_never

from headrace.autoscaler.decision.capacity import Load, batch_busy_slots, ranges_max
from headrace.autoscaler.decision.decide import (
    Blocked,
    Decision,
    DecisionTerms,
    Hold,
    ScaleDown,
    ScaleUp,
    Stay,
    Wait,
    capacities,
)
from headrace.autoscaler.decision.policy import Policy
from headrace.autoscaler.decision.symptoms import Symptom
from headrace.writer.core.text import instant, iso, plural

# A larger share is not worth its digits.
_SHARE_MAX = 100


def verdict(decision: Decision) -> tuple[str, str]:
    """Return the verdict as one word, and as a sentence."""
    executors = decision.executors
    stay = f"{plural(executors, 'executor')} {'stays' if executors == 1 else 'stay'}"
    match decision:
        case Hold(cause=Symptom(kind="not_scalable", says=says)):
            return "hold", f"{says}."
        case Hold(cause=cause):
            return "hold", f"{stay}: {cause.says}."
        case Stay(terms=terms):
            return "stay", f"{stay}: {_percent(terms.used_up)} of the limit is wanted, and {_reason_to_stay(terms)}."
        case Blocked(wanted=wanted, cause=cause) if wanted == executors:
            return "blocked", f"{stay}; that is not enough, and more would not help: {cause.says}."
        case Blocked(wanted=wanted, cause=cause):
            word = "more" if wanted > executors else "fewer"
            return "blocked", f"{stay}; {wanted} would be wanted, but {word} would not help: {cause.says}."
        case Wait(wanted=wanted, until=until):
            why = "fewer must have been enough throughout"
            if wanted > executors:
                why = "what was asked for must show first"
            return "wait", f"{stay} until {until:%H:%M:%S}, then {wanted}: {why}."
        case ScaleUp(before=before):
            return "up", f"{_change_sentence(before, executors)}, at once."
        case ScaleDown(before=before):
            change = _change_sentence(before, executors)
            return "down", f"{change}, at the end of the batch: the youngest go, one by one."
        case _:
            assert_never(decision)


def _change_sentence(before: int, after: int) -> str:
    return f"{plural(before, 'executor')} {'becomes' if before == 1 else 'become'} {after:,}"


def _reason_to_stay(terms: DecisionTerms) -> str:
    if terms.used_down > 1:
        return f"fewer would be too few ({_percent(terms.used_down)} at min_utilization)"
    if terms.bound_by:
        return f"{' and '.join(terms.bound_by)} allows no other"
    return "no other number is better"


def to_dict(decision: Decision, now: datetime) -> dict[str, Any]:
    """Describe a decision as JSON values, its arithmetic included."""
    word, sentence = verdict(decision)
    document: dict[str, Any] = {"at": iso(now), "verdict": word, "why": sentence}
    document["executors"] = decision.executors
    if isinstance(decision, Blocked | Wait):
        document["wanted"] = decision.wanted
    if isinstance(decision, ScaleUp | ScaleDown):
        document["before"] = decision.before
    if isinstance(decision, Wait):
        document["until"] = iso(decision.until)
    document["symptoms"] = [asdict(symptom) for symptom in decision.symptoms]
    document["sums"] = None
    if not isinstance(decision, Hold):
        document["sums"] = _terms_document(decision.terms)
    return document


def _terms_document(terms: DecisionTerms) -> dict[str, Any]:
    numbers = sorted({max(1, terms.needed - 1), terms.needed, terms.wanted})
    return {
        "pipelines": [_load_document(load) for load in terms.loads],
        "slots_each": terms.slots_each,
        "start_s": terms.start_s,
        "growth": asdict(terms.growth),
        "used": {"up": terms.used_up, "target": terms.used_target, "down": terms.used_down},
        "least": terms.least,
        "want": terms.wanted,
        "bound_by": list(terms.bound_by),
        "ceilings": [asdict(bound) for bound in terms.ceilings],
        "floors": [asdict(bound) for bound in terms.floors],
        "carried_per_s": {str(executors): capacities(terms, executors) for executors in numbers},
    }


def _load_document(load: Load) -> dict[str, Any]:
    return {
        "name": load.pipeline.name,
        "rate": asdict(load.rate),
        "need": asdict(load.need),
        "ranges_max": ranges_max(load.pipeline),
        "offsets_max": load.pipeline.offsets_max,
        "delay_max_s": load.pipeline.delay_max_s,
    }


def lines(policy: Policy, decision: Decision, now: datetime) -> list[str]:
    """Write a decision as lines for a person."""
    word, sentence = verdict(decision)
    page = [f"{instant(now)}  {word}: {sentence}"]
    if not isinstance(decision, Hold):
        for load in decision.terms.loads:
            page += ["", *_pipeline_lines(policy, decision.terms, load)]
        page += ["", *_executor_lines(policy, decision)]
    for symptom in decision.symptoms:
        effect = symptom.effect.replace("_", " ")
        page += ["", f"{symptom.kind} ({effect}): {symptom.says}.", f"  {symptom.advice}"]
    return page


def _pipeline_lines(policy: Policy, terms: DecisionTerms, load: Load) -> list[str]:
    pipeline = load.pipeline
    rate = load.rate
    need = load.need
    last_batch = pipeline.batches[-1]
    backlog_rate = need.backlog / need.catch_up_duration_s
    uncapped = need.arriving / policy.utilization_target + backlog_rate + need.meanwhile
    arriving = f"{need.arriving:,.0f}"
    rows = {
        "arriving": f"{arriving}/s, the higher mean of the window and of {policy.short_window_s:.0f} s",
        "lag": f"{need.lag_offsets:,} offsets, {need.backlog:,.0f} beyond what waits in good order (max_delay "
        f"{pipeline.delay_max_s:.0f} s and a batch of {rate.seconds:.0f} s); late by {need.late_s:.0f} s",
        "batches": f"{rate.batches} in the window, one every {rate.interval_s:.0f} s, of {rate.seconds:.1f} s; "
        f"{rate.overhead_s:.1f} s of it whatever the offsets",
        "a slot": f"{rate.per_slot_per_s:,.0f}/s = offsets / (task seconds x slots that work all the time); in the "
        f"last batch {batch_busy_slots(last_batch):.1f} of {last_batch.slots}, as {last_batch.ranges} ranges go in "
        "waves",
        "needed": f"{uncapped:,.0f}/s = {arriving} / utilization_target {policy.utilization_target:g} + backlog "
        f"{backlog_rate:,.0f}/s in {need.catch_up_duration_s:.0f} s + {need.meanwhile:,.0f}/s that piles up in the "
        f"{terms.start_s:.0f} s executors take to come",
        "more above": f"{need.up:,.0f}/s = {arriving} / max_utilization {policy.max_utilization:g} + backlog",
        "fewer below": f"{need.down:,.0f}/s = {arriving} / min_utilization {policy.min_utilization:g} + the rest of "
        "needed",
    }
    if pipeline.rate_limit_per_s is not None:
        limit = f"{pipeline.rate_limit_per_s:,.0f}/s"
        rows["rate limit"] = f"{limit}: no more than that is asked for, whatever would be needed"
    rows["of use"] = f"{ranges_max(pipeline)} slots: as many ranges or files has a full batch"
    return [pipeline.name, *_row_lines(rows)]


def _executor_lines(policy: Policy, decision: Stay | Blocked | Wait | ScaleUp | ScaleDown) -> list[str]:
    terms = decision.terms
    desired = decision.before if isinstance(decision, ScaleUp | ScaleDown) else decision.executors
    growth = f"{terms.growth.yield_:.0%}"
    page = [f"executors of {terms.slots_each} slots; an added slot brings {growth} of one that is there"]
    numbers = {desired, terms.wanted}
    if terms.least is not None:
        numbers.add(terms.least)
    for executors in sorted(numbers):
        rates = ", ".join(f"{name} {per_s:,.0f}/s" for name, per_s in capacities(terms, executors).items())
        page.append(f"  {executors:>4} carry   {rates or 'nothing is asked of them'}")
    limits = ", ".join(f"{bound.name} {bound.executors}" for bound in (*terms.floors, *terms.ceilings))
    bound_by = " and ".join(terms.bound_by) or "none"
    least = "no number" if terms.least is None else str(terms.least)
    page += _row_lines(
        {
            "used now": f"{_percent(terms.used_up)} at max_utilization (over 100 %: more), "
            f"{_percent(terms.used_down)} at min_utilization (over 100 %: not fewer)",
            "least": f"{least} that carries what is needed",
            "limits": f"{limits}; {bound_by} decides",
            "wanted": str(terms.wanted),
        }
    )
    if policy.cost_per_executor_hour:
        page.append(f"  cost        {terms.wanted * policy.cost_per_executor_hour:,.2f} an hour")
    return page


def _row_lines(rows: dict[str, str]) -> list[str]:
    return [f"  {label:<11} {text}" for label, text in rows.items()]


def _percent(share: float) -> str:
    if share > _SHARE_MAX:
        return "more than a hundred times"
    return f"{share:.0%}"
