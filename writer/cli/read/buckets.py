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
from writer.output.cli_options import AsJson, ConfigFile, OneTarget, Pipelines, time_of
from writer.output.tables import Column, TextTable, console, emit_whole, hanging, numbers, sentence
from writer.sealing.bucket_listing import BucketListing, BucketState, ListedBucket, partition_name

_STYLES = {"open": "cyan", "closed": "yellow", "sealed": "green", "reopened": "magenta"}


def _show(listing: BucketListing, buckets: Sequence[ListedBucket], out: Console) -> None:
    right = numbers("rows", "files", "size", "late", "version")
    sheet = TextTable(out, [Column("bucket", width_max=60), Column("state"), *right, Column("sealed at")])
    if buckets:
        sheet.add([_row(listing.bucket_name(bucket.key), bucket) for bucket in buckets])
    counts = Counter(bucket.state for bucket in buckets)
    sentence(out, ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "no bucket has rows")
    for bucket in buckets:
        if bucket.reason:
            hanging(out, f"{listing.bucket_name(bucket.key)}: ", bucket.reason, "yellow")
    mark = listing.watermark
    closed_until = listing.snapshot.closed_until
    cause = f", held back by {partition_name(mark.held_by)} unless it is idle" if mark.held_by else ""
    watermark_text = "none yet" if mark.instant is None else instant(mark.instant)
    closed_text = "never yet" if closed_until is None else instant(closed_until)
    sentence(out, f"watermark: {watermark_text}{cause}; closed until: {closed_text}")


def _row(name: str, bucket: ListedBucket) -> list[str | Text]:
    manifest = bucket.manifest
    return [
        name,
        Text(bucket.state, _STYLES[bucket.state]),
        "?" if bucket.rows is None else f"{bucket.rows:,}",
        f"{bucket.files:,}",
        show_size(bucket.bytes),
        f"{bucket.late:,}" if bucket.late else "",
        str(manifest.version) if manifest else "",
        instant(manifest.sealed_at) if manifest else "",
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
                "state": bucket.state,
                "rows": bucket.rows,
                "files": bucket.files,
                "bytes": bucket.bytes,
                "late": bucket.late,
                "version": bucket.manifest.version if bucket.manifest else None,
                "late_elsewhere": bucket.elsewhere,
                "sealed_at": _iso(bucket.manifest.sealed_at) if bucket.manifest else None,
                "why": bucket.reason or None,
            }
            for bucket in buckets
        ],
    }


def watermark_document(listing: BucketListing) -> dict[str, Any]:
    """Return the watermark as JSON values."""
    mark = listing.watermark
    return {
        "instant": _iso(mark.instant),
        "held_by": None if mark.held_by is None else partition_name(mark.held_by),
    }


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else iso(moment)


def buckets(
    config: ConfigFile,
    pipeline: Pipelines = None,
    target: OneTarget = None,
    state: Annotated[
        BucketState | None, typer.Option("--state", help="Only buckets in this state.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only buckets that end after this time: 2026-11-20T05:00Z.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the buckets that have rows: open, closed, sealed or reopened, with the watermark. Reads the lake only.

    Whether the partition that holds the watermark is idle, `headrace status` asks Kafka.

    Exit codes: 0 shown, 1 a table cannot be read, 2 configuration, or there is no table yet.
    """
    settings = load(config)
    now = datetime.now(UTC)
    after = time_of("--since", since)
    out = console()
    names = settings.chosen(pipeline)
    listings = {name: BucketListing(name, settings, now, target) for name in names}
    chosen = {
        name: [bucket for bucket in listing.list_buckets(after) if state in (None, bucket.state)]
        for name, listing in listings.items()
    }
    if as_json:
        documents = {name: _document(listing, chosen[name]) for name, listing in listings.items()}
        emit_whole({"at": iso(now), "pipelines": documents})
        return
    for name, listing in listings.items():
        if len(names) > 1:
            sentence(out, name, "bold")
        _show(listing, chosen[name], out)
