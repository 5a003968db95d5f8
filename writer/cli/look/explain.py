"""`headrace explain`: why a batch was committed when it was, its cost, and the contents of other entries.

From the commit's own facts in the table's log: no driver need run, now or ever again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.text import instant, iso, plural
from headrace.writer.core.units import from_iso, show_size
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import ChosenPipelines, PipelineNames
from headrace.writer.output.entry_text import batch_end_reason, describe_entry, describe_rate_wait, gap_reason
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import label_grid, ruled_table, show_pages
from headrace.writer.status.commit_explanation import Explanation, KafkaOffset, NoSuchOffset, find_explanation
from headrace.writer.status.document import gap_record
from headrace.writer.status.model import OUTCOMES, Totals
from headrace.writer.table.log.entries import Entry

# In the order in which a task takes them.
_STEPS = ("fetch", "skip", "raw", "split", "decode", "shape", "conform", "assign", "stage", "columnar")
_PHASES = {
    "wait": "between the batch before and this one",
    "look": "topics, table, redo, range",
    "queue": "behind batches of other pipelines",
    "tasks": "the steps, and Spark around them",
    "commit": "the table's commit",
    "redo": "the dead-letter table",
}
# A commit cannot say what it will cost itself.
_LATER_PHASES = ("commit", "redo")
_OFFSET = re.compile(r"([^/]+)/(\d+):(\d+)")
# Fields of a batch that its entry has by the same names.
_BATCH_FACTS = (
    "run",
    "batch",
    "reason",
    "offsets",
    "waiting",
    "limits",
    "tasks",
    "value_bytes",
    "rows",
    "bytes",
    "files",
    "buckets",
    "dead_letter_files",
    "dead_letter_bytes",
    "spilled_bytes",
    "ranges",
)
# A share below it would read 0.0 %, and what is left of it 100.0 %.
_SMALL_SHARE = 0.001


@dataclass(frozen=True)
class BatchCommit:
    """The commit of a batch, by its entry of the log and what came to light after it."""

    version: int
    kind: str
    committed_at: datetime
    why: str
    rate_limit: Mapping[str, Any] | None
    run: int
    batch: int
    # When its query began, and when its records were chosen.
    started: datetime | None
    assembled: datetime | None
    reason: str
    offsets: int
    # None: it is not known how many offsets waited.
    waiting: int | None
    limits: Mapping[str, Any]
    tasks: int
    value_bytes: int
    rows: int
    bytes: int
    files: int
    buckets: int
    dead_letter_files: int
    dead_letter_bytes: int
    spilled_bytes: int
    event_time_min: datetime | None
    event_time_max: datetime | None
    ranges: Sequence[Mapping[str, Any]]
    # Read, and by outcome.
    records: Mapping[str, int]
    specs: Mapping[str, Any] | None
    unfit_members: Mapping[str, int]
    late_rows: int
    late_rows_by: Mapping[str, int]
    offsets_without_records: int
    step_cpu_seconds: Mapping[str, float]
    phase_seconds: Mapping[str, float]
    # Its wait for the rate limit, or empty.
    wait: str = field(metadata=SCREEN_ONLY)

    def page(self, name: str) -> list[RenderableType]:
        """Return why it was committed, what became of its records, and its cost."""
        head = _head(name, f"batch {self.batch} of run {self.run}", self.version, self.committed_at, "committed as ")
        why = f"Its batch ended because {self.why}."
        if self.wait:
            why += f" Before, {self.wait}."
        page: list[RenderableType] = [head, Text(why), "", _records_table(self), "", _steps_table(self), ""]
        if self.phase_seconds:
            page += [_phases_table(self.phase_seconds), ""]
        return [*page, _files_grid(self)]


@dataclass(frozen=True)
class GapCommit:
    """The entry of a gap."""

    entry: Entry

    def to_json(self) -> dict[str, Any]:
        """Write it as the log has it, with why its records will not come."""
        facts = self.entry.facts
        return {"version": self.entry.version, "kind": "gap", **gap_record(facts), "why": gap_reason(facts["cause"])}

    def page(self, name: str) -> list[RenderableType]:
        """Return why its records will not come, and which these are."""
        facts = self.entry.facts
        why = f"{plural(gap_record(facts)['offsets'], 'offset')} gave no record because {gap_reason(facts['cause'])}."
        table = ruled_table("partition", "incarnation", "from", "to", "offsets")
        for offsets in facts["ranges"]:
            start = offsets["start"]
            end = offsets["end"]
            partition = f"{offsets['topic']}/{offsets['partition']}"
            table.add_row(partition, str(offsets["incarnation"]), f"{start:,}", f"{end:,}", f"{end - start:,}")
        head = _head(name, "gap", self.entry.version, self.entry.logged_at, "recorded as ")
        return [head, Text(why), "", table, "", Text(f"gap record {facts['id']}", style="dim")]


@dataclass(frozen=True)
class OtherEntry:
    """An entry of the log that read no offsets."""

    entry: Entry

    def to_json(self) -> dict[str, Any]:
        """Write it as the log has it, with what it did."""
        entry = self.entry
        why = describe_entry(entry.kind, entry.facts)
        return {**entry.facts, "version": entry.version, "at": iso(entry.logged_at), "why": why}

    def page(self, name: str) -> list[RenderableType]:
        """Return what it did, and its facts that fit on a line."""
        entry = self.entry
        rows = []
        for key, value in entry.facts.items():
            if key in ("kind", "format") or not isinstance(value, str | int | float):
                continue
            rows.append((key.replace("_", " "), value if isinstance(value, str) else f"{value:,}"))
        text = describe_entry(entry.kind, entry.facts)
        head = _head(name, entry.kind, entry.version, entry.logged_at, "")
        return [head, Text(f"{text[0].upper()}{text[1:]}."), "", label_grid(rows, 3)]


@dataclass(frozen=True)
class ExplainReport(Report):
    """The chosen or the last commit of each pipeline."""

    pipelines: Mapping[str, BatchCommit | GapCommit | OtherEntry]
    # Of pipelines without such a commit.
    failure: HeadraceError | None = field(metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw a page of each."""
        show_pages([Group(*commit.page(name)) for name, commit in self.pipelines.items()], out)


