"""`headrace gaps`: lists, shows, opens and closes gaps."""

from collections.abc import Mapping, Sequence
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
from writer.table.log.operations import Gap, Loss
from writer.table.table import PipelineTable

_SHOWN = 8  # characters of an id, for a person


class NotOpen(ConfigError):
    """The gap has ended already."""


def to_dict(one: GapRecord, claimed_by: str | None) -> dict[str, Any]:
    """Describe a gap record as JSON values."""
    known, left = one.opened, one.left()
    return {
        "id": one.id, "state": "claimed" if claimed_by else one.state,
        "opened_at": known and to_iso(known.at), "opened_by": known and (known.by or "the writer"),
        "cause": known and known.cause, "reason": known and known.reason, "version": known and known.version,
        "topic_ids": dict(known.topic_ids) if known else {}, "offsets": one.offsets,
        "left": 0 if one.state == "done" and not left else sum(r.end - r.start for r in left),
        "rows": one.rows, "unplaced": one.unplaced, "files": one.files, "sources": list(one.sources),
        "approximate": one.unplaced > 0, "claimed_by": claimed_by,
        "ranges": [r.to_dict() for r in known.ranges] if known else [], "open": [r.to_dict() for r in left],
        "hints": [{"from": to_iso(h.start), "until": to_iso(h.end)} for h in known.hints] if known else [],
        "ended": one.ended and {**vars(one.ended), "at": to_iso(one.ended.at)},
    }  # fmt: skip


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    by = one["claimed_by"] or (one["ended"] or {}).get("by") or one["opened_by"] or ""
    return [
        name, one["id"][:_SHOWN], one["state"], instant(one["opened_at"]) if one["opened_at"] else "?",
        one["cause"] or "?", f"{one['offsets']:,}", f"{one['left']:,}", by,
    ]  # fmt: skip


