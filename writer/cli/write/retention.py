"""`headrace retention`: shows and drops buckets whose retention has passed."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

from rich.console import Console

from writer.config.loader import load
from writer.config.pipelines import Config
from writer.core.text import instant, plural
from writer.core.units import show_duration, show_size
from writer.maintenance.retention import DroppedBucket, ExpiredBucket, Retention, count_rows, table_retentions
from writer.output.cli_options import AsJson, ConfigFile, OfRaw, OnlyTarget, Pipelines
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.table_choice import ChosenTable, choose_tables
from writer.output.tables import Column, TextTable, console, count_cell, emit_whole, numbers, sentence
from writer.sealing.manifest import bucket_path
from writer.sealing.retention_wait import RetentionWait
from writer.table.factory import existing_table

# For a person; --json has all.
_BUCKETS_SHOWN = 20


def retention(
    config: ConfigFile,
    pipeline: Pipelines = None,
    target: OnlyTarget = None,
    raw: OfRaw = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Drop the buckets that ended longer ago than `retention` says. A running driver does so by itself.

    It does so by the retention that is in force. With --yes that is the one of the file from now on; until then a
    shorter one waits.

    Each entry of the table's log says how many rows it takes, so `audit` still adds up.

    Exit codes: 0 done or shown, 1 the storage does not answer, 2 configuration.
    """
    tables = choose_tables(load(config), pipeline, target, raw=raw)
    work = partial(run_retention, tables, now=datetime.now(UTC), as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def run_retention(tables: Sequence[ChosenTable], *, write: bool, now: datetime, as_json: bool) -> bool:
    """Show what is due, and drop it if asked. Returns whether anything is. Raises HeadraceError."""
    out = console()
    documents: dict[str, Any] = {}
    is_any_due = False
    for table in tables:
        name = table.pipeline
        config = table.config
        document: dict[str, Any] | None = None
        kept_for = config.pipelines[name].retention
        if kept_for is not None:
            existing_table(name, config).check_current()
            document = {"before": (now - kept_for).isoformat()}
        elif not as_json:
            sentence(out, f"{table.title}: no retention is set (pipelines.{name}.retention); every bucket stays.")
        for table_name, table_retention in _retention_by_table(config, name).items():
            expired = table_retention.due(now)
            wait = table_retention.find_wait(now)
            if table_name and not expired and wait is None:
                continue
            dropped: list[DroppedBucket] = []
            if write:
                table_retention.accept(now)
                dropped = list(table_retention.run(now))
            is_any_due = is_any_due or bool(expired) or wait is not None
            table_document = _table_document(expired, dropped)
            table_document["waits"] = wait is not None and not write
            if table_name:
                table_document = {table_name.replace(" ", "_"): table_document}
            document = {**(document or {}), **table_document}
            if not as_json:
                title = f"{table.title}, {table_name}" if table_name else table.title
                _show_due_buckets(out, title, table_retention, expired, now)
                if wait is not None:
                    sentence(out, _describe_acceptance(wait, write=write))
                _show_drops(out, dropped, has_versions=config.pipelines[name].table.format == "delta")
        documents[table.title] = document
    if as_json:
        emit_whole({"dry_run": not write, "pipelines": documents})
    return is_any_due


def _retention_by_table(config: Config, name: str) -> dict[str, Retention]:
    """Return the retention of a pipeline's table, which has no name here, and by their names of those beside it."""
    tables = dict(zip(("", "late table"), table_retentions(name, config), strict=False))
    if config.pipelines[name].table.raw is not None:
        tables |= dict(zip(("raw table",), table_retentions(name, config.at_raw(name)), strict=False))
    return tables


def _describe_acceptance(wait: RetentionWait, *, write: bool) -> str:
    if write:
        return f"The retention of {show_duration(wait.configured)} is in force now."
    state = "Every bucket is kept"
    if wait.in_force is not None:
        state = f"{show_duration(wait.in_force)} stays in force"
    return f"{state} until --yes; {plural(wait.buckets, 'bucket')} of these would not go before."


def _table_document(expired: Sequence[ExpiredBucket], dropped: Sequence[DroppedBucket]) -> dict[str, Any]:
    return {
        "due": [_bucket_document(bucket) for bucket in expired],
        "versions": [entry.version for entry in dropped],
        "rows_dropped": sum(entry.rows for entry in dropped),
        "files_dropped": sum(entry.files for entry in dropped),
        "bytes_dropped": sum(entry.bytes for entry in dropped),
    }


def _bucket_document(bucket: ExpiredBucket) -> Mapping[str, Any]:
    start, end = bucket.interval
    return {
        "bucket": list(bucket.bucket),
        "start": start.isoformat(),
        "end": end.isoformat(),
        "rows": count_rows(bucket.files),
        "files": len(bucket.files),
        "bytes": bucket.bytes,
    }


def _show_due_buckets(
    out: Console, title: str, retention: Retention, expired: Sequence[ExpiredBucket], now: datetime
) -> None:
    condition = f"ended by {instant(now - retention.kept_for)} (retention {show_duration(retention.kept_for)})"
    if not expired:
        sentence(out, f"{title}: no bucket {condition}.")
        return
    sentence(out, f"{title}: {plural(len(expired), 'bucket')} {condition}:")
    table = TextTable(out, [Column("bucket", width_min=20), *numbers("rows", "files", "size")])
    table.add([_bucket_row(bucket, retention.columns) for bucket in expired[:_BUCKETS_SHOWN]])
    if len(expired) > _BUCKETS_SHOWN:
        sentence(out, f"and {len(expired) - _BUCKETS_SHOWN:,} more")


def _bucket_row(bucket: ExpiredBucket, columns: Sequence[str]) -> list[str]:
    return [
        bucket_path(columns, bucket.bucket),
        count_cell(count_rows(bucket.files), "?"),
        f"{len(bucket.files):,}",
        show_size(bucket.bytes),
    ]


def _show_drops(out: Console, dropped: Sequence[DroppedBucket], *, has_versions: bool) -> None:
    if not dropped:
        return
    rows = plural(sum(entry.rows for entry in dropped), "row")
    versions = ", ".join(str(entry.version) for entry in dropped)
    files = "`headrace vacuum --yes` removes the files." if has_versions else "Their files are removed."
    sentence(out, f"{rows} were dropped (version {versions} of the table). {files}")
