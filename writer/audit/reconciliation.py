"""Checks the offset accounting: every offset of a partition once, every record with one outcome. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from writer.audit.offset_count import FileOffsets
from writer.batch.task_report import EXITS, RAW
from writer.core.files import BucketFile
from writer.core.offsets import Span, TopicPartition, joined, without
from writer.table.ledger.gap_record import BackfilledOffsets, GapRecord, merge_gap_records
from writer.table.ledger.segment import (
    Answer,
    CommittedRange,
    CutRange,
    LedgerSegment,
    Removal,
    RewoundRange,
    first_offsets,
    sum_filter_counts,
    sum_moves,
)


@dataclass(frozen=True)
class Problem:
    """Something that does not add up, and at which offsets of which part, as far as that is known."""

    what: str
    part: TopicPartition | None = None
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class PartitionSummary:
    """What became of the offsets [start, end) of one part. `outcomes` are as they are now, replays included."""

    part: TopicPartition
    start: int
    end: int
    outcomes: Mapping[str, int]
    without_records: int = 0
    gap: int = 0
    gaps: tuple[Span, ...] = ()
    replayed: int = 0  # rows that were dead letters once, less those that a reprocess made dead letters
    back: int = 0  # offsets that rewinds took back: they count among the outcomes each time that they were read
    raw: int = 0  # records that were kept in the raw table, too

    @property
    def dead_letters(self) -> int:
        """Records that the dead-letter table should hold."""
        return self.outcomes["dead_letters"] + self.outcomes["quarantined"]


@dataclass(frozen=True)
class Reconciliation:
    """The account of a table over some of its versions."""

    first: int
    last: int
    lines: tuple[PartitionSummary, ...]
    removals: tuple[Removal, ...]
    problems: tuple[Problem, ...] = field(default=())
    adopted: int = 0  # rows that were there when the table was taken over
    gap_records: Mapping[str, GapRecord] = field(default_factory=dict)  # of gaps
    unplaced: int = 0  # rows without an offset, which backfills brought by event time
    answers: tuple[Answer, ...] = ()  # to what other clients did
    filtered: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # left out by specs, by spec and rule
    cuts: tuple[CutRange, ...] = ()  # rows of records that Kafka lost when it cut a log

    @property
    def accepted(self) -> Answer | None:
        """The newest acceptance."""
        return next((answer for answer in reversed(self.answers) if answer.accepted), None)

    def total(self, name: str) -> int:
        """Add an outcome up over all parts."""
        return sum(line.outcomes[name] for line in self.lines)

    @property
    def raw(self) -> int:
        """Records that were kept in the raw table, of all parts."""
        return sum(line.raw for line in self.lines)


def state(
    segments: Sequence[LedgerSegment], frontier: Mapping[TopicPartition, int], version: int, since: int
) -> Reconciliation:
    """Add up the accounting from segments that hold the versions after `since` (-1: all), up to `version`.

    `frontier`: of every part that the table knows at that version.
    """
    problems = list(_missing_versions(segments, version, since))
    answers = tuple(answer for one in segments for answer in one.answers)
    answered = {text for answer in answers for text in answer.changes}
    problems += [Problem(text) for one in segments for text in one.violations if text not in answered]
    parts: dict[TopicPartition, list[CommittedRange | RewoundRange]] = {}
    begins = first_offsets(segments)
    moves = sum_moves(segments)
    for one in segments:
        for committed_range in one.committed_ranges:
            parts.setdefault(committed_range.part, []).append(committed_range)
        for back in one.rewound_ranges:
            parts.setdefault(back.part, []).append(back)
    lines = []
    gap_records = merge_gap_records(one.gap_records for one in segments)
    brought = _brought(gap_records, whole=since < 0)
    gaps = {
        part: [one for one in steps if isinstance(one, CommittedRange) and one.gap] for part, steps in parts.items()
    }
    problems += [p for part, known in brought.items() for p in _unsound_fills(part, known, gaps.get(part, []))]
    for part in sorted({*parts, *begins, *(frontier if since < 0 else ())}):
        line, wrong = _line(part, begins.get(part), parts.get(part, []), frontier.get(part), whole=since < 0)
        line = _filled(line, brought.get(part, BackfilledOffsets()))
        moved = moves.pop(part, {})
        if sum(moved.values()):
            wrong = [
                *wrong,
                Problem(f"replays and reprocesses changed its outcomes by {moved}, which is not nothing in sum", part),
            ]
        outcomes = {name: line.outcomes.get(name, 0) + moved.get(name, 0) for name in ("read", *EXITS)}
        lines.append(replace(line, outcomes=outcomes, replayed=moved.get("rows", 0)))
        problems += wrong
    if since < 0:
        problems += [
            Problem(f"a replay or a reprocess speaks of a part that no start began: {moved}", p)
            for p, moved in moves.items()
        ]
    filtered = sum_filter_counts(segments)
    if since < 0:  # later on, fills and replays are of gaps and batches before
        problems += _uneven(filtered, sum(line.outcomes.get("filtered", 0) for line in lines))
    return Reconciliation(
        since + 1,
        version,
        tuple(lines),
        tuple(removal for one in segments for removal in one.removals),
        tuple(problems),
        adopted=sum(one.adopted_rows or 0 for one in segments),
        gap_records=gap_records,
        unplaced=sum(one.unplaced for one in gap_records.values()),
        answers=answers,
        filtered=filtered,
        cuts=tuple(cut for one in segments for cut in one.cut_ranges),
    )


def _uneven(filtered: Mapping[str, Mapping[str, int]], records: int) -> list[Problem]:
    """Compare what specs left out by their rules with the records that were filtered."""
    by_rule = sum(sum(rules.values()) for rules in filtered.values())
    if by_rule == records:
        return []
    return [Problem(f"specs left out {by_rule:,} records by their rules, the account has {records:,} filtered")]


def _brought(gap_records: Mapping[str, GapRecord], *, whole: bool) -> dict[TopicPartition, BackfilledOffsets]:
    """Return what backfills filled of each partition, for gaps that these versions opened."""
    found: dict[TopicPartition, BackfilledOffsets] = {}
    for one in gap_records.values():
        for part, carried in one.backfilled.items() if whole or one.opened else ():
            found[part] = found.get(part, BackfilledOffsets()).plus(carried)
    return found


def _filled(line: PartitionSummary, carried: BackfilledOffsets) -> PartitionSummary:
    """Add what backfills brought to a line: fewer of its offsets lie in gaps."""
    gaps = tuple(without(line.gaps, carried.spans))
    outcomes = {name: line.outcomes[name] + carried.outcomes.get(name, 0) for name in ("read", *EXITS)}
    left = sum(end - start for start, end in gaps)
    return replace(
        line, outcomes=outcomes, without_records=line.without_records + carried.without_records, gap=left, gaps=gaps,
        raw=line.raw + carried.outcomes.get(RAW, 0),
    )  # fmt: skip


def _unsound_fills(part: TopicPartition, carried: BackfilledOffsets, gaps: Sequence[CommittedRange]) -> list[Problem]:
    """Return what does not add up of backfills: offsets twice, without an outcome, or in no gap."""
    found: list[Problem] = []
    if not carried.sound:
        outcomes = ", ".join(f"{count} {name}" for name, count in carried.outcomes.items())
        outcomes = f"{outcomes}, {carried.without_records} missing offsets"
        what = f"backfills settle {carried.offsets} offsets, but say {outcomes}, or settle some twice"
        found.append(Problem(what, part, carried.spans))
    outside = without(carried.spans, [(s.start, s.end) for s in gaps])
    if outside:
        found.append(Problem("backfills settle offsets that lie in no gap", part, tuple(outside)))
    return found


def _missing_versions(segments: Sequence[LedgerSegment], version: int, since: int) -> Iterable[Problem]:
    at = since + 1
    for one in segments:
        if one.first > at:
            yield Problem(f"versions {at} to {one.first - 1} are neither in the log nor in the ledger")
        at = max(at, one.last + 1)
    if at <= version:
        yield Problem(f"versions {at} to {version} are neither in the log nor in the ledger")


def _line(
    part: TopicPartition,
    begin: int | None,
    steps: Sequence[CommittedRange | RewoundRange],
    frontier: int | None,
    *,
    whole: bool,
) -> tuple[PartitionSummary, list[Problem]]:
    """Chain a part's stretches, and its ways back, from where it begins to its frontier.

    A partition that Kafka has since the last start is begun by a batch or a gap, which reads it from offset 0.
    """
    problems: list[Problem] = []
    steps = sorted(steps, key=lambda one: one.version if isinstance(one, RewoundRange) else one.first)
    if begin is None and whole:
        if steps and isinstance(steps[0], CommittedRange):
            begin = 0
        else:
            problems.append(Problem("no start says where it begins", part))
    start = at = begin if begin is not None else _first(steps, frontier)
    gaps: list[Span] = []
    for one in steps:
        if isinstance(one, RewoundRange):
            if one.end != at:
                problems.append(
                    Problem(f"version {one.version} goes back from {one.end}, the commits end at {at}", part)
                )
            start, at = min(start, one.start), one.start
            gaps = [(first, min(end, at)) for first, end in gaps if first < at]
            continue
        gaps += [(one.start, one.end)] if one.gap and one.start < one.end else []
        if one.start > at:
            problems.append(
                Problem(f"no commit up to version {one.last} holds these offsets", part, ((at, one.start),))
            )
        elif one.start < at:
            overlap = (one.start, min(at, one.end))
            problems.append(Problem(f"version {one.first} commits offsets that are committed", part, (overlap,)))
        problems += _unsound(one)
        at = max(at, one.end)
    if frontier is None:
        problems.append(Problem("the table has no frontier of it", part))
    elif frontier != at:
        lower, upper = sorted((at, frontier))
        what = f"the frontier is {frontier}, the commits end at {at}"
        problems.append(Problem(what, part, ((lower, upper),)))
    committed_ranges = [one for one in steps if isinstance(one, CommittedRange)]
    outcomes = {name: sum(s.outcomes.get(name, 0) for s in committed_ranges) for name in ("read", *EXITS)}
    skipped = tuple(joined(gaps))
    return PartitionSummary(
        part, start, at, outcomes, sum(s.without_records for s in committed_ranges), sum(end - first for first,
        end in skipped), skipped, back=sum(one.end - one.start for one in steps if isinstance(one, RewoundRange)),
        raw=sum(one.outcomes.get(RAW, 0) for one in committed_ranges),
    ), problems  # fmt: skip


def _first(steps: Sequence[CommittedRange | RewoundRange], frontier: int | None) -> int:
    """Return where a part is first spoken of, where no start says so."""
    match steps:
        case [RewoundRange(end=end), *_]:
            return end
        case [CommittedRange(start=start), *_]:
            return start
        case _:
            return frontier or 0


def _unsound(one: CommittedRange) -> list[Problem]:
    if one.unexplained:
        what = f"{one.unexplained} offsets gave no record in version {one.first}, for an unknown reason"
        return [Problem(what, one.part, ((one.start, one.end),))]
    if not one.sound:
        outcomes = ", ".join(f"{count} {name}" for name, count in one.outcomes.items())
        outcomes = f"{outcomes}, {one.without_records} missing offsets"
        what = f"version {one.first} holds {one.end - one.start} offsets, but says {outcomes}"
        return [Problem(what, one.part, ((one.start, one.end),))]
    return []


def totals(
    noun: str, files: Sequence[BucketFile], withdrawn: int, expected: int, fix: str = ""
) -> list[Problem]:  # fmt: skip
    """Compare the rows that the tables' logs count in their files, but those `withdrawn`, with what is expected.

    Files of other clients may have no count. `fix`: a sentence about rows that are missing.
    """
    if any(file.rows is None for file in files):
        return []
    there = sum(file.rows or 0 for file in files) - withdrawn
    if there == expected:
        return []
    text = f"the files hold {there:,} {noun}, the account has {expected:,}"
    return [Problem(f"{text}. {fix}" if fix and there < expected else text)]


def compared(
    lines: Mapping[TopicPartition, PartitionSummary],
    found: Mapping[TopicPartition, FileOffsets],
    rows_removed: int,
    dead_letters_removed: int,
    *,
    exact: bool,
) -> list[Problem]:
    """Compare what was counted in the files with the accounting, by partition; removed rows are known only in sum."""
    problems: list[Problem] = []
    short: list[Problem] = []
    rows_short = dead_letters_short = 0
    for part, there in found.items():
        line = lines.get(part)
        if there.astray:
            problems.append(
                Problem("offsets that no commit accounts for have rows or dead letters", part, tuple(there.astray))
            )
        if line is None:
            continue
        if there.twice:
            problems.append(Problem("offsets are there more than once", part, tuple(there.twice)))
        rows, dead_letters = (
            line.outcomes["rows"] + line.outcomes["late"] - there.rows,
            line.dead_letters - sum(there.dead_letters.values()),
        )
        rows_short, dead_letters_short = rows_short + rows, dead_letters_short + dead_letters
        if rows > 0 or dead_letters > 0:
            short.append(Problem(_missing(line, there, rows, dead_letters), part, tuple(there.nowhere)))
        elif (rows < 0 or dead_letters < 0) and not there.twice:
            what = f"there are {-rows:,} rows and {-dead_letters:,} rows of the dead-letter table more than expected"
            problems.append(Problem(what, part))
    explained = rows_short == rows_removed and dead_letters_short == dead_letters_removed
    if not exact:
        explained = rows_short <= rows_removed and dead_letters_short <= dead_letters_removed
    return problems if explained and not problems else [*problems, *short]


def compared_raw(
    lines: Mapping[TopicPartition, PartitionSummary], found: Mapping[TopicPartition, FileOffsets], removed: int, *,
    exact: bool,
) -> list[Problem]:  # fmt: skip
    """Compare the offsets counted in raw tables with the records that were kept; removed ones are known in sum."""
    problems: list[Problem] = []
    short = {part: line.raw - (found[part].rows if part in found else 0) for part, line in lines.items()}
    for part, there in found.items():
        if there.twice:
            problems.append(Problem("raw records are there more than once", part, tuple(there.twice)))
        if there.astray:
            problems.append(Problem("raw records that no commit accounts for", part, tuple(there.astray)))
    problems += [Problem(f"there are {-n:,} raw records more than expected", p) for p, n in short.items() if n < 0]
    missing = sum(short.values())
    if missing == removed if exact else missing <= removed:
        return problems
    return problems + [Problem(f"{count:,} raw records are not there", p) for p, count in short.items() if count > 0]


def _missing(line: PartitionSummary, there: FileOffsets, rows: int, dead_letters: int) -> str:
    parts = [
        f"{count:,} {noun} are not there"
        for noun, count in (("rows", rows), ("rows of the dead-letter table", dead_letters))
        if count > 0
    ]
    unheld = line.without_records + line.outcomes["tombstones"] + line.outcomes.get("filtered", 0)
    among = f", among them {unheld:,} that were tombstones, were filtered or held no record" if unheld else ""
    return f"{' and '.join(parts)}; {there.nowhere_offsets:,} offsets are in neither table{among}"
