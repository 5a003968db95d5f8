"""Closes and seals buckets. Any process can run this beside others, because all state comes from the table's log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from uuid import uuid4

from headrace import bucketers
from headrace.bucketers import interval
from headrace.writer.batch.staging.bucket_folders import bucket_folder
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core import fault_points, logging
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketFile, BucketKey, group_by_bucket
from headrace.writer.core.offsets import Source
from headrace.writer.core.units import instant
from headrace.writer.sealing.bucket_states import BucketCounts, SealFacts, bucket_counts
from headrace.writer.sealing.manifest import Manifest, Manifests, Reason, bucket_path
from headrace.writer.sealing.rules import (
    MissingRange,
    SealBlocked,
    SealDecision,
    SealNow,
    SealRefused,
    Unsealed,
    choose_seals,
    is_closed,
)
from headrace.writer.sealing.unsealed import (
    BucketQuestions,
    IndexCheckpoint,
    UnsealedIndex,
    apply_entry,
    explain_wrong_rows,
    index_files,
    missing_ranges_of,
)
from headrace.writer.sealing.watermark import PartitionEventTime, Watermark
from headrace.writer.table.factory import all_tables, main_table
from headrace.writer.table.gap_records import gap_records
from headrace.writer.table.log.entries import parse_commit_info
from headrace.writer.table.log.foreign_writes import NothingToClose
from headrace.writer.table.log.log import Action
from headrace.writer.table.log.operations.seals import Closing, Sealing
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.pipeline_tables import Tables

# Entries of the log that the next process reads again.
_ENTRIES_UNSAVED_MAX = 50
# So long a bucket stays blocked that a step before its seal refused; each try reads keys of it.
_REFUSAL_HOLDS = timedelta(minutes=5)
# Buckets that one entry seals.
_BUCKETS_PER_ENTRY_MAX = 100
# Buckets whose files are asked for one by one; for more, all files are listed once.
_BUCKETS_LISTED_SINGLY_MAX = 4
Prepare = Callable[[BucketKey], None]


@dataclass(frozen=True)
class BucketSnapshot:
    """A table and its buckets at one version."""

    table_snapshot: PipelineSnapshot
    unsealed: UnsealedIndex
    # Of the pipeline's log: the same, but for a table of a route.
    progress: PipelineSnapshot
    # Of such a table.
    number: int | None = None
    # The instant of a close that is planned, and not committed.
    closing: datetime | None = None

    @property
    def closed_until(self) -> datetime | None:
        """Buckets that end by then are closed."""
        until = self.table_snapshot.closed_until
        if self.number is not None:
            # After a rewind the table may be behind: what both have closed is closed.
            log_until = self.progress.closed_target(self.number)
            until = None if until is None or log_until is None else min(until, log_until)
        instants = [closed for closed in (until, self.closing) if closed is not None]
        return max(instants, default=None)


def sealed_targets(settings: Pipeline, snapshot: PipelineSnapshot) -> list[str]:
    """Return the tables of a route whose buckets are sealed, by name. `snapshot`: of the pipeline's log."""
    names = []
    for target in snapshot.targets().values():
        rule = settings.rule_of(target.name, target.location)
        if rule and settings.of_target(rule, target.name).seal.enabled:
            names.append(target.name)
    return names


