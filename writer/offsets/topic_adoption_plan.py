"""Plans a topic adoption: the same records under other ids, names or offsets. Pure.

After a move to another cluster each topic has another id, perhaps another name, and its records keep their offsets (a
copy of the log) or not (a copy of the records). Without an adoption a start takes each for a topic created again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.writer.clients.kafka import Topic
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.offsets.start_decision import LogRange, incarnation_number

_OFFSETS_HINT = "Give the offset to read on from with --offsets topic:partition=offset, or a group's with --offsets-of"


@dataclass(frozen=True)
class AdoptionRequest:
    """The operator's request."""

    # Topic's name in the table → name now.
    renamed: Mapping[str, str] = field(default_factory=dict)
    # Where to read on, for records that moved.
    offsets: Mapping[Source, int] = field(default_factory=dict)

    def has_offsets(self, topic: str) -> bool:
        """Return whether an offset is given for a partition of a topic."""
        return any(name == topic for name, _ in self.offsets)


@dataclass(frozen=True)
class TopicMove:
    """A topic that goes on: the incarnation that the table knows, and what carries it on."""

    old: str
    old_number: int
    old_id: str
    topic: str
    id: str
    # Of the incarnation that its rows will have.
    number: int
    offsets: Literal["kept", "given"]


@dataclass(frozen=True)
class PartitionAdoption:
    """One partition: where the table ends, what the log holds, where to read on."""

    old_part: TopicPartition
    # None: the table has nothing of it.
    table_end: int | None
    part: TopicPartition
    log_range: LogRange
    start: int
    # Whether records at the same offsets are the same; None: none could be compared.
    same_records: bool | None


@dataclass(frozen=True)
class AdoptionPlan:
    """An adoption, ready to be written."""

    moves: Sequence[TopicMove]
    partitions: Sequence[PartitionAdoption]
    incarnations: Mapping[str, Sequence[str]]
    starts: Mapping[TopicPartition, int]


def find_topic_moves(
    table_ids: Mapping[str, Sequence[str]], topics: Mapping[str, Topic], request: AdoptionRequest
) -> list[TopicMove]:
    """Find the topics of an adoption. Raises ConfigError for an unknown name, or a --map without effect.

    `table_ids`: topic → ids of the incarnations that the table knows. `topics`: those that the pipeline reads now.
    """
    _check_request(table_ids, topics, request)
    old_names = {new: old for old, new in request.renamed.items()}
    moves = []
    for topic in topics.values():
        old = old_names.get(topic.name, topic.name)
        has_offsets = request.has_offsets(topic.name)
        ids = table_ids.get(topic.name, ())
        if not table_ids.get(old) or (topic.id in ids and not has_offsets):
            continue
        # Rows with the same name and offsets keep their incarnation; others get a further one.
        keeps_incarnation = old == topic.name and not has_offsets
        moves.append(
            TopicMove(
                old=old,
                old_number=len(table_ids[old]),
                old_id=table_ids[old][-1],
                topic=topic.name,
                id=topic.id,
                number=len(ids) if keeps_incarnation else len(ids) + 1,
                offsets="given" if has_offsets else "kept",
            )
        )
    for new in old_names.keys() - {move.topic for move in moves}:
        raise ConfigError(
            f"--map {old_names[new]}={new} does not apply: the table has rows of topic {new!r} by its id already. "
            "Leave it out, or say with --offsets where to read on."
        )
    return moves


def _check_request(
    table_ids: Mapping[str, Sequence[str]], topics: Mapping[str, Topic], request: AdoptionRequest
) -> None:
    """Raise ConfigError for a topic or partition that does not exist, or two topics that would become one."""
    for old, new in request.renamed.items():
        if not table_ids.get(old):
            raise ConfigError(f"--map {old}={new}: the table knows no topic {old!r}; it knows {_join_names(table_ids)}")
        if new not in topics:
            raise ConfigError(f"--map {old}={new}: the pipeline reads no topic {new!r}; it reads {_join_names(topics)}")
    if len(set(request.renamed.values())) < len(request.renamed):
        raise ConfigError("--map: two topics cannot go on as one")
    for name, partition in request.offsets:
        if name not in topics or partition >= topics[name].partitions:
            raise ConfigError(f"--offsets {name}:{partition}: the pipeline reads no such partition")


