"""`headrace schema accept`: shows schema ids that mean other schemas than before, and stores their new meaning."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from rich.console import Console

from writer.avro.schema_text import read_json
from writer.avro.wire_format import CONFLUENT, Ids, show_id
from writer.clients.driver_endpoint import check_no_driver
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.core.text import instant, iso, plural
from writer.core.units import microseconds
from writer.output import tables
from writer.schemas.format_detection import wire_of
from writer.schemas.registry import SchemaNotFound, SchemaSource, by, of_keys
from writer.schemas.schema_id_check import IdMeanings, meant, place
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
    snapshot, recent = table.snapshot(), table.recent_commits(1)
    transactions = snapshot.state.transactions
    meanings = IdMeanings(name, config.registry, lambda: transactions)
    kinds = _kinds(config.pipelines[name], recent)
    where = ", ".join(dict.fromkeys(place(config.registry, ids) for ids in kinds))
    known = {
        (ids, i): at
        for ids in kinds
        for i, at in schema_ids.recorded_meanings(transactions, meanings.prefix(ids)).items()
    }
    looks = {at: look(source, *at, known[at]) for at in _chosen(wanted, list(known), where)}
    # Accepted before; now from another instant on.
    moved = {(ids, i) for ids in kinds for i in meanings.since(ids)} if wanted and since else set()
    values = {at: one.now for at, one in looks.items() if one.now is not None and (one.state == "other" or at in moved)}
    began = (since or _newest(recent)) if values else None
    version = None
    if write and began is not None:
        check_no_driver(config, name, "Stop it, then accept: it may commit once more.")
        named = {meanings.name(i, ids): found for (ids, i), found in values.items()}
        facts = {
            "at": now.isoformat(), "registry": where, "ids": ", ".join(kinds), "since": began.isoformat(),
            "accepted": [
                {"id": show_id(at[1]), "before": _hex(known[at]), "now": _hex(found)} for at, found in values.items()
            ],
        }  # fmt: skip
        sinces = dict.fromkeys(map(schema_ids.since_name, named), microseconds(began))
        version = table.accept_schema_ids(snapshot, {**named, **sinces}, facts)
    if as_json:
        tables.emit_whole({
            "pipeline": name, "registry": where, "since": None if began is None else iso(began), "version": version,
            "ids": [
                {"id": show_id(one.schema_id), "state": one.state, "before": _hex(one.before),
                 "now": None if one.now is None else _hex(one.now), "schema": one.name or None}
                for one in looks.values()
            ],
        })  # fmt: skip
    else:
        _show(out, name, where, list(looks.values()), began, version)
    return began is not None


def _kinds(pipeline: Pipeline, recent: Sequence[Mapping[str, Any]]) -> list[Ids]:
    """Return the kinds of ids by which the pipeline reads values and keys."""
    wires = [pipeline.wire.fixed or wire_of(recent)]
    if pipeline.columns.avro_key is not None:
        wires.append(pipeline.columns.avro_key.wire.fixed or wire_of(recent, "key"))
    return list(dict.fromkeys((wire or CONFLUENT).ids for wire in wires))


def look(source: SchemaSource, ids: Ids, schema_id: int, before: int) -> SchemaMeaning:
    """Compare an id with the log. Raises RegistryUnreachable."""
    text = None
    for schemas in (source, of_keys(source)):  # files have those of keys apart
        with suppress(SchemaNotFound):
            text = text or by(schemas, ids).schema(schema_id)
    if text is None:
        return SchemaMeaning(schema_id, before, None, "gone", "")
    found = meant(text)
    if found is None:
        return SchemaMeaning(schema_id, before, None, "no_avro", "")
    raw = read_json(text)
    name = f"{raw.get('name')}, {plural(len(raw.get('fields', ())), 'field')}" if isinstance(raw, dict) else str(raw)
    return SchemaMeaning(schema_id, before, found, "same" if found == before else "other", name)


def _chosen(wanted: Sequence[str], known: Sequence[tuple[Ids, int]], where: str) -> list[tuple[Ids, int]]:
    try:
        found = [UUID(text).int if "-" in text else int(text) for text in wanted]
    except ValueError as error:
        raise ConfigError(f"--id: {error}. Give ids of schemas, such as 7.") from error
    numbers = {number for _, number in known}
    if strange := sorted(set(found) - numbers):
        listed = ", ".join(map(show_id, sorted(numbers))) or "none"
        raise ConfigError(
            f"--id {show_id(strange[0])}: no record was read by this id of {where}, so there is nothing to change. "
            f"The table's log knows {listed}."
        )
    return [at for number in found for at in known if at[1] == number] or sorted(known)


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
