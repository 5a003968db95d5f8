"""When so many records of a batch cannot become rows that a person should look, before they all are dead letters."""

from collections import Counter
from collections.abc import Iterable, Mapping

from writer.batch.task_report import Counts, Poison
from writer.core.errors import LimitReached
from writer.core.offsets import Source

_REASONS_SHOWN = 3


def check(
    pipeline: str, counts: Mapping[Source, Counts], poison: Iterable[Poison], *, share_max: float, records_min: int,
    late: int = 0,
) -> None:  # fmt: skip
    """Raise LimitReached when over `share_max` of the records with a value, and `records_min` of them, are poison.

    Poison: dead letters and quarantined records, but not the `late` of them, which only came after their bucket was
    closed. Below `records_min` a share says nothing.
    """
    bad = sum(c.dead_letters + c.quarantined for c in counts.values()) - late
    valued = sum(c.read - c.tombstones for c in counts.values())
    if bad < records_min or bad <= share_max * valued:
        return
    raise LimitReached(
        f"{bad:,} of {valued:,} records of a batch ({bad / valued:.1%}) cannot become rows, more than "
        f"pipelines.{pipeline}.limits.failed_ratio_max allows ({share_max:.0%}); nothing of it was committed. "
        f"{'; '.join(_words(poison))}. Mend the cause (`headrace preview` shows the records), or raise the limit to 1 "
        "to let them become dead letters."
    )


def _words(poison: Iterable[Poison]) -> list[str]:
    """Say what there is most of, with a reason for each."""
    sums: Counter[tuple[str, int | None]] = Counter()
    reasons: dict[tuple[str, int | None], str] = {}
    for one in poison:
        sums[one.outcome, one.schema_id] += one.records
        reasons.setdefault((one.outcome, one.schema_id), one.reason)
    return [f"{count:,} such as: {reasons[kind]}" for kind, count in sums.most_common(_REASONS_SHOWN)]
