"""Checks the offset accounting: every offset of a partition once, every record with one outcome. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from headrace.writer.audit.offset_count import FileOffsets
from headrace.writer.batch.task_report import EXITS, RAW
from headrace.writer.core.files import BucketFile
from headrace.writer.core.offsets import OffsetRange, Span, TopicPartition, count_offsets, merge_spans, subtract_spans
from headrace.writer.table.ledger.gap_record import BackfilledOffsets, GapRecord, merge_gap_records
from headrace.writer.table.ledger.segment import (
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

_OUTCOMES = ("read", *EXITS)


@dataclass(frozen=True)
class Problem:
    """Something that does not add up, and at which offsets of which part, as far as that is known."""

    description: str
    part: TopicPartition | None = None
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class PartitionSummary:
    """What became of the offsets of one part. `outcomes` are as they are now, replays included."""

    range: OffsetRange
    outcomes: Mapping[str, int]
    without_records: int = 0
    # Offsets that lie in gaps.
    gaps: tuple[Span, ...] = ()
    # Rows that were dead letters once, less those that a reprocess made dead letters.
    rows_moved: int = 0
    # Offsets that rewinds took back: they count among the outcomes each time that they were read.
    rewound: int = 0
    # Records that were kept in the raw table, too.
    raw: int = 0

    @property
    def part(self) -> TopicPartition:
        """The part that its offsets are of."""
        return self.range.part

    @property
    def gap(self) -> int:
        """How many offsets lie in gaps."""
        return count_offsets(self.gaps)

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
    # Rows that were there when the table was taken over.
    adopted: int = 0
    gap_records: Mapping[str, GapRecord] = field(default_factory=dict)
    # Rows without an offset, which backfills brought by event time.
    unplaced: int = 0
    # Decisions about the changes of other clients.
    answers: tuple[Answer, ...] = ()
    # Records that specs left out, by spec and rule.
    filtered: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    # Offsets of rows whose records Kafka lost when it cut a log.
    cuts: tuple[CutRange, ...] = ()

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


def reconcile(
    segments: Sequence[LedgerSegment], frontier: Mapping[TopicPartition, int], version: int, since: int
) -> Reconciliation:
    """Add up the accounting from segments that hold the versions after `since` (-1: all), up to `version`.

    `frontier`: of every part that the table knows at that version.
    """
    is_complete = since < 0
    gap_records = merge_gap_records(segment.gap_records for segment in segments)
    filtered = sum_filter_counts(segments)
    lines, line_problems = _account_lines(segments, gap_records, frontier, is_complete=is_complete)
    problems = [
        *_missing_versions(segments, version, since),
        *_unanswered_violations(segments),
        *line_problems,
    ]
    # Backfills and replays of later versions are of gaps and batches before.
    if is_complete:
        problems += _check_filter_counts(filtered, sum(line.outcomes.get("filtered", 0) for line in lines))
    return Reconciliation(
        since + 1,
        version,
        tuple(lines),
        removals=tuple(chain.from_iterable(segment.removals for segment in segments)),
        problems=tuple(problems),
        adopted=sum(segment.adopted_rows or 0 for segment in segments),
        gap_records=gap_records,
        unplaced=sum(gap_record.unplaced for gap_record in gap_records.values()),
        answers=_answers(segments),
        filtered=filtered,
        cuts=tuple(chain.from_iterable(segment.cut_ranges for segment in segments)),
    )


def _answers(segments: Iterable[LedgerSegment]) -> tuple[Answer, ...]:
    return tuple(chain.from_iterable(segment.answers for segment in segments))


def _missing_versions(segments: Sequence[LedgerSegment], version: int, since: int) -> Iterator[Problem]:
    next_version = since + 1
    for segment in segments:
        if segment.first > next_version:
            yield Problem(f"versions {next_version} to {segment.first - 1} are neither in the log nor in the ledger")
        next_version = max(next_version, segment.last + 1)
    if next_version <= version:
        yield Problem(f"versions {next_version} to {version} are neither in the log nor in the ledger")


def _unanswered_violations(segments: Sequence[LedgerSegment]) -> list[Problem]:
    """Return what makes the account invalid and was neither accepted nor undone."""
    answered = set(chain.from_iterable(answer.changes for answer in _answers(segments)))
    violations = chain.from_iterable(segment.violations for segment in segments)
    return [Problem(violation) for violation in violations if violation not in answered]


def _check_filter_counts(filtered: Mapping[str, Mapping[str, int]], records: int) -> list[Problem]:
    """Compare what specs left out by their rules with the records that were filtered."""
    by_rule = sum(sum(rules.values()) for rules in filtered.values())
    if by_rule == records:
        return []
    return [Problem(f"specs left out {by_rule:,} records by their rules, the account has {records:,} filtered")]


def _account_lines(
    segments: Sequence[LedgerSegment],
    gap_records: Mapping[str, GapRecord],
    frontier: Mapping[TopicPartition, int],
    *,
    is_complete: bool,
) -> tuple[list[PartitionSummary], list[Problem]]:
    """Return the line of each part in order, and what does not add up of it."""
    begins = first_offsets(segments)
    moves = sum_moves(segments)
    backfills = _sum_backfills(gap_records, is_complete=is_complete)
    steps_by_part = _steps_by_part(segments)
    problems = []
    for part, backfilled in backfills.items():
        problems += _check_backfill(part, backfilled, _gap_spans(steps_by_part.get(part, [])))
    parts = {*steps_by_part, *begins}
    if is_complete:
        parts |= frontier.keys()
    lines = []
    for part in sorted(parts):
        line, part_problems = _account_line(
            part, begins.get(part), steps_by_part.get(part, []), frontier.get(part), is_complete=is_complete
        )
        line = _add_backfill(line, backfills.get(part, BackfilledOffsets()))
        part_moves = moves.pop(part, {})
        lines.append(_add_moves(line, part_moves))
        problems += part_problems
        problems += _check_moves(part, part_moves)
    if is_complete:
        problems += [
            Problem(f"a replay or a reprocess speaks of a part that no start began: {part_moves}", part)
            for part, part_moves in moves.items()
        ]
    return lines, problems


def _steps_by_part(segments: Sequence[LedgerSegment]) -> dict[TopicPartition, list[CommittedRange | RewoundRange]]:
    """Return what commits and rewinds did to each part, in no order."""
    steps: dict[TopicPartition, list[CommittedRange | RewoundRange]] = {}
    for segment in segments:
        for committed_range in segment.committed_ranges:
            steps.setdefault(committed_range.range.part, []).append(committed_range)
        for rewound_range in segment.rewound_ranges:
            steps.setdefault(rewound_range.range.part, []).append(rewound_range)
    return steps


def _sum_backfills(
    gap_records: Mapping[str, GapRecord], *, is_complete: bool
) -> dict[TopicPartition, BackfilledOffsets]:
    """Return what backfills filled of each partition, for gaps that these versions opened."""
    sums: dict[TopicPartition, BackfilledOffsets] = {}
    for gap_record in gap_records.values():
        if not (is_complete or gap_record.opened):
            continue
        for part, backfilled in gap_record.backfilled.items():
            sums[part] = sums.get(part, BackfilledOffsets()).plus(backfilled)
    return sums


def _gap_spans(steps: Sequence[CommittedRange | RewoundRange]) -> list[Span]:
    """Return the offsets that were skipped as gaps, whether a rewind took them back or not."""
    return [step.range.span for step in steps if isinstance(step, CommittedRange) and step.gap]


def _check_backfill(part: TopicPartition, backfilled: BackfilledOffsets, gaps: Sequence[Span]) -> list[Problem]:
    """Return what does not add up of backfills: offsets twice, without an outcome, or in no gap."""
    problems: list[Problem] = []
    if not backfilled.sound:
        outcomes = _describe_outcomes(backfilled.outcomes, backfilled.without_records)
        description = f"backfills settle {backfilled.offsets} offsets, but say {outcomes}, or settle some twice"
        problems.append(Problem(description, part, backfilled.spans))
    outside = subtract_spans(backfilled.spans, gaps)
    if outside:
        problems.append(Problem("backfills settle offsets that lie in no gap", part, tuple(outside)))
    return problems


def _add_backfill(line: PartitionSummary, backfilled: BackfilledOffsets) -> PartitionSummary:
    """Add what backfills brought to a line: fewer of its offsets lie in gaps."""
    return replace(
        line,
        outcomes={name: line.outcomes[name] + backfilled.outcomes.get(name, 0) for name in _OUTCOMES},
        without_records=line.without_records + backfilled.without_records,
        gaps=tuple(subtract_spans(line.gaps, backfilled.spans)),
        raw=line.raw + backfilled.outcomes.get(RAW, 0),
    )


def _check_moves(part: TopicPartition, moves: Mapping[str, int]) -> list[Problem]:
    """Check that replays and reprocesses took each record from one outcome to another."""
    if not sum(moves.values()):
        return []
    description = f"replays and reprocesses changed its outcomes by {moves}, which is not nothing in sum"
    return [Problem(description, part)]


def _add_moves(line: PartitionSummary, moves: Mapping[str, int]) -> PartitionSummary:
    """Add to a line what replays and reprocesses changed of its outcomes."""
    outcomes = {name: line.outcomes.get(name, 0) + moves.get(name, 0) for name in _OUTCOMES}
    return replace(line, outcomes=outcomes, rows_moved=moves.get("rows", 0))


def _account_line(
    part: TopicPartition,
    first_offset: int | None,
    steps: Sequence[CommittedRange | RewoundRange],
    frontier: int | None,
    *,
    is_complete: bool,
) -> tuple[PartitionSummary, list[Problem]]:
    """Chain what commits and rewinds did to a part, from its first offset to its frontier.

    `first_offset`: what a start says; None where no start speaks of the part.
    """
    steps = sorted(steps, key=_step_version)
    problems: list[Problem] = []
    # A batch or a gap begins a partition that Kafka has since the last start, and reads it from offset 0.
    if first_offset is None and is_complete and steps and isinstance(steps[0], CommittedRange):
        first_offset = 0
    elif first_offset is None and is_complete:
        problems.append(Problem("no start says where it begins", part))
    if first_offset is None:
        first_offset = _offset_before(steps, frontier)
    offset_chain = _OffsetChain(part, start=first_offset, end=first_offset)
    for step in steps:
        match step:
            case RewoundRange():
                offset_chain.rewind(step)
            case CommittedRange():
                offset_chain.append(step)
    problems += offset_chain.problems
    problems += _check_frontier(part, frontier, offset_chain.end)
    return _summarize_steps(offset_chain, steps), problems


def _step_version(step: CommittedRange | RewoundRange) -> int:
    """Return the version of the table by which steps of a part are in order."""
    match step:
        case RewoundRange(version=version):
            return version
        case CommittedRange(first=first_version):
            return first_version


def _offset_before(steps: Sequence[CommittedRange | RewoundRange], frontier: int | None) -> int:
    """Return the offset that a part had before its first step, where no start says so."""
    match steps:
        case [RewoundRange(range=offset_range), *_]:
            return offset_range.end
        case [CommittedRange(range=offset_range), *_]:
            return offset_range.start
        case _:
            return frontier or 0


@dataclass
class _OffsetChain:
    """Offsets [start, end) of one part that its steps cover so far, the gaps among them, and what does not fit."""

    part: TopicPartition
    start: int
    end: int
    gaps: list[Span] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def rewind(self, rewound_range: RewoundRange) -> None:
        """Take back what was committed after the start of the range."""
        start, end = rewound_range.range.span
        if end != self.end:
            self._add_problem(f"version {rewound_range.version} goes back from {end}, the commits end at {self.end}")
        self.start = min(self.start, start)
        self.end = start
        self.gaps = [(gap_start, min(gap_end, self.end)) for gap_start, gap_end in self.gaps if gap_start < self.end]

    def append(self, committed_range: CommittedRange) -> None:
        """Add the offsets of commits, which begin where those before end."""
        start, end = committed_range.range.span
        if committed_range.gap and start < end:
            self.gaps.append((start, end))
        if start > self.end:
            self._add_problem(f"no commit up to version {committed_range.last} holds these offsets", (self.end, start))
        elif start < self.end:
            self._add_problem(
                f"version {committed_range.first} commits offsets that are committed", (start, min(self.end, end))
            )
        self.problems += _check_outcomes(committed_range)
        self.end = max(self.end, end)

    def _add_problem(self, description: str, *spans: Span) -> None:
        self.problems.append(Problem(description, self.part, spans))


def _check_outcomes(committed_range: CommittedRange) -> list[Problem]:
    """Check that each offset of a range gave a record with one outcome, or is known to hold none."""
    version = committed_range.first
    if committed_range.unexplained:
        description = (
            f"{committed_range.unexplained} offsets gave no record in version {version}, for an unknown reason"
        )
    elif not committed_range.sound:
        outcomes = _describe_outcomes(committed_range.outcomes, committed_range.without_records)
        description = f"version {version} holds {committed_range.range.count} offsets, but says {outcomes}"
    else:
        return []
    return [Problem(description, committed_range.range.part, (committed_range.range.span,))]


def _describe_outcomes(outcomes: Mapping[str, int], without_records: int) -> str:
    counts = [f"{count} {name}" for name, count in outcomes.items()]
    return f"{', '.join(counts)}, {without_records} missing offsets"


def _check_frontier(part: TopicPartition, frontier: int | None, end: int) -> list[Problem]:
    """Check that the commits of a part end at its frontier."""
    if frontier is None:
        return [Problem("the table has no frontier of it", part)]
    if frontier == end:
        return []
    description = f"the frontier is {frontier}, the commits end at {end}"
    return [Problem(description, part, ((min(end, frontier), max(end, frontier)),))]


def _summarize_steps(offset_chain: _OffsetChain, steps: Sequence[CommittedRange | RewoundRange]) -> PartitionSummary:
    """Add up the outcomes of a part's steps."""
    committed_ranges = [step for step in steps if isinstance(step, CommittedRange)]
    rewound_ranges = [step for step in steps if isinstance(step, RewoundRange)]
    return PartitionSummary(
        OffsetRange(offset_chain.part, offset_chain.start, offset_chain.end),
        outcomes={name: _sum_outcome(committed_ranges, name) for name in _OUTCOMES},
        without_records=sum(committed_range.without_records for committed_range in committed_ranges),
        gaps=tuple(merge_spans(offset_chain.gaps)),
        rewound=sum(rewound_range.range.count for rewound_range in rewound_ranges),
        raw=_sum_outcome(committed_ranges, RAW),
    )


