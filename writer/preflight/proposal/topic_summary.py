"""What a sample of a topic shows: the formats and the wire format of its values, their columns, and the event time."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace import bucketers
from headrace.writer.batch.bucketing import KAFKA_TIME
from headrace.writer.clients import kafka_sample
from headrace.writer.columns.schema_plan import PROVENANCE, WriterSchema
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.registry import Registry
from headrace.writer.config.sections.table import EventTime
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import plural
from headrace.writer.formats.value_rules import FormatName, ValueRules
from headrace.writer.framing.wire_format import Wire
from headrace.writer.maintenance.local_pipeline import LocalPipeline, Sample, open_local_pipeline
from headrace.writer.preflight.checks.sample_checks import Times, times_in
from headrace.writer.preflight.proposal.column_proposal import (
    ProposedColumn,
    declaration,
    leave_out_conflicts,
    propose_columns,
)
from headrace.writer.preflight.proposal.member_statistics import collect_statistics
from headrace.writer.preflight.proposal.value_formats import (
    ASK_RAW,
    WITH_SCHEMAS,
    SampleFormats,
    describe_values,
    find_formats,
)
from headrace.writer.schemas.registry import SchemaNotFound, source, with_ids

# The share of rows in which an event time has believable values.
_USUAL = 0.9
# With a smaller share, the pipeline would stop.
_ENOUGH = 0.5
# The best name comes first.
_NAMES = (re.compile(r"event|occur|happen"), re.compile(r"time|date|(^|[._])ts$|[._]at$|[a-z]At$"))
# Times, but not of the event.
_OTHERS = re.compile(r"ingest|process|receiv|updat|modif|expir|insert|load")
_KINDS = (pa.types.is_timestamp, pa.types.is_integer, pa.types.is_date, pa.types.is_string, pa.types.is_float64)
# The first two kinds are plausible by the name alone.
_PLAIN = 2


# The configuration's `wire`.
WireSetting = str | Mapping[str, Any] | list[str | Mapping[str, Any]]


@dataclass(frozen=True)
class TopicSummary:
    """The keys of a pipeline that only a topic's records can tell, and the reasons for them.

    `wire`: None where no value names a schema. `columns`: of JSON without a schema.
    """

    topic: str
    formats: tuple[FormatName, ...]
    formats_reason: str
    wire: WireSetting | None
    columns: Sequence[ProposedColumn] = ()
    # The field with the event time; until it is known, one that all records have.
    field: str = KAFKA_TIME
    field_reason: str = ""

    @property
    def has_schemas(self) -> bool:
        """Whether values may name a schema of the registry."""
        return ValueRules(self.formats).has_schemas

    @property
    def column_count(self) -> int:
        """Number of columns of JSON without a schema, those inside objects counted."""
        return sum(column.columns for column in self.columns)

    @property
    def keys(self) -> dict[str, Any]:
        """The keys as the configuration has them."""
        keys: dict[str, Any] = {"formats": list(self.formats), "event_time": {"field": self.field}}
        if self.wire is not None:
            keys["wire"] = self.wire
        if self.columns:
            keys["columns"] = {"declared": declaration(self.columns)}
        return keys


@dataclass(frozen=True)
class Choices:
    """What a person chose for all topics. `event_time`: its field; None, and no formats: the sample decides."""

    event_time: str | None = None
    formats: tuple[FormatName, ...] = ()


# Returns the configuration with what a topic shows. Raises ConfigError.
Complete = Callable[[TopicSummary], Config]


def unread_pipeline(topic: str) -> dict[str, Any]:
    """Return the keys of a pipeline of which only the topic is known: its records are bytes to it."""
    return {"topics": [topic], "formats": ["raw"], "event_time": {"field": KAFKA_TIME}}


def summarize_topic(
    name: str, config: Config, complete: Complete, choices: Choices, records: int, now: datetime
) -> TopicSummary:
    """Read a sample of a pipeline's topic, and return what it shows.

    `config`: with the topic of the pipeline, and the registry, if there is one. Raises ConfigError where formats, wire
    format or event time cannot be found, BrokerUnreachable, RegistryUnreachable.
    """
    (topic,) = config.pipelines[name].topics.names
    spans = kafka_sample.spans(kafka_sample.open_cluster(config.kafka), [topic], records)
    batch = kafka_sample.read(config.kafka, spans)
    table = pa.Table.from_batches([batch])
    values = table.filter(pc.is_valid(table.column("value")))
    try:
        return _summarize_values(name, config, complete, choices, values, batch, now)
    except ConfigError as error:
        raise ConfigError(f"{topic}: {error}") from error


def _summarize_values(
    name: str,
    config: Config,
    complete: Complete,
    choices: Choices,
    values: pa.Table,
    batch: pa.RecordBatch,
    now: datetime,
) -> TopicSummary:
    """Return what values show. `batch`: their records, and those without a value. Raises as `summarize_topic` does."""
    (topic,) = config.pipelines[name].topics.names
    formats = _formats_of(topic, values, config.registry, choices.formats)
    shown = TopicSummary(topic, formats.formats, formats.reason, _wire_setting(formats))
    if shown.has_schemas and not config.registry.has_registry:
        raise ConfigError(
            f"{formats.reason}. Give the registry of their schemas, --registry-url or --registry-glue, or another "
            "--format"
        )
    if "json" in formats.formats:
        columns = _propose_columns(name, config, formats, now)
        if formats.formats != ("json",):
            columns = leave_out_conflicts(columns, _schema_texts(name, complete, shown, batch))
        shown = replace(shown, columns=columns)
    return _with_event_time(name, complete(shown), shown, choices.event_time, values, batch, now)


def _formats_of(topic: str, values: pa.Table, registry: Registry, asked: tuple[FormatName, ...]) -> SampleFormats:
    """Return the formats of a topic's values. Raises ConfigError, RegistryUnreachable."""
    if len(values):
        return find_formats(values, _schema_finder(topic, registry), asked)
    if "json" in asked:
        raise ConfigError(
            "the topic holds no values yet, which would show the members of its JSON. Produce some, or write "
            "columns.declared by hand"
        )
    return SampleFormats(asked or ("avro",), None, [], "the topic holds no values yet")


