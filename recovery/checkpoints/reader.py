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

from writer.offsets.spark_checkpoint import (
    COMMIT_VERSIONS,
    NO_DIRECTORY,
    NO_FILE,
    VERSION,
    Offsets,
    directories,
    lines_of,
    offsets_of,
)
from writer.storage.base import Store

_CHECKSUM = re.compile(r"\.(\d+)\.crc")  # local disks only: Hadoop's, beside each file
_T = TypeVar("_T")
_FOLDERS = ("commits", "offsets", "sources", "state")
_FILES_AT_ONCE = 16  # of a store, each of which takes a round trip to answer
_SOURCE_LINES = 2  # version and metadata stand before the sources
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


@dataclass(frozen=True)
class CorruptFile:
    """A file that cannot be understood."""

    name: str
    why: str


@dataclass(frozen=True)
class Batch:
    """One planned batch: for each source where it ends. None: the source is none of Kafka's, or had nothing yet."""

    sources: Sequence[Offsets | None]
    metadata: Mapping[str, Any]  # watermark, time, and the settings that Spark keeps with it
    content: bytes

    @property
    def ends(self) -> Offsets:
        """Offsets of all Kafka sources together; of a source that is read twice, the lesser."""
        found: dict[tuple[str, int], int] = {}
        for offsets in self.sources:
            for source, end in (offsets or {}).items():
                found[source] = min(end, found.get(source, end))
        return found


@dataclass(frozen=True)
class Reading:
    """What lies in a checkpoint."""

    location: str
    query_id: str | None = None  # None: metadata is missing or corrupt
    batches: Mapping[int, Batch] = field(default_factory=dict)  # those whose files are whole
    planned: Sequence[int] = ()  # numbers in offsets/, corrupt ones included, ascending
    committed: Sequence[int] = ()  # numbers in commits/, corrupt ones included, ascending
    begun: Mapping[int, Offsets] = field(default_factory=dict)  # number of a source → where it began
    corrupt: Sequence[CorruptFile] = ()
    newer: Sequence[CorruptFile] = ()  # files of a version that Spark 4.0 does not read
    orphans: Sequence[str] = ()  # checksums of files that are not there, which would stand in Spark's way
    directories: Sequence[str] = ()  # that stand where Spark is to write a file; each with a slash at its end

    @property
    def blank(self) -> bool:
        """Nothing was ever planned from it."""
        return not (self.planned or self.committed)

    @property
    def nothing(self) -> bool:
        """There is no checkpoint."""
        return self.blank and self.query_id is None and not self.corrupt

    @property
    def last(self) -> int | None:
        """Number of the newest batch that was planned."""
        return self.planned[-1] if self.planned else None

    @property
    def finished(self) -> bool:
        """The newest batch is done, as far as Spark knows."""
        return bool(self.planned) and bool(self.committed) and self.committed[-1] >= self.planned[-1]

    def start(self) -> Offsets | None:
        """Where the next batch begins; None if the files do not show it."""
        if self.last is None:
            return None
        if self.finished:
            return self._ends(self.last)
        if self.last == 0:
            merged: dict[tuple[str, int], int] = {}
            for offsets in self.begun.values():
                merged.update(offsets)
            return merged or None
        return self._ends(self.last - 1)

    def end(self) -> Offsets | None:
        """Where the batch ends that was planned and is not done; None where there is none, or its file is corrupt."""
        return None if self.last is None or self.finished else self._ends(self.last)

    def corruption_of(self, name: str) -> str | None:
        """Why a file is corrupt; None when it is whole or missing."""
        return next((corrupt.why for corrupt in self.corrupt if corrupt.name == name), None)

    def _ends(self, batch: int) -> Offsets | None:
        found = self.batches.get(batch)
        return None if found is None else found.ends


def read(store: Store) -> Reading:
    """Read the checkpoint that lies at a store's location. Raises StoreError."""
    # Commits first: of a query that is at work, a plan may come in between, and never a commit without its plan.
    root = set(store.list())
    names = {folder: [] if folder in root else list(store.list(folder)) for folder in ("commits", "offsets")}
    planned, committed = (_numbers(names[folder]) for folder in ("offsets", "commits"))
    corrupt, newer = list[CorruptFile](), list[CorruptFile]()
    corrupt += [CorruptFile(folder, f"it {NO_DIRECTORY}") for folder in _FOLDERS if folder in root]
    query_id = _query_id(store, corrupt, root)
    batches = dict(_understood(store, "offsets", planned, _batch, corrupt, newer))
    dict(_understood(store, "commits", committed, _commit, corrupt, newer))
    return Reading(
        store.location, query_id, batches, planned, committed, _begun(store, corrupt, root), corrupt, newer,
        orphans=_in_the_way(store, names, root),
        directories=[f"{folder}/{number}/" for folder, found in names.items() for number in directories(found)],
    )  # fmt: skip


