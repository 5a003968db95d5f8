"""Checks of `validate` on Kafka, the registry and a sample of the records, for one pipeline."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from headrace.writer.avro import schema as avro
from headrace.writer.avro.type_visitor import iterate_types
from headrace.writer.clients import kafka_sample
from headrace.writer.clients.kafka import Cluster, choose_topics
from headrace.writer.columns.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from headrace.writer.commit.event_specs import find_spec_problems, find_unused_specs
from headrace.writer.commit.privacy import (
    check_keys,
    check_privacy,
    open_privacy,
    recorded_paths,
    recorded_privacy,
)
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core.errors import ConfigError, HeadraceError, SchemaChanged
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import join_first, plural
from headrace.writer.core.units import show_duration
from headrace.writer.formats.formats import format_of
from headrace.writer.framing.wire_format import UNNAMED, show_id
from headrace.writer.json.record_schema import ENCODING
from headrace.writer.maintenance.local_pipeline import LocalPipeline, open_local_pipeline
from headrace.writer.output.tables import short_type
from headrace.writer.preflight.checks.engine_checks import readers
from headrace.writer.preflight.checks.finding import Finding, doubtful, failure, good, not_checked, wrong
from headrace.writer.preflight.checks.sample_checks import SAMPLED, route_sample_findings, sample_findings
from headrace.writer.privacy.policy import Action
from headrace.writer.schemas.registry import (
    RegistryUnreachable,
    SchemaSource,
    confluent_registry,
    describe_subjects,
)
from headrace.writer.schemas.subjects import UnclearContext, describe_choice
from headrace.writer.schemas.tracker import Schemas
from headrace.writer.table.log.foreign_writes import CommitFailed

# A shorter retention does not survive a night.
_RETENTION_MIN = timedelta(hours=12)
_COLUMNS_NAMED = 12
# A sentence names as many topics.
_SHOWN = 3
# Of the schema by which a reason was found, in front of it.
_SCHEMA_ID = re.compile(r"^schema id [\da-f-]+: ")


@dataclass(frozen=True)
class ReachableSystems:
    """The systems that answer, or why they are not asked."""

    cluster: Cluster | None
    no_cluster: str
    schemas: SchemaSource | None
    no_schemas: str


def pipeline(name: str, config: Config, reach: ReachableSystems, records: int, now: datetime) -> Iterator[Finding]:
    """Check the topics, the schemas and a sample of `records`. `now` decides which event times are believed."""
    settings = config.pipelines[name]
    if reach.cluster is None:
        topics = settings.topics.names
        topic_findings = [not_checked("topics", reach.no_cluster)]
    else:
        topics, topic_findings = _topics(reach.cluster, settings.topics)
    yield from topic_findings
    local_pipeline: LocalPipeline | None = None
    try:
        open_privacy(name, config)
    except ConfigError as error:
        yield failure("privacy", error)
        yield from (not_checked(check, "the keys are not known") for check in ("schemas", "columns", *SAMPLED))
        return
    if reach.schemas is None:
        yield from (not_checked(check, reach.no_schemas) for check in ("schemas", "columns"))
    else:
        try:
            local_pipeline = _open_pipeline(name, config, reach.schemas, topics)
        except (RegistryUnreachable, SchemaChanged, UnclearContext) as error:
            yield failure("schemas", error)
            yield not_checked("columns", "the schemas are not known")
        else:
            yield from _contexts(reach.schemas, topics)
            yield from _schemas(local_pipeline.plan, describe_subjects(config.registry_of(name), topics))
            yield from _keys(local_pipeline.schemas.keys, describe_subjects(config.registry_of(name), topics, "key"))
            yield from _privacy(name, config, local_pipeline.schemas)
            yield from _specs(name, settings, local_pipeline.plan)
            if settings.route is None:
                yield readers(
                    settings, pa.schema([*local_pipeline.plan.columns, *local_pipeline.schemas.record_columns.schema])
                )
    why = _no_sample(topic_findings, reach, local_pipeline, records)
    if why or local_pipeline is None or reach.cluster is None or reach.schemas is None:
        yield from (not_checked(check, why) for check in SAMPLED)
        return
    try:
        batch = kafka_sample.read(config.kafka, kafka_sample.spans(reach.cluster, topics, records))
        if settings.route is None:
            yield from sample_findings(local_pipeline, batch, now)
        else:
            yield from route_sample_findings(local_pipeline, reach.schemas, batch, now)
    except kafka_sample.TooLarge as error:
        yield from (not_checked(check, f"{error} (--sample)") for check in SAMPLED)
    except HeadraceError as error:
        yield failure("sample", error)


def _open_pipeline(name: str, config: Config, schemas: SchemaSource, topics: Sequence[str]) -> LocalPipeline:
    is_routed = config.pipelines[name].route is not None
    try:
        return open_local_pipeline(name, config, schemas, topics=topics, before_route=is_routed)
    # The check of the table reports the error. The schemas can be judged without the table.
    except (ConfigError, CommitFailed):
        recorded = recorded_paths(name, config)
        return open_local_pipeline(
            name, config, schemas, topics=topics, with_table=False, before_route=is_routed, recorded=recorded
        )


def _no_sample(
    topics: Sequence[Finding], reach: ReachableSystems, local_pipeline: LocalPipeline | None, records: int
) -> str:
    if reach.cluster is None:
        return reach.no_cluster
    if any(finding.status == "failed" for finding in topics):
        return "a topic is missing"
    if local_pipeline is None:
        return reach.no_schemas or "the schemas are not known"
    if not records:
        return "--sample 0"
    return ""


def _topics(cluster: Cluster, selection: TopicSelection) -> tuple[list[str], list[Finding]]:
    """Check the topics that are read now. Returns their names, too."""
    try:
        names, beyond = choose_topics(cluster, selection)
    except HeadraceError as error:
        return [], [failure("topics", error)]
    findings = [_topic(cluster, topic) for topic in names]
    if selection.pattern is not None:
        message = f"{plural(len(names), 'topic')}: {join_first(names, _SHOWN)}"
        findings = [good("topics", message), *(finding for finding in findings if finding.status != "ok")]
    if beyond:
        message = f"{plural(len(beyond), 'topic')} more than topics.max: {join_first(beyond, _SHOWN)}"
        findings.append(doubtful("topics", message, "They are not read. Raise topics.max, or narrow the pattern."))
    return names, findings


def _topic(cluster: Cluster, topic: str) -> Finding:
    try:
        partitions = cluster.topics([topic])[topic].partitions
        sources = [(topic, partition) for partition in range(partitions)]
        first = cluster.earliest(sources)
        latest = cluster.latest(sources)
        retention = cluster.retention([topic])[topic]
        policy = cluster.cleanup([topic])[topic]
    except HeadraceError as error:
        return failure("topics", error)
    offsets = sum(latest[source] - first[source] for source in sources)
    age = "nothing removed by age"
    if retention:
        age = f"kept {show_duration(retention)}"
    message = f"{topic}: {plural(partitions, 'partition')}, {plural(offsets, 'offset')} held, {age}"
    if "compact" in policy:
        return doubtful(
            "topics",
            f"{message}, compacted",
            "A late writer misses what compaction has removed by then; missing offsets are no alarm here.",
        )
    if retention is not None and retention < _RETENTION_MIN:
        return doubtful("topics", message, "An outage that is longer loses records. Raise the topic's retention.ms.")
    return good("topics", message)


def _contexts(schemas: SchemaSource, topics: Sequence[str]) -> Iterator[Finding]:
    """Say which topics have subjects in several contexts, of which the configuration names none."""
    registry = confluent_registry(schemas)
    if registry is None:
        return
    for topic in topics:
        contexts = registry.contexts(topic)
        if len(contexts) > 1:
            message, _, fix = describe_choice(registry.subjects, topic, contexts).partition(". ")
            yield doubtful("registry", f"{message}; the default context is used", f"{fix}.")


def _schemas(plan: SchemaPlan, subjects: str) -> Iterator[Finding]:
    """Check how the writer decodes each registered schema, and which columns come of them."""
    if not plan.schemas:
        yield doubtful(
            "schemas",
            f"none is registered as {subjects}",
            "The first batch asks for the ids that its records name. Check registry.url or registry.glue, and "
            "registry.subjects, if there should be some.",
        )
        yield not_checked("columns", "no schema is known")
        return
    yield from decoder_findings(plan)
    yield from _json_texts(plan)
    if not plan.columns.names:
        yield not_checked("columns", "every schema is rejected")
        return
    columns = [f"{column.name} {short_type(column.type)}" for column in plan.columns]
    yield good("columns", f"{len(columns)}: {join_first(columns, _COLUMNS_NAMED)}")


def _json_texts(plan: SchemaPlan) -> Iterator[Finding]:
    """Say which columns of JSON Schemas are JSON text; those that are declared so are meant so."""
    paths: dict[str, None] = {}
    for schema_id, schema in plan.schemas.items():
        if schema_id == UNNAMED or not isinstance(schema, WriterSchema):
            continue
        record = avro.parse(schema.text)
        # Protobuf's Struct and its like are JSON by their types.
        if format_of(record).name == "protobuf":
            continue
        for part in iterate_types(record.form, record.root):
            if isinstance(part.schema, Mapping) and part.schema.get(ENCODING) == "text":
                paths[".".join(part.column_path)] = None
    if paths:
        message = f"{plural(len(paths), 'column')} of JSON Schemas without one type: {join_first(list(paths), _SHOWN)}"
        yield good("schemas", f"{message}; kept as JSON text. `headrace schema plan --id` says why")


def _keys(keys: Schemas | None, subjects: str) -> Iterator[Finding]:
    """Check how the writer decodes each registered schema of keys, and which column comes of them."""
    if keys is None:
        return
    if not keys.plan.schemas:
        yield doubtful(
            "keys",
            f"no schema of keys is registered as {subjects}",
            "The first batch asks for the ids that its keys name. Check columns.key if there should be none.",
        )
        return
    yield from decoder_findings(keys.plan, "keys")
    for column in keys.plan.columns:
        yield good("keys", f"column {column.name} {short_type(column.type)}")


def _privacy(name: str, config: Config, schemas: Schemas) -> Iterator[Finding]:
    """Check that the privacy policies fit the schemas, and the keys the table's log. Yields the protected fields."""
    if schemas.plan.privacy is None:
        return
    key_plan = None if schemas.keys is None else schemas.keys.plan
    try:
        recorded = recorded_privacy(name, config)
        check_privacy(name, config.pipelines[name], schemas.plan, key_plan, recorded)
        if recorded is not None:
            check_keys(name, schemas.plan.privacy, recorded)
    except (ConfigError, CommitFailed) as error:
        yield failure("privacy", error)
        return
    actions = dict[str, Action]()
    for schema in schemas.plan.schemas.values():
        if isinstance(schema, WriterSchema) and schema.protection is not None:
            actions |= {".".join(path): action for path, action in schema.protection.actions.items()}
    rules = [rule for decryption in schemas.plan.privacy.decryptions.values() for rule in decryption.rules]
    decrypted = list(dict.fromkeys(".".join(path) for rule in rules for path in rule.paths))
    if decrypted:
        yield good("privacy", f"decrypted: {join_first(decrypted, _COLUMNS_NAMED)}")
    if actions:
        protected = [f"{field} ({action})" for field, action in actions.items()]
        yield good("privacy", join_first(protected, _COLUMNS_NAMED))
    elif not decrypted:
        yield doubtful(
            "privacy", "no field of a known schema is protected", "Compare privacy.tags with the schemas' own words."
        )


