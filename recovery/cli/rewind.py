"""`headrace rewind`: undoes what was committed after a version, as far as Kafka still holds the records."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from recovery.rewind.execute import RewindExecution, RewindPreview
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.text import instant, plural
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, version_or_time
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.sealing.manifest import bucket_path

_BUCKETS_SHOWN = 20
_REFUSED = 2


def rewind(
    config: ConfigFile,
    to: Annotated[
        str,
        typer.Option("--to", help="Version of the table, or a time: the newest version that was written by then."),
    ],
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Also where Kafka does not hold all of it any more: the next start records that as a gap.",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take back what landed after a version of the table: rows, dead letters and frontier together, by one entry.

    For wrong data: stop the driver, rewind, fix what was wrong, start again; the writer reads the same records anew.
    Rows go by their offsets, so what was deleted, compacted or dropped since stays so. Sealed buckets that it touches
    are reopened; their next manifest has the next version. What another client did since, and what the pipeline refused
    to go on from, such as UPDATE or RESTORE, is undone first.

    Exit codes: 0 shown or written, 1 a driver runs, another process wrote meanwhile, or Kafka does not answer, 2 it
    cannot be.
    """
    settings = load(config)
    work = partial(
        run, RewindExecution(settings, settings.one(pipeline)), settings, version_or_time("--to", to),
        accept_loss=accept_loss, now=datetime.now(UTC), as_json=as_json, out=console(),
    )  # fmt: skip
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def run(
    way: Any, config: Config, to: int | datetime, *, write: bool, accept_loss: bool, now: datetime, as_json: bool,
    out: Console,
) -> bool:  # fmt: skip
    """Show the way back, and go it if asked. Returns whether there is one. Raises HeadraceError, Exit when refused."""
    look, version = way.look(to), None
    refused = refusal(look, accept_loss=accept_loss)
    if write and not refused and look.moves:
        look, version = way.write(look, now)
    if as_json:
        tables.emit_whole(to_dict(way.name, look, version, refused))
    else:
        show(out, way.name, look, version, refused, records=config.pipelines[way.name].on_data_loss == "record")
    if write and refused:
        raise typer.Exit(_REFUSED)
    return bool(look.moves) and not refused


def refusal(look: RewindPreview, *, accept_loss: bool) -> list[str]:
    """Return why it is not done."""
    found = list(look.plan.obstacles)
    if look.plan.lossy and not accept_loss:
        found.append(f"{look.plan.lossy}. --accept-loss gives them up; or choose a later version.")
    return found


def to_dict(name: str, look: RewindPreview, version: int | None, refused: list[str]) -> Mapping[str, Any]:
    """Describe it as JSON values."""
    plan, unreadable = look.plan, {r.part: (r.start, r.end) for r in look.plan.unreadable}
    return {
        "pipeline": name, "to": plan.to, "to_written_at": look.then.at and look.then.at.isoformat(),
        "table_version": look.snapshot.version, "version": version, "refused": refused,
        "offsets": plan.offsets, "rows": look.rows, "files": look.files,
        "dead_letter_table_rows": look.dead_letters,
        "late_table_rows": look.late, "raw_records": look.raw_records,
        "gaps": list(plan.gaps), "taken_since": dict(look.since.taken),
        "undone": [vars(change) for change in look.since.foreign],
        "partitions": [
            {
                **vars(r.part), "table_end": r.end, "back_to": r.start,
                "log_start": held.earliest if (held := look.held.get((r.part.topic, r.part.partition))) else None,
                "log_end": held.end if held else None, "not_held": unreadable.get(r.part),
            }
            for r in plan.ranges
        ],
        "buckets": [
            {"bucket": list(one.key), "rows": one.taken, "left": one.left, "manifest": one.manifest or None}
            for one in look.buckets
        ],
        "targets": [
            {
                "name": target.record.name, "location": target.record.location,
                "rows": target.entry.rows, "late_table_rows": target.late,
                "buckets": [
                    {"bucket": list(one.key), "rows": one.taken, "left": one.left, "manifest": one.manifest or None}
                    for one in target.buckets
                ],
            }
            for target in look.targets
        ],
    }  # fmt: skip


