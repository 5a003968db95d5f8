"""`headrace explain`: why a batch was committed when it was, its cost, and the contents of other entries.

From the commit's own facts in the table's log: no driver need run, now or ever again.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.entry_text import batch_end_reason, describe_entry, describe_rate_wait, gap_reason
from writer.core.errors import HeadraceError
from writer.core.text import instant, iso, plural
from writer.core.units import show_size
from writer.output.cli_options import AsJson, ConfigFile, Pipelines
from writer.output.tables import emit_whole, label_grid, ruled_table, show_pages
from writer.status.commit_explanation import Explanation, KafkaOffset, find_explanation
from writer.status.document import gap_record
from writer.status.model import OUTCOMES, Totals
from writer.table.log.entries import Entry

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
_TIMES = ("started", "assembled", "event_time_min", "event_time_max")
# Facts of a batch that `--json` prints as the log has them.
_BATCH_FACTS = (
    "run",
    "batch",
    "started",
    "assembled",
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
    "event_time_min",
    "event_time_max",
    "ranges",
)
# A share below it would read 0.0 %, and what is left of it 100.0 %.
_SMALL_SHARE = 0.001


def run_explain(
    config: Config,
    names: Sequence[str],
    *,
    batch: int | None,
    version: int | None,
    as_json: bool,
    console: Console,
    offset: KafkaOffset | None = None,
) -> None:
    """Show the chosen or the last commit of each pipeline. Raises HeadraceError when one has none, after the others."""
    explanations: dict[str, Explanation] = {}
    errors: list[HeadraceError] = []
    for name in names:
        try:
            explanations[name] = find_explanation(config, name, batch=batch, version=version, offset=offset)
        except HeadraceError as error:
            errors.append(error)
    if as_json and explanations:
        emit_whole({name: to_dict(explanation) for name, explanation in explanations.items()})
    else:
        show_pages([Group(*_page(name, explanation)) for name, explanation in explanations.items()], console)
    if errors:
        raise HeadraceError("\nheadrace: ".join(map(str, errors)))


def to_dict(explanation: Explanation) -> dict[str, Any]:
    """Describe the commit as JSON values."""
    entry = explanation.entry
    facts = entry.facts
    if entry.kind == "gap":
        return {"version": entry.version, "kind": "gap", **gap_record(facts), "why": gap_reason(facts["cause"])}
    if entry.kind != "batch":
        return {**facts, "version": entry.version, "at": iso(entry.logged_at), "why": describe_entry(entry.kind, facts)}
    sums = Totals()
    sums.add(facts)
    return {
        "version": entry.version,
        "kind": "batch",
        "at": iso(entry.logged_at),
        "why": batch_end_reason(facts),
        "rate_limit": facts.get("rate_limit"),
        **{name: facts[name] for name in _BATCH_FACTS},
        **{name: iso(facts[name]) for name in _TIMES if facts.get(name)},
        "records": {name: sums.records[name] for name in OUTCOMES},
        "specs": facts.get("specs"),
        "late_rows": sums.late_rows,
        "late_rows_by": sums.late.by_policy,
        "offsets_without_records": sums.offsets_without_records,
        "step_cpu_seconds": facts["seconds"],
        "phase_seconds": dict(explanation.phases),
    }


def _page(name: str, explanation: Explanation) -> list[RenderableType]:
    match explanation.entry.kind:
        case "batch":
            return _batch_page(name, explanation)
        case "gap":
            return _gap_page(name, explanation.entry)
        case _:
            return _other_page(name, explanation.entry)


def _head(name: str, subject: str, entry: Entry, verb: str) -> Text:
    return Text.assemble(
        (name, "bold"), f"  {subject}", (f", {verb}version {entry.version} at {instant(entry.logged_at)}", "dim")
    )


def _batch_page(name: str, explanation: Explanation) -> list[RenderableType]:
    entry = explanation.entry
    facts = entry.facts
    head = _head(name, f"batch {facts['batch']} of run {facts['run']}", entry, "committed as ")
    why = f"Its batch ended because {batch_end_reason(facts)}."
    delay = describe_rate_wait(facts)
    if delay:
        why += f" Before, {delay}."
    page: list[RenderableType] = [head, Text(why), "", _records_table(facts), "", _steps_table(facts), ""]
    if explanation.phases:
        page += [_phases_table(explanation.phases), ""]
    return [*page, _files_grid(facts)]


def _gap_page(name: str, entry: Entry) -> list[RenderableType]:
    facts = entry.facts
    why = f"{plural(gap_record(facts)['offsets'], 'offset')} gave no record because {gap_reason(facts['cause'])}."
    table = ruled_table("partition", "incarnation", "from", "to", "offsets")
    for offsets in facts["ranges"]:
        start = offsets["start"]
        end = offsets["end"]
        partition = f"{offsets['topic']}/{offsets['partition']}"
        table.add_row(partition, str(offsets["incarnation"]), f"{start:,}", f"{end:,}", f"{end - start:,}")
    gap_id = Text(f"gap record {facts['id']}", style="dim")
    return [_head(name, "gap", entry, "recorded as "), Text(why), "", table, "", gap_id]


def _other_page(name: str, entry: Entry) -> list[RenderableType]:
    rows = []
    for key, value in entry.facts.items():
        if key in ("kind", "format") or not isinstance(value, str | int | float):
            continue
        rows.append((key.replace("_", " "), value if isinstance(value, str) else f"{value:,}"))
    text = describe_entry(entry.kind, entry.facts)
    return [_head(name, entry.kind, entry, ""), Text(f"{text[0].upper()}{text[1:]}."), "", label_grid(rows, 3)]


def _records_table(facts: Mapping[str, Any]) -> Table:
    sums = Totals()
    sums.add(facts)
    read = sums.records["read"]
    table = ruled_table("records", "count", "share")
    for outcome in OUTCOMES[1:]:
        count = sums.records[outcome]
        style = "yellow" if count and outcome in ("dead_letters", "quarantined") else ""
        table.add_row(outcome.replace("_", " "), f"{count:,}", _share(count, read), style=style)
    table.add_row("read", f"{read:,}", "", style="bold")
    for spec, rules in sums.filtered.items():
        for rule, count in rules.items():
            table.add_row(f"filtered by {rule} of spec {spec}", f"{count:,}", _share(count, read))
    if sums.late_rows:
        table.add_row("late rows, wherever they went", f"{sums.late_rows:,}", _share(sums.late_rows, read))
    if sums.offsets_without_records:
        table.add_row("offsets without a record", f"{sums.offsets_without_records:,}", "", style="yellow")
    return table


def _steps_table(facts: Mapping[str, Any]) -> Table:
    step_seconds: Mapping[str, float] = facts["seconds"]
    seconds = sum(step_seconds.values())
    read = _count_read(facts)
    steps = [step for step in _STEPS if step in step_seconds]
    # Of another version of headrace.
    steps += sorted(step_seconds.keys() - set(_STEPS))
    table = ruled_table("step", "CPU s", "share", "µs/record")
    for step in steps:
        cpu_s = step_seconds[step]
        table.add_row(step, f"{cpu_s:.3f}", _share(cpu_s, seconds), _per_record(cpu_s, read))
    tasks = plural(facts["tasks"], "task")
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


def _files_grid(facts: Mapping[str, Any]) -> Table:
    rows: list[tuple[str, str]] = []
    read = _count_read(facts)
    if facts["value_bytes"] and read:
        bytes_per_record = facts["value_bytes"] / read
        rows.append(("read", f"{show_size(facts['value_bytes'])} of values, {bytes_per_record:.1f} bytes/record"))
    written = [plural(facts["files"], "file"), show_size(facts["bytes"])]
    if facts["rows"]:
        written.append(f"{facts['bytes'] / facts['rows']:.1f} bytes/row")
    written.append(plural(facts["buckets"], "bucket"))
    rows.append(("written", ", ".join(written)))
    if facts["dead_letter_files"]:
        dead_letters = plural(facts["dead_letter_files"], "file")
        rows.append(("dead letters", f"{dead_letters}, {show_size(facts['dead_letter_bytes'])}"))
    rows.append(("spilled", show_size(facts["spilled_bytes"])))
    if facts.get("specs"):
        rows.append(("event specs", f"version {facts['specs']['version']}"))
    if facts["event_time_min"] is not None:
        rows.append(("event times", f"from {instant(facts['event_time_min'])} to {instant(facts['event_time_max'])}"))
    return label_grid(rows, 3)


def _count_read(facts: Mapping[str, Any]) -> int:
    return sum(account.get("read", 0) for account in facts["ranges"])


def _share(part: float, total: float) -> str:
    if not total:
        return ""
    share = part / total
    is_extreme = 0 < share < _SMALL_SHARE or 1 - _SMALL_SHARE < share < 1
    return f"{share:.4%}" if is_extreme else f"{share:.1%}"


def _per_record(seconds: float, records: int) -> str:
    return f"{seconds / records * 1e6:.2f}" if records else ""


def explain(
    config: ConfigFile,
    pipeline: Pipelines = None,
    batch: Annotated[int | None, typer.Option("--batch", min=0, help="The newest commit of this batch.")] = None,
    version: Annotated[
        int | None, typer.Option("--version", min=0, help="The entry of this table version, whatever it is.")
    ] = None,
    offset: Annotated[
        str | None, typer.Option("--offset", help="The commit that holds it, such as clicks/0:1234.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a batch was committed when it was and what it cost, or what another entry of the log did.

    Without options: the last commit. Reads the lake only.

    Exit codes: 0 shown, 1 a pipeline has no such commit, 2 configuration.
    """
    settings = load(config)
    run_explain(
        settings,
        settings.chosen(pipeline),
        batch=batch,
        version=version,
        offset=_parse_offset(offset),
        as_json=as_json,
        console=Console(highlight=False),
    )


def _parse_offset(text: str | None) -> KafkaOffset | None:
    if text is None:
        return None
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is no offset; write clicks/0:1234", param_hint="--offset")
    topic, partition, offset = match.groups()
    return KafkaOffset(topic, int(partition), int(offset))
