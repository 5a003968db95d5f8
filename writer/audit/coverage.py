"""Which offsets a table has of those that another table has; partitions are matched by the ids of their topics."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from headrace.writer.audit.audit import Audit, audit
from headrace.writer.audit.comparison import PartitionPair
from headrace.writer.audit.reconciliation import PartitionSummary
from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import TopicPartition, subtract_spans
from headrace.writer.table.factory import existing_table


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

    # Of the first table.
    part: TopicPartition
    # Offsets from before the second begins.
    older: int
    # Offsets from where the second ends.
    behind: int
    # Offsets in a gap of the second, and in none of the first.
    gap: int


def coverage(config: Config, name: str) -> Coverage:
    """Return which offsets a table has. Raises CommitFailed, HeadraceError where there is no table."""
    account = audit(config, name, since=None, deep=False)
    table = existing_table(name, config)
    topic_ids = table.snapshot().incarnations()
    lines = {
        _partition_key(line.part, topic_ids[line.part.topic]): line
        for line in account.reconciliation.lines
        if line.part.topic in topic_ids
    }
    return Coverage(table.location, account, lines)


def _partition_key(part: TopicPartition, topic_ids: Sequence[str]) -> tuple[str, int, int]:
    """Return the key by which a partition is matched with one of another table. `topic_ids`: by incarnation."""
    topic_id = topic_ids[part.incarnation - 1]
    later_incarnations = topic_ids[part.incarnation :]
    return topic_id, later_incarnations.count(topic_id), part.partition


def partition_pairs(first: Coverage, second: Coverage) -> list[PartitionPair]:
    """Return the partitions that both tables read, and the offsets that both committed. Pure."""
    pairs = []
    for key in sorted(first.lines.keys() & second.lines.keys()):
        first_line = first.lines[key]
        second_line = second.lines[key]
        common = first_line.range.clip(second_line.range.span)
        if common.count:
            pairs.append(PartitionPair(first_line.part, second_line.part, common.span))
    return pairs


def offset_shortfalls(first: Coverage, second: Coverage) -> Iterator[OffsetShortfall]:
    """Yield what the second table lacks of the first. Pure.

    Where it knows nothing of a topic's former incarnation, that is older; of any other partition, it is behind.
    """
    parts = sorted(line.part for line in first.lines.values())
    newest_incarnations = {part.topic: part.incarnation for part in parts}
    for key, line in first.lines.items():
        second_line = second.lines.get(key)
        if second_line is not None:
            start = second_line.range.start
            end = second_line.range.end
            second_gaps = second_line.gaps
        else:
            # It counts as an empty range after the offsets of a former incarnation, or before those of the newest.
            is_former = line.part.incarnation < newest_incarnations[line.part.topic]
            start = line.range.end if is_former else line.range.start
            end = start
            second_gaps = ()
        older = line.range.clip((0, start)).count
        behind = line.range.clip((end, line.range.end)).count
        gap = sum(line.range.clip(span).count for span in subtract_spans(second_gaps, line.gaps))
        if older or behind or gap:
            yield OffsetShortfall(line.part, older, behind, gap)
