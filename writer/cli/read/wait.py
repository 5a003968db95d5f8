"""`headrace wait`: blocks until a bucket is sealed. From the lake alone."""

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console

from writer.cli.read.buckets import watermark_document
from writer.core.files import BucketKey
from writer.core.text import instant, plural
from writer.core.units import show_duration
from writer.output.bucket_names import bucket_of
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, OneTarget, duration_of, load_pipeline
from writer.output.tables import console, emit_whole, sentence
from writer.sealing.bucket_listing import BucketListing, wait_for_seal
from writer.sealing.manifest import Manifest


def wait(
    config: ConfigFile,
    sealed: Annotated[
        str, typer.Option("--sealed", help="The bucket: 2026-11-20T05, hour=2026-11-20T05, 2026-11-20T05:00Z.")
    ],
    pipeline: OnePipeline = None,
    target: OneTarget = None,
    version: Annotated[int, typer.Option("--version", min=1, help="This version of it, or a newer one.")] = 1,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "2 h",
    as_json: AsJson = False,
) -> None:
    """Block until a bucket is sealed, for schedulers. Reads the lake only; asks neither Kafka nor the driver.

    A bucket that is closed and never had a row is complete too: nothing of it is sealed.

    Exit codes: 0 sealed, 1 not within the time (the reason is said), or the table cannot be read, 2 configuration, or
    no such bucket can be.
    """
    settings, name = load_pipeline(config, pipeline)
    longest_wait = duration_of("--timeout", timeout)
    out = console()
    listing = BucketListing(name, settings, datetime.now(UTC), target)
    key = bucket_of(sealed, listing.bucketer)
    bucket_name = listing.bucket_name(key)
    result = wait_for_seal(listing, key, version, longest_wait)
    if result.manifest is not None:
        _show_manifest(result.manifest, as_json=as_json, out=out)
        return
    if result.state.name == "empty" and version == 1:
        _show_empty(name, key, bucket_name, as_json=as_json, out=out)
        return
    if as_json:
        document = {"pipeline": name, "bucket": list(key), "state": result.state.name, "why": result.state.why}
        emit_whole({**document, "watermark": watermark_document(listing), "manifest": None})
    else:
        subject = bucket_name
        if version > 1:
            subject = f"version {version} of {bucket_name}"
        limit = show_duration(longest_wait)
        sentence(out, f"{subject} is not sealed after {limit}; it is {result.state.name}: {result.state.why}")
    raise typer.Exit(1)


def _show_manifest(manifest: Manifest, *, as_json: bool, out: Console) -> None:
    if as_json:
        bucket = list(manifest.bucket)
        emit_whole({"pipeline": manifest.pipeline, "bucket": bucket, "state": "sealed", "manifest": manifest.to_json()})
    else:
        rows = plural(manifest.rows, "row")
        if manifest.late:
            rows += f", {manifest.late:,} of them late"
        files = plural(manifest.files, "file")
        if manifest.with_gap:
            files += "; records that Kafka lost may be missing"
        sentence(
            out,
            f"{manifest.name} is sealed: version {manifest.version} at {instant(manifest.sealed_at)}, {rows} in "
            f"{files}",
        )


def _show_empty(name: str, key: BucketKey, bucket_name: str, *, as_json: bool, out: Console) -> None:
    if as_json:
        emit_whole({"pipeline": name, "bucket": list(key), "state": "empty", "manifest": None})
    else:
        sentence(out, f"{bucket_name} is complete, and empty: it is closed, and no row of it came")
