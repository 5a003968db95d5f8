"""`headrace compact`: what it did, or would do."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from rich.console import Console

import bucketers
from writer.config.pipelines import Config
from writer.core.files import BucketFile, BucketKey
from writer.core.text import plural
from writer.core.units import show_size
from writer.maintenance.compaction.compactor import CompactionResult
from writer.maintenance.compaction.request import CompactionRun
from writer.output.cli_options import AsJson, ConfigFile, OfRaw, OnePipeline, OneTarget, OnlyBuckets
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.table_choice import load_table
from writer.output.tables import Column, TextTable, console, emit_whole, numbers, sentence
from writer.sealing.bucket_selection import parse_buckets
from writer.sealing.manifest import bucket_path

_BUCKET_COLUMN = Column("bucket", width_max=48)
_NOTHING_TO_DO = "the files are as they should be"


def run_compact(name: str, config: Config, bucket_names: Sequence[str] | None, *, write: bool, as_json: bool) -> bool:
    """Rewrite what is worth it, in this process, or show what is. Returns whether anything is."""
    bucketer = bucketers.build(config.pipelines[name].bucket)
    run = CompactionRun(name, config, [parse_buckets(text, bucketer) for text in bucket_names or ()])
    out = console()
    if write:
        return _show_results(name, run, as_json=as_json, out=out)
    files = run.list_files()
    if as_json:
        emit_whole([_files_document(bucket, files_of_bucket) for bucket, files_of_bucket in files.items()])
    else:
        _show_files(name, files, run.columns, out)
    return bool(files)


def _show_results(name: str, run: CompactionRun, *, as_json: bool, out: Console) -> bool:
    """Carry out the rewrites, and show each as soon as it is done. Returns whether there was any."""
    results: list[CompactionResult] = []
    table = TextTable(out, [_BUCKET_COLUMN, *numbers("files", "then", "size", "then", "rows", "taken", "version")])
    for result in run.carry_out():
        results.append(result)
        if not as_json:
            table.add([_result_row(result, run.columns)])
    if as_json:
        emit_whole([{**vars(result), "bucket": list(result.bucket)} for result in results])
    else:
        sentence(out, f"{name}: {_describe_results(results)}", "bold")
    return bool(results)


def _describe_results(results: Sequence[CompactionResult]) -> str:
    if not results:
        return _NOTHING_TO_DO
    committed = [result for result in results if result.version is not None]
    text = f"{plural(sum(result.removed - result.files for result in committed), 'file')} fewer"
    duplicates = sum(result.taken for result in committed)
    if duplicates:
        text += f", {plural(duplicates, 'row')} taken by dedupe"
    return text


def _result_row(result: CompactionResult, columns: Sequence[str]) -> list[str]:
    return [
        bucket_path(columns, result.bucket),
        f"{result.removed:,}",
        f"{result.files:,}",
        show_size(result.bytes_before),
        show_size(result.bytes),
        f"{result.rows - result.taken:,}",
        f"{result.taken:,}",
        "overtaken" if result.version is None else str(result.version),
    ]


def _files_document(bucket: BucketKey, files: Sequence[BucketFile]) -> Mapping[str, Any]:
    return {
        "bucket": list(bucket),
        "files": [file.path for file in files],
        "bytes": sum(file.bytes for file in files),
    }


def _show_files(
    name: str, files: Mapping[BucketKey, Sequence[BucketFile]], columns: Sequence[str], out: Console
) -> None:
    scope = _NOTHING_TO_DO
    if files:
        count = sum(len(files_of_bucket) for files_of_bucket in files.values())
        scope = f"would look at {plural(count, 'file')} of {plural(len(files), 'bucket')}"
    sentence(out, f"{name}: {scope}", "bold")
    table = TextTable(out, [_BUCKET_COLUMN, *numbers("files", "size")])
    for bucket, files_of_bucket in files.items():
        size = show_size(sum(file.bytes for file in files_of_bucket))
        table.add([[bucket_path(columns, bucket), f"{len(files_of_bucket):,}", size]])


def compact(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    raw: OfRaw = False,
    bucket: OnlyBuckets = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Merge the small files of buckets, in this process. Closed buckets are also sorted and deduped, if configured.

    May be killed, repeated, and run beside the writer: of two rewrites of one file one stands. Readers of a Delta table
    see the same rows at every moment; those of a Parquet table may miss some while files are swapped.

    Exit codes: 0 done or shown, 1 a file is gone or the storage does not answer, 2 configuration.
    """
    table = load_table(config, pipeline, target, raw=raw)
    work = partial(run_compact, table.pipeline, table.config, bucket, as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
