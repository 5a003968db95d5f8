"""Builds one commit from the reports of a batch's tasks: ranges, counts, files. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any
from uuid import uuid4

from writer.batch.task_report import Counts, Report
from writer.commit.missing_offsets import MissingOffsets, without_records
from writer.commit.rate_limit import spent
from writer.config.pipeline import Pipeline
from writer.core.errors import CheckpointUnusable, HeadraceError
from writer.core.files import StagedFile
from writer.core.offsets import OffsetRange, Source, Span, TopicPartition, joined
from writer.core.units import instant, show_duration, to_iso
from writer.offsets.spark_checkpoint import Offsets
from writer.sealing.watermark import risen
from writer.table import held_files
from writer.table.log.operations import Batch


class StagedTooLongAgo(HeadraceError):
    """The staged files are so old that vacuum may have removed them. Nothing was committed."""


def merged(reports: Iterable[Report]) -> Report:
    """Add the reports of all tasks of a batch."""
    total, targets = Report(), defaultdict[str, list[Report]](list)
    for report in reports:
        for name, target in report.targets.items():
            targets[name].append(target)
        total.tasks += 1
        total.files += report.files
        total.dead_letter_files += report.dead_letter_files
        total.late_files += report.late_files
        total.raw_files += report.raw_files
        total.late = total.late.plus(report.late)
        total.unknown_schemas |= report.unknown_schemas
        total.unknown_names |= report.unknown_names
        total.beyond_names |= report.beyond_names
        total.refused = total.refused or report.refused
        total.number, total.is_held = report.number, report.is_held
        total.unrouted += report.unrouted
        total.schemas |= report.schemas
        total.unknown_key_schemas |= report.unknown_key_schemas
        total.key_schemas |= report.key_schemas
        total.add_seconds(report)
        total.value_bytes += report.value_bytes
        total.record_bytes_max = max(total.record_bytes_max, report.record_bytes_max)
        total.spilled_bytes += report.spilled_bytes
        total.time_unit = report.time_unit or total.time_unit
        total.failed_records += report.failed_records
        total.add_filter_counts(report.filtered, report.filtered_newest)
        total.ranges_read += report.ranges_read
        total.read_failures += report.read_failures
        total.took_s += report.took_s
        for source, counts in report.counts.items():
            total.counts[source] = total.counts[source].plus(counts) if source in total.counts else counts
    for name, found in targets.items():
        assert len({one.is_held for one in found}) == 1, (
            f"files of {name!r} wait at the log by one plan, not by another"
        )
    total.targets = {name: merged(found) for name, found in targets.items()}
    for target in total.targets.values():  # keys are read by the steps of the table, values before
        total.unknown_key_schemas |= target.unknown_key_schemas
        total.key_schemas |= target.key_schemas
    return total


def ranges(
    start: Offsets,
    end: Offsets,
    frontier: Mapping[TopicPartition, int | None],
    parts: Mapping[tuple[str, int], TopicPartition],
) -> list[OffsetRange]:
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
            found.append(OffsetRange(part, first, max(until, first)))
    return found


def check_age(began: datetime, now: datetime, orphan_retention: timedelta) -> None:
    """Raise StagedTooLongAgo when files that were staged since `began` may be taken for orphans soon."""
    if now - began > orphan_retention / 2:
        age = show_duration(timedelta(seconds=round((now - began).total_seconds())))
        raise StagedTooLongAgo(
            f"its files were staged {age} ago, more than half of table.orphan_retention "
            f"({show_duration(orphan_retention)}): they are not committed, for `headrace vacuum` may remove them. They "
            "are made anew; make table.orphan_retention longer if that happens again."
        )


def check_handed_over(report: Report, handed_over: int) -> None:
    """Assert that the tasks counted as many records as Spark handed to them."""
    entered = sum(counts.read + counts.skipped for counts in report.counts.values())
    assert entered == handed_over, f"Spark handed {handed_over} records to the tasks, they counted {entered}"


def check_ranges_read(report: Report, committing: Iterable[OffsetRange]) -> None:
    """Assert that the tasks fetched each offset of the ranges once, and counted as many records as they fetched."""
    spans, records = defaultdict[Source, list[Span]](list), Counter[Source]()
    for one in report.ranges_read:
        assert one.records + sum(one.missing.values()) == one.end - one.start, f"offsets are unaccounted for: {one}"
        spans[one.topic, one.partition].append((one.start, one.end))
        records[one.topic, one.partition] += one.records
    wanted = {(r.part.topic, r.part.partition): [(r.start, r.end)] for r in committing if r.start < r.end}
    for source in wanted.keys() | spans.keys():
        read = spans[source]
        asked = wanted.get(source, [])
        offsets = [sum(end - start for start, end in each) for each in (read, asked)]
        assert joined(read) == asked, f"{source}: asked for offsets {asked}, the tasks read {sorted(read)}"
        assert offsets[0] == offsets[1], f"{source}: offsets were read twice: {sorted(read)}"
        counts = report.counts.get(source, Counts())
        entered = counts.read + counts.skipped
        assert entered == records[source], f"{source}: {records[source]} records were fetched, {entered} were counted"


def unread(report: Report, committing: Iterable[OffsetRange]) -> list[MissingOffsets]:
    """Find the offsets of the ranges that gave no record."""
    found = (without_records((r.part.topic, r.part.partition), [(r.start, r.end)], report) for r in committing)
    return [one for one in found if one is not None]


def batch(
    report: Report, committing: list[OffsetRange], *, epoch: int, settled: int, side: Mapping[str, list[StagedFile]],
    seen: Mapping[TopicPartition, int], closed: tuple[datetime | None, Mapping[int, datetime]],
    facts: Mapping[str, Any], meanings: Mapping[str, int] | None = None, privacy: int | None = None,
) -> Batch:  # fmt: skip
    """Assemble the commit, with the marks of the logs that the report has. Asserts that offsets lie in the ranges.

    `side`: of `side_files`. `seen`: what the table knows of its parts. `closed`: how far buckets were closed when rows
    were judged: of the table, and of those of a route by number. `meanings`: of the schema ids that records have.
    `privacy`: version of the log's privacy entries by which rows were made.
    """
    by_source = {(r.part.topic, r.part.partition): r for r in committing}
    for source, counts in report.counts.items():
        if counts.offset_min is None or counts.offset_max is None:
            continue
        r = by_source[source]
        assert r.start <= counts.offset_min, f"{source}: offset {counts.offset_min} lies before {r}"
        assert counts.offset_max < r.end, f"{source}: offset {counts.offset_max} lies beyond {r}"
    files = row_files(report)
    late_files = [*report.late_files, *(file for target in report.targets.values() for file in target.late_files)]
    times = [time for file in files for time in (file.event_time_min, file.event_time_max)]
    about = {
        **facts,
        "ranges": _accounts(report, committing),
        **sums(files),
        "buckets": len({file.bucket for file in files}),
        "dead_letter_files": len(report.dead_letter_files),
        "dead_letter_bytes": sum(file.bytes for file in report.dead_letter_files),
        "event_time_min": to_iso(min(times, default=None)),
        "event_time_max": to_iso(max(times, default=None)),
        "seconds": {step: round(seconds, 3) for step, seconds in report.seconds.items()},
        "work": work(report),
        "value_bytes": report.value_bytes,
        "spilled_bytes": report.spilled_bytes,
        "time_unit": report.time_unit,
        "late": report.lateness.to_json(),
        "late_files": len(late_files),
        "late_bytes": sum(file.bytes for file in late_files),
        "closed_until": to_iso(closed[0]),
        **({"raw": sums(report.raw_files)} if report.raw_files else {}),
        **({"unrouted": report.unrouted} if report.unrouted else {}),
    }
    found = {r.part: report.counts.get((r.part.topic, r.part.partition), Counts()).seen for r in committing}
    moved = risen(seen, {part: at for part, at in found.items() if at is not None})
    marks = {part: mark for source, mark in report.marks.items() if (part := by_source[source].part)}
    return Batch(
        uuid4().hex,
        epoch,
        committing,
        report.files,
        side,
        about,
        settled,
        moved,
        *closed,
        meanings=meanings or {},
        marks=marks,
        privacy=privacy,
    )


def row_files(report: Report) -> list[StagedFile]:
    """Files with rows that came on time: of the table, or of those of a route."""
    return [*report.files, *(file for target in report.targets.values() for file in target.files)]


def side_files(settings: Pipeline, report: Report) -> dict[str, list[StagedFile]]:
    """Files that tasks staged for side tables, by the locations of these."""
    sides = (
        (settings.dead_letters, report.dead_letter_files), (settings.late_place, report.late_files),
        (settings.raw_place, report.raw_files),
    )  # fmt: skip
    return {place: files for place, files in sides if place and files}


def sums(files: Sequence[StagedFile]) -> dict[str, int]:
    """Rows, bytes and number of files, as an entry holds them."""
    return {
        "rows": sum(file.rows for file in files), "bytes": sum(file.bytes for file in files), "files": len(files),
    }  # fmt: skip


def target_facts(report: Report) -> dict[str, Any]:
    """Return what a commit says of each table, as JSON values; empty without a route."""
    found = {name: _facts_of(one) for name, one in report.targets.items() if one.files or one.late_files}
    return {"targets": found} if found else {}


def spec_facts(report: Report, version: int) -> dict[str, Any]:
    """Return by which version of the specs rows were made, and what these left out; empty where there never was one."""
    newest = None if report.filtered_newest is None else instant(report.filtered_newest)
    found = {"version": version, "filtered": report.filtered, "newest": to_iso(newest)}
    return {"specs": found} if version else {}


def _facts_of(report: Report) -> dict[str, Any]:
    late = {"late": report.late.to_json()} if report.late.buckets else {}
    held = {"held": held_files.held_folder(report.number)} if report.is_held else {}
    return {"number": report.number, **sums(report.files), "time_unit": report.time_unit, **late, **held}


def _accounts(report: Report, committing: Iterable[OffsetRange]) -> list[dict[str, Any]]:
    """Return for each range what became of its offsets, as JSON values."""
    without = {one.source: {"without_records": one.to_dict()} for one in unread(report, committing)}
    return [
        {
            **r.to_dict(),
            **report.counts.get((r.part.topic, r.part.partition), Counts()).outcomes(),
            **without.get((r.part.topic, r.part.partition), {}),
        }
        for r in committing
    ]  # fmt: skip


def work(report: Report) -> dict[str, Any]:
    """Return how a batch's tasks used the slots, as JSON values for the autoscaler."""
    took = sorted(report.took_s)
    return {
        "slots": report.slots, "ranges": report.ranges,
        "task_seconds_median": round(median(took), 3) if took else None, "task_seconds_max": max(took, default=None),
    }  # fmt: skip


def bytes_per_row(facts: Iterable[Mapping[str, Any]]) -> float | None:
    """Parquet bytes for each row in these commits; None when they hold no rows.

    Records that specs left out count as rows: by it offsets are counted that make a file.
    """
    rows = filtered = size = 0
    for about in facts:
        rows, size = rows + about.get("rows", 0), size + about.get("bytes", 0)
        filtered += sum(account.get("filtered", 0) for account in about.get("ranges", ()))
    return max(1.0, size / (rows + filtered)) if rows else None


def value_bytes_each(facts: Iterable[Mapping[str, Any]]) -> float | None:
    """Mean bytes of a record's value in these commits; None when they hold no records."""
    found = [spent(about) for about in facts]
    records = sum(one.records for one in found)
    return sum(one.value_bytes for one in found) / records if records else None
