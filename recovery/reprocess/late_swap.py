"""Makes rows of the table of late rows anew. They stay late, and stay rows: so the account does not change.

The swap is a rewrite in that table's own log, where a delete of late rows is, too: so one of both is done again. A late
row whose record is no row by the rules of today stays as it is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

import numpy as np

from recovery.backfill.chunk_commit import BackfilledTable
from recovery.backfill.source import Source
from recovery.backfill.throttle import BackfillPace
from recovery.reprocess.bucket_rows import BucketRows
from recovery.reprocess.bucket_swap import BucketOutcome, BucketSwap, ReprocessOutput
from recovery.reprocess.places import Collector
from writer.batch.plan import TaskPlan
from writer.batch.staging import table_file
from writer.batch.task_report import Report
from writer.core.files import StagedFile
from writer.core.offsets import TopicPartition
from writer.storage.base import Store
from writer.table.log.appender import check_privacy
from writer.table.log.operations import Rewrite
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.row_removal import OFFSET_COLUMNS, RemovalResult

_ROWS_AT_ONCE = 65_536


class LateSwap(BucketSwap):
    """Swaps buckets of a pipeline's table of late rows."""

    def __init__(
        self, filling: BackfilledTable, sources: Sequence[Source], pace: BackfillPace, facts: Mapping[str, Any]
    ) -> None:
        super().__init__(filling, sources, pace, facts)
        self.table = filling.tables.side(filling.settings.late_place)

    def run(self, snapshot: PipelineSnapshot, held: BucketRows, now: datetime) -> BucketOutcome:
        """Make the bucket's late rows anew. Raises as for other rows, but no LimitReached."""
        return replace(super().run(snapshot, held, now), late=True)

    def _plan(self, now: datetime, incarnations: Mapping[str, int], older: timedelta) -> TaskPlan:
        return replace(super()._plan(now, incarnations, older), table=self.table.location)

    def _settle(self, made: ReprocessOutput) -> None:
        """Leave those rows as they are whose records became none."""
        made.moves.clear()
        made.found = _places(self.table.store, made.report.files)

    def _swap(
        self, snapshot: PipelineSnapshot, held: BucketRows, made: ReprocessOutput, report: Report, left: RemovalResult,
        began: datetime,
    ) -> int:  # fmt: skip
        facts = {"why": "reprocess", "at": began.isoformat(), "bucket": list(held.bucket), **self._facts}
        swap = Rewrite(
            uuid4().hex,
            left.removed,
            [*left.rewritten, *report.files],
            None,
            {**facts, "rows": made.read},
            changes=True,
        )
        main = self._filling.table
        check_privacy(main, main.snapshot(), self._filling.walk.schemas.privacy_version)
        version = self.table.rewrite(snapshot, swap)
        self._filling.tables.discard((), self._filling.walk.side_files(replace(report, files=[])))
        return version

    def _discard(self, made: ReprocessOutput) -> None:
        self.table.discard(made.report.files)
        self._filling.tables.discard((), self._filling.walk.side_files(made.report))


def _places(store: Store, files: Sequence[StagedFile]) -> dict[TopicPartition, np.ndarray]:
    """Return the places of the rows of staged files."""
    found = Collector()
    for file in files:
        with table_file.open_parquet(store, file.path) as source:
            for batch in source.iter_batches(_ROWS_AT_ONCE, OFFSET_COLUMNS):
                found.add(batch)
    return found.places()
