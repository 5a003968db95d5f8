"""The manifest of a sealed bucket, for schedulers, hooks and people.

A manifest stands in the entry of the table's log that sealed the bucket, and from there as one object,
`<table>/_headrace/sealed/<folders of the bucket>/v<version>.json`, put where none is: the same content by any writer.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from typing import Any, Literal, get_args

from headrace.writer.batch.staging.bucket_folders import bucket_folder
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.units import from_iso, to_iso
from headrace.writer.storage.base import Store

FOLDER = "_headrace/sealed"
FORMAT = 1
Reason = Literal["watermark", "clock", "command"]
_VERSION = re.compile(r"^v([1-9]\d*)\.json$")
_INSTANTS = ("start", "end", "event_time_min", "event_time_max", "sealed_at")
_COUNTS = ("rows", "files", "bytes", "late", "deduped")


class ManifestUnreadable(HeadraceError):
    """A manifest is not what this version of headrace writes."""


@dataclass(frozen=True)
class Manifest:
    """A bucket as it was sealed. Instants are aware UTC. Raises ValueError for one that cannot be."""

    pipeline: str
    # Location of the table.
    table: str
    # Names of the bucket's parts.
    columns: tuple[str, ...]
    bucket: BucketKey
    # Of the bucket's interval [start, end); None: it does not go by time.
    start: datetime | None
    end: datetime | None
    # 1, and one more each time that rows came or went since.
    version: int
    rows: int
    files: int
    bytes: int
    # None: it holds no row.
    event_time_min: datetime | None
    event_time_max: datetime | None
    # Rows that came after the bucket was closed, since it began.
    late: int
    # Rows that dedupe took, since it began.
    deduped: int
    # Rows more than the version before says; fewer are below zero.
    added: int
    # Why the bucket was closed.
    reason: Reason
    # Records that Kafka lost may be missing.
    with_gap: bool
    sealed_at: datetime
    # Version of the table that the numbers are of.
    log_position: int
    # Version of the table that sealed it; None before its entry is committed.
    table_version: int | None = None
    # Rows that came late and are not in it, by policy.
    late_elsewhere: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.columns) != len(self.bucket):
            raise ValueError(f"bucket {self.bucket} has other parts than its columns {self.columns}")
        if self.version < 1:
            raise ValueError(f"manifests are numbered from 1, got {self.version}")
        for name in _COUNTS:
            if getattr(self, name) < 0:
                raise ValueError(f"{name} of {self.name} must not be below zero, got {getattr(self, name)}")
        for name in _INSTANTS:
            instant = getattr(self, name)
            if instant is not None and instant.tzinfo is None:
                raise ValueError(f"{name} of {self.name} has no zone: {instant}")
        if self.reason not in get_args(Reason):
            raise ValueError(f"reason of {self.name} is {self.reason!r}; known are {', '.join(get_args(Reason))}")

    @property
    def name(self) -> str:
        """The bucket as people write it: `hour=2026-11-20T05`."""
        return bucket_path(self.columns, self.bucket)

    @property
    def path(self) -> str:
        """Name of its object, relative to the table."""
        return manifest_path(self.columns, self.bucket, self.version)

    def with_table_version(self, table_version: int) -> "Manifest":
        """Return the manifest as of this version of the table."""
        return replace(self, table_version=table_version)

    def to_json(self) -> dict[str, Any]:
        """Return its JSON values."""
        document = {attribute.name: getattr(self, attribute.name) for attribute in fields(self)}
        instants = {name: to_iso(document[name]) for name in _INSTANTS}
        return {"format": FORMAT, **document, **instants, "columns": list(self.columns), "bucket": list(self.bucket)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any], source: str = "a manifest") -> "Manifest":
        """Read what `to_json` wrote; keys that are not known are passed over. Raises ManifestUnreadable."""
        if raw.get("format") != FORMAT:
            raise ManifestUnreadable(
                f"{source} has the format {raw.get('format')!r}, this headrace knows {FORMAT}. Use the one that "
                "wrote it."
            )
        try:
            document = {attribute.name: raw[attribute.name] for attribute in fields(cls)}
            document |= {name: from_iso(raw[name]) for name in _INSTANTS}
            return cls(**{**document, "columns": tuple(raw["columns"]), "bucket": tuple(raw["bucket"])})
        except (KeyError, TypeError, ValueError) as error:
            raise ManifestUnreadable(
                f"{source} is not a manifest: {type(error).__name__} {error}. Restore it from a backup."
            ) from error


def bucket_path(columns: Sequence[str], bucket: BucketKey) -> str:
    """Return the folders of a bucket, as Hive names them: `hour=2026-11-20T05/country=DE`."""
    return bucket_folder(columns, bucket, hive=True)


def manifest_path(columns: Sequence[str], bucket: BucketKey, version: int) -> str:
    """Return the name of a manifest's object, relative to the table."""
    return "/".join([FOLDER, bucket_path(columns, bucket), f"v{version}.json"])


class Manifests:
    """The manifests of one table, as objects beside it. All operations raise OSError where the storage fails."""

    def __init__(self, store: Store, columns: Sequence[str]) -> None:
        """Take the store of the table, and the names of its buckets' parts."""
        self._store = store
        self._columns = tuple(columns)

    def put(self, manifest: Manifest) -> bool:
        """Put it where none is. False when it is there: the same, for it follows from the log."""
        assert manifest.table_version is not None, "a manifest is put once its entry stands"
        text = json.dumps(manifest.to_json(), ensure_ascii=False, indent=1) + "\n"
        return self._store.put_if_absent(manifest.path, text.encode())

    def versions(self, bucket: BucketKey) -> list[int]:
        """Return the versions of a bucket's manifests, oldest first; none while it was never sealed."""
        return self._versions(f"{FOLDER}/{bucket_path(self._columns, bucket)}")

    def read(self, bucket: BucketKey, version: int) -> Manifest | None:
        """Return a manifest; None where there is none. Raises ManifestUnreadable."""
        return self._read(manifest_path(self._columns, bucket, version))

    def newest(self, bucket: BucketKey) -> Manifest | None:
        """Return the newest manifest of a bucket; None while it was never sealed. Raises ManifestUnreadable."""
        versions = self.versions(bucket)
        if versions:
            return self.read(bucket, versions[-1])
        return None

    def all(self) -> Iterator[Manifest]:
        """Yield the newest manifest of every bucket that was ever sealed. Raises ManifestUnreadable."""
        folders = [FOLDER]
        for _ in self._columns:
            folders = [subfolder for folder in folders for subfolder in self._subfolders(folder)]
        for folder in folders:
            versions = self._versions(folder)
            manifest = None
            if versions:
                manifest = self._read(f"{folder}/v{versions[-1]}.json")
            if manifest is not None:
                yield manifest

    def _subfolders(self, folder: str) -> list[str]:
        names = sorted(self._store.list(folder))
        return [f"{folder}/{name.rstrip('/')}" for name in names if name.endswith("/")]

    def _versions(self, folder: str) -> list[int]:
        matches = (_VERSION.match(name) for name in self._store.list(folder))
        return sorted(int(match[1]) for match in matches if match)

    def _read(self, name: str) -> Manifest | None:
        file = self._store.read(name)
        if file is None:
            return None
        path = self._store.path(name)
        try:
            raw = json.loads(file.content)
        except ValueError as error:
            raise ManifestUnreadable(f"{path} is not JSON: {error}. Restore it from a backup.") from error
        if not isinstance(raw, dict):
            raise ManifestUnreadable(f"{path} is not a manifest: no object. Restore it from a backup.")
        return Manifest.from_json(raw, path)
