"""`headrace gaps`: lists, shows, opens and closes gaps."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4

import typer

from recovery import identity
from writer.cli.config_command import ConfigCommand
from writer.clients.kafka_sample import open_cluster
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.offsets import OffsetRange
from writer.core.text import instant, plural
from writer.core.units import to_iso
from writer.offsets import skip_to_latest, start_decision
from writer.output import tables
from writer.output.cli_options import AsJson, By, ConfigFile, OnePipeline, Pipelines
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.table.backfill_locks import BackfillLocks
from writer.table.factory import existing_table
from writer.table.gap_records import find_gap_record, gap_records, gap_records_in_snapshot
from writer.table.ledger.gap_record import GapRecord
from writer.table.log.operations.gaps import Gap, Loss
from writer.table.table import PipelineTable

# Characters of an id, for a person.
_ID_LENGTH = 8
_COLUMNS = [
    tables.Column("pipeline"),
    tables.Column("gap"),
    tables.Column("state"),
    tables.Column("opened"),
    tables.Column("cause"),
    tables.Column("offsets", right=True),
    tables.Column("left", right=True),
    tables.Column("by"),
]
# What `headrace gaps show` has of a gap, before its ranges.
_SHOWN_KEYS = ("opened_at", "cause", "reason", "opened_by", "claimed_by", "offsets", "left", "rows", "unplaced")


class NotOpen(ConfigError):
    """The gap has ended already."""


def to_dict(gap_record: GapRecord, claimed_by: str | None) -> dict[str, Any]:
    """Describe a gap record as JSON values. `claimed_by`: the process that fills it now."""
    opened = gap_record.opened
    topic_ids: dict[str, str] = {}
    ranges: list[dict[str, Any]] = []
    hints: list[dict[str, Any]] = []
    if opened:
        topic_ids = dict(opened.topic_ids)
        ranges = [r.to_json() for r in opened.ranges]
        hints = [{"from": to_iso(hint.start), "until": to_iso(hint.end)} for hint in opened.hints]
    open_offsets = gap_record.unfilled_offsets
    return {
        "id": gap_record.id,
        "state": "claimed" if claimed_by else gap_record.state,
        "opened_at": opened and to_iso(opened.opened_at),
        "opened_by": opened and (opened.by or "the writer"),
        "cause": opened and opened.cause,
        "reason": opened and opened.reason,
        "version": opened and opened.version,
        "topic_ids": topic_ids,
        "offsets": gap_record.offsets,
        "left": open_offsets.count,
        "rows": gap_record.rows,
        "unplaced": gap_record.unplaced,
        "files": gap_record.files,
        "sources": list(gap_record.sources),
        "approximate": gap_record.unplaced > 0,
        "claimed_by": claimed_by,
        "ranges": ranges,
        "open": [r.to_json() for r in open_offsets.ranges()],
        "hints": hints,
        "ended": gap_record.ended and gap_record.ended.to_json(),
    }


def _row(name: str, document: Mapping[str, Any]) -> list[str]:
    """Return the cells of a gap: of `headrace gaps list`."""
    by = document["claimed_by"] or (document["ended"] or {}).get("by") or document["opened_by"] or ""
    return [
        name,
        document["id"][:_ID_LENGTH],
        document["state"],
        instant(document["opened_at"]) if document["opened_at"] else "?",
        document["cause"] or "?",
        f"{document['offsets']:,}",
        f"{document['left']:,}",
        by,
    ]


def _lock_owner(table: PipelineTable, gap_record: GapRecord, now: datetime) -> str | None:
    """Return the process that fills a gap now; None: none does."""
    if gap_record.state != "open":
        return None
    lock = BackfillLocks(table.store).newest(gap_record.id)
    if lock is None or not lock.is_valid(now) or identity.is_gone(lock.owner):
        return None
    return lock.owner


gaps = typer.Typer(no_args_is_help=True, help="Gaps: offsets that were skipped. List, show, open and close them.")

_Gap = Annotated[str, typer.Argument(help="Id of the gap record, or its beginning.")]


@gaps.callback()
def _group() -> None:
    """Gaps: offsets that were skipped. List, show, open and close them."""


@gaps.command("list")
def list_(
    config: ConfigFile,
    pipeline: Pipelines = None,
    all_: Annotated[bool, typer.Option("--all", help="Also those that are done or lost.")] = False,
    as_json: AsJson = False,
) -> None:
    """List the gaps that are open: what was skipped, why, and which backfill fills it now. Reads the lake only.

    Exit codes: 0 none is open, 1 some are, or a table cannot be read, 2 configuration.
    """
    settings = load(config)
    now = datetime.now(UTC)
    documents: dict[str, list[dict[str, Any]]] = {}
    open_count = 0
    rows: list[list[str]] = []
    for name in settings.chosen(pipeline):
        table = existing_table(name, settings)
        selection = [record for record in gap_records(table, name).values() if all_ or record.state == "open"]
        documents[name] = [to_dict(gap_record, _lock_owner(table, gap_record, now)) for gap_record in selection]
        open_count += sum(document["state"] in ("open", "claimed") for document in documents[name])
        rows += [_row(name, document) for document in documents[name]]
    if as_json:
        tables.emit_whole({"pipelines": documents})
        raise typer.Exit(int(open_count > 0))
    out = console()
    if rows:
        tables.TextTable(out, _COLUMNS).add(rows)
        out.print()
    message = "No gap is open."
    if open_count:
        message = f"{plural(open_count, 'gap')} open; `headrace backfill` brings what was skipped."
    tables.sentence(out, message)
    raise typer.Exit(int(open_count > 0))


@gaps.command(cls=ConfigCommand)
def show(
    config: ConfigFile,
    gap: _Gap,
    pipeline: OnePipeline = None,
    as_json: AsJson = False,
) -> None:
    """Show one gap: its ranges, where in event time its records may lie, what was brought and what is open.

    Exit codes: 0 shown, 1 the table cannot be read, 2 configuration, or no such gap.
    """
    settings = load(config)
    name = settings.one(pipeline)
    table = existing_table(name, settings)
    gap_record = find_gap_record(gap_records(table, name), gap)
    document = to_dict(gap_record, _lock_owner(table, gap_record, datetime.now(UTC)))
    if as_json:
        tables.emit_whole(document)
        return
    out = console()
    out.print(f"[bold]gap {gap_record.id}[/bold]  {document['state']}", soft_wrap=True)
    for label, text in _labels(document):
        if text:
            out.print(f"{label:<11} {text}", soft_wrap=True, markup=False)


def _labels(document: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield what a gap has, each with its label. `document`: of `to_dict`."""
    for key in _SHOWN_KEYS:
        text = document[key]
        if key == "opened_at" and text:
            text = instant(text)
        yield key.replace("_", " "), text
    for title, ranges in (("skipped", document["ranges"]), ("open", document["open"])):
        for r in ranges:
            part = f"{r['topic']}/{r['partition']} of incarnation {r['incarnation']}"
            yield title, f"{part} [{r['start']:,}, {r['end']:,})"
    for hint in document["hints"]:
        start = instant(hint["from"]) if hint["from"] else "the beginning"
        yield "event time", f"from {start} to {instant(hint['until'])}"
    yield "ended", document["ended"]


