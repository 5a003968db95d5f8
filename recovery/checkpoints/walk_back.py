"""L4: rebuilds lost committed offsets from the table's files and an older checkpoint.

Each row says which offset it came from. So the files prove a frontier: behind the last row of each part. A checkpoint
confirms it: the newest that can be read and begins nowhere beyond what the files prove. It also tells of parts without
rows. Nothing is lost, as reading begins behind the last row at the latest; nothing is twice, as it begins behind it.
`choose` is pure, `walk_back` carries it out with one commit, after which a new run begins as on any other day.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from recovery.checkpoints.checks import TopicIds
from recovery.checkpoints.facts import topic_ids
from recovery.checkpoints.reader import Reading, read
from writer.batch.staging import table_file
from writer.clients.kafka import Cluster, choose_topics
from writer.config.pipelines import Config
from writer.core.offsets import Source, TopicPartition
from writer.offsets import checkpoint_backups
from writer.offsets.spark_checkpoint import Checkpoints, Offsets
from writer.offsets.start_decision import LogRange
from writer.storage.base import S3Settings, Store
from writer.storage.locations import store_at
from writer.table.factory import all_tables
from writer.table.log.foreign_writes import reading
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

_PLACE = ("_topic", "_incarnation", "_partition")
_RUNS_MAX = 10  # that are walked back over
_FILES_AT_ONCE = 8
_ROWS_AT_ONCE = 2**16


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that may be walked back to: of a run, or a copy."""

    place: str
    run: int
    reading: Reading


@dataclass(frozen=True)
class RebuiltOffsets:
    """Where to read on, and which checkpoint confirms it."""

    offsets: Mapping[TopicPartition, int]
    place: str
    passed_over: Sequence[str]  # newer ones, and why not they


@dataclass(frozen=True)
class NotRebuilt:
    """No checkpoint agrees with the files: a person must decide where to read on."""

    reason: str
    passed_over: Sequence[str] = ()


def choose(
    candidates: Iterable[Candidate],
    proven: Mapping[TopicPartition, int],
    topics: Mapping[str, TopicIds],
    numbers: Mapping[str, int],
    held: Mapping[Source, LogRange],
) -> RebuiltOffsets | NotRebuilt:
    """Choose the newest checkpoint that agrees with the files, and where each part is read on. Pure.

    `proven`: behind the last row of each part. `numbers`: topic → number of its newest incarnation. `held`: of all
    partitions that the topics have now.
    """
    for topic, ids in sorted(topics.items()):
        if ids.now is None:
            return NotRebuilt(f"topic {topic!r} is not there; create it, or correct the configuration")
        if ids.known not in (None, ids.now):
            return NotRebuilt(f"topic {topic!r} was created again, so offsets of older checkpoints mean other records")
    files = {(p.topic, p.partition): at for p, at in proven.items() if numbers.get(p.topic) == p.incarnation}
    passed = list[str]()
    for candidate in candidates:
        why = _against(candidate.reading, files, topics.keys())
        if why is None:
            start = {**{s: at for s, at in (candidate.reading.start() or {}).items() if s not in files}, **files}
            why = _not_held(start, held)
        if why is None:
            parts = {TopicPartition(t, numbers[t], p): at for (t, p), at in start.items()}
            return RebuiltOffsets(parts, candidate.place, passed)
        passed.append(f"{candidate.place}: {why}")
    return NotRebuilt("no checkpoint can be read and agrees with the table's files", passed)


def walk_back(config: Config, name: str, cluster: Cluster) -> RebuiltOffsets | NotRebuilt:
    """Rebuild a pipeline's committed offsets, and commit those of partitions that have none. Needs a stopped driver.

    What is running is fenced. Raises CommitFailed, StoreError, BrokerUnreachable.
    """
    settings, s3 = config.pipelines[name], config.s3.settings
    tables = all_tables(name, config)
    tables.apply_side_files()  # a side file that waits proves the offsets of its rows as well
    if tables.behind:
        refused = ", ".join(f"{place}: {why}" for place, why in sorted(tables.behind.items()))
        return NotRebuilt(f"tables of the route do not take what was committed for them ({refused})")
    table = tables.main
    snapshot = table.snapshot()
    for place, one in snapshot.targets_by_location.items():
        if one.id and place == one.location and not tables.side(place).exists():
            return NotRebuilt(f"the table of target {one.name!r} at {place} is not there, so its rows prove nothing")
    known = snapshot.incarnations()
    lost = missing(snapshot, rows := proven(config, name))
    if not lost:
        return NotRebuilt("the table tells the frontier of every part that has rows; a new run from it loses nothing")
    names = choose_topics(cluster, settings.topics, known).names
    numbers = {topic: len(known.get(topic, ())) or 1 for topic in names}
    topics = topic_ids(cluster, {topic: known[topic][-1] if known.get(topic) else None for topic in numbers})
    sources = cluster.sources([topic for topic, ids in topics.items() if ids.now is not None])
    earliest, ends = cluster.earliest(sources), cluster.latest(sources)
    checkpoints = Checkpoints(config.checkpoints, name, s3)
    held = {source: LogRange(earliest[source], ends[source]) for source in sources}
    found = choose(candidates(checkpoints, s3), rows, topics, numbers, held)
    if isinstance(found, RebuiltOffsets):
        ids = {topic: known.get(topic) or [str(topics[topic].now)] for topic in names}
        table.begin(found.offsets, {**known, **ids}, checkpoints.newest() or 0)
    return found