def _claimed_by(table: PipelineTable, one: GapRecord, now: datetime) -> str | None:
    found = BackfillLocks(table.store).newest(one.id) if one.state == "open" else None
    return found.owner if found and found.is_valid(now) and not identity.is_gone(found.owner) else None


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
    settings, now, out = load(config), datetime.now(UTC), console()
    found: dict[str, list[dict[str, Any]]] = {}
    for name in settings.chosen(pipeline):
        table = existing_table(name, settings)
        meant = [one for one in gap_records(table, name).values() if all_ or one.state == "open"]
        found[name] = [to_dict(one, _claimed_by(table, one, now)) for one in meant]
    count = sum(one["state"] in ("open", "claimed") for each in found.values() for one in each)
    if as_json:
        tables.emit_whole({"pipelines": found})
        raise typer.Exit(int(count > 0))
    columns = [tables.Column(title, right=title in ("offsets", "left")) for title in (
        "pipeline", "gap", "state", "opened", "cause", "offsets", "left", "by",
    )]  # fmt: skip
    if rows := [_row(name, one) for name, each in found.items() for one in each]:
        tables.TextTable(out, columns).add(rows)
        out.print()
    tables.sentence(
        out,
        f"{plural(count, 'gap')} open; `headrace backfill` brings what was skipped." if count else "No gap is open.",
    )
    raise typer.Exit(int(count > 0))


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
    settings, now, out = load(config), datetime.now(UTC), console()
    name = settings.one(pipeline)
    table = existing_table(name, settings)
    one = find_gap_record(gap_records(table, name), gap)
    document = to_dict(one, _claimed_by(table, one, now))
    if as_json:
        tables.emit_whole(document)
        return
    out.print(f"[bold]gap {one.id}[/bold]  {document['state']}", soft_wrap=True)
    rows = [
        (key.replace("_", " "), instant(document[key]) if key == "opened_at" and document[key] else document[key])
        for key in ("opened_at", "cause", "reason", "opened_by", "claimed_by", "offsets", "left", "rows", "unplaced")
    ]
    for title, ranges in (("skipped", document["ranges"]), ("open", document["open"])):
        for r in ranges:
            where = f"{r['topic']}/{r['partition']} of incarnation {r['incarnation']}"
            rows.append((title, f"{where} [{r['start']:,}, {r['end']:,})"))
    rows += [
        ("event time", f"from {instant(h['from']) if h['from'] else 'the beginning'} to {instant(h['until'])}")
        for h in document["hints"]
    ]
    for label, text in [*rows, ("ended", document["ended"])]:
        if text:
            out.print(f"{label:<11} {text}", soft_wrap=True, markup=False)


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
    about = {"by": by or identity.person(), "reason": reason, "at": datetime.now(UTC).isoformat()}
    work = partial(_run_close, existing_table(name, settings), name, gap, about, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _run_close(
    table: PipelineTable, name: str, gap: str, about: Mapping[str, str], *, write: bool, as_json: bool
) -> bool:
    """Show what would be given up of a gap, or give it up. Raises NotOpen, CommitFailed."""
    snapshot, found = gap_records_in_snapshot(table, name)
    one = find_gap_record(found, gap)
    if one.state != "open":
        raise NotOpen(f"gap {one.id[:_SHOWN]} is {one.state} already.")
    open_ranges, version = one.left(), None
    left = sum(r.end - r.start for r in open_ranges)
    if write:
        version = table.give_up(snapshot, Loss(uuid4().hex, one.id, snapshot.gap_changes(one.id), left, about))
    if as_json:
        state = "open" if version is None else "lost"
        tables.emit_whole({"gap": one.id, "state": state, "offsets": left, "version": version})
    elif version is None:
        _show_ranges(open_ranges)
        tables.sentence(console(), f"{plural(left, 'offset')} of gap {one.id[:_SHOWN]} would be given up: nobody "
                        "brings them. `headrace backfill` does, where a copy is left.")  # fmt: skip
    else:
        tables.sentence(
            console(), f"{plural(left, 'offset')} given up, as version {version} of the table: {about['reason']}"
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
    work = partial(_run_open, settings, name, reason, by, fence=fence, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _run_open(settings: Config, name: str, reason: str, by: str, *, fence: bool, write: bool, as_json: bool) -> bool:
    """Show what would be skipped, or skip it. Raises ConfigError where nothing may be skipped, HeadraceError."""
    found = skip_to_latest.look(settings, name, open_cluster(settings.kafka), "person")
    if isinstance(found.decision, start_decision.Refuse):
        raise ConfigError(found.decision.reason)
    ranges = found.decision.ranges if isinstance(found.decision, skip_to_latest.Skip) else ()
    written = None
    if write:
        written = skip_to_latest.skip(settings, name, found, by=by, reason=reason, now=datetime.now(UTC), fence=fence)
    _show_skip(name, found.held, ranges, written, as_json=as_json)
    return bool(ranges)


def _show_ranges(ranges: Sequence[OffsetRange]) -> None:
    for r in ranges:
        where = f"{r.part.topic}/{r.part.partition} [{r.start:,}, {r.end:,})"
        console().print(f"{where}  {plural(r.end - r.start, 'offset')}", soft_wrap=True, markup=False)


def _show_skip(
    name: str, held: int, ranges: Sequence[OffsetRange], written: tuple[int, Gap] | None, *, as_json: bool
) -> None:
    """Show what is skipped, or would be. `held`: offsets of it that Kafka still holds; `written`: version and gap."""
    offsets, out = sum(r.end - r.start for r in ranges), console()
    if as_json:
        tables.emit_whole({
            "pipeline": name, "offsets": offsets, "kafka_holds": held, "ranges": [r.to_dict() for r in ranges],
            "gap": written[1].id if written else None, "version": written[0] if written else None,
        })  # fmt: skip
        return
    if not ranges:
        tables.sentence(out, f"{name}: nothing waits in Kafka; there is nothing to skip.")
        return
    _show_ranges(ranges)
    tables.sentence(
        out,
        f"{name}: {plural(offsets, 'offset')} skipped, of which Kafka still holds {held:,}; gap "
        f"{written[1].id[:_SHOWN]}, version {written[0]} of the table. Start the pipeline, then `headrace backfill`."
        if written
        else f"{name}: {plural(offsets, 'offset')} would be skipped, of which Kafka still holds {held:,}.",
    )
