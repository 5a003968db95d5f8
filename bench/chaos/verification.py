"""Compares the lake with what Kafka was given, by ranges of offsets: DuckDB over the files.

A life is a topic between its creation and its deletion. Each offset of it has one place: a row or a dead letter. What a
person or Kafka took away before it could be read has none: offsets that retention took, and the end of a life that was
deleted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

from headrace.writer.demo.table_reader import TableLog

# Offsets from a start up to an end, which is excluded.
Interval = tuple[int, int]
# A topic, the number of its life, and a partition.
PartitionKey = tuple[str, int, int]


@dataclass
class TopicLife:
    """What the judge knows of a topic's life: how far each partition came, and what Kafka took of it."""

    topic: str
    ends: dict[int, int]
    # Offsets that retention took, whether the writer had read them or not.
    taken: dict[int, list[Interval]] = field(default_factory=dict)
    deleted: bool = False


@dataclass(frozen=True)
class PartitionOffsets:
    """Offsets of one partition that the lake holds."""

    # How many rows and dead letters there are.
    times: int
    spans: Sequence[Interval]

    @property
    def distinct(self) -> int:
        """Offsets, each counted once."""
        return sum(stop - start for start, stop in self.spans)


@dataclass(frozen=True)
class Verdict:
    """Counts of records. Without `lost`, `twice` and `unknown`, nothing is wrong."""

    produced: int
    held: int
    lost: int = 0
    twice: int = 0
    # Counts offsets that were never produced.
    unknown: int = 0
    # Counts records that retention took before they were read.
    taken: int = 0
    # Counts records that went with their topic before they were read.
    died: int = 0
    # Each problem is a sentence.
    said: Sequence[str] = ()

    @property
    def clean(self) -> bool:
        """Nothing lost, nothing twice, nothing out of nowhere."""
        return not (self.lost or self.twice or self.unknown)


def judge(lives: Mapping[tuple[str, int], TopicLife], offsets: Mapping[PartitionKey, PartitionOffsets]) -> Verdict:
    """Compare. `lives` by topic and number, as the table numbers them. Pure."""
    lost = twice = unknown = taken = died = 0
    problems: list[str] = []
    for (topic, number), life in lives.items():
        for partition, log_end in life.ends.items():
            partition_offsets = offsets.get((topic, number, partition), PartitionOffsets(0, ()))
            lake_end = max((stop for _, stop in partition_offsets.spans), default=0)
            expected_end = min(lake_end, log_end) if life.deleted else log_end
            died += log_end - expected_end
            missing = list(subtract_spans((0, expected_end), partition_offsets.spans))
            lost_spans = list(missing)
            for taken_span in life.taken.get(partition, ()):
                remainders = [subtract_spans(span, [taken_span]) for span in lost_spans]
                lost_spans = list(chain.from_iterable(remainders))
            taken += sum(b - a for a, b in missing) - sum(b - a for a, b in lost_spans)
            lost += sum(b - a for a, b in lost_spans)
            twice += partition_offsets.times - partition_offsets.distinct
            unknown += max(0, lake_end - log_end)
            where = f"{topic}/{partition} (life {number})"
            problems += [f"{where}: offsets [{a}, {b}) are nowhere in the lake" for a, b in lost_spans]
            if partition_offsets.times > partition_offsets.distinct:
                problems.append(
                    f"{where}: {partition_offsets.times - partition_offsets.distinct} offsets are there more than once"
                )
            if lake_end > log_end:
                problems.append(f"{where}: the lake goes to offset {lake_end}, Kafka ended at {log_end}")
    foreign_offsets = {key: spans for key, spans in offsets.items() if key[2] not in _ends(lives, key)}
    unknown += sum(partition_offsets.distinct for partition_offsets in foreign_offsets.values())
    problems += [f"{t}/{p} (life {n}): never existed, and has rows" for t, n, p in foreign_offsets]
    produced = sum(sum(life.ends.values()) for life in lives.values())
    return Verdict(produced, sum(h.distinct for h in offsets.values()), lost, twice, unknown, taken, died, problems)


def _ends(lives: Mapping[tuple[str, int], TopicLife], key: PartitionKey) -> Mapping[int, int]:
    life = lives.get(key[:2])
    return {} if life is None else life.ends


def subtract_spans(interval: Interval, spans: Sequence[Interval]) -> Iterator[Interval]:
    """Yield what is left of an interval, `spans` sorted and disjoint."""
    position, stop_max = interval
    for start, stop in spans:
        if start >= stop_max:
            break
        if start > position:
            yield position, start
        position = max(position, stop)
    if position < stop_max:
        yield position, stop_max


def read_offsets(tables: Sequence[Path]) -> dict[PartitionKey, PartitionOffsets]:
    """Read the offsets of all rows and dead letters that the tables' logs name, with DuckDB."""
    import duckdb

    files: list[str] = []
    for table in tables:
        log = TableLog(table)
        log.follow()
        files += [str(table / path) for path in log.files]
    if not files:
        return {}
    islands = duckdb.execute(
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
    spans: dict[PartitionKey, list[Interval]] = {}
    times: dict[PartitionKey, int] = {}
    for topic, incarnation, partition, start, stop, count in islands:
        key = (str(topic), int(incarnation), int(partition))
        spans.setdefault(key, []).append((int(start), int(stop)))
        times[key] = times.get(key, 0) + int(count)
    return {key: PartitionOffsets(times[key], spans[key]) for key in spans}
