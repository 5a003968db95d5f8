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
from writer.maintenance.retention import DroppedBucket, ExpiredBucket, Retention, works
from writer.output import tables
from writer.output.cli_options import AsJson, ConfigFile, OfRaw, OneTarget, Pipelines, at_table
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console
from writer.sealing.manifest import bucket_path
from writer.table.factory import existing_table

_BUCKETS_SHOWN = 20  # for a person


def _to_dict(one: ExpiredBucket) -> Mapping[str, Any]:
    rows = [file.rows for file in one.files]
    return {
        "bucket": list(one.bucket), "start": one.interval[0].isoformat(), "end": one.interval[1].isoformat(),
        "rows": None if None in rows else sum(row or 0 for row in rows), "files": len(one.files), "bytes": one.bytes,
    }  # fmt: skip


def _result_to_dict(done: Sequence[DroppedBucket]) -> Mapping[str, Any]:
    return {
        "versions": [one.version for one in done], "rows_dropped": sum(one.rows for one in done),
        "files_dropped": sum(one.files for one in done), "bytes_dropped": sum(one.bytes for one in done),
    }  # fmt: skip


def _show(out: Console, name: str, buckets_by: Sequence[str], old: Sequence[ExpiredBucket], which: str) -> None:
    if not old:
        tables.sentence(out, f"{name}: no bucket {which}.")
        return
    tables.sentence(out, f"{name}: {plural(len(old), 'bucket')} {which}:")
    columns = [tables.Column("bucket", width_min=20), *tables.numbers("rows", "files", "size")]
    tables.TextTable(out, columns).add([
        [
            bucket_path(buckets_by, one.bucket),
            "?" if any(file.rows is None for file in one.files) else f"{sum(f.rows or 0 for f in one.files):,}",
            f"{len(one.files):,}", show_size(one.bytes),
        ]
        for one in old[:_BUCKETS_SHOWN]
    ])  # fmt: skip
    if len(old) > _BUCKETS_SHOWN:
        tables.sentence(out, f"and {len(old) - _BUCKETS_SHOWN:,} more")


def _verdict(out: Console, done: Sequence[DroppedBucket], *, delta: bool) -> None:
    versions = ", ".join(str(one.version) for one in done)
    after = "`headrace vacuum --yes` removes the files." if delta else "Their files are removed."
    tables.sentence(
        out, f"{plural(sum(one.rows for one in done), 'row')} were dropped (version {versions} of the table). {after}"
    )


def retention(
    config: ConfigFile,
    pipeline: Pipelines = None,
    target: OneTarget = None,
    raw: OfRaw = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Drop the buckets that ended longer ago than `retention` says. A running driver does so by itself.

    Each entry of the table's log says how many rows it takes, so `audit` still adds up.

    Exit codes: 0 done or shown, 1 the storage does not answer, 2 configuration.
    """
    settings = load(config)
    names = settings.chosen(pipeline)
    for name in names:
        settings = at_table(settings, name, target, raw=raw)
    work = partial(run_retention, settings, names, now=datetime.now(UTC), as_json=as_json)
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


def _works(config: Config, name: str) -> dict[str, Retention]:
    """Return what is to be looked at: the table, and by their names those beside it."""
    found = dict(zip(("", "late table"), works(name, config), strict=False))
    if config.pipelines[name].table.raw is not None:
        found |= dict(zip(("raw table",), works(name, config.at_raw(name)), strict=False))
    return found


def run_retention(config: Config, names: Sequence[str], *, write: bool, now: datetime, as_json: bool) -> bool:
    """Show what is due, and drop it if asked. Returns whether anything is. Raises HeadraceError."""
    out, documents, due = console(), dict[str, Any](), False
    for name in names:
        settings = config.pipelines[name]
        if settings.retention is None:
            documents[name] = None
            if not as_json:
                tables.sentence(out, f"{name}: no retention is set (pipelines.{name}.retention); every bucket stays.")
        else:
            existing_table(name, config).check_current()
            documents[name] = {"before": (now - settings.retention).isoformat()}
        for what, work in _works(config, name).items():
            old = work.due(now)
            if what and not old:
                continue
            done = list(work.run(now)) if write else []
            due = due or bool(old)
            found = {"due": [_to_dict(one) for one in old], **_result_to_dict(done)}
            documents[name] = (documents[name] or {}) | ({what.replace(" ", "_"): found} if what else found)
            if not as_json:
                which = f"ended by {instant(now - work.kept_for)} (retention {show_duration(work.kept_for)})"
                _show(out, f"{name}, {what}" if what else name, work.columns, old, which)
                if done:
                    _verdict(out, done, delta=settings.table.format == "delta")
    if as_json:
        tables.emit_whole({"dry_run": not write, "pipelines": documents})
    return due
