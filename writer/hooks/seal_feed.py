"""Reads sealed versions from the table: from log entries or, if they were cleaned up, from manifests."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from urllib.parse import unquote

from headrace import bucketers
from headrace.writer.core.files import BucketFile, BucketKey
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.hooks.base import SealedVersion
from headrace.writer.hooks.outbox import OutboxEntry
from headrace.writer.sealing.manifest import Manifest, Manifests, bucket_path
from headrace.writer.table.log.entries import parse_commit_info
from headrace.writer.table.log.operations.rows import RETENTION
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

_RECENT_ENTRIES = 200


@dataclass(frozen=True)
class Seal:
    """One version of a bucket that was sealed, or its removal by retention."""

    # The version of the log that has the seal or the removal.
    entry: int
    manifest: Manifest
    retired: bool = False


class Seals:
    """The seals of one table."""

    def __init__(self, table: PipelineTable, bucketer: bucketers.Bucketer) -> None:
        self.table = table
        self._bucketer = bucketer

    def bucket_name(self, bucket: BucketKey) -> str:
        """Return the name of a bucket: the folders of its files."""
        return bucket_path(self._bucketer.columns, bucket)

    def list_since(self, version: int, newest: int) -> list[Seal]:
        """Return what was sealed or retired after a version, oldest first.

        Where the log does not reach back so far any more, the newest manifest of a bucket stands for all before it.
        Raises CommitFailed, ManifestUnreadable, OSError.
        """
        entries = self.table.entries(version)
        manifests = self.manifests()
        seals: list[Seal] = []
        for entry, actions in entries:
            _, facts = parse_commit_info(actions)
            match facts.get("kind"):
                case "seal":
                    seals += [
                        Seal(entry, Manifest.from_json(document, f"version {entry}").with_table_version(entry))
                        for document in facts["manifests"]
                    ]
                case "rewrite" if (facts.get("taken") or {}).get("why") == RETENTION:
                    newest_manifests = (manifests.newest(tuple(bucket)) for bucket in facts["buckets"])
                    seals += [
                        Seal(entry, manifest, retired=True) for manifest in newest_manifests if manifest is not None
                    ]
        if version < newest and (not entries or entries[0][0] > version + 1):
            seals += self._from_manifests(version, seals)
        return sorted(seals, key=_order)

    def list_newest(self, newest: int) -> list[Seal]:
        """Return the newest seal of every bucket, from the manifests and the end of the log.

        The end of the log has the seals whose manifest is not put yet, so the rest of the log need not be read. Raises
        what `list_since` raises.
        """
        recent = self.list_since(max(-1, newest - _RECENT_ENTRIES), newest)
        seals = sorted([*recent, *self._from_manifests(-1, recent)], key=_order)
        newest_of = {seal.manifest.bucket: seal for seal in seals}
        return [seal for seal in seals if newest_of[seal.manifest.bucket] is seal and not seal.retired]

    def _from_manifests(self, version: int, seals: Sequence[Seal]) -> list[Seal]:
        """Return the seals after a version by the newest manifest of each bucket, without those listed already."""
        listed = {(seal.entry, seal.manifest.bucket) for seal in seals}
        newest = [Seal(manifest.table_version or 0, manifest) for manifest in self.manifests().all()]
        return [seal for seal in newest if seal.entry > version and (seal.entry, seal.manifest.bucket) not in listed]

    def read(self, entry: OutboxEntry, table: TableDescription) -> SealedVersion | None:
        """Return the sealed version of an outbox entry; None while its manifest is not there."""
        manifest = self.manifests().read(entry.bucket, entry.version)
        if manifest is None:
            return None
        return SealedVersion(
            manifest,
            entry.entry,
            table,
            partial(self._files, manifest),
            self.table.store.path(manifest.path),
            retired=entry.retired,
        )

    def manifests(self) -> Manifests:
        """Return the manifests beside the table."""
        return Manifests(self.table.store, self.table.snapshot().state.metadata["partitionColumns"])

    def _files(self, manifest: Manifest) -> list[BucketFile]:
        """List the files of a manifest's interval: as sealed, or as they are after a rewrite."""
        assert manifest.table_version is not None
        newest = self.table.snapshot()
        if len(manifest.columns) > 1:
            return self._interval_files(newest, manifest)
        files = self.table.bucket_files(newest, manifest.bucket)
        later_paths = {
            unquote(action["add"]["path"])
            for _, actions in self.table.entries(manifest.table_version)
            for action in actions
            if "add" in action
        }
        sealed_files = [file for file in files if file.path not in later_paths]
        # After a rewrite the files of the seal are gone, and those that took their place have its rows.
        is_rewritten = sum(file.rows or 0 for file in sealed_files) != manifest.rows
        return files if is_rewritten else sealed_files

    def _interval_files(self, snapshot: PipelineSnapshot, manifest: Manifest) -> list[BucketFile]:
        interval = (manifest.start, manifest.end)
        return [
            file
            for file in self.table.bucket_files(snapshot)
            if file.bucket == manifest.bucket or bucketers.interval(self._bucketer, file.bucket) == interval
        ]


def _order(seal: Seal) -> tuple[int, str]:
    return seal.entry, seal.manifest.name
