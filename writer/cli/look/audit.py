"""`headrace audit`: whether every offset is accounted for, from the lake alone."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from writer.audit.audit import Audit, TargetCount, audit as audit_table
from writer.audit.reconciliation import PartitionSummary, Problem
from writer.batch.task_report import EXITS
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.core.text import plural
from writer.output.cli_options import AsJson, ConfigFile, Pipelines, version_or_time
from writer.output.tables import console, emit_whole, ruled_table, show_pages
from writer.table.ledger.gap_record import Outcome
from writer.table.ledger.segment import Answer, CutRange

_OUTCOME_NAMES = {
    "rows": "rows",
    "late": "rows of the late table",
    "tombstones": "tombstones",
    "dead_letters": "dead letters",
    "quarantined": "quarantined",
    "filtered": "filtered",
}
_PLURAL_S = re.compile(r"s\b")
# Keys of JSON, where the log has another.
_KEYS = {"late": "late_table"}
# Rows that replays and reprocesses added, or took.
_MOVED = "moved"
_GAP_STATES: Sequence[Outcome] = ("open", "done", "lost", "rewound")
_WAITING_TITLE = "commits that wait"
# Columns that are shown although nothing stands in them.
_COLUMNS_ALWAYS = ("to", "read", "rows", "in files")
# For a person; --json has all.
_TARGETS_SHOWN = 20
_RANGES_SHOWN = 5


def run_audit(
    config: Config, names: Sequence[str], *, since: str | None, deep: bool, as_json: bool, console: Console
) -> int:
    """Audit the pipelines and show the results. Returns 0 when all adds up, else 1.

    Raises HeadraceError when a pipeline has no table or it cannot be read, after the others.
    """
    start = None if since is None else version_or_time("--since", since)
    audits: dict[str, Audit] = {}
    errors: list[HeadraceError] = []
    for name in names:
        try:
            audits[name] = audit_table(config, name, since=start, deep=deep)
        except HeadraceError as error:
            errors.append(error)
    if as_json and audits:
        emit_whole({"pipelines": {name: to_dict(audit, deep=deep) for name, audit in audits.items()}})
    else:
        pages = [Group(*_page(name, audit, deep=deep)) for name, audit in audits.items()]
        show_pages(pages, console)
    if errors:
        raise HeadraceError("\nheadrace: ".join(map(str, errors)))
    return int(not all(audit.adds_up for audit in audits.values()))


def to_dict(audit: Audit, *, deep: bool) -> dict[str, Any]:
    """Describe an audit as JSON values."""
    reconciliation = audit.reconciliation
    lines = reconciliation.lines
    gap_states = Counter(gap_record.state for gap_record in reconciliation.gap_records.values())
    return {
        "adds_up": audit.adds_up,
        "versions": [reconciliation.first, reconciliation.last],
        "records": {_KEYS.get(name, name): reconciliation.total(name) for name in ("read", *EXITS)},
        "filtered_by": {spec: dict(rules) for spec, rules in reconciliation.filtered.items()},
        "rows_moved": sum(line.rows_moved for line in lines),
        "offsets_without_records": sum(line.without_records for line in lines),
        "offsets_in_gaps": sum(line.gap for line in lines),
        "offsets_rewound": sum(line.rewound for line in lines),
        "rows_adopted": reconciliation.adopted,
        "rows_by_event_time": reconciliation.unplaced,
        "gaps": {state: gap_states[state] for state in _GAP_STATES},
        "rows_removed": audit.rows_removed,
        "rows_removed_by": dict(audit.rows_taken),
        "rows_left": audit.rows_left,
        "dead_letter_table_rows_removed": audit.dead_letters_removed,
        "dead_letter_table_rows_removed_by": dict(audit.dead_letters_taken),
        "late_table_rows_removed_by": dict(audit.late_taken),
        "raw_records": reconciliation.raw,
        "raw_records_removed_by": dict(audit.raw_taken),
        "commits_waiting_for_side_files": audit.waiting,
        "files_without_row_counts": audit.uncounted,
        "targets": [_target_document(target) for target in audit.targets],
        "topic_partitions": [_partition_document(line, audit, deep=deep) for line in lines],
        "accepted": audit.accepted and vars(audit.accepted),
        "log_cuts": [cut.to_json() for cut in reconciliation.cuts],
        "problems": [_problem_document(problem) for problem in audit.problems],
    }


def _target_document(target: TargetCount) -> dict[str, Any]:
    return {
        "name": target.name,
        "location": target.location,
        "rows": target.rows,
        "late_table": target.late,
        "rows_removed": target.rows_taken,
        "late_table_rows_removed": target.late_taken,
        "commits_waiting": target.waiting,
    }


def _partition_document(line: PartitionSummary, audit: Audit, *, deep: bool) -> dict[str, Any]:
    document: dict[str, Any] = {
        **vars(line.part),
        "start": line.range.start,
        "end": line.range.end,
        **{_KEYS.get(name, name): count for name, count in line.outcomes.items()},
        "rows_moved": line.rows_moved,
        "offsets_without_records": line.without_records,
        "offsets_in_gaps": line.gap,
        "offsets_rewound": line.rewound,
        "raw": line.raw,
    }
    if deep:
        counts = audit.file_offsets[line.part]
        document["found"] = {
            "rows": counts.rows,
            **counts.dead_letters,
            "distinct_offsets": counts.distinct,
            "offsets_in_neither_table": counts.nowhere_offsets,
        }
    return document


def _problem_document(problem: Problem) -> dict[str, Any]:
    part = problem.part and vars(problem.part)
    return {"what": problem.description, **(part or {}), "ranges": [list(span) for span in problem.spans]}


def _page(name: str, audit: Audit, *, deep: bool) -> list[RenderableType]:
    reconciliation = audit.reconciliation
    head = Text.assemble((name, "bold"), (f"  versions {reconciliation.first} to {reconciliation.last}", "dim"))
    if deep:
        head.append(", every file read", style="dim")
    targets: list[RenderableType] = []
    if audit.targets:
        targets = [_targets_table(audit.targets), ""]
    return [head, "", _partitions_table(audit, deep=deep), "", *targets, *_notes(audit, deep=deep), _verdict(audit)]


def _notes(audit: Audit, *, deep: bool) -> Iterator[str]:
    """Yield sentences on what the tables of numbers do not show."""
    reconciliation = audit.reconciliation
    if audit.waiting:
        yield (
            f"files of {plural(audit.waiting, 'commit')} wait for redo, which the writer's next batch or start does; "
            "they are counted"
        )
    if reconciliation.adopted:
        yield f"{plural(reconciliation.adopted, 'row')} were there when the table was taken over"
    if reconciliation.unplaced:
        yield (
            f"{plural(reconciliation.unplaced, 'row')} came from an archive by event time: about right, not proven by "
            "offsets"
        )
    if audit.uncounted and not deep:
        yield (
            f"the logs have no row count of {plural(audit.uncounted, 'file')}, which other clients wrote: sums are not "
            "compared; --deep reads them"
        )
    if audit.accepted:
        yield _describe_acceptance(audit.accepted, deep=deep)
    yield from map(_describe_log_cut, reconciliation.cuts)
    for spec, rules in reconciliation.filtered.items():
        for rule, count in rules.items():
            yield f"{plural(count, 'record')} {_was(count)} filtered by {rule} of spec {spec}"
    moved = sum(line.rows_moved for line in reconciliation.lines)
    if any(line.rows_moved for line in reconciliation.lines):
        yield f"{_MOVED}: replays of dead letters and reprocesses changed the number of rows by {moved:+,}"
    removals = {
        "": audit.rows_taken,
        " of the dead-letter table": audit.dead_letters_taken,
        " of the late table": audit.late_taken,
        " of the raw table": audit.raw_taken,
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
        "late table": [target.late for target in targets],
        "removed": [target.rows_taken + target.late_taken for target in targets],
        _WAITING_TITLE: [target.waiting for target in targets],
    }
    columns = {title: counts for title, counts in columns.items() if title == "rows" or any(counts)}
    table = ruled_table("table", *columns, gap=1)
    table.columns[0].min_width = 12
    for number, target in enumerate(targets[:_TARGETS_SHOWN]):
        style = "yellow" if target.waiting else ""
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


def _partitions_table(audit: Audit, *, deep: bool) -> Table:
    """A line for each part; columns in which nothing stands are left out."""
    columns = _partition_columns(audit, deep=deep)
    table = ruled_table("partition", *columns, gap=1)
    table.columns[0].min_width = 12
    problem_parts = {problem.part for problem in audit.problems}
    for number, line in enumerate(audit.reconciliation.lines):
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


def _partition_columns(audit: Audit, *, deep: bool) -> Mapping[str, list[int]]:
    lines = audit.reconciliation.lines
    columns = {
        "from": [line.range.start for line in lines],
        "to": [line.range.end for line in lines],
        "read": [line.outcomes["read"] for line in lines],
    }
    for outcome in EXITS:
        title = _KEYS.get(outcome, _OUTCOME_NAMES[outcome]).replace("_", " ")
        columns[title] = [line.outcomes[outcome] for line in lines]
    columns |= {
        "no record": [line.without_records for line in lines],
        "gaps": [line.gap for line in lines],
        _MOVED: [line.rows_moved for line in lines],
        "rewound": [line.rewound for line in lines],
        "raw": [line.raw for line in lines],
    }
    if deep:
        counts = [audit.file_offsets[line.part] for line in lines]
        columns["in files"] = [count.rows + sum(count.dead_letters.values()) for count in counts]
        if audit.rows_removed or audit.dead_letters_removed or audit.late_taken:
            expected = [line.outcomes["rows"] + line.outcomes["late"] + line.dead_letters for line in lines]
            pairs = zip(expected, columns["in files"], strict=True)
            columns["removed"] = [expected_count - count for expected_count, count in pairs]
    return {title: counts for title, counts in columns.items() if title in _COLUMNS_ALWAYS or any(counts)}


def _verdict(audit: Audit) -> Text:
    reconciliation = audit.reconciliation
    terms = []
    for outcome in EXITS:
        count = reconciliation.total(outcome)
        if count:
            terms.append(_count_outcome(count, _OUTCOME_NAMES[outcome]))
    text = Text(f"{reconciliation.total('read'):,} read = {' + '.join(terms) or 'nothing'}. ")
    if audit.adds_up:
        return text.append("It adds up.", style="bold green")
    text.append("It does not add up:", style="bold red")
    for problem in audit.problems:
        text.append(f"\n  {_describe_problem(problem)}", style="red")
    return text


def _count_outcome(count: int, name: str) -> str:
    if count == 1:
        name = _PLURAL_S.sub("", name, count=1)
    return f"{count:,} {name}"


def _describe_problem(problem: Problem) -> str:
    text = problem.description
    if problem.part:
        text = f"{problem.part.full_name}: {text}"
    if problem.spans:
        ranges = ", ".join(f"[{span[0]}, {span[1]})" for span in problem.spans[:_RANGES_SHOWN])
        text = f"{text}: {ranges}"
    if len(problem.spans) > _RANGES_SHOWN:
        text += ", …"
    return text


def audit(
    config: ConfigFile,
    pipeline: Pipelines = None,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only commits from this version (120) or time (2026-11-20T05:00Z) on."),
    ] = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every file: count rows and distinct offsets, find what is missing.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Prove that every offset is accounted for: once in the table or the dead letters, or known to hold nothing.

    From the lake alone, without Kafka, while the writer runs or not.

    Exit codes: 0 it adds up, 1 it does not, or a table cannot be read, 2 configuration.
    """
    settings = load(config)
    names = settings.chosen(pipeline)
    raise typer.Exit(run_audit(settings, names, since=since, deep=deep, as_json=as_json, console=console()))
