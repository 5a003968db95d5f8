"""Groups the snapshots of a table by the catalog commit that brought them.

A client may put several snapshots into one commit: `upsert` and `overwrite` of pyiceberg put one that takes rows and
one that adds some. Readers see the table before the commit or after it, so what it did is what all its snapshots did.
Each commit leaves a metadata file, which names the snapshot that was current then: `metadata-log` of
https://iceberg.apache.org/spec/#table-metadata-fields.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.serializers import FromInputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from writer.storage.damage import FileDamaged, naming_damage
from writer.table.log.foreign_writes import one_line


@dataclass(frozen=True)
class CatalogCommit:
    """The snapshots that one commit put on `main`, oldest first.

    `is_proven`: metadata files say so. Where some are gone, the snapshots may be those of several commits.
    """

    snapshots: tuple[Snapshot, ...]
    is_proven: bool

    @property
    def newest(self) -> Snapshot:
        """The snapshot that was current after it."""
        return self.snapshots[-1]


def group_by_commit(table: Table, snapshots: Sequence[Snapshot], logged_id: int | None) -> list[CatalogCommit]:
    """Group the snapshots that follow the one that the log knows by the commits that brought them, oldest first.

    `snapshots`: parents and children from the logged snapshot to the current one, oldest first. `logged_id`: of the
    snapshot before them, which the log knows; None: there is none. Metadata files are read where there are several
    snapshots. Raises OSError for a metadata file that exists and cannot be read.
    """
    if len(snapshots) <= 1:
        return [CatalogCommit((snapshot,), is_proven=True) for snapshot in snapshots]
    heads = _collect_heads(table, snapshots[-1].snapshot_id, logged_id)
    return list(_cut_at_heads(snapshots, heads))


def _collect_heads(table: Table, current: int, logged_id: int | None) -> Mapping[int, bool]:
    """Return which snapshots were current since the logged one, and of which the metadata file before is there, too."""
    heads = {current: False}
    newer: int | None = current
    for metadata in _earlier_metadata(table):
        if metadata is None:
            newer = None
            continue
        head = metadata.current_snapshot_id
        if head == newer:
            continue
        if newer is not None:
            heads[newer] = True
        if head == logged_id:
            break
        if head is not None:
            heads.setdefault(head, False)
        newer = head
    return heads


def _cut_at_heads(snapshots: Sequence[Snapshot], heads: Mapping[int, bool]) -> Iterator[CatalogCommit]:
    members: list[Snapshot] = []
    for snapshot in snapshots:
        members.append(snapshot)
        if snapshot.snapshot_id in heads:
            # A snapshot between two that were current came alone, whatever lay between their metadata files.
            is_proven = len(members) == 1 or heads[snapshot.snapshot_id]
            yield CatalogCommit(tuple(members), is_proven)
            members = []


def _earlier_metadata(table: Table) -> Iterator[TableMetadata | None]:
    """Yield what each metadata file before the table's own says, newest first; None for one that is gone or damaged."""
    for entry in reversed(table.metadata.metadata_log):
        try:
            with naming_damage(entry.metadata_file, "a metadata file of Iceberg"):
                yield FromInputFile.table_metadata(table.io.new_input(entry.metadata_file))
        except (FileNotFoundError, FileDamaged):
            yield None
        except OSError as error:
            raise OSError(
                f"cannot read {entry.metadata_file}, which says what one commit of another client brought: "
                f"{one_line(error).rstrip('.')}. Let the credentials of the table's files read its metadata, too"
            ) from error
