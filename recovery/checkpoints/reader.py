"""Reads Spark's checkpoint: each file is parsed, or reported as corrupt with the reason.

Any Structured Streaming checkpoint with a Kafka source, also one that headrace did not write: several sources, state,
other versions of the files. It describes also those that
`writer/offsets/spark_checkpoint.py` refuses. It changes nothing.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from headrace.writer.core.offsets import Source
from headrace.writer.offsets.spark_checkpoint import (
    COMMIT_VERSIONS,
    NO_DIRECTORY,
    NO_FILE,
    VERSION,
    Offsets,
    blocking_directories,
    parse_offsets,
    split_lines,
)
from headrace.writer.storage.base import Store

# A checksum of Hadoop's, beside each file; local disks only.
_CHECKSUM = re.compile(r"\.(\d+)\.crc")
_T = TypeVar("_T")
_FOLDERS = ("commits", "offsets", "sources", "state")
# Files that are read from a store at once: each takes a round trip to answer.
_FILES_AT_ONCE = 16
# Version and metadata stand before the sources.
_LINES_BEFORE_SOURCES = 2
_LINE_SHOWN = 80
_QUERY_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class CorruptFile:
    """A file that cannot be understood."""

    name: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """One planned batch: for each source where it ends. None: the source is none of Kafka's, or had nothing yet."""

    sources: Sequence[Offsets | None]
    # Watermark, time, and the settings that Spark keeps with the batch.
    metadata: Mapping[str, Any]
    content: bytes

    @property
    def end_offsets(self) -> Offsets:
        """Offsets of all Kafka sources together; of a partition that is read twice, the lesser."""
        end_offsets: dict[Source, int] = {}
        for offsets in self.sources:
            for source, offset in (offsets or {}).items():
                end_offsets[source] = min(offset, end_offsets.get(source, offset))
        return end_offsets


@dataclass(frozen=True)
class CheckpointContent:
    """What lies in a checkpoint."""

    location: str
    # None: metadata is missing or corrupt.
    query_id: str | None = None
    # The batches whose files are whole.
    batches: Mapping[int, Batch] = field(default_factory=dict)
    # Numbers in offsets/, corrupt ones included, ascending.
    planned: Sequence[int] = ()
    # Numbers in commits/, corrupt ones included, ascending.
    committed: Sequence[int] = ()
    # Number of a source → where it began.
    source_starts: Mapping[int, Offsets] = field(default_factory=dict)
    corrupt: Sequence[CorruptFile] = ()
    # Files of a version that headrace does not read.
    newer: Sequence[CorruptFile] = ()
    # Checksums of files that are not there, which would stand in Spark's way.
    orphaned_checksums: Sequence[str] = ()
    # Directories that stand where Spark is to write a file; each with a slash at its end.
    directories: Sequence[str] = ()

    @property
    def is_missing(self) -> bool:
        """There is no checkpoint."""
        has_batches = self.planned or self.committed
        return not has_batches and self.query_id is None and not self.corrupt

    @property
    def newest_batch(self) -> int | None:
        """Number of the newest batch that was planned."""
        return self.planned[-1] if self.planned else None

    @property
    def is_finished(self) -> bool:
        """The newest batch is done, as far as Spark knows."""
        return bool(self.planned) and bool(self.committed) and self.committed[-1] >= self.planned[-1]

    def start_offsets(self) -> Offsets | None:
        """Where the next batch begins; None if the files do not show it."""
        if self.newest_batch is None:
            return None
        if self.is_finished:
            return self._end_offsets_of(self.newest_batch)
        if self.newest_batch == 0:
            start_offsets: dict[Source, int] = {}
            for offsets in self.source_starts.values():
                start_offsets.update(offsets)
            return start_offsets or None
        return self._end_offsets_of(self.newest_batch - 1)

    def end_offsets(self) -> Offsets | None:
        """Where the batch ends that was planned and is not done; None where there is none, or its file is corrupt."""
        if self.newest_batch is None or self.is_finished:
            return None
        return self._end_offsets_of(self.newest_batch)

    def corruption_of(self, name: str) -> str | None:
        """Why a file is corrupt; None when it is whole or missing."""
        return next((file.reason for file in self.corrupt if file.name == name), None)

    def _end_offsets_of(self, number: int) -> Offsets | None:
        batch = self.batches.get(number)
        return None if batch is None else batch.end_offsets


