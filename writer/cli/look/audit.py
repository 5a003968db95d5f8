"""`headrace audit`: whether every offset is accounted for, from the lake alone."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.writer.audit.audit import Audit, TargetCount, audit as audit_table
from headrace.writer.audit.offset_count import FileOffsets
from headrace.writer.audit.reconciliation import PartitionSummary, Problem
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.offsets import Span, TopicPartition
from headrace.writer.core.text import plural
from headrace.writer.hooks.audit_result import send_audit
from headrace.writer.output.cli_options import version_or_time
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import ChosenPipelines, PipelineNames, join_failures
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import ruled_table, show_pages
from headrace.writer.table.ledger.gap_record import Outcome
from headrace.writer.table.ledger.segment import Answer, CutRange

# What becomes of a record, in the order of the columns.
_OUTCOME_NAMES = {
    "rows": "rows",
    "late_table": "rows of the late table",
    "tombstones": "tombstones",
    "dead_letters": "dead letters",
    "quarantined": "quarantined",
    "filtered": "filtered",
}
_PLURAL_S = re.compile(r"s\b")
# Rows that replays and reprocesses added, or took.
_MOVED = "moved"
_GAP_STATES: Sequence[Outcome] = ("open", "done", "lost", "rewound")
_WAITING_TITLE = "commits that wait"
# Columns that are shown although nothing stands in them.
_COLUMNS_ALWAYS = ("to", "read", "rows", "in files")
# For a person; --json has all.
_TARGETS_SHOWN = 20
_RANGES_SHOWN = 5


@dataclass(frozen=True)
class OffsetsInFiles:
    """What the files hold of a topic partition."""

    rows: int
    dead_letters: int
    quarantined: int
    distinct_offsets: int
    offsets_in_neither_table: int


@dataclass(frozen=True)
class PartitionAudit:
    """The offsets of a topic partition, and what became of them."""

    topic: str
    incarnation: int
    partition: int
    start: int
    end: int
    read: int
    rows: int
    late_table: int
    tombstones: int
    dead_letters: int
    quarantined: int
    filtered: int
    rows_moved: int
    offsets_without_records: int
    offsets_in_gaps: int
    offsets_rewound: int
    raw: int
    # None: no file was read.
    found: OffsetsInFiles | None
    part: TopicPartition = field(metadata=SCREEN_ONLY)

    def count(self, outcome: str) -> int:
        """Return how many records became what `_OUTCOME_NAMES` has."""
        count: int = getattr(self, outcome)
        return count


@dataclass(frozen=True)
class AuditProblem:
    """Something that does not add up, and at which offsets, as far as that is known."""

    what: str
    topic: str | None
    incarnation: int | None
    partition: int | None
    ranges: Sequence[Span]
    part: TopicPartition | None = field(metadata=SCREEN_ONLY)

    def describe(self) -> str:
        """Write it as a line of the verdict."""
        text = self.what
        if self.part is not None:
            text = f"{self.part.full_name}: {text}"
        if self.ranges:
            ranges = ", ".join(f"[{start}, {end})" for start, end in self.ranges[:_RANGES_SHOWN])
            text = f"{text}: {ranges}"
        if len(self.ranges) > _RANGES_SHOWN:
            text += ", …"
        return text


@dataclass(frozen=True)
class PipelineAudit:
    """The audit of a pipeline's tables."""

    adds_up: bool
    # The first and the last that were read.
    versions: Sequence[int]
    # Read, and by outcome.
    records: Mapping[str, int]
    filtered_by: Mapping[str, Mapping[str, int]]
    rows_moved: int
    offsets_without_records: int
    offsets_in_gaps: int
    offsets_rewound: int
    rows_adopted: int
    rows_by_event_time: int
    # By state.
    gaps: Mapping[str, int]
    rows_removed: int
    rows_removed_by: Mapping[str, int]
    rows_left: int
    dead_letter_table_rows_removed: int
    dead_letter_table_rows_removed_by: Mapping[str, int]
    late_table_rows_removed_by: Mapping[str, int]
    raw_records: int
    raw_records_removed_by: Mapping[str, int]
    commits_waiting_for_side_files: int
    files_without_row_counts: int
    targets: Sequence[TargetCount]
    topic_partitions: Sequence[PartitionAudit]
    accepted: Answer | None
    log_cuts: Sequence[CutRange]
    problems: Sequence[AuditProblem]
    # Whether every file was read.
    is_deep: bool = field(metadata=SCREEN_ONLY)

    def page(self, name: str) -> list[RenderableType]:
        """Return the numbers, what they do not show, and the verdict."""
        first, last = self.versions
        head = Text.assemble((name, "bold"), (f"  versions {first} to {last}", "dim"))
        if self.is_deep:
            head.append(", every file read", style="dim")
        targets: list[RenderableType] = []
        if self.targets:
            targets = [_targets_table(self.targets), ""]
        return [head, "", _partitions_table(self), "", *targets, *_notes(self), _verdict(self)]


