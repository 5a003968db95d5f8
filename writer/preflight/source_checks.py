"""Checks of `validate` on Kafka, the registry and a sample of the records, for one pipeline."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pyarrow as pa

from writer.avro.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from writer.clients import kafka_sample
from writer.clients.kafka import Cluster, choose_topics
from writer.commit.event_specs import check_specs, unused
from writer.commit.privacy import RecordedPrivacy, check_hash_key, check_privacy, opened_privacy, recorded_paths
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.config.topic_selection import TopicSelection
from writer.core.errors import ConfigError, HeadraceError, SchemaChanged
from writer.core.text import listed, plural
from writer.core.units import show_duration
from writer.maintenance.local_pipeline import LocalPipeline, opened
from writer.output.tables import short_type
from writer.preflight.engine_checks import readers
from writer.preflight.finding import Finding, doubtful, failure, good, skipped, wrong
from writer.preflight.sample_checks import SAMPLED, sampled, sampled_route
from writer.schemas.contexts import UnclearContext, describe_choice
from writer.schemas.registry import ConfluentRegistry, RegistryUnreachable, SchemaSource, subjects
from writer.schemas.tracker import Schemas
from writer.table.factory import main_table
from writer.table.log.foreign_writes import CommitFailed

_RETENTION_MIN = timedelta(hours=12)  # a night
_COLUMNS_NAMED = 12
_SHOWN = 3  # topics that a sentence names


@dataclass(frozen=True)
class ReachableSystems:
    """The systems that answer, or why they are not asked."""

    cluster: Cluster | None
    no_cluster: str
    schemas: SchemaSource | None
    no_schemas: str


def pipeline(name: str, config: Config, reach: ReachableSystems, records: int, now: datetime) -> Iterator[Finding]:
    """Look at the topics, the schemas and a sample of `records`. `now` decides which event times are believed."""
    settings = config.pipelines[name]
    topics, found = settings.topics.names, [skipped("topics", reach.no_cluster)]
    if reach.cluster is not None:
        topics, found = _topics(reach.cluster, settings.topics)
    yield from found
    walk: LocalPipeline | None = None
    try:
        opened_privacy(name, config)
    except ConfigError as error:
        yield failure("privacy", error)
        yield from (skipped(check, "the keys are not known") for check in ("schemas", "columns", *SAMPLED))
        return
    if reach.schemas is None:
        yield from (skipped(check, reach.no_schemas) for check in ("schemas", "columns"))
    else:
        try:
            walk = _walk(name, config, reach.schemas, topics)
        except (RegistryUnreachable, SchemaChanged, UnclearContext) as error:
            yield failure("schemas", error)
            yield skipped("columns", "the schemas are not known")
        else:
            names = subjects(config.registry)
            yield from _contexts(reach.schemas, topics)
            yield from _schemas(walk.plan, names.words(topics))
            yield from _keys(walk.schemas.keys, names.of_keys().words(topics))
            yield from _privacy(name, config, walk.schemas)
            yield from _specs(name, settings, walk.plan)
            if settings.route is None:
                yield readers(settings, pa.schema([*walk.plan.columns, *walk.schemas.record_columns.schema]))
    why = _no_sample(found, reach, walk, records)
    if why or walk is None or reach.cluster is None or reach.schemas is None:
        yield from (skipped(check, why) for check in SAMPLED)
        return
    try:
        batch = kafka_sample.read(config.kafka, kafka_sample.spans(reach.cluster, topics, records))
        if settings.route is None:
            yield from sampled(walk, batch, now)
        else:
            yield from sampled_route(walk, reach.schemas, batch, now)
    except kafka_sample.TooLarge as error:
        yield from (skipped(check, f"{error} (--sample)") for check in SAMPLED)
    except HeadraceError as error:
        yield failure("sample", error)


def _walk(name: str, config: Config, schemas: SchemaSource, topics: Sequence[str]) -> LocalPipeline:
    is_routed = config.pipelines[name].route is not None
    try:
        return opened(name, config, schemas, topics=topics, before_route=is_routed)
    except (ConfigError, CommitFailed):  # its own check says so; the schemas can be judged without it
        recorded = recorded_paths(name, config)
        return opened(
            name, config, schemas, topics=topics, with_table=False, before_route=is_routed, recorded=recorded
        )  # fmt: skip


def _no_sample(topics: Sequence[Finding], reach: ReachableSystems, walk: LocalPipeline | None, records: int) -> str:
    if reach.cluster is None:
        return reach.no_cluster
    if any(finding.status == "failed" for finding in topics):
        return "a topic is missing"
    if walk is None:
        return reach.no_schemas or "the schemas are not known"
    return "" if records else "--sample 0"


def _topics(cluster: Cluster, selection: TopicSelection) -> tuple[list[str], list[Finding]]:
    """Look at the topics that are read now. Returns their names, too."""
    try:
        names, beyond = choose_topics(cluster, selection)
    except HeadraceError as error:
        return [], [failure("topics", error)]
    found = [_topic(cluster, topic) for topic in names]
    if selection.pattern is not None:
        message = f"{plural(len(names), 'topic')}: {listed(names, _SHOWN)}"
        found = [good("topics", message), *(one for one in found if one.status != "ok")]
    if beyond:
        message = f"{plural(len(beyond), 'topic')} more than topics.max: {listed(beyond, _SHOWN)}"
        found.append(doubtful("topics", message, "They are not read. Raise topics.max, or narrow the pattern."))
    return names, found


def _topic(cluster: Cluster, topic: str) -> Finding:
    try:
        partitions = cluster.topics([topic])[topic].partitions
        sources = [(topic, partition) for partition in range(partitions)]
        first, end = cluster.earliest(sources), cluster.latest(sources)
        kept, policy = cluster.retention([topic])[topic], cluster.cleanup([topic])[topic]
    except HeadraceError as error:
        return failure("topics", error)
    held = sum(end[source] - first[source] for source in sources)
    message = f"{topic}: {plural(partitions, 'partition')}, {plural(held, 'offset')} held, "
    message += f"kept {show_duration(kept)}" if kept else "nothing removed by age"
    if "compact" in policy:
        return doubtful(
            "topics", f"{message}, compacted",
            "A late writer misses what compaction has removed by then; missing offsets are no alarm here.",
        )  # fmt: skip
    if kept is not None and kept < _RETENTION_MIN:
        return doubtful("topics", message, "An outage that is longer loses records. Raise the topic's retention.ms.")
    return good("topics", message)


def _contexts(schemas: SchemaSource, topics: Sequence[str]) -> Iterator[Finding]:
    """Say which topics have subjects in several contexts, of which the configuration names none."""
    if not isinstance(schemas, ConfluentRegistry):
        return
    for topic in topics:
        contexts = schemas.contexts(topic)
        if len(contexts) > 1:
            message, _, fix = describe_choice(schemas.subjects, topic, contexts).partition(". ")
            yield doubtful("registry", f"{message}; the default context is used", f"{fix}.")


def _schemas(plan: SchemaPlan, subjects: str) -> Iterator[Finding]:
    """Return what each registered schema is to the writer, and which columns come of them."""
    if not plan.schemas:
        yield doubtful(
            "schemas", f"none is registered as {subjects}",
            "The first batch asks for the ids that its records name. Check registry.url, and registry.subjects, if "
            "there should be some.",
        )  # fmt: skip
        yield skipped("columns", "no schema is known")
        return
    yield from _decoders(plan)
    if not plan.columns.names:
        yield skipped("columns", "every schema is rejected")
        return
    named = [f"{each.name} {short_type(each.type)}" for each in plan.columns][:_COLUMNS_NAMED]
    more = len(plan.columns) - len(named)
    yield good("columns", f"{len(plan.columns)}: {', '.join(named)}{f' and {more} more' if more else ''}")


def _keys(keys: Schemas | None, subjects: str) -> Iterator[Finding]:
    """Say what each registered schema of keys is to the writer, and which column comes of them."""
    if keys is None:
        return
    if not keys.plan.schemas:
        yield doubtful(
            "keys", f"no schema of keys is registered as {subjects}",
            "The first batch asks for the ids that its keys name. Check columns.key if there should be none.",
        )  # fmt: skip
        return
    yield from _decoders(keys.plan, "keys")
    for one in keys.plan.columns:
        yield good("keys", f"column {one.name} {short_type(one.type)}")


def _privacy(name: str, config: Config, schemas: Schemas) -> Iterator[Finding]:
    """Say whether the privacy policies fit the schemas and the keys the table's log, and which fields they protect."""
    settings, table = config.pipelines[name], main_table(name, config)
    if schemas.plan.privacy is None:
        return
    try:
        check_privacy(name, settings, schemas.plan, None if schemas.keys is None else schemas.keys.plan)
        if table.exists():
            check_hash_key(name, schemas.plan.privacy, RecordedPrivacy.of(table.snapshot()))
    except (ConfigError, CommitFailed) as error:
        yield failure("privacy", error)
        return
    known = (one.protection for one in schemas.plan.schemas.values() if isinstance(one, WriterSchema))
    actions = {at: action for one in known if one is not None for at, action in one.places.items()}
    found = [f"{'.'.join(at)} ({action})" for at, action in actions.items()]
    decryptions = schemas.plan.privacy.decryptions.values() if schemas.plan.privacy is not None else ()
    decrypted = dict.fromkeys(".".join(at) for one in decryptions for rule in one.rules for at in rule.places)
    if decrypted:
        yield good("privacy", f"decrypted: {listed([*decrypted], _COLUMNS_NAMED)}")
    if found:
        yield good("privacy", listed(found, _COLUMNS_NAMED))
    elif not decrypted:
        yield doubtful(
            "privacy", "no field of a known schema is protected", "Compare privacy.tags with the schemas' own words."
        )