def _understood(
    store: Store, folder: str, numbers: Sequence[int], understand: Callable[[bytes], _T], corrupt: list[CorruptFile],
    newer: list[CorruptFile],
) -> Iterator[tuple[int, _T]]:  # fmt: skip
    """Yield the contents of a log's files, by number; record those that cannot be parsed."""
    wanted = [f"{folder}/{number}" for number in numbers]
    with ThreadPoolExecutor(_FILES_AT_ONCE) as threads:
        contents = list(threads.map(lambda name: _content(store, name), wanted))
    for number, name, content in zip(numbers, wanted, contents, strict=True):
        try:
            yield number, understand(content)
        except _Newer as found:
            newer.append(CorruptFile(name, str(found)))
        except (ValueError, IndexError) as error:
            corrupt.append(CorruptFile(name, _why(content, error)))


class _Newer(Exception):
    """A file is of a version that Spark 4.0 does not read."""


def _numbers(names: Iterable[str]) -> list[int]:
    return sorted(int(name) for name in names if name.isdigit())


def _in_the_way(store: Store, logs: Mapping[str, Sequence[str]], root: Collection[str]) -> list[str]:
    """Checksums without their file, where Spark is to write that file."""
    found = [f"{folder}/{name}" for folder, names in logs.items() for name in _orphans(names)]
    found += [".metadata.crc"] if ".metadata.crc" in root and "metadata" not in root else []
    for place in _sources(store, root):
        names = set(store.list(place))
        found += [f"{place}/.0.crc"] if ".0.crc" in names and "0" not in names else []
    return sorted(found)


def _orphans(names: Sequence[str]) -> list[str]:
    """Checksums that are in the way of a file that Spark has yet to write: numbers beyond the newest file."""
    there = _numbers(names)
    return [
        name
        for name in names
        if (found := _CHECKSUM.fullmatch(name.rstrip("/")))
        and int(found[1]) not in there
        and int(found[1]) > max(there, default=-1)
    ]


def _content(store: Store, name: str) -> bytes:
    found = store.read(name)
    return b"" if found is None else found.content


def _batch(content: bytes) -> Batch:
    lines = lines_of(content)
    _check_version(lines[0], (VERSION,))
    metadata = json.loads(lines[1])
    if not isinstance(metadata, dict):
        raise ValueError(f"its metadata {lines[1][:80]!r} is no mapping")  # noqa: TRY004 - damage, not a bug
    if len(lines) == _SOURCE_LINES:
        raise ValueError("no source stands in it")
    return Batch([_source(line) for line in lines[_SOURCE_LINES:]], metadata, content)


def _source(line: str) -> Offsets | None:
    """Read one source's line; None for a source that is none of Kafka's (its line is whole JSON, or a dash)."""
    if line == "-":
        return None
    raw = json.loads(line)
    kafka = isinstance(raw, dict) and all(isinstance(found, dict) for found in raw.values())
    return offsets_of(line) if kafka else None


def _commit(content: bytes) -> None:
    lines = lines_of(content)
    _check_version(lines[0], COMMIT_VERSIONS)
    json.loads(lines[1])


def _check_version(line: str, known: Sequence[str]) -> None:
    if line in known:
        return
    if re.fullmatch(r"v\d+", line):
        raise _Newer(f"version {line}, Spark 4.0 reads {' and '.join(known)}")
    raise ValueError(f"{line[:80]!r} is no version")


def _query_id(store: Store, corrupt: list[CorruptFile], root: Collection[str]) -> str | None:
    if "metadata/" in root:
        corrupt.append(CorruptFile("metadata", f"it {NO_FILE}"))
        return None
    found = store.read("metadata")
    if found is None:
        return None
    try:
        query_id = json.loads(found.content)["id"]
        if isinstance(query_id, str) and _ID.fullmatch(query_id):
            return query_id
        corrupt.append(CorruptFile("metadata", f"its id {query_id!r} is none"))
    except (ValueError, LookupError, TypeError) as error:
        corrupt.append(CorruptFile("metadata", _why(found.content, error)))
    return None


def _sources(store: Store, root: Collection[str]) -> list[str]:
    """Return the folders of the sources."""
    names = [] if "sources" in root else list(store.list("sources"))
    return [f"sources/{name[:-1]}" for name in names if name.endswith("/")]


def _begun(store: Store, corrupt: list[CorruptFile], root: Collection[str]) -> dict[int, Offsets]:
    begun = dict[int, Offsets]()
    for folder in _sources(store, root):
        number = folder.removeprefix("sources/")
        if "0/" in store.list(folder):
            corrupt.append(CorruptFile(f"{folder}/0", f"it {NO_FILE}"))
            continue
        if not number.isdigit() or (found := store.read(f"{folder}/0")) is None:
            continue
        try:
            lines = lines_of(found.content)
            if lines[0] == VERSION and lines[1].startswith("{"):  # another source keeps something else there
                begun[int(number)] = offsets_of(lines[1])
        except (ValueError, IndexError) as error:
            corrupt.append(CorruptFile(f"{folder}/0", _why(found.content, error)))
    return begun


def _why(content: bytes, error: Exception) -> str:
    if not content.strip(b"\0\n"):
        return "it is empty" if not content.strip(b"\n") else f"it holds nothing but {len(content)} zero bytes"
    if isinstance(error, IndexError):
        return "it ends too early"
    return f"{type(error).__name__}: {error}"
