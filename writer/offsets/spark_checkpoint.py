"""Reads Spark's checkpoint, and compares it with the table before a start uses it.

Layout: `<checkpoints>/<pipeline>/<run id>/`, run ids increasing. Inside a run, Spark writes `offsets/N` before batch N
runs, `commits/N` after it, and `sources/0/0` with the first start.
"""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from zlib import crc32

from writer.core.errors import CheckpointUnusable
from writer.core.offsets import Source
from writer.offsets.start_decision import Refuse
from writer.storage.base import S3Settings, StoreError, Unanswered
from writer.storage.locations import store_at

Offsets = Mapping[Source, int]
VERSION = "v1"  # of the files of offsets that Spark 4.0 reads and writes
COMMIT_VERSIONS = ("v1", "v2")  # of commits: v2 where `stateStore.checkpointFormatVersion` is 2
NO_FILE = "is a directory, where Spark has a file"
NO_DIRECTORY = "is a file, where Spark has a directory"
_CRCS_KEPT = 8  # of files that were read last
_SHOWN = 80  # characters of a line that is not understood


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


def decide(newest: int | None, planned: NextBatch | None, frontier: Offsets) -> Resume | NewRun | Refuse:
    """Choose between the newest run's checkpoint and a new run. Pure.

    A checkpoint that begins where the table ends is continued. One that lags is replaced (the table already has what it
    would read). One that is ahead would skip records: refused.
    """
    if newest is None or planned is None:
        return NewRun(
            (newest or 0) + 1, "there is no checkpoint" if newest is None else f"run {newest} planned no batch"
        )
    ahead = {s: o for s, o in planned.start.items() if o > frontier.get(s, o)}
    if ahead:
        (topic, partition), offset = min(ahead.items())
        return Refuse(
            f"run {newest} would continue {topic}/{partition} at offset {offset}, but the table ends at "
            f"{frontier[topic, partition]}: {offset - frontier[topic, partition]} records would be lost"
        )
    if planned.start.keys() != frontier.keys():
        return NewRun(newest + 1, f"run {newest} knows other partitions than the table")
    if all(planned.start[s] == frontier[s] for s in frontier):
        return Resume(newest)
    if planned.end is not None and all(planned.end.get(s) == frontier[s] for s in frontier):
        return Resume(newest)  # the batch is in the table, only Spark does not know yet
    return NewRun(newest + 1, f"run {newest} is older than the table")


