"""Finds offsets without a record, and checks whether Kafka's log really holds none there.

Transactions leave control records, compaction and aborted transactions leave nothing. A consumer cannot tell these
apart, but it need not: what counts is whether the broker holds a record that the batch did not read. So the broker is
asked, by another client than Spark's. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from headrace.writer.batch.task_report import Counts, Report
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.offsets import Source, Span, count_offsets, source_name, subtract_spans

# Missing offsets of a batch that the broker is asked about; each costs a fetch.
ASKED_MAX = 32
# Spans that a commit names.
SHOWN_MAX = 20
NONE_HELD = "the log holds no record there"
TOO_MANY = "more than can be looked up, as compaction and short transactions leave them"


class RecordsMissed(HeadraceError):
    """The broker holds records that a batch did not read."""


@dataclass(frozen=True)
class MissingOffsets:
    """Offsets of one range that gave no record. `is_complete`: the spans are all there are."""

    source: Source
    offsets: int
    spans: tuple[Span, ...]
    is_complete: bool

    def to_dict(self) -> dict[str, object]:
        """Return the commit's part about missing offsets."""
        if not self.is_complete:
            return {"offsets": self.offsets, "reason": TOO_MANY, "spans": []}
        return {"offsets": self.offsets, "reason": NONE_HELD, "spans": [list(s) for s in self.spans[:SHOWN_MAX]]}


def without_records(source: Source, spans: Sequence[Span], report: Report) -> MissingOffsets | None:
    """Find the offsets in the spans of a partition that gave no record; None when each gave one.

    More records than offsets raise AssertionError, as do spans that do not bear the counts out.
    """
    counts = report.counts.get(source, Counts())
    offsets = count_offsets(spans)
    missing = offsets - counts.read
    assert missing >= 0, f"{source}: {counts.read} records were read from {offsets} offsets"
    if missing == 0:
        return None
    unread_spans = list[Span]()
    for span in spans:
        unread_spans += subtract_spans([span], counts.spans)
    if counts.spans_whole:
        unread = count_offsets(unread_spans)
        assert unread == missing, f"{source}: {missing} offsets gave no record, but {unread} were not seen"
    return MissingOffsets(source, missing, tuple(unread_spans), counts.spans_whole)


def choose_questions(missing_offsets: Iterable[MissingOffsets]) -> list[tuple[Source, Span]]:
    """Choose the missing offsets that the broker is asked about: all when they are few, else some, spread evenly.

    A partition whose spans are not all known is left out: what looks like a missing offset may have been read by
    another task.
    """
    spans = list[tuple[Source, Span]]()
    for missing in missing_offsets:
        if missing.is_complete:
            spans += [(missing.source, span) for span in missing.spans]
    if len(spans) <= ASKED_MAX:
        return spans
    return [spans[i * len(spans) // ASKED_MAX] for i in range(ASKED_MAX)]


def check_answers(answers: Mapping[tuple[Source, Span], int | None]) -> None:
    """Raise RecordsMissed when the broker's first record at or after the start of a span lies in that span."""
    missed = [
        (source, span, offset) for (source, span), offset in answers.items() if offset is not None and offset < span[1]
    ]
    if not missed:
        return
    source, (first, until), offset = missed[0]
    others = f" and of {len(missed) - 1} other ranges" if len(missed) > 1 else ""
    raise RecordsMissed(
        f"the broker holds a record at offset {offset} of {source_name(source)}, but the batch read none of "
        f"[{first}, {until}){others}. Nothing was committed; the next start reads them again."
    )