def plan_adoption(
    moves: Sequence[TopicMove],
    table_ids: Mapping[str, Sequence[str]],
    frontier: Mapping[TopicPartition, int],
    log_ranges: Mapping[Source, LogRange],
    same_records: Mapping[Source, bool],
    request: AdoptionRequest,
) -> AdoptionPlan:
    """Plan the adoption. Raises ConfigError when the records cannot be those of the table.

    `frontier`: of the parts that the table has. `same_records`: whether records at the same offsets agree, where any
    could be compared.
    """
    incarnations = {topic: list(ids) for topic, ids in table_ids.items()}
    partitions: list[PartitionAdoption] = []
    for move in moves:
        ids = incarnations.setdefault(move.topic, [])
        ids[move.number - 1 :] = [move.id]
        assert incarnation_number(ids, move.id) == move.number
        sources = sorted(source for source in log_ranges if source[0] == move.topic)
        table_ends = {
            part.partition: offset
            for part, offset in frontier.items()
            if (part.topic, part.incarnation) == (move.old, move.old_number)
        }
        missing = sorted(set(table_ends) - {partition for _, partition in sources})
        if missing:
            raise ConfigError(
                f"topic {move.topic!r} has {len(sources)} partitions, but the table has records of "
                f"{move.old}/{missing[-1]}. It is no copy of {move.old!r}: read it as a topic of its own "
                "(on_topic_recreated: start)."
            )
        for source in sources:
            table_end = table_ends.get(source[1])
            partitions.append(
                _plan_partition(move, source, table_end, log_ranges[source], same_records.get(source), request)
            )
    starts = {partition.part: partition.start for partition in partitions if partition.part not in frontier}
    return AdoptionPlan(moves, partitions, incarnations, starts)


def _plan_partition(
    move: TopicMove,
    source: Source,
    table_end: int | None,
    log_range: LogRange,
    same_records: bool | None,
    request: AdoptionRequest,
) -> PartitionAdoption:
    topic, partition = source
    name = f"{topic}/{partition}"
    old_part = TopicPartition(move.old, move.old_number, partition)
    part = TopicPartition(move.topic, move.number, partition)
    if move.offsets == "given":
        start = request.offsets.get(source)
        if start is None:
            raise ConfigError(f"no offset is given for {name}. {_OFFSETS_HINT}, for each partition of the topic.")
        if not log_range.earliest <= start <= log_range.end:
            raise ConfigError(
                f"--offsets {topic}:{partition}={start}: the log holds [{log_range.earliest}, {log_range.end})."
            )
        return PartitionAdoption(old_part, table_end, part, log_range, start, None)
    if table_end is not None and table_end > log_range.end:
        raise ConfigError(
            f"{name} ends at {log_range.end}, the table at {table_end}: its records have other offsets. "
            f"{_OFFSETS_HINT}."
        )
    if same_records is False:
        raise ConfigError(
            f"the records of {name} have other timestamps than the table's rows of {old_part.topic}/{partition} with "
            f"the same offsets: they are others, or have other offsets. {_OFFSETS_HINT}."
        )
    return PartitionAdoption(old_part, table_end, part, log_range, table_end or 0, same_records)


def to_json(plan: AdoptionPlan) -> dict[str, list[dict[str, Any]]]:
    """Write the adoption as JSON values: what its entry of the log carries."""
    topics = [
        {
            "from": {"topic": move.old, "incarnation": move.old_number, "id": move.old_id},
            "to": {"topic": move.topic, "incarnation": move.number, "id": move.id},
            "offsets": move.offsets,
        }
        for move in plan.moves
    ]
    starts = [{**vars(part), "start": offset} for part, offset in plan.starts.items()]
    return {"topics": topics, "starts": starts}


def _join_names(topics: Mapping[str, object]) -> str:
    return ", ".join(sorted(topics)) or "none"
