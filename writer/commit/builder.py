"""Builds one commit from the reports of a batch's tasks: ranges, counts, files. Pure."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from statistics import median
from typing import Any
from uuid import uuid4

from headrace.writer.batch.task_report import Counts, Report
from headrace.writer.commit.missing_offsets import MissingOffsets, without_records
from headrace.writer.commit.rate_limit import batch_use
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import CheckpointUnusable, HeadraceError
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import OffsetRange, Source, Span, TopicPartition, count_offsets, merge_spans
from headrace.writer.core.text import plural
from headrace.writer.core.units import instant, show_duration, to_iso
from headrace.writer.offsets.spark_checkpoint import Offsets
from headrace.writer.sealing.watermark import advanced_event_times
from headrace.writer.table import held_files
from headrace.writer.table.log.operations.rows import Batch


class StagedTooLongAgo(HeadraceError):
    """The staged files are so old that vacuum may have removed them. Nothing was committed."""


def merge_reports(reports: Iterable[Report]) -> Report:
    """Add the reports of all tasks of a batch."""
    total = Report()
    target_reports = defaultdict[str, list[Report]](list)
    for report in reports:
        for name, target in report.targets.items():
            target_reports[name].append(target)
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
        total.number = report.number
        total.is_held = report.is_held
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
        total.unfit_members.update(report.unfit_members)
        total.requests = total.requests.plus(report.requests)
        total.ranges_read += report.ranges_read
        total.read_failures += report.read_failures
        total.took_s += report.took_s
        for source, counts in report.counts.items():
            if source in total.counts:
                total.counts[source] = total.counts[source].plus(counts)
            else:
                total.counts[source] = counts
    for name, each in target_reports.items():
        assert len({report.is_held for report in each}) == 1, (
            f"files of {name!r} wait at the log by one plan, not by another"
        )
    total.targets = {name: merge_reports(each) for name, each in target_reports.items()}
    # Keys are read by the steps of the table, values before.
    for target in total.targets.values():
        total.unknown_key_schemas |= target.unknown_key_schemas
        total.key_schemas |= target.key_schemas
    return total


def ranges(
    start: Offsets,
    end: Offsets,
    frontier: Mapping[TopicPartition, int | None],
    parts: Mapping[tuple[str, int], TopicPartition],
) -> list[OffsetRange]:
    """Return the ranges [frontier, end) that this batch may commit, for the partitions that have something new.

    Raises CheckpointUnusable when the batch begins above the frontier: the records between would be lost.
    """
    committing = []
    for source, until in end.items():
        part = parts[source]
        table_offset = frontier.get(part)
        first = start[source] if table_offset is None else table_offset
        if start[source] > first:
            raise CheckpointUnusable(
                f"the table ends at offset {first} of {part.name}, but the batch starts at "
                f"{start[source]}: {plural(start[source] - first, 'offset')} would be skipped"
            )
        if until > first or table_offset is None:
            committing.append(OffsetRange(part, first, max(until, first)))
    return committing


def check_age(began: datetime, now: datetime, orphan_retention: timedelta) -> None:
    """Raise StagedTooLongAgo when files that were staged since `began` may be taken for orphans soon."""
    if now - began > orphan_retention / 2:
        age = show_duration(timedelta(seconds=round((now - began).total_seconds())))
        raise StagedTooLongAgo(
            f"its files were staged {age} ago, more than half of table.orphan_retention "
            f"({show_duration(orphan_retention)}): they are not committed, for `headrace vacuum` may remove them. They "
            "are made anew; make table.orphan_retention longer if that happens again."
        )


def check_record_count(report: Report, spark_records: int) -> None:
    """Assert that the tasks counted as many records as Spark handed to them."""
    entered = sum(counts.read + counts.skipped for counts in report.counts.values())
    assert entered == spark_records, f"Spark handed {spark_records} records to the tasks, they counted {entered}"


def check_ranges_read(report: Report, committing: Iterable[OffsetRange]) -> None:
    """Assert that the tasks fetched each offset of the ranges once, and counted as many records as they fetched."""
    spans_read = defaultdict[Source, list[Span]](list)
    records = Counter[Source]()
    for range_read in report.ranges_read:
        source = range_read.range.part.source
        assert range_read.is_complete, f"offsets are unaccounted for: {range_read}"
        spans_read[source].append(range_read.range.span)
        records[source] += range_read.records
    committing_spans = {r.part.source: [r.span] for r in committing if r.count}
    for source in committing_spans.keys() | spans_read.keys():
        read = spans_read[source]
        asked = committing_spans.get(source, [])
        assert merge_spans(read) == asked, f"{source}: asked for offsets {asked}, the tasks read {sorted(read)}"
        assert count_offsets(read) == count_offsets(asked), f"{source}: offsets were read twice: {sorted(read)}"
        counts = report.counts.get(source, Counts())
        entered = counts.read + counts.skipped
        assert entered == records[source], f"{source}: {records[source]} records were fetched, {entered} were counted"


def find_missing_offsets(report: Report, committing: Iterable[OffsetRange]) -> list[MissingOffsets]:
    """Return the offsets of the ranges that gave no record."""
    missing = (without_records(r.part.source, [r.span], report) for r in committing)
    return [offsets for offsets in missing if offsets is not None]


def batch(
    report: Report,
    committing: list[OffsetRange],
    *,
    epoch: int,
    settled: int,
    side: Mapping[str, list[StagedFile]],
    seen: Mapping[TopicPartition, int],
    closed: tuple[datetime | None, Mapping[int, datetime]],
    facts: Mapping[str, Any],
    meanings: Mapping[str, int] | None = None,
    privacy: int | None = None,
) -> Batch:
    """Assemble the commit, with the marks of the logs that the report has. Asserts that offsets lie in the ranges.

    `side`: of `side_files`. `seen`: what the table knows of its parts. `closed`: how far buckets were closed when rows
    were judged: of the table, and of those of a route by number. `meanings`: of the schema ids that records have.
    `privacy`: version of the log's privacy entries by which rows were made.
    """
    ranges_by_source = {r.part.source: r for r in committing}
    for source, counts in report.counts.items():
        if counts.offset_min is None or counts.offset_max is None:
            continue
        r = ranges_by_source[source]
        assert r.start <= counts.offset_min, f"{source}: offset {counts.offset_min} lies before {r}"
        assert counts.offset_max < r.end, f"{source}: offset {counts.offset_max} lies beyond {r}"
    closed_until, closed_targets = closed
    return Batch(
        uuid4().hex,
        epoch,
        committing,
        report.files,
        side,
        {**facts, **_batch_facts(report, committing, closed_until)},
        settled,
        advanced_event_times(seen, _event_times(report, committing)),
        closed_until,
        closed_targets,
        meanings=meanings or {},
        marks={ranges_by_source[source].part: mark for source, mark in report.marks.items()},
        privacy=privacy,
    )


def _batch_facts(report: Report, committing: Sequence[OffsetRange], closed_until: datetime | None) -> dict[str, Any]:
    """Return what a commit says of its records, files and tasks, as JSON values."""
    files = row_files(report)
    late_files = list(report.late_files)
    for target in report.targets.values():
        late_files += target.late_files
    facts = {
        "ranges": _accounts(report, committing),
        **sums(files),
        "buckets": len({file.bucket for file in files}),
        "dead_letter_files": len(report.dead_letter_files),
        "dead_letter_bytes": sum(file.bytes for file in report.dead_letter_files),
        "event_time_min": to_iso(min((file.event_time_min for file in files), default=None)),
        "event_time_max": to_iso(max((file.event_time_max for file in files), default=None)),
        "seconds": {step: round(seconds, 3) for step, seconds in report.seconds.items()},
        "work": work(report),
        "value_bytes": report.value_bytes,
        "spilled_bytes": report.spilled_bytes,
        "time_unit": report.time_unit,
        "late": report.lateness.to_json(),
        "late_files": len(late_files),
        "late_bytes": sum(file.bytes for file in late_files),
        "closed_until": to_iso(closed_until),
    }
    if report.raw_files:
        facts["raw"] = sums(report.raw_files)
    if report.unrouted:
        facts["unrouted"] = report.unrouted
    if report.unfit_members:
        facts["unfit_members"] = dict(report.unfit_members)
    return facts


def _event_times(report: Report, committing: Iterable[OffsetRange]) -> dict[TopicPartition, int]:
    """Return how far the rows of each range came, in microseconds since 1970, where there are some."""
    times = dict[TopicPartition, int]()
    for r in committing:
        newest = report.counts.get(r.part.source, Counts()).seen
        if newest is not None:
            times[r.part] = newest
    return times


def row_files(report: Report) -> list[StagedFile]:
    """Files with rows that came on time: of the table, or of those of a route."""
    files = list(report.files)
    for target in report.targets.values():
        files += target.files
    return files


def side_files(settings: Pipeline, report: Report) -> dict[str, list[StagedFile]]:
    """Files that tasks staged for side tables, by the locations of these."""
    sides = (
        (settings.dead_letters, report.dead_letter_files),
        (settings.late_place, report.late_files),
        (settings.raw_place, report.raw_files),
    )
    return {location: files for location, files in sides if location and files}


def sums(files: Sequence[StagedFile]) -> dict[str, int]:
    """Rows, bytes and number of files, as an entry holds them."""
    return {
        "rows": sum(file.rows for file in files),
        "bytes": sum(file.bytes for file in files),
        "files": len(files),
    }


def target_facts(report: Report) -> dict[str, Any]:
    """Return what a commit says of each table, as JSON values; empty without a route."""
    targets = {
        name: _target_facts(target) for name, target in report.targets.items() if target.files or target.late_files
    }
    if not targets:
        return {}
    return {"targets": targets}


def spec_facts(report: Report, version: int) -> dict[str, Any]:
    """Return by which version of the specs rows were made, and what these left out; empty where there never was one."""
    if not version:
        return {}
    newest = None if report.filtered_newest is None else instant(report.filtered_newest)
    return {"specs": {"version": version, "filtered": report.filtered, "newest": to_iso(newest)}}


def _target_facts(report: Report) -> dict[str, Any]:
    facts = {"number": report.number, **sums(report.files), "time_unit": report.time_unit}
    if report.late.buckets:
        facts["late"] = report.late.to_json()
    if report.is_held:
        facts["held"] = held_files.held_folder(report.number)
    return facts


def _accounts(report: Report, committing: Sequence[OffsetRange]) -> list[dict[str, Any]]:
    """Return for each range what became of its offsets, as JSON values."""
    missing = {offsets.source: offsets for offsets in find_missing_offsets(report, committing)}
    accounts = []
    for r in committing:
        source = r.part.source
        account = {**r.to_json(), **report.counts.get(source, Counts()).outcomes()}
        if source in missing:
            account["without_records"] = missing[source].to_dict()
        accounts.append(account)
    return accounts


def work(report: Report) -> dict[str, Any]:
    """Return how a batch's tasks used the slots, as JSON values for the autoscaler."""
    return {
        "slots": report.slots,
        "ranges": report.ranges,
        "task_seconds_median": round(median(report.took_s), 3) if report.took_s else None,
        "task_seconds_max": max(report.took_s, default=None),
    }


def bytes_per_row(facts: Iterable[Mapping[str, Any]]) -> float | None:
    """Parquet bytes for each row in these commits; None when they hold no rows.

    Records that specs left out count as rows: by it offsets are counted that make a file.
    """
    rows = 0
    filtered = 0
    size = 0
    for commit in facts:
        rows += commit.get("rows", 0)
        size += commit.get("bytes", 0)
        filtered += sum(account.get("filtered", 0) for account in commit.get("ranges", ()))
    if not rows:
        return None
    return max(1.0, size / (rows + filtered))


def value_bytes_each(facts: Iterable[Mapping[str, Any]]) -> float | None:
    """Mean bytes of a record's value in these commits; None when they hold no records."""
    uses = [batch_use(commit) for commit in facts]
    records = sum(use.records for use in uses)
    if not records:
        return None
    return sum(use.value_bytes for use in uses) / records
