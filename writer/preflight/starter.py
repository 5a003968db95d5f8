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
import yaml
from pydantic import BaseModel

from writer.avro.wire_format import Wire
from writer.clients import kafka_sample
from writer.config.base import ShortForm
from writer.config.connections import Kafka, Registry
from writer.config.kafka_client import Security
from writer.config.pipeline import Pipeline
from writer.config.pipeline_sections import Commit
from writer.config.pipelines import Config
from writer.config.table_sections import EventTime, Roll, Table
from writer.core.errors import ConfigError
from writer.core.text import plural
from writer.core.units import show_duration, show_size
from writer.maintenance.local_pipeline import Sample, opened
from writer.preflight.sample_checks import Times, times_in
from writer.schemas.registry import source

_WIDTH = 110  # columns of the file
_USUAL, _ENOUGH = 0.9, 0.5  # share of believable times: an event time has so many; with fewer, the pipeline would stop
_NAMES = (re.compile(r"event|occur|happen"), re.compile(r"time|date|(^|[._])ts$|[._]at$|[a-z]At$"))  # the best first
_OTHERS = re.compile(r"ingest|process|receiv|updat|modif|expir|insert|load")  # times, but not the event's
_KINDS = (pa.types.is_timestamp, pa.types.is_integer, pa.types.is_date, pa.types.is_string, pa.types.is_float64)
_PLAIN = 2  # the first two of them may be told by their names alone


@dataclass(frozen=True)
class TopicSummary:
    """The keys of a pipeline that only a topic's records can tell, and what showed them."""

    topic: str
    wire: str | Mapping[str, Any]
    wire_seen: str
    field: str  # of event_time
    field_seen: str


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
    return {
        "kafka": {"bootstrap_servers": bootstrap_servers, **({"security": dict(security)} if security else {})},
        "registry": {"url": registry_url, **registry},
        "checkpoints": f"{lake}/_checkpoints",
        "pipelines": {name: {"table": {"location": f"{lake}/{name}"}, **rest} for name, rest in pipelines.items()},
    }


def summary(name: str, config: Config, field: str | None, records: int, now: datetime) -> TopicSummary:
    """Read a sample of a pipeline's topic. `field`: its event time, where it need not be found.

    Raises ConfigError where wire format or event time cannot be found, BrokerUnreachable, RegistryUnreachable.
    """
    (topic,) = config.pipelines[name].topics.names
    walk = opened(name, config, source(config.registry), with_table=False)
    spans = kafka_sample.spans(kafka_sample.asked(config.kafka), [topic], records)
    batch = kafka_sample.read(config.kafka, spans)
    values = len(batch.column("value").drop_null())
    wire: str | Mapping[str, Any] = "auto"
    seen, sample = "the topic holds no values yet", Sample()
    if values:
        found = walk.settled(batch)
        wire, seen, sample = _wire(found), f"{plural(values, 'sampled value')}: {found.words}", walk.decoded(batch)
    try:
        chosen, why = _chosen(walk.plan.columns, sample, now) if field is None else (field, "as asked")
    except ConfigError as error:
        raise ConfigError(f"{topic}: {error}. Name the field with the event time: --event-time.") from error
    return TopicSummary(topic, wire, seen, chosen, why)


def _wire(found: Wire) -> str | Mapping[str, Any]:
    """Return the configuration's `wire` for a format."""
    match found.format:
        case "apicurio":
            return {"format": found.format, "ids": found.ids}
        case "header":
            return {"format": found.format, "header": found.header, "ids": found.ids}
    return found.format


def _chosen(columns: pa.Schema, sample: Sample, now: datetime) -> tuple[str, str]:
    """Choose the event time: believable values first, then name, type and place. Raises ConfigError."""
    fields = dict(_fields(columns))
    if not sample.rows:
        likely = [name for name, kind in fields.items() if _named(name) < len(_NAMES) and kind < _PLAIN]
        if not likely:
            raise ConfigError("no record can be decoded, and no field of the schemas is called like a time")
        return min(likely, key=lambda name: (_named(name), fields[name])), "by its name and type; there is no sample"
    times: dict[str, Times] = {}
    for name in fields:
        with suppress(ValueError):
            times[name] = times_in(sample, EventTime.model_validate({"field": name}).rule("auto"), now)
    fit = [name for name, found in times.items() if found.believable >= _ENOUGH]
    if not fit:
        raise ConfigError(f"no field of {plural(sample.rows, 'sampled row')} holds times of the last year")
    best, *others = sorted(fit, key=lambda name: (times[name].believable < _USUAL, _named(name), fields[name]))
    rest = f"; other times: {', '.join(others)}" if others else ""
    return best, f"{times[best].words} in {plural(sample.rows, 'sampled row')}{rest}"


