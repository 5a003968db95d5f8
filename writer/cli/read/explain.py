"""`headrace explain`: why a batch was committed when it was, its cost, and the contents of other entries.

From the commit's own facts in the table's log: no driver need run, now or ever again.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from writer.audit.table_history import read
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import HeadraceError
from writer.core.text import describe_entry, held, instant, iso, lost, plural, reason
from writer.core.units import show_size
from writer.output.cli_options import AsJson, ConfigFile, Pipelines
from writer.output.tables import emit_whole, label_grid, ruled_table, show
from writer.status.document import gap_record
from writer.status.model import OUTCOMES, Totals
from writer.table.factory import existing_table
from writer.table.log.entries import Entry

# In the order of the line.
_STEPS = ("fetch", "skip", "raw", "split", "decode", "shape", "conform", "assign", "stage", "columnar")
_PHASES = {
    "wait": "between the batch before and this one",
    "look": "topics, table, redo, range",
    "queue": "behind batches of other pipelines",
    "tasks": "the steps, and Spark around them",
    "commit": "the table's commit",
    "redo": "the dead-letter table",
}
_PLACE = re.compile(r"([^/]+)/(\d+):(\d+)")
_TIMES = ("started", "assembled", "event_time_min", "event_time_max")
_LATER = ("commit", "redo")  # a commit cannot say what it will cost itself
_SMALL_SHARE = 0.001  # that would read 0.0 %, and what is left of it 100.0 %
_NEWEST = 50  # entries of the log that are looked at first: the last commit is nearly always there


@dataclass(frozen=True)
class Explanation:
    """One commit and what followed it: the next commit of the same driver knows what this one's commit cost."""

    entry: Entry
    phases: Mapping[str, float]  # wall seconds on the driver


class KafkaOffset(NamedTuple):
    """One offset of Kafka."""

    topic: str
    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}:{self.offset}"


def run_explain(
    config: Config, names: list[str], *, batch: int | None, version: int | None, as_json: bool, console: Console,
    offset: KafkaOffset | None = None,
) -> None:  # fmt: skip
    """Show the chosen or the last commit of each pipeline. Raises HeadraceError when one has none, after the others."""
    found, missing = dict[str, Explanation](), list[HeadraceError]()
    for name in names:
        try:
            found[name] = _find(config, name, batch, version, offset)
        except HeadraceError as error:
            missing.append(error)
    if as_json and found:
        emit_whole({name: to_dict(one) for name, one in found.items()})
    else:
        for i, (name, one) in enumerate(found.items()):
            show(Group(*([""] if i else []), *_page(name, one)), console)
    if missing:
        raise HeadraceError("\nheadrace: ".join(map(str, missing)))


def choose(
    entries: Sequence[Entry], *, batch: int | None, version: int | None, offset: KafkaOffset | None = None
) -> Explanation | None:
    """Pick a commit of the log (newest first): by version, by the newest batch of that number, or the last.

    `offset`: that it has to hold.
    """
    commits = [entry for entry in entries if entry.kind in ("batch", "gap") or version is not None]
    for i, entry in enumerate(commits):
        is_it = (version is None or entry.version == version) and (batch is None or entry.facts.get("batch") == batch)
        if is_it and (offset is None or _holds(entry.facts, offset)):
            following = next((later for later in reversed(commits[:i]) if later.kind in ("batch", "gap")), None)
            after = (following.facts.get("former") or {}) if following else {}
            later = after.get("phases", {}) if after.get("version") == entry.version else {}
            return Explanation(entry, {**entry.facts.get("phases", {}), **later})
    return None


def to_dict(one: Explanation) -> dict[str, Any]:
    """Describe the commit as JSON values."""
    facts = one.entry.facts
    if one.entry.kind == "gap":
        about = {**gap_record(facts), "why": lost(facts["cause"])}
        return {"version": one.entry.version, "kind": "gap", **about}
    if one.entry.kind != "batch":
        return {
            **facts,
            "version": one.entry.version,
            "at": iso(one.entry.logged_at),
            "why": describe_entry(one.entry.kind, facts),
        }
    sums = Totals()
    sums.add(facts)
    kept = (
        "run", "batch", "started", "assembled", "reason", "offsets", "waiting", "limits", "tasks", "value_bytes",
        "rows", "bytes", "files", "buckets", "dead_letter_files", "dead_letter_bytes", "spilled_bytes",
        "event_time_min", "event_time_max", "ranges",
    )  # fmt: skip
    return {
        "version": one.entry.version,
        "kind": "batch",
        "at": iso(one.entry.logged_at),
        "why": reason(facts),
        "rate_limit": facts.get("rate_limit"),
        **{name: facts[name] for name in kept},
        **{name: iso(facts[name]) for name in _TIMES if facts.get(name)},
        "records": {name: sums.records[name] for name in OUTCOMES},
        "specs": facts.get("specs"),
        "late_rows": sums.late_rows,
        "late_rows_by": sums.late.by_policy,
        "offsets_without_records": sums.offsets_without_records,
        "step_cpu_seconds": facts["seconds"],
        "phase_seconds": dict(one.phases),
    }


