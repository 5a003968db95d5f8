"""Compares the lake with what Kafka was given, by ranges of offsets: DuckDB over the files.

A life is a topic between its creation and its deletion. Each offset of it has one place: a row or a dead letter. What a
person or Kafka took away before it could be read has none: offsets that retention took, and the end of a life that was
deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from writer.demo.table_reader import TableLog

Interval = tuple[int, int]  # offsets [start, end)
Place = tuple[str, int, int]  # topic, number of its life, partition


@dataclass
class TopicLife:
    """What the judge knows of a topic's life: how far each partition came, and what Kafka took of it."""

    topic: str
    ends: dict[int, int]
    taken: dict[int, list[Interval]] = field(default_factory=dict)  # by retention, whether they were read or not
    deleted: bool = False


@dataclass(frozen=True)
class PartitionOffsets:
    """Offsets of one partition that the lake holds."""

    times: int  # rows and dead letters
    spans: Sequence[Interval]

    @property
    def distinct(self) -> int:
        """Offsets, each counted once."""
        return sum(end - start for start, end in self.spans)


@dataclass(frozen=True)
class Verdict:
    """Counts of records. Without `lost`, `twice` and `unknown`, nothing is wrong."""

    produced: int
    held: int
    lost: int = 0
    twice: int = 0
    unknown: int = 0  # offsets that were never produced
    taken: int = 0  # by retention, before they were read
    died: int = 0  # with their topic, before they were read
    said: Sequence[str] = ()  # what is wrong, a sentence each

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing twice, nothing out of nowhere."""
        return not (self.lost or self.twice or self.unknown)


def judge(lives: Mapping[tuple[str, int], TopicLife], held: Mapping[Place, PartitionOffsets]) -> Verdict:
    """Compare. `lives` by topic and number, as the table numbers them. Pure."""
    lost = twice = unknown = taken = died = 0
    said: list[str] = []
    for (topic, number), life in lives.items():
        for partition, end in life.ends.items():
            found = held.get((topic, number, partition), PartitionOffsets(0, ()))
            last = max((stop for _, stop in found.spans), default=0)
            until = min(last, end) if life.deleted else end
            died += end - until
            missing = list(without((0, until), found.spans))
            gone = list(missing)
            for span in life.taken.get(partition, ()):
                gone = [rest for one in gone for rest in without(one, [span])]
            taken += sum(b - a for a, b in missing) - sum(b - a for a, b in gone)
            lost += sum(b - a for a, b in gone)
            twice += found.times - found.distinct
            unknown += max(0, last - end)
            where = f"{topic}/{partition} (life {number})"
            said += [f"{where}: offsets [{a}, {b}) are nowhere in the lake" for a, b in gone]
            if found.times > found.distinct:
                said.append(f"{where}: {found.times - found.distinct} offsets are there more than once")
            if last > end:
                said.append(f"{where}: the lake goes to offset {last}, Kafka ended at {end}")
    strange = {place: one for place, one in held.items() if place[2] not in _ends(lives, place)}
    unknown += sum(one.distinct for one in strange.values())
    said += [f"{t}/{p} (life {n}): never existed, and has rows" for t, n, p in strange]
    produced = sum(sum(life.ends.values()) for life in lives.values())
    return Verdict(produced, sum(h.distinct for h in held.values()), lost, twice, unknown, taken, died, said)


def _ends(lives: Mapping[tuple[str, int], TopicLife], place: Place) -> Mapping[int, int]:
    life = lives.get(place[:2])
    return {} if life is None else life.ends


def without(whole: Interval, spans: Sequence[Interval]) -> Iterator[Interval]:
    """Yield what is left of an interval, `spans` sorted and disjoint."""
    at, end = whole
    for start, stop in spans:
        if start >= end:
            break
        if start > at:
            yield at, start
        at = max(at, stop)
    if at < end:
        yield at, end


def look(tables: Sequence[Path]) -> dict[Place, PartitionOffsets]:
    """Read the offsets of all rows and dead letters that the tables' logs name, with DuckDB."""
    import duckdb

    files: list[str] = []
    for table in tables:
        log = TableLog(table)
        log.follow()
        files += [str(table / path) for path in log.files]
    if not files:
        return {}
    found = duckdb.execute(
        """
        WITH places AS (
          SELECT _topic AS t, _incarnation AS i, _partition AS p, _offset AS o, count(*) AS times
          FROM read_parquet($1, union_by_name = true) GROUP BY ALL),
        islands AS (
          SELECT *, o - row_number() OVER (PARTITION BY t, i, p ORDER BY o) AS island FROM places)
        SELECT t, i, p, min(o), max(o) + 1, sum(times) FROM islands GROUP BY t, i, p, island ORDER BY t, i, p, min(o)
        """,
        [files],
    ).fetchall()
    spans: dict[Place, list[Interval]] = {}
    times: dict[Place, int] = {}
    for topic, incarnation, partition, start, end, count in found:
        place = (str(topic), int(incarnation), int(partition))
        spans.setdefault(place, []).append((int(start), int(end)))
        times[place] = times.get(place, 0) + int(count)
    return {place: PartitionOffsets(times[place], spans[place]) for place in spans}