@gaps.command(cls=ConfigCommand)
def close(
    config: ConfigFile,
    gap: _Gap,
    reason: Annotated[str, typer.Option("--reason", help="Why its records will not be brought back.")],
    pipeline: OnePipeline = None,
    by: By = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Give up what is open of a gap: its records are lost. Buckets that it touches are sealed, and say so.

    There is no way back. A gap that is filled closes by itself.

    Exit codes: 0 shown or closed, 1 another process changed it meanwhile, or the storage does not answer,
    2 configuration, or it is not open.
    """
    settings = load(config)
    name = settings.one(pipeline)
    if not reason.strip():
        raise ConfigError("--reason is empty; say why the records will not be brought back")
    facts = {"by": by or identity.person(), "reason": reason, "at": datetime.now(UTC).isoformat()}
    work = partial(close_gap, existing_table(name, settings), name, gap, facts, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def close_gap(
    table: PipelineTable, name: str, gap: str, facts: Mapping[str, str], *, write: bool, as_json: bool
) -> bool:
    """Show what would be given up of a gap, or give it up. Raises NotOpen, CommitFailed.

    `facts`: who closes it, why and when.
    """
    snapshot, records = gap_records_in_snapshot(table, name)
    gap_record = find_gap_record(records, gap)
    if gap_record.state != "open":
        raise NotOpen(f"gap {gap_record.id[:_ID_LENGTH]} is {gap_record.state} already.")
    open_offsets = gap_record.unfilled_offsets
    offsets = open_offsets.count
    version = None
    if write:
        loss = Loss(uuid4().hex, gap_record.id, snapshot.gap_changes(gap_record.id), offsets, facts)
        version = table.append(loss, snapshot)
    if as_json:
        state = "open" if version is None else "lost"
        tables.emit_whole({"gap": gap_record.id, "state": state, "offsets": offsets, "version": version})
    elif version is None:
        _show_ranges(open_offsets.ranges())
        tables.sentence(
            console(),
            f"{plural(offsets, 'offset')} of gap {gap_record.id[:_ID_LENGTH]} would be given up: nobody brings them. "
            "`headrace backfill` does, where a copy is left.",
        )
    else:
        tables.sentence(
            console(), f"{plural(offsets, 'offset')} given up, as version {version} of the table: {facts['reason']}"
        )
    return True


@gaps.command("open")
def open_(
    config: ConfigFile,
    reason: Annotated[str, typer.Option("--reason", help="Why what waits is to be skipped.")],
    to: Annotated[Literal["latest"], typer.Option("--to", help="Up to where: the end of Kafka's log.")] = "latest",
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    fence: Annotated[
        bool, typer.Option("--fence", help="Also while a driver runs: the entry fences it, its next commit is exit 4.")
    ] = False,
    by: By = None,
    as_json: AsJson = False,
) -> None:
    """Skip all that waits in Kafka, as the last resort: the table reads on at the end, and a gap says what it skipped.

    One entry of the table's log moves the frontier and carries the gap. Then start the pipeline, and bring the records
    with `headrace backfill` while it runs.

    Exit codes: 0 shown or written, 1 a driver runs or Kafka does not answer, 2 configuration, or it cannot be skipped,
    4 another process committed meanwhile.
    """
    settings = load(config)
    name = settings.one(pipeline)
    assert to == "latest"
    if not reason.strip():
        raise ConfigError("--reason is empty; say why what waits is to be skipped")
    by = by or identity.person()
    work = partial(open_gap, settings, name, reason, by, fence=fence, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def open_gap(settings: Config, name: str, reason: str, by: str, *, fence: bool, write: bool, as_json: bool) -> bool:
    """Show what would be skipped, or skip it. Raises ConfigError where nothing may be skipped, HeadraceError."""
    state = skip_to_latest.preview_skip(settings, name, open_cluster(settings.kafka), "person")
    if isinstance(state.decision, start_decision.Refuse):
        raise ConfigError(state.decision.reason)
    ranges: Sequence[OffsetRange] = ()
    if isinstance(state.decision, skip_to_latest.Skip):
        ranges = state.decision.ranges
    entry = None
    if write:
        entry = skip_to_latest.skip(settings, name, state, by=by, reason=reason, now=datetime.now(UTC), fence=fence)
    _show_skip(name, state.offsets_in_kafka, ranges, entry, as_json=as_json)
    return bool(ranges)


def _show_ranges(ranges: Sequence[OffsetRange]) -> None:
    for r in ranges:
        text = f"{r.part.name} [{r.start:,}, {r.end:,})  {plural(r.count, 'offset')}"
        console().print(text, soft_wrap=True, markup=False)


def _show_skip(
    name: str, available: int, ranges: Sequence[OffsetRange], entry: tuple[int, Gap] | None, *, as_json: bool
) -> None:
    """Show what is skipped, or would be.

    `available`: offsets of it that Kafka still holds; `entry`: version and gap; None: nothing was written.
    """
    offsets = sum(r.count for r in ranges)
    if as_json:
        tables.emit_whole(
            {
                "pipeline": name,
                "offsets": offsets,
                "kafka_holds": available,
                "ranges": [r.to_json() for r in ranges],
                "gap": entry[1].id if entry else None,
                "version": entry[0] if entry else None,
            }
        )
        return
    out = console()
    if not ranges:
        tables.sentence(out, f"{name}: nothing waits in Kafka; there is nothing to skip.")
        return
    _show_ranges(ranges)
    if entry is None:
        tables.sentence(
            out, f"{name}: {plural(offsets, 'offset')} would be skipped, of which Kafka still holds {available:,}."
        )
        return
    version, gap = entry
    tables.sentence(
        out,
        f"{name}: {plural(offsets, 'offset')} skipped, of which Kafka still holds {available:,}; gap "
        f"{gap.id[:_ID_LENGTH]}, version {version} of the table. Start the pipeline, then `headrace backfill`.",
    )
