"""Acceptance of schema ids that mean other schemas by the registry than when a table's rows were read."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import uuid4

from headrace.writer.avro.schema_text import read_json
from headrace.writer.clients.driver_endpoint import check_no_driver
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.core.units import microseconds
from headrace.writer.framing.wire_format import CONFLUENT, Ids, parse_id, show_id
from headrace.writer.json.envelope import read_envelope
from headrace.writer.json.json_schema import schema_name
from headrace.writer.protobuf.registered_schema import read_schema
from headrace.writer.schemas.format_detection import wire_of
from headrace.writer.schemas.registry import SchemaNotFound, SchemaSource, of_keys, with_ids
from headrace.writer.schemas.schema_id_check import IdMeanings, registered_fingerprint, registry_name
from headrace.writer.table.factory import main_table
from headrace.writer.table.log import schema_ids
from headrace.writer.table.log.snapshot import PipelineSnapshot

# An id, and the kind of ids that it is one of.
KindAndId = tuple[Ids, int]


@dataclass(frozen=True)
class SchemaMeaning:
    """The schema of an id by the table's log, as a fingerprint, and its schema by the registry."""

    schema_id: int
    before: int
    # None: there is no Avro schema.
    now: int | None
    state: Literal["same", "other", "no_avro", "gone"]
    # Name of the registry's schema, with its number of fields; empty without one.
    name: str


@dataclass(frozen=True)
class MeaningPlan:
    """The meanings that were looked at, and those of them that are to be written."""

    snapshot: PipelineSnapshot
    registry: str
    kinds: Sequence[Ids]
    meanings: Mapping[KindAndId, SchemaMeaning]
    # Fingerprints that are written.
    accepted: Mapping[KindAndId, int]
    # From when on the ids mean this; None: nothing is written.
    since: datetime | None


class MeaningAcceptance:
    """The schema ids of a pipeline's table, and the step that writes their new meanings."""

    def __init__(self, config: Config, pipeline: str, source: SchemaSource) -> None:
        """Find the table. Raises ConfigError where there is none."""
        self.config = config
        self.pipeline = pipeline
        self._source = source
        self._table = main_table(pipeline, config)
        if not self._table.exists():
            raise ConfigError(
                f"pipeline {pipeline!r} has no table at {self._table.location}; its schema ids mean nothing yet."
            )

    def plan(self, ids: Sequence[str], since: datetime | None) -> MeaningPlan:
        """Compare ids with the log, by default all of it. Raises ConfigError, RegistryUnreachable.

        `since`: from when on they have their meanings, by default when the newest batch began.
        """
        snapshot = self._table.snapshot()
        recent_batches = self._table.recent_commits(1)
        id_meanings = self._id_meanings(snapshot)
        kinds = self._list_kinds(recent_batches)
        settings = self.config.registry_of(self.pipeline)
        registry = ", ".join(dict.fromkeys(registry_name(settings, kind) for kind in kinds))
        recorded: dict[KindAndId, int] = {}
        moved: set[KindAndId] = set()
        for kind in kinds:
            fingerprints = schema_ids.recorded_meanings(snapshot.state.transactions, id_meanings.prefix(kind))
            recorded |= {(kind, schema_id): fingerprint for schema_id, fingerprint in fingerprints.items()}
            if ids and since:
                # They were accepted before, and have their meanings from another time on now.
                moved |= {(kind, schema_id) for schema_id in id_meanings.since(kind)}
        meanings = {
            (kind, schema_id): compare_meaning(self._source, kind, schema_id, recorded[kind, schema_id])
            for kind, schema_id in _choose_ids(ids, list(recorded), registry)
        }
        accepted = {
            key: meaning.now
            for key, meaning in meanings.items()
            if meaning.now is not None and (meaning.state == "other" or key in moved)
        }
        if accepted and since is None:
            since = _start_of_newest_batch(recent_batches)
        return MeaningPlan(snapshot, registry, kinds, meanings, accepted, since if accepted else None)

    def carry_out(self, plan: MeaningPlan, now: datetime) -> int:
        """Write the accepted meanings. Returns the version that holds them. Raises CommitFailed, DriverAlive."""
        if plan.since is None:
            raise ValueError("nothing is to be accepted")
        check_no_driver(self.config, self.pipeline, "Stop it, then accept: it may commit once more.")
        id_meanings = self._id_meanings(plan.snapshot)
        fingerprints = {
            id_meanings.name(schema_id, kind): fingerprint for (kind, schema_id), fingerprint in plan.accepted.items()
        }
        times = dict.fromkeys(map(schema_ids.since_name, fingerprints), microseconds(plan.since))
        facts = {
            "at": now.isoformat(),
            "registry": plan.registry,
            "ids": ", ".join(plan.kinds),
            "since": plan.since.isoformat(),
            "accepted": [_describe_acceptance(plan.meanings[key]) for key in plan.accepted],
        }
        acceptance = schema_ids.SchemaAcceptance(uuid4().hex, fingerprints | times, facts)
        return self._table.append(acceptance, plan.snapshot)

    def _id_meanings(self, snapshot: PipelineSnapshot) -> IdMeanings:
        return IdMeanings(self.pipeline, self.config.registry_of(self.pipeline), lambda: snapshot.state.transactions)

    def _list_kinds(self, recent_batches: Sequence[Mapping[str, Any]]) -> list[Ids]:
        """Return the kinds of ids by which the pipeline reads values and keys."""
        settings = self.config.pipelines[self.pipeline]
        wires = [settings.wire_of_values or wire_of(recent_batches)]
        if settings.columns.avro_key is not None:
            wires.append(settings.columns.avro_key.wire.fixed or wire_of(recent_batches, "key"))
        single_wires = [single_wire for wire in wires for single_wire in (wire or CONFLUENT).all]
        return list(dict.fromkeys(wire.ids for wire in single_wires))


