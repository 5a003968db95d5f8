"""`headrace table accept`: accepts changes of other clients to a table."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.console import Console

from writer.config.pipelines import Config
from writer.core.offsets import TopicPartition
from writer.core.text import join_first, plural
from writer.maintenance.change_acceptance import AcceptancePlan, ChangeAcceptance
from writer.output.tables import emit_whole, sentence

_PARTITIONS_NAMED = 5


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
        emit_whole(_document(name, plan, version))
    else:
        _show(out, name, plan, version)
    return bool(plan.effects)


def _document(name: str, plan: AcceptancePlan, version: int | None) -> Mapping[str, Any]:
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


def _show(out: Console, name: str, plan: AcceptancePlan, version: int | None) -> None:
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