def missing(snapshot: PipelineSnapshot, rows: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Parts that have rows and no frontier."""
    return sorted(part for part in rows if snapshot.frontier(part) is None)


def proven(config: Config, name: str) -> dict[TopicPartition, int]:
    """Return the offset behind the last row, dead letter, late row or raw record of each partition.

    Raises CommitFailed.

    Those of all tables of a route count. Reads every file.
    """
    settings, tables = config.pipelines[name], all_tables(name, config)
    snapshot = tables.main.snapshot()
    places = (settings.dead_letters, settings.late_place, *snapshot.targets_by_location, *snapshot.raw_locations)
    side = [tables.side(place) for place in places]
    found: dict[TopicPartition, int] = {}
    for table in [tables.main, *(one for one in side if one.exists())]:
        for part, last in _last(table):
            found[part] = max(last + 1, found.get(part, 0))
    return found


def candidates(checkpoints: Checkpoints, s3: S3Settings | None = None) -> Iterator[Candidate]:
    """Yield checkpoints and copies, of the newest run first, and of each the newest first. Raises StoreError."""
    known = checkpoint_backups.backups(checkpoints.store)
    runs = sorted(checkpoints.runs(), reverse=True)[:_RUNS_MAX]
    for run in runs:
        places = [checkpoints.path(run)]
        places += [f"{checkpoints.store.location}/{copy.folder}" for copy in known if copy.run == run]
        for place in places:
            yield Candidate(place, run, read(store_at(place, s3)))


def _last(table: PipelineTable) -> Iterator[tuple[TopicPartition, int]]:
    with reading(table.location), ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        files = table.bucket_files(table.snapshot())
        for found in threads.map(lambda file: _last_in(table.store, file.path), files):
            yield from found


def _last_in(store: Store, path: str) -> list[tuple[TopicPartition, int]]:
    """Return the last offset of each part in a file; of none where it was taken over, and its rows say no offset."""
    columns, found = [*_PLACE, "_offset"], []
    with table_file.open_parquet(store, path) as file:
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns) if set(columns) <= set(file.names) else ():
            listed = pa.table(batch).group_by(list(_PLACE), use_threads=False).aggregate([("_offset", "max")])
            rows = listed.filter(pc.is_valid(listed.column("_offset_max"))).to_pylist()  # one a part
            found += [(TopicPartition(*(row[name] for name in _PLACE)), row["_offset_max"]) for row in rows]
    return found


def _against(reading: Reading, files: Offsets, topics: Iterable[str]) -> str | None:
    """Return why a checkpoint does not agree with the files; None when it does."""
    start = reading.start()
    if start is None:
        corrupt = next((found for found in reading.corrupt if found.name != "metadata"), None)
        return "it planned no batch" if corrupt is None else f"{corrupt.name}: {corrupt.why}"
    other = {topic for topic, _ in start} - set(topics)
    if other:
        return f"it is of other topics: {', '.join(sorted(other))}"
    for source, at in sorted(start.items()):
        end = files.get(source)
        if end is not None and at > end:
            return f"it begins at offset {at} of {source[0]}/{source[1]}, but the last row there is {end - 1}"
    return None


def _not_held(start: Offsets, held: Mapping[Source, LogRange]) -> str | None:
    for source, at in sorted(start.items()):
        there = held.get(source)
        if there is None or not there.earliest <= at <= there.end:
            what = "no such partition" if there is None else f"[{there.earliest}, {there.end})"
            return f"it would read on at offset {at} of {source[0]}/{source[1]}, of which Kafka holds {what}"
    return None
