"""Plans a topic adoption: the same records under other ids, names or offsets. Pure.

After a move to another cluster each topic has another id, perhaps another name, and its records keep their offsets (a
copy of the log) or not (a copy of the records). Without an adoption a start takes each for a topic created again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from writer.clients.kafka import Topic
from writer.core.errors import ConfigError
from writer.core.offsets import Source, TopicPartition
from writer.offsets.start_decision import LogRange, number

_OFFSETS = "Give the offset to read on from with --offsets topic:partition=offset, or a group's with --offsets-of"


@dataclass(frozen=True)
class AdoptionRequest:
    """The operator's request."""

    renamed: Mapping[str, str] = field(default_factory=dict)  # topic's name in the table → name now
    offsets: Mapping[Source, int] = field(default_factory=dict)  # where to read on, for records that moved


@dataclass(frozen=True)
class TopicMove:
    """A topic that goes on: the incarnation that the table knows, and what carries it on."""

    old: str
    old_number: int
    old_id: str
    topic: str
    id: str
    number: int  # of the incarnation that its rows will have
    offsets: Literal["kept", "given"]


@dataclass(frozen=True)
class Line:
    """One partition: where the table ends, what the log holds, where to read on."""

    was: TopicPartition
    table_end: int | None  # None: the table has nothing of it
    now: TopicPartition
    held: LogRange
    start: int
    same: bool | None  # records at the same offsets are the same; None: none could be compared


@dataclass(frozen=True)
class Plan:
    """An adoption, ready to be written."""

    moves: Sequence[TopicMove]
    lines: Sequence[Line]
    incarnations: Mapping[str, Sequence[str]]
    starts: Mapping[TopicPartition, int]


def moves(known: Mapping[str, Sequence[str]], topics: Mapping[str, Topic], asked: AdoptionRequest) -> list[TopicMove]:
    """Find the topics of an adoption. Raises ConfigError for an unknown name, or a --map without effect."""
    for old, new in asked.renamed.items():
        if not known.get(old):
            raise ConfigError(f"--map {old}={new}: the table knows no topic {old!r}; it knows {_names(known)}")
        if new not in topics:
            raise ConfigError(f"--map {old}={new}: the pipeline reads no topic {new!r}; it reads {_names(topics)}")
    if len(set(asked.renamed.values())) < len(asked.renamed):
        raise ConfigError("--map: two topics cannot go on as one")
    for name, partition in asked.offsets:
        if name not in topics or partition >= topics[name].partitions:
            raise ConfigError(f"--offsets {name}:{partition}: the pipeline reads no such partition")
    origin = {new: old for old, new in asked.renamed.items()}
    found = []
    for topic in topics.values():
        old, given = origin.get(topic.name, topic.name), any(t == topic.name for t, _ in asked.offsets)
        if not known.get(old) or (not given and topic.id in known.get(topic.name, ())):
            continue
        ids, kept = known.get(topic.name, ()), not given and old == topic.name
        at = len(ids) if kept else len(ids) + 1
        found.append(
            TopicMove(
                old, len(known[old]), known[old][-1], topic.name, topic.id, at, "given" if given else "kept",
            )
        )  # fmt: skip
    for new in origin.keys() - {move.topic for move in found}:
        raise ConfigError(
            f"--map {origin[new]}={new} does not apply: the table has rows of topic {new!r} by its id already. Leave "
            "it out, or say with --offsets where to read on."
        )
    return found


def plan(
    found: Sequence[TopicMove],
    known: Mapping[str, Sequence[str]],
    frontier: Mapping[TopicPartition, int],
    held: Mapping[Source, LogRange],
    same: Mapping[Source, bool],
    asked: AdoptionRequest,
) -> Plan:
    """Work out the adoption. Raises ConfigError when the records cannot be those of the table.

    `frontier`: of the parts that the table has. `same`: whether records at the same offsets agree, where any could be
    compared.
    """
    incarnations = {topic: list(ids) for topic, ids in known.items()}
    lines: list[Line] = []
    for move in found:
        ids = incarnations.setdefault(move.topic, [])
        ids[move.number - 1 :] = [move.id]
        assert number(ids, move.id) == move.number
        sources = sorted(source for source in held if source[0] == move.topic)
        reached = {
            p.partition: at for p, at in frontier.items() if (p.topic, p.incarnation) == (move.old, move.old_number)
        }
        if gone := sorted(set(reached) - {partition for _, partition in sources}):
            raise ConfigError(
                f"topic {move.topic!r} has {len(sources)} partitions, but the table has records of "
                f"{move.old}/{gone[-1]}. It is no copy of {move.old!r}: read it as a topic of its own "
                "(on_topic_recreated: start)."
            )
        lines += [_line(move, s, reached.get(s[1]), held[s], same.get(s), asked) for s in sources]
    starts = {line.now: line.start for line in lines if line.now not in frontier}
    return Plan(found, lines, incarnations, starts)


def _line(
    move: TopicMove, source: Source, at: int | None, held: LogRange, same: bool | None, asked: AdoptionRequest
) -> Line:
    was, now = TopicPartition(move.old, move.old_number, source[1]), TopicPartition(move.topic, move.number, source[1])
    name = f"{source[0]}/{source[1]}"
    if move.offsets == "given":
        start = asked.offsets.get(source)
        if start is None:
            raise ConfigError(f"no offset is given for {name}. {_OFFSETS}, for each partition of the topic.")
        if not held.earliest <= start <= held.end:
            raise ConfigError(
                f"--offsets {source[0]}:{source[1]}={start}: the log holds [{held.earliest}, {held.end})."
            )
        return Line(was, at, now, held, start, None)
    if at is not None and at > held.end:
        raise ConfigError(f"{name} ends at {held.end}, the table at {at}: its records have other offsets. {_OFFSETS}.")
    if same is False:
        raise ConfigError(
            f"the records of {name} have other timestamps than the table's rows of {was.topic}/{was.partition} with "
            f"the same offsets: they are others, or have other offsets. {_OFFSETS}."
        )
    return Line(was, at, now, held, 0 if at is None else at, same)


def to_dict(one: Plan) -> dict[str, object]:
    """Describe the adoption as JSON values: what its entry of the log carries."""
    return {
        "topics": [
            {
                "from": {"topic": m.old, "incarnation": m.old_number, "id": m.old_id},
                "to": {"topic": m.topic, "incarnation": m.number, "id": m.id}, "offsets": m.offsets,
            }
            for m in one.moves
        ],
        "starts": [{**vars(part), "start": at} for part, at in one.starts.items()],
    }  # fmt: skip


def _names(known: Mapping[str, object]) -> str:
    return ", ".join(sorted(known)) or "none"
