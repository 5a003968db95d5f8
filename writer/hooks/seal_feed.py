"""Reads sealed versions from the table: from log entries or, if they were cleaned up, from manifests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

import bucketers
from writer.core.files import BucketFile, BucketKey
from writer.engines.table_description import TableDescription
from writer.hooks.base import Sealed
from writer.hooks.outbox import OutboxEntry
from writer.sealing.manifest import Manifest, Manifests, bucket_path
from writer.table.log.entries import parse_commit_info
from writer.table.log.operations import WHY as RETENTION
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

_RECENT = 200  # entries


@dataclass(frozen=True)
class Seal:
    """One version of a bucket that was sealed, or its end: retention took it."""

    entry: int  # version of the log that says so
    manifest: Manifest
    retired: bool = False


class Seals:
    """The seals of one table."""

    def __init__(self, table: PipelineTable, bucketer: bucketers.Bucketer) -> None:
        self.table, self._bucketer = table, bucketer

    def named(self, bucket: BucketKey) -> str:
        """Return the name of a bucket: the folders of its files."""
        return bucket_path(self._bucketer.columns, bucket)

    def since(self, version: int, newest: int) -> list[Seal]:
        """Return what was sealed or retired after a version, oldest first.

        Where the log does not reach back so far any more, the newest manifest of a bucket stands for all before it.
        Raises CommitFailed, ManifestUnreadable, OSError.
        """
        entries, manifests = self.table.entries(version), self.manifests()
        found: list[Seal] = []
        for at, actions in entries:
            about = parse_commit_info(actions)[1]
            match about.get("kind"):
                case "seal":
                    sealed = (Manifest.from_json(raw, f"version {at}").standing(at) for raw in about["manifests"])
                    found += [Seal(at, manifest) for manifest in sealed]
                case "rewrite" if (about.get("taken") or {}).get("why") == RETENTION:
                    last = (manifests.newest(tuple(bucket)) for bucket in about["buckets"])
                    found += [Seal(at, manifest, retired=True) for manifest in last if manifest is not None]
        if version < newest and (not entries or entries[0][0] > version + 1):
            found += self._older(found, version)
        return sorted(found, key=lambda seal: (seal.entry, seal.manifest.name))

    def everything(self, newest: int) -> list[Seal]:
        """Return the newest seal of every bucket, from the manifests and the end of the log.

        A seal whose manifest is still to be put is there; the whole log need not be read for it. Raises as `since`.
        """
        found = self.since(max(-1, newest - _RECENT), newest)
        by_entry = sorted([*found, *self._older(found, -1)], key=lambda seal: (seal.entry, seal.manifest.name))
        last = {seal.manifest.bucket: seal for seal in by_entry}
        return [seal for seal in by_entry if last[seal.manifest.bucket] is seal and not seal.retired]

    def _older(self, found: Sequence[Seal], version: int) -> list[Seal]:
        """Return the newest manifests of entries after a version, without those found already."""
        known = {(seal.entry, seal.manifest.bucket) for seal in found}
        older = ((one.table_version or 0, one) for one in self.manifests().all())
        return [Seal(at, one) for at, one in older if at > version and (at, one.bucket) not in known]

    def read(self, pending: OutboxEntry, table: TableDescription) -> Sealed | None:
        """Return what an outbox entry holds; None while its manifest is not there."""
        manifest = self.manifests().read(pending.bucket, pending.version)
        if manifest is None:
            return None
        return Sealed(manifest, pending.entry, table, partial(self._files, manifest), retired=pending.retired)

    def manifests(self) -> Manifests:
        """Return the manifests beside the table."""
        return Manifests(self.table.store, self.table.snapshot().state.metadata["partitionColumns"])

    def _files(self, manifest: Manifest) -> list[BucketFile]:
        """List the files of a manifest's interval: as sealed, or as they are after a rewrite."""
        assert manifest.table_version is not None
        newest = self.table.snapshot()
        if len(manifest.columns) > 1:
            return self._of_interval(newest, manifest)
        now = self.table.bucket_files(newest, manifest.bucket)
        later = {
            unquote(action["add"]["path"])
            for _, actions in self.table.entries(manifest.table_version)
            for action in actions
            if "add" in action
        }
        then = [file for file in now if file.path not in later]
        known = sum(file.rows or 0 for file in then)
        return then if known == manifest.rows else now

    def _of_interval(self, snapshot: PipelineSnapshot, manifest: Manifest) -> list[BucketFile]:
        span = (manifest.start, manifest.end)
        return [
            file
            for file in self.table.bucket_files(snapshot)
            if file.bucket == manifest.bucket or bucketers.interval(self._bucketer, file.bucket) == span
        ]
