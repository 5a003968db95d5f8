"""`headrace wait`: blocks until buckets are sealed. From the lake alone."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Literal

import typer
from rich.console import Console

from headrace.writer.cli.look.buckets import WatermarkLine, watermark_line
from headrace.writer.core.files import BucketKey
from headrace.writer.core.text import instant, plural
from headrace.writer.core.units import show_duration
from headrace.writer.output.cli_options import buckets_help, duration_of
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Table
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import hanging, sentence
from headrace.writer.sealing.bucket_listing import AwaitedBucket, BucketListing, SealWait
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.bucket_states import StateName
from headrace.writer.sealing.manifest import Manifest

# Buckets that are awaited still, for a person; --json has all.
_BUCKETS_SHOWN = 20


@dataclass(frozen=True)
class AwaitedLine:
    """A bucket of a wait; its fields are those of `AwaitedBucket`."""

    name: str
    bucket: BucketKey | None
    state: StateName
    # Null: it is sealed.
    why: str | None
    manifest: Manifest | None
    is_complete: bool = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class WaitReport(Report):
    """What became of a wait for buckets."""

    pipeline: str
    complete: bool
    watermark: WatermarkLine
    buckets: Sequence[AwaitedLine]
    # The buckets as they were asked for, of which version, and how long the wait was at most.
    text: str = field(metadata=SCREEN_ONLY)
    version: int = field(metadata=SCREEN_ONLY)
    timeout: timedelta = field(metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where buckets are awaited still."""
        return 0 if self.complete else 1

    def render(self, out: Console) -> None:
        """Say that all are sealed, or of each that is not, what it waits for."""
        if len(self.buckets) == 1:
            _render_bucket(self.buckets[0], self.version, self.timeout, out)
            return
        if not self.buckets:
            sentence(out, f"{self.text} is complete, and empty: it is closed, and no row of it came")
            return
        missing = [bucket for bucket in self.buckets if not bucket.is_complete]
        if not missing:
            manifests = [bucket.manifest for bucket in self.buckets if bucket.manifest is not None]
            rows = plural(sum(manifest.rows for manifest in manifests), "row")
            gaps = ""
            if any(manifest.with_gap for manifest in manifests):
                gaps = "; records that Kafka lost may be missing"
            sentence(out, f"{self.text} is sealed: {plural(len(manifests), 'bucket')} with rows, {rows}{gaps}")
            return
        count = f"{len(self.buckets) - len(missing):,} of {plural(len(self.buckets), 'bucket')}"
        limit = show_duration(self.timeout)
        sentence(out, f"{self.text} is not sealed after {limit}: {count} are; it waits for")
        for bucket in missing[:_BUCKETS_SHOWN]:
            hanging(out, f"{bucket.name}: ", f"{bucket.state}: {bucket.why}", "yellow")
        if len(missing) > _BUCKETS_SHOWN:
            sentence(out, f"and {len(missing) - _BUCKETS_SHOWN:,} more")


@command(
    exits={
        0: "sealed",
        1: "not within the time (what is missing is said), or the table cannot be read",
        2: "configuration, or no such bucket can be",
    }
)
def wait(
    table: Table,
    sealed: Annotated[str, typer.Option("--sealed", help=buckets_help("The buckets"))],
    version: Annotated[int, typer.Option("--version", min=1, help="Of one bucket: this version, or a newer one.")] = 1,
    timeout: Annotated[str, typer.Option("--timeout", help="How long to wait.")] = "2 h",
) -> WaitReport:
    """Block until buckets are sealed, for schedulers. Reads the lake only; asks neither Kafka nor the driver.

    Of a day or a range, each bucket that has rows is awaited, and each that is not closed yet. A bucket that is closed
    and never had a row is complete too: nothing of it is sealed.
    """
    longest_wait = duration_of("--timeout", timeout)
    listing = BucketListing(table.pipeline, table.file_config, datetime.now(UTC), table.target)
    selection = parse_buckets(sealed, listing.bucketer)
    lines = [_line(bucket) for bucket in SealWait(listing, selection, version).run(longest_wait)]
    is_complete = all(line.is_complete for line in lines)
    mark = watermark_line(listing)
    return WaitReport(table.pipeline, is_complete, mark, lines, sealed.strip(), version, longest_wait)


def _line(bucket: AwaitedBucket) -> AwaitedLine:
    state = bucket.state
    return AwaitedLine(bucket.name, bucket.key, state.name, state.why or None, bucket.manifest, bucket.is_complete)


def _render_bucket(bucket: AwaitedLine, version: int, timeout: timedelta, out: Console) -> None:
    if bucket.manifest is not None:
        _render_manifest(bucket.manifest, out)
    elif bucket.is_complete:
        sentence(out, f"{bucket.name} is complete, and empty: it is closed, and no row of it came")
    else:
        subject = bucket.name
        if version > 1:
            subject = f"version {version} of {bucket.name}"
        sentence(out, f"{subject} is not sealed after {show_duration(timeout)}; it is {bucket.state}: {bucket.why}")


def _render_manifest(manifest: Manifest, out: Console) -> None:
    rows = plural(manifest.rows, "row")
    if manifest.late:
        rows += f", {manifest.late:,} of them late"
    files = plural(manifest.files, "file")
    if manifest.with_gap:
        files += "; records that Kafka lost may be missing"
    sealed_at = instant(manifest.sealed_at)
    sentence(out, f"{manifest.name} is sealed: version {manifest.version} at {sealed_at}, {rows} in {files}")
