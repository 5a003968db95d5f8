"""Dedupes rows of the table of late rows that came since they were last judged."""

import json
import math
import time
from collections.abc import Callable
from datetime import timedelta

from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import BucketKey
from headrace.writer.maintenance.compaction.compactor import Compactor, Run
from headrace.writer.maintenance.dedupe.across_buckets import AcrossBuckets
from headrace.writer.sealing.sealer import Sealer
from headrace.writer.table.factory import side_table
from headrace.writer.table.log.entries import bucket_of, parse_commit_info
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.table import PipelineTable

# A file below the table of late rows.
MARK = "_headrace/deduped.json"
FORMAT = 1


class JudgedMark:
    """Up to which version of the table of late rows its rows were judged. A mark that is lost is only more to read."""

    def __init__(self, table: PipelineTable) -> None:
        self._table = table
        # The id of the table, and the version.
        self._table_version: tuple[str, int] | None = None

    def changed_buckets(self, snapshot: PipelineSnapshot) -> set[BucketKey]:
        """Return the buckets that got rows since. Raises CommitFailed, OSError."""
        table_id, version = snapshot.state.table_version
        columns = snapshot.state.metadata["partitionColumns"]
        judged_id, judged_version = self._table_version or self._read()
        entries = []
        if judged_id == table_id:
            entries = [entry for entry in self._table.entries(judged_version) if entry[0] <= version]
        expected_versions = list(range(judged_version + 1, version + 1))
        if judged_id != table_id or [entry_version for entry_version, _ in entries] != expected_versions:
            return {file.bucket for file in self._table.bucket_files(snapshot)}
        buckets = set()
        for _, actions in entries:
            _, commit_info = parse_commit_info(actions)
            if commit_info.get("why") != "compact":
                buckets |= {bucket_of(columns, action["add"]) for action in actions if "add" in action}
        return buckets

    def put(self, snapshot: PipelineSnapshot) -> None:
        """Note that all rows of a version were judged. Raises OSError."""
        self._table_version = snapshot.state.table_version
        table_id, version = self._table_version
        document = {"format": FORMAT, "table": table_id, "version": version}
        self._table.store.put(MARK, (json.dumps(document) + "\n").encode())

    def _read(self) -> tuple[str, int]:
        stored = self._table.store.read(MARK)
        try:
            document = json.loads(stored.content) if stored else {}
            if document.get("format") == FORMAT:
                return str(document["table"]), int(document["version"])
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
        return "", -1


class LateRows:
    """Takes late rows whose key stands in the table within the window, or that repeat another late row."""

    def __init__(
        self,
        compactor: Compactor,
        table: PipelineTable,
        pause: timedelta,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:
        """`compactor`: of the table of late rows. `pause`: between two looks. `seconds`: a monotonic clock."""
        self._compactor = compactor
        self._table = table
        self._mark = JudgedMark(table)
        self._pause = pause
        self._seconds = seconds
        self._due_s = -math.inf
        self._judged_version = -1

    def dedupe(self, run: Run) -> None:
        """Judge the buckets that got late rows, if that is due. Raises as `Compactor.before_seal` does."""
        if self._seconds() < self._due_s or not self._table.exists():
            return
        snapshot = self._table.snapshot()
        if snapshot.version == self._judged_version:
            return
        for bucket in sorted(self._mark.changed_buckets(snapshot), key=str):
            self._compactor.before_seal(bucket, run)
        self._mark.put(snapshot)
        self._due_s = self._seconds() + self._pause.total_seconds()
        self._judged_version = snapshot.version


def compactor_of(sealer: Sealer, config: Config) -> tuple[Compactor, LateRows | None]:
    """Return what rewrites buckets of a sealer's table, and what dedupes its late rows, where dedupe has a window.

    `config`: where the table is the pipeline's own.
    """
    pipeline = sealer.pipeline
    settings = sealer.settings
    stores = config.stores
    window = settings.compact.dedupe.window if settings.compact.dedupe else None
    if window is None:
        return Compactor(pipeline, settings, sealer.table, stores), None
    late = side_table(pipeline, config, settings.late_place)

    def read_unsealed() -> set[BucketKey]:
        return set(sealer.follow(write=False).unsealed.buckets)

    across = AcrossBuckets(sealer.table, late, sealer.bucketer, window, read_unsealed)
    late_compactor = Compactor(pipeline, settings, late, stores, across, of_late_rows=True)
    compactor = Compactor(pipeline, settings, sealer.table, stores, across, late=late_compactor)
    return compactor, LateRows(late_compactor, late, settings.seal.reopen_after)