def _holds(facts: Mapping[str, Any], place: KafkaOffset) -> bool:
    ranges = facts.get("ranges", ()) if facts.get("kind") in ("batch", "gap") else ()
    mine = (r for r in ranges if (r["topic"], r["partition"]) == place[:2])
    return any(r["start"] <= place.offset < r["end"] for r in mine)


def _find(
    config: Config, name: str, batch: int | None, version: int | None, offset: KafkaOffset | None
) -> Explanation:  # fmt: skip
    place = config.pipelines[name].table.location
    table = existing_table(name, config)
    entries: list[Entry] = []
    for count in (_NEWEST, None) if batch is None and version is None else (None,):
        entries = table.history(count)
        one = choose(entries, batch=batch, version=version, offset=offset)
        if one is not None:
            return one
    if offset is not None:
        raise HeadraceError(_in_ledger(config, name, offset))
    raise HeadraceError(_missing(name, place, entries, batch, version))


def _in_ledger(config: Config, name: str, place: KafkaOffset) -> str:
    """Say what the ledger knows of an offset whose commit is no longer in the log."""
    kept = (one for page in read(config, name).rows.history for one in page.committed_ranges)
    mine = (one for one in kept if (one.part.topic, one.part.partition) == place[:2])
    found = [one for one in mine if one.start <= place.offset < one.end]
    if not found:
        return f"the table of pipeline {name!r} has no commit with {place}. `headrace status` says how far it has come."
    one = found[-1]
    if one.gap:
        return f"{place} lies in a gap, recorded in one of versions {one.first} to {one.last}; see `headrace gaps`"
    by = f"by version {one.specs} of the event specs" if one.specs else "without event specs"
    return (
        f"{place} was committed in one of versions {one.first} to {one.last} of the table, {by}; their entries are no "
        "longer in its log, so there is nothing more to explain"
    )


def _missing(name: str, place: str, entries: Sequence[Entry], batch: int | None, version: int | None) -> str:
    have = [entry for entry in entries if entry.kind == "batch"]
    known = entries if batch is None else have
    if not have:
        return (
            f"the table of pipeline {name!r} at {place} has no commit with records yet. `headrace status` tells more."
        )
    wanted = " of ".join(
        filter(None, ("" if version is None else f"version {version}", "" if batch is None else f"batch {batch}"))
    )
    return (
        f"the log of the table at {place} has no commit of pipeline {name!r} with {wanted}; it has versions "
        f"{known[-1].version} to {known[0].version}, the last is batch {have[0].facts['batch']} of run "
        f"{have[0].facts['run']}. Without --batch and --version, the last is explained."
    )


def _page(name: str, one: Explanation) -> list[RenderableType]:
    facts, at = one.entry.facts, one.entry.logged_at
    if one.entry.kind == "gap":
        return _gap_page(name, one.entry)
    if one.entry.kind != "batch":
        return _other_page(name, one.entry)
    head = Text.assemble((name, "bold"), f"  batch {facts['batch']} of run {facts['run']}")
    head.append(f", committed as version {one.entry.version} at {instant(at)}", style="dim")
    why = Text(f"Its batch ended because {reason(facts)}." + (f" Before, {late}." if (late := held(facts)) else ""))
    tables: list[RenderableType] = [_records(facts), _steps(facts), *([_phases(one.phases)] if one.phases else [])]
    return [head, why, "", *(part for table in tables for part in (table, "")), _files(facts)]


def _gap_page(name: str, entry: Entry) -> list[RenderableType]:
    facts = entry.facts
    head = Text.assemble(
        (name, "bold"), "  gap", (f", recorded as version {entry.version} at {instant(entry.logged_at)}", "dim")
    )
    why = Text(f"{plural(gap_record(facts)['offsets'], 'offset')} gave no record because {lost(facts['cause'])}.")
    table = ruled_table("partition", "incarnation", "from", "to", "offsets")
    for r in facts["ranges"]:
        table.add_row(
            f"{r['topic']}/{r['partition']}", str(r["incarnation"]), f"{r['start']:,}", f"{r['end']:,}",
            f"{r['end'] - r['start']:,}",
        )  # fmt: skip
    return [head, why, "", table, "", Text(f"gap record {facts['id']}", style="dim")]


