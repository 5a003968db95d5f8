"""`headrace audit`: whether every offset is accounted for, from the lake alone."""

import re
from collections.abc import Mapping, Sequence
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
from writer.core.offsets import TopicPartition
from writer.core.text import plural
from writer.output.cli_options import AsJson, ConfigFile, Pipelines, version_or_time
from writer.output.tables import console, emit_whole, ruled_table, show
from writer.table.ledger.segment import Answer, CutRange

_WORDS = {
    "rows": "rows", "late": "rows of the late table", "tombstones": "tombstones", "dead_letters": "dead letters",
    "quarantined": "quarantined", "filtered": "filtered",
}  # fmt: skip
_ONE = re.compile(r"s\b")  # what a noun loses when there is one
_KEYS = {"late": "late_table"}  # of JSON, where the log has another
_STATES = ("open", "done", "lost", "rewound")  # of a gap record
_WAIT = "commits that wait"  # title of a column
_TARGETS_SHOWN = 20  # of a route, for a person; --json has all
_SPANS_SHOWN = 5  # of a problem, for a person


def run_audit(
    config: Config, names: Sequence[str], *, since: str | None, deep: bool, as_json: bool, console: Console
) -> int:
    """Audit the pipelines and show what was found. Returns 0 when all adds up, else 1.

    Raises HeadraceError when a pipeline has no table or it cannot be read, after the others.
    """
    start = None if since is None else version_or_time("--since", since)
    found, missing = dict[str, Audit](), list[HeadraceError]()
    for name in names:
        try:
            found[name] = audit_table(config, name, since=start, deep=deep)
        except HeadraceError as error:
            missing.append(error)
    if as_json and found:
        emit_whole({"pipelines": {name: to_dict(one, deep=deep) for name, one in found.items()}})
    else:
        for i, (name, one) in enumerate(found.items()):
            show(Group(*([""] if i else []), *_page(name, one, deep=deep)), console)
    if missing:
        raise HeadraceError("\nheadrace: ".join(map(str, missing)))
    return 0 if all(one.adds_up for one in found.values()) else 1


def to_dict(one: Audit, *, deep: bool) -> dict[str, Any]:
    """Describe an audit as JSON values."""
    reconciliation = one.reconciliation
    return {
        "adds_up": one.adds_up,
        "versions": [reconciliation.first, reconciliation.last],
        "records": {_KEYS.get(name, name): reconciliation.total(name) for name in ("read", *EXITS)},
        "filtered_by": {spec: dict(rules) for spec, rules in reconciliation.filtered.items()},
        "replayed": sum(line.replayed for line in reconciliation.lines),
        "offsets_without_records": sum(line.without_records for line in reconciliation.lines),
        "offsets_in_gaps": sum(line.gap for line in reconciliation.lines),
        "offsets_rewound": sum(line.back for line in reconciliation.lines),
        "rows_adopted": reconciliation.adopted,
        "rows_by_event_time": reconciliation.unplaced,
        "gaps": {state: sum(one.state == state for one in reconciliation.gap_records.values()) for state in _STATES},
        "rows_removed": one.rows_removed,
        "rows_removed_by": dict(one.rows_taken),
        "dead_letter_table_rows_removed": one.dead_letters_removed,
        "dead_letter_table_rows_removed_by": dict(one.dead_letters_taken),
        "late_table_rows_removed_by": dict(one.late_taken),
        "raw_records": reconciliation.raw,
        "raw_records_removed_by": dict(one.raw_taken),
        "commits_waiting_for_side_files": one.waiting,
        "files_without_row_counts": one.uncounted,
        "targets": [_target(target) for target in one.targets],
        "topic_partitions": [_part(line, one, deep=deep) for line in reconciliation.lines],
        "accepted": one.accepted and vars(one.accepted),
        "log_cuts": [
            {key: value for key, value in {**vars(cut), **vars(cut.part)}.items() if key != "part"}
            for cut in reconciliation.cuts
        ],
        "problems": [
            {"what": p.what, **(vars(p.part) if p.part else {}), "ranges": [list(span) for span in p.spans]}
            for p in one.problems
        ],
    }


