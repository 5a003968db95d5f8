"""A configuration to begin with: what topics, schemas and a sample of the records show, as a commented YAML file."""

import textwrap
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from headrace.writer.config.base import ShortForm
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.config.sections.kafka_client import Security
from headrace.writer.config.sections.record_format import Columns
from headrace.writer.config.sections.registry import Registry
from headrace.writer.config.sections.resource_limits import Commit
from headrace.writer.config.sections.table import EventTime, Roll, Table
from headrace.writer.config.yaml_text import dump_inline
from headrace.writer.core.pages import page_address
from headrace.writer.core.units import show_duration, show_size
from headrace.writer.preflight.proposal.column_proposal import declaration_lines
from headrace.writer.preflight.proposal.topic_summary import TopicSummary

# Characters of a line of the file.
_WIDTH = 110


def settings(
    bootstrap_servers: str,
    registry_url: str | None,
    lake: str,
    *,
    security: Mapping[str, Any] = MappingProxyType({}),
    registry: Mapping[str, Any] = MappingProxyType({}),
    pipelines: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    """Return the configuration as YAML has it, with references in the place of passwords.

    `registry_url`: None where there is no registry at a URL. `security`: keys of kafka.security. `registry`: its keys
    besides the URL; with none and no URL there is no registry. `pipelines`: by name, what each has besides its table.
    """
    kafka: dict[str, Any] = {"bootstrap_servers": bootstrap_servers}
    if security:
        kafka["security"] = dict(security)
    registry_keys = dict(registry)
    if registry_url is not None:
        registry_keys = {"url": registry_url, **registry}
    schemas = {"registry": registry_keys} if registry_keys else {}
    return {
        "kafka": kafka,
        **schemas,
        "checkpoints": f"{lake}/_checkpoints",
        "pipelines": {name: {"table": {"location": f"{lake}/{name}"}, **keys} for name, keys in pipelines.items()},
    }


def with_topics(references: Mapping[str, Any], topics: Mapping[str, TopicSummary]) -> dict[str, Any]:
    """Return the configuration with what topics show, and with a registry only where values name schemas.

    `references`: what `settings` returned. `topics`: by pipeline; others are left out.
    """
    complete = dict(references)
    complete["pipelines"] = {name: {**references["pipelines"][name], **topic.keys} for name, topic in topics.items()}
    if not any(topic.has_schemas for topic in topics.values()):
        complete.pop("registry", None)
    return complete


def text(references: Mapping[str, Any], config: Config, topics: Mapping[str, TopicSummary]) -> str:
    """Return the file, with the configuration's own description of each key.

    `references`: what `settings` returned. `config`: the same, checked, with passwords and defaults. `topics`: by
    pipeline.
    """
    lines = [
        "# Written by `headrace init`. The keys behind `#` are worth a thought. `headrace validate` checks the file,",
        "# and `headrace run` starts the writer.",
        f"# Every key: {page_address('docs/REFERENCE.md#configuration')}",
        f"# TLS and logins: {page_address('docs/LOGINS.md')}",
        "",
        "kafka:",
        *_key(Kafka, "bootstrap_servers", references["kafka"]["bootstrap_servers"], 2),
        *_security(references["kafka"].get("security", {}), config),
        *(["registry:"] if "registry" in references else []),
        *_keys(Registry, references.get("registry", {}), 2),
        *_key(Config, "checkpoints", config.checkpoints, 0),
        "pipelines:",
    ]
    for name, topic in topics.items():
        lines += _pipeline(name, config.pipelines[name], topic)
    return "\n".join(lines) + "\n"


def _security(keys: Mapping[str, Any], config: Config) -> Iterator[str]:
    """Yield the section of TLS and of the login, if there is one."""
    if not keys:
        return
    login = config.kafka.security.login
    yield "  security:"
    for name, value in keys.items():
        if name == "login" and login is not None:
            yield from _description(Security, name, 4)
            yield "    login:"
            # Its type says which keys it has.
            yield from _keys(type(login), value, 6)
        else:
            yield from _key(Security, name, value, 4)


def _pipeline(name: str, pipeline: Pipeline, topic: TopicSummary) -> Iterator[str]:
    yield f"  {name}:"
    yield from _key(Pipeline, "topics", [topic.topic], 4)
    yield from _key(Pipeline, "start", pipeline.start, 4, off=True)
    yield from textwrap.wrap(topic.formats_reason, _WIDTH, initial_indent="    # ", subsequent_indent="    # ")
    yield f"    formats: {dump_inline(list(topic.formats))}"
    if topic.wire is not None:
        yield f"    wire: {dump_inline(topic.wire)}"
    yield from _columns(pipeline, topic)
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


def _columns(pipeline: Pipeline, topic: TopicSummary) -> Iterator[str]:
    """Yield the columns of JSON without a schema, if there is such."""
    if not topic.columns:
        return
    yield "    columns:"
    yield "      # Proposed by the sample, for you to edit: what a table has, it keeps."
    yield from _description(Columns, "declared", 6)
    yield "      declared:"
    yield from declaration_lines(topic.columns, 8)
    yield from _key(Columns, "undeclared", pipeline.columns.undeclared, 6, off=True)
    yield from _key(Columns, "misfit", pipeline.columns.misfit, 6, off=True)


def _keys(model: type[BaseModel], values: Mapping[str, Any], indent: int) -> Iterator[str]:
    for name, value in values.items():
        yield from _key(model, name, value, indent)


def _key(model: type[BaseModel], name: str, value: Any, indent: int, *, off: bool = False) -> Iterator[str]:
    """Write a key below its description in the configuration; `off`: behind a `#`."""
    yield from _description(model, name, indent)
    margin = " " * indent
    if off:
        margin += "# "
    yield f"{margin}{name}: {dump_inline(value)}"


def _description(model: type[BaseModel], name: str, indent: int) -> Iterator[str]:
    """Write a key's description as a comment."""
    margin = f"{' ' * indent}# "
    field = model.model_fields[name]
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, ShortForm):
        field = kind.model_fields[kind.short]
    yield from textwrap.wrap(field.description or "", _WIDTH, initial_indent=margin, subsequent_indent=margin)