def run_explain(
    pipelines: ChosenPipelines,
    *,
    batch: int | None = None,
    version: int | None = None,
    offset: KafkaOffset | None = None,
) -> ExplainReport:
    """Explain the chosen or the last commit of each pipeline. Raises HeadraceError when none has one.

    An offset is looked for in all pipelines, and those that never read it are left out.
    """

    def explain_one(name: str) -> BatchCommit | GapCommit | OtherEntry:
        return explain_commit(find_explanation(pipelines.config, name, batch=batch, version=version, offset=offset))

    commits, failure = pipelines.search(explain_one, NoSuchOffset)
    return ExplainReport(commits, failure)


def explain_commit(explanation: Explanation) -> BatchCommit | GapCommit | OtherEntry:
    """Return what a screen shows of an entry."""
    entry = explanation.entry
    facts = entry.facts
    if entry.kind == "gap":
        return GapCommit(entry)
    if entry.kind != "batch":
        return OtherEntry(entry)
    sums = Totals()
    sums.add(facts)
    return BatchCommit(
        version=entry.version,
        kind="batch",
        committed_at=entry.logged_at,
        why=batch_end_reason(facts),
        rate_limit=facts.get("rate_limit"),
        **{name: facts[name] for name in _BATCH_FACTS},
        started=from_iso(facts["started"]),
        assembled=from_iso(facts["assembled"]),
        event_time_min=from_iso(facts["event_time_min"]),
        event_time_max=from_iso(facts["event_time_max"]),
        records={name: sums.records[name] for name in OUTCOMES},
        specs=facts.get("specs"),
        unfit_members=dict(sums.unfit_members),
        late_rows=sums.late_rows,
        late_rows_by=sums.late.by_policy,
        offsets_without_records=sums.offsets_without_records,
        step_cpu_seconds=facts["seconds"],
        phase_seconds=explanation.phases,
        wait=describe_rate_wait(facts),
    )


def _head(name: str, subject: str, version: int, time: datetime, verb: str) -> Text:
    return Text.assemble((name, "bold"), f"  {subject}", (f", {verb}version {version} at {instant(time)}", "dim"))