class Sealer:
    """Closes and seals the buckets of one table. Not for several threads.

    Of a route's table, the closes are entries of the pipeline's log, which its own log repeats; seals are in its own.
    """

    def __init__(self, pipeline: str, config: Config, target: str | None = None, tables: Tables | None = None) -> None:
        """Take the pipeline, and the table of its route; it need not be there yet. Raises ConfigError.

        `tables`: of a route, where several sealers share them in one thread.
        """
        own = config.at_target(pipeline, target)
        self.pipeline = pipeline
        self.settings = own.pipelines[pipeline]
        self.policy = self.settings.seal
        # It has a view of the log of its own: the stream's is not waited for.
        self.table = main_table(pipeline, own)
        self._tables = None if target is None else tables or all_tables(pipeline, config)
        # Of the pipeline.
        self.log = self.table if self._tables is None else self._tables.main
        # Fields of every event that is logged.
        self.about = {"pipeline": pipeline}
        if target is not None:
            self.about["target"] = target
        self.bucketer = bucketers.build(self.settings.bucket)
        self.columns = self.bucketer.columns
        self.manifests = Manifests(self.table.store, self.columns)
        # Steps that are done to a bucket before it is sealed.
        self.prepare: list[Prepare] = []
        # By this process.
        self.sealed: list[Manifest] = []
        # As it was computed last.
        self.watermark = Watermark(None)
        # Buckets whose rows are not as the log has them.
        self._unsound: dict[Unsealed, SealBlocked] = {}
        # Buckets that are not prepared for their seal, and when that is tried again.
        self._refused: dict[Unsealed, tuple[SealBlocked, datetime]] = {}
        self._index_checkpoint = IndexCheckpoint(self.table.store)
        self._saved_version = -1
        self._unsealed: UnsealedIndex | None = None
        # By sums of gaps.
        self._missing: tuple[Mapping[str, int], tuple[MissingRange, ...]] = ({}, ())

    def follow(self, *, write: bool = True) -> BucketSnapshot:
        """Read on in the log, and see to it that what its seals promise is there. Raises CommitFailed, OSError.

        `write`: False only reads, and writes neither manifests nor the index.
        """
        if write and self._tables is not None:
            self._catch_up(self._tables)
        snapshot = self.table.snapshot()
        # It is read after the table: so no gap is missed.
        progress = snapshot
        if self._tables:
            progress = self.log.snapshot()
        table, version = snapshot.state.table_version
        index = self._last_index(table)
        if index is None or index.version > version:
            index = UnsealedIndex(table, -1)
        entries = [entry for entry in self.table.entries(index.version) if entry[0] <= version]
        questions = self._bucket_questions(snapshot)
        has_seals = False
        if [number for number, _ in entries] != list(range(index.version + 1, version + 1)):
            # Entries were cleaned up before they were read.
            missing_ranges = missing_ranges_of(gap_records(self.table, self.pipeline), index.missing_ranges)
            files = self.table.bucket_files(snapshot)
            index = index_files(table, version, files, missing_ranges, datetime.now(UTC), questions)
            entries = []
            self._saved_version = -1
        for number, actions in entries:
            if write and self._put_manifests(number, actions):
                has_seals = True
            index = apply_entry(index, number, actions, self.columns, questions)
        self._unsealed = index
        if write and (has_seals or version - self._saved_version >= _ENTRIES_UNSAVED_MAX):
            self._index_checkpoint.put(index)
            self._saved_version = version
        if self._tables is not None:
            index = replace(index, missing_ranges=self._missing_ranges(progress, snapshot))
        return BucketSnapshot(snapshot, index, progress, self._number(progress))

    def _last_index(self, table: str) -> UnsealedIndex | None:
        """Return the index of a table id as this process or another one left it."""
        if self._unsealed is not None and self._unsealed.table == table:
            return self._unsealed
        return self._index_checkpoint.read(table)

    def _catch_up(self, tables: Tables) -> None:
        """See to it that a route's table has the closes and the fills that the pipeline's log has. Raises CommitFailed.

        What the table does not take waits; `_missing_ranges` and `closed_until` reckon with that.
        """
        progress = self.log.snapshot()
        number = self._number(progress)
        if number is None:
            return
        is_closed_here = progress.closed_target(number) == self.table.snapshot().closed_until
        if not is_closed_here or self._missing[0] != progress.gap_sums:
            tables.apply_side_files()

    def _number(self, progress: PipelineSnapshot) -> int | None:
        """Return the number of a route's table; None: it has none yet, or is the pipeline's own."""
        if self._tables is None:
            return None
        for number, target in progress.targets().items():
            if target.location == self.table.location:
                return number
        return None

    def _missing_ranges(self, progress: PipelineSnapshot, snapshot: PipelineSnapshot) -> tuple[MissingRange, ...]:
        """Return where records of gaps may be missing. Gap records are read only after one was opened, or ended.

        A gap that was filled is open for a table that does not have all that the log lists for it.
        """
        gap_sums, missing_ranges = self._missing
        if gap_sums == progress.gap_sums:
            return missing_ranges
        missing_ranges = ()
        if progress.gap_sums["gaps"]:
            missing_ranges = tuple(missing_ranges_of(gap_records(self.log, self.pipeline), ()))
        commits = self.log.commits_since(max(snapshot.applied, progress.settled)) if missing_ranges else []
        if any(self.table.location in commit.locations(progress.targets()) for commit in commits):
            return tuple(
                replace(missing_range, state="open") if missing_range.state == "done" else missing_range
                for missing_range in missing_ranges
            )
        self._missing = (progress.gap_sums, missing_ranges)
        return missing_ranges

    def close(self, snapshot: BucketSnapshot, until: datetime, reason: Reason, now: datetime) -> int | None:
        """Close the buckets that end by then. Returns the version that does it. Raises CommitFailed.

        None: they are, or the table was rewound meanwhile.
        """
        number = snapshot.number
        if self._tables is not None and number is None:
            raise HeadraceError(f"the log at {self.log.location} does not know the table at {self.table.location}")
        closing = Closing(uuid4().hex, until, {"reason": reason, "at": now.isoformat()}, number)
        try:
            version = self.log.append(closing, snapshot.progress)
        except NothingToClose:
            return None
        logging.event("buckets_closed", **self.about, until=until.isoformat(), reason=reason, version=version)
        return version

    def due(self, snapshot: BucketSnapshot, now: datetime) -> list[SealDecision]:
        """Return for every closed bucket that is not sealed what is to be done."""
        unsealed = snapshot.unsealed
        decisions = choose_seals(
            self.policy, unsealed.buckets.values(), unsealed.missing_ranges, snapshot.closed_until, now
        )
        return [self._find_block(unsealed.buckets[decision.bucket], now) or decision for decision in decisions]

    def _find_block(self, bucket: Unsealed, now: datetime) -> SealBlocked | None:
        """Return why a bucket that did not change since is not sealed; None: nothing blocks it."""
        block, retry_at = self._refused.get(bucket, (None, now))
        if now < retry_at:
            return block
        return self._unsound.get(bucket)

    def seal(self, ready: Sequence[SealNow], now: datetime) -> None:
        """Seal buckets, after all that prepares them. Those whose rows are not as the log has them are blocked.

        Raises Resealed when one of them changed meanwhile: it will be due again. CommitFailed, OSError.
        """
        for start in range(0, len(ready), _BUCKETS_PER_ENTRY_MAX):
            self._seal_in_one_entry(ready[start : start + _BUCKETS_PER_ENTRY_MAX], now)

    def seal_facts(self, snapshot: BucketSnapshot, watermark: Watermark, now: datetime) -> SealFacts:
        """Return what the states of the buckets follow from."""
        decisions = {decision.bucket: decision for decision in self.due(snapshot, now)}
        return SealFacts(self.policy, snapshot.closed_until, watermark, snapshot.unsealed, decisions)

    def bucket_counts(
        self, snapshot: BucketSnapshot, now: datetime, trouble: Sequence[tuple[str, str]] = ()
    ) -> BucketCounts:
        """Count the buckets by state."""
        return bucket_counts(self.seal_facts(snapshot, self.watermark, now), self.columns, self.sealed, trouble, now)

    def build_manifests(
        self, snapshot: BucketSnapshot, ready: Sequence[SealNow], now: datetime
    ) -> tuple[list[Manifest], list[SealBlocked]]:
        """Build the manifests of buckets from the log, and compare their files with its counts. Writes nothing."""
        files = self._files(snapshot.table_snapshot, [decision.bucket for decision in ready])
        manifests: list[Manifest] = []
        blocked: list[SealBlocked] = []
        for decision in ready:
            result = self._build_manifest(snapshot, decision.bucket, files.get(decision.bucket, []), now)
            if isinstance(result, Manifest):
                manifests.append(result)
            else:
                blocked.append(result)
        return manifests, blocked

    def parts(
        self, snapshot: BucketSnapshot, numbers: Mapping[str, int], idle: frozenset[Source]
    ) -> list[PartitionEventTime]:
        """Return how far the parts have come that the pipeline reads; `numbers`: topic → number of its incarnation."""
        event_times = []
        for part in snapshot.progress.parts():
            if numbers.get(part.topic) != part.incarnation or not self.settings.topics.includes(part.topic):
                continue
            newest_us = snapshot.progress.newest_event_time(part)
            newest = None
            if newest_us is not None:
                newest = instant(newest_us)
            event_times.append(PartitionEventTime(part, newest, idle=(part.topic, part.partition) in idle))
        return event_times

    def _seal_in_one_entry(self, ready: Sequence[SealNow], now: datetime) -> None:
        refused = [block for decision in ready if (block := self._prepare(decision.bucket)) is not None]
        fault_points.point("before_verify")
        snapshot = self.follow()
        unsealed = snapshot.unsealed.buckets
        not_ready = {block.bucket for block in refused}
        still_ready = [decision for decision in ready if decision.bucket in unsealed.keys() - not_ready]
        manifests, unsound = self.build_manifests(snapshot, still_ready, now)
        if manifests:
            sealing = Sealing(uuid4().hex, [manifest.to_json() for manifest in manifests], {"at": now.isoformat()})
            version = self.table.append(sealing, snapshot.table_snapshot)
            for manifest in manifests:
                self.sealed.append(manifest.with_table_version(version))
                logging.event(
                    "bucket_sealed",
                    **self.about,
                    bucket=manifest.name,
                    manifest=manifest.version,
                    version=version,
                    rows=manifest.rows,
                    files=manifest.files,
                    late=manifest.late,
                    reason=manifest.reason,
                )
            self.follow()
        self._unsound |= {unsealed[block.bucket]: block for block in unsound}
        # A person may take rows out of another bucket, or rows of this one may go.
        self._refused |= {
            unsealed[block.bucket]: (block, now + _REFUSAL_HOLDS) for block in refused if block.bucket in unsealed
        }
        for block in (*refused, *unsound):
            name = bucket_path(self.columns, block.bucket)
            logging.warning("bucket_blocked", **self.about, bucket=name, reason=block.why)

    def _prepare(self, bucket: BucketKey) -> SealBlocked | None:
        """Do what is to be done to a bucket before its seal. Returns why that is refused; None: it is ready."""
        try:
            for prepare in self.prepare:
                prepare(bucket)
        except SealRefused as refusal:
            return SealBlocked(bucket, str(refusal))
        return None

    def _build_manifest(
        self, snapshot: BucketSnapshot, key: BucketKey, files: Sequence[BucketFile], now: datetime
    ) -> Manifest | SealBlocked:
        unsealed = snapshot.unsealed.buckets[key]
        before = None
        if unsealed.sealed:
            before = self.manifests.read(key, unsealed.sealed)
        why = explain_wrong_rows(unsealed, files, before)
        if why is not None:
            return SealBlocked(key, why)
        rows = sum(file.rows or 0 for file in files)
        first_times = [file.event_time_min for file in files if file.event_time_min is not None]
        last_times = [file.event_time_max for file in files if file.event_time_max is not None]
        return Manifest(
            pipeline=self.pipeline,
            table=self.settings.table.location,
            columns=self.columns,
            bucket=key,
            start=unsealed.start,
            end=unsealed.end,
            version=unsealed.sealed + 1,
            rows=rows,
            files=len(files),
            bytes=sum(file.bytes for file in files),
            event_time_min=min([*first_times, *last_times], default=None),
            event_time_max=max([*first_times, *last_times], default=None),
            late=(before.late if before else 0) + unsealed.late,
            deduped=(before.deduped if before else 0) + unsealed.deduped,
            added=rows - (before.rows if before else 0),
            reason=unsealed.reason or "command",
            with_gap=_has_gap(unsealed, snapshot.unsealed.missing_ranges, before),
            sealed_at=now,
            log_position=snapshot.unsealed.version,
            late_elsewhere=snapshot.unsealed.late_elsewhere(key, before),
        )

    def _files(self, snapshot: PipelineSnapshot, buckets: Sequence[BucketKey]) -> dict[BucketKey, list[BucketFile]]:
        if len(buckets) <= _BUCKETS_LISTED_SINGLY_MAX:
            return {bucket: self.table.bucket_files(snapshot, bucket) for bucket in buckets}
        files = group_by_bucket(self.table.bucket_files(snapshot))
        return {bucket: files.get(bucket, []) for bucket in buckets}

    def _put_manifests(self, version: int, actions: Sequence[Action]) -> bool:
        """Put the manifests of a seal where others look for them, again if need be. True when the entry is a seal."""
        _, facts = parse_commit_info(actions)
        if facts.get("kind") != "seal":
            return False
        marker = self.settings.seal.success_file
        wants_marker = marker
        if wants_marker is None:
            wants_marker = self.settings.table.format == "parquet"
        source = f"version {version} of {self.table.location}"
        for document in facts["manifests"]:
            manifest = Manifest.from_json(document, source).with_table_version(version)
            fault_points.point("before_manifest")
            self.manifests.put(manifest)
            fault_points.point("after_manifest")
            if wants_marker:
                folder = bucket_folder(self.columns, manifest.bucket, hive=self.table.hidden)
                self.table.store.put(f"{self.table.folder}/{folder}/_SUCCESS".lstrip("/"), b"")
                fault_points.point("after_success")
        return True

    def _bucket_questions(self, snapshot: PipelineSnapshot) -> BucketQuestions:
        def newest_manifest(bucket: BucketKey) -> Manifest | None:
            bucket_interval = interval(self.bucketer, bucket)
            # A bucket that was always open was never sealed.
            if bucket_interval is not None and not is_closed(bucket_interval[1], snapshot.closed_ever):
                return None
            return self.manifests.newest(bucket)

        return BucketQuestions(partial(interval, self.bucketer), newest_manifest)


def _has_gap(unsealed: Unsealed, missing_ranges: Sequence[MissingRange], before: Manifest | None) -> bool:
    """Return whether a bucket may miss records of a gap. `before`: its manifest until now."""
    touching = []
    if unsealed.start and unsealed.end:
        interval = (unsealed.start, unsealed.end)
        touching = [missing_range for missing_range in missing_ranges if missing_range.touches(*interval)]
    if any(missing_range.state != "done" for missing_range in touching):
        return True
    # Where gaps touch it and all are filled, the records that an earlier manifest lacked are there.
    return before is not None and before.with_gap and not touching
