"""`headrace promote`: puts a pipeline's shadow in the place of its table."""

from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from writer.cli.look.diff import diff_report
from writer.cli.maintain.shadow import OtherFile
from writer.clients.driver_endpoint import check_no_driver
from writer.config.loader import load
from writer.core.pages import page_address
from writer.core.text import plural
from writer.maintenance.migration.promotion import Promotion, PromotionRequest, PromotionReview, review_promotion
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console, emit_whole, sentence


def run_promote(request: PromotionRequest, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show what becomes of the two tables, and switch them if asked. Returns whether anything is left to do.

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
    is_done = write or not is_due
    if as_json:
        emit_whole(_document(request, promotion, review, done=is_done))
    else:
        _show(out, request, promotion, review, done=is_done)
    return is_due


def _document(
    request: PromotionRequest, promotion: Promotion, review: PromotionReview, *, done: bool
) -> dict[str, Any]:
    return {
        "pipeline": request.pipeline,
        "first": promotion.first_location,
        "shadow": promotion.shadow_location,
        "done": done,
        "older": review.older,
        "deleted": review.deleted,
        "diff": review.comparison and diff_report(review.comparison, review.partitions).document(),
        "file": str(request.file),
        "changes": promotion.list_settings(request.other),
        "statements": promotion.statements(),
    }


def _show(
    out: Console, request: PromotionRequest, promotion: Promotion, review: PromotionReview, *, done: bool
) -> None:
    first = promotion.first_location
    if review.comparison is not None:
        diff_report(review.comparison, review.partitions).render(out)
    if review.older:
        sentence(out, f"{review.older:,} offsets from before the shadow's start stay at {first} alone.")
    if review.deleted:
        sentence(
            out,
            f"{plural(review.deleted, 'row')} went from the first table by `headrace delete-rows` or another client. "
            "The shadow may have read their records: delete them there as well.",
        )
    verb = "becomes"
    instruction = f"Then set in {request.file}, and start the pipeline:"
    if done:
        verb = "is"
        instruction = f"Set in {request.file}:"
    sentence(
        out,
        f"{request.pipeline}: the table at {promotion.shadow_location} {verb} the pipeline's; the one at {first} takes "
        "no more entries.",
    )
    sentence(out, instruction)
    for key, value in promotion.list_settings(request.other).items():
        out.print(f"  {key}: {value}", soft_wrap=True, highlight=False, markup=False)
    for engine, statements in promotion.statements().items():
        sentence(out, f"In {engine.capitalize()}, by the names that its catalog has:")
        for statement in statements:
            out.print(f"  {statement};", soft_wrap=True, highlight=False, markup=False)
    if done:
        sentence(
            out, f"To go back, promote {first} ({page_address('docs/SHADOW.md')}). It stays whole until you remove it."
        )


def promote(
    config: ConfigFile,
    shadow: Annotated[str, typer.Option("--shadow", help="Location of the shadow.")],
    pipeline: OnePipeline = None,
    other: OtherFile = None,
    leave_history: Annotated[
        bool,
        typer.Option("--leave-history", help="What the first table has from before the shadow's start stays there."),
    ] = False,
    no_diff: Annotated[bool, typer.Option("--no-diff", help="Do not read the rows of both tables.")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Put a pipeline's shadow in the place of its table.

    Both writers are stopped. The shadow has every offset that the first table has; the rows may differ, and it is shown
    by how many. Then the log of the first table is at its end, and Iceberg tables change their names in the catalog. If
    it breaks off, run it again. Nothing is copied or removed, and the other direction goes back.

    Exit codes: 0 shown or promoted, 1 a driver runs, or storage or catalog failed, 2 it cannot be promoted.
    """
    first, name = load_pipeline(config, pipeline)
    other_config = load(other) if other else first
    request = PromotionRequest(first, other_config, other or config, name, shadow, leave_history, not no_diff)
    work = partial(run_promote, request, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
