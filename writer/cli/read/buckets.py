"""`headrace buckets`: the buckets of a table and their states. From the lake alone."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from writer.config.loader import load
from writer.core.text import instant, iso
from writer.core.units import show_size
from writer.output.cli_options import AsJson, ConfigFile, OnlyBuckets, OnlyTarget, Pipelines, time_of
from writer.output.table_choice import choose_tables
from writer.output.tables import Column, TextTable, console, count_cell, emit_whole, hanging, numbers, sentence
from writer.sealing.bucket_listing import BucketListing
from writer.sealing.bucket_selection import parse_buckets
from writer.sealing.bucket_states import ListedBucket, StateWithRows

_STYLES = {"open": "cyan", "closed": "yellow", "blocked": "red", "sealed": "green", "reopened": "magenta"}


def _show(listing: BucketListing, buckets: Sequence[ListedBucket], out: Console) -> None:
    right = numbers("rows", "files", "size", "late", "version")
    sheet = TextTable(out, [Column("bucket", width_max=60), Column("state"), *right, Column("sealed at")])
    if buckets:
        sheet.add([_row(bucket) for bucket in buckets])
    counts = Counter(bucket.state.name for bucket in buckets)
    sentence(out, ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "no bucket has rows")
    for bucket in buckets:
        # What open buckets wait for, the watermark below says of all of them.
        if bucket.state.name in ("closed", "blocked", "reopened"):
            hanging(out, f"{bucket.name}: ", bucket.state.why, "yellow")
    watermark = "none yet"
    if listing.watermark.instant is not None:
        watermark = instant(listing.watermark.instant)
    if listing.watermark.held_by is not None:
        watermark += f", held back by {listing.watermark.held_by.full_name} unless it is idle"
    closed_until = "never yet"
    if listing.snapshot.closed_until is not None:
        closed_until = instant(listing.snapshot.closed_until)
    sentence(out, f"watermark: {watermark}; closed until: {closed_until}")


def _row(bucket: ListedBucket) -> list[str | Text]:
    manifest = bucket.manifest
    version = ""
    sealed_at = ""
    if manifest is not None:
        version = str(manifest.version)
        sealed_at = instant(manifest.sealed_at)
    return [
        bucket.name,
        Text(bucket.state.name, _STYLES[bucket.state.name]),
        count_cell(bucket.rows, "?"),
        f"{bucket.files:,}",
        show_size(bucket.bytes),
        count_cell(bucket.late or None, ""),
        version,
        sealed_at,
    ]


def _document(listing: BucketListing, buckets: Sequence[ListedBucket]) -> dict[str, Any]:
    return {
        "watermark": watermark_document(listing),
        "closed_until": _iso(listing.snapshot.closed_until),
        "buckets": [
            {
                "bucket": list(bucket.key),
                "start": _iso(bucket.start),
                "end": _iso(bucket.end),
                "state": bucket.state.name,
                "rows": bucket.rows,
                "files": bucket.files,
                "bytes": bucket.bytes,
                "late": bucket.late,
                "version": bucket.manifest and bucket.manifest.version,
                "late_elsewhere": bucket.late_elsewhere,
                "sealed_at": bucket.manifest and iso(bucket.manifest.sealed_at),
                "why": bucket.state.why or None,
            }
            for bucket in buckets
        ],
    }


def watermark_document(listing: BucketListing) -> dict[str, Any]:
    """Return the watermark as JSON values."""
    mark = listing.watermark
    return {
        "instant": _iso(mark.instant),
        "held_by": mark.held_by and mark.held_by.full_name,
    }


def _iso(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return iso(moment)


def buckets(
    config: ConfigFile,
    pipeline: Pipelines = None,
    target: OnlyTarget = None,
    bucket: OnlyBuckets = None,
    state: Annotated[
        StateWithRows | None, typer.Option("--state", help="Only buckets in this state.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only buckets that end after this time: 2026-11-20T05:00Z.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the buckets that have rows and the state of each, with the watermark. Reads the lake only.

    Whether the partition that holds the watermark is idle, `headrace status` asks Kafka.

    Exit codes: 0 shown, 1 a table cannot be read, 2 configuration, or there is no table yet.
    """
    settings = load(config)
    now = datetime.now(UTC)
    after = time_of("--since", since)
    out = console()
    tables = choose_tables(settings, pipeline, target)
    listings = {table.title: BucketListing(table.pipeline, settings, now, table.target) for table in tables}
    chosen = {
        name: [
            listed
            for listed in listing.list_buckets(after, [parse_buckets(text, listing.bucketer) for text in bucket or ()])
            if state in (None, listed.state.name)
        ]
        for name, listing in listings.items()
    }
    if as_json:
        documents = {name: _document(listing, chosen[name]) for name, listing in listings.items()}
        emit_whole({"at": iso(now), "pipelines": documents})
        return
    for name, listing in listings.items():
        if len(listings) > 1:
            sentence(out, name, "bold")
        _show(listing, chosen[name], out)