def show(
    out: Console, name: str, look: RewindPreview, version: int | None, refused: list[str], *, records: bool
) -> None:
    """Show it to a person. `records`: the next start records what Kafka lost; else it stops."""
    plan = look.plan
    when = f" ({instant(look.then.at)})" if look.then.at else ""
    if not look.moves and not refused:
        tables.sentence(out, f"{name}: no record landed after version {plan.to}{when}; there is nothing to take back.")
        return
    tables.sentence(
        out,
        f"{name}: from version {look.snapshot.version} back to {plan.to}{when}: {plan.offsets:,} offsets, "
        f"{plural(look.rows, 'row')} in {plural(look.files, 'file')}, {plural(look.dead_letters, 'row')} of the "
        f"dead-letter table, {plural(look.late, 'row')} of the late table"
        f"{f', {look.raw_records:,} of the raw table' if look.raw else ''}.",
    )
    if plan.ranges:
        _partitions(out, look)
    _buckets(out, look)
    for sentence in notes(look):
        tables.sentence(out, sentence)
    if version is not None:
        tables.sentence(
            out,
            f"Written as version {version} of the table. "
            + (
                "Fix what was wrong, then start the pipeline: it reads these offsets again."
                if plan.ranges
                else "Start the pipeline: it reads on where it was."
            ),
        )
        if plan.unreadable and not records:
            tables.sentence(out, "It refuses to start while on_data_loss is `stop`: Kafka does not hold all of them.")
        return
    for sentence in refused:
        tables.sentence(out, f"Refused: {sentence}")
    if not refused:
        tables.sentence(out, "Stop the driver, if one runs.")


def notes(look: RewindPreview) -> list[str]:
    """Return what else a person should know before."""
    plan, taken, undo = look.plan, look.since.taken, look.undo
    found = []
    if undo:
        changes = " and ".join(map(str, undo.changes))
        found.append(
            f"What others did is undone: {changes}. {plural(len(undo.gone), 'file')} as they left them go, "
            f"{plural(len(undo.back), 'file')} of version {undo.base.version} come back."
        )
    if plan.unreadable:
        found.append(f"{plan.lossy}: they become a gap at the next start.")
    if plan.gaps:
        found.append(
            f"{plural(len(plan.gaps), 'gap')} that opened since would be over; what Kafka lacks is a gap again."
        )
    if taken.get("delete"):
        found.append(
            f"{plural(taken['delete'], 'row')} were deleted by key since. Those that came after version {plan.to} are "
            "in Kafka: they come back, so run `headrace delete-rows` again."
        )
    if look.since.replays:
        found.append("Dead letters were replayed since; rows of dead letters from before stay.")
    return found


def _partitions(out: Console, look: RewindPreview) -> None:
    titles = ("goes back to", "table ends at", "offsets", "Kafka holds from", "to")
    columns = [
        tables.Column("partition", width_min=20),
        *(tables.Column(t, right=True) for t in titles),
        tables.Column(""),
    ]
    lost = {r.part: r for r in look.plan.unreadable}
    out.print()
    tables.TextTable(out, columns).add([
        [
            r.part.full_name, f"{r.start:,}", f"{r.end:,}", f"{r.end - r.start:,}",
            f"{held.earliest:,}" if (held := look.held.get((r.part.topic, r.part.partition))) else "-",
            f"{held.end:,}" if held else "-",
            f"not held: [{lost[r.part].start}, {lost[r.part].end})" if r.part in lost else "",
        ]
        for r in look.plan.ranges
    ])  # fmt: skip
    out.print()


def _buckets(out: Console, look: RewindPreview) -> None:
    own = look.snapshot.state.metadata["partitionColumns"]
    found = [(bucket_path(own, one.key), one) for one in look.buckets]
    found += [(f"{t.record.name}: {bucket_path(t.columns, one.key)}", one) for t in look.targets for one in t.buckets]
    if not found:
        return
    columns = [
        tables.Column("bucket", width_min=20),
        *(tables.Column(t, right=True) for t in ("rows go", "stay", "sealed")),
    ]
    tables.TextTable(out, [*columns, tables.Column("")]).add([
        [
            name, f"{one.taken:,}", f"{one.left:,}",
            f"v{one.manifest}" if one.manifest else "-",
            f"reopened; its next manifest is v{one.manifest + 1}" if one.manifest else "",
        ]
        for name, one in found[:_BUCKETS_SHOWN]
    ])  # fmt: skip
    if len(found) > _BUCKETS_SHOWN:
        tables.sentence(out, f"and {len(found) - _BUCKETS_SHOWN:,} more buckets (--json has all)")
    out.print()
