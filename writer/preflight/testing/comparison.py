"""Compares what became of records with what a test file expects, and writes down what it would have to expect."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from headrace.writer.columns.schema_plan import PROVENANCE
from headrace.writer.config.base import did_you_mean
from headrace.writer.core.units import parse_instant
from headrace.writer.output.tables import plain
from headrace.writer.preflight.testing.case import Case
from headrace.writer.preflight.testing.case_file import Count, ExpectedOutcome
from headrace.writer.preflight.testing.outcomes import Outcome
from headrace.writer.preflight.testing.records import RecordPosition


@dataclass(frozen=True)
class Difference:
    """What is not as expected: the exit, the bucket, or a column such as row.country."""

    what: str
    expected: str
    got: str


@dataclass(frozen=True)
class Result:
    """One test: of a record, or of the counts of a file. It passed if there is no difference."""

    name: str
    position: RecordPosition | None
    differences: tuple[Difference, ...]


def results(case: Case, outcomes: Mapping[RecordPosition, Outcome]) -> Iterator[Result]:
    """Yield the result of each record that is expected, then of the counts."""
    for name in case.tests:
        expected = case.expected.get(name)
        position = case.names.get(name)
        if position is None:
            yield Result(name, None, tuple(_count_differences(case.file.counts or {}, outcomes)))
        elif expected is None:
            unexpected = Difference("exit", "nothing: the test file does not say", describe(outcomes[position]))
            yield Result(name, position, (unexpected,))
        else:
            yield Result(name, position, tuple(differences(expected, outcomes[position])))


def differences(expected: ExpectedOutcome, outcome: Outcome) -> Iterator[Difference]:
    """Yield what is not as expected. Of another exit, that alone."""
    if expected.exit != outcome.exit:
        yield Difference("exit", expected.exit, describe(outcome))
        return
    for key in ("table", "bucket", "spec", "rule"):
        value = getattr(expected, key)
        actual = getattr(outcome, key)
        if value is not None and value != actual:
            yield Difference(key, value, actual or "none")
    if expected.reason is not None and expected.reason not in (outcome.reason or ""):
        yield Difference("reason", f"…{expected.reason}…", outcome.reason or "none")
    row = outcome.row or {}
    for name, value in (expected.row or {}).items():
        if name not in row:
            yield Difference(f"row.{name}", _to_text(value), f"no such column{did_you_mean(name, _columns(row))}")
        elif not is_same(value, row[name]):
            yield Difference(f"row.{name}", _to_text(value), _to_text(row[name]))


def is_same(expected: Any, actual: Any) -> bool:
    """Return whether a value of a row is that of a test file, where it may be text: times, decimals, hex digits."""
    match actual:
        case None | bool() | str():
            return type(expected) is type(actual) and bool(expected == actual)
        case datetime():
            return _instant(expected) == actual
        case date():
            return str(expected) == actual.isoformat()
        case Decimal():
            return _decimal(expected) == actual
        case bytes():
            return isinstance(expected, str) and expected.lower() == actual.hex()
        case dict():
            has_keys = isinstance(expected, dict) and {str(key) for key in expected} == actual.keys()
            return has_keys and all(is_same(value, actual[str(key)]) for key, value in expected.items())
        case list():
            has_length = isinstance(expected, list) and len(expected) == len(actual)
            return has_length and all(is_same(item, other) for item, other in zip(expected, actual, strict=True))
        case float() if not math.isfinite(actual):
            return str(expected).lower() == str(actual)
        # The column is of type float.
        case float() if type(expected) is float and float(np.float32(actual)) == actual:
            return bool(np.float32(expected) == np.float32(actual))
        case _:
            return not isinstance(expected, bool) and bool(expected == actual)


def describe(outcome: Outcome) -> str:
    """Write the outcome of a record for a person."""
    match outcome.exit:
        case "filtered":
            return f"filtered by {outcome.rule} of spec {outcome.spec!r}"
        case "row" | "late":
            table = "" if outcome.table is None else f" of table {outcome.table}"
            return f"{outcome.exit}{table} in bucket {outcome.bucket}"
        case _ if outcome.reason is not None:
            return f"{outcome.exit}: {outcome.reason}"
    return outcome.exit


def changed_entries(case: Case, outcomes: Mapping[RecordPosition, Outcome]) -> dict[str, Any]:
    """Return the entries of `expect` that would have to be others, by the names of their records.

    An entry keeps the keys and columns that it has, and of these the values that are as they came.
    """
    entries = dict[str, Any]()
    for name, position in case.names.items():
        expected = case.expected.get(name)
        if expected is None:
            if case.file.counts is None:
                entries[name] = _new_entry(outcomes[position])
        elif any(differences(expected, outcomes[position])):
            entries[name] = _changed_entry(expected, outcomes[position])
        if name in entries and entries[name].keys() == {"exit"}:
            entries[name] = entries[name]["exit"]
    return entries


def _new_entry(outcome: Outcome) -> dict[str, Any]:
    entry = {key: value for key, value in vars(outcome).items() if value is not None}
    if "row" in entry:
        entry["row"] = {name: plain(entry["row"][name]) for name in _columns(entry["row"])}
    return entry


def _changed_entry(expected: ExpectedOutcome, outcome: Outcome) -> dict[str, Any]:
    """Return an entry that `outcome` fits. Of another exit, it has the columns that it names."""
    entry = _new_entry(outcome)
    if expected.exit == outcome.exit:
        # A key that differs has a value, or there is none any more.
        named_keys = expected.model_fields_set & entry.keys() or {"exit"}
        entry = {key: value for key, value in entry.items() if key in named_keys}
        if expected.reason is not None and expected.reason in (outcome.reason or ""):
            entry["reason"] = expected.reason
    if expected.row is not None and outcome.row is not None:
        row = outcome.row
        entry["row"] = {name: _changed_value(value, row[name]) for name, value in expected.row.items() if name in row}
    return entry


def _changed_value(expected: Any, actual: Any) -> Any:
    """Return a value of a row for a test file: as it stands there, if it is the same; a number where one stands."""
    if is_same(expected, actual):
        return expected
    if isinstance(expected, int | float) and isinstance(actual, Decimal):
        number = float(actual)
        if is_same(number, actual):
            return number
    if isinstance(actual, float):
        with np.errstate(over="ignore"):
            # Of a column of type float, the fewest digits that say the value.
            short = float(str(np.float32(actual)))
        if is_same(short, actual):
            return short
    return plain(actual)


def _columns(row: Mapping[str, Any]) -> list[str]:
    return [name for name in row if name not in PROVENANCE.names]


def _count_differences(counts: Mapping[Any, Count], outcomes: Mapping[RecordPosition, Outcome]) -> Iterator[Difference]:
    by_exit = Counter(outcome.exit for outcome in outcomes.values())
    by_table = Counter((outcome.exit, outcome.table) for outcome in outcomes.values())
    for exit_, count in counts.items():
        if isinstance(count, int):
            if count != by_exit[exit_]:
                yield Difference(exit_, f"{count:,}", f"{by_exit[exit_]:,}")
            continue
        for table, number in count.items():
            if number != by_table[exit_, table]:
                yield Difference(f"{exit_} of table {table}", f"{number:,}", f"{by_table[exit_, table]:,}")


def _instant(value: Any) -> datetime | None:
    with suppress(ValueError):
        return parse_instant(value)
    return None


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _to_text(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, default=str)
