"""Dedupes rows of the table of late rows that came since they were last judged."""

import json
import math
import time
from collections.abc import Callable
from datetime import timedelta

from writer.config.pipelines import Config
from writer.core.files import BucketKey
from writer.maintenance.compaction import Compactor, Run
from writer.maintenance.dedupe.across_buckets import AcrossBuckets
from writer.sealing.sealer import Sealer
from writer.table.factory import side_table
from writer.table.log.entries import bucket_of, parse_commit_info
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.table import PipelineTable

MARK = "_headrace/deduped.json"  # beside the table of late rows
FORMAT = 1


class JudgedMark:
    """Up to which version of the table of late rows its rows were judged. A mark that is lost is only more to read."""

    def __init__(self, table: PipelineTable) -> None:
        self._table = table
        self._known: tuple[str, int] | None = None  # id of the table, and the version

    def changed(self, snapshot: PipelineSnapshot) -> set[BucketKey]:
        """Return the buckets that got rows since. Raises CommitFailed, OSError."""
        (table, version), columns = snapshot.state.table_version, snapshot.state.metadata["partitionColumns"]
        known, since = self._known or self._read()
        entries = [one for one in self._table.entries(since) if one[0] <= version] if known == table else []
        if known != table or [number for number, _ in entries] != list(range(since + 1, version + 1)):
            return {file.bucket for file in self._table.bucket_files(snapshot)}
        return {
            bucket_of(columns, action["add"])
            for _, actions in entries if parse_commit_info(actions)[1].get("why") != "compact"
            for action in actions if "add" in action
        }  # fmt: skip

    def put(self, snapshot: PipelineSnapshot) -> None:
        """Note that all rows of a version were judged. Raises OSError."""
        table, version = self._known = snapshot.state.table_version
        document = {"format": FORMAT, "table": table, "version": version}
        self._table.store.put(MARK, (json.dumps(document) + "\n").encode())

    def _read(self) -> tuple[str, int]:
        found = self._table.store.read(MARK)
        try:
            raw = json.loads(found.content) if found else {}
            return (str(raw["table"]), int(raw["version"])) if raw.get("format") == FORMAT else ("", -1)
        except (ValueError, KeyError, TypeError, AttributeError):
            return "", -1


class LateRows:
    """Takes late rows whose key stands in the table within the window, or that repeat another late row."""

    def __init__(
        self, compactor: Compactor, table: PipelineTable, rest: timedelta,
        seconds: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """`compactor`: of the table of late rows. `rest`: between two looks. `seconds`: a monotonic clock."""
        self._compactor, self._table, self._mark, self._rest = compactor, table, JudgedMark(table), rest
        self._seconds = seconds
        self._due_s = -math.inf
        self._looked = -1

    def dedupe(self, run: Run) -> None:
        """Judge the buckets that got late rows, if that is due. Raises as `Compactor.before_seal` does."""
        if self._seconds() < self._due_s or not self._table.exists():
            return
        snapshot = self._table.snapshot()
        if snapshot.version == self._looked:
            return
        for bucket in sorted(self._mark.changed(snapshot), key=str):
            self._compactor.before_seal(bucket, run)
        self._mark.put(snapshot)
        self._due_s = self._seconds() + self._rest.total_seconds()
        self._looked = snapshot.version


def compactor_of(sealer: Sealer, config: Config) -> tuple[Compactor, LateRows | None]:
    """Return what rewrites buckets of a sealer's table, and what dedupes its late rows, where dedupe has a window.

    `config`: where the table is the pipeline's own.
    """
    pipeline, settings, s3 = sealer.pipeline, sealer.settings, config.s3.settings
    window = settings.compact.dedupe.window if settings.compact.dedupe else None
    if window is None:
        return Compactor(pipeline, settings, sealer.table, s3), None
    late = side_table(pipeline, config, settings.late_place)

    def unsealed() -> set[BucketKey]:
        return set(sealer.follow(write=False).unsealed.buckets)

    across = AcrossBuckets(sealer.table, late, sealer.bucketer, window, unsealed)
    of_late = Compactor(pipeline, settings, late, s3, across, of_late_rows=True)
    compactor = Compactor(pipeline, settings, sealer.table, s3, across, late=of_late)
    return compactor, LateRows(of_late, late, settings.seal.reopen_after)
