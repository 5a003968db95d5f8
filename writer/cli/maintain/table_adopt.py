"""`headrace table`: adopts a table of another client, and accepts changes of other clients."""

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

import typer
from rich.console import Console

from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.core.offsets import TopicPartition
from writer.core.text import instant, join_first, plural
from writer.maintenance.change_acceptance import AcceptancePlan, ChangeAcceptance
from writer.maintenance.migration.table_adoption import AdoptionPlan, TableAdoption
from writer.output.cli_options import AsJson, ConfigFile, OnePipeline, load_pipeline
from writer.output.confirmation import DryRun, Yes, confirm
from writer.output.tables import console, emit_whole, sentence

_PARTITIONS_NAMED = 5


def run_adopt(config: Config, name: str, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show the adoption of a pipeline's table, and write it if asked. Raises ConfigError when it cannot be.

    Returns true: there is always something to write.
    """
    adoption = TableAdoption(config, name)
    plan = adoption.plan()
    version = adoption.carry_out(plan, {"at": now.isoformat()}) if write else None
    if as_json:
        emit_whole(_adoption_document(adoption, plan, version))
    else:
        _show_adoption(out, adoption, plan, version)
    return True


def _adoption_document(adoption: TableAdoption, plan: AdoptionPlan, version: int | None) -> Mapping[str, Any]:
    return {
        "pipeline": adoption.pipeline,
        "version": version,
        "rows": plan.rows,
        "files": plan.files,
        "buckets": plan.buckets,
        "rows_compared": plan.rows_compared,
        "columns_added": list(plan.columns_added),
        "start": _start_document(adoption.settings),
    }


def _start_document(settings: Pipeline) -> Any:
    """Return `start` of a pipeline as JSON values."""
    match settings.start:
        case {"timestamp": datetime() as time}:
            return {"timestamp": time.isoformat()}
        case start:
            return start


def _show_adoption(out: Console, adoption: TableAdoption, plan: AdoptionPlan, version: int | None) -> None:
    contents = f"{plural(plan.rows, 'row')} in {plural(plan.files, 'file')} of {plural(plan.buckets, 'bucket')}"
    # An Iceberg table has no version of headrace's log yet.
    if plan.snapshot.version >= 0:
        contents += f", at version {plan.snapshot.version}"
    sentence(out, f"{adoption.pipeline}: the table at {adoption.location} has {contents}.")
    sentence(out, f"The buckets of {plural(plan.rows_compared, 'row')} were worked out anew: all are right.")
    columns = "It has all columns."
    if plan.columns_added:
        columns = f"Columns {', '.join(plan.columns_added)} are added, null in these rows."
    sentence(out, f"{columns} The pipeline begins at {_describe_start(_start_document(adoption.settings))}.")
    if version is None:
        sentence(out, "First stop all other writers of the table.")
        return
    sentence(
        out,
        f"Written as version {version}: the table is the pipeline's from there on, and its rows are a term of the "
        "account. Nobody else may add rows now. Start the pipeline.",
    )


def _describe_start(start: str | Mapping[str, Any]) -> str:
    if isinstance(start, str):
        return start
    if "timestamp" in start:
        return f"timestamp {instant(start['timestamp'])}"
    return ", ".join(f"{key} {value}" for key, value in start.items())


def run_accept(config: Config, name: str, *, write: bool, now: datetime, as_json: bool, out: Console) -> bool:
    """Show what other clients did and what is no longer proven, and accept it if asked.

    Returns whether there is anything to accept.

    Raises ConfigError where there is no table of the pipeline's, or its frontier went back; CommitFailed, DriverAlive.
    """
    acceptance = ChangeAcceptance(config, name)
    plan = acceptance.plan()
    version = None
    if write and plan.effects:
        version = acceptance.carry_out(plan, {"at": now.isoformat()})
    if as_json:
        emit_whole(_acceptance_document(name, plan, version))
    else:
        _show_acceptance(out, name, plan, version)
    return bool(plan.effects)


def _acceptance_document(name: str, plan: AcceptancePlan, version: int | None) -> Mapping[str, Any]:
    return {
        "pipeline": name,
        "table_version": plan.snapshot.version,
        "version": version,
        "rows_fewer": plan.rows_fewer,
        "changes": [
            {
                "version": effect.change.version,
                "operation": effect.change.operation,
                "files_gone": effect.files_gone,
                "files_added": effect.files_added,
                "rows_before": effect.rows_before,
                "rows_after": effect.rows_after,
            }
            for effect in plan.effects
        ],
        "not_proven_below": [
            {**vars(part), "offset": offset} for part, offset in sorted(plan.snapshot.parts().items())
        ],
    }


def _show_acceptance(out: Console, name: str, plan: AcceptancePlan, version: int | None) -> None:
    if not plan.effects:
        sentence(out, f"{name}: no other client did anything that needs to be accepted.")
        return
    for effect in plan.effects:
        sentence(
            out,
            f"{name}: {effect.change}: {plural(effect.files_gone, 'file')} went and {effect.files_added:,} came; "
            f"{plural(effect.rows_before, 'row')} before, {effect.rows_after:,} after.",
        )
    sentence(
        out,
        "`headrace audit` can then no longer prove that rows of these offsets are what Kafka held, each there once: "
        f"{_describe_offsets(plan.snapshot.parts())}. That each offset was read once, and which became dead letters or "
        "late rows, it still proves from the beginning.",
    )
    sentence(out, "The frontier stays: rows that are missing now are not read again.")
    if version is None:
        undone_version = plan.effects[0].change.version - 1
        sentence(out, f"`headrace rewind --to {undone_version}` undoes it instead. Stop the driver, if one runs.")
    else:
        sentence(
            out, f"Accepted, as version {version} of the table. Start the pipeline; from there on every row is proven."
        )


def _describe_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    names = [f"{part.full_name} below {offset:,}" for part, offset in sorted(offsets.items())]
    return join_first(names, _PARTITIONS_NAMED)


table = typer.Typer(no_args_is_help=True, help="Tables that other clients made, or changed.")


@table.command()
def adopt(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Make a Delta or Iceberg table that headrace did not make the pipeline's, with the rows that it has.

    Its partition columns must be the pipeline's buckets, and its protocol reader 1, writer 2, or its format version 2;
    what is in the way is said, all at once. `start` in the configuration says where to read on. Columns that say where
    a row came from are added, and the old rows are a term of the account: `audit` adds up.

    Exit codes: 0 shown or written, 1 another process wrote the table meanwhile, 2 it cannot be adopted.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(run_adopt, settings, name, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)


@table.command()
def accept(
    config: ConfigFile,
    pipeline: OnePipeline = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Accept what another client did to the pipeline's table, such as UPDATE or RESTORE: its rows stay as they are.

    The writer refuses to go on from it, as offsets did not move with the rows; `headrace rewind` takes it back. Once it
    is accepted, the writer goes on from its frontier, and `audit` proves the rows from there on; of those before, it
    says that they were accepted.

    Exit codes: 0 shown or written, 1 a driver runs, or another process wrote the table meanwhile, 2 configuration.
    """
    settings, name = load_pipeline(config, pipeline)
    work = partial(run_accept, settings, name, now=datetime.now(UTC), as_json=as_json, out=console())
    confirm(work, yes=yes, dry_run=dry_run, as_json=as_json)
