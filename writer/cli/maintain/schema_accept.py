"""`headrace schema accept`: shows schema ids that mean other schemas than before, and stores their new meaning."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console

from writer.avro.wire_format import show_id
from writer.config.pipelines import Config
from writer.core.text import instant, iso, plural
from writer.output.tables import Column, TextTable, emit_whole, sentence
from writer.schemas.meaning_acceptance import MeaningAcceptance, MeaningPlan, SchemaMeaning, show_fingerprint
from writer.schemas.registry import SchemaSource

_STATES = {
    "same": "means what it did",
    "other": "another schema",
    "no_avro": "no Avro: nothing to accept, its records are dead letters",
    "gone": "not in the registry: nothing to accept, its records are dead letters",
}


def run_accept(
    config: Config,
    name: str,
    source: SchemaSource,
    ids: Sequence[str],
    since: datetime | None,
    *,
    write: bool,
    now: datetime,
    as_json: bool,
    out: Console,
) -> bool:
    """Show which ids have other meanings, and write these if asked. Returns whether any has. Raises HeadraceError."""
    acceptance = MeaningAcceptance(config, name, source)
    plan = acceptance.plan(ids, since)
    version = None
    if write and plan.accepted:
        version = acceptance.carry_out(plan, now)
    if as_json:
        emit_whole(_document(name, plan, version))
    else:
        _show(out, name, plan, version)
    return bool(plan.accepted)


def _document(name: str, plan: MeaningPlan, version: int | None) -> Mapping[str, Any]:
    return {
        "pipeline": name,
        "registry": plan.registry,
        "since": plan.since and iso(plan.since),
        "version": version,
        "ids": [_meaning_document(meaning) for meaning in plan.meanings.values()],
    }


def _meaning_document(meaning: SchemaMeaning) -> Mapping[str, Any]:
    return {
        "id": show_id(meaning.schema_id),
        "state": meaning.state,
        "before": show_fingerprint(meaning.before),
        "now": None if meaning.now is None else show_fingerprint(meaning.now),
        "schema": meaning.name or None,
    }


def _show(out: Console, name: str, plan: MeaningPlan, version: int | None) -> None:
    ids = plural(len(plan.meanings), "schema id")
    sentence(out, f"{name}: {ids} of {plan.registry} by which records were read", "bold")
    columns = [Column("id", right=True, width_min=6), *map(Column, ("in the log", "now", "schema", ""))]
    TextTable(out, columns).add([_row(meaning) for meaning in plan.meanings.values()])
    if plan.since is None:
        sentence(out, "There is nothing to accept.")
        return
    sentence(
        out,
        f"Records that Kafka had before {instant(plan.since)} are taken for those of the old schemas: a batch, a "
        "replay and a backfill that meet them leave them as dead letters. --since moves this instant.",
    )
    if version is None:
        sentence(
            out,
            "`headrace schema plan --id N` shows what a schema does to the table. Stop the driver, if one runs.",
        )
    else:
        sentence(out, f"Written as version {version} of the table. Start the pipeline: it reads by the new schemas.")


def _row(meaning: SchemaMeaning) -> list[str]:
    fingerprint = "-"
    if meaning.now is not None:
        fingerprint = show_fingerprint(meaning.now)
    return [
        show_id(meaning.schema_id),
        show_fingerprint(meaning.before),
        fingerprint,
        meaning.name or "-",
        _STATES[meaning.state],
    ]