def _specs(name: str, settings: Pipeline, plan: SchemaPlan) -> Iterator[Finding]:
    """Say whether the event specs fit the schemas of their records, as a start does."""
    if not settings.specs:
        return
    try:
        check_specs(name, settings, plan)
    except ConfigError as error:
        yield failure("specs", error)
        return
    beyond = unused(settings.record_specs, plan)
    if fitting := [spec for spec in settings.specs if spec not in beyond]:
        yield good("specs", f"{', '.join(fitting)}: the registered schemas fit")
    if beyond:
        yield doubtful(
            "specs", f"no known schema is of {', '.join(beyond)}",
            "Compare the name with the schema's, namespace included; until one is known, the spec does nothing.",
        )  # fmt: skip


def _decoders(plan: SchemaPlan, check: str = "schemas") -> Iterator[Finding]:
    fate = "Its records become dead letters" + (", or their keys null." if check == "keys" else ".")
    writers = {schema_id: known for schema_id, known in plan.schemas.items() if isinstance(known, WriterSchema)}
    if native := sorted(schema_id for schema_id, known in writers.items() if known.native):
        yield good(check, f"{_ids(native)} decoded natively")
    if singly := sorted(schema_id for schema_id, known in writers.items() if not known.native):
        yield doubtful(
            check, f"{_ids(singly)} decoded one record at a time, at a fraction of the speed",
            "docs/TYPES.md says which types the native decoder refuses.",
        )  # fmt: skip
    for known in plan.schemas.values():
        if isinstance(known, RejectedSchema) and writers:
            yield doubtful(check, f"rejected: {known.reason}", fate)
        elif isinstance(known, RejectedSchema):
            yield wrong(check, f"rejected: {known.reason}", "Register a schema that can fill the table's columns.")


def _ids(ids: list[int]) -> str:
    return f"{'id' if len(ids) == 1 else 'ids'} {', '.join(map(str, ids))}:"