def _schema_finder(topic: str, registry: Registry) -> Callable[[Wire, int], str | None]:
    """Return what finds the text of a schema by its id in a wire format."""
    if not registry.has_registry:
        return lambda _wire, _schema_id: None
    schemas = source(registry)

    @cache
    def find_schema(wires: Wire, schema_id: int) -> str | None:
        wire, own_id = wires.of_id(schema_id)
        try:
            wire_schemas = with_ids(schemas, wire.ids)
            # No registry is asked by a fingerprint.
            if wire.ids == "fingerprint":
                return wire_schemas.topic_schemas(topic).get(own_id)
            return wire_schemas.schema(own_id)
        except (SchemaNotFound, ConfigError):
            return None

    return find_schema


def _propose_columns(name: str, config: Config, formats: SampleFormats, now: datetime) -> list[ProposedColumn]:
    """Return the columns of JSON objects. Raises ConfigError where none has a member that can have one."""
    reserved = [*PROVENANCE.names, *bucketers.build(config.pipelines[name].bucket).columns]
    columns = propose_columns(collect_statistics(formats.objects), reserved, now)
    if not declaration(columns):
        raise ConfigError(
            f"no member of {plural(len(formats.objects), 'sampled JSON object')} can have a column: all are null, or "
            f"there are none. {ASK_RAW}"
        )
    return columns


def _schema_texts(name: str, complete: Complete, shown: TopicSummary, batch: pa.RecordBatch) -> list[str]:
    """Return the record schemas of the values that name some, and of those registered for the topic."""
    with_schemas = tuple(form for form in shown.formats if form in WITH_SCHEMAS)
    local_pipeline = _open(name, complete(replace(shown, formats=with_schemas)))
    local_pipeline.settle_wire(batch)
    local_pipeline.decode(batch)
    return [schema.text for schema in local_pipeline.plan.schemas.values() if isinstance(schema, WriterSchema)]


