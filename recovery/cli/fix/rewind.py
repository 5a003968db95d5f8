"""`headrace rewind`: undoes what was committed after a version, as far as Kafka still holds the records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from rich.console import Console

from headrace.recovery.rewind.execution import BucketPreview, RewindExecution, RewindPreview
from headrace.writer.config.pipelines import Config
from headrace.writer.core.files import BucketKey
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.core.text import instant, plural
from headrace.writer.output.cli_options import version_or_time
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import Column, TextTable, count_cell, numbers, sentence
from headrace.writer.sealing.manifest import bucket_path
from headrace.writer.table.log.foreign_writes import Change

_BUCKETS_SHOWN = 20


@dataclass(frozen=True)
class RewoundPartition:
    """Where a topic partition goes back to, and what Kafka holds of it; None: the pipeline does not read it now."""

    topic: str
    incarnation: int
    partition: int
    table_end: int
    back_to: int
    log_start: int | None
    log_end: int | None
    # The first of the offsets that Kafka does not hold, and the end of these.
    not_held: tuple[int, int] | None

    @property
    def cells(self) -> list[str]:
        """Its line on a page."""
        return [
            TopicPartition(self.topic, self.incarnation, self.partition).full_name,
            f"{self.back_to:,}",
            f"{self.table_end:,}",
            f"{self.table_end - self.back_to:,}",
            count_cell(self.log_start),
            count_cell(self.log_end),
            f"not held: [{self.not_held[0]}, {self.not_held[1]})" if self.not_held else "",
        ]


@dataclass(frozen=True)
class RewoundBucket:
    """Rows of a bucket that go, and that are left. `manifest`: the newest version of its manifest, if it has one."""

    bucket: BucketKey
    rows: int
    left: int
    manifest: int | None
    # The folders of its files; before them the name of the table of a route.
    name: str = field(metadata=SCREEN_ONLY)

    @property
    def cells(self) -> list[str]:
        """Its line on a page."""
        cells = [self.name, f"{self.rows:,}", f"{self.left:,}"]
        if self.manifest is None:
            return [*cells, "-", ""]
        return [*cells, f"v{self.manifest}", f"reopened; its next manifest is v{self.manifest + 1}"]


@dataclass(frozen=True)
class RewoundTarget:
    """What goes of a table of a route."""

    name: str
    location: str
    rows: int
    late_table_rows: int
    buckets: Sequence[RewoundBucket]


@dataclass(frozen=True)
class RewindReport(Report):
    """What goes back, or went. `version`: of the entry; None: nothing was written."""

    pipeline: str
    to: int
    to_written_at: datetime | None
    table_version: int
    version: int | None
    # Why it is not done.
    refused: Sequence[str]
    offsets: int
    rows: int
    files: int
    dead_letter_table_rows: int
    late_table_rows: int
    raw_records: int
    # Ids of those that would be over.
    gaps: Sequence[str]
    # Rows that left on purpose, by why.
    taken_since: Mapping[str, int]
    undone: Sequence[Change]
    partitions: Sequence[RewoundPartition]
    buckets: Sequence[RewoundBucket]
    targets: Sequence[RewoundTarget]
    preview: RewindPreview = field(metadata=SCREEN_ONLY)
    # It was to be written.
    write: bool = field(metadata=SCREEN_ONLY)
    # The next start records what Kafka lost; else it stops.
    records_loss: bool = field(metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 2]:
        """2 where it was to be written, and is refused."""
        return 2 if self.write and self.refused else 0

    @property
    def has_changes(self) -> bool:
        """Whether there is something to take back, and nothing in the way."""
        return self.preview.moves and not self.refused

    def render(self, out: Console) -> None:
        """Draw what goes, and what to do before and after."""
        when = f" ({instant(self.to_written_at)})" if self.to_written_at else ""
        if not self.preview.moves and not self.refused:
            text = f"no record landed after version {self.to}{when}; there is nothing to take back."
            sentence(out, f"{self.pipeline}: {text}")
            return
        text = (
            f"{self.pipeline}: from version {self.table_version} back to {self.to}{when}: {self.offsets:,} offsets, "
            f"{plural(self.rows, 'row')} in {plural(self.files, 'file')}, "
            f"{plural(self.dead_letter_table_rows, 'row')} of the dead-letter table, "
            f"{plural(self.late_table_rows, 'row')} of the late table"
        )
        if self.preview.raw:
            text += f", {self.raw_records:,} of the raw table"
        sentence(out, f"{text}.")
        self._render_partitions(out)
        self._render_buckets(out)
        for note in notes(self.preview):
            sentence(out, note)
        if self.version is not None:
            self._render_version(out)
            return
        for refusal in self.refused:
            sentence(out, f"Refused: {refusal}")
        if not self.refused:
            sentence(out, "Stop the driver, if one runs.")

    def _render_partitions(self, out: Console) -> None:
        if not self.partitions:
            return
        offsets = numbers("goes back to", "table ends at", "offsets", "Kafka holds from", "to")
        out.print()
        TextTable(out, [Column("partition", width_min=20), *offsets, Column("")]).add(
            [partition.cells for partition in self.partitions]
        )
        out.print()

    def _render_buckets(self, out: Console) -> None:
        buckets = [*self.buckets]
        for target in self.targets:
            buckets += target.buckets
        if not buckets:
            return
        columns = [Column("bucket", width_min=20), *numbers("rows go", "stay", "sealed"), Column("")]
        TextTable(out, columns).add([bucket.cells for bucket in buckets[:_BUCKETS_SHOWN]])
        if len(buckets) > _BUCKETS_SHOWN:
            sentence(out, f"and {len(buckets) - _BUCKETS_SHOWN:,} more buckets (--json has all)")
        out.print()

    def _render_version(self, out: Console) -> None:
        """Draw what was written, and what to do next."""
        next_step = "Start the pipeline: it reads on where it was."
        if self.partitions:
            next_step = "Fix what was wrong, then start the pipeline: it reads these offsets again."
        sentence(out, f"Written as version {self.version} of the table. {next_step}")
        if self.preview.plan.unreadable and not self.records_loss:
            sentence(out, "It refuses to start while on_data_loss is `stop`: Kafka does not hold all of them.")


@command(
    exits={
        0: "shown or written",
        1: "a driver runs, another process wrote meanwhile, or Kafka does not answer",
        2: "it cannot be",
    }
)
def rewind(
    pipeline: Pipeline,
    to: Annotated[
        str,
        typer.Option("--to", help="Version of the table, or a time: the newest version that was written by then."),
    ],
    accept_loss: Annotated[
        bool,
        typer.Option(
            "--accept-loss",
            help="Also where Kafka does not hold all of it any more: the next start records that as a gap.",
        ),
    ] = False,
    *,
    write: bool,
) -> RewindReport:
    """Take back what landed after a version of the table: rows, dead letters and frontier together, by one entry.

    For wrong data: stop the driver, rewind, fix what was wrong, start again; the writer reads the same records anew.
    Rows go by their offsets, so what was deleted, compacted or dropped since stays so. Sealed buckets that it touches
    are reopened; their next manifest has the next version. What another client did since, and what the pipeline refused
    to go on from, such as UPDATE or RESTORE, is undone first.
    """
    execution = RewindExecution(pipeline.config, pipeline.name)
    to_version = version_or_time("--to", to)
    now = datetime.now(UTC)
    return run_rewind(execution, pipeline.config, to_version, accept_loss=accept_loss, write=write, now=now)


def run_rewind(
    execution: RewindExecution, config: Config, to: int | datetime, *, accept_loss: bool, write: bool, now: datetime
) -> RewindReport:
    """Find what would go back, and write it if asked and nothing is in the way. Raises HeadraceError."""
    preview = execution.preview(to)
    version = None
    refusals = find_refusals(preview, accept_loss=accept_loss)
    if write and not refusals and preview.moves:
        preview, version = execution.write(preview, now)
    plan = preview.plan
    return RewindReport(
        pipeline=execution.name,
        to=plan.to,
        to_written_at=preview.earlier.written_at,
        table_version=preview.snapshot.version,
        version=version,
        refused=refusals,
        offsets=plan.offsets,
        rows=preview.rows,
        files=preview.files,
        dead_letter_table_rows=preview.dead_letters,
        late_table_rows=preview.late,
        raw_records=preview.raw_records,
        gaps=list(plan.gaps),
        taken_since=preview.later.removed_rows,
        undone=preview.later.foreign_changes,
        partitions=[_partition(preview, r) for r in plan.ranges],
        buckets=_buckets(preview.buckets, preview.snapshot.state.metadata["partitionColumns"]),
        targets=[
            RewoundTarget(
                target.record.name,
                target.record.location,
                target.entry.rows,
                target.late,
                _buckets(target.buckets, target.columns, prefix=f"{target.record.name}: "),
            )
            for target in preview.targets
        ],
        preview=preview,
        write=write,
        records_loss=config.pipelines[execution.name].on_data_loss == "record",
    )


def find_refusals(preview: RewindPreview, *, accept_loss: bool) -> list[str]:
    """Return why it is not done."""
    refusals = list(preview.plan.obstacles)
    if preview.plan.losses and not accept_loss:
        refusals.append(f"{preview.plan.losses}. --accept-loss gives them up; or choose a later version.")
    return refusals


def notes(preview: RewindPreview) -> list[str]:
    """Return what else a person should know before."""
    plan = preview.plan
    undo = preview.undo
    deleted = preview.later.removed_rows.get("delete")
    sentences = []
    if undo:
        changes = " and ".join(map(str, undo.changes))
        sentences.append(
            f"What others did is undone: {changes}. {plural(len(undo.gone), 'file')} as they left them go, "
            f"{plural(len(undo.back), 'file')} of version {undo.base.version} come back."
        )
    if plan.unreadable:
        sentences.append(f"{plan.losses}: they become a gap at the next start.")
    if plan.gaps:
        sentences.append(
            f"{plural(len(plan.gaps), 'gap')} that opened since would be over; what Kafka lacks is a gap again."
        )
    if deleted:
        sentences.append(
            f"{plural(deleted, 'row')} were deleted by key since. Those that came after version {plan.to} are "
            "in Kafka: they come back, so run `headrace delete-rows` again."
        )
    if preview.later.replays:
        sentences.append("Dead letters were replayed since; rows of dead letters from before stay.")
    return sentences


def _partition(preview: RewindPreview, r: OffsetRange) -> RewoundPartition:
    log_range = preview.log_ranges.get(r.part.source)
    unreadable = {lost.part: lost.span for lost in preview.plan.unreadable}
    return RewoundPartition(
        r.part.topic,
        r.part.incarnation,
        r.part.partition,
        table_end=r.end,
        back_to=r.start,
        log_start=log_range.earliest if log_range else None,
        log_end=log_range.end if log_range else None,
        not_held=unreadable.get(r.part),
    )


def _buckets(buckets: Sequence[BucketPreview], columns: Sequence[str], prefix: str = "") -> list[RewoundBucket]:
    return [
        RewoundBucket(
            bucket.key, bucket.taken, bucket.left, bucket.manifest or None, prefix + bucket_path(columns, bucket.key)
        )
        for bucket in buckets
    ]
