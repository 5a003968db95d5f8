"""`headrace wait`: blocks until buckets are sealed. From the lake alone."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.cli.read.buckets import watermark_document
from writer.core.text import instant, plural
from writer.core.units import show_duration
from writer.output.cli_options import (
    AsJson,
    ConfigFile,
    OnePipeline,
    OneTarget,
    buckets_help,
    duration_of,
)
from writer.output.table_choice import load_table
from writer.output.tables import console, emit_whole, hanging, sentence
from writer.sealing.bucket_listing import AwaitedBucket, BucketListing, SealWait
from writer.sealing.bucket_selection import parse_buckets
from writer.sealing.manifest import Manifest

# Buckets that are awaited still, for a person; --json has all.
_BUCKETS_SHOWN = 20


def wait(
    config: ConfigFile,
    sealed: Annotated[str, typer.Option("--sealed", help=buckets_help("The buckets"))],
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    version: Annotated[int, typer.Option("--version", min=1, help="Of one bucket: this version, or a newer one.")] = 1,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "2 h",
    as_json: AsJson = False,
) -> None:
    """Block until buckets are sealed, for schedulers. Reads the lake only; asks neither Kafka nor the driver.

    Of a day or a range, each bucket that has rows is awaited, and each that is not closed yet. A bucket that is closed
    and never had a row is complete too: nothing of it is sealed.

    Exit codes: 0 sealed, 1 not within the time (what is missing is said), or the table cannot be read, 2 configuration,
    or no such bucket can be.
    """
    table = load_table(config, pipeline, target)
    longest_wait = duration_of("--timeout", timeout)
    listing = BucketListing(table.pipeline, table.file_config, datetime.now(UTC), table.target)
    selection = parse_buckets(sealed, listing.bucketer)
    buckets = SealWait(listing, selection, version).run(longest_wait)
    is_complete = all(bucket.is_complete for bucket in buckets)
    if as_json:
        emit_whole(_document(table.pipeline, listing, buckets, is_complete=is_complete))
    else:
        _show(sealed.strip(), buckets, version, show_duration(longest_wait), console())
    raise typer.Exit(int(not is_complete))


def _document(
    name: str, listing: BucketListing, buckets: Sequence[AwaitedBucket], *, is_complete: bool
) -> dict[str, Any]:
    return {
        "pipeline": name,
        "complete": is_complete,
        "watermark": watermark_document(listing),
        "buckets": [
            {
                "name": bucket.name,
                "bucket": bucket.key and list(bucket.key),
                "state": bucket.state.name,
                "why": bucket.state.why or None,
                "manifest": bucket.manifest and bucket.manifest.to_json(),
            }
            for bucket in buckets
        ],
    }


def _show(text: str, buckets: Sequence[AwaitedBucket], version: int, limit: str, out: Console) -> None:
    """Say that all are sealed, or of each that is not, what it waits for."""
    if len(buckets) == 1:
        _show_bucket(buckets[0], version, limit, out)
        return
    if not buckets:
        sentence(out, f"{text} is complete, and empty: it is closed, and no row of it came")
        return
    missing = [bucket for bucket in buckets if not bucket.is_complete]
    if not missing:
        manifests = [bucket.manifest for bucket in buckets if bucket.manifest is not None]
        rows = plural(sum(manifest.rows for manifest in manifests), "row")
        gaps = ""
        if any(manifest.with_gap for manifest in manifests):
            gaps = "; records that Kafka lost may be missing"
        sentence(out, f"{text} is sealed: {plural(len(manifests), 'bucket')} with rows, {rows}{gaps}")
        return
    count = len(buckets) - len(missing)
    sentence(
        out, f"{text} is not sealed after {limit}: {count:,} of {plural(len(buckets), 'bucket')} are; it waits for"
    )
    for bucket in missing[:_BUCKETS_SHOWN]:
        hanging(out, f"{bucket.name}: ", f"{bucket.state.name}: {bucket.state.why}", "yellow")
    if len(missing) > _BUCKETS_SHOWN:
        sentence(out, f"and {len(missing) - _BUCKETS_SHOWN:,} more")


def _show_bucket(bucket: AwaitedBucket, version: int, limit: str, out: Console) -> None:
    if bucket.manifest is not None:
        _show_manifest(bucket.manifest, out)
    elif bucket.is_complete:
        sentence(out, f"{bucket.name} is complete, and empty: it is closed, and no row of it came")
    else:
        subject = bucket.name
        if version > 1:
            subject = f"version {version} of {bucket.name}"
        sentence(out, f"{subject} is not sealed after {limit}; it is {bucket.state.name}: {bucket.state.why}")


def _show_manifest(manifest: Manifest, out: Console) -> None:
    rows = plural(manifest.rows, "row")
    if manifest.late:
        rows += f", {manifest.late:,} of them late"
    files = plural(manifest.files, "file")
    if manifest.with_gap:
        files += "; records that Kafka lost may be missing"
    sealed_at = instant(manifest.sealed_at)
    sentence(out, f"{manifest.name} is sealed: version {manifest.version} at {sealed_at}, {rows} in {files}")