def _with_event_time(
    name: str,
    config: Config,
    shown: TopicSummary,
    asked: str | None,
    values: pa.Table,
    batch: pa.RecordBatch,
    now: datetime,
) -> TopicSummary:
    """Add the event time: as asked, or the best column, or else the record's own time if there is JSON or raw."""
    if asked is not None:
        return replace(shown, field=asked, field_reason="as asked")
    if shown.formats == ("raw",):
        return replace(shown, field=KAFKA_TIME, field_reason="the time of the record in Kafka")
    local_pipeline = _open(name, config)
    sample = Sample()
    if len(values):
        local_pipeline.settle_wire(batch)
        sample = local_pipeline.decode(batch)
    try:
        field, reason = _choose_event_time(local_pipeline.plan.columns, sample, now)
    except ConfigError as error:
        if "json" in shown.formats:
            return replace(shown, field=KAFKA_TIME, field_reason=f"the time of the record in Kafka, for {error}")
        seen = ""
        if len(values) and not sample.rows:
            seen = f" The values: {describe_values(values)}. {ASK_RAW}."
        raise ConfigError(f"{error}.{seen} Name the field with the event time: --event-time.") from error
    return replace(shown, field=field, field_reason=reason)


def _open(name: str, config: Config) -> LocalPipeline:
    return open_local_pipeline(name, config, source(config.registry_of(name)), with_table=False)


def _wire_setting(formats: SampleFormats) -> WireSetting | None:
    """Return the configuration's `wire`; None where no value names a schema."""
    if not ValueRules(formats.formats).has_schemas:
        return None
    if formats.wire is None:
        return "auto"
    wires = [_wire(wire) for wire in formats.wire.all]
    return wires[0] if len(wires) == 1 else wires


def _wire(wire: Wire) -> str | Mapping[str, Any]:
    """Return the configuration's `wire` for a format."""
    match wire.format:
        case "apicurio":
            return {"format": wire.format, "ids": wire.ids}
        case "header":
            return {"format": wire.format, "header": wire.header, "ids": wire.ids}
    return wire.format


def _choose_event_time(columns: pa.Schema, sample: Sample, now: datetime) -> tuple[str, str]:
    """Choose the event time: believable values first, then name, type and place. Raises ConfigError."""
    fields = dict(_fields(columns))
    if not sample.rows:
        likely = [name for name, kind in fields.items() if _name_rank(name) < len(_NAMES) and kind < _PLAIN]
        if not likely:
            raise ConfigError("no record can be decoded, and no field of the schemas is called like a time")
        return min(
            likely, key=lambda name: (_name_rank(name), fields[name])
        ), "by its name and type; there is no sample"
    times: dict[str, Times] = {}
    for name in fields:
        with suppress(ValueError):
            times[name] = times_in(sample, EventTime.model_validate({"field": name}).rule("auto"), now)
    candidates = [name for name, statistics in times.items() if statistics.believable >= _ENOUGH]
    if not candidates:
        raise ConfigError(f"no field of {plural(sample.rows, 'sampled row')} holds times of the last year")
    best, *others = sorted(
        candidates, key=lambda name: (times[name].believable < _USUAL, _name_rank(name), fields[name])
    )
    reason = f"{times[best].words} in {plural(sample.rows, 'sampled row')}"
    if others:
        reason += f"; other times: {', '.join(others)}"
    return best, reason


def _fields(columns: Sequence[pa.Field], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the fields that may hold times, those of records by their dotted names, and the rank of their types."""
    for field in columns:
        if pa.types.is_struct(field.type):
            yield from _fields(list(field.type), f"{prefix}{field.name}.")
            continue
        ranks = [rank for rank, is_kind in enumerate(_KINDS) if is_kind(field.type)]
        if ranks:
            yield prefix + field.name, ranks[0]


def _name_rank(name: str) -> int:
    """Rank a name: 0 is the best."""
    if _OTHERS.search(name.lower()):
        return len(_NAMES)
    return next((rank for rank, pattern in enumerate(_NAMES) if pattern.search(name)), len(_NAMES))