def _other_page(name: str, entry: Entry) -> list[RenderableType]:
    head = Text.assemble(
        (name, "bold"), f"  {entry.kind}", (f", version {entry.version} at {instant(entry.logged_at)}", "dim")
    )
    rows = [
        (key.replace("_", " "), f"{value:,}" if isinstance(value, int | float) else value)
        for key, value in entry.facts.items()
        if isinstance(value, str | int | float) and key not in ("kind", "format")
    ]
    done = describe_entry(entry.kind, entry.facts)
    return [head, Text(f"{done[0].upper()}{done[1:]}."), "", label_grid(rows, 3)]


def _records(facts: Mapping[str, Any]) -> Table:
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


def _steps(facts: Mapping[str, Any]) -> Table:
    seconds: Mapping[str, float] = facts["seconds"]
    read = sum(account.get("read", 0) for account in facts["ranges"])
    known = [step for step in _STEPS if step in seconds] + sorted(seconds.keys() - set(_STEPS))
    table = ruled_table("step", "CPU s", "share", "µs/record")
    for step in known:
        table.add_row(
            step, f"{seconds[step]:.3f}", _share(seconds[step], sum(seconds.values())), _each(seconds[step], read)
        )
    table.add_row(
        f"all, in {plural(facts['tasks'], 'task')}", f"{sum(seconds.values()):.3f}", "",
        _each(sum(seconds.values()), read), style="bold",
    )  # fmt: skip
    return table


def _phases(phases: Mapping[str, float]) -> Table:
    table = ruled_table("driver", "wall s")
    table.add_column("", style="dim")
    for phase in [*_PHASES, *sorted(phases.keys() - _PHASES.keys())]:
        if phase in phases:
            table.add_row(phase, f"{phases[phase]:.3f}", _PHASES.get(phase, ""))
        elif phase in _LATER:
            table.add_row(phase, "-", f"{_PHASES[phase]}; known with this start's next commit")
    return table


def _files(facts: Mapping[str, Any]) -> Table:
    count, read = facts["rows"], sum(account.get("read", 0) for account in facts["ranges"])
    rows: list[tuple[str, str]] = []
    if facts["value_bytes"] and read:
        each = facts["value_bytes"] / read
        rows.append(("read", f"{show_size(facts['value_bytes'])} of values, {each:.1f} bytes/record"))
    out = [
        plural(facts["files"], "file"),
        show_size(facts["bytes"]),
        f"{facts['bytes'] / count:.1f} bytes/row" if count else "",
        plural(facts["buckets"], "bucket"),
    ]
    rows.append(("written", ", ".join(filter(None, out))))
    if facts["dead_letter_files"]:
        dead_letters = plural(facts["dead_letter_files"], "file")
        rows.append(("dead letters", f"{dead_letters}, {show_size(facts['dead_letter_bytes'])}"))
    rows.append(("spilled", show_size(facts["spilled_bytes"])))
    if facts.get("specs"):
        rows.append(("event specs", f"version {facts['specs']['version']}"))
    if facts["event_time_min"] is not None:
        rows.append(("event times", f"from {instant(facts['event_time_min'])} to {instant(facts['event_time_max'])}"))
    return label_grid(rows, 3)


def _share(part: float, whole: float) -> str:
    if not whole:
        return ""
    share = part / whole
    fine = 0 < share < _SMALL_SHARE or 1 - _SMALL_SHARE < share < 1
    return f"{share:.4%}" if fine else f"{share:.1%}"


def _each(seconds: float, records: int) -> str:
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
    settings, console = load(config), Console(highlight=False)
    place = _place(offset)
    run_explain(
        settings, settings.chosen(pipeline), batch=batch, version=version, offset=place, as_json=as_json,
        console=console,
    )  # fmt: skip


def _place(given: str | None) -> KafkaOffset | None:
    if given is None:
        return None
    if (found := _PLACE.fullmatch(given)) is None:
        raise typer.BadParameter(f"{given!r} is no offset; write clicks/0:1234", param_hint="--offset")
    return KafkaOffset(found[1], int(found[2]), int(found[3]))
