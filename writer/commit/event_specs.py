"""Checks event specs against the schemas that a start knows, before anything is written. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

import bucketers
from writer.avro.schema_plan import SchemaPlan
from writer.batch.bucketing import times_of
from writer.config.pipeline import Pipeline
from writer.core.errors import ConfigError
from writer.schemas.subjects import full_name
from writer.specs.spec import Spec, fingerprint, spec_of, to_json


def check_specs(pipeline: str, settings: Pipeline, plan: SchemaPlan) -> None:
    """Raise ConfigError for a spec that no schema of its records fits. `plan`: with all schemas that are known.

    Each record type is looked at as a table of its own would hold it, before and behind the spec.
    """
    for name, texts in _by_record(settings.record_specs, plan).items():
        found = SchemaPlan(
            pa.schema([]), plan.reserved, widen=plan.widen, specs=settings.record_specs, privacy=plan.privacy
        )
        for schema_id, text in texts.items():
            found = found.extend(schema_id, text)
        for record in found.shaped.values():
            where = f"pipelines.{pipeline}.specs.{record.spec.name}"
            if record.output is None:
                raise ConfigError(f"{where}: {record.problem} (record {name})")
            if (of_table := settings_of(settings, name)) is not None:
                _check_buckets(where, of_table, record.input.columns, found.columns)
    for one in plan.shaped.values():
        if one.output is None:
            raise ConfigError(f"pipelines.{pipeline}.specs.{one.spec.name}: {one.problem}")


def check_version(pipeline: str, settings: Pipeline, recorded: int) -> None:
    """Raise ConfigError where the table's log has other specs: a command would make other rows than the writer.

    `recorded`: fingerprint of those of the log.
    """
    if fingerprint(to_json(settings.record_specs)) != recorded:
        raise ConfigError(
            f"the event specs of pipeline {pipeline!r} are not those by which its writer runs. Start the writer with "
            "this configuration, or use the one that it runs with."
        )


def unused(specs: Sequence[Spec], plan: SchemaPlan) -> list[str]:
    """Return the names of specs that are not of any record whose schema is known."""
    used = {spec.name for name in _names(plan) if (spec := spec_of(specs, name)) is not None}
    return [spec.name for spec in specs if spec.name not in used]


def _check_buckets(where: str, settings: Pipeline, given: pa.Schema, made: pa.Schema) -> None:
    """Raise ConfigError where the event time, or a bucket, needs a column that is not there."""
    rule = settings.event_time
    try:
        times, _ = times_of(given.empty_table(), rule.rule(rule.unit), pa.array([], pa.string()))
    except ValueError as error:
        raise ConfigError(f"{where}: event_time: {error}") from error
    try:
        bucketers.build(settings.bucket).assign(made.empty_table(), times)
    except ValueError as error:
        raise ConfigError(f"{where}: bucket: {error} Buckets are made of the columns behind the spec.") from error


def settings_of(settings: Pipeline, record: str) -> Pipeline | None:
    """Return the settings of the table that a record goes to; None where it has none, or its name does not say it."""
    if (route := settings.route) is None:
        return settings
    if route.by != "record":
        return None
    rule = route.rule_of(record) or (route.unrouted if route.unrouted in route.targets else None)
    return None if rule is None else settings.of_target(rule, record)


def _by_record(specs: Sequence[Spec], plan: SchemaPlan) -> Mapping[str, dict[int, str]]:
    """Return the schemas of each record that has a spec, by its full name."""
    found: dict[str, dict[int, str]] = {}
    for schema_id, text in plan.texts():
        name = full_name(text)
        if name is not None and spec_of(specs, name) is not None:
            found.setdefault(name, {})[schema_id] = text
    return found


def _names(plan: SchemaPlan) -> Iterator[str]:
    return (name for _, text in plan.texts() if (name := full_name(text)) is not None)
