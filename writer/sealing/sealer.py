"""Closes and seals buckets. Any process can run this beside others, because all state comes from the table's log."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from uuid import uuid4

import bucketers
from bucketers import interval
from writer.batch.staging.bucket_folders import bucket_folder
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.core import fault_points, logging
from writer.core.errors import HeadraceError
from writer.core.files import BucketFile, BucketKey, group_by_bucket
from writer.core.offsets import Source
from writer.core.units import instant
from writer.sealing.bucket_states import BucketCounts, bucket_counts
from writer.sealing.manifest import Manifest, Manifests, Reason, bucket_path
from writer.sealing.rules import MissingRange, SealBlocked, SealNow, State, Unsealed, is_closed, to_seal
from writer.sealing.unsealed import (
    BucketQuestion,
    IndexCheckpoint,
    UnsealedIndex,
    after,
    expected,
    from_files,
    missing_ranges_of,
)
from writer.sealing.watermark import PartitionEventTime, Watermark
from writer.table.factory import all_tables, main_table
from writer.table.gap_records import gap_records
from writer.table.log.entries import parse_commit_info
from writer.table.log.log import Action
from writer.table.log.operations import Closing, Sealing
from writer.table.log.snapshot import PipelineSnapshot
from writer.table.pipeline_tables import Tables

_ENTRIES_UNMARKED_MAX = 50  # that the next process reads again
_BUCKETS_AT_ONCE = 100  # that one entry seals
_LISTED_SINGLY = 4  # buckets whose files are asked for one by one; for more, all files are listed once
Prepare = Callable[[BucketKey], None]


@dataclass(frozen=True)
class BucketSnapshot:
    """A table and its buckets at one version."""

    snapshot: PipelineSnapshot
    unsealed: UnsealedIndex
    progress: PipelineSnapshot  # of the pipeline's log: the same, but for a table of a route
    number: int | None = None  # of such a table
    closing: datetime | None = None  # what is only thought of

    @property
    def closed_until(self) -> datetime | None:
        """Buckets that end by then are closed."""
        until = self.snapshot.closed_until
        if self.number is not None:  # after a rewind the table may be behind: what both have closed is closed
            by_log = self.progress.closed_target(self.number)
            until = None if until is None or by_log is None else min(until, by_log)
        known = [at for at in (until, self.closing) if at is not None]
        return max(known, default=None)


def sealed_targets(settings: Pipeline, snapshot: PipelineSnapshot) -> list[str]:
    """Return the tables of a route whose buckets are sealed, by name. `snapshot`: of the pipeline's log."""
    found = [(one.name, settings.rule_of(one.name, one.location)) for one in snapshot.targets().values()]
    return [name for name, rule in found if rule and settings.of_target(rule, name).seal.enabled]


