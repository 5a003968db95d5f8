"""PromQL over series that a test writes down: parsed by promql-parser, evaluated here as Prometheus does it.

Only what the alerts and the dashboard use. Anything else raises: what it is not tested with never counts as tested.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

import promql_parser as pp

LOOKBACK_S = 300.0  # how old a sample may be to count as the newest
Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Sample = tuple[float, float]  # seconds, value
_SERIES = re.compile(r"(\w+)(?:\{(.*)\})?")
_PAIR = re.compile(r'(\w+)="([^"]*)"')
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">": lambda a, b: a > b,
    "<": lambda a, b: a < b,
    "==": lambda a, b: a == b,
    ">=": lambda a, b: a >= b,
    "<=": lambda a, b: a <= b,
    "!=": lambda a, b: a != b,
}
_REDUCE: Mapping[str, Callable[[Sequence[float]], float]] = {"min": min, "max": max, "sum": sum}


@dataclass(frozen=True)
class Series:
    """Samples of one series, oldest first."""

    name: str
    labels: Labels
    samples: Sequence[Sample]


def series(step_s: float, values_by_text: Mapping[str, Sequence[float | None]]) -> list[Series]:
    """Read `name{label="value"}` → values, one each `step_s` from 0 on; None: nothing was scraped."""
    all_series = []
    for text, values in values_by_text.items():
        match = _SERIES.fullmatch(text)
        assert match, text
        labels = frozenset(_PAIR.findall(match[2] or ""))
        all_series.append(Series(match[1], labels, [(i * step_s, v) for i, v in enumerate(values) if v is not None]))
    return all_series


def selectors(expression: str) -> list[tuple[str, set[str]]]:
    """Return the metrics of an expression, each with the labels that it is chosen by."""
    names_and_labels: list[tuple[str, set[str]]] = []

    def visit(node: Any) -> bool:
        if isinstance(node, pp.VectorSelector):
            names_and_labels.append((node.name, {m.name for m in node.matchers.matchers}))
        elif isinstance(node, pp.MatrixSelector):
            visit(node.vector_selector)
        return True

    pp.walk(pp.parse(expression), pre_visit=visit)
    return names_and_labels


def evaluate(expression: str, data: Sequence[Series], at_s: float) -> Vector:
    """Return the value of an expression at an instant, by labels; a number has none."""
    value = _value(pp.parse(expression), data, at_s)
    return {frozenset(): value} if isinstance(value, float) else value


def fires(rule: Mapping[str, Any], data: Sequence[Series], until_s: float, every_s: float = 60.0) -> set[Labels]:
    """Return the labels for which a rule fires at the end, having been evaluated from 0 on."""
    wait_s = pp.parse_duration(rule["for"]).total_seconds() if "for" in rule else 0.0
    since: dict[Labels, float] = {}
    at_s = 0.0
    while at_s <= until_s:
        now = evaluate(rule["expr"], data, at_s)
        since = {labels: since.get(labels, at_s) for labels in now}
        at_s += every_s
    return {labels for labels, began in since.items() if at_s - every_s - began >= wait_s}


def _value(node: Any, data: Sequence[Series], at_s: float) -> Vector | float:
    match node:
        case pp.ParenExpr():
            return _value(node.expr, data, at_s)
        case pp.NumberLiteral():
            return float(node.val)
        case pp.VectorSelector():
            return {s.labels: s.samples[-1][1] for s in _select_series(node, data, at_s, LOOKBACK_S)}
        case pp.Call():
            return _call_function(node, data, at_s)
        case pp.AggregateExpr():
            return _aggregate(node, data, at_s)
        case pp.BinaryExpr():
            return _combine(node, data, at_s)
    raise NotImplementedError(f"{type(node).__name__}: {node}")


def _select_series(node: Any, data: Sequence[Series], at_s: float, back_s: float) -> list[Series]:
    """Return the series that a selector names, with the samples of (at - back, at]."""
    assert node.offset is None
    assert node.at is None
    selected = []
    for candidate in data:
        if candidate.name == node.name and all(_matches(m, dict(candidate.labels)) for m in node.matchers.matchers):
            within = [(t, v) for t, v in candidate.samples if at_s - back_s < t <= at_s]
            if within:
                selected.append(Series(candidate.name, candidate.labels, within))
    return selected


def _matches(matcher: Any, labels: Mapping[str, str]) -> bool:
    value = labels.get(matcher.name, "")
    match str(matcher.op):
        case "MatchOp.Equal":
            return bool(value == matcher.value)
        case "MatchOp.NotEqual":
            return bool(value != matcher.value)
        case "MatchOp.Re":
            return re.fullmatch(matcher.value, value) is not None
    raise NotImplementedError(f"{matcher.op} is not known here")


def _call_function(node: Any, data: Sequence[Series], at_s: float) -> Vector:
    name = node.func.name
    (matrix,) = node.args
    if not isinstance(matrix, pp.MatrixSelector):
        raise NotImplementedError(str(node))
    range_: timedelta = matrix.range
    chosen = _select_series(matrix.vector_selector, data, at_s, range_.total_seconds())
    match name:
        case "rate" | "increase":
            each = {s.labels: _increase(s.samples, at_s, range_.total_seconds()) for s in chosen if len(s.samples) > 1}
            return {k: v / range_.total_seconds() if name == "rate" else v for k, v in each.items()}
        case "changes":
            values = {s.labels: [v for _, v in s.samples] for s in chosen}
            return {k: float(sum(a != b for a, b in pairwise(v))) for k, v in values.items()}
        case "min_over_time":
            return {s.labels: min(v for _, v in s.samples) for s in chosen}
        case "max_over_time":
            return {s.labels: max(v for _, v in s.samples) for s in chosen}
    raise NotImplementedError(name)


def _increase(samples: Sequence[Sample], at_s: float, range_s: float) -> float:
    """Prometheus's extrapolatedRate: resets count from zero, the ends are drawn out to half a step or to zero."""
    first_s, first = samples[0]
    last_s, last = samples[-1]
    total = last - first + sum(a for (_, a), (_, b) in pairwise(samples) if b < a)
    covered_s = last_s - first_s
    step_s = covered_s / (len(samples) - 1)
    start_s = first_s - (at_s - range_s)
    end_s = at_s - last_s
    if start_s >= step_s * 1.1:
        start_s = step_s / 2
    if total > 0 and first >= 0:
        start_s = min(start_s, covered_s * first / total)
    if end_s >= step_s * 1.1:
        end_s = step_s / 2
    return total * (covered_s + start_s + end_s) / covered_s