def _target(one: TargetCount) -> dict[str, Any]:
    return {
        "name": one.name, "location": one.location, "rows": one.rows, "late_table": one.late,
        "rows_removed": one.rows_taken, "late_table_rows_removed": one.late_taken, "commits_waiting": one.waiting,
    }  # fmt: skip


def _part(line: PartitionSummary, one: Audit, *, deep: bool) -> dict[str, Any]:
    about: dict[str, Any] = {
        **vars(line.part), "start": line.start, "end": line.end,
        **{_KEYS.get(name, name): count for name, count in line.outcomes.items()}, "replayed": line.replayed,
        "offsets_without_records": line.without_records, "offsets_in_gaps": line.gap,
        "offsets_rewound": line.back, "raw": line.raw,
    }  # fmt: skip
    if deep:
        there = one.found[line.part]
        about["found"] = {
            "rows": there.rows, **there.dead_letters, "distinct_offsets": there.distinct,
            "offsets_in_neither_table": there.nowhere_offsets,
        }  # fmt: skip
    return about


def _page(name: str, one: Audit, *, deep: bool) -> list[RenderableType]:
    reconciliation = one.reconciliation
    head = Text.assemble((name, "bold"), (f"  versions {reconciliation.first} to {reconciliation.last}", "dim"))
    if deep:
        head.append(", every file read", style="dim")
    tables = {
        "": one.rows_taken, " of the dead-letter table": one.dead_letters_taken, " of the late table": one.late_taken,
        " of the raw table": one.raw_taken,
    }  # fmt: skip
    taken = [(table, why, count) for table, counts in tables.items() for why, count in counts.items()]
    notes = [
        f"files of {plural(one.waiting, 'commit')} wait for redo, which the writer's next batch or start does; they "
        "are counted"
        if one.waiting
        else "",
        f"{plural(reconciliation.adopted, 'row')} were there when the table was taken over"
        if reconciliation.adopted
        else "",
        f"{plural(reconciliation.unplaced, 'row')} came from an archive by event time: about right, not proven by "
        "offsets"
        if reconciliation.unplaced
        else "",
        f"the logs have no row count of {plural(one.uncounted, 'file')}, which other clients wrote: sums are not "
        "compared; --deep reads them"
        if one.uncounted and not deep
        else "",
        _accepted(one.accepted, deep=deep) if one.accepted else "",
        *map(_cut, reconciliation.cuts),
        *(
            f"{plural(count, 'record')} {'was' if count == 1 else 'were'} filtered by {rule} of spec {spec}"
            for spec, rules in reconciliation.filtered.items()
            for rule, count in rules.items()
        ),
        *(f"{plural(count, 'row')}{table} {_taken(why, count)}" for table, why, count in taken if count),
    ]
    by_table: list[RenderableType] = [_targets(one.targets), ""] if one.targets else []
    return [head, "", _table(one, deep=deep), "", *by_table, *filter(None, notes), _verdict(one)]


def _targets(found: Sequence[TargetCount]) -> Table:
    """A line for each table of a route: those that wait for commits first, then by rows. Empty columns are left out.

    Of more than _TARGETS_SHOWN the last line before the sum is of all others.
    """
    columns = {
        "rows": [one.rows for one in found], "late table": [one.late for one in found],
        "removed": [one.rows_taken + one.late_taken for one in found],
        _WAIT: [one.waiting for one in found],
    }  # fmt: skip
    shown = {title: cells for title, cells in columns.items() if title == "rows" or any(cells)}
    table = ruled_table("table", *shown, gap=1)
    table.columns[0].min_width = 12
    for i, one in enumerate(found[:_TARGETS_SHOWN]):
        style = "yellow" if one.waiting else ""
        table.add_row(Text(one.name), *(f"{cells[i]:,}" for cells in shown.values()), style=style)

    def sums(start: int) -> list[str]:
        """Add up from a line on; a commit may wait for several tables, so these are not added up."""
        return ["" if title == _WAIT else f"{sum(cells[start:]):,}" for title, cells in shown.items()]

    if others := found[_TARGETS_SHOWN:]:
        table.add_row(f"{plural(len(others), 'table')} more", *sums(_TARGETS_SHOWN))
    table.rows[-1].end_section = True
    table.add_row("all", *sums(0), style="bold")
    return table


