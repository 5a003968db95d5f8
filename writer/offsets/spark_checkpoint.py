"""Reads Spark's checkpoint, and compares it with the table before a start uses it.

Layout: `<checkpoints>/<pipeline>/<run id>/`, run ids increasing. Inside a run, Spark writes `offsets/N` before batch N
runs, `commits/N` after it, and `sources/0/0` with the first start.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from headrace.writer.core.errors import CheckpointUnusable
from headrace.writer.core.offsets import Source, source_name
from headrace.writer.core.text import plural
from headrace.writer.offsets.start_decision import Refuse
from headrace.writer.storage.base import StoreError, Unanswered
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.settings import StoreSettings

Offsets = Mapping[Source, int]
# Of the files of offsets that Spark writes for a source without a name.
VERSION = "v1"
# Of commits: v2 where `stateStore.checkpointFormatVersion` is 2.
COMMIT_VERSIONS = ("v1", "v2")
NO_FILE = "is a directory, where Spark has a file"
NO_DIRECTORY = "is a file, where Spark has a directory"
# Of the files that were read last.
_CRCS_MAX = 8
# Of a line that is not understood, in an error.
_SHOWN_CHARACTERS_MAX = 80


@dataclass(frozen=True)
class NextBatch:
    """What a checkpoint would do next: read from `start`; to `end`, when the batch was planned already."""

    start: Offsets
    end: Offsets | None


@dataclass(frozen=True)
class Resume:
    """Continue this run's checkpoint."""

    run: int


@dataclass(frozen=True)
class NewRun:
    """Begin a checkpoint of its own from the table's frontier."""

    run: int
    reason: str


def decide(
    newest: int | None, next_batch: NextBatch | None, frontier: Offsets, *, can_replay: bool = True
) -> Resume | NewRun | Refuse:
    """Choose between the newest run's checkpoint and a new run. Pure.

    A checkpoint that begins where the table ends is continued. One that lags is replaced (the table already has what it
    would read). One that is ahead would skip records: refused. `can_replay`: whether this Spark reads a batch again
    that an earlier start planned; if not, such a checkpoint is replaced.
    """
    if newest is None:
        return NewRun(1, "there is no checkpoint")
    if next_batch is None:
        return NewRun(newest + 1, f"run {newest} planned no batch")
    ahead = {source: offset for source, offset in next_batch.start.items() if offset > frontier.get(source, offset)}
    if ahead:
        source, offset = min(ahead.items())
        committed_offset = frontier[source]
        return Refuse(
            f"run {newest} would continue {source_name(source)} at offset {offset}, but the table ends at "
            f"{committed_offset}: {plural(offset - committed_offset, 'offset')} would be skipped"
        )
    if next_batch.start.keys() != frontier.keys():
        return NewRun(newest + 1, f"run {newest} knows other partitions than the table")
    if next_batch.end is not None and not can_replay:
        return NewRun(newest + 1, f"run {newest} planned a batch that this version of Spark cannot read again")
    if all(next_batch.start[source] == offset for source, offset in frontier.items()):
        return Resume(newest)
    # The batch is in the table, only Spark does not know yet.
    if next_batch.end is not None and all(next_batch.end.get(source) == offset for source, offset in frontier.items()):
        return Resume(newest)
    return NewRun(newest + 1, f"run {newest} is older than the table")


