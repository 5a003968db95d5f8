"""`headrace buckets`: the buckets of a table and their states. From the lake alone."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.files import BucketKey
from headrace.writer.core.text import instant
from headrace.writer.core.units import show_size
from headrace.writer.output.cli_options import OnlyBuckets, time_of
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Tables, look_at_each_table
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.output.tables import Column, TextTable, count_cell, hanging, numbers, sentence
from headrace.writer.sealing.bucket_listing import BucketListing
from headrace.writer.sealing.bucket_selection import parse_buckets
from headrace.writer.sealing.bucket_states import ListedBucket, StateName, StateWithRows

_STYLES = {"open": "cyan", "closed": "yellow", "blocked": "red", "sealed": "green", "reopened": "magenta"}


@dataclass(frozen=True)
class BucketLine:
    """A bucket that has rows. `rows`, `late`, `version`: as of `ListedBucket`."""

    bucket: BucketKey
    start: datetime | None
    end: datetime | None
    state: StateName
    rows: int | None
    files: int
    bytes: int
    late: int | None
    version: int | None
    late_elsewhere: Mapping[str, int]
    sealed_at: datetime | None
    # Null: it is sealed.
    why: str | None
    # The folders of its files.
    name: str = field(metadata=SCREEN_ONLY)


@dataclass(frozen=True)
class WatermarkLine:
    """The watermark of a table; None: no record has come yet. `held_by`: the topic partition that holds it back."""

    instant: datetime | None
    held_by: str | None


@dataclass(frozen=True)
class BucketTable:
    """The buckets of a table, and how far it is closed."""

    watermark: WatermarkLine
    closed_until: datetime | None
    buckets: Sequence[BucketLine]

    def render(self, out: Console) -> None:
        """Draw the buckets, the reasons of those that wait, and the watermark."""
        right = numbers("rows", "files", "size", "late", "version")
        sheet = TextTable(out, [Column("bucket", width_max=60), Column("state"), *right, Column("sealed at")])
        if self.buckets:
            sheet.add([_cells(bucket) for bucket in self.buckets])
        counts = Counter(bucket.state for bucket in self.buckets)
        sentence(
            out, ", ".join(f"{count:,} {state}" for state, count in sorted(counts.items())) or "no bucket has rows"
        )
        for bucket in self.buckets:
            # What open buckets wait for, the watermark below says of all of them.
            if bucket.state in ("closed", "blocked", "reopened"):
                hanging(out, f"{bucket.name}: ", bucket.why or "", "yellow")
        watermark = "none yet"
        if self.watermark.instant is not None:
            watermark = instant(self.watermark.instant)
        if self.watermark.held_by is not None:
            watermark += f", held back by {self.watermark.held_by} unless it is idle"
        closed_until = "never yet"
        if self.closed_until is not None:
            closed_until = instant(self.closed_until)
        sentence(out, f"watermark: {watermark}; closed until: {closed_until}")


@dataclass(frozen=True)
class BucketReport(Report):
    """The buckets of each table, by its title."""

    at: datetime
    pipelines: Mapping[str, BucketTable]
    # Of tables that cannot be read.
    failure: HeadraceError | None = field(default=None, metadata=SCREEN_ONLY)

    def render(self, out: Console) -> None:
        """Draw each table's buckets; several tables have titles."""
        for title, table in self.pipelines.items():
            if len(self.pipelines) > 1:
                sentence(out, title, "bold")
            table.render(out)


def watermark_line(listing: BucketListing) -> WatermarkLine:
    """Return the watermark of a table."""
    mark = listing.watermark
    held_by = None
    if mark.held_by is not None:
        held_by = mark.held_by.full_name
    return WatermarkLine(mark.instant, held_by)


@command(exits={0: "shown", 1: "a table cannot be read", 2: "configuration, or there is no table yet"})
def buckets(
    tables: Tables,
    bucket: OnlyBuckets = None,
    state: Annotated[
        StateWithRows | None, typer.Option("--state", help="Only buckets in this state.", show_default=False)
    ] = None,
    since: Annotated[
        str | None, typer.Option("--since", help="Only buckets that end after this time: 2026-11-20T05:00Z.")
    ] = None,
) -> BucketReport:
    """Show the buckets that have rows and the state of each, with the watermark. Reads the lake only.

    Whether the partition that holds the watermark is idle, `headrace status` asks Kafka.
    """
    now = datetime.now(UTC)
    after = time_of("--since", since)

    def list_buckets(table: ChosenTable) -> BucketTable:
        listing = BucketListing(table.pipeline, table.file_config, now, table.target)
        selections = [parse_buckets(text, listing.bucketer) for text in bucket or ()]
        lines = [
            _line(listed) for listed in listing.list_buckets(after, selections) if state in (None, listed.state.name)
        ]
        return BucketTable(watermark_line(listing), listing.snapshot.closed_until, lines)

    return BucketReport(now, *look_at_each_table(tables, list_buckets))


def _line(bucket: ListedBucket) -> BucketLine:
    version = None
    sealed_at = None
    if bucket.manifest is not None:
        version = bucket.manifest.version
        sealed_at = bucket.manifest.sealed_at
    return BucketLine(
        bucket.key,
        bucket.start,
        bucket.end,
        bucket.state.name,
        bucket.rows,
        bucket.files,
        bucket.bytes,
        bucket.late,
        version,
        bucket.late_elsewhere,
        sealed_at,
        bucket.state.why or None,
        bucket.name,
    )


def _cells(bucket: BucketLine) -> list[str | Text]:
    version = ""
    if bucket.version is not None:
        version = str(bucket.version)
    sealed_at = ""
    if bucket.sealed_at is not None:
        sealed_at = instant(bucket.sealed_at)
    return [
        bucket.name,
        Text(bucket.state, _STYLES[bucket.state]),
        count_cell(bucket.rows, "?"),
        f"{bucket.files:,}",
        show_size(bucket.bytes),
        count_cell(bucket.late or None, ""),
        version,
        sealed_at,
    ]
