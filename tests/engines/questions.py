"""The questions that every engine is asked, and their answers, worked out from the events that were produced."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, localcontext
from typing import Any

from tests.engines.dialects import Dialect
from tests.engines.events import NAMES, Row, micros

Answer = list[tuple[Any, ...]]
Rows = Sequence[Row]


@dataclass(frozen=True)
class Question:
    """One question: its SQL in a dialect, and its answer. Rows come in any order."""

    name: str
    sql: Callable[[Dialect], str]
    answer: Callable[[Rows, Dialect], Iterable[tuple[Any, ...]]]


def same(found: Iterable[Sequence[Any]], expected: Iterable[Sequence[Any]]) -> bool:
    """Return whether two answers are one: numbers by value, doubles to a few units of the last place."""
    first, other = _sorted(found), _sorted(expected)
    return len(first) == len(other) and all(
        len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
        for a, b in zip(first, other, strict=True)
    )


def _sorted(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    plain = [tuple(_plain(value) for value in row) for row in rows]
    return sorted(plain, key=lambda row: tuple((value is not None, str(value)) for value in row))


def _plain(value: Any) -> Any:
    return Decimal(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _equal(found: Any, expected: Any) -> bool:
    numbers = isinstance(found, float | Decimal) and isinstance(expected, float | Decimal)
    if numbers and float in (type(found), type(expected)):
        return math.isclose(found, expected, rel_tol=1e-12)
    return bool(found == expected)


def _counted(rows: Rows, *keys: str) -> Answer:
    return [(*key, n) for key, n in Counter(tuple(row[key] for key in keys) for row in rows).items()]


def _of(rows: Rows, key: str) -> list[Any]:
    return [row[key] for row in rows if row[key] is not None]


def _total(values: Iterable[Decimal]) -> str:
    with localcontext(prec=60):
        return f"{sum(values, Decimal(0)):f}"


def _offsets(rows: Rows, _: Dialect) -> Answer:
    parts: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        parts[row["_topic"], row["_partition"]].append(row["_offset"])
    return [(*part, len(o), len(set(o)), min(o), max(o)) for part, o in parts.items()]


def _times(rows: Rows, d: Dialect) -> Answer:
    hours = {row["hour"] for row in rows}
    by_hour = {hour: [d.kept(row["event_time"]) for row in rows if row["hour"] == hour] for hour in hours}
    return [(hour, min(times), max(times)) for hour, times in by_hour.items()]


def _created(rows: Rows, _: Dialect) -> Answer:
    times = [micros(when) for when in _of(rows, "created")]
    return [(min(times), max(times), len(times))]


def _places(rows: Rows, _: Dialect) -> Answer:
    places_by_city: dict[str | None, list[Row]] = defaultdict(list)
    for row in rows:
        places_by_city[row["place"] and row["place"]["city"]].append(
            row["place"] or {"lat": None, "deep": {"code": None}}
        )
    return [
        (
            city,
            len(places),
            None if city is None else sum(location["lat"] for location in places),
            None if city is None else sum(location["deep"]["code"] for location in places),
        )
        for city, places in places_by_city.items()
    ]


def _zips(rows: Rows, _: Dialect) -> Answer:
    return list(Counter(row["place"]["zip"] for row in rows if row["place"] and row["place"]["zip"]).items())


def _lists(rows: Rows, _: Dialect) -> Answer:
    legs = [leg["km"] for row in rows for leg in row["legs"][:1]]
    return [(sum(len(row["tags"]) for row in rows), sum("ü" in row["tags"] for row in rows), sum(legs))]


def _maps(rows: Rows, _: Dialect) -> Answer:
    return [(sum(len(row["counts"]) for row in rows), sum(row["counts"].get("k1", 0) for row in rows))]


def _owners(rows: Rows, _: Dialect) -> Answer:
    ids_by_region: dict[str | None, list[int]] = defaultdict(list)
    for row in rows:
        ids_by_region[row["owner"]["region"]].append(row["owner"]["id"])
    return [(region, len(ids), sum(ids)) for region, ids in ids_by_region.items()]


def _flags(rows: Rows, _: Dialect) -> Answer:
    return _counted(rows, "flag")


def _days(rows: Rows, _: Dialect) -> Answer:
    days = _of(rows, "day")
    return [(min(days).isoformat(), max(days).isoformat(), len(set(days)))]


def _decimals(rows: Rows, _: Dialect) -> Answer:
    return [tuple(_total(row[name] for row in rows) for name in ("price", "fee", "big"))]


def _widened(rows: Rows, _: Dialect) -> Answer:
    return [(str(sum(row["n"] for row in rows)), min(_of(rows, "n")), max(_of(rows, "n")))]


def _scores(rows: Rows, _: Dialect) -> Answer:
    scores = [row["score"] for row in rows]
    finite = [score for score in scores if math.isfinite(score)]
    return [(sum(map(math.isnan, scores)), sum(map(math.isinf, scores)), sum(finite))]


def _raw(rows: Rows, _: Dialect) -> Answer:
    return [(len({row["raw"] for row in rows}),)]


def _pivots(rows: Rows, column: str) -> list[Any]:
    """Bounds of files: least of all, greatest of the first wave, greatest of all."""
    held = sorted((row for row in rows if row[column] is not None), key=lambda row: row["id"])
    values = [[r[column] for r in part] for part in (held, held[: len(held) // 3], held)]
    if isinstance(values[0][0], float):
        values = [[value for value in part if math.isfinite(value)] for part in values]
    lowest, middle, highest = (
        chosen(part, key=_order) for chosen, part in zip((min, max, max), values, strict=True)
    )  # fmt: skip
    return [lowest, middle, highest]


def _order(value: Any) -> Any:
    return value.encode() if isinstance(value, str) else value


_COMPARED: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    ">": lambda a, b: a > b,
}


def boundary(column: str, rows: Rows, d: Dialect) -> tuple[str, Answer]:
    """Ask for the rows on either side of bounds of a column, and for those on them; NaN is on no side."""
    parts, expected = [], []
    rows_with_values = [row for row in rows if row[column] is not None and row[column] == row[column]]
    for pivot in _pivots(rows, column):
        where = d.kept(pivot) if isinstance(pivot, datetime) else _order(pivot)
        for sign, compared in _COMPARED.items():
            label = len(parts)
            number = f"NOT {d.isnan(column)} AND " if column == "score" else ""
            condition = f"{number}{d.column(column)} {sign} {d.bound(column, pivot)}"
            parts.append(f"SELECT {label} AS label, count(*) AS n FROM {d.table} WHERE {condition}")
            values = (d.kept(r[column]) if isinstance(pivot, datetime) else _order(r[column]) for r in rows_with_values)
            expected.append((label, sum(compared(value, where) for value in values)))
    return " UNION ALL ".join(parts), expected


BOUNDED = ("event_time", "created", "id", "n", "ratio", "fee", "price", "big", "score", "day", "name", "_offset")

MANY_SCANS = "each text found"

QUESTIONS = [
    Question(
        "rows by bucket",
        lambda d: (
            f"SELECT {d.column('hour')}, kind_bucket, count(*) FROM {d.table} GROUP BY {d.column('hour')}, kind_bucket"
        ),
        lambda rows, _: _counted(rows, "hour", "kind_bucket"),
    ),
    Question(
        "every offset once",
        lambda d: (
            "SELECT _topic, _partition, count(*), count(DISTINCT _offset), min(_offset), max(_offset)"
            f" FROM {d.table} GROUP BY _topic, _partition"
        ),
        _offsets,
    ),
    Question(
        "first and last event of a bucket",
        lambda d: (
            f"SELECT hour, {d.micros('min', 'event_time')}, {d.micros('max', 'event_time')}"
            f" FROM {d.table} GROUP BY hour"
        ),
        _times,
    ),
    Question(
        "another timestamp",
        lambda d: (
            f"SELECT {d.micros('min', 'created')}, {d.micros('max', 'created')}, count({d.column('created')})"
            f" FROM {d.table}"
        ),
        _created,
    ),
    Question(
        "one bucket by its values",
        lambda d: (
            f"SELECT kind_bucket, count(*) FROM {d.table} WHERE hour = '2026-11-20T06' AND kind_bucket IN"
            f" ('a/b', 'ü €', {d.literal(chr(39).join(('it', 's')))}) GROUP BY kind_bucket"
        ),
        lambda rows, _: _counted(
            [r for r in rows if r["hour"] == "2026-11-20T06" and r["kind"] in ("a/b", "ü €", "it's")], "kind_bucket"
        ),
    ),
    Question(
        "texts",
        lambda d: f"SELECT name, count(*) FROM {d.table} GROUP BY name",
        lambda rows, _: _counted(rows, "name"),
    ),
    Question(
        MANY_SCANS,
        lambda d: " UNION ALL ".join(
            f"SELECT {n} AS label, count(*) AS n FROM {d.table} WHERE name = {d.literal(name)}"
            for n, name in enumerate(NAMES)
        ),
        lambda rows, _: [(n, sum(row["name"] == name for row in rows)) for n, name in enumerate(NAMES)],
    ),
    Question(
        "an added column over older files",
        lambda d: f"SELECT country, count(*) FROM {d.table} GROUP BY country",
        lambda rows, _: _counted(rows, "country"),
    ),
    Question(
        "a widened column: int to long",
        lambda d: f"SELECT {d.whole('sum', 'n')}, min(n), max(n) FROM {d.table}",
        _widened,
    ),
    Question(
        "a widened column: float to double",
        lambda d: f"SELECT ratio, count(*) FROM {d.table} GROUP BY ratio",
        lambda rows, _: _counted(rows, "ratio"),
    ),
    Question(
        "decimals, one of them widened",
        lambda d: f"SELECT {', '.join(d.text(f'sum({name})') for name in ('price', 'fee', 'big'))} FROM {d.table}",
        _decimals,
    ),
    Question(
        "doubles: NaN, infinities",
        lambda d: (
            f"SELECT sum(CASE WHEN {d.isnan('score')} THEN 1 ELSE 0 END),"
            f" sum(CASE WHEN {d.isinf('score')} THEN 1 ELSE 0 END),"
            f" sum(CASE WHEN {d.isnan('score')} OR {d.isinf('score')} THEN 0 ELSE score END) FROM {d.table}"
        ),
        _scores,
    ),
    Question("booleans", lambda d: f"SELECT {d.flag('flag')}, count(*) FROM {d.table} GROUP BY flag", _flags),
    Question(
        "dates",
        lambda d: (
            f"SELECT {d.text('min(day)')}, {d.text('max(day)')}, count(DISTINCT {d.column('day')}) FROM {d.table}"
        ),
        _days,
    ),
    Question("bytes", lambda d: f"SELECT count(DISTINCT raw) FROM {d.table}", _raw),
    Question(
        "nested fields",
        lambda d: (
            f"SELECT {d.path('place.city')}, count(*), sum({d.path('place.lat', 'double')}),"
            f" sum({d.path('place.deep.code', 'bigint')}) FROM {d.table} GROUP BY {d.path('place.city')}"
        ),
        _places,
    ),
    Question(
        "a nested field added over older files",
        lambda d: (
            f"SELECT {d.path('place.zip')}, count(*) FROM {d.table}"
            f" WHERE {d.path('place.zip')} IS NOT NULL GROUP BY {d.path('place.zip')}"
        ),
        _zips,
    ),
    Question(
        "lists",
        lambda d: (
            f"SELECT sum({d.size('tags')}), sum(CASE WHEN {d.has('tags', 'ü')} THEN 1 ELSE 0 END),"
            f" sum({d.first('legs', 'km')}) FROM {d.table}"
        ),
        _lists,
    ),
    Question(
        "maps",
        lambda d: f"SELECT sum({d.map_size('counts')}), sum({d.entry('counts', 'k1')}) FROM {d.table}",
        _maps,
    ),
    Question(
        "a key that is a record, by a field",
        lambda d: (
            f"SELECT {d.path('owner.region')}, count(*), sum({d.path('owner.id', 'bigint')}) FROM {d.table}"
            f" GROUP BY {d.path('owner.region')}"
        ),
        _owners,
    ),
    Question(
        "headers, as a map and in a column of their own",
        lambda d: f"SELECT sum({d.map_size('headers')}), sum({d.column('attempt')}) FROM {d.table}",
        lambda rows, _: [(sum(len(row["headers"]) for row in rows), sum(_of(rows, "attempt")))],
    ),
    Question(
        "what is null",
        lambda d: f"SELECT count(*) FROM {d.table} WHERE country IS NULL AND kind IS NULL",
        lambda rows, _: [(sum(row["country"] is None and row["kind"] is None for row in rows),)],
    ),
]