class Checkpoints:
    """The checkpoint runs of one pipeline. Where the storage does not answer, Unanswered is raised as it is."""

    def __init__(self, location: str, pipeline: str, stores: StoreSettings | None = None) -> None:
        self.store = store_at(f"{location.rstrip('/')}/{pipeline}", stores)
        self._crcs = dict[str, int]()

    def newest(self) -> int | None:
        """Return the highest run id that has a directory."""
        return max(self.runs(), default=None)

    def runs(self) -> list[int]:
        """Return the ids of all runs that have a directory, in any order."""
        folders = [name.removesuffix("/") for name in self.store.list() if name.endswith("/")]
        return [int(name) for name in folders if name.isdecimal()]

    def path(self, run: int) -> str:
        """Location that Spark gets for this run."""
        return f"{self.store.location}/{run:06d}"

    def choose(self, frontier: Offsets, reason: str, closed: int, *, can_replay: bool = True) -> Resume | NewRun:
        """Choose the checkpoint of a start. `reason` asks for a new run, runs up to `closed` too.

        `can_replay`: as `decide` takes it. Raises CheckpointUnusable.
        """
        newest = self.newest()
        if newest is not None and newest <= closed:
            reason = (
                reason or f"run {newest} was closed: an earlier start, an adoption or a skip went on from other offsets"
            )
        if reason:
            return NewRun((newest or 0) + 1, reason)
        next_batch = None if newest is None else self.next_batch(newest)
        decision = decide(newest, next_batch, frontier, can_replay=can_replay)
        if isinstance(decision, Refuse):
            raise CheckpointUnusable(decision.reason)
        return decision

    def next_batch(self, run: int) -> NextBatch | None:
        """Read what Spark would do next; None when it never planned a batch. Raises CheckpointUnusable."""
        batches = self._numbers(run, "offsets")
        commits = self._numbers(run, "commits")
        if not batches:
            if commits:
                raise self._unusable(run, "offsets/ is empty, but commits/ is not")
            return None
        last = batches[-1]
        self._check_files(run, commits)
        if commits and commits[-1] == last:
            # Spark reads the file before the last one, too.
            if last > 0:
                self.end_offsets(run, last - 1)
            return NextBatch(self.end_offsets(run, last), None)
        if commits and commits[-1] != last - 1:
            raise self._unusable(
                run, f"offsets end at batch {last}, commits at {commits[-1]}: batches between are in doubt"
            )
        start, end = self.batch_offsets(run, last)
        return NextBatch(start, end)

    def batch_offsets(self, run: int, batch: int) -> tuple[Offsets, Offsets]:
        """Return the offsets [start, end) of a planned batch. A partition new in it starts at 0, as Spark insists."""
        end = self.end_offsets(run, batch)
        start = self.end_offsets(run, batch - 1) if batch > 0 else self._read(run, "sources/0/0", line=1)
        return {source: start.get(source, 0) for source in end}, end

    def end_offsets(self, run: int, batch: int) -> Offsets:
        """Read the end offsets of a batch from Spark's offset log."""
        return self._read(run, f"offsets/{batch}", line=2)

    def crc(self, run: int, batch: int) -> int | None:
        """Return the checksum of a batch's offset file as it was last read here; None when it was not."""
        return self._crcs.get(f"{run:06d}/offsets/{batch}")

    def query_id(self, run: int) -> str | None:
        """Read the id that Spark gave its query; None while there is none. Raises CheckpointUnusable."""
        try:
            file = self.store.read(f"{run:06d}/metadata")
            return None if file is None else str(json.loads(file.content)["id"])
        except Unanswered:
            raise
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._unusable(run, f"metadata cannot be read ({type(error).__name__}: {error})") from error

    def _check_files(self, run: int, commits: list[int]) -> None:
        """Raise CheckpointUnusable for a file that Spark would fail on again and again."""
        if "metadata/" in self.store.list(f"{run:06d}"):
            raise self._unusable(run, f"metadata {NO_FILE}")
        self.query_id(run)
        if commits:
            name = f"commits/{commits[-1]}"
            try:
                json.loads(self._lines(run, name, COMMIT_VERSIONS)[1])
            except Unanswered:
                raise
            except (OSError, ValueError, IndexError) as error:
                raise self._unusable(run, f"{name} cannot be read ({type(error).__name__}: {error})") from error

    def _numbers(self, run: int, folder: str) -> list[int]:
        if folder in self.store.list(f"{run:06d}"):
            raise self._unusable(run, f"{folder} {NO_DIRECTORY}")
        names = list(self.store.list(f"{run:06d}/{folder}"))
        blocking = blocking_directories(names)
        if blocking:
            raise self._unusable(run, f"{folder}/{blocking[0]} {NO_FILE}")
        return sorted(int(name) for name in names if name.isdecimal())

    def _read(self, run: int, name: str, *, line: int) -> Offsets:
        try:
            return parse_offsets(self._lines(run, name, (VERSION,))[line])
        except Unanswered:
            # It passes, and says nothing of the file.
            raise
        except (OSError, ValueError, IndexError) as error:
            raise self._unusable(run, f"{name} cannot be read ({type(error).__name__}: {error})") from error

    def _lines(self, run: int, name: str, versions: Sequence[str]) -> list[str]:
        try:
            file = self.store.read(f"{run:06d}/{name}")
        except StoreError as error:
            if isinstance(error.__cause__, IsADirectoryError):
                raise self._unusable(run, f"{name} {NO_FILE}") from error
            raise
        if file is None:
            raise self._unusable(run, f"{name} cannot be read (there is none)")
        self._crcs[f"{run:06d}/{name}"] = crc32(file.content)
        if len(self._crcs) > _CRCS_MAX:
            del self._crcs[next(iter(self._crcs))]
        lines = split_lines(file.content)
        if lines[0] not in versions:
            raise self._unusable(run, f"{name} has version {lines[0]!r}, only {' and '.join(versions)} is known")
        return lines

    def _unusable(self, run: int, why: str) -> CheckpointUnusable:
        return CheckpointUnusable(f"checkpoint {self.path(run)}: {why}")


def blocking_directories(names: Collection[str]) -> list[int]:
    """Return the numbers of directories that stand where Spark is to write a file: beyond the newest file of a log.

    `names`: what a store lists of the log's folder.
    """
    newest = max((int(name) for name in names if name.isdecimal()), default=-1)
    numbers = (int(name[:-1]) for name in names if name.endswith("/") and name[:-1].isdecimal())
    return sorted(number for number in numbers if number > newest)


def split_lines(content: bytes) -> list[str]:
    """Split a file of Spark's logs: its version, for batches a line of metadata, then a line for each source.

    Raises ValueError.
    """
    return content.decode().lstrip("\0").splitlines()


def parse_offsets(line: str) -> dict[Source, int]:
    """Read the offsets of a Kafka source: JSON {topic: {partition: offset}}. Raises ValueError."""
    raw = json.loads(line)
    if not isinstance(raw, dict) or not all(isinstance(partitions, dict) for partitions in raw.values()):
        raise ValueError(f"{line[:_SHOWN_CHARACTERS_MAX]!r} is no mapping of topics to partitions")
    offsets: dict[Source, int] = {}
    for topic, partitions in raw.items():
        for partition, offset in partitions.items():
            offsets[topic, int(partition)] = _check_offset(offset)
    return offsets


def offsets_by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return offsets in the form that `parse_offsets` reads."""
    partitions: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        partitions.setdefault(topic, {})[str(partition)] = offset
    return partitions


def _check_offset(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no offset")
    return value