def read_checkpoint(store: Store) -> CheckpointContent:
    """Read the checkpoint that lies at a store's location. Raises StoreError."""
    root = set(store.list())
    # Commits first: of a query that is at work, a plan may come in between, and never a commit without its plan.
    names: dict[str, list[str]] = {"commits": [], "offsets": []}
    for folder in names:
        # A file in its place is reported as corrupt.
        if folder not in root:
            names[folder] = list(store.list(folder))
    planned = _numbers(names["offsets"])
    committed = _numbers(names["commits"])
    newer = list[CorruptFile]()
    corrupt = [CorruptFile(folder, f"it {NO_DIRECTORY}") for folder in _FOLDERS if folder in root]
    query_id = _read_query_id(store, corrupt, root)
    batches = dict(_parse_files(store, "offsets", planned, _parse_batch, corrupt, newer))
    # Commits have no content that counts: only those that cannot be parsed are recorded.
    dict(_parse_files(store, "commits", committed, _check_commit, corrupt, newer))
    misplaced = list[str]()
    for folder, listed in names.items():
        misplaced += [f"{folder}/{number}/" for number in blocking_directories(listed)]
    return CheckpointContent(
        location=store.location,
        query_id=query_id,
        batches=batches,
        planned=planned,
        committed=committed,
        source_starts=_read_source_starts(store, corrupt, root),
        corrupt=corrupt,
        newer=newer,
        orphaned_checksums=_find_orphaned_checksums(store, names, root),
        directories=misplaced,
    )


def _parse_files(
    store: Store,
    folder: str,
    numbers: Sequence[int],
    parse: Callable[[bytes], _T],
    corrupt: list[CorruptFile],
    newer: list[CorruptFile],
) -> Iterator[tuple[int, _T]]:
    """Yield the contents of a log's files, by number; record those that cannot be parsed."""
    names = [f"{folder}/{number}" for number in numbers]
    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        contents = list(threads.map(lambda name: _read_content(store, name), names))
    for number, name, content in zip(numbers, names, contents, strict=True):
        try:
            yield number, parse(content)
        except _NewerVersionError as error:
            newer.append(CorruptFile(name, str(error)))
        except (ValueError, IndexError) as error:
            corrupt.append(CorruptFile(name, _corruption(content, error)))


class _NewerVersionError(Exception):
    """A file is of a version that headrace does not read."""


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdecimal())


def _find_orphaned_checksums(store: Store, logs: Mapping[str, Sequence[str]], root: Collection[str]) -> list[str]:
    """Return checksums without their file, where Spark is to write that file."""
    orphaned = list[str]()
    for folder, names in logs.items():
        orphaned += [f"{folder}/{name}" for name in _checksums_beyond_newest(names)]
    if ".metadata.crc" in root and "metadata" not in root:
        orphaned.append(".metadata.crc")
    for folder in _source_folders(store, root):
        listed = set(store.list(folder))
        if ".0.crc" in listed and "0" not in listed:
            orphaned.append(f"{folder}/.0.crc")
    return sorted(orphaned)


def _checksums_beyond_newest(names: Sequence[str]) -> list[str]:
    """Return checksums of numbers beyond the newest file: they are in the way of a file that Spark has yet to write."""
    newest = max(_numbers(names), default=-1)
    checksums = list[str]()
    for name in names:
        match = _CHECKSUM.fullmatch(name.rstrip("/"))
        if match and int(match[1]) > newest:
            checksums.append(name)
    return checksums


