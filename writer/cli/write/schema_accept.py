"""`headrace schema accept`: shows schema ids that mean other schemas than before, and stores their new meaning."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from rich.console import Console

from writer.avro.wire_format import CONFLUENT, show_id
from writer.clients.driver_endpoint import nobody_runs
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import instant, iso, plural
from writer.core.units import microseconds
from writer.output import tables
from writer.schemas.format_detection import wire_of
from writer.schemas.registry import SchemaNotFound, SchemaSource, by
from writer.schemas.schema_id_check import Meanings, meant, place
from writer.table import schema_ids
from writer.table.factory import main_table

_SAID = {
    "same": "means what it did",
    "other": "another schema",
    "no_avro": "no Avro: nothing to accept, its records are dead letters",
    "gone": "not in the registry: nothing to accept, its records are dead letters",
}


@dataclass(frozen=True)
class SchemaMeaning:
    """What an id meant by the table's log, and what it means by the registry."""

    schema_id: int
    before: int
    now: int | None  # None: there is no Avro schema
    state: Literal["same", "other", "no_avro", "gone"]
    name: str  # of the registry's schema, with its number of fields; empty without one


def run_accept(
    config: Config, name: str, source: SchemaSource, wanted: Sequence[str], since: datetime | None, *, write: bool,
    now: datetime, as_json: bool, out: Console,
) -> bool:  # fmt: skip
    """Show which ids have other meanings, and write these if asked. Returns whether any has. Raises HeadraceError."""
    table = main_table(name, config)
    if not table.exists():
        raise ConfigError(f"pipeline {name!r} has no table at {table.location}; its schema ids mean nothing yet.")
    snapshot, recent = table.snapshot(), table.recent(1)
    transactions = snapshot.state.transactions
    ids = (config.pipelines[name].wire.fixed or wire_of(recent) or CONFLUENT).ids
    meanings = Meanings(name, config.registry, lambda: transactions)
    known = schema_ids.recorded(transactions, meanings.prefix(ids))
    where = place(config.registry, ids)
    chosen = _chosen(wanted, known, where)
    schemas = by(source, ids)
    looks = [look(schemas, schema_id, known[schema_id]) for schema_id in chosen]
    moved = meanings.since(ids) if wanted and since else {}  # accepted before; now from another instant on
    values = {
        one.schema_id: one.now
        for one in looks
        if one.now is not None and (one.state == "other" or one.schema_id in moved)
    }
    began = (since or _newest(recent)) if values else None
    version = None
    if write and began is not None:
        nobody_runs(config, name, "Stop it, then accept: it may commit once more.")
        named = {meanings.name(i, ids): at for i, at in values.items()}
        facts = {
            "at": now.isoformat(), "registry": where, "ids": ids, "since": began.isoformat(),
            "accepted": [{"id": show_id(i), "before": _hex(known[i]), "now": _hex(at)} for i, at in values.items()],
        }  # fmt: skip
        sinces = dict.fromkeys(map(schema_ids.since_name, named), microseconds(began))
        version = table.accept_schema_ids(snapshot, {**named, **sinces}, facts)
    if as_json:
        tables.emit_whole({
            "pipeline": name, "registry": where, "since": None if began is None else iso(began), "version": version,
            "ids": [
                {"id": show_id(one.schema_id), "state": one.state, "before": _hex(one.before),
                 "now": None if one.now is None else _hex(one.now), "schema": one.name or None}
                for one in looks
            ],
        })  # fmt: skip
    else:
        _show(out, name, where, looks, began, version)
    return began is not None


def look(schemas: SchemaSource, schema_id: int, before: int) -> SchemaMeaning:
    """Hold an id against the log. Raises RegistryUnreachable."""
    try:
        text = schemas.schema(schema_id)
    except SchemaNotFound:
        return SchemaMeaning(schema_id, before, None, "gone", "")
    found = meant(text)
    if found is None:
        return SchemaMeaning(schema_id, before, None, "no_avro", "")
    raw = json.loads(text)
    name = f"{raw.get('name')}, {plural(len(raw.get('fields', ())), 'field')}" if isinstance(raw, dict) else str(raw)
    return SchemaMeaning(schema_id, before, found, "same" if found == before else "other", name)


def _chosen(wanted: Sequence[str], known: Mapping[int, int], where: str) -> list[int]:
    try:
        found = [UUID(text).int if "-" in text else int(text) for text in wanted]
    except ValueError as error:
        raise ConfigError(f"--id: {error}. Give ids of schemas, such as 7.") from error
    if strange := sorted(set(found) - known.keys()):
        listed = ", ".join(map(show_id, sorted(known))) or "none"
        raise ConfigError(
            f"--id {show_id(strange[0])}: no record was read by this id of {where}, so there is nothing to change. "
            f"The table's log knows {listed}."
        )
    return found or sorted(known)


def _newest(recent: Sequence[Mapping[str, Any]]) -> datetime:
    """Return when the newest batch began: what it read was still read by the old schemas. Raises ConfigError."""
    started = next((facts["started"] for facts in recent if facts.get("started")), None)
    if started is None:
        raise ConfigError("the table's log tells of no batch any more: say with --since from when on the ids mean this")
    return datetime.fromisoformat(started)


def _show(
    out: Console, name: str, where: str, looks: Sequence[SchemaMeaning], since: datetime | None, version: int | None
) -> None:
    tables.sentence(out, f"{name}: {plural(len(looks), 'schema id')} of {where} by which records were read", "bold")
    columns = [tables.Column("id", right=True, width_min=6), *(
        tables.Column(title) for title in ("in the log", "now", "schema", "")
    )]  # fmt: skip
    tables.TextTable(out, columns).add([
        [
            show_id(one.schema_id), _hex(one.before), "-" if one.now is None else _hex(one.now), one.name or "-",
            _SAID[one.state],
        ]
        for one in looks
    ])  # fmt: skip
    if since is None:
        tables.sentence(out, "There is nothing to accept.")
        return
    tables.sentence(
        out, f"Records that Kafka had before {instant(since)} are taken for those of the old schemas: a batch, a "
        "replay and a backfill that meet them leave them as dead letters. --since moves this instant.",
    )  # fmt: skip
    tables.sentence(
        out,
        "`headrace schema plan --id N` shows what a schema does to the table. Stop the driver, if one runs."
        if version is None
        else f"Written as version {version} of the table. Start the pipeline: it reads by the new schemas.",
    )


def _hex(fingerprint: int) -> str:
    return f"{fingerprint:016x}"