def _specs(name: str, settings: Pipeline, plan: SchemaPlan) -> Iterator[Finding]:
    """Check that the event specs fit the schemas of their records, as a start does."""
    if not settings.specs:
        return
    problems = find_spec_problems(name, settings, plan)
    if problems:
        yield from (failure("specs", ConfigError(problem)) for problem in problems)
        return
    beyond = find_unused_specs(settings.record_specs, plan)
    if fitting := [spec for spec in settings.specs if spec not in beyond]:
        yield good("specs", f"{', '.join(fitting)}: the registered schemas fit")
    if beyond:
        yield doubtful(
            "specs",
            f"no known schema is of {', '.join(beyond)}",
            "Compare the name with the schema's, namespace included; until one is known, the spec does nothing.",
        )


def decoder_findings(plan: SchemaPlan, check: str = "schemas") -> Iterator[Finding]:
    """Check how the writer decodes registered schemas, and which of them it rejects. Each mistake is one finding."""
    fate = "Its records become dead letters."
    if check == "keys":
        fate = "Its records become dead letters, or their keys null."
    writers = {schema_id: schema for schema_id, schema in plan.schemas.items() if isinstance(schema, WriterSchema)}
    if native := sorted(schema_id for schema_id, schema in writers.items() if schema.native):
        yield good(check, f"{_ids(native)} decoded natively")
    if slow := sorted(schema_id for schema_id, schema in writers.items() if not schema.native):
        yield doubtful(
            check,
            f"{_ids(slow)} decoded one record at a time, at a fraction of the speed",
            f"{page_address('docs/TYPES.md')} says which types the native decoder refuses.",
        )
    yield from _rejections(plan, check, fate, some_fit=bool(writers))


