"""A configuration to begin with: what topics, schemas and a sample of the records show, as a commented YAML file."""

import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import pyarrow as pa
from pydantic import BaseModel

from headrace.writer.clients import kafka_sample
from headrace.writer.config.base import ShortForm
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Kafka, Registry
from headrace.writer.config.sections.kafka_client import Security
from headrace.writer.config.sections.resource_limits import Commit
from headrace.writer.config.sections.table import EventTime, Roll, Table
from headrace.writer.config.yaml_text import dump_inline
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import plural
from headrace.writer.core.units import show_duration, show_size
from headrace.writer.framing.wire_format import Wire
from headrace.writer.maintenance.local_pipeline import Sample, open_local_pipeline
from headrace.writer.preflight.sample_checks import Times, times_in
from headrace.writer.schemas.registry import source

# Characters of a line of the file.
_WIDTH = 110
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


@dataclass(frozen=True)
class TopicSummary:
    """The keys of a pipeline that only a topic's records can tell, and the reasons for them."""

    topic: str
    wire: str | Mapping[str, Any]
    wire_reason: str
    # The field with the event time.
    field: str
    field_reason: str


def settings(
    bootstrap_servers: str,
    registry_url: str,
    lake: str,
    *,
    security: Mapping[str, Any] = MappingProxyType({}),
    registry: Mapping[str, Any] = MappingProxyType({}),
    pipelines: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the configuration as YAML has it, with references in the place of passwords.

    `security`: keys of kafka.security. `registry`: its keys besides the URL. `pipelines`: by name, what each has
    besides its table.
    """
    kafka: dict[str, Any] = {"bootstrap_servers": bootstrap_servers}
    if security:
        kafka["security"] = dict(security)
    return {
        "kafka": kafka,
        "registry": {"url": registry_url, **registry},
        "checkpoints": f"{lake}/_checkpoints",
        "pipelines": {name: {"table": {"location": f"{lake}/{name}"}, **keys} for name, keys in pipelines.items()},
    }


def summary(name: str, config: Config, field: str | None, records: int, now: datetime) -> TopicSummary:
    """Read a sample of a pipeline's topic. `field`: its event time; None: it is chosen by the sample.

    Raises ConfigError where wire format or event time cannot be found, BrokerUnreachable, RegistryUnreachable.
    """
    (topic,) = config.pipelines[name].topics.names
    local_pipeline = open_local_pipeline(name, config, source(config.registry), with_table=False)
    spans = kafka_sample.spans(kafka_sample.open_cluster(config.kafka), [topic], records)
    batch = kafka_sample.read(config.kafka, spans)
    values = len(batch.column("value").drop_null())
    wire: str | Mapping[str, Any] = "auto"
    wire_reason = "the topic holds no values yet"
    sample = Sample()
    if values:
        wire_format = local_pipeline.settle_wire(batch)
        wire = _wire(wire_format)
        wire_reason = f"{plural(values, 'sampled value')}: {wire_format.description}"
        sample = local_pipeline.decode(batch)
    try:
        if field is None:
            field, field_reason = _choose_event_time(local_pipeline.plan.columns, sample, now)
        else:
            field_reason = "as asked"
    except ConfigError as error:
        raise ConfigError(f"{topic}: {error}. Name the field with the event time: --event-time.") from error
    return TopicSummary(topic, wire, wire_reason, field, field_reason)


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


def text(references: Mapping[str, Any], config: Config, topics: Mapping[str, TopicSummary]) -> str:
    """Return the file, with the configuration's own description of each key.

    `references`: what `settings` returned. `config`: the same, checked, with passwords and defaults. `topics`: by
    pipeline.
    """
    lines = [
        "# Written by `headrace init`. The keys behind `#` are worth a thought. `headrace validate` checks the file,",
        "# and `headrace run` starts the writer.",
        f"# Every key: {page_address('docs/REFERENCE.md#configuration')}",
        f"# TLS and logins: {page_address('SECURITY.md')}",
        "",
        "kafka:",
        *_key(Kafka, "bootstrap_servers", references["kafka"]["bootstrap_servers"], 2),
        *(["  security:"] if "security" in references["kafka"] else []),
        *_keys(Security, references["kafka"].get("security", {}), 4),
        "registry:",
        *_keys(Registry, references["registry"], 2),
        *_key(Config, "checkpoints", config.checkpoints, 0),
        "pipelines:",
    ]
    for name, topic in topics.items():
        lines += _pipeline(name, config.pipelines[name], topic)
    return "\n".join(lines) + "\n"


def _pipeline(name: str, pipeline: Pipeline, topic: TopicSummary) -> Iterator[str]:
    yield f"  {name}:"
    yield from _key(Pipeline, "topics", [topic.topic], 4)
    yield from _key(Pipeline, "start", pipeline.start, 4, off=True)
    yield f"    # {topic.wire_reason}"
    yield f"    wire: {dump_inline(topic.wire)}"
    yield "    table:"
    yield from _key(Table, "location", pipeline.table.location, 6)
    yield from _key(Table, "format", pipeline.table.format, 6, off=True)
    yield "    event_time:"
    yield from textwrap.wrap(topic.field_reason, _WIDTH, initial_indent="      # ", subsequent_indent="      # ")
    yield f"      field: {dump_inline(topic.field)}"
    yield from _key(EventTime, "max_age", show_duration(pipeline.event_time.max_age), 6, off=True)
    yield from _key(EventTime, "max_ahead", show_duration(pipeline.event_time.max_ahead), 6, off=True)
    bucket = {**pipeline.bucket, "width": show_duration(pipeline.bucket["width"])}
    yield from _key(Pipeline, "bucket", bucket, 4)
    yield "    commit:"
    yield from _key(Commit, "max_delay", show_duration(pipeline.commit.max_delay), 6)
    yield "    roll:"
    yield from _key(Roll, "target_file_size", show_size(pipeline.roll.target_file_size), 6)
    # The least retention that is allowed.
    yield from _key(Pipeline, "retention", show_duration(pipeline.event_time.max_age), 4, off=True)


def _keys(model: type[BaseModel], values: Mapping[str, Any], indent: int) -> Iterator[str]:
    for name, value in values.items():
        yield from _key(model, name, value, indent)


def _key(model: type[BaseModel], name: str, value: Any, indent: int, *, off: bool = False) -> Iterator[str]:
    """Write a key below its description in the configuration; `off`: behind a `#`."""
    margin = " " * indent
    field = model.model_fields[name]
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, ShortForm):
        field = kind.model_fields[kind.short]
    description = field.description or ""
    yield from textwrap.wrap(description, _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
    if off:
        margin += "# "
    yield f"{margin}{name}: {dump_inline(value)}"
