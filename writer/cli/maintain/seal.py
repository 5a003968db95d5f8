"""`headrace seal`: closes and seals buckets now, or shows what would be sealed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Literal

import typer
from rich.console import Console

from headrace import bucketers
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import instant, plural
from headrace.writer.driver.sealing.seal_request import BlockedBucket, SealRequest, seal_buckets
from headrace.writer.output.cli_options import buckets_help, time_of
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Now, Table
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.table_choice import ChosenTable
from headrace.writer.output.tables import Column, TextTable, hanging, numbers, sentence
from headrace.writer.sealing.bucket_selection import BucketSelection, parse_buckets
from headrace.writer.sealing.manifest import Manifest


@dataclass(frozen=True)
class SealReport(Report):
    """The buckets that were sealed, or would be."""

    dry_run: bool
    # Buckets that end by then are closed; None: none is yet.
    closed_until: datetime | None
    sealed: Sequence[Manifest]
    blocked: Sequence[BlockedBucket]
    notes: Sequence[str]
    is_kafka_silent: bool = field(metadata=SCREEN_ONLY)
    closes_buckets: bool = field(metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where a bucket could not be sealed, or Kafka did not say what is due."""
        is_incomplete = not self.dry_run and (bool(self.blocked) or self.is_kafka_silent)
        return 1 if is_incomplete else 0

    @property
    def has_changes(self) -> bool:
        """Whether a bucket would be sealed or closed."""
        return bool(self.sealed) or self.closes_buckets

    def render(self, out: Console) -> None:
        """Draw the buckets, and why others are not sealed."""
        closed = "nothing is closed yet"
        if self.closed_until is not None:
            closed = f"closed until {instant(self.closed_until)}"
        verb = "would be sealed" if self.dry_run else "sealed"
        sentence(out, f"{closed}; {plural(len(self.sealed), 'bucket')} {verb}")
        if self.sealed:
            columns = [Column("bucket"), *numbers("version", "rows", "files", "late"), Column("why")]
            TextTable(out, columns).add([_cells(manifest) for manifest in self.sealed])
        for bucket in self.blocked:
            hanging(out, f"{bucket.name} is not sealed: ", bucket.reason, "yellow")
        for note in self.notes:
            sentence(out, note)


@command(
    exits={
        0: "sealed or shown, or nothing to do",
        1: "a bucket could not be sealed, or Kafka does not answer",
        2: "it cannot be so",
    }
)
def seal(
    table: Table,
    now: Now,
    bucket: Annotated[str | None, typer.Argument(help=buckets_help("Only these buckets"))] = None,
    until: Annotated[
        str | None, typer.Option("--until", help="Close every bucket that ends by this time, and seal them.")
    ] = None,
    with_gap: Annotated[
        bool, typer.Option("--with-gap", help="Also those whose records may lie in a gap: Kafka lost them.")
    ] = False,
    *,
    write: bool,
) -> SealReport:
    """Seal buckets: say in a manifest what each holds, once no more rows are expected on time.

    Without BUCKET or --until, what is due by watermark or clock, as the driver does by itself. With one of them, on
    your word that the rows are there: what still comes is late. Without Spark; may run beside the writer.
    """
    if bucket is not None and until is not None:
        raise ConfigError("give BUCKET or --until, not both")
    request = SealRequest(_parse_selection(table, bucket), time_of("--until", until), with_gap, dry_run=not write)
    result = seal_buckets(table.pipeline, table.file_config, request, now, table.target)
    return SealReport(
        dry_run=request.dry_run,
        closed_until=result.closed_until,
        sealed=result.manifests,
        blocked=result.blocked,
        notes=result.notes,
        is_kafka_silent=result.is_kafka_silent,
        closes_buckets=result.closes_buckets,
    )


def _parse_selection(table: ChosenTable, text: str | None) -> BucketSelection | None:
    if text is None:
        return None
    return parse_buckets(text, bucketers.build(table.config.pipelines[table.pipeline].bucket))


def _cells(manifest: Manifest) -> list[str]:
    numbers = [f"{number:,}" for number in (manifest.rows, manifest.files, manifest.late)]
    reason: str = manifest.reason
    if manifest.with_gap:
        reason += ", with a gap"
    return [manifest.name, str(manifest.version), *numbers, reason]