def compare_meaning(source: SchemaSource, kind: Ids, schema_id: int, recorded: int) -> SchemaMeaning:
    """Compare the schema of an id with its recorded fingerprint. Raises RegistryUnreachable."""
    text = _find_schema(source, kind, schema_id)
    if text is None:
        return SchemaMeaning(schema_id, recorded, None, "gone", "")
    fingerprint = registered_fingerprint(text)
    if fingerprint is None:
        return SchemaMeaning(schema_id, recorded, None, "no_avro", "")
    state: Literal["same", "other"] = "same" if fingerprint == recorded else "other"
    return SchemaMeaning(schema_id, recorded, fingerprint, state, _describe_schema(text))


def show_fingerprint(fingerprint: int) -> str:
    """Write a fingerprint as 16 hex digits."""
    return f"{fingerprint:016x}"


def _describe_schema(text: str) -> str:
    """Return name and size of a schema, for a person."""
    protobuf = read_schema(text)
    if protobuf is not None:
        messages = plural(len(protobuf.messages), "message")
        return (
            f"Protobuf {', '.join(protobuf.messages[:1])}, {messages}, {plural(len(protobuf.references), 'reference')}"
        )
    json_schema = read_envelope(text)
    if json_schema is not None:
        schema_text, references = json_schema
        return f"JSON Schema {schema_name(schema_text)}, {plural(len(references), 'reference')}"
    schema = read_json(text)
    if isinstance(schema, dict):
        return f"{schema.get('name')}, {plural(len(schema.get('fields', ())), 'field')}"
    return str(schema)


def _find_schema(source: SchemaSource, kind: Ids, schema_id: int) -> str | None:
    # Files have schemas of keys apart from those of values.
    for schemas in (source, of_keys(source)):
        with suppress(SchemaNotFound):
            return with_ids(schemas, kind).schema(schema_id)
    return None


def _choose_ids(texts: Sequence[str], recorded: Sequence[KindAndId], registry: str) -> list[KindAndId]:
    """Return the recorded ids that texts name, or all. Raises ConfigError for a text that is none of them."""
    try:
        numbers = [parse_id(text) for text in texts]
    except ValueError as error:
        raise ConfigError(f"--id: {error}. Give ids of schemas, such as 7.") from error
    recorded_numbers = {number for _, number in recorded}
    unknown = sorted(set(numbers) - recorded_numbers)
    if unknown:
        names = ", ".join(map(show_id, sorted(recorded_numbers))) or "none"
        raise ConfigError(
            f"--id {show_id(unknown[0])}: no record was read by this id of {registry}, so there is nothing to change. "
            f"The table's log knows {names}."
        )
    if not numbers:
        return sorted(recorded)
    chosen = [(kind, number) for kind, number in recorded if number in numbers]
    return sorted(chosen, key=lambda key: numbers.index(key[1]))


def _start_of_newest_batch(recent_batches: Sequence[Mapping[str, Any]]) -> datetime:
    """Return when the newest batch began: what it read was still read by the old schemas. Raises ConfigError."""
    started = next((facts["started"] for facts in recent_batches if facts.get("started")), None)
    if started is None:
        raise ConfigError("the table's log tells of no batch any more: say with --since from when on the ids mean this")
    return datetime.fromisoformat(started)


def _describe_acceptance(meaning: SchemaMeaning) -> Mapping[str, str]:
    assert meaning.now is not None, "it is accepted"
    return {
        "id": show_id(meaning.schema_id),
        "before": show_fingerprint(meaning.before),
        "now": show_fingerprint(meaning.now),
    }