class Checkpoints:
    """The checkpoint runs of one pipeline. Where the storage does not answer, Unanswered is raised as it is."""

    def __init__(self, location: str, pipeline: str, s3: S3Settings | None = None) -> None:
        self.store = store_at(f"{location.rstrip('/')}/{pipeline}", s3)
        self._crcs = dict[str, int]()

    def newest(self) -> int | None:
        """Return the highest run id that has a directory."""
        return max(self.runs(), default=None)

    def runs(self) -> list[int]:
        """Return the ids of all runs that have a directory, in any order."""
        folders = [name.removesuffix("/") for name in self.store.list() if name.endswith("/")]
        return [int(name) for name in folders if name.isdigit()]

    def path(self, run: int) -> str:
        """Location that Spark gets for this run."""
        return f"{self.store.location}/{run:06d}"

    def choose(self, frontier: Offsets, reason: str, closed: int) -> Resume | NewRun:
        """Choose the checkpoint of a start. `reason` asks for a new run, runs up to `closed` too.

        Raises CheckpointUnusable.
        """
        newest = self.newest()
        if newest is not None and newest <= closed:
            reason = reason or f"run {newest} was closed: an earlier start, or an adoption, went on from other offsets"
        if reason:
            return NewRun((newest or 0) + 1, reason)
        decision = decide(newest, None if newest is None else self.planned(newest), frontier)
        if isinstance(decision, Refuse):
            raise CheckpointUnusable(decision.reason)
        return decision

    def planned(self, run: int) -> NextBatch | None:
        """Read what Spark would do next; None when it never planned a batch. Raises CheckpointUnusable."""
        batches, done = self._numbers(run, "offsets"), self._numbers(run, "commits")
        if not batches:
            if done:
                raise self._unusable(run, "offsets/ is empty, but commits/ is not")
            return None
        last = batches[-1]
        self._check_what_spark_reads(run, done)
        if done and done[-1] == last:
            if last > 0:
                self.ends(run, last - 1)  # Spark reads it, too
            return NextBatch(self.ends(run, last), None)
        if done and done[-1] != last - 1:
            raise self._unusable(
                run, f"offsets end at batch {last}, commits at {done[-1]}: batches between are in doubt"
            )
        start, end = self.range(run, last)
        return NextBatch(start, end)

    def range(self, run: int, batch: int) -> tuple[Offsets, Offsets]:
        """Offsets [start, end) of a planned batch. A partition that is new in it starts at 0, as Spark insists."""
        end = self.ends(run, batch)
        start = self.ends(run, batch - 1) if batch > 0 else self._read(run, "sources/0/0", line=1)
        return {source: start.get(source, 0) for source in end}, end

    def ends(self, run: int, batch: int) -> Offsets:
        """Read the end offsets of a batch from Spark's offset log."""
        return self._read(run, f"offsets/{batch}", line=2)

    def crc(self, run: int, batch: int) -> int | None:
        """Checksum of a batch's offset file as it was last read here; None when it was not."""
        return self._crcs.get(f"{run:06d}/offsets/{batch}")

    def query_id(self, run: int) -> str | None:
        """Read the id that Spark gave its query; None while there is none. Raises CheckpointUnusable."""
        try:
            found = self.store.read(f"{run:06d}/metadata")
            return None if found is None else str(json.loads(found.content)["id"])
        except Unanswered:
            raise
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise self._unusable(run, f"metadata cannot be read ({type(error).__name__}: {error})") from error

    def _check_what_spark_reads(self, run: int, done: list[int]) -> None:
        """Raise CheckpointUnusable for a file that Spark would fail on again and again."""
        if "metadata/" in self.store.list(f"{run:06d}"):
            raise self._unusable(run, f"metadata {NO_FILE}")
        self.query_id(run)
        if done:
            name = f"commits/{done[-1]}"
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
        if found := directories(names):
            raise self._unusable(run, f"{folder}/{found[0]} {NO_FILE}")
        return sorted(int(name) for name in names if name.isdigit())

    def _read(self, run: int, name: str, *, line: int) -> Offsets:
        try:
            return offsets_of(self._lines(run, name, (VERSION,))[line])
        except Unanswered:  # it passes, and says nothing of the file
            raise
        except (OSError, ValueError, IndexError) as error:
            raise self._unusable(run, f"{name} cannot be read ({type(error).__name__}: {error})") from error

    def _lines(self, run: int, name: str, versions: Sequence[str]) -> list[str]:
        try:
            found = self.store.read(f"{run:06d}/{name}")
        except StoreError as error:
            if isinstance(error.__cause__, IsADirectoryError):
                raise self._unusable(run, f"{name} {NO_FILE}") from error
            raise
        if found is None:
            raise self._unusable(run, f"{name} cannot be read (there is none)")
        self._crcs[f"{run:06d}/{name}"] = crc32(found.content)
        if len(self._crcs) > _CRCS_KEPT:
            del self._crcs[next(iter(self._crcs))]
        lines = lines_of(found.content)
        if lines[0] not in versions:
            raise self._unusable(run, f"{name} has version {lines[0]!r}, only {' and '.join(versions)} is known")
        return lines

    def _unusable(self, run: int, why: str) -> CheckpointUnusable:
        return CheckpointUnusable(f"checkpoint {self.path(run)}: {why}")


def directories(names: Collection[str]) -> list[int]:
    """Return the numbers of directories that stand where Spark is to write a file: beyond the newest file of a log.

    `names`: what a store lists of the log's folder.
    """
    newest = max((int(name) for name in names if name.isdigit()), default=-1)
    numbers = (int(name[:-1]) for name in names if name.endswith("/") and name[:-1].isdigit())
    return sorted(number for number in numbers if number > newest)


def lines_of(content: bytes) -> list[str]:
    """Take a file of Spark's logs apart: its version, for batches a line of metadata, then a line for each source.

    Raises ValueError.
    """
    return content.decode().lstrip("\0").splitlines()


def offsets_of(line: str) -> dict[Source, int]:
    """Read the offsets of a Kafka source: JSON {topic: {partition: offset}}. Raises ValueError."""
    raw = json.loads(line)
    if not isinstance(raw, dict) or not all(isinstance(partitions, dict) for partitions in raw.values()):
        raise ValueError(f"{line[:_SHOWN]!r} is no mapping of topics to partitions")
    return {(topic, int(p)): _offset(found) for topic, partitions in raw.items() for p, found in partitions.items()}


def by_topic(offsets: Offsets) -> dict[str, dict[str, int]]:
    """Return what `offsets_of` reads."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def _offset(found: object) -> int:
    if not isinstance(found, int) or isinstance(found, bool) or found < 0:
        raise ValueError(f"{found!r} is no offset")
    return found
