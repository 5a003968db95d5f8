"""`headrace reprocess`: makes the rows of buckets anew from their records, by the schemas and rules of today."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from headrace.recovery.cli.fix.wait_line import WaitLine
from headrace.recovery.reprocess.bucket_swap import BucketOutcome
from headrace.recovery.reprocess.run import (
    BucketPreview,
    Origin,
    ReprocessRequest,
    ReprocessResult,
    ReprocessRun,
    SourceChoice,
)
from headrace.writer.core.freed_memory import keep_freed_memory
from headrace.writer.core.text import plural
from headrace.writer.maintenance.task_pool import TaskPool
from headrace.writer.output.cli_options import By, buckets_help
from headrace.writer.output.command import command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report, Screen, json_value
from headrace.writer.output.tables import Column, TextTable, numbers, sentence
from headrace.writer.schemas.registry import source
from headrace.writer.sealing.manifest import bucket_path

_BUCKET_COLUMN = Column("bucket", width_min=20)
_TITLES = ("read", "stay", "moved", "dead letters", "filtered", "no record", "version")


@dataclass(frozen=True)
class ReprocessPreview(Report):
    """What would be read."""

    pipeline: str
    buckets: Sequence[BucketPreview]
    # Those that would be replayed.
    dead_letters: int
    columns: Sequence[str] = field(metadata=SCREEN_ONLY)

    @property
    def _rows(self) -> int:
        return sum(bucket.rows for bucket in self.buckets)

    @property
    def has_changes(self) -> bool:
        """Whether there is a row to read the record of."""
        return self._rows > 0

    def render(self, out: Console) -> None:
        """Draw the buckets."""
        if not self._rows:
            sentence(out, f"{self.pipeline}: no bucket that is meant has rows; `headrace buckets` lists them.")
            return
        table = TextTable(out, [_BUCKET_COLUMN, *numbers("rows", "records there", "without offset")])
        table.add(
            [
                [
                    _bucket_name(bucket, self.columns),
                    f"{bucket.rows:,}",
                    f"{bucket.available:,}",
                    f"{bucket.unplaced:,}",
                ]
                for bucket in self.buckets
            ]
        )
        sentence(
            out,
            f"{self.pipeline}: the records of {plural(self._rows, 'row')} in {plural(len(self.buckets), 'bucket')} "
            f"would be read, and {plural(self.dead_letters, 'dead letter')} between their offsets replayed. How many "
            "rows change, move or become dead letters is known once they are decoded: a bucket whose rows come out the "
            "same is not written.",
        )


@dataclass(frozen=True)
class BucketLine(Report):
    """What became of a bucket."""

    pipeline: str
    outcome: BucketOutcome
    columns: Sequence[str]
    # All buckets are lines of one table.
    table: TextTable

    def render(self, out: Console) -> None:  # noqa: ARG002 - the table has it
        """Draw it below the one before."""
        outcome = self.outcome
        dead_letters = outcome.dead_letters + outcome.quarantined
        counts = (outcome.rows, outcome.stay, outcome.moved, dead_letters, outcome.filtered, outcome.absent)
        version = "-" if outcome.version is None else str(outcome.version)
        self.table.add([[_bucket_name(outcome, self.columns), *(f"{count:,}" for count in counts), version]])

    def document(self) -> Any:
        """Return the outcome, without the paths of its files."""
        values = {key: value for key, value in vars(self.outcome).items() if key != "paths"}
        values["into"] = [{"bucket": bucket, "rows": rows} for bucket, rows in self.outcome.into.items()]
        return json_value({"event": "bucket", "pipeline": self.pipeline, **values})


@dataclass(frozen=True)
class ReplayedDeadLetters:
    """The dead letters that were replayed between the offsets of the buckets, and the rows that came of them."""

    dead_letters: int
    rows: int


@dataclass(frozen=True)
class ReprocessReport(Report):
    """What became of all buckets. `absent`: rows of which the source has no record, or none that is a row."""

    event: str = field(default="ended", init=False)
    pipeline: str
    buckets: int
    changed: int
    absent: int
    replayed: ReplayedDeadLetters
    moved: int = field(metadata=SCREEN_ONLY)
    # Rows without an offset.
    unplaced: int = field(metadata=SCREEN_ONLY)

    @property
    def exit_code(self) -> Literal[0, 1]:
        """1 where the source lacks records of some rows."""
        return 1 if self.absent else 0

    def render(self, out: Console) -> None:
        """Draw the sums."""
        replayed = self.replayed
        sentence(
            out,
            f"{self.pipeline}: {self.changed:,} of {plural(self.buckets, 'bucket')} changed, "
            f"{plural(self.moved, 'row')} moved to other buckets; of {plural(replayed.dead_letters, 'dead letter')} "
            f"{replayed.rows:,} became rows.",
            "bold",
        )
        if self.absent:
            sentence(
                out,
                f"The source has no records of {plural(self.absent, 'row')}: they stay as they are. Run it again with "
                "another --from.",
                "yellow",
            )
        if self.unplaced:
            sentence(out, f"{plural(self.unplaced, 'row')} say no offset, and stay as they are.")


@command(
    exits={
        0: "done, or it was only shown",
        1: "the source lacks records of some rows, which stay as they are, or something does not answer",
        2: "configuration",
        5: "too many failed records",
    },
    json_form="a line for each bucket, and one at the end",
    has_lines=True,
)
def reprocess(
    pipeline: Pipeline,
    buckets: Annotated[str, typer.Option("--buckets", help=buckets_help("The buckets"))],
    origin: Annotated[
        Origin, typer.Option("--from", help="Where the records come from; raw: the pipeline's raw table (table.raw).")
    ],
    archive: Annotated[
        list[str] | None,
        typer.Option("--archive", metavar="LOCATION", help="With --from archive: its files; may be repeated."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--columns", help="With --from archive: its columns, such as offset=kafka_offset,value=body."),
    ] = None,
    rate: Annotated[float | None, typer.Option("--rate", min=0.1, help="At most so many records a second.")] = None,
    tasks: Annotated[
        int,
        typer.Option(
            "--tasks",
            min=1,
            help="How many tasks fetch, decode and write a bucket at once, each in a process of its own; 1: in the "
            "command's own. More are worth their memory for buckets of many million rows.",
        ),
    ] = 1,
    by: By = None,
    *,
    write: bool,
    screen: Screen,
) -> ReprocessPreview | ReprocessReport:
    """Make the rows of buckets anew from their records, by the schemas, event-time rules and specs of today.

    Start the writer with the corrected configuration first; it goes on meanwhile. The records at the offsets of these
    buckets' rows are decoded again, and each bucket is swapped in one commit. Rows may move to other buckets or become
    dead letters; dead letters at these offsets are replayed. What left the table by a delete or a retention stays out.
    Sealed buckets that change are reopened, and get a next manifest. If the command is interrupted, run it again.
    """
    request = ReprocessRequest(buckets, SourceChoice(origin, tuple(archive or ()), columns), rate, by or "")
    pool = TaskPool(tasks)
    schemas = source(pipeline.config.registry_of(pipeline.name))
    run = ReprocessRun(pipeline.name, pipeline.config, schemas, request, pool)
    if not write:
        preview = run.preview()
        return ReprocessPreview(run.name, preview.buckets, preview.dead_letters, run.columns)
    # The live writer comes first where both share a machine.
    os.nice(5)
    keep_freed_memory()
    table = TextTable(screen.out, [_BUCKET_COLUMN, *numbers(*_TITLES)])
    with pool:
        result = run.run(
            datetime.now(UTC),
            lambda outcome: screen.show(BucketLine(run.name, outcome, run.columns, table)),
            lambda why: screen.show(WaitLine(run.name, why)),
        )
    return _report(run.name, result)


def _report(name: str, result: ReprocessResult) -> ReprocessReport:
    changes = [outcome for outcome in result.buckets if outcome.version is not None]
    return ReprocessReport(
        pipeline=name,
        buckets=len(result.buckets),
        changed=len(changes),
        absent=sum(outcome.absent for outcome in result.buckets),
        replayed=ReplayedDeadLetters(result.dead_letters.chosen, result.dead_letters.rows),
        moved=sum(outcome.moved for outcome in changes),
        unplaced=sum(outcome.unplaced for outcome in result.buckets),
    )


def _bucket_name(bucket: BucketOutcome | BucketPreview, columns: Sequence[str]) -> str:
    path = bucket_path(columns, bucket.bucket)
    return f"{path} (late table)" if bucket.late else path
