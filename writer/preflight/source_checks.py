"""Checks of `validate` on Kafka, the registry and a sample of the records, for one pipeline."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pyarrow as pa
import pyarrow.compute as pc

import bucketers
from bucketers.arrow import column
from writer.avro.schema_plan import Rejected, SchemaPlan, WriterSchema
from writer.avro.wire_format import Wire
from writer.batch.bucketing import ClockFieldMissing, TimeRule, times_of
from writer.clients import kafka_sample
from writer.clients.kafka import Cluster, choose_topics
from writer.config.pipelines import Config
from writer.config.topic_selection import TopicSelection
from writer.core.errors import ConfigError, HeadraceError, SchemaChanged
from writer.core.text import instant, listed, plural
from writer.core.units import show_duration
from writer.maintenance.local_pipeline import LocalPipeline, Sample, opened
from writer.output.tables import legible, short_type
from writer.preflight.engine_checks import readers
from writer.preflight.finding import Finding, doubtful, failure, good, skipped, wrong
from writer.preflight.host_checks import scratch
from writer.schemas.format_detection import MixedWire, UnclearWire
from writer.schemas.registry import RegistryUnreachable, SchemaSource, subjects
from writer.schemas.tracker import Schemas
from writer.sealing.manifest import bucket_path
from writer.table.log.foreign_writes import CommitFailed

SAMPLED = ("wire", "decode", "event_time", "buckets", "spill")
_RETENTION_MIN = timedelta(hours=12)  # a night
_BUCKETS_MANY = 100  # each gets a file of its own in each commit
_COLUMNS_NAMED = 12
_REASONS_NAMED = 3
_SHOWN = 3  # topics that a sentence names
_GUESSED_BYTES = 24
_FORMATS = {
    b"{": "JSON: ", b"[": "JSON: ", b"Obj\x01": "an Avro file: ", b"\xc3\x01": "Avro, single-object encoding: ",
}  # fmt: skip


@dataclass(frozen=True)
class Reach:
    """The systems that answer, or why they are not asked."""

    cluster: Cluster | None
    no_cluster: str
    schemas: SchemaSource | None
    no_schemas: str


def pipeline(name: str, config: Config, reach: Reach, records: int, now: datetime) -> Iterator[Finding]:
    """Look at the topics, the schemas and a sample of `records`. `now` decides which event times are believed."""
    settings = config.pipelines[name]
    topics, found = settings.topics.names, [skipped("topics", reach.no_cluster)]
    if reach.cluster is not None:
        topics, found = _topics(reach.cluster, settings.topics)
    yield from found
    walk: LocalPipeline | None = None
    if reach.schemas is None or settings.route is not None:
        why = reach.no_schemas or "the tables of a route are not looked at yet"
        yield from (skipped(check, why) for check in ("schemas", "columns"))
    else:
        try:
            walk = _walk(name, config, reach.schemas, topics)
        except (RegistryUnreachable, SchemaChanged) as error:
            yield failure("schemas", error)
            yield skipped("columns", "the schemas are not known")
        else:
            names = subjects(config.registry)
            yield from _schemas(walk.plan, names.words(topics))
            yield from _keys(walk.schemas.keys, names.of_keys().words(topics))
            yield readers(settings, pa.schema([*walk.plan.columns, *walk.schemas.record_columns.schema]))
    why = _no_sample(found, reach, walk, records)
    if why or walk is None or reach.cluster is None:
        yield from (skipped(check, why) for check in SAMPLED)
        return
    try:
        batch = kafka_sample.read(config.kafka, kafka_sample.spans(reach.cluster, topics, records))
        yield from sampled(walk, batch, now)
    except kafka_sample.TooLarge as error:
        yield from (skipped(check, f"{error} (--sample)") for check in SAMPLED)
    except HeadraceError as error:
        yield failure("sample", error)


def _walk(name: str, config: Config, schemas: SchemaSource, topics: Sequence[str]) -> LocalPipeline:
    try:
        return opened(name, config, schemas, topics=topics)
    except (ConfigError, CommitFailed):  # its own check says so; the schemas can be judged without it
        return opened(name, config, schemas, topics=topics, with_table=False)


def _no_sample(topics: Sequence[Finding], reach: Reach, walk: LocalPipeline | None, records: int) -> str:
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


def _decoders(plan: SchemaPlan, check: str = "schemas") -> Iterator[Finding]:
    fate = "Its records become dead letters" + (", or their keys null." if check == "keys" else ".")
    writers = {schema_id: known for schema_id, known in plan.schemas.items() if isinstance(known, WriterSchema)}
    if native := sorted(schema_id for schema_id, known in writers.items() if known.native):
        yield good(check, f"{_ids(native)} decoded natively")
    if singly := sorted(schema_id for schema_id, known in writers.items() if not known.native):
        yield doubtful(
            check, f"{_ids(singly)} decoded by fastavro, one record at a time, at a fraction of the speed",
            "docs/TYPES.md says which types the native decoder refuses.",
        )  # fmt: skip
    for known in plan.schemas.values():
        if isinstance(known, Rejected) and writers:
            yield doubtful(check, f"rejected: {known.reason}", fate)
        elif isinstance(known, Rejected):
            yield wrong(check, f"rejected: {known.reason}", "Register a schema that can fill the table's columns.")


def _ids(ids: list[int]) -> str:
    return f"{'id' if len(ids) == 1 else 'ids'} {', '.join(map(str, ids))}:"


def sampled(walk: LocalPipeline, batch: pa.RecordBatch, now: datetime) -> Iterator[Finding]:
    """Carry a sample through the steps up to the buckets, and judge what becomes of it."""
    values = batch.column("value").drop_null()
    if len(values) == 0:
        yield skipped("wire", "the topics hold no records with a value")
        yield from (skipped(check, "there is no sample") for check in SAMPLED[1:])
        return
    try:
        wire = walk.settled(batch)
    except UnclearWire as error:
        message, _, fix = str(error).partition(". ")
        shown = values if walk.wire is None else batch.column("key").drop_null()
        one = "" if isinstance(error, MixedWire) else f"; one is {_guess(shown[0].as_py())}"
        yield wrong("wire", message + one, fix)
        yield from (skipped(check, "the wire format is not known") for check in SAMPLED[1:])
        return
    registered = set(walk.plan.schemas)
    sample = walk.decoded(batch)
    bare = [dead_letter.value for dead_letter in sample.dead_letters if dead_letter.schema_id is None]
    yield _wire(bare, wire, len(values), batch.num_rows - len(values))
    if len(bare) == len(values):
        yield from (skipped(check, "no value has a header") for check in SAMPLED[1:])
        return
    yield _decode(sample, registered)
    if not sample.rows:
        yield from (skipped(check, "no record can be decoded") for check in SAMPLED[2:])
        return
    timed = _event_time(walk, sample, now)
    yield timed
    if timed.status == "failed":
        yield skipped("buckets", "the event times are not usable")
    else:
        yield _buckets(bucketers.build(walk.config.pipelines[walk.name].bucket).columns, walk.assigned(batch, now))
    yield scratch(walk.config.pipelines[walk.name], sum(group.rows.nbytes for group in sample.groups) / sample.rows)


def _wire(bare: list[bytes], wire: Wire, values: int, tombstones: int) -> Finding:
    empty = f"; {plural(tombstones, 'tombstone')} besides" if tombstones else ""
    if not bare:
        return good("wire", f"{values:,} of {values:,} values have a {wire.words}{empty}")
    message = f"{len(bare):,} of {values:,} values have no {wire.words}; one is {_guess(bare[0])}{empty}"
    if len(bare) == values:
        return wrong("wire", message, "Set `wire` to the format that the producers write (docs/TYPES.md).")
    return doubtful("wire", message, "They become dead letters. `headrace preview --at raw` shows them.")


def _guess(value: bytes) -> str:
    """Name the format that a value without a header seems to have."""
    name = next((name for head, name in _FORMATS.items() if value.startswith(head)), "")
    shown = legible(value)
    cut = _GUESSED_BYTES * (2 if shown.startswith("0x") else 1)
    head = shown[:cut] + ("…" if len(shown) > cut else "")
    return f"{name}{head}" if value else "empty"


def _decode(sample: Sample, registered: set[int]) -> Finding:
    rows, reasons = sample.rows, Counter(one.reason for one in sample.dead_letters if one.schema_id is not None)
    strangers = {group.schema_id for group in sample.groups if group.rows.num_rows} - registered
    message = f"{rows:,} of {rows + reasons.total():,} values with a header become rows"
    if reasons:
        message += "; " + "; ".join(f"{number:,}: {reason}" for reason, number in reasons.most_common(_REASONS_NAMED))
        if not rows:
            return wrong("decode", message, "Compare the producer with its schema.")
        return doubtful(
            "decode", message, "The others become dead letters. `headrace preview --at decoded` shows them."
        )
    if strangers:
        ids = ", ".join(map(str, sorted(strangers, key=str)))
        return doubtful(
            "decode", f"{message}; schema {ids} is registered, but not under the topic's subject",
            "A start does not know its columns; the first batch that carries it adds them. Set registry.subjects to "
            "the producers' strategy.",
        )  # fmt: skip
    return good("decode", message)


@dataclass
class Times:
    """Statistics of a sample's event-time field."""

    rows: int = 0
    nulls: int = 0
    outside: int = 0
    first: datetime | None = None
    last: datetime | None = None
    kinds: set[str] = field(default_factory=set)

    def add(self, times: pa.TimestampArray, kind: str, window: tuple[datetime, datetime]) -> None:
        """Take the times of rows. `window`: the first and the last that is believed."""
        self.rows, self.nulls = self.rows + len(times), self.nulls + times.null_count
        held = times.drop_null()
        if len(held) == 0:
            return
        low, high = (pa.scalar(bound, times.type) for bound in window)
        self.outside += pc.sum(pc.or_(pc.less(held, low), pc.greater(held, high))).as_py()
        least, most = (bound.as_py() for bound in pc.min_max(held).values())
        self.first, self.last = min(least, self.first or least), max(most, self.last or most)
        self.kinds.add(kind)

    @property
    def words(self) -> str:
        """Return what the times are, and from when to when."""
        bounds = [instant(at) for at in (self.first, self.last) if at is not None]
        return f"{' and '.join(sorted(self.kinds))}: {' to '.join(bounds)}"

    @property
    def believable(self) -> float:
        """Share of the rows that have a time, and one that is believed."""
        return (self.rows - self.nulls - self.outside) / self.rows if self.rows else 0.0


