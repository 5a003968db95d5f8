"""Reports each commit of a pipeline: to its progress, to the log, and once a start to a person where records lack."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from headrace.writer.clients import notifications
from headrace.writer.config.sections.routing import RouteSection
from headrace.writer.core import logging
from headrace.writer.status.model import WITHOUT_TABLE, Totals, without_records
from headrace.writer.status.progress import Progress
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.pipeline_tables import TargetState


def round_phases(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the wall seconds of phases as a commit has them."""
    return {phase: round(duration_s, 3) for phase, duration_s in seconds.items()}


class CommitReport:
    """Reports the commits of one start.

    `former`: what the last commit cost, which its own entry could not say.
    """

    def __init__(self, pipeline: str, progress: Progress, notifier: notifications.Notifier) -> None:
        self._pipeline = pipeline
        self._progress = progress
        self._notifier = notifier
        self.former: dict[str, Any] | None = None
        # What was reported of the targets, so that each is reported once.
        self._targets_behind = frozenset[str]()
        self._refused_names = frozenset[str]()
        self._is_beyond = False
        self._notified_without_records = False

    def report_targets(
        self,
        states: Mapping[str, TargetState],
        refused: Mapping[str, str],
        beyond: Collection[str],
        route: RouteSection,
    ) -> None:
        """Report which tables of a route refuse, which do no longer, and which names have none. Each is said once.

        `refused`: names that can be no table, and why; `beyond`: names beyond `max_targets`.
        """
        now = datetime.now(UTC)
        reasons = {name: state.why for name, state in states.items() if state.why}
        new_reasons = {name: reasons[name] for name in sorted(reasons.keys() - self._targets_behind)}
        for name, reason in new_reasons.items():
            logging.warning("target_behind", pipeline=self._pipeline, target=name, reason=reason)
        if new_reasons:
            self._notifier.send(notifications.target_behind(self._pipeline, new_reasons, now))
        for name in self._targets_behind - reasons.keys():
            logging.event("target_caught_up", pipeline=self._pipeline, target=name)
        new_refusals = {name: refused[name] for name in sorted(refused.keys() - self._refused_names)}
        if new_refusals:
            self._notifier.send(notifications.target_refusal(self._pipeline, new_refusals, route.unrouted, now))
        if beyond and not self._is_beyond:
            event = notifications.targets_beyond_max(
                self._pipeline, sorted(beyond), route.max_targets, route.unrouted, now
            )
            self._notifier.send(event)
        self._targets_behind = frozenset(reasons)
        self._refused_names = frozenset(refused)
        self._is_beyond = self._is_beyond or bool(beyond)
        counts = dict(zip(WITHOUT_TABLE, (len(refused), len(beyond)), strict=True))
        self._progress.set(targets=dict(states), without_table=dict(counts), max_held_bytes=route.held.max_bytes)

    def report_commit(self, version: int, batch: Batch, seconds: float) -> None:
        """Report a commit. `seconds`: from Spark's call on."""
        facts = batch.facts
        name = self._pipeline
        ends = {r.part.source: r.end for r in batch.ranges}
        buckets = {file.bucket for file in batch.files}
        phases = self._progress.record_commit(version, facts, ends, buckets)
        self.former = {"version": version, "phases": round_phases({key: phases[key] for key in ("commit", "redo")})}
        totals = Totals()
        totals.add(facts)
        logging.event(
            "batch_committed",
            pipeline=name,
            batch=facts["batch"],
            version=version,
            **totals.records,
            late_rows=totals.late_rows,
            **_unfit_counts(totals),
            files=facts["files"],
            bytes=facts["bytes"],
            seconds=round(seconds, 1),
        )
        offsets = without_records(facts)
        if offsets:
            logging.event("offsets_without_records", pipeline=name, version=version, offsets=offsets)
            # Once a start: transactions leave some in each commit.
            if not self._notified_without_records:
                self._notifier.send(notifications.missing_offsets(name, offsets, version, datetime.now(UTC)))
            self._notified_without_records = True


def _unfit_counts(totals: Totals) -> dict[str, int]:
    """Return the counts of members of JSON that fit no column, as a log line has them; none where there are none."""
    return {f"unfit_members_{became}": count for became, count in totals.unfit_members.items()}