def _records_table(batch: BatchCommit) -> Table:
    read = batch.records["read"]
    table = ruled_table("records", "count", "share")
    for outcome in OUTCOMES[1:]:
        count = batch.records[outcome]
        style = "yellow" if count and outcome in ("dead_letters", "quarantined") else ""
        table.add_row(outcome.replace("_", " "), f"{count:,}", _share(count, read), style=style)
    table.add_row("read", f"{read:,}", "", style="bold")
    filtered = (batch.specs or {}).get("filtered", {})
    for spec, rules in filtered.items():
        for rule, count in rules.items():
            table.add_row(f"filtered by {rule} of spec {spec}", f"{count:,}", _share(count, read))
    for became, count in batch.unfit_members.items():
        table.add_row(f"members of JSON that fit no column, {became}", f"{count:,}", "")
    if batch.late_rows:
        table.add_row("late rows, wherever they went", f"{batch.late_rows:,}", _share(batch.late_rows, read))
    if batch.offsets_without_records:
        table.add_row("offsets without a record", f"{batch.offsets_without_records:,}", "", style="yellow")
    return table


def _steps_table(batch: BatchCommit) -> Table:
    step_seconds = batch.step_cpu_seconds
    seconds = sum(step_seconds.values())
    read = batch.records["read"]
    steps = [step for step in _STEPS if step in step_seconds]
    # Of another version of headrace.
    steps += sorted(step_seconds.keys() - set(_STEPS))
    table = ruled_table("step", "CPU s", "share", "µs/record")
    for step in steps:
        cpu_s = step_seconds[step]
        table.add_row(step, f"{cpu_s:.3f}", _share(cpu_s, seconds), _per_record(cpu_s, read))
    tasks = plural(batch.tasks, "task")
    table.add_row(f"all, in {tasks}", f"{seconds:.3f}", "", _per_record(seconds, read), style="bold")
    return table


def _phases_table(phases: Mapping[str, float]) -> Table:
    table = ruled_table("driver", "wall s")
    table.add_column("", style="dim")
    for phase in [*_PHASES, *sorted(phases.keys() - _PHASES.keys())]:
        if phase in phases:
            table.add_row(phase, f"{phases[phase]:.3f}", _PHASES.get(phase, ""))
        elif phase in _LATER_PHASES:
            table.add_row(phase, "-", f"{_PHASES[phase]}; known with this start's next commit")
    return table


def _files_grid(batch: BatchCommit) -> Table:
    rows: list[tuple[str, str]] = []
    read = batch.records["read"]
    if batch.value_bytes and read:
        bytes_per_record = batch.value_bytes / read
        rows.append(("read", f"{show_size(batch.value_bytes)} of values, {bytes_per_record:.1f} bytes/record"))
    written = [plural(batch.files, "file"), show_size(batch.bytes)]
    if batch.rows:
        written.append(f"{batch.bytes / batch.rows:.1f} bytes/row")
    written.append(plural(batch.buckets, "bucket"))
    rows.append(("written", ", ".join(written)))
    if batch.dead_letter_files:
        dead_letters = plural(batch.dead_letter_files, "file")
        rows.append(("dead letters", f"{dead_letters}, {show_size(batch.dead_letter_bytes)}"))
    rows.append(("spilled", show_size(batch.spilled_bytes)))
    if batch.specs:
        rows.append(("event specs", f"version {batch.specs['version']}"))
    if batch.event_time_min is not None:
        rows.append(("event times", f"from {instant(batch.event_time_min)} to {instant(batch.event_time_max)}"))
    return label_grid(rows, 3)


def _share(part: float, total: float) -> str:
    if not total:
        return ""
    share = part / total
    is_extreme = 0 < share < _SMALL_SHARE or 1 - _SMALL_SHARE < share < 1
    return f"{share:.4%}" if is_extreme else f"{share:.1%}"


def _per_record(seconds: float, records: int) -> str:
    return f"{seconds / records * 1e6:.2f}" if records else ""


@command(exits={0: "shown", 1: "a pipeline has no such commit", 2: "configuration"})
def explain(
    pipelines: PipelineNames,
    batch: Annotated[int | None, typer.Option("--batch", min=0, help="The newest commit of this batch.")] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=0, help="The entry of this table version, whatever it is.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", help="The commit that holds it, such as clicks/0:1234.")
    ] = None,
) -> ExplainReport:
    """Explain why a batch was committed when it was and what it cost, or what another entry of the log did.

    Without options: the last commit. Reads the lake only.
    """
    return run_explain(pipelines, batch=batch, version=version, offset=_parse_offset(offset))


def _parse_offset(text: str | None) -> KafkaOffset | None:
    if text is None:
        return None
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no offset; write clicks/0:1234", param_hint="--offset")
    topic, partition, offset = match.groups()
    return KafkaOffset(topic, int(partition), int(offset))
