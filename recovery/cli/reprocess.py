"""`headrace reprocess`: makes the rows of buckets anew from their records, by the schemas and rules of today."""

import os
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from recovery.reprocess.bucket_swap import BucketOutcome
from recovery.reprocess.execute import BucketPreview, Preview, Reprocessing, ReprocessRequest, ReprocessResult
from recovery.reprocess.sources import Origin, SourceChoice
from writer.config.loader import load
from writer.core.text import plural
from writer.output import tables
from writer.output.cli_options import By, ConfigFile, OnePipeline, json_option
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, numbers
from writer.schemas.registry import source
from writer.sealing.manifest import bucket_path

_TITLES = ("read", "stay", "moved", "dead letters", "filtered", "no record", "version")


def reprocess(
    config: ConfigFile,
    buckets: Annotated[
        str,
        typer.Option(
            "--buckets",
            metavar="A..B",
            help="From one bucket to another, both included: 2026-11-20T05..2026-11-20T07; or one: 2026-11-20T05, "
            "hour=2026-11-20T05/country=DE.",
        ),
    ],
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
    settings, out = load(config), console()
    wanted = ReprocessRequest(buckets, SourceChoice(origin, tuple(archive or ()), columns), rate, by or "")
    doing = Reprocessing(settings.one(pipeline), settings, source(settings.registry), wanted)

    def work(*, write: bool) -> bool:
        if not write:
            return shown(doing, doing.look(), as_json=as_json, out=out)
        os.nice(5)  # the live writer comes first where both share a machine
        result = doing.run(datetime.now(UTC), *_listeners(doing, as_json=as_json, out=out))
        raise typer.Exit(ended(doing, result, as_json=as_json, out=out))

    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _listeners(
    doing: Reprocessing, *, as_json: bool, out: Console
) -> tuple[Callable[[BucketOutcome], None], Callable[[str], None]]:
    """Return what shows each bucket that is done, and why the command waits."""
    if as_json:
        about = {"pipeline": doing.name}
        return (
            lambda one: tables.emit({"event": "bucket", **about, **to_dict(one)}),
            lambda why: tables.emit({"event": "waits", **about, "reason": why}),
        )
    sheet = TextTable(out, [Column("bucket", width_min=20), *numbers(*_TITLES)])
    return lambda one: sheet.add([_line(one, doing.columns)]), lambda why: out.log(f"waits: {why}")


def to_dict(one: BucketOutcome) -> Mapping[str, Any]:
    """Describe what became of a bucket as JSON values."""
    into = [{"bucket": list(bucket), "rows": rows} for bucket, rows in one.into.items()]
    about = {key: value for key, value in vars(one).items() if key != "paths"}
    return {**about, "bucket": list(one.bucket), "into": into}


def shown(doing: Reprocessing, found: Preview, *, as_json: bool, out: Console) -> bool:
    """Show what would be read. Returns whether there is anything."""
    rows = sum(one.rows for one in found.buckets)
    if as_json:
        each = [{**vars(one), "bucket": list(one.bucket)} for one in found.buckets]
        tables.emit_whole({"pipeline": doing.name, "buckets": each, "dead_letters": found.dead_letters})
        return bool(rows)
    if not rows:
        tables.sentence(out, f"{doing.name}: no bucket that is meant has rows; `headrace buckets` lists them.")
        return False
    sheet = TextTable(out, [Column("bucket", width_min=20), *numbers("rows", "records there", "without offset")])
    sheet.add([
        [_named(one, doing.columns), f"{one.rows:,}", f"{one.available:,}", f"{one.unplaced:,}"]
        for one in found.buckets
    ])  # fmt: skip
    tables.sentence(
        out,
        f"{doing.name}: the records of {plural(rows, 'row')} in {plural(len(found.buckets), 'bucket')} would be read, "
        f"and {plural(found.dead_letters, 'dead letter')} between their offsets replayed. How many rows change, "
        "move or become dead letters is known once they are decoded: a bucket whose rows come out the same is not "
        "written.",
    )
    return True


def ended(doing: Reprocessing, result: ReprocessResult, *, as_json: bool, out: Console) -> int:
    """Show what became of all. Returns 1 when the source lacks records of some rows."""
    absent, unplaced = (sum(getattr(one, name) for one in result.buckets) for name in ("absent", "unplaced"))
    changed = [one for one in result.buckets if one.version is not None]
    replay = result.dead_letters
    if as_json:
        tables.emit({
            "event": "ended", "pipeline": doing.name, "buckets": len(result.buckets), "changed": len(changed),
            "absent": absent, "replayed": {"dead_letters": replay.chosen, "rows": replay.rows},
        })  # fmt: skip
        return int(absent > 0)
    moved = sum(one.moved for one in changed)
    tables.sentence(
        out,
        f"{doing.name}: {len(changed):,} of {plural(len(result.buckets), 'bucket')} changed, {plural(moved, 'row')} "
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


def _named(one: BucketOutcome | BucketPreview, columns: Sequence[str]) -> str:
    return f"{bucket_path(columns, one.bucket)}{' (late table)' if one.late else ''}"


def _line(one: BucketOutcome, columns: Sequence[str]) -> list[str]:
    sums = (one.rows, one.stay, one.moved, one.dead_letters + one.quarantined, one.filtered, one.absent)
    version = "-" if one.version is None else str(one.version)
    return [_named(one, columns), *(f"{count:,}" for count in sums), version]