class Sealer:
    """Closes and seals the buckets of one table. Not for several threads.

    Of a route's table, the closes are entries of the pipeline's log, which its own log repeats; seals are in its own.
    """

    def __init__(self, pipeline: str, config: Config, target: str | None = None, tables: Tables | None = None) -> None:
        """Take the pipeline, and the table of its route; it need not be there yet. Raises ConfigError.

        `tables`: of a route, where several sealers share them in one thread.
        """
        own = config.at_target(pipeline, target)
        self.pipeline, self.settings = pipeline, own.pipelines[pipeline]
        self.policy = self.settings.seal
        self.table = main_table(pipeline, own)  # with a view of the log of its own: the stream's is not waited for
        self._tables = None if target is None else tables or all_tables(pipeline, config)
        self.log = self.table if self._tables is None else self._tables.main  # of the pipeline
        self.about = {"pipeline": pipeline, **({} if target is None else {"target": target})}  # of what is logged
        self.bucketer = bucketers.build(self.settings.bucket)
        self.columns = self.bucketer.columns
        self.manifests = Manifests(self.table.store, self.columns)
        self.prepare: list[Prepare] = []  # what is done to a bucket before it is sealed
        self.sealed: list[Manifest] = []  # by this process
        self.watermark = Watermark(None)  # as it was last found
        self._unsound: dict[Unsealed, SealBlocked] = {}  # buckets whose rows are not as the log has them
        self._index_checkpoint = IndexCheckpoint(self.table.store)
        self._marked = -1
        self._unsealed: UnsealedIndex | None = None
        self._missing: tuple[Mapping[str, int], tuple[MissingRange, ...]] = {}, ()  # by sums of gaps

    def follow(self, *, keep: bool = True) -> BucketSnapshot:
        """Read on in the log, and see to it that what its seals promise is there. Raises CommitFailed, OSError.

        `keep`: False only looks, and writes nothing.
        """
        if keep and self._tables is not None:
            self._catch_up(self._tables)
        snapshot = self.table.snapshot()
        progress = self.log.snapshot() if self._tables else snapshot  # after it: of the gaps none is missed
        table, version = snapshot.state.table_version
        unsealed = (
            self._unsealed if self._unsealed and self._unsealed.table == table else self._index_checkpoint.read(table)
        )
        if unsealed is None or unsealed.version > version:
            unsealed = UnsealedIndex(table, -1)
        entries = [entry for entry in self.table.entries(unsealed.version) if entry[0] <= version]
        ask, promised = self._ask(snapshot), False
        if [n for n, _ in entries] != list(range(unsealed.version + 1, version + 1)):  # cleaned up before it was read
            known = missing_ranges_of(gap_records(self.table, self.pipeline), unsealed.missing_ranges)
            unsealed = from_files(table, version, self.table.bucket_files(snapshot), known, datetime.now(UTC), ask)
            entries, self._marked = [], -1
        for number, actions in entries:
            promised = (keep and self._keep(number, actions)) or promised
            unsealed = after(unsealed, number, actions, self.columns, ask)
        self._unsealed = unsealed
        if keep and (promised or version - self._marked >= _ENTRIES_UNMARKED_MAX):
            self._index_checkpoint.put(unsealed)
            self._marked = version
        if self._tables is not None:
            unsealed = replace(unsealed, missing_ranges=self._missing_ranges(progress, snapshot))
        return BucketSnapshot(snapshot, unsealed, progress, self._number(progress))

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
        found = progress.targets() if self._tables is not None else {}
        return next((number for number, one in found.items() if one.location == self.table.location), None)

    def _missing_ranges(self, progress: PipelineSnapshot, snapshot: PipelineSnapshot) -> tuple[MissingRange, ...]:
        """Return where records of gaps may be missing. Gap records are read only after one was opened, or ended.

        A gap that was filled is open for a table that does not have all that the log lists for it.
        """
        if self._missing[0] == progress.gap_sums:
            return self._missing[1]
        records = gap_records(self.log, self.pipeline) if progress.gap_sums["gaps"] else {}
        found = tuple(missing_ranges_of(records, ()))
        commits = self.log.commits_since(max(snapshot.applied, progress.settled)) if found else []
        if any(self.table.location in one.locations(progress.targets()) for one in commits):
            return tuple(replace(one, state="open") if one.state == "done" else one for one in found)
        self._missing = progress.gap_sums, found
        return found

    def close(self, standing: BucketSnapshot, until: datetime, reason: Reason, now: datetime) -> int | None:
        """Close the buckets that end by then. Returns the version that does it; None: they are. Raises CommitFailed."""
        number = standing.number
        if self._tables is not None and number is None:
            raise HeadraceError(f"the log at {self.log.location} does not know the table at {self.table.location}")
        closing = Closing(uuid4().hex, until, {"reason": reason, "at": now.isoformat()}, number)
        version = self.log.close(standing.progress, closing)
        if version is not None:
            logging.event("buckets_closed", **self.about, until=until.isoformat(), reason=reason, version=version)
        return version

    def due(self, standing: BucketSnapshot, now: datetime) -> list[State]:
        """Return for every closed bucket that is not sealed what is to be done."""
        unsealed = standing.unsealed
        states = to_seal(self.policy, unsealed.buckets.values(), unsealed.missing_ranges, standing.closed_until, now)
        return [self._unsound.get(unsealed.buckets[state.bucket], state) for state in states]

    def seal(self, ready: Sequence[SealNow], now: datetime) -> None:
        """Seal buckets, after all that prepares them. Those whose rows are not as the log has them are blocked.

        Raises Resealed when one of them changed meanwhile: it will be due again. CommitFailed, OSError.
        """
        for at in range(0, len(ready), _BUCKETS_AT_ONCE):
            self._seal_some(ready[at : at + _BUCKETS_AT_ONCE], now)

    def bucket_counts(
        self, standing: BucketSnapshot, now: datetime, trouble: Sequence[tuple[str, str]] = ()
    ) -> BucketCounts:
        """Return how the buckets are."""
        return bucket_counts(
            self.columns, list(standing.unsealed.buckets.values()), self.due(standing, now), self.sealed,
            self.watermark, standing.closed_until, trouble, now,
        )  # fmt: skip

    def draw(
        self, standing: BucketSnapshot, ready: Sequence[SealNow], now: datetime
    ) -> tuple[list[Manifest], list[SealBlocked]]:
        """Build the manifests of buckets from the log, and compare their files with its counts. Writes nothing."""
        files = self._files(standing.snapshot, [one.bucket for one in ready])
        drawn: list[Manifest] = []
        blocked: list[SealBlocked] = []
        for one in ready:
            found = self._manifest(standing, one, files.get(one.bucket, []), now)
            if isinstance(found, Manifest):
                drawn.append(found)
            else:
                blocked.append(found)
        return drawn, blocked

    def parts(
        self, standing: BucketSnapshot, numbers: Mapping[str, int], idle: frozenset[Source]
    ) -> list[PartitionEventTime]:
        """Return how far the parts have come that the pipeline reads; `numbers`: topic → number of its incarnation."""
        snapshot = standing.progress
        mine = [part for part in snapshot.parts() if numbers.get(part.topic) == part.incarnation]
        seen = [(part, snapshot.newest_event_time(part)) for part in mine if self.settings.topics.includes(part.topic)]
        return [
            PartitionEventTime(part, None if at is None else instant(at), idle=(part.topic, part.partition) in idle)
            for part, at in seen
        ]

    def _seal_some(self, ready: Sequence[SealNow], now: datetime) -> None:
        for one in ready:
            for prepare in self.prepare:
                prepare(one.bucket)
        fault_points.point("before_verify")
        standing = self.follow()
        drawn, blocked = self.draw(standing, [one for one in ready if one.bucket in standing.unsealed.buckets], now)
        if drawn:
            sealing = Sealing(uuid4().hex, [manifest.to_json() for manifest in drawn], {"at": now.isoformat()})
            version = self.table.seal(standing.snapshot, sealing)
            for manifest in drawn:
                self.sealed.append(manifest.standing(version))
                logging.event(
                    "bucket_sealed", **self.about, bucket=manifest.name, manifest=manifest.version,
                    version=version, rows=manifest.rows, files=manifest.files, late=manifest.late,
                    reason=manifest.reason,
                )  # fmt: skip
            self.follow()
        for state in blocked:
            self._unsound[standing.unsealed.buckets[state.bucket]] = state
            name = bucket_path(self.columns, state.bucket)
            logging.warning("bucket_blocked", **self.about, bucket=name, reason=state.why)

    def _manifest(
        self, standing: BucketSnapshot, ready: SealNow, files: Sequence[BucketFile], now: datetime
    ) -> Manifest | SealBlocked:
        one = standing.unsealed.buckets[ready.bucket]
        before = self.manifests.read(one.bucket, one.sealed) if one.sealed else None
        uncounted = next((file.path for file in files if file.rows is None), None)
        if uncounted is not None:
            return SealBlocked(one.bucket, f"another client wrote {uncounted} and does not say how many rows it holds")
        rows, logged = sum(file.rows or 0 for file in files), expected(one, before)
        if logged is not None and logged != rows:
            return SealBlocked(
                one.bucket, f"its files hold {rows:,} rows, the log has {logged:,}; `headrace audit --deep` says which"
            )
        times = [at for file in files for at in (file.event_time_min, file.event_time_max) if at is not None]
        near = [h for h in standing.unsealed.missing_ranges if one.start and one.end and h.touches(one.start, one.end)]
        filled = any(missing_range.state == "done" for missing_range in near)
        touched = any(missing_range.state != "done" for missing_range in near)
        return Manifest(
            pipeline=self.pipeline, table=self.settings.table.location, columns=self.columns, bucket=one.bucket,
            start=one.start, end=one.end, version=one.sealed + 1, rows=rows, files=len(files),
            bytes=sum(file.bytes for file in files), event_time_min=min(times, default=None),
            event_time_max=max(times, default=None), late=(before.late if before else 0) + one.late,
            deduped=(before.deduped if before else 0) + one.deduped, added=rows - (before.rows if before else 0),
            reason=one.reason or "command", with_gap=touched or bool(before and before.with_gap and not filled),
            sealed_at=now,
            log_position=standing.unsealed.version,
            late_elsewhere=standing.unsealed.late_elsewhere(one.bucket, before),
        )  # fmt: skip

    def _files(self, snapshot: PipelineSnapshot, buckets: Sequence[BucketKey]) -> dict[BucketKey, list[BucketFile]]:
        if len(buckets) <= _LISTED_SINGLY:
            return {bucket: self.table.bucket_files(snapshot, bucket) for bucket in buckets}
        found = group_by_bucket(self.table.bucket_files(snapshot))
        return {bucket: found.get(bucket, []) for bucket in buckets}

    def _keep(self, version: int, actions: Sequence[Action]) -> bool:
        """Put the manifests of a seal where others look for them, again if need be. True when the entry is a seal."""
        about = parse_commit_info(actions)[1]
        if about.get("kind") != "seal":
            return False
        marker = self.settings.seal.success_file
        wanted = self.settings.table.format == "parquet" if marker is None else marker
        for raw in about["manifests"]:
            manifest = Manifest.from_json(raw, f"version {version} of {self.table.location}").standing(version)
            fault_points.point("before_manifest")
            self.manifests.put(manifest)
            fault_points.point("after_manifest")
            if wanted:
                folder = bucket_folder(self.columns, manifest.bucket, hive=self.table.hidden)
                self.table.store.put(f"{self.table.folder}/{folder}/_SUCCESS".lstrip("/"), b"")
                fault_points.point("after_success")
        return True

    def _ask(self, snapshot: PipelineSnapshot) -> BucketQuestion:
        def newest(bucket: BucketKey) -> Manifest | None:
            span = interval(self.bucketer, bucket)
            if span is not None and not is_closed(span[1], snapshot.closed_ever):
                return None  # it was always open, so it was never sealed
            return self.manifests.newest(bucket)

        return BucketQuestion(partial(interval, self.bucketer), newest)