def _rejections(plan: SchemaPlan, check: str, fate: str, *, some_fit: bool) -> Iterator[Finding]:
    """Yield a finding for each reason of rejected schemas. A mistake in a spec is one of the check `specs`."""
    ids_by_reason = dict[str, list[int]]()
    for schema_id, schema in plan.schemas.items():
        if isinstance(schema, RejectedSchema):
            reason = _SCHEMA_ID.sub("", schema.reason, count=1)
            ids_by_reason.setdefault(reason, []).append(schema_id)
    spec_reasons = {f"spec {r.spec.name!r}: {r.problem}" for r in plan.shaped.values() if r.output is None}
    for reason, ids in ids_by_reason.items():
        if reason in spec_reasons:
            yield not_checked(check, f"{_ids(ids)} their event spec is wrong")
        elif some_fit:
            yield doubtful(check, f"rejected: {_schema_ids(ids)}: {reason}", fate)
        else:
            yield wrong(
                check, f"rejected: {_schema_ids(ids)}: {reason}", "Register a schema that can fill the table's columns."
            )


def _schema_ids(ids: list[int]) -> str:
    if ids == [UNNAMED]:
        return "columns.declared"
    return f"schema {'id' if len(ids) == 1 else 'ids'} {join_first(list(dict.fromkeys(map(show_id, ids))), _SHOWN)}"


def _ids(ids: list[int]) -> str:
    """Return the schemas of a finding, as its beginning."""
    # Messages of one schema have its id.
    named = list(dict.fromkeys(show_id(schema_id) for schema_id in ids if schema_id != UNNAMED))
    subjects = []
    if named:
        subjects.append(f"{'id' if len(named) == 1 else 'ids'} {', '.join(named)}")
    if UNNAMED in ids:
        subjects.append("values that name no schema")
    return f"{', '.join(subjects)}:"
