"""`headrace promote`: puts a pipeline's shadow in the place of its table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from headrace.writer.cli.look.diff import DiffReport, diff_report
from headrace.writer.cli.maintain.shadow import OtherFile
from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import plural
from headrace.writer.maintenance.migration.promotion import Promotion, PromotionRequest, review_promotion
from headrace.writer.output.cli_options import ConfigFile
from headrace.writer.output.command import Depends, command
from headrace.writer.output.command_inputs import Pipeline
from headrace.writer.output.report import SCREEN_ONLY, Report
from headrace.writer.output.tables import sentence


@dataclass(frozen=True)
class PromotionReport(Report):
    """What becomes of the table of a pipeline and of its shadow, and what a person changes then."""

    pipeline: str
    # Locations.
    first: str
    shadow: str
    done: bool
    # Offsets that only the first table has, from before the shadow's start.
    older: int
    # Rows that were deleted from the first table.
    deleted: int
    # None: nothing was compared.
    diff: DiffReport | None
    # The configuration file to change, and what to change in it, by key.
    file: Path
    changes: Mapping[str, str]
    # SQL by engine.
    statements: Mapping[str, Sequence[str]]
    # Whether the switch was still to be made, before this command.
    is_due: bool = field(metadata=SCREEN_ONLY)

    @property
    def has_changes(self) -> bool:
        """Whether the switch is still to be made."""
        return self.is_due

    def render(self, out: Console) -> None:
        """Draw how the tables differ, what becomes of them, and what to change by hand."""
        if self.diff is not None:
            self.diff.render(out)
        if self.older:
            sentence(out, f"{self.older:,} offsets from before the shadow's start stay at {self.first} alone.")
        if self.deleted:
            sentence(
                out,
                f"{plural(self.deleted, 'row')} went from the first table by `headrace delete-rows` or another client. "
                "The shadow may have read their records: delete them there as well.",
            )
        verb = "becomes"
        instruction = f"Then set in {self.file}, and start the pipeline:"
        if self.done:
            verb = "is"
            instruction = f"Set in {self.file}:"
        sentence(
            out,
            f"{self.pipeline}: the table at {self.shadow} {verb} the pipeline's; the one at {self.first} takes no more "
            "entries.",
        )
        sentence(out, instruction)
        for key, value in self.changes.items():
            out.print(f"  {key}: {value}", soft_wrap=True, highlight=False, markup=False)
        for engine, statements in self.statements.items():
            sentence(out, f"In {engine.capitalize()}, by the names that its catalog has:")
            for statement in statements:
                out.print(f"  {statement};", soft_wrap=True, highlight=False, markup=False)
        if self.done:
            page = page_address("docs/SHADOW.md")
            sentence(out, f"To go back, promote {self.first} ({page}). It stays whole until you remove it.")


def _load_other(other: OtherFile = None) -> Config | None:
    return load(other) if other else None


@command(
    exits={
        0: "shown or promoted",
        1: "a driver runs, or storage or catalog failed",
        2: "it cannot be promoted",
    }
)
def promote(
    config: ConfigFile,
    pipeline: Pipeline,
    shadow: Annotated[str, typer.Option("--shadow", help="Location of the shadow.")],
    other: OtherFile = None,
    leave_history: Annotated[
        bool,
        typer.Option("--leave-history", help="What the first table has from before the shadow's start stays there."),
    ] = False,
    no_diff: Annotated[bool, typer.Option("--no-diff", help="Do not read the rows of both tables.")] = False,
    *,
    other_config: Annotated[Config | None, Depends(_load_other)],
    write: bool,
) -> PromotionReport:
    """Put a pipeline's shadow in the place of its table.

    Both writers are stopped. The shadow has every offset that the first table has; the rows may differ, and it is shown
    by how many. Then the log of the first table is at its end, and Iceberg tables change their names in the catalog. If
    it breaks off, run it again. Nothing is copied or removed, and the other direction goes back.
    """
    request = PromotionRequest(
        pipeline.config,
        other_config or pipeline.config,
        other or config,
        pipeline.name,
        shadow,
        leave_history,
        not no_diff,
    )
    return run_promote(request, write=write, now=datetime.now(UTC))


def run_promote(request: PromotionRequest, *, write: bool, now: datetime) -> PromotionReport:
    """Find what becomes of the two tables, and switch them if asked.

    Raises ConfigError where it cannot be, ForeignChange, CommitFailed, DriverAlive.
    """
    promotion = Promotion(request)
    is_due = not promotion.is_done
    if is_due:
        check_no_driver(promotion.first, request.pipeline, "Stop it, then promote.")
        check_no_driver(promotion.shadow, request.pipeline, "It writes the shadow. Stop it, then promote.")
    review = review_promotion(request, promotion)
    if is_due and write:
        promotion.carry_out(review.committed, {"at": now.isoformat()})
    diff = None
    if review.comparison is not None:
        diff = diff_report(review.comparison, review.partitions)
    return PromotionReport(
        pipeline=request.pipeline,
        first=promotion.first_location,
        shadow=promotion.shadow_location,
        done=write or not is_due,
        older=review.older,
        deleted=review.deleted,
        diff=diff,
        file=request.file,
        changes=promotion.list_settings(request.other),
        statements=promotion.statements(),
        is_due=is_due,
    )