def _sum_outcome(committed_ranges: Iterable[CommittedRange], name: str) -> int:
    return sum(committed_range.outcomes.get(name, 0) for committed_range in committed_ranges)


def compare_totals(
    noun: str, files: Sequence[BucketFile], withdrawn: int, expected: int, fix: str = ""
) -> list[Problem]:
    """Compare the rows that the tables' logs count in their files, but those `withdrawn`, with what is expected.

    Files of other clients may have no count. `fix`: a sentence about rows that are missing.
    """
    if any(file.rows is None for file in files):
        return []
    rows = sum(file.rows or 0 for file in files) - withdrawn
    if rows == expected:
        return []
    description = f"the files hold {rows:,} {noun}, the account has {expected:,}"
    if fix and rows < expected:
        description = f"{description}. {fix}"
    return [Problem(description)]


def compare_files(
    lines: Mapping[TopicPartition, PartitionSummary],
    file_offsets: Mapping[TopicPartition, FileOffsets],
    rows_removed: int,
    dead_letters_removed: int,
    *,
    is_exact: bool,
) -> list[Problem]:
    """Compare what was counted in the files with the accounting, by partition; removed rows are known only in sum.

    `is_exact`: all that was removed is missing, not at most that.
    """
    problems: list[Problem] = []
    # Missing rows are no problem if removals explain them in sum.
    shortfalls: list[Problem] = []
    missing_rows = 0
    missing_dead_letters = 0
    for part, offsets in file_offsets.items():
        if offsets.astray:
            description = "offsets that no commit accounts for have rows or dead letters"
            problems.append(Problem(description, part, tuple(offsets.astray)))
        line = lines.get(part)
        if line is None:
            continue
        if offsets.twice:
            problems.append(Problem("offsets are there more than once", part, tuple(offsets.twice)))
        rows = line.outcomes["rows"] + line.outcomes["late"] - offsets.rows
        dead_letters = line.dead_letters - sum(offsets.dead_letters.values())
        missing_rows += rows
        missing_dead_letters += dead_letters
        if rows > 0 or dead_letters > 0:
            description = _describe_shortfall(line, offsets, rows, dead_letters)
            shortfalls.append(Problem(description, part, tuple(offsets.nowhere)))
        elif (rows < 0 or dead_letters < 0) and not offsets.twice:
            description = (
                f"there are {-rows:,} rows and {-dead_letters:,} rows of the dead-letter table more than expected"
            )
            problems.append(Problem(description, part))
    rows_explained = _is_explained(missing_rows, rows_removed, is_exact=is_exact)
    dead_letters_explained = _is_explained(missing_dead_letters, dead_letters_removed, is_exact=is_exact)
    if rows_explained and dead_letters_explained and not problems:
        return []
    return problems + shortfalls


