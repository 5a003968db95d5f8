"""Reports each commit of a pipeline: to its progress, to the log, and once a start to a person where records lack."""

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Any

from writer.clients import notifications
from writer.config.routing import RouteSection
from writer.core import logging
from writer.status.model import WITHOUT_TABLE, Totals, without_records
from writer.status.progress import Progress
from writer.table.log.operations import Batch
from writer.table.pipeline_tables import TargetState


def rounded(seconds: Mapping[str, float]) -> dict[str, float]:
    """Return the wall seconds of phases as a commit has them."""
    return {phase: round(spent, 3) for phase, spent in seconds.items()}


class CommitReport:
    """What is said of the commits of one start."""

    def __init__(self, pipeline: str, progress: Progress, notifier: notifications.Notifier) -> None:
        self._pipeline, self._progress, self._notifier = pipeline, progress, notifier
        self._notified_without_records, self._behind = False, frozenset[str]()
        self._refused, self._is_beyond = frozenset[str](), False
        self.former: dict[str, Any] | None = None  # what the last commit cost; it could not say so itself

    def targets(
        self,
        states: Mapping[str, TargetState],
        refused: Mapping[str, str],
        beyond: Collection[str],
        route: RouteSection,
    ) -> None:
        """Report which tables of a route refuse, which do no longer, and which names have none. Each is said once.

        `refused`: names that can be no table, and why; `beyond`: names beyond `max_targets`.
        """
        behind, now = {name: one.why for name, one in states.items() if one.why}, datetime.now(UTC)
        if new := {name: behind[name] for name in sorted(behind.keys() - self._behind)}:
            for name, why in new.items():
                logging.warning("target_behind", pipeline=self._pipeline, target=name, reason=why)
            self._notifier.send(notifications.target_behind(self._pipeline, new, now))
        for name in self._behind - behind.keys():
            logging.event("target_caught_up", pipeline=self._pipeline, target=name)
        if names := {name: refused[name] for name in sorted(refused.keys() - self._refused)}:
            self._notifier.send(notifications.target_refusal(self._pipeline, names, route.unrouted, now))
        if beyond and not self._is_beyond:
            event = notifications.targets_beyond_max(
                self._pipeline, sorted(beyond), route.max_targets, route.unrouted, now
            )
            self._notifier.send(event)
        self._behind, self._refused = frozenset(behind), frozenset(refused)
        self._is_beyond = self._is_beyond or bool(beyond)
        counts = dict(zip(WITHOUT_TABLE, (len(refused), len(beyond)), strict=True))
        self._progress.applied(states, counts, route.held.max_bytes)

    def committed(self, version: int, planned: Batch, seconds: float) -> None:
        """Report a commit. `seconds`: from Spark's call on."""
        facts, name = planned.facts, self._pipeline
        ends = {(r.part.topic, r.part.partition): r.end for r in planned.ranges}
        spent = self._progress.committed(version, facts, ends, {file.bucket for file in planned.files})
        self.former = {"version": version, "phases": rounded({k: spent[k] for k in ("commit", "redo")})}
        sums = Totals()
        sums.add(facts)
        logging.event(
            "batch_committed", pipeline=name, batch=facts["batch"], version=version,
            **sums.records, late_rows=sums.late_rows, files=facts["files"], bytes=facts["bytes"],
            seconds=round(seconds, 1),
        )  # fmt: skip
        if missing := without_records(facts):
            logging.event("offsets_without_records", pipeline=name, version=version, offsets=missing)
            if not self._notified_without_records:  # once a start: transactions leave some in each commit
                self._notifier.send(notifications.missing_offsets(name, missing, version, datetime.now(UTC)))
            self._notified_without_records = True