def times_in(sample: Sample, rule: TimeRule, now: datetime) -> Times:
    """Read the event times of a sample. Raises ValueError as `times_of` does."""
    found, window = Times(), rule.window(now)
    for group in sample.groups:
        times, unit = times_of(group.rows, rule, group.records.column("topic"))
        kind = short_type(column(group.rows, rule.field).type)
        found.add(times, kind if unit == "logical" else f"{kind} in {unit}", window)
    return found


def _event_time(walk: LocalPipeline, sample: Sample, now: datetime) -> Finding:
    """Check the field's times: detected unit, range, nulls, and the share outside the accepted window."""
    rule = walk.time_rule
    try:
        found = times_in(sample, rule, now)
    except ValueError as error:
        fix = "" if isinstance(error, ClockFieldMissing) else _candidates(walk.plan.columns)
        return failure("event_time", ConfigError(f"{error}{fix}"))
    if found.first is None or found.last is None:
        return wrong("event_time", f"{rule.field} holds no time in {found.rows:,} rows", "Choose another field.")
    message = f"{rule.field}, {found.words}"
    believed = f"now - {show_duration(rule.age_max)} to now + {show_duration(rule.ahead_max)}"
    if not found.nulls + found.outside:
        return good("event_time", f"{message}; all are believable ({believed})")
    lost = [
        f"{number:,} of {found.rows:,} rows ({number / found.rows:.1%}) {what}"
        for number, what in ((found.nulls, "have none"), (found.outside, f"are outside {believed}"))
        if number
    ]
    message += f"; {', '.join(lost)}: quarantined"
    fix = "Check event_time.unit, max_age and max_ahead. `headrace preview --at assigned` shows them."
    every = found.nulls + found.outside == found.rows
    return wrong("event_time", message, fix) if every else doubtful("event_time", message, fix)


