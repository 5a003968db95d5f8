"""`headrace reprocess`: makes the rows of buckets anew from their records, by the schemas and rules of today."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from recovery.reprocess.bucket_swap import BucketOutcome
from recovery.reprocess.run import (
    BucketPreview,
    Origin,
    Preview,
    ReprocessRequest,
    ReprocessResult,
    ReprocessRun,
    SourceChoice,
)
from writer.config.loader import load
from writer.core.text import plural
from writer.output import tables
from writer.output.cli_options import By, ConfigFile, OnePipeline, buckets_help, json_option
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, numbers
from writer.schemas.registry import source
from writer.sealing.manifest import bucket_path

_TITLES = ("read", "stay", "moved", "dead letters", "filtered", "no record", "version")


def reprocess(
    config: ConfigFile,
    buckets: Annotated[str, typer.Option("--buckets", help=buckets_help("The buckets"))],
    origin: Annotated[
        Origin, typer.Option("--from", help="Where the records come from; raw: the pipeline's raw table (table.raw).")
    ],
    pipeline: OnePipeline = None,
    archive: Annotated[
        list[str] | None,
        typer.Option("--archive", metavar="LOCATION", help="With --from archive: its files; may be repeated."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="With --from archive: its columns, such as offset=kafka_offset,value=body."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.1, help="At most so many records a second.")] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    by: By = None,
    as_json: Annotated[bool, json_option("a line for each bucket, and one at the end")] = False,
) -> None:
    """Make the rows of buckets anew from their records, by the schemas, event-time rules and specs of today.

    Start the writer with the corrected configuration first; it goes on meanwhile. The records at the offsets of these
    buckets' rows are decoded again, and each bucket is swapped in one commit. Rows may move to other buckets or become
    dead letters; dead letters at these offsets are replayed. What left the table by a delete or a retention stays out.
    Sealed buckets that change are reopened, and get a next manifest. If the command is interrupted, run it again.

    Exit codes: 0 done, or it was only shown, 1 the source lacks records of some rows, which stay as they are, or
    something does not answer, 2 configuration, 5 too many failed records.
    """
    settings = load(config)
    out = console()
    request = ReprocessRequest(buckets, SourceChoice(origin, tuple(archive or ()), columns), rate, by or "")
    run = ReprocessRun(settings.one(pipeline), settings, source(settings.registry), request)

    def work(*, write: bool) -> bool:
        if not write:
            return show_preview(run, run.preview(), as_json=as_json, out=out)
        # The live writer comes first where both share a machine.
        os.nice(5)
        listener, on_wait = _listeners(run, as_json=as_json, out=out)
        result = run.run(datetime.now(UTC), listener, on_wait)
        raise typer.Exit(show_result(run, result, as_json=as_json, out=out))

    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _listeners(
    run: ReprocessRun, *, as_json: bool, out: Console
) -> tuple[Callable[[BucketOutcome], None], Callable[[str], None]]:
    """Return what shows each bucket that is done, and why the command waits."""
    if as_json:
        facts = {"pipeline": run.name}
        return (
            lambda outcome: tables.emit({"event": "bucket", **facts, **to_dict(outcome)}),
            lambda why: tables.emit({"event": "waits", **facts, "reason": why}),
        )
    table = TextTable(out, [Column("bucket", width_min=20), *numbers(*_TITLES)])
    return lambda outcome: table.add([_line(outcome, run.columns)]), lambda why: out.log(f"waits: {why}")


def to_dict(outcome: BucketOutcome) -> Mapping[str, Any]:
    """Describe what became of a bucket as JSON values."""
    document = {key: value for key, value in vars(outcome).items() if key != "paths"}
    document["bucket"] = list(outcome.bucket)
    document["into"] = [{"bucket": list(bucket), "rows": rows} for bucket, rows in outcome.into.items()]
    return document


def show_preview(run: ReprocessRun, preview: Preview, *, as_json: bool, out: Console) -> bool:
    """Show what would be read. Returns whether there is anything."""
    rows = sum(bucket.rows for bucket in preview.buckets)
    if as_json:
        buckets = [{**vars(bucket), "bucket": list(bucket.bucket)} for bucket in preview.buckets]
        tables.emit_whole({"pipeline": run.name, "buckets": buckets, "dead_letters": preview.dead_letters})
        return bool(rows)
    if not rows:
        tables.sentence(out, f"{run.name}: no bucket that is meant has rows; `headrace buckets` lists them.")
        return False
    lines = [
        [_bucket_name(bucket, run.columns), f"{bucket.rows:,}", f"{bucket.available:,}", f"{bucket.unplaced:,}"]
        for bucket in preview.buckets
    ]
    table = TextTable(out, [Column("bucket", width_min=20), *numbers("rows", "records there", "without offset")])
    table.add(lines)
    tables.sentence(
        out,
        f"{run.name}: the records of {plural(rows, 'row')} in {plural(len(preview.buckets), 'bucket')} would be read, "
        f"and {plural(preview.dead_letters, 'dead letter')} between their offsets replayed. How many rows change, "
        "move or become dead letters is known once they are decoded: a bucket whose rows come out the same is not "
        "written.",
    )
    return True


def show_result(run: ReprocessRun, result: ReprocessResult, *, as_json: bool, out: Console) -> int:
    """Show what became of all. Returns 1 when the source lacks records of some rows."""
    absent = sum(outcome.absent for outcome in result.buckets)
    unplaced = sum(outcome.unplaced for outcome in result.buckets)
    changes = [outcome for outcome in result.buckets if outcome.version is not None]
    replay = result.dead_letters
    if as_json:
        tables.emit(
            {
                "event": "ended",
                "pipeline": run.name,
                "buckets": len(result.buckets),
                "changed": len(changes),
                "absent": absent,
                "replayed": {"dead_letters": replay.chosen, "rows": replay.rows},
            }
        )
        return int(absent > 0)
    moved = sum(outcome.moved for outcome in changes)
    tables.sentence(
        out,
        f"{run.name}: {len(changes):,} of {plural(len(result.buckets), 'bucket')} changed, {plural(moved, 'row')} "
        f"moved to other buckets; of {plural(replay.chosen, 'dead letter')} {replay.rows:,} became rows.",
        "bold",
    )
    if absent:
        tables.sentence(
            out,
            f"The source has no records of {plural(absent, 'row')}: they stay as they are. Run it again with another "
            "--from.",
            "yellow",
        )
    if unplaced:
        tables.sentence(out, f"{plural(unplaced, 'row')} say no offset, and stay as they are.")
    return int(absent > 0)


def _bucket_name(bucket: BucketOutcome | BucketPreview, columns: Sequence[str]) -> str:
    path = bucket_path(columns, bucket.bucket)
    return f"{path} (late table)" if bucket.late else path


def _line(outcome: BucketOutcome, columns: Sequence[str]) -> list[str]:
    """Return the cells of a bucket, in the order of _TITLES."""
    dead_letters = outcome.dead_letters + outcome.quarantined
    counts = (outcome.rows, outcome.stay, outcome.moved, dead_letters, outcome.filtered, outcome.absent)
    version = "-" if outcome.version is None else str(outcome.version)
    return [_bucket_name(outcome, columns), *(f"{count:,}" for count in counts), version]