def _fields(columns: Sequence[pa.Field], prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the fields that may hold times, those of records by their dotted names, and the rank of their types."""
    for field in columns:
        if pa.types.is_struct(field.type):
            yield from _fields(list(field.type), f"{prefix}{field.name}.")
        elif (rank := next((at for at, fits in enumerate(_KINDS) if fits(field.type)), None)) is not None:
            yield prefix + field.name, rank


def _named(name: str) -> int:
    """Rank a name: 0 is the best."""
    if _OTHERS.search(name.lower()):
        return len(_NAMES)
    return next((at for at, pattern in enumerate(_NAMES) if pattern.search(name)), len(_NAMES))


def text(begun: Mapping[str, Any], config: Config, found: Mapping[str, TopicSummary]) -> str:
    """Return the file, with the configuration's own words on each key.

    `begun`: what `settings` returned, with its references. `config`: the same, checked, with its defaults. `found`: by
    pipeline.
    """
    lines = [
        "# Written by `headrace init`. docs/REFERENCE.md lists every key; SECURITY.md has TLS and logins. The keys",
        "# behind `#` are worth a thought. `headrace validate` checks the file, and `headrace run` starts the writer.",
        "",
        "kafka:",
        *_key(Kafka, "bootstrap_servers", begun["kafka"]["bootstrap_servers"], 2),
        *(["  security:"] if "security" in begun["kafka"] else []),
        *_keys(Security, begun["kafka"].get("security", {}), 4),
        "registry:",
        *_keys(Registry, begun["registry"], 2),
        *_key(Config, "checkpoints", config.checkpoints, 0),
        "pipelines:",
    ]
    for name, topic in found.items():
        lines += _pipeline(name, config.pipelines[name], topic)
    return "\n".join(lines) + "\n"


def _pipeline(name: str, pipeline: Pipeline, topic: TopicSummary) -> Iterator[str]:
    yield f"  {name}:"
    yield from _key(Pipeline, "topics", [topic.topic], 4)
    yield from _key(Pipeline, "start", pipeline.start, 4, off=True)
    yield f"    # {topic.wire_seen}"
    yield f"    wire: {_scalar(topic.wire)}"
    yield "    table:"
    yield from _key(Table, "location", pipeline.table.location, 6)
    yield from _key(Table, "format", pipeline.table.format, 6, off=True)
    yield "    event_time:"
    yield from textwrap.wrap(topic.field_seen, _WIDTH, initial_indent="      # ", subsequent_indent="      # ")
    yield f"      field: {_scalar(topic.field)}"
    yield from _key(EventTime, "max_age", show_duration(pipeline.event_time.max_age), 6, off=True)
    yield from _key(EventTime, "max_ahead", show_duration(pipeline.event_time.max_ahead), 6, off=True)
    bucket = {**pipeline.bucket, "width": show_duration(pipeline.bucket["width"])}
    yield from _key(Pipeline, "bucket", bucket, 4)
    yield "    commit:"
    yield from _key(Commit, "max_delay", show_duration(pipeline.commit.max_delay), 6)
    yield "    roll:"
    yield from _key(Roll, "target_file_size", show_size(pipeline.roll.target_file_size), 6)
    yield from _key(
        Pipeline, "retention", show_duration(pipeline.event_time.max_age), 4, off=True
    )  # the least that fits


def _keys(model: type[BaseModel], values: Mapping[str, Any], indent: int) -> Iterator[str]:
    for name, value in values.items():
        yield from _key(model, name, value, indent)


def _key(model: type[BaseModel], name: str, value: Any, indent: int, *, off: bool = False) -> Iterator[str]:
    """Write a key below what the configuration says about it; `off`: behind a `#`."""
    margin, field = " " * indent, model.model_fields[name]
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, ShortForm):
        field = kind.model_fields[kind.short]
    about = field.description or ""
    yield from textwrap.wrap(about, _WIDTH, initial_indent=f"{margin}# ", subsequent_indent=f"{margin}# ")
    yield f"{margin}{'# ' if off else ''}{name}: {_scalar(value)}"


def _scalar(value: Any) -> str:
    """Write a value as YAML on one line."""
    dumped = yaml.safe_dump(value, default_flow_style=True, width=10**6, sort_keys=False, allow_unicode=True)
    return dumped.removesuffix("\n").removesuffix("\n...")
