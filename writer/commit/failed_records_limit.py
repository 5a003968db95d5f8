"""Stops a pipeline if too many records of a batch cannot become rows."""

from collections import Counter
from collections.abc import Iterable

from writer.batch.task_report import FailedRecords, Report
from writer.config.pipeline_sections import Limits
from writer.core.errors import LimitReached

_REASONS_SHOWN = 3


def check(pipeline: str, report: Report, limits: Limits) -> None:
    """Raise LimitReached when the number of failed records, and their share of all with a value, reach the limits.

    Failed are dead letters and quarantined records. Those that are dead letters by a rule count on neither side.
    """
    by_rule = report.dead_letters_by_rule
    bad = sum(c.dead_letters + c.quarantined for c in report.counts.values()) - by_rule
    valued = sum(c.read - c.tombstones for c in report.counts.values()) - by_rule
    if bad < limits.failed_records_min or bad <= limits.failed_ratio_max * valued:
        return
    raise LimitReached(
        f"{bad:,} of {valued:,} records of a batch ({bad / valued:.1%}) cannot become rows, more than "
        f"pipelines.{pipeline}.limits.failed_ratio_max allows ({limits.failed_ratio_max:.0%}); nothing of it was "
        f"committed. {'; '.join(_words(report.failed_records))}. Fix the cause (`headrace preview` shows "
        "the records), or raise the limit to 1 to let them become dead letters."
    )


def _words(failed_records: Iterable[FailedRecords]) -> list[str]:
    """Return what there is most of, with the place and the reason of one of each."""
    sums: Counter[tuple[str, int | None]] = Counter()
    examples: dict[tuple[str, int | None], str] = {}
    for alike in failed_records:
        kind = alike.outcome, alike.schema_id
        sums[kind] += alike.records
        place = f"{alike.topic}/{alike.partition} at offset {alike.offset}"
        examples.setdefault(kind, f"{place} ({alike.reason})")
    return [f"{count:,} such as {examples[kind]}" for kind, count in sums.most_common(_REASONS_SHOWN)]
