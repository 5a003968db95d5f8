"""What `headrace gaps` does and shows."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from uuid import uuid4

import typer
from rich.console import Console

from recovery import identity
from writer.clients.kafka_sample import asked
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.core.units import to_iso
from writer.offsets import skip_to_latest, start_decision
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, Pipelines
from writer.output.tables import console
from writer.table.factory import existing_table
from writer.table.gap_claims import BackfillLock, BackfillLocks
from writer.table.gap_records import gap_records, named, standing
from writer.table.ledger.gap_record import GapRecord
from writer.table.log.operations import Loss

_SHOWN = 8  # characters of an id, for a person


class NotOpen(ConfigError):
    """The gap has ended already."""


def run_list(
    config: Config, names: Sequence[str], *, everything: bool, now: datetime, as_json: bool, out: Console
) -> int:
    """List the tickets. Returns 1 while one is open."""
    found: dict[str, list[tuple[GapRecord, BackfillLock | None]]] = {}
    for name in names:
        table = existing_table(name, config)
        claims = BackfillLocks(table.store)
        found[name] = [
            (one, _standing(claims, one, now))
            for one in gap_records(table, name).values()
            if everything or one.state == "open"
        ]
    some_open = any(one.state == "open" for each in found.values() for one, _ in each)
    if as_json:
        tables.emit_whole({"pipelines": {name: [to_dict(*one) for one in each] for name, each in found.items()}})
        return int(some_open)
    columns = [tables.Column(title, right=title in ("offsets", "left")) for title in (
        "pipeline", "gap", "state", "opened", "cause", "offsets", "left", "by",
    )]  # fmt: skip
    rows = [_row(name, one, claim) for name, each in found.items() for one, claim in each]
    if rows:
        tables.TextTable(out, columns).add(rows)
        out.print()
    count = sum(one.state == "open" for each in found.values() for one, _ in each)
    tables.sentence(
        out,
        f"{plural(count, 'gap')} open; `headrace backfill` brings what was skipped." if count else "No gap is open.",
    )
    return int(some_open)


def run_show(config: Config, name: str, gap: str, *, now: datetime, as_json: bool, out: Console) -> int:
    """Show one ticket."""
    table = existing_table(name, config)
    one = named(gap_records(table, name), gap)
    document = to_dict(one, _standing(BackfillLocks(table.store), one, now))
    if as_json:
        tables.emit_whole(document)
        return 0
    out.print(f"[bold]gap {one.id}[/bold]  {document['state']}", soft_wrap=True)
    for key in ("opened_at", "cause", "reason", "opened_by", "claimed_by", "offsets", "left", "rows", "unplaced"):
        if document[key]:
            out.print(f"{key.replace('_', ' '):<11} {document[key]}", soft_wrap=True, markup=False)
    for title, ranges in (("skipped", document["ranges"]), ("open", document["open"])):
        for r in ranges:
            where = f"{r['topic']}/{r['partition']} of incarnation {r['incarnation']}"
            out.print(f"{title:<11} {where} [{r['start']:,}, {r['end']:,})", soft_wrap=True, markup=False)
    for hint in document["hints"]:
        start = hint["from"] or "the beginning"
        out.print(f"{'event time':<11} from {start} to {hint['until']}", soft_wrap=True, markup=False)
    if one.ended:
        out.print(f"{'ended':<11} {document['ended']}", soft_wrap=True, markup=False)
    return 0


def run_close(
    config: Config, name: str, gap: str, *, reason: str, by: str | None, now: datetime, as_json: bool, out: Console
) -> int:
    """Give up what is open of a ticket. Raises NotOpen, Overtaken, CommitFailed."""
    table = existing_table(name, config)
    snapshot, found = standing(table, name)
    one = named(found, gap)
    if one.state != "open":
        raise NotOpen(f"gap {one.id[:_SHOWN]} is {one.state} already.")
    if not reason.strip():
        raise ConfigError("--reason is empty; say why nobody will bring the records")
    left = sum(r.end - r.start for r in one.left())
    about = {"by": by or identity.person(), "reason": reason, "at": now.isoformat()}
    version = table.give_up(snapshot, Loss(uuid4().hex, one.id, snapshot.changes(one.id), left, about))
    if as_json:
        tables.emit_whole({"gap": one.id, "state": "lost", "offsets": left, "version": version})
    else:
        tables.sentence(out, f"{plural(left, 'offset')} given up, as version {version} of the table: {reason}")
    return 0


def run_open(
    config: Config, name: str, *, reason: str, by: str | None, write: bool, fence: bool, now: datetime, as_json: bool,
    out: Console,
) -> int:  # fmt: skip
    """Skip to the latest records, or show what that would do. Raises as `latest.skip` does."""
    if not reason.strip():
        raise ConfigError("--reason is empty; say why what waits is to be skipped")
    found = skip_to_latest.look(config, name, asked(config.kafka), "person")
    if isinstance(found.decision, start_decision.Refuse):
        raise ConfigError(found.decision.reason)
    ranges = found.decision.ranges if isinstance(found.decision, skip_to_latest.Skip) else ()
    offsets = sum(r.end - r.start for r in ranges)
    written = None
    if write:
        written = skip_to_latest.skip(
            config, name, found, by=by or identity.person(), reason=reason, now=now, fence=fence
        )
    if as_json:
        tables.emit_whole({
            "pipeline": name, "offsets": offsets, "kafka_holds": found.held, "ranges": [r.to_dict() for r in ranges],
            "gap": written[1].id if written else None, "version": written[0] if written else None,
        })  # fmt: skip
        return 0
    if not ranges:
        tables.sentence(out, f"{name}: nothing waits in Kafka; there is nothing to skip.")
        return 0
    for r in ranges:
        where = f"{r.part.topic}/{r.part.partition} [{r.start:,}, {r.end:,})"
        out.print(f"{where}  {plural(r.end - r.start, 'offset')}", soft_wrap=True, markup=False)
    tables.sentence(
        out,
        f"{name}: {plural(offsets, 'offset')} skipped, of which Kafka still holds {found.held:,}; gap "
        f"{written[1].id[:_SHOWN]}, version {written[0]} of the table. Start the pipeline, then `headrace backfill`."
        if written
        else f"{name}: {plural(offsets, 'offset')} would be skipped, of which Kafka still holds {found.held:,}. "
        "Nothing was written; the same with --yes writes it.",
    )
    return 0


def to_dict(one: GapRecord, claim: BackfillLock | None) -> dict[str, Any]:
    """Describe a ticket as JSON values."""
    known, left = one.opened, one.left()
    return {
        "id": one.id, "state": "claimed" if claim and one.state == "open" else one.state,
        "opened_at": known and to_iso(known.at), "opened_by": known and (known.by or "the writer"),
        "cause": known and known.cause, "reason": known and known.reason, "version": known and known.version,
        "topic_ids": dict(known.topic_ids) if known else {}, "offsets": one.offsets,
        "left": 0 if one.state == "done" and not left else sum(r.end - r.start for r in left),
        "rows": one.rows, "unplaced": one.unplaced, "files": one.files, "sources": list(one.sources),
        "approximate": one.unplaced > 0, "claimed_by": claim.by if claim else None,
        "ranges": [r.to_dict() for r in known.ranges] if known else [], "open": [r.to_dict() for r in left],
        "hints": [{"from": to_iso(h.start), "until": to_iso(h.end)} for h in known.hints] if known else [],
        "ended": one.ended and {**vars(one.ended), "at": to_iso(one.ended.at)},
    }  # fmt: skip


def _row(name: str, one: GapRecord, claim: BackfillLock | None) -> list[str]:
    document = to_dict(one, claim)
    by = document["claimed_by"] or (one.ended.by if one.ended else "") or document["opened_by"] or ""
    return [
        name, one.id[:_SHOWN], document["state"], (document["opened_at"] or "?")[:19], document["cause"] or "?",
        f"{one.offsets:,}", f"{document['left']:,}", by,
    ]  # fmt: skip


def _standing(claims: BackfillLocks, one: GapRecord, now: datetime) -> BackfillLock | None:
    found = claims.newest(one.id) if one.state == "open" else None
    return found if found and found.stands(now) and not identity.gone(found.by) else None


gaps = typer.Typer(no_args_is_help=True, help="Gaps: offsets that were skipped. List, show, open and close them.")

_By = Annotated[str | None, typer.Option("--by", help="Who. Default: this user at this machine.", show_default=False)]


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
    """List the gaps that are open: what was skipped, why, and who fills it at the moment. Reads the lake only.

    Exit codes: 0 none is open, 1 some are, or a table cannot be read, 2 configuration.
    """
    settings, now = load(config), datetime.now(UTC)
    names = settings.chosen(pipeline)
    raise typer.Exit(run_list(settings, names, everything=all_, now=now, as_json=as_json, out=console()))


@gaps.command()
def show(
    config: ConfigFile,
    gap: Annotated[str, typer.Argument(help="Id of the ticket, or its beginning.")],
    pipeline: OnePipeline = None,
    as_json: AsJson = False,
) -> None:
    """Show one gap: its ranges, where in event time its records may lie, what was brought and what is open.

    Exit codes: 0 shown, 1 the table cannot be read, 2 configuration, or no such gap.
    """
    settings, now = load(config), datetime.now(UTC)
    name = settings.one(pipeline)
    raise typer.Exit(run_show(settings, name, gap, now=now, as_json=as_json, out=console()))


@gaps.command()
def close(
    config: ConfigFile,
    gap: Annotated[str, typer.Argument(help="Id of the ticket, or its beginning.")],
    reason: Annotated[str, typer.Option("--reason", help="Why nobody will bring its records.")],
    lost: Annotated[bool, typer.Option("--lost", help="Yes: what is open of it is given up.")] = False,
    pipeline: OnePipeline = None,
    by: _By = None,
    as_json: AsJson = False,
) -> None:
    """Give up what is open of a gap: nobody has its records. Buckets that it touches are sealed, and say so.

    There is no way back. A gap that is filled closes by itself.

    Exit codes: 0 closed, 1 somebody changed it meanwhile, or the storage does not answer, 2 configuration, or it is not
    open.
    """
    settings, now = load(config), datetime.now(UTC)
    if not lost:
        raise ConfigError("closing a gap gives its records up: say so with --lost. `headrace backfill` brings them.")
    name = settings.one(pipeline)
    raise typer.Exit(run_close(settings, name, gap, reason=reason, by=by, now=now, as_json=as_json, out=console()))


@gaps.command("open")
def open_(
    config: ConfigFile,
    reason: Annotated[str, typer.Option("--reason", help="Why what waits is to be skipped.")],
    to: Annotated[Literal["latest"], typer.Option("--to", help="Up to where: the end of Kafka's log.")] = "latest",
    pipeline: OnePipeline = None,
    yes: Annotated[bool, typer.Option("--yes", help="Write it. Without, it is only shown.")] = False,
    fence: Annotated[
        bool, typer.Option("--fence", help="Also while a driver runs: the entry fences it, its next commit is exit 4.")
    ] = False,
    by: _By = None,
    as_json: AsJson = False,
) -> None:
    """Skip all that waits in Kafka, as the last resort: the table reads on at the end, and a gap says what it skipped.

    One entry of the table's log moves the frontier and carries the gap. Then start the pipeline, and bring the records
    with `headrace backfill` while it runs.

    Exit codes: 0 shown or written, 1 a driver runs or Kafka does not answer, 2 configuration, or it cannot be skipped,
    4 somebody committed meanwhile.
    """
    settings, now = load(config), datetime.now(UTC)
    name = settings.one(pipeline)
    assert to == "latest"
    code = run_open(
        settings, name, reason=reason, by=by, write=yes, fence=fence, now=now, as_json=as_json, out=console()
    )
    raise typer.Exit(code)