def _accepted(answer: Answer, *, deep: bool) -> str:
    """Return what was accepted, and what is proven since."""
    changes = " and ".join(text.partition(":")[0] for text in answer.changes)
    since = "files are read" if deep else "rows are proven"
    return (
        f"{changes}, which was accepted as version {answer.version}: {since} from there on, offsets from the beginning"
    )


def _cut(cut: CutRange) -> str:
    """Return which rows are of records that Kafka lost when it cut a log."""
    lost = "Kafka no longer has the records" if cut.is_proven else "Kafka no longer has all of the records"
    return (
        f"the log of {name_of(cut.part)} was cut: {lost} at offsets [{cut.start:,}, {cut.end:,}), whose rows are "
        f"here (version {cut.version}). It goes on as incarnation {cut.successor} from offset {cut.start:,}"
    )


def _taken(why: str, count: int) -> str:
    """Name what removed rows: one of headrace's words, or in capitals an operation of another client."""
    return f"{'was' if count == 1 else 'were'} taken by {f'{why} of another client' if why.isupper() else why}"


def _table(one: Audit, *, deep: bool) -> Table:
    """A line for each part; columns in which nothing stands are left out."""
    columns = _columns(one, deep=deep)
    table = ruled_table("partition", *columns, gap=1)
    table.columns[0].min_width = 12
    bad = {problem.part for problem in one.problems}
    lines = one.reconciliation.lines
    for i, line in enumerate(lines):
        style = "red" if line.part in bad else ""
        table.add_row(
            name_of(line.part), *(f"{cells[i]:,}" for cells in columns.values()), style=style,
            end_section=i == len(lines) - 1,
        )  # fmt: skip
    sums = ("" if title in ("from", "to") else f"{sum(cells):,}" for title, cells in columns.items())
    table.add_row("all", *sums, style="bold")
    return table


def _columns(one: Audit, *, deep: bool) -> Mapping[str, list[int]]:
    lines = one.reconciliation.lines
    found = {
        "from": [line.start for line in lines],
        "to": [line.end for line in lines],
        "read": [line.outcomes["read"] for line in lines],
        **{_KEYS.get(name, _WORDS[name]).replace("_", " "): [line.outcomes[name] for line in lines] for name in EXITS},
        "no record": [line.without_records for line in lines],
        "gaps": [line.gap for line in lines],
        "replayed": [line.replayed for line in lines],
        "rewound": [line.back for line in lines],
        "raw": [line.raw for line in lines],
    }
    if deep:
        there = [one.found[line.part] for line in lines]
        found["in files"] = [f.rows + sum(f.dead_letters.values()) for f in there]
        if one.rows_removed or one.dead_letters_removed or one.late_taken:
            kept = [line.outcomes["rows"] + line.outcomes["late"] + line.dead_letters for line in lines]
            found["removed"] = [should - is_ for should, is_ in zip(kept, found["in files"], strict=True)]
    always = ("to", "read", "rows", "in files")
    return {title: cells for title, cells in found.items() if title in always or any(cells)}


def _verdict(one: Audit) -> Text:
    reconciliation = one.reconciliation
    sums = {_WORDS[name]: reconciliation.total(name) for name in EXITS}
    terms = " + ".join(f"{n:,} {word if n != 1 else _ONE.sub('', word, count=1)}" for word, n in sums.items() if n)
    text = Text(f"{reconciliation.total('read'):,} read = {terms or 'nothing'}. ")
    if one.adds_up:
        return text.append("It adds up.", style="bold green")
    text.append("It does not add up:", style="bold red")
    for problem in one.problems:
        text.append(f"\n  {_sentence(problem)}", style="red")
    return text


def _sentence(problem: Problem) -> str:
    where = f"{name_of(problem.part)}: " if problem.part else ""
    shown = ", ".join(f"[{start}, {end})" for start, end in problem.spans[:_SPANS_SHOWN])
    more = ", …" if len(problem.spans) > _SPANS_SHOWN else ""
    return f"{where}{problem.what}{f': {shown}{more}' if shown else ''}"


def name_of(part: TopicPartition) -> str:
    """Name a part; its incarnation where it is not the first."""
    return f"{part.topic}{f'@{part.incarnation}' if part.incarnation != 1 else ''}/{part.partition}"


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
