"""Stops a pipeline if too many records of a batch cannot become rows."""

from collections import Counter
from collections.abc import Iterable

from headrace.writer.batch.task_report import FailedRecords, Report
from headrace.writer.config.sections.resource_limits import Limits
from headrace.writer.core.errors import LimitReached

_REASONS_SHOWN = 3


def check_failed_records(pipeline: str, report: Report, limits: Limits) -> None:
    """Raise LimitReached when the number of failed records, and their share of all with a value, reach the limits.

    Failed are dead letters and quarantined records. Those that are dead letters by a rule count on neither side.
    """
    by_rule = report.dead_letters_by_rule
    failed = sum(c.dead_letters + c.quarantined for c in report.counts.values()) - by_rule
    records = sum(c.read - c.tombstones for c in report.counts.values()) - by_rule
    if failed < limits.min_failed_records or failed <= limits.max_failed_ratio * records:
        return
    raise LimitReached(
        f"{failed:,} of {records:,} records of a batch ({failed / records:.1%}) cannot become rows, more than "
        f"pipelines.{pipeline}.limits.max_failed_ratio allows ({limits.max_failed_ratio:.0%}); nothing of it was "
        f"committed. {'; '.join(_describe_most(report.failed_records))}. Fix the cause (`headrace preview` shows "
        "the records), or raise the limit to 1 to let them become dead letters."
    )


def _describe_most(failed_records: Iterable[FailedRecords]) -> list[str]:
    """Return what there is most of, with the offset and the reason of one of each."""
    sums: Counter[tuple[str, int | None]] = Counter()
    examples: dict[tuple[str, int | None], str] = {}
    for failed in failed_records:
        kind = failed.outcome, failed.schema_id
        sums[kind] += failed.records
        offset = f"{failed.topic}/{failed.partition} at offset {failed.offset}"
        examples.setdefault(kind, f"{offset} ({failed.reason})")
    return [f"{count:,} such as {examples[kind]}" for kind, count in sums.most_common(_REASONS_SHOWN)]