def _candidates(columns: pa.Schema) -> str:
    """Name the columns that could be an event time, as a fix."""
    times = [each.name for each in columns if pa.types.is_temporal(each.type)]
    longs = [each.name for each in columns if pa.types.is_int64(each.type)]
    near = times or longs
    return f". Set event_time.field to one that is: {', '.join(near)}." if near else ". Set event_time.field."


def _buckets(columns: Sequence[str], sample: Sample) -> Finding:
    assigned = [group.assigned.buckets for group in sample.groups if group.assigned is not None]
    # cold: a sample, once a command
    hit = Counter(buckets.values[code] for buckets in assigned for code in buckets.codes.to_pylist())
    rows = sum(hit.values())
    labels = sorted(bucket_path(columns, bucket) for bucket in hit)
    ((most, number),) = hit.most_common(1)
    span = labels[0] if len(labels) == 1 else f"{labels[0]} to {labels[-1]}"
    message = f"{plural(len(hit), 'bucket')} in the sample: {span}"
    if len(hit) > 1:
        message += f"; {number / rows:.1%} of the rows in {bucket_path(columns, most)}"
    if len(hit) > _BUCKETS_MANY:
        return doubtful(
            "buckets", message, "Each commit writes a file to each of them: many small files. Consider wider buckets."
        )
    return good("buckets", message)