@dataclass(frozen=True)
class AuditReport(Report):
    """The audit of each pipeline."""

    pipelines: Mapping[str, PipelineAudit]
    # Of pipelines that have no table, or that cannot be read.
    failure: HeadraceError | None = field(metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where something does not add up."""
        return 0 if all(audit.adds_up for audit in self.pipelines.values()) else 1

    def render(self, out: Console) -> None:
        """Draw a page of each."""
        show_pages([Group(*audit.page(name)) for name, audit in self.pipelines.items()], out)


def run_audit(
    pipelines: ChosenPipelines, *, since: str | None = None, deep: bool = False, report: bool = False
) -> AuditReport:
    """Audit the pipelines, and with `report` tell the hooks. Raises HeadraceError when none has a table to be read."""
    start = None if since is None else version_or_time("--since", since)
    audits, failure = pipelines.look_at_each(lambda name: audit_table(pipelines.config, name, since=start, deep=deep))
    failures = [] if failure is None else [failure]
    if report:
        failures += _send_audits(pipelines, audits, deep=deep)
    shown = {name: report_audit(audit, deep=deep) for name, audit in audits.items()}
    return AuditReport(shown, join_failures(failures))


def _send_audits(pipelines: ChosenPipelines, audits: Mapping[str, Audit], *, deep: bool) -> list[HeadraceError]:
    """Send each audit to the hooks of its pipeline. Returns the failures."""
    failures = []
    for name, audit in audits.items():
        try:
            send_audit(pipelines.config, name, audit, deep=deep)
        except HeadraceError as error:
            failures.append(error)
    return failures


def report_audit(audit: Audit, *, deep: bool) -> PipelineAudit:
    """Return what a screen shows of an audit. `deep`: whether it read every file."""
    reconciliation = audit.reconciliation
    lines = [_partition_audit(line, audit.file_offsets[line.part] if deep else None) for line in reconciliation.lines]
    gap_states = Counter(gap_record.state for gap_record in reconciliation.gap_records.values())
    return PipelineAudit(
        adds_up=audit.adds_up,
        versions=(reconciliation.first, reconciliation.last),
        records={outcome: sum(line.count(outcome) for line in lines) for outcome in ("read", *_OUTCOME_NAMES)},
        filtered_by=reconciliation.filtered,
        rows_moved=sum(line.rows_moved for line in lines),
        offsets_without_records=sum(line.offsets_without_records for line in lines),
        offsets_in_gaps=sum(line.offsets_in_gaps for line in lines),
        offsets_rewound=sum(line.offsets_rewound for line in lines),
        rows_adopted=reconciliation.adopted,
        rows_by_event_time=reconciliation.unplaced,
        gaps={state: gap_states[state] for state in _GAP_STATES},
        rows_removed=audit.rows_removed,
        rows_removed_by=audit.rows_taken,
        rows_left=audit.rows_left,
        dead_letter_table_rows_removed=audit.dead_letters_removed,
        dead_letter_table_rows_removed_by=audit.dead_letters_taken,
        late_table_rows_removed_by=audit.late_taken,
        raw_records=reconciliation.raw,
        raw_records_removed_by=audit.raw_taken,
        commits_waiting_for_side_files=audit.waiting,
        files_without_row_counts=audit.uncounted,
        targets=audit.targets,
        topic_partitions=lines,
        accepted=audit.accepted,
        log_cuts=reconciliation.cuts,
        problems=[_audit_problem(problem) for problem in audit.problems],
        is_deep=deep,
    )


def _partition_audit(line: PartitionSummary, file_offsets: FileOffsets | None) -> PartitionAudit:
    in_files = None
    if file_offsets is not None:
        in_files = OffsetsInFiles(
            rows=file_offsets.rows,
            dead_letters=file_offsets.dead_letters.get("dead_letters", 0),
            quarantined=file_offsets.dead_letters.get("quarantined", 0),
            distinct_offsets=file_offsets.distinct,
            offsets_in_neither_table=file_offsets.nowhere_offsets,
        )
    outcomes = line.outcomes
    return PartitionAudit(
        **vars(line.part),
        start=line.range.start,
        end=line.range.end,
        read=outcomes["read"],
        rows=outcomes["rows"],
        late_table=outcomes["late"],
        tombstones=outcomes["tombstones"],
        dead_letters=outcomes["dead_letters"],
        quarantined=outcomes["quarantined"],
        filtered=outcomes["filtered"],
        rows_moved=line.rows_moved,
        offsets_without_records=line.without_records,
        offsets_in_gaps=line.gap,
        offsets_rewound=line.rewound,
        raw=line.raw,
        found=in_files,
        part=line.part,
    )


def _audit_problem(problem: Problem) -> AuditProblem:
    part = problem.part
    if part is None:
        return AuditProblem(problem.description, None, None, None, problem.spans, None)
    return AuditProblem(problem.description, part.topic, part.incarnation, part.partition, problem.spans, part)


def _notes(audit: PipelineAudit) -> Iterator[str]:
    """Yield sentences on what the tables of numbers do not show."""
    if audit.commits_waiting_for_side_files:
        yield (
            f"files of {plural(audit.commits_waiting_for_side_files, 'commit')} wait for redo, which the writer's next "
            "batch or start does; they are counted"
        )
    if audit.rows_adopted:
        yield f"{plural(audit.rows_adopted, 'row')} were there when the table was taken over"
    if audit.rows_by_event_time:
        yield (
            f"{plural(audit.rows_by_event_time, 'row')} came from an archive by event time: about right, not proven by "
            "offsets"
        )
    if audit.files_without_row_counts and not audit.is_deep:
        yield (
            f"the logs have no row count of {plural(audit.files_without_row_counts, 'file')}, which other clients "
            "wrote: sums are not compared; --deep reads them"
        )
    if audit.accepted is not None:
        yield _describe_acceptance(audit.accepted, deep=audit.is_deep)
    yield from map(_describe_log_cut, audit.log_cuts)
    for spec, rules in audit.filtered_by.items():
        for rule, count in rules.items():
            yield f"{plural(count, 'record')} {_was(count)} filtered by {rule} of spec {spec}"
    if any(line.rows_moved for line in audit.topic_partitions):
        yield (f"{_MOVED}: replays of dead letters and reprocesses changed the number of rows by {audit.rows_moved:+,}")
    removals = {
        "": audit.rows_removed_by,
        " of the dead-letter table": audit.dead_letter_table_rows_removed_by,
        " of the late table": audit.late_table_rows_removed_by,
        " of the raw table": audit.raw_records_removed_by,
    }
    for table, counts in removals.items():
        for cause, count in counts.items():
            if count:
                yield f"{plural(count, 'row')}{table} {_was(count)} taken by {_describe_removal(cause)}"
    if audit.rows_removed:
        yield f"{plural(audit.rows_left, 'row')} {_is(audit.rows_left)} left in the table"


def _targets_table(targets: Sequence[TargetCount]) -> Table:
    """A line for each table of a route: those that wait for commits first, then by rows. Empty columns are left out.

    Of more than _TARGETS_SHOWN the last line before the sum is of all others.
    """
    columns = {
        "rows": [target.rows for target in targets],
        "late table": [target.late_table for target in targets],
        "removed": [target.rows_removed + target.late_table_rows_removed for target in targets],
        _WAITING_TITLE: [target.commits_waiting for target in targets],
    }
    columns = {title: counts for title, counts in columns.items() if title == "rows" or any(counts)}
    table = ruled_table("table", *columns, gap=1)
    table.columns[0].min_width = 12
    for number, target in enumerate(targets[:_TARGETS_SHOWN]):
        style = "yellow" if target.commits_waiting else ""
        table.add_row(Text(target.name), *(f"{counts[number]:,}" for counts in columns.values()), style=style)
    others = targets[_TARGETS_SHOWN:]
    if others:
        table.add_row(f"{plural(len(others), 'table')} more", *_sums(columns, _TARGETS_SHOWN))
    table.rows[-1].end_section = True
    table.add_row("all", *_sums(columns, 0), style="bold")
    return table


def _sums(columns: Mapping[str, Sequence[int]], start: int) -> list[str]:
    """Add up columns from a line on; a commit may wait for several tables, so these are not added up."""
    return ["" if title == _WAITING_TITLE else f"{sum(counts[start:]):,}" for title, counts in columns.items()]


def _describe_acceptance(answer: Answer, *, deep: bool) -> str:
    """Return what was accepted, and what is proven since."""
    changes = " and ".join(text.partition(":")[0] for text in answer.changes)
    since = "files are read" if deep else "rows are proven"
    return (
        f"{changes}, which was accepted as version {answer.version}: {since} from there on, offsets from the beginning"
    )


def _describe_log_cut(cut: CutRange) -> str:
    """Return which rows are of records that Kafka lost when it cut a log."""
    records = "the records" if cut.is_proven else "all of the records"
    start = cut.range.start
    return (
        f"the log of {cut.range.part.full_name} was cut: Kafka no longer has {records} at offsets [{start:,}, "
        f"{cut.range.end:,}), whose rows are here (version {cut.version}). It goes on as incarnation {cut.successor} "
        f"from offset {start:,}"
    )


def _describe_removal(cause: str) -> str:
    """Name what removed rows: a command of headrace, or in capitals an operation of another client."""
    return f"{cause} of another client" if cause.isupper() else cause


def _is(count: int) -> str:
    return "is" if count == 1 else "are"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _partitions_table(audit: PipelineAudit) -> Table:
    """A line for each part; columns in which nothing stands are left out."""
    columns = _partition_columns(audit)
    table = ruled_table("partition", *columns, gap=1)
    table.columns[0].min_width = 12
    problem_parts = {problem.part for problem in audit.problems}
    for number, line in enumerate(audit.topic_partitions):
        style = "red" if line.part in problem_parts else ""
        cells = [_write_count(title, counts[number]) for title, counts in columns.items()]
        table.add_row(line.part.full_name, *cells, style=style)
    if table.rows:
        table.rows[-1].end_section = True
    sums = ["" if title in ("from", "to") else _write_count(title, sum(counts)) for title, counts in columns.items()]
    table.add_row("all", *sums, style="bold")
    return table


def _write_count(title: str, count: int) -> str:
    """Write a number of a column. Rows that were moved have a sign."""
    if title == _MOVED and count:
        return f"{count:+,}"
    return f"{count:,}"


def _partition_columns(audit: PipelineAudit) -> Mapping[str, list[int]]:
    lines = audit.topic_partitions
    columns = {
        "from": [line.start for line in lines],
        "to": [line.end for line in lines],
        "read": [line.read for line in lines],
    }
    for outcome in _OUTCOME_NAMES:
        columns[outcome.replace("_", " ")] = [line.count(outcome) for line in lines]
    columns |= {
        "no record": [line.offsets_without_records for line in lines],
        "gaps": [line.offsets_in_gaps for line in lines],
        _MOVED: [line.rows_moved for line in lines],
        "rewound": [line.offsets_rewound for line in lines],
        "raw": [line.raw for line in lines],
    }
    if audit.is_deep:
        in_files = [line.found for line in lines if line.found is not None]
        columns["in files"] = [counts.rows + counts.dead_letters + counts.quarantined for counts in in_files]
        if audit.rows_removed or audit.dead_letter_table_rows_removed or audit.late_table_rows_removed_by:
            expected = [line.rows + line.late_table + line.dead_letters + line.quarantined for line in lines]
            pairs = zip(expected, columns["in files"], strict=True)
            columns["removed"] = [expected_count - count for expected_count, count in pairs]
    return {title: counts for title, counts in columns.items() if title in _COLUMNS_ALWAYS or any(counts)}


def _verdict(audit: PipelineAudit) -> Text:
    terms = []
    for outcome, name in _OUTCOME_NAMES.items():
        count = audit.records[outcome]
        if count:
            terms.append(_count_outcome(count, name))
    text = Text(f"{audit.records['read']:,} read = {' + '.join(terms) or 'nothing'}. ")
    if audit.adds_up:
        return text.append("It adds up.", style="bold green")
    text.append("It does not add up:", style="bold red")
    for problem in audit.problems:
        text.append(f"\n  {problem.describe()}", style="red")
    return text


def _count_outcome(count: int, name: str) -> str:
    if count == 1:
        name = _PLURAL_S.sub("", name, count=1)
    return f"{count:,} {name}"


@command(exits={0: "it adds up", 1: "it does not, or a table cannot be read", 2: "configuration"})
def audit(
    pipelines: PipelineNames,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only commits from this version (120) or time (2026-11-20T05:00Z) on."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every file: count rows and distinct offsets, find what is missing.")
    ] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Report the result to the hooks of type dagster, as an asset check.")
    ] = False,
) -> AuditReport:
    """Prove that every offset is accounted for: once in the table or the dead letters, or known to hold nothing.

    From the lake alone, without Kafka, while the writer runs or not.
    """
    if report and since is not None:
        raise ConfigError(
            "an audit from a version on says nothing of the versions before; leave --since or --report out"
        )
    return run_audit(pipelines, since=since, deep=deep, report=report)
