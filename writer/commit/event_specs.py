"""Checks event specs against the schemas that a start knows, before anything is written. Pure."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from headrace import bucketers
from headrace.writer.batch.bucketing import times_of_columns
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.text import join_first
from headrace.writer.schemas.subjects import full_name
from headrace.writer.specs.spec import Spec, fingerprint, spec_of, to_json
from headrace.writer.specs.step import find_mistakes

# Records with the same mistake that a sentence names.
_RECORDS_NAMED = 3


def check_specs(pipeline: str, settings: Pipeline, plan: SchemaPlan) -> None:
    """Raise ConfigError for specs that no schema of their records fits. `plan`: with all schemas that are known."""
    problems = find_spec_problems(pipeline, settings, plan)
    if problems:
        raise ConfigError("\n".join(problems))


def find_spec_problems(pipeline: str, settings: Pipeline, plan: SchemaPlan) -> list[str]:
    """Return a sentence for each mistake in a spec, which names the key and the records that have it.

    Each record type is looked at as a table of its own would hold it, before and behind the spec.
    """
    # Key and mistake → the records.
    records = dict[str, list[str]]()
    for name, texts in _texts_by_record(settings.record_specs, plan).items():
        record_plan = SchemaPlan(
            pa.schema([]), plan.reserved, widen=plan.widen, specs=settings.record_specs, privacy=plan.privacy
        )
        for schema_id, text in texts.items():
            record_plan = record_plan.extend(schema_id, text)
        for record in record_plan.shaped.values():
            key = f"pipelines.{pipeline}.specs.{record.spec.name}"
            table_settings = settings_of_record(settings, name)
            problems: list[str] = []
            if record.output is None:
                # Where each key fits the record, what the spec makes of it does not fit a table.
                problems = find_mistakes(record.spec, record.input.columns) or [record.problem]
            elif table_settings is not None:
                problems = _bucket_problems(table_settings, record.input.columns, record_plan.columns)
            for problem in problems:
                records.setdefault(f"{key}: {problem}", []).append(name)
    if records:
        return [f"{problem} ({_name_records(names)})" for problem, names in records.items()]
    # Each record fits a table of its own; together they may not fit the one that they share.
    shared_problems = (
        f"pipelines.{pipeline}.specs.{record.spec.name}: {record.problem}"
        for record in plan.shaped.values()
        if record.output is None
    )
    return list(dict.fromkeys(shared_problems))


def _name_records(names: Sequence[str]) -> str:
    noun = "record" if len(names) == 1 else "records"
    return f"{noun} {join_first(names, _RECORDS_NAMED)}"


def check_version(pipeline: str, settings: Pipeline, recorded: int) -> None:
    """Raise ConfigError where the table's log has other specs: a command would make other rows than the writer.

    `recorded`: fingerprint of those of the log.
    """
    if fingerprint(to_json(settings.record_specs)) != recorded:
        raise ConfigError(
            f"the event specs of pipeline {pipeline!r} are not those by which its writer runs. Start the writer with "
            "this configuration, or use the one that it runs with."
        )


def find_unused_specs(specs: Sequence[Spec], plan: SchemaPlan) -> list[str]:
    """Return the names of specs that are not of any record whose schema is known."""
    specs_of_records = (spec_of(specs, name) for name in _record_names(plan))
    used = {spec.name for spec in specs_of_records if spec is not None}
    return [spec.name for spec in specs if spec.name not in used]


def _bucket_problems(settings: Pipeline, input_columns: pa.Schema, output_columns: pa.Schema) -> list[str]:
    """Return why the event time, or a bucket, lacks the column that it needs; none where it has it.

    `input_columns`, `output_columns`: before and behind the spec.
    """
    rule = settings.event_time
    try:
        times = times_of_columns(input_columns, rule.rule(rule.unit), settings.record_columns.schema)
    except ValueError as error:
        return [f"event_time: {error}"]
    try:
        bucketers.build(settings.bucket).assign(output_columns.empty_table(), times)
    except ValueError as error:
        return [f"bucket: {error} Buckets are made of the columns behind the spec."]
    return []


def settings_of_record(settings: Pipeline, record: str) -> Pipeline | None:
    """Return the settings of the table that a record goes to; None where it has none, or its name does not say it."""
    route = settings.route
    if route is None:
        return settings
    if route.by != "record":
        return None
    rule = route.rule_of(record)
    if not rule and route.unrouted in route.targets:
        rule = route.unrouted
    if not rule:
        return None
    return settings.of_target(rule, record)


def _texts_by_record(specs: Sequence[Spec], plan: SchemaPlan) -> Mapping[str, dict[int, str]]:
    """Return the schemas of each record that has a spec, by its full name."""
    texts_by_record: dict[str, dict[int, str]] = {}
    for schema_id, text in plan.texts():
        name = full_name(text)
        if name is not None and spec_of(specs, name) is not None:
            texts_by_record.setdefault(name, {})[schema_id] = text
    return texts_by_record


def _record_names(plan: SchemaPlan) -> Iterator[str]:
    names = (full_name(text) for _, text in plan.texts())
    return (name for name in names if name is not None)