def compare_raw_files(
    lines: Mapping[TopicPartition, PartitionSummary],
    file_offsets: Mapping[TopicPartition, FileOffsets],
    removed: int,
    *,
    is_exact: bool,
) -> list[Problem]:
    """Compare the offsets counted in raw tables with the records that were kept; removed ones are known in sum.

    `is_exact`: all that was removed is missing, not at most that.
    """
    problems: list[Problem] = []
    for part, offsets in file_offsets.items():
        if offsets.twice:
            problems.append(Problem("raw records are there more than once", part, tuple(offsets.twice)))
        if offsets.astray:
            problems.append(Problem("raw records that no commit accounts for", part, tuple(offsets.astray)))
    missing = {part: line.raw - file_offsets.get(part, FileOffsets()).rows for part, line in lines.items()}
    for part, count in missing.items():
        if count < 0:
            problems.append(Problem(f"there are {-count:,} raw records more than expected", part))
    if _is_explained(sum(missing.values()), removed, is_exact=is_exact):
        return problems
    shortfalls = [Problem(f"{count:,} raw records are not there", part) for part, count in missing.items() if count > 0]
    return problems + shortfalls


def _is_explained(missing: int, removed: int, *, is_exact: bool) -> bool:
    """Return whether removals explain what is missing."""
    if is_exact:
        return missing == removed
    return missing <= removed


def _describe_shortfall(line: PartitionSummary, offsets: FileOffsets, rows: int, dead_letters: int) -> str:
    """Say how many rows and dead letters of a partition are missing, and how many offsets are in neither table."""
    counts = []
    if rows > 0:
        counts.append(f"{rows:,} rows are not there")
    if dead_letters > 0:
        counts.append(f"{dead_letters:,} rows of the dead-letter table are not there")
    rowless = line.without_records + line.outcomes["tombstones"] + line.outcomes.get("filtered", 0)
    among = ""
    if rowless:
        among = f", among them {rowless:,} that were tombstones, were filtered or held no record"
    return f"{' and '.join(counts)}; {offsets.nowhere_offsets:,} offsets are in neither table{among}"
