"""`headrace rewind`: undoes what was committed after a version, as far as Kafka still holds the records."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from recovery.rewind.execution import BucketPreview, RewindExecution, RewindPreview
from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.offsets import OffsetRange
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
        run,
        RewindExecution(settings, settings.one(pipeline)),
        settings,
        version_or_time("--to", to),
        accept_loss=accept_loss,
        now=datetime.now(UTC),
        as_json=as_json,
        out=console(),
    )
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def run(
    execution: RewindExecution,
    config: Config,
    to: int | datetime,
    *,
    write: bool,
    accept_loss: bool,
    now: datetime,
    as_json: bool,
    out: Console,
) -> bool:
    """Show a rewind, and write it if asked. Returns whether there is one. Raises HeadraceError, Exit when refused."""
    preview = execution.preview(to)
    version = None
    refusals = find_refusals(preview, accept_loss=accept_loss)
    if write and not refusals and preview.moves:
        preview, version = execution.write(preview, now)
    if as_json:
        tables.emit_whole(to_dict(execution.name, preview, version, refusals))
    else:
        records_loss = config.pipelines[execution.name].on_data_loss == "record"
        show(out, execution.name, preview, version, refusals, records_loss=records_loss)
    if write and refusals:
        raise typer.Exit(_REFUSED)
    return bool(preview.moves) and not refusals


def find_refusals(preview: RewindPreview, *, accept_loss: bool) -> list[str]:
    """Return why it is not done."""
    refusals = list(preview.plan.obstacles)
    if preview.plan.losses and not accept_loss:
        refusals.append(f"{preview.plan.losses}. --accept-loss gives them up; or choose a later version.")
    return refusals


def to_dict(name: str, preview: RewindPreview, version: int | None, refusals: list[str]) -> Mapping[str, Any]:
    """Describe it as JSON values."""
    plan = preview.plan
    written_at = preview.earlier.written_at
    return {
        "pipeline": name,
        "to": plan.to,
        "to_written_at": written_at and written_at.isoformat(),
        "table_version": preview.snapshot.version,
        "version": version,
        "refused": refusals,
        "offsets": plan.offsets,
        "rows": preview.rows,
        "files": preview.files,
        "dead_letter_table_rows": preview.dead_letters,
        "late_table_rows": preview.late,
        "raw_records": preview.raw_records,
        "gaps": list(plan.gaps),
        "taken_since": dict(preview.later.removed_rows),
        "undone": [vars(change) for change in preview.later.foreign_changes],
        "partitions": [_partition_to_dict(preview, r) for r in plan.ranges],
        "buckets": _buckets_to_dicts(preview.buckets),
        "targets": [
            {
                "name": target.record.name,
                "location": target.record.location,
                "rows": target.entry.rows,
                "late_table_rows": target.late,
                "buckets": _buckets_to_dicts(target.buckets),
            }
            for target in preview.targets
        ],
    }


def _partition_to_dict(preview: RewindPreview, r: OffsetRange) -> dict[str, Any]:
    log_range = preview.log_ranges.get(r.part.source)
    unreadable = {lost.part: (lost.start, lost.end) for lost in preview.plan.unreadable}
    return {
        **vars(r.part),
        "table_end": r.end,
        "back_to": r.start,
        "log_start": log_range and log_range.earliest,
        "log_end": log_range and log_range.end,
        "not_held": unreadable.get(r.part),
    }


def _buckets_to_dicts(buckets: Sequence[BucketPreview]) -> list[dict[str, Any]]:
    return [
        {
            "bucket": list(bucket.key),
            "rows": bucket.taken,
            "left": bucket.left,
            "manifest": bucket.manifest or None,
        }
        for bucket in buckets
    ]


def show(
    out: Console, name: str, preview: RewindPreview, version: int | None, refusals: list[str], *, records_loss: bool
) -> None:
    """Show it to a person. `records_loss`: the next start records what Kafka lost; else it stops."""
    plan = preview.plan
    written_at = preview.earlier.written_at
    when = f" ({instant(written_at)})" if written_at else ""
    if not preview.moves and not refusals:
        tables.sentence(out, f"{name}: no record landed after version {plan.to}{when}; there is nothing to take back.")
        return
    sentence = (
        f"{name}: from version {preview.snapshot.version} back to {plan.to}{when}: {plan.offsets:,} offsets, "
        f"{plural(preview.rows, 'row')} in {plural(preview.files, 'file')}, {plural(preview.dead_letters, 'row')} of "
        f"the dead-letter table, {plural(preview.late, 'row')} of the late table"
    )
    if preview.raw:
        sentence += f", {preview.raw_records:,} of the raw table"
    tables.sentence(out, f"{sentence}.")
    if plan.ranges:
        _show_partitions(out, preview)
    _show_buckets(out, preview)
    for note in notes(preview):
        tables.sentence(out, note)
    if version is not None:
        _show_version(out, preview, version, records_loss=records_loss)
        return
    for refusal in refusals:
        tables.sentence(out, f"Refused: {refusal}")
    if not refusals:
        tables.sentence(out, "Stop the driver, if one runs.")


def _show_version(out: Console, preview: RewindPreview, version: int, *, records_loss: bool) -> None:
    """Show what was written, and what to do next."""
    next_step = "Start the pipeline: it reads on where it was."
    if preview.plan.ranges:
        next_step = "Fix what was wrong, then start the pipeline: it reads these offsets again."
    tables.sentence(out, f"Written as version {version} of the table. {next_step}")
    if preview.plan.unreadable and not records_loss:
        tables.sentence(out, "It refuses to start while on_data_loss is `stop`: Kafka does not hold all of them.")


def notes(preview: RewindPreview) -> list[str]:
    """Return what else a person should know before."""
    plan = preview.plan
    undo = preview.undo
    deleted = preview.later.removed_rows.get("delete")
    sentences = []
    if undo:
        changes = " and ".join(map(str, undo.changes))
        sentences.append(
            f"What others did is undone: {changes}. {plural(len(undo.gone), 'file')} as they left them go, "
            f"{plural(len(undo.back), 'file')} of version {undo.base.version} come back."
        )
    if plan.unreadable:
        sentences.append(f"{plan.losses}: they become a gap at the next start.")
    if plan.gaps:
        sentences.append(
            f"{plural(len(plan.gaps), 'gap')} that opened since would be over; what Kafka lacks is a gap again."
        )
    if deleted:
        sentences.append(
            f"{plural(deleted, 'row')} were deleted by key since. Those that came after version {plan.to} are "
            "in Kafka: they come back, so run `headrace delete-rows` again."
        )
    if preview.later.replays:
        sentences.append("Dead letters were replayed since; rows of dead letters from before stay.")
    return sentences


def _show_partitions(out: Console, preview: RewindPreview) -> None:
    titles = ("goes back to", "table ends at", "offsets", "Kafka holds from", "to")
    columns = [
        tables.Column("partition", width_min=20),
        *(tables.Column(title, right=True) for title in titles),
        tables.Column(""),
    ]
    out.print()
    tables.TextTable(out, columns).add([_partition_cells(preview, r) for r in preview.plan.ranges])
    out.print()


def _partition_cells(preview: RewindPreview, r: OffsetRange) -> list[str]:
    cells = [r.part.full_name, f"{r.start:,}", f"{r.end:,}", f"{r.count:,}"]
    log_range = preview.log_ranges.get(r.part.source)
    cells += [f"{log_range.earliest:,}", f"{log_range.end:,}"] if log_range else ["-", "-"]
    unreadable = {lost.part: lost for lost in preview.plan.unreadable}
    lost = unreadable.get(r.part)
    cells.append(f"not held: [{lost.start}, {lost.end})" if lost else "")
    return cells


def _show_buckets(out: Console, preview: RewindPreview) -> None:
    bucket_columns = preview.snapshot.state.metadata["partitionColumns"]
    buckets = [(bucket_path(bucket_columns, bucket.key), bucket) for bucket in preview.buckets]
    for target in preview.targets:
        paths = [(bucket_path(target.columns, bucket.key), bucket) for bucket in target.buckets]
        buckets += [(f"{target.record.name}: {path}", bucket) for path, bucket in paths]
    if not buckets:
        return
    columns = [
        tables.Column("bucket", width_min=20),
        *(tables.Column(title, right=True) for title in ("rows go", "stay", "sealed")),
        tables.Column(""),
    ]
    tables.TextTable(out, columns).add([_bucket_cells(name, bucket) for name, bucket in buckets[:_BUCKETS_SHOWN]])
    if len(buckets) > _BUCKETS_SHOWN:
        tables.sentence(out, f"and {len(buckets) - _BUCKETS_SHOWN:,} more buckets (--json has all)")
    out.print()


def _bucket_cells(name: str, bucket: BucketPreview) -> list[str]:
    cells = [name, f"{bucket.taken:,}", f"{bucket.left:,}"]
    if not bucket.manifest:
        return [*cells, "-", ""]
    return [*cells, f"v{bucket.manifest}", f"reopened; its next manifest is v{bucket.manifest + 1}"]
