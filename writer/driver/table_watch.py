"""The thread that reads what a pipeline's tables hold and which gaps are open, beside the stream.

Others change the tables, too: a backfill fills a gap, a replay takes dead letters away. A table that does not answer
makes the facts old, and nothing else: they say when they were counted.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import panics_as_errors
from headrace.writer.core.periodic_thread import PeriodicThread
from headrace.writer.driver.restart_policy import sentence
from headrace.writer.status.progress import Progress
from headrace.writer.status.table_facts import GapFacts, TableFactsReader
from headrace.writer.table.ledger.segment_store import LedgerUnreadable

# Seconds between two looks, when no commit wakes the thread. Each costs a few requests to the store.
_INTERVAL_S = 30.0
# While a gap is open: a backfill fills it.
_GAP_INTERVAL_S = 5.0


class TableWatch:
    """Sets the gaps and the contents of a pipeline's progress: after each commit, and now and then."""

    def __init__(self, name: str, config: Config, progress: Progress) -> None:
        self._progress = progress
        self._reader = TableFactsReader(name, config)
        self._is_failing = False
        self._thread = PeriodicThread(f"facts of {name}", self._run_round)

    def start(self) -> None:
        """Begin."""
        self._progress.on_commit(self._thread.wake)
        self._progress.set_reader("tables", self._thread.request_round)
        self._thread.start()

    def close(self) -> None:
        """End. Nothing waits for a look that is under way, however long the storage takes; nothing of it is shown."""
        self._thread.close(within_s=0)

    def read(self) -> None:
        """Read the facts once. Raises CommitFailed, OSError."""
        snapshot = self._reader.snapshot()
        try:
            gaps = self._reader.gaps(snapshot)
        except LedgerUnreadable:
            # `headrace gaps list` and `headrace audit` say what is wrong with it.
            gaps = GapFacts.of(snapshot)
        self._show(gaps=replace(gaps, read_at=datetime.now(UTC)))
        self._show(contents=self._reader.contents(snapshot, datetime.now(UTC)))

    def _show(self, **facts: Any) -> None:
        """Set facts of the progress, unless this was closed: a later start looks by itself, and knows more by now."""
        if not self._thread.is_closing:
            self._progress.set(**facts)

    def read_or_log(self) -> None:
        """Read the facts; log once that it fails, and once that it works again."""
        try:
            with panics_as_errors():
                self.read()
        except Exception as error:  # noqa: BLE001 - the facts grow old and say so; the pipeline must not notice
            if not self._is_failing:
                logging.warning("table_facts_failed", pipeline=self._progress.pipeline, error=sentence(error))
            self._is_failing = True
            return
        if self._is_failing:
            self._is_failing = False
            logging.event("table_facts_recovered", pipeline=self._progress.pipeline)

    def _run_round(self) -> float:
        self.read_or_log()
        gaps = self._progress.view().gaps
        return _GAP_INTERVAL_S if gaps is not None and gaps.open else _INTERVAL_S
