"""Which offsets a table has of those that another table has; partitions are matched by the ids of their topics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from writer.audit.audit import Audit, audit
from writer.audit.comparison import PartitionPair
from writer.audit.reconciliation import PartitionSummary
from writer.config.pipelines import Config
from writer.core.offsets import TopicPartition, without
from writer.table.factory import existing_table


@dataclass(frozen=True)
class Coverage:
    """A table's account, and what became of the offsets of its partitions.

    By topic id, how many later incarnations have the same id (of a log that was cut), and number of the partition.
    """

    location: str
    audit: Audit
    lines: Mapping[tuple[str, int, int], PartitionSummary]


@dataclass(frozen=True)
class OffsetShortfall:
    """Offsets of one partition that the first table has and the second has not."""

    part: TopicPartition  # of the first table
    older: int  # from before the second begins
    behind: int  # from where the second ends
    gap: int  # in a gap of the second, and in none of the first


def coverage(config: Config, name: str) -> Coverage:
    """Read it. Raises CommitFailed, HeadraceError where there is no table."""
    found, table = audit(config, name, since=None, deep=False), existing_table(name, config)
    ids = table.snapshot().incarnations()
    lines = {
        _key(line.part, ids[line.part.topic]): line for line in found.reconciliation.lines if line.part.topic in ids
    }
    return Coverage(table.location, found, lines)


def _key(part: TopicPartition, ids: Sequence[str]) -> tuple[str, int, int]:
    """Return by what a partition is matched with one of another table. `ids`: of the topic's incarnations."""
    id_ = ids[part.incarnation - 1]
    return id_, ids[part.incarnation :].count(id_), part.partition


def pairs(first: Coverage, second: Coverage) -> list[PartitionPair]:
    """Return the partitions that both tables read, and the offsets that both committed. Pure."""
    found = []
    for key in sorted(first.lines.keys() & second.lines.keys()):
        one, other = first.lines[key], second.lines[key]
        start, end = max(one.start, other.start), min(one.end, other.end)
        if start < end:
            found.append(PartitionPair(one.part, other.part, (start, end)))
    return found


def lacks(first: Coverage, second: Coverage) -> Iterator[OffsetShortfall]:
    """Yield what the second table lacks of the first. Pure.

    Where it knows nothing of a topic's former incarnation, that is older; of any other partition, it is behind.
    """
    in_order = sorted(line.part for line in first.lines.values())
    newest = {part.topic: part.incarnation for part in in_order}
    for key, line in first.lines.items():
        other = second.lines.get(key)
        if other is None:
            begins = ends = line.end if line.part.incarnation < newest[line.part.topic] else line.start
        else:
            begins, ends = other.start, other.end
        older = max(0, min(line.end, begins) - line.start)
        behind = max(0, line.end - max(ends, line.start))
        missing = without(other.gaps if other else (), line.gaps)
        gap = sum(max(0, min(end, line.end) - max(start, line.start)) for start, end in missing)
        if older or behind or gap:
            yield OffsetShortfall(line.part, older, behind, gap)
