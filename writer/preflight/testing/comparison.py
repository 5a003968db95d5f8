"""Compares what became of records with what a test file expects, and writes down what it would have to expect."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import numpy as np

from writer.avro.schema_plan import PROVENANCE
from writer.config.base import did_you_mean
from writer.output.tables import plain
from writer.preflight.testing.case import Case
from writer.preflight.testing.case_file import Count, ExpectedOutcome
from writer.preflight.testing.outcomes import Outcome
from writer.preflight.testing.records import Place


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
    place: Place | None
    differences: tuple[Difference, ...]


def results(case: Case, found: Mapping[Place, Outcome]) -> Iterator[Result]:
    """Yield the result of each record that is expected, then of the counts."""
    for name in case.tests:
        expected, place = case.expected.get(name), case.names.get(name)
        if place is None:
            yield Result(name, None, tuple(_count_differences(case.file.counts or {}, found)))
        elif expected is None:
            yield Result(name, place, (Difference("exit", "nothing: the test file does not say", shown(found[place])),))
        else:
            yield Result(name, place, tuple(differences(expected, found[place])))


def differences(expected: ExpectedOutcome, got: Outcome) -> Iterator[Difference]:
    """Yield what is not as expected. Of another exit, that alone."""
    if expected.exit != got.exit:
        yield Difference("exit", expected.exit, shown(got))
        return
    for key in ("table", "bucket", "spec", "rule"):
        wanted, there = getattr(expected, key), getattr(got, key)
        if wanted is not None and wanted != there:
            yield Difference(key, wanted, there or "none")
    if expected.reason is not None and expected.reason not in (got.reason or ""):
        yield Difference("reason", f"…{expected.reason}…", got.reason or "none")
    row = got.row or {}
    for name, value in (expected.row or {}).items():
        if name not in row:
            yield Difference(f"row.{name}", _shown(value), f"no such column{did_you_mean(name, _columns(row))}")
        elif not same(value, row[name]):
            yield Difference(f"row.{name}", _shown(value), _shown(row[name]))


def same(expected: Any, got: Any) -> bool:
    """Return whether a value of a row is that of a test file, where it may be text: times, decimals, hex digits."""
    match got:
        case None | bool() | str():
            return type(expected) is type(got) and bool(expected == got)
        case datetime():
            return _instant(expected) == got
        case date():
            return str(expected) == got.isoformat()
        case Decimal():
            return _decimal(expected) == got
        case bytes():
            return isinstance(expected, str) and expected.lower() == got.hex()
        case dict():
            keys = isinstance(expected, dict) and {str(key) for key in expected} == got.keys()
            return keys and all(same(value, got[str(key)]) for key, value in expected.items())
        case list():
            alike = isinstance(expected, list) and len(expected) == len(got)
            return alike and all(same(one, other) for one, other in zip(expected, got, strict=True))
        case float() if not math.isfinite(got):
            return str(expected).lower() == str(got)
        case float() if type(expected) is float and float(np.float32(got)) == got:  # of a column of type float
            return bool(np.float32(expected) == np.float32(got))
        case _:
            return not isinstance(expected, bool) and bool(expected == got)


def shown(got: Outcome) -> str:
    """Write what became of a record for a person."""
    match got.exit:
        case "filtered":
            return f"filtered by {got.rule} of spec {got.spec!r}"
        case "row" | "late":
            place = "" if got.table is None else f" of table {got.table}"
            return f"{got.exit}{place} in bucket {got.bucket}"
        case _:
            return got.exit if got.reason is None else f"{got.exit}: {got.reason}"


def as_found(case: Case, found: Mapping[Place, Outcome]) -> dict[str, Any]:
    """Return the section `expect` as it would have to be. What is as expected is kept; of others, what they named."""
    wanted = dict[str, Any]()
    for name, place in case.names.items():
        expected, got = case.expected.get(name), found[place]
        if expected is not None and not any(differences(expected, got)):
            wanted[name] = expected.model_dump(exclude_unset=True)
        elif expected is not None or case.file.counts is None:
            wanted[name] = _entry(expected, got)
        if name in wanted and wanted[name].keys() == {"exit"}:
            wanted[name] = wanted[name]["exit"]
    return {name: plain(one) for name, one in wanted.items()}


def _entry(expected: ExpectedOutcome | None, got: Outcome) -> dict[str, Any]:
    is_same = expected is not None and expected.exit == got.exit
    keys = {"exit", *expected.model_fields_set} if expected is not None and is_same else vars(got).keys()
    entry = {key: value for key, value in vars(got).items() if key in keys and value is not None}
    if "row" in entry:
        columns = _columns(entry["row"]) if expected is None or expected.row is None else expected.row
        entry["row"] = {name: entry["row"][name] for name in columns if name in entry["row"]}
    return entry


def _columns(row: Mapping[str, Any]) -> list[str]:
    return [name for name in row if name not in PROVENANCE.names]


def _count_differences(counts: Mapping[Any, Count], found: Mapping[Place, Outcome]) -> Iterator[Difference]:
    by_exit = Counter(one.exit for one in found.values())
    by_table = Counter((one.exit, one.table) for one in found.values())
    for exit_, wanted in counts.items():
        if isinstance(wanted, int) and wanted != by_exit[exit_]:
            yield Difference(exit_, f"{wanted:,}", f"{by_exit[exit_]:,}")
        for table, number in wanted.items() if isinstance(wanted, dict) else ():
            if number != by_table[exit_, table]:
                yield Difference(f"{exit_} of table {table}", f"{number:,}", f"{by_table[exit_, table]:,}")


def _instant(value: Any) -> datetime | None:
    try:
        found = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _decimal(value: Any) -> Decimal | None:
    try:
        return Decimal(str(value))
    except InvalidOperation:
        return None


def _shown(value: Any) -> str:
    return json.dumps(plain(value), ensure_ascii=False, default=str)
