"""`headrace compact`: what it did, or would do."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated

import typer
from rich.console import Console

from writer.batch.staging.bucket_folders import hive_value
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.files import BucketFile, BucketKey
from writer.core.text import plural
from writer.core.units import show_size
from writer.maintenance.compaction import CompactionResult, Compactor, here
from writer.maintenance.compaction_plan import Piece
from writer.maintenance.dedupe.late_rows import compactor_of
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OfRaw, OnePipeline, OneTarget, load_table
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import Column, TextTable, console, emit_whole, numbers
from writer.sealing.manifest import bucket_path
from writer.sealing.sealer import Sealer
from writer.table.factory import existing_table
from writer.table.table import PipelineTable

_DONE = [Column("bucket", width_max=48), *numbers("files", "then", "size", "then", "rows", "taken", "version")]
_BUCKETS_AT_ONCE = 50  # between two looks at the list of files: each entry since the last is looked at by the next


def run_compact(name: str, config: Config, asked: Sequence[str] | None, *, write: bool, as_json: bool) -> bool:
    """Rewrite what is worth it, in this process, or show what is. Returns whether anything is."""
    out = console()
    table = existing_table(name, config)
    snapshot = table.snapshot()
    columns = tuple(snapshot.state.metadata["partitionColumns"])
    dedupe = config.pipelines[name].compact.dedupe
    across = dedupe is not None and dedupe.window is not None
    compactor = (
        compactor_of(Sealer(name, config), config)[0] if across
        else Compactor(name, config.pipelines[name], table, config.s3.settings)
    )  # fmt: skip
    if asked:
        buckets = [bucket_of(text, columns) for text in asked]
        unknown = [text for text, b in zip(asked, buckets, strict=True) if not table.bucket_files(snapshot, b)]
        if unknown:
            raise ConfigError(f"the table at {table.location} has no files of bucket {', '.join(unknown)}")
    else:
        buckets = compactor.buckets(snapshot)
    if not write:
        planned = {b: p for b, p in compactor.planned(snapshot, buckets, open_too=True).items() if p}
        _show(name, planned, columns, as_json=as_json, out=out)
        return bool(planned)
    table.publish(snapshot.state.place)  # what a crash broke off is ended, also where nothing is left to rewrite
    done: list[CompactionResult] = []
    sheet = TextTable(out, _DONE)
    for one in _carried_out(compactor, table, buckets, 1 if across else _BUCKETS_AT_ONCE):
        done.append(one)
        if not as_json:
            sheet.add([_line(one, columns)])
    if as_json:
        emit_whole([{**vars(one), "bucket": list(one.bucket)} for one in done])
    else:
        fewer = sum(one.removed - one.files for one in done if one.version is not None)
        taken = sum(one.taken for one in done if one.version is not None)
        result = f"{plural(fewer, 'file')} fewer" + (f", {plural(taken, 'row')} taken by dedupe" if taken else "")
        tables.sentence(out, f"{name}: {result if done else 'the files are as they should be'}", "bold")
    return bool(done)


def _carried_out(
    compactor: Compactor, table: PipelineTable, buckets: Sequence[BucketKey], at_once: int
) -> Iterator[CompactionResult]:
    for at in range(0, len(buckets), at_once):
        snapshot = table.snapshot()
        planned = compactor.planned(snapshot, buckets[at : at + at_once], open_too=True)
        for pieces in planned.values():
            yield from compactor.carry_out(snapshot, pieces, here)
        yield from compactor.answers(here)


def bucket_of(text: str, columns: Sequence[str]) -> BucketKey:
    """Read a bucket as a person writes it: a value for each column, or folders as Hive names them, by slashes."""
    parts = text.strip("/").split("/")
    if len(parts) != len(columns):
        raise ConfigError(f"bucket {text!r} has {len(parts)} parts; the table's buckets have {'/'.join(columns)}")
    return tuple(
        hive_value(part) if part.startswith(f"{column}=") else part
        for part, column in zip(parts, columns, strict=True)
    )  # fmt: skip


def _line(one: CompactionResult, columns: Sequence[str]) -> list[str]:
    version = "overtaken" if one.version is None else str(one.version)
    return [
        bucket_path(columns, one.bucket), f"{one.removed:,}", f"{one.files:,}", show_size(one.bytes_before),
        show_size(one.bytes), f"{one.rows - one.taken:,}", f"{one.taken:,}", version,
    ]  # fmt: skip


def _show(
    name: str, work: Mapping[BucketKey, Sequence[Piece]], columns: Sequence[str], *, as_json: bool, out: Console
) -> None:
    files: dict[BucketKey, list[BucketFile]] = {b: [f for p in pieces for f in p.files] for b, pieces in work.items()}
    if as_json:
        emit_whole([
            {"bucket": list(b), "files": [f.path for f in found], "bytes": sum(f.bytes for f in found)}
            for b, found in files.items()
        ])  # fmt: skip
        return
    count = sum(len(found) for found in files.values())
    scope = f"would look at {plural(count, 'file')} of {plural(len(files), 'bucket')}"
    tables.sentence(out, f"{name}: {scope if files else 'the files are as they should be'}", "bold")
    sheet = TextTable(out, [*_DONE[:2], _DONE[3]])
    for bucket, found in files.items():
        size = show_size(sum(file.bytes for file in found))
        sheet.add([[bucket_path(columns, bucket), f"{len(found):,}", size]])


def compact(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    raw: OfRaw = False,
    bucket: Annotated[
        list[str] | None,
        typer.Option("--bucket", help="Only this bucket, as 2026-11-20T05, or hour=2026-11-20T05; may be repeated."),
    ] = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of buckets, in this process. Closed buckets are also sorted and deduped, if configured.

    May be killed, repeated, and run beside the writer: of two rewrites of one file one stands. Readers of a Delta table
    see the same rows at every moment; those of a Parquet table may miss some while files are swapped.

    Exit codes: 0 done or shown, 1 a file is gone or the storage does not answer, 2 configuration.
    """
    settings, name = load_table(config, pipeline, target, raw=raw)
    work = partial(run_compact, name, settings, bucket, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
