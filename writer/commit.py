"""From the reports of a batch's tasks to one commit: ranges, counts, files. Pure but for the table it is handed."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median
from typing import Any, Literal
from uuid import uuid4

from writer import config
from writer.checkpoint import Offsets
from writer.errors import CheckpointUnusable, HeadraceError
from writer.ledger.holes import Holes, holes
from writer.rooms.columnar import StagedFile
from writer.rooms.report import EXITS, Counts, Report
from writer.seals.watermark import risen
from writer.tables.changes import Batch
from writer.tables.parts import Part, Range
from writer.tables.table import PipelineTable
from writer.units import show_duration

CATCH_UP_SHARE = 1 / 8  # of a file's target size: smaller ones are made while more waits than a batch may take
Reason = Literal["size", "backlog", "timeout", "start", "once", "replay"]


class StagedTooLongAgo(HeadraceError):
    """What was staged is as old as what nobody needs. Nothing of it was committed."""


@dataclass(frozen=True)
class Limits:
    """When Spark ends a batch, as it was told at the start of the query. `--once` sets no minimum and no delay."""

    records_min: int | None  # offsets that begin a batch before its delay is over
    records_min_from: str  # what the minimum comes from: a configuration key
    records_max: int
    delay_max: timedelta | None
    records_per_task: int | None = None  # at least so many where slots are plenty; None: nobody has reckoned it
    records_per_range: int | None = None  # Spark reads no more in one piece; None: partitions, and slots at the start

    def facts(self) -> dict[str, Any]:
        """Write the limits as JSON values."""
        return {
            "records_min": self.records_min, "records_min_from": self.records_min_from, "records_max": self.records_max,
            "records_per_task": self.records_per_task, "records_per_range": self.records_per_range,
            "delay_max_seconds": None if self.delay_max is None else self.delay_max.total_seconds(),
        }  # fmt: skip


def limits(
    settings: config.Commit, target_file_size: int, bytes_per_row: float, *, once: bool, cut: int | None = None
) -> Limits:
    """Work out when batches end: as configured, else when there is enough for one file of the target size.

    `cut`: records of one range.
    """
    per_task = max(1, int(target_file_size * CATCH_UP_SHARE / bytes_per_row))
    if once:
        return Limits(None, "--once", settings.max_records, None, per_task, cut)
    enough, key = settings.min_records, "commit.min_records"
    if enough is None:
        enough, key = max(1, int(target_file_size / bytes_per_row)), "roll.target_file_size"
    if enough > settings.max_records:
        enough, key = settings.max_records, "commit.max_records"
    return Limits(enough, key, settings.max_records, settings.max_delay, per_task, cut)


def task_count(bytes_expected: float, target_file_size: int, slots: int, *, behind: bool = False) -> int:
    """How many tasks carry a batch: as many as it fills files, at most one for each slot.

    `behind`: more waits than a batch may take. Then every slot works, for smaller files.
    """
    size = target_file_size * CATCH_UP_SHARE if behind else target_file_size
    return max(1, min(slots, round(bytes_expected / size)))


def reason(offsets: int, waiting: int | None, partitions: int, limits: Limits, *, first: bool, replay: bool) -> Reason:
    """Say why a batch ends where it does. Pure.

    `offsets` is what Spark planned, `waiting` what was there moments later (None: Kafka did not say), `first` the first
    batch of a query, `replay` one that an earlier start had planned. Spark shares the maximum out to the partitions and
    rounds each share, so a batch that reached it may be some offsets short.
    """
    if replay:
        return "replay"
    if limits.records_min is None:
        return "once"
    if offsets >= limits.records_max - partitions and (waiting is None or waiting > offsets):
        return "backlog"
    if offsets >= limits.records_min:
        return "size"
    return "start" if first else "timeout"


def merged(reports: Iterable[Report]) -> Report:
    """Add the reports of all tasks of a batch."""
    total = Report()
    for report in reports:
        total.tasks += 1
        total.files += report.files
        total.dead_letter_files += report.dead_letter_files
        total.late_files += report.late_files
        total.late = total.late.plus(report.late)
        total.unknown_schemas |= report.unknown_schemas
        for room, seconds in report.seconds.items():
            total.seconds[room] = total.seconds.get(room, 0) + seconds
        total.value_bytes += report.value_bytes
        total.record_bytes_max = max(total.record_bytes_max, report.record_bytes_max)
        total.spilled_bytes += report.spilled_bytes
        total.time_unit = report.time_unit or total.time_unit
        total.poison += report.poison
        total.took_s += report.took_s
        for source, counts in report.counts.items():
            total.counts[source] = total.counts[source].plus(counts) if source in total.counts else counts
    return total


def ranges(
    start: Offsets, end: Offsets, frontier: Mapping[Part, int | None], parts: Mapping[tuple[str, int], Part]
) -> list[Range]:
    """Ranges [frontier, end) that this batch may commit, for the partitions that have something new.

    Raises CheckpointUnusable when the batch begins above the frontier: the records between would be lost.
    """
    found = []
    for source, until in end.items():
        part = parts[source]
        at = frontier.get(part)
        first = start[source] if at is None else at
        if start[source] > first:
            raise CheckpointUnusable(
                f"the table ends at offset {first} of {part.topic}/{part.partition}, but the batch starts at "
                f"{start[source]}: {start[source] - first} records would be lost"
            )
        if until > first or at is None:
            found.append(Range(part, first, max(until, first)))
    return found


def check_age(began: datetime, now: datetime, orphan_age: timedelta) -> None:
    """Raise StagedTooLongAgo when files that were staged since `began` may be taken for orphans soon."""
    if now - began > orphan_age / 2:
        age = show_duration(timedelta(seconds=round((now - began).total_seconds())))
        raise StagedTooLongAgo(
            f"its files were staged {age} ago, more than half of table.orphan_age ({show_duration(orphan_age)}): they "
            "are not committed, for `headrace vacuum` may remove them. They are made anew; make table.orphan_age "
            "longer if that happens again."
        )


def check_handed_over(report: Report, handed_over: int) -> None:
    """Assert that the tasks counted at entry what Spark says that it handed to them."""
    entered = sum(counts.read + counts.skipped for counts in report.counts.values())
    assert entered == handed_over, f"Spark handed {handed_over} records to the tasks, they counted {entered}"


def unread(report: Report, committing: Iterable[Range]) -> list[Holes]:
    """Find the offsets of the ranges that gave no record."""
    found = (holes(r, report.counts.get((r.part.topic, r.part.partition), Counts())) for r in committing)
    return [one for one in found if one is not None]


def batch(
    report: Report, committing: list[Range], *, epoch: int, settled: int, side: Mapping[str, list[StagedFile]],
    seen: Mapping[Part, int], closed_until: datetime | None, facts: Mapping[str, Any],
) -> Batch:  # fmt: skip
    """Assemble the commit. Asserts that every offset the tasks saw lies in a range.

    `side`: location of a side table → its files. `seen`: what the table knows of its parts.
    """
    by_source = {(r.part.topic, r.part.partition): r for r in committing}
    for source, counts in report.counts.items():
        if counts.offset_min is None or counts.offset_max is None:
            continue
        r = by_source[source]
        assert r.start <= counts.offset_min, f"{source}: offset {counts.offset_min} lies before {r}"
        assert counts.offset_max < r.end, f"{source}: offset {counts.offset_max} lies beyond {r}"
    without = {one.source: {"holes": one.told()} for one in unread(report, committing)}
    accounts = [
        {
            "topic": r.part.topic, "incarnation": r.part.incarnation, "partition": r.part.partition,
            "start": r.start, "end": r.end,
            **report.counts.get((r.part.topic, r.part.partition), Counts()).outcomes(),
            **without.get((r.part.topic, r.part.partition), {}),
        }
        for r in committing
    ]  # fmt: skip
    times = [time for file in report.files for time in (file.event_time_min, file.event_time_max)]
    about = {
        **facts,
        "ranges": accounts,
        "rows": sum(file.rows for file in report.files),
        "bytes": sum(file.bytes for file in report.files),
        "files": len(report.files),
        "buckets": len({file.bucket for file in report.files}),
        "dead_letter_files": len(report.dead_letter_files),
        "dead_letter_bytes": sum(file.bytes for file in report.dead_letter_files),
        "event_time_min": _iso(min(times, default=None)),
        "event_time_max": _iso(max(times, default=None)),
        "seconds": {room: round(seconds, 3) for room, seconds in report.seconds.items()},
        "work": work(report),
        "value_bytes": report.value_bytes,
        "spilled_bytes": report.spilled_bytes,
        "time_unit": report.time_unit,
        "late": report.late.to_json(),
        "late_files": len(report.late_files),
        "late_bytes": sum(file.bytes for file in report.late_files),
        "closed_until": _iso(closed_until),
    }
    found = {r.part: report.counts.get((r.part.topic, r.part.partition), Counts()).seen for r in committing}
    moved = risen(seen, {part: at for part, at in found.items() if at is not None})
    listed = {place: files for place, files in side.items() if files}
    return Batch(uuid4().hex, epoch, committing, report.files, listed, about, settled, moved, closed_until)


def work(report: Report) -> dict[str, Any]:
    """Say how the tasks of a batch used what was there, as JSON values: who scales goes by it."""
    took = sorted(report.took_s)
    return {
        "slots": report.slots, "ranges": report.ranges,
        "task_seconds_median": round(median(took), 3) if took else None, "task_seconds_max": max(took, default=None),
    }  # fmt: skip


def redo(table: PipelineTable, side: Callable[[str], PipelineTable], since: int) -> int:
    """End what commits began: let readers see their files, and apply to the side tables what those after `since` list.

    Safe to run again, at any time.

    `side` opens the table at a location. Returns the version up to which everything is applied. Raises ForeignChange
    when another client did what the ledger does not survive.
    """
    snapshot = table.snapshot()
    table.publish(snapshot)
    version = snapshot.version
    for committed in table.commits_since(since):
        version = max(version, committed.version)
        for location in {**committed.side_files, **committed.withdrawn}:
            files, withdrawn = committed.side_files.get(location, ()), committed.withdrawn.get(location, {})
            why = "rewind" if committed.facts.get("kind") == "rewind" else ""
            side(location).apply_side(committed.version, files, withdrawn, why)
    return version


def bytes_per_row(facts: Iterable[Mapping[str, Any]]) -> float | None:
    """Parquet bytes for each row in these commits; None when they hold no rows."""
    filled = [about for about in facts if about.get("rows")]
    rows = sum(about["rows"] for about in filled)
    return max(1.0, sum(about["bytes"] for about in filled) / rows) if rows else None


def totals(facts: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Add up the outcomes of commits."""
    out: Counter[str] = Counter()
    for about in facts:
        for account in about["ranges"]:
            out.update({name: account.get(name, 0) for name in ("read", *EXITS)})
    return out


def _iso(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()
