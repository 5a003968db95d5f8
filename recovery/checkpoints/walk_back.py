"""L4: rebuilds lost committed offsets from the table's files and an older checkpoint.

Each row says which offset it came from. So the files prove a frontier: behind the last row of each part. A checkpoint
confirms it: the newest that can be read and begins nowhere beyond what the files prove. It also tells of parts without
rows. Nothing is lost, as reading begins behind the last row at the latest; nothing is twice, as it begins behind it.
`choose_offsets` is pure, `walk_back` carries it out with one commit, after which a new run begins as on any other day.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from headrace.recovery.checkpoints.checks import TopicIds
from headrace.recovery.checkpoints.facts import fetch_topic_ids, newest_topic_ids
from headrace.recovery.checkpoints.reader import CheckpointContent, read_checkpoint
from headrace.writer.batch.staging import table_file
from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.config.pipelines import Config
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.offsets import checkpoint_backups
from headrace.writer.offsets.log_check import fetch_log_ranges
from headrace.writer.offsets.spark_checkpoint import Checkpoints, Offsets
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.foreign_writes import reading
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.lost_tables import find_lost_side_tables
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import PipelineTable

_PART_COLUMNS = ["_topic", "_incarnation", "_partition"]
_OFFSET_COLUMN = "_offset"
# Runs that are walked back over.
_RUNS_MAX = 10
_FILES_AT_ONCE = 8
_ROWS_AT_ONCE = 2**16


@dataclass(frozen=True)
class Candidate:
    """A checkpoint that may be walked back to: of a run, or a copy."""

    location: str
    run: int
    content: CheckpointContent


@dataclass(frozen=True)
class RebuiltOffsets:
    """Where to read on, and which checkpoint confirms it."""

    offsets: Mapping[TopicPartition, int]
    location: str
    # Newer checkpoints, and why not they.
    rejected: Sequence[str]


@dataclass(frozen=True)
class NotRebuilt:
    """No checkpoint agrees with the files: a person must decide where to read on."""

    reason: str
    rejected: Sequence[str] = ()


def choose_offsets(
    candidates: Iterable[Candidate],
    proven_offsets: Mapping[TopicPartition, int],
    topics: Mapping[str, TopicIds],
    incarnations: Mapping[str, int],
    log_ranges: Mapping[Source, LogRange],
) -> RebuiltOffsets | NotRebuilt:
    """Choose the newest checkpoint that agrees with the files, and where each part is read on. Pure.

    `proven_offsets`: behind the last row of each part. `incarnations`: topic → number of its newest one. `log_ranges`:
    of all partitions that the topics have now.

    With rows of clicks/0 up to offset 5, none of clicks/1, and Kafka's logs of [0, 20):

        run 3 begins at {clicks/0: 7, clicks/1: 4}  → rejected, clicks/0 is beyond the last row
        run 2 begins at {clicks/0: 5, clicks/1: 4}  → read on at {clicks/0: 6, clicks/1: 4}
    """
    for topic, ids in sorted(topics.items()):
        if ids.current is None:
            return NotRebuilt(f"topic {topic!r} is not there; create it, or correct the configuration")
        if ids.stored is not None and ids.stored != ids.current:
            return NotRebuilt(f"topic {topic!r} was created again, so offsets of older checkpoints mean other records")
    file_offsets = {
        part.source: offset
        for part, offset in proven_offsets.items()
        if incarnations.get(part.topic) == part.incarnation
    }
    rejected = list[str]()
    for candidate in candidates:
        checkpoint_offsets = candidate.content.start_offsets()
        if checkpoint_offsets is None:
            rejected.append(f"{candidate.location}: {_unreadable_reason(candidate.content)}")
            continue
        start = {**checkpoint_offsets, **file_offsets}
        reason = _disagreement(checkpoint_offsets, file_offsets, topics) or _reason_outside_log(start, log_ranges)
        if reason:
            rejected.append(f"{candidate.location}: {reason}")
            continue
        offsets = {
            TopicPartition(topic, incarnations[topic], partition): offset
            for (topic, partition), offset in start.items()
        }
        return RebuiltOffsets(offsets, candidate.location, rejected)
    return NotRebuilt("no checkpoint can be read and agrees with the table's files", rejected)


def walk_back(config: Config, name: str, cluster: Cluster) -> RebuiltOffsets | NotRebuilt:
    """Rebuild a pipeline's committed offsets, and commit those of partitions that have none. Needs a stopped driver.

    What is running is fenced. Raises CommitFailed, StoreError, BrokerUnreachable.
    """
    settings = config.pipelines[name]
    stores = config.stores
    tables = all_tables(name, config)
    for lost in find_lost_side_tables(settings, tables.main, tables.side, tables.main.snapshot()).values():
        return NotRebuilt(f"{lost.reason}, so its rows prove nothing")
    # A side file that waits proves the offsets of its rows as well.
    tables.apply_side_files()
    table = tables.main
    snapshot = table.snapshot()
    if reason := _reason_files_prove_nothing(tables, snapshot):
        return NotRebuilt(reason)
    proven = proven_offsets(config, name)
    if not parts_without_frontier(snapshot, proven):
        return NotRebuilt("the table tells the frontier of every part that has rows; a new run from it loses nothing")
    stored_ids = snapshot.incarnations()
    names = choose_topics(cluster, settings.topics, stored_ids).names
    newest_ids = newest_topic_ids(names, stored_ids)
    incarnations = {topic: len(stored_ids.get(topic, ())) or 1 for topic in names}
    topics = fetch_topic_ids(cluster, newest_ids)
    checkpoints = Checkpoints(config.checkpoints, name, stores)
    candidates = list_candidates(checkpoints, stores)
    result = choose_offsets(candidates, proven, topics, incarnations, _fetch_log_ranges(cluster, topics))
    if isinstance(result, RebuiltOffsets):
        ids = {topic: stored_ids.get(topic) or [str(topics[topic].current)] for topic in names}
        table.begin(result.offsets, {**stored_ids, **ids}, checkpoints.newest() or 0)
    return result


def parts_without_frontier(
    snapshot: PipelineSnapshot, proven_offsets: Mapping[TopicPartition, int]
) -> list[TopicPartition]:
    """Return the parts that have rows, and of which the table does not say how far they were read."""
    return sorted(part for part in proven_offsets if snapshot.frontier(part) is None)


def proven_offsets(config: Config, name: str) -> dict[TopicPartition, int]:
    """Return the offset behind the last row, dead letter, late row or raw record of each partition.

    Raises CommitFailed.

    Those of all tables of a route count. Reads every file.
    """
    settings = config.pipelines[name]
    tables = all_tables(name, config)
    snapshot = tables.main.snapshot()
    locations = (
        settings.dead_letters,
        settings.late_place,
        *snapshot.targets_by_location,
        *snapshot.raw_locations,
    )
    side_tables = [tables.side(location) for location in locations]
    offsets: dict[TopicPartition, int] = {}
    for table in [tables.main, *(table for table in side_tables if table.exists())]:
        for part, last_offset in _last_offsets(table):
            offsets[part] = max(last_offset + 1, offsets.get(part, 0))
    return offsets


def list_candidates(checkpoints: Checkpoints, stores: StoreSettings | None = None) -> Iterator[Candidate]:
    """Yield checkpoints and copies, of the newest run first, and of each the newest first. Raises StoreError."""
    copies = checkpoint_backups.list_backups(checkpoints.store)
    runs = sorted(checkpoints.runs(), reverse=True)[:_RUNS_MAX]
    for run in runs:
        locations = [checkpoints.path(run)]
        locations += [f"{checkpoints.store.location}/{copy.folder}" for copy in copies if copy.run == run]
        for location in locations:
            yield Candidate(location, run, read_checkpoint(store_at(location, stores)))


def _reason_files_prove_nothing(tables: Tables, snapshot: PipelineSnapshot) -> str:
    """Return why the files do not show how far each part was read; empty where they do."""
    if tables.behind:
        reasons = ", ".join(f"{location}: {reason}" for location, reason in sorted(tables.behind.items()))
        return f"tables of the route do not take what was committed for them ({reasons})"
    for location, target in snapshot.targets_by_location.items():
        if target.id and location == target.location and not tables.side(location).exists():
            return f"the table of target {target.name!r} at {location} is not there, so its rows prove nothing"
    return ""


def _fetch_log_ranges(cluster: Cluster, topics: Mapping[str, TopicIds]) -> dict[Source, LogRange]:
    """Ask what Kafka holds of the partitions of topics that are there. Raises BrokerUnreachable."""
    sources = cluster.sources([topic for topic, ids in topics.items() if ids.current is not None])
    return fetch_log_ranges(cluster, sources)


def _last_offsets(table: PipelineTable) -> Iterator[tuple[TopicPartition, int]]:
    """Yield the last offset of each part in each file of a table."""
    with reading(table.location), ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        files = table.bucket_files(table.snapshot())
        for offsets in threads.map(lambda file: _last_offsets_in_file(table.store, file.path), files):
            yield from offsets


def _last_offsets_in_file(store: Store, path: str) -> list[tuple[TopicPartition, int]]:
    """Return the last offset of each part in a file; of none where it was taken over, and its rows say no offset.

    Rows of (_topic, _incarnation, _partition, _offset), from two batches of the file:

        (clicks, 1, 0, 7), (clicks, 1, 1, 3)  → (clicks/0, 7), (clicks/1, 3)
        (clicks, 1, 0, 8), (clicks, 1, 1, null)  → (clicks/0, 8)
    """
    columns = [*_PART_COLUMNS, _OFFSET_COLUMN]
    offsets = list[tuple[TopicPartition, int]]()
    with table_file.open_parquet(store, path) as file:
        if not set(columns) <= set(file.names):
            return []
        for batch in file.iter_batches(_ROWS_AT_ONCE, columns):
            groups = pa.table(batch).group_by(_PART_COLUMNS, use_threads=False)
            newest = groups.aggregate([(_OFFSET_COLUMN, "max")])
            newest = newest.filter(pc.is_valid(newest.column(f"{_OFFSET_COLUMN}_max")))
            # One row for each part.
            for row in newest.to_pylist():
                part = TopicPartition(*(row[column] for column in _PART_COLUMNS))
                offsets.append((part, row[f"{_OFFSET_COLUMN}_max"]))
    return offsets


def _unreadable_reason(content: CheckpointContent) -> str:
    """Return why a checkpoint does not say where it begins."""
    for file in content.corrupt:
        if file.name != "metadata":
            return f"{file.name}: {file.reason}"
    return "it planned no batch"


def _disagreement(start: Offsets, file_offsets: Offsets, topics: Mapping[str, TopicIds]) -> str:
    """Return why a checkpoint does not agree with the files; empty when it does."""
    other_topics = sorted({topic for topic, _ in start} - topics.keys())
    if other_topics:
        return f"it is of other topics: {', '.join(other_topics)}"
    for source, offset in sorted(start.items()):
        proven_offset = file_offsets.get(source)
        if proven_offset is not None and offset > proven_offset:
            last_offset = proven_offset - 1
            return f"it begins at offset {offset} of {source[0]}/{source[1]}, but the last row there is {last_offset}"
    return ""


def _reason_outside_log(start: Offsets, log_ranges: Mapping[Source, LogRange]) -> str:
    """Return why Kafka does not hold what would be read; empty when it does."""
    for source, offset in sorted(start.items()):
        log_range = log_ranges.get(source)
        if log_range is not None and log_range.earliest <= offset <= log_range.end:
            continue
        shown_range = "no such partition"
        if log_range is not None:
            shown_range = f"[{log_range.earliest}, {log_range.end})"
        return f"it would read on at offset {offset} of {source[0]}/{source[1]}, of which Kafka holds {shown_range}"
    return ""
