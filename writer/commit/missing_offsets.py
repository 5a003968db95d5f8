"""Finds offsets without a record, and checks whether Kafka's log really holds none there.

Transactions leave control records, compaction and aborted transactions leave nothing. A consumer cannot tell these
apart, but it need not: what counts is whether the broker holds a record that the batch did not read. So the broker is
asked, by another client than Spark's. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from writer.batch.task_report import Counts, Report
from writer.core.errors import HeadraceError
from writer.core.offsets import Source, Span, without

ASKED_MAX = 32  # missing offsets of a batch that the broker is asked about; a fetch each
SHOWN_MAX = 20  # spans that a commit names
NONE_HELD = "the log holds no record there"
TOO_MANY = "more than can be looked up, as compaction and short transactions leave them"


class RecordsMissed(HeadraceError):
    """The broker holds records that a batch did not read."""


@dataclass(frozen=True)
class MissingOffsets:
    """Offsets of one range that gave no record. `whole`: the spans are all there are."""

    source: Source
    offsets: int
    spans: tuple[Span, ...]
    whole: bool

    def to_dict(self) -> dict[str, object]:
        """Return the commit's part about missing offsets."""
        if not self.whole:
            return {"offsets": self.offsets, "reason": TOO_MANY, "spans": []}
        return {"offsets": self.offsets, "reason": NONE_HELD, "spans": [list(s) for s in self.spans[:SHOWN_MAX]]}


def without_records(source: Source, spans: Sequence[Span], report: Report) -> MissingOffsets | None:
    """Find the offsets in the spans of a partition that gave no record; None when each gave one.

    More records than offsets raise AssertionError, as do spans that do not bear the counts out.
    """
    counts, offsets = report.counts.get(source, Counts()), sum(end - start for start, end in spans)
    missing = offsets - counts.read
    assert missing >= 0, f"{source}: {counts.read} records were read from {offsets} offsets"
    if missing == 0:
        return None
    unread = tuple(span for start, end in spans for span in without([(start, end)], counts.spans))
    if counts.spans_whole:
        found = sum(end - start for start, end in unread)
        assert found == missing, f"{source}: {missing} offsets gave no record, but {found} were not seen"
    return MissingOffsets(source, missing, unread, counts.spans_whole)


def questions(found: Iterable[MissingOffsets]) -> list[tuple[Source, Span]]:
    """Choose the missing offsets that the broker is asked about: all when they are few, else some, spread evenly.

    A partition whose spans are not all known is left out: what looks like a missing offset may have been read by
    another task.
    """
    each = [(h.source, span) for h in found if h.whole for span in h.spans]
    if len(each) <= ASKED_MAX:
        return each
    return [each[at * len(each) // ASKED_MAX] for at in range(ASKED_MAX)]


def check(answers: Mapping[tuple[Source, Span], int | None]) -> None:
    """Raise RecordsMissed when the broker's first record at or after the start of a span lies in that span."""
    missed = [(source, span, at) for (source, span), at in answers.items() if at is not None and at < span[1]]
    if missed:
        (topic, partition), (start, end), at = missed[0]
        raise RecordsMissed(
            f"the broker holds a record at offset {at} of {topic}/{partition}, but the batch read none of [{start}, "
            f"{end}){f' and of {len(missed) - 1} other ranges' if len(missed) > 1 else ''}. Nothing was committed; the "
            "next start reads them again."
        )