def _aggregate(node: Any, data: Sequence[Series], at_s: float) -> Vector:
    if str(node.op) == "topk":
        inner = _value(node.expr, data, at_s)
        assert isinstance(inner, dict)
        return dict(sorted(inner.items(), key=lambda item: -item[1])[: int(node.param.val)])
    reduce = _REDUCE[str(node.op)]
    by = _labels(node.modifier)
    inner = _value(node.expr, data, at_s)
    assert isinstance(inner, dict)
    groups: dict[Labels, list[float]] = {}
    for labels, value in inner.items():
        groups.setdefault(_only(labels, by), []).append(value)
    return {labels: float(reduce(values)) for labels, values in groups.items()}


def _labels(modifier: Any) -> list[str]:
    """Return the labels of `by (…)`, which every aggregation here has."""
    assert modifier is not None
    assert modifier.type == pp.AggModifierType.By
    return list(modifier.labels)


def _only(labels: Labels, names: Sequence[str]) -> Labels:
    return frozenset((name, value) for name, value in labels if name in names)


def _combine(node: Any, data: Sequence[Series], at_s: float) -> Vector | float:
    left = _value(node.lhs, data, at_s)
    right = _value(node.rhs, data, at_s)
    op = str(node.op)
    key = _matching(node.modifier)
    if op in ("and", "or", "unless"):
        assert isinstance(left, dict)
        assert isinstance(right, dict)
        right_keys = {key(labels) for labels in right}
        left_keys = {key(labels) for labels in left}
        match op:
            case "and":
                return {labels: value for labels, value in left.items() if key(labels) in right_keys}
            case "unless":
                return {labels: value for labels, value in left.items() if key(labels) not in right_keys}
        return left | {labels: value for labels, value in right.items() if key(labels) not in left_keys}
    if isinstance(left, dict) and isinstance(right, dict):
        by_key = {key(labels): value for labels, value in right.items()}
        assert len(by_key) == len(right), f"many on the right side of {node}"
        pairs = {labels: (value, by_key[key(labels)]) for labels, value in left.items() if key(labels) in by_key}
    elif isinstance(left, dict):
        pairs = {labels: (value, right) for labels, value in left.items()}
    elif isinstance(right, dict):
        pairs = {labels: (left, value) for labels, value in right.items()}
        assert op not in _COMPARE, "a number on the left of a comparison is not known here"
    else:
        return _arithmetic(op, left, right)
    if op in _COMPARE:
        return {labels: a for labels, (a, b) in pairs.items() if _COMPARE[op](a, b)}
    return {labels: _arithmetic(op, a, b) for labels, (a, b) in pairs.items()}


def _arithmetic(op: str, a: float, b: float) -> float:
    match op:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "/":
            return a / b if b else math.nan if a == 0 else math.copysign(math.inf, a)
    raise NotImplementedError(op)


def _matching(modifier: Any) -> Callable[[Labels], Labels]:
    """Return what of the labels must be the same on both sides."""
    if modifier is None or modifier.matching is None:
        return lambda labels: labels
    assert modifier.matching.type == pp.LabelModifierType.Include
    names = list(modifier.matching.labels)
    return lambda labels: _only(labels, names)