def _read_content(store: Store, name: str) -> bytes:
    file = store.read(name)
    if file is None:
        return b""
    return file.content


def _parse_batch(content: bytes) -> Batch:
    lines = split_lines(content)
    _check_version(lines[0], (VERSION,))
    metadata = json.loads(lines[1])
    if not isinstance(metadata, dict):
        raise ValueError(f"its metadata {lines[1][:_LINE_SHOWN]!r} is no mapping")  # noqa: TRY004 - damage, not a bug
    if len(lines) == _LINES_BEFORE_SOURCES:
        raise ValueError("no source stands in it")
    return Batch([_parse_source(line) for line in lines[_LINES_BEFORE_SOURCES:]], metadata, content)


def _parse_source(line: str) -> Offsets | None:
    """Read one source's line; None for a source that is none of Kafka's (its line is whole JSON, or a dash)."""
    if line == "-":
        return None
    raw = json.loads(line)
    is_kafka = isinstance(raw, dict) and all(isinstance(partitions, dict) for partitions in raw.values())
    return parse_offsets(line) if is_kafka else None


def _check_commit(content: bytes) -> None:
    lines = split_lines(content)
    _check_version(lines[0], COMMIT_VERSIONS)
    json.loads(lines[1])


def _check_version(line: str, versions: Sequence[str]) -> None:
    if line in versions:
        return
    if re.fullmatch(r"v\d+", line):
        raise _NewerVersionError(f"version {line}, headrace reads {' and '.join(versions)}")
    raise ValueError(f"{line[:_LINE_SHOWN]!r} is no version")


def _read_query_id(store: Store, corrupt: list[CorruptFile], root: Collection[str]) -> str | None:
    """Return the query's id; None where there is none, or it is corrupt, which is recorded."""
    if "metadata/" in root:
        corrupt.append(CorruptFile("metadata", f"it {NO_FILE}"))
        return None
    file = store.read("metadata")
    if file is None:
        return None
    try:
        query_id = json.loads(file.content)["id"]
    except (ValueError, LookupError, TypeError) as error:
        corrupt.append(CorruptFile("metadata", _corruption(file.content, error)))
        return None
    if isinstance(query_id, str) and _QUERY_ID.fullmatch(query_id):
        return query_id
    corrupt.append(CorruptFile("metadata", f"its id {query_id!r} is none"))
    return None


def _source_folders(store: Store, root: Collection[str]) -> list[str]:
    """Return the folders of the sources."""
    if "sources" in root:
        return []
    return [f"sources/{name[:-1]}" for name in store.list("sources") if name.endswith("/")]


def _read_source_starts(store: Store, corrupt: list[CorruptFile], root: Collection[str]) -> dict[int, Offsets]:
    """Return where each Kafka source began, by its number; record files that cannot be parsed."""
    starts = dict[int, Offsets]()
    for folder in _source_folders(store, root):
        name = f"{folder}/0"
        number = folder.removeprefix("sources/")
        if "0/" in store.list(folder):
            corrupt.append(CorruptFile(name, f"it {NO_FILE}"))
            continue
        file = store.read(name) if number.isdecimal() else None
        if file is None:
            continue
        try:
            lines = split_lines(file.content)
            # Another source keeps something else there.
            if lines[0] == VERSION and lines[1].startswith("{"):
                starts[int(number)] = parse_offsets(lines[1])
        except (ValueError, IndexError) as error:
            corrupt.append(CorruptFile(name, _corruption(file.content, error)))
    return starts


def _corruption(content: bytes, error: Exception) -> str:
    """Return in words why a file cannot be parsed."""
    if not content.strip(b"\n"):
        return "it is empty"
    if not content.strip(b"\0\n"):
        return f"it holds nothing but {len(content)} zero bytes"
    if isinstance(error, IndexError):
        return "it ends too early"
    return f"{type(error).__name__}: {error}"
