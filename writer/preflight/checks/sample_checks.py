"""Checks of `validate` on a sample of records: wire format, decoding, routes, event times, buckets."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain

import pyarrow as pa
import pyarrow.compute as pc

from headrace import bucketers
from headrace.bucketers.arrow import column
from headrace.bucketers.timestamps import find_refusal
from headrace.writer.avro.schema import timestamp_unit
from headrace.writer.avro.schema_text import parse_schema
from headrace.writer.avro.type_visitor import iterate_types
from headrace.writer.batch.bucketing import ClockFieldMissing, TimeRule, times_of, with_kafka_time
from headrace.writer.columns.schema_plan import SchemaPlan, WriterSchema
from headrace.writer.config.sections.routing import RouteSection
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import instant, join_first, plural
from headrace.writer.core.units import show_duration
from headrace.writer.framing.wire_format import NO_WIRE, UNNAMED, Wire, show_id
from headrace.writer.maintenance.local_pipeline import DeadLetter, LocalPipeline, Sample
from headrace.writer.output.tables import legible, short_type
from headrace.writer.preflight.checks.finding import Finding, doubtful, failure, good, not_checked, wrong
from headrace.writer.preflight.checks.host_checks import scratch
from headrace.writer.preflight.samples.route_sample import RouteSplit, open_part, split
from headrace.writer.privacy.record_sealing import RecordScreen
from headrace.writer.schemas.format_detection import MixedWire, UnclearWire
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.sealing.manifest import bucket_path

SAMPLED = ("wire", "decode", "event_time", "buckets", "spill")
_TARGETS_NAMED = 6
# Each commit writes a file to each bucket.
_BUCKETS_MANY = 100
_REASONS_NAMED = 3
_GUESSED_BYTES = 24
_FORMATS = {
    b"{": "JSON: ",
    b"[": "JSON: ",
    b"Obj\x01": "an Avro file: ",
    b"\xc3\x01": "Avro, single-object encoding: ",
}


def sample_findings(local_pipeline: LocalPipeline, batch: pa.RecordBatch, now: datetime) -> Iterator[Finding]:
    """Carry a sample through the steps up to the buckets, and check each result."""
    values = batch.column("value").drop_null()
    wire = _wire_format(local_pipeline, batch, values)
    if isinstance(wire, Finding):
        yield wire
        why = "the wire format is not known"
        if wire.status == "not_checked":
            why = "there is no sample"
        yield from (not_checked(check, why) for check in SAMPLED[1:])
        return
    registered = set(local_pipeline.plan.schemas)
    sample = local_pipeline.decode(batch)
    bare = [dead_letter.value for dead_letter in sample.dead_letters if dead_letter.schema_id is None]
    unnamed = sum(group.rows.num_rows for group in sample.groups if group.schema_id == UNNAMED)
    unnamed += sum(dead_letter.schema_id == UNNAMED for dead_letter in (*sample.dead_letters, *sample.filtered))
    yield _wire(bare, wire, len(values), unnamed, _valueless(local_pipeline, batch), _screen(local_pipeline))
    if len(bare) == len(values):
        yield from (not_checked(check, "no value has a header") for check in SAMPLED[1:])
        return
    unregistered = {group.schema_id for group in sample.groups} - registered
    yield _decode(_kind(wire, unnamed), sample.rows + len(sample.filtered), _reasons(sample.dead_letters), unregistered)
    if not sample.rows:
        why = "no record can be decoded"
        if sample.filtered:
            why = "event specs leave out every record"
        yield from (not_checked(check, why) for check in SAMPLED[2:])
        return
    event_time = _event_time(local_pipeline, sample, now)
    yield event_time
    if event_time.status == "failed":
        yield not_checked("buckets", "the event times are not usable")
    else:
        yield _buckets(
            bucketers.build(local_pipeline.config.pipelines[local_pipeline.name].bucket).columns,
            local_pipeline.assign_buckets(batch, now),
        )
    yield scratch(
        local_pipeline.config.pipelines[local_pipeline.name],
        sum(group.rows.nbytes for group in sample.groups) / sample.rows,
    )


def _wire_format(local_pipeline: LocalPipeline, batch: pa.RecordBatch, values: pa.Array) -> Wire | Finding:
    """Return the wire format of a sample, or what is wrong with it."""
    if len(values) == 0:
        return not_checked("wire", "the topics hold no records with a value")
    try:
        return local_pipeline.settle_wire(batch)
    except UnclearWire as error:
        message, _, fix = str(error).partition(". ")
        if not isinstance(error, MixedWire):
            examples = values if local_pipeline.wire is None else batch.column("key").drop_null()
            message += f"; one is {_guess(examples[0].as_py(), _screen(local_pipeline))}"
        return wrong("wire", message, fix)


def route_sample_findings(
    local_pipeline: LocalPipeline, schemas: SchemaSource, batch: pa.RecordBatch, now: datetime
) -> Iterator[Finding]:
    """Check a sample by the tables that its records go to: each as the table of a pipeline."""
    values = batch.column("value").drop_null()
    wire = _wire_format(local_pipeline, batch, values)
    if isinstance(wire, Finding):
        yield wire
        return
    route_split = split(local_pipeline, batch)
    undecoded = route_split.undecoded
    bare = [dead_letter.value for dead_letter in undecoded if dead_letter.schema_id is None]
    unnamed = 0
    if wire != NO_WIRE and "json" in local_pipeline.config.pipelines[local_pipeline.name].formats:
        unnamed = batch.num_rows - local_pipeline.schemas.select_framed(pa.Table.from_batches([batch])).num_rows
    yield _wire(bare, wire, len(values), unnamed, _valueless(local_pipeline, batch), _screen(local_pipeline))
    reasons = _reasons(undecoded)
    if reasons:
        yield _decode(_kind(wire, unnamed), len(values) - len(undecoded), reasons, set())
    settings = local_pipeline.config.pipelines[local_pipeline.name]
    assert settings.route is not None, "only a route is split"
    yield _routing(settings.route, route_split)
    for part in route_split.parts:
        for finding in sample_findings(open_part(local_pipeline.name, part, schemas), part.records, now):
            if finding.status != "not_checked" and finding.check != "wire":
                yield replace(finding, check=f"{finding.check} {part.target}")


def _routing(section: RouteSection, route_split: RouteSplit) -> Finding:
    """Check which tables a sample goes to, and which records go to none."""
    parts = route_split.parts
    message = "no record goes to a table"
    if parts:
        targets = join_first([f"{part.target} {part.records.num_rows:,}" for part in parts], _TARGETS_NAMED)
        message = f"{plural(len(parts), 'table')}: {targets}"
    reasons = Counter(dead_letter.reason for dead_letter in route_split.unrouted)
    message += "".join(f"; {number:,}: {reason}" for reason, number in reasons.most_common(_REASONS_NAMED))
    new_tables = [part for part in parts if part.target not in section.fixed]
    if len(new_tables) > section.max_targets:
        return doubtful(
            "route",
            f"{message}; {len(new_tables)} tables would be made, and route.max_targets is {section.max_targets}",
            "Raise route.max_targets, or give such names one target.",
        )
    if reasons and section.unrouted == "stop":
        return wrong("route", message, "route.unrouted is stop: add a target for them, or let them be dead letters.")
    if reasons:
        return doubtful("route", message, "They become dead letters. `headrace preview` shows them.")
    return good("route", message)


def _screen(local_pipeline: LocalPipeline) -> RecordScreen:
    return RecordScreen(local_pipeline.plan.privacy is not None)


def _valueless(local_pipeline: LocalPipeline, batch: pa.RecordBatch) -> str:
    """Return how many records of a sample have no value, as the end of a sentence."""
    count = batch.column("value").null_count
    if not count:
        return ""
    if "raw" in local_pipeline.config.pipelines[local_pipeline.name].formats:
        return f"; {plural(count, 'record')} without a value besides"
    return f"; {plural(count, 'tombstone')} besides"


def _wire(bare: list[bytes], wire: Wire, values: int, unnamed: int, valueless: str, screen: RecordScreen) -> Finding:
    """Check how values name their schemas. `bare`: those in no format of the pipeline. `unnamed`: JSON among them."""
    if wire == NO_WIRE:
        return good("wire", f"{plural(values, 'value')}, which name no schema, as `formats` says{valueless}")
    json_values = ""
    if unnamed:
        json_values = f", {unnamed:,} are JSON without one"
    if not bare:
        return good(
            "wire", f"{values - unnamed:,} of {values:,} values have a {wire.description}{json_values}{valueless}"
        )
    message = (
        f"{len(bare):,} of {values:,} values have no {wire.description}{json_values}; one is "
        f"{_guess(bare[0], screen)}{valueless}"
    )
    if len(bare) == values:
        return wrong(
            "wire", message, f"Set `wire` to the format that the producers write ({page_address('docs/TYPES.md')})."
        )
    return doubtful("wire", message, "They become dead letters. `headrace preview --at raw` shows them.")


def _guess(value: bytes, screen: RecordScreen) -> str:
    """Return the format that a value without a header seems to have, and the beginning of the value."""
    if not value:
        return "empty"
    name = next((name for head, name in _FORMATS.items() if value.startswith(head)), "")
    text = legible(value)
    # A byte has two characters in hexadecimal form.
    length_max = 2 * _GUESSED_BYTES if text.startswith("0x") else _GUESSED_BYTES
    if len(text) > length_max:
        text = f"{text[:length_max]}…"
    return f"{name}{screen.text(text)}"


def _reasons(dead_letters: Sequence[DeadLetter]) -> Counter[str]:
    """Count the reasons why values with a header are not decoded."""
    return Counter(dead_letter.reason for dead_letter in dead_letters if dead_letter.schema_id is not None)


def _kind(wire: Wire, unnamed: int) -> str:
    return "values" if wire == NO_WIRE or unnamed else "values with a header"


def _decode(kind: str, rows: int, reasons: Counter[str], unregistered: set[int | None]) -> Finding:
    """Check how many values are decoded, and why others are not.

    `kind`: of values. `unregistered`: schema ids that no subject has.
    """
    message = f"{rows:,} of {rows + reasons.total():,} {kind} are decoded"
    if reasons:
        message += "; " + "; ".join(f"{number:,}: {reason}" for reason, number in reasons.most_common(_REASONS_NAMED))
        if not rows:
            return wrong("decode", message, "Compare the producer with its schema.")
        return doubtful(
            "decode", message, "The others become dead letters. `headrace preview --at decoded` shows them."
        )
    if unregistered:
        ids = ", ".join(sorted({show_id(schema_id) for schema_id in unregistered if schema_id is not None}))
        return doubtful(
            "decode",
            f"{message}; schema {ids} is registered, but not under the topic's subject",
            "A start does not know its columns; the first batch that carries it adds them. Set registry.subjects to "
            "the producers' strategy.",
        )
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
        """Add the times of rows. `window`: the first and the last time that is believed."""
        self.rows += len(times)
        self.nulls += times.null_count
        values = times.drop_null()
        if len(values) == 0:
            return
        low, high = (pa.scalar(bound, times.type) for bound in window)
        self.outside += pc.sum(pc.or_(pc.less(values, low), pc.greater(values, high))).as_py()
        first, last = (bound.as_py() for bound in pc.min_max(values).values())
        self.first = min(first, self.first or first)
        self.last = max(last, self.last or last)
        self.kinds.add(kind)

    @property
    def words(self) -> str:
        """The kinds of times, and the first and last of them."""
        bounds = [instant(time) for time in (self.first, self.last) if time is not None]
        return f"{' and '.join(sorted(self.kinds))}: {' to '.join(bounds)}"

    @property
    def believable(self) -> float:
        """Share of the rows that have a time, and one that is believed."""
        if not self.rows:
            return 0.0
        return (self.rows - self.nulls - self.outside) / self.rows


def times_in(sample: Sample, rule: TimeRule, now: datetime) -> Times:
    """Read the event times of a sample. Raises ValueError as `times_of` does."""
    statistics = Times()
    window = rule.window(now)
    for group in sample.groups:
        rows = with_kafka_time(group.rows, group.records, rule.field)
        times, unit = group.times or times_of(rows, rule, group.records.column("topic"), now)
        kind = "timestamp"
        if not group.times:
            kind = short_type(column(rows, rule.field).type)
        descriptions = {"logical": kind, "auto": f"{kind} of no unit that its values show"}
        statistics.add(times, descriptions.get(unit, f"{kind} in {unit}"), window)
    return statistics


def _event_time(local_pipeline: LocalPipeline, sample: Sample, now: datetime) -> Finding:
    """Check the field's times: detected unit, range, nulls, and the share outside the accepted window."""
    rule = local_pipeline.time_rule
    try:
        times = times_in(sample, rule, now)
    except ClockFieldMissing as error:
        return failure("event_time", ConfigError(str(error)))
    except ValueError as error:
        return failure("event_time", ConfigError(f"{error}{fix_event_time(local_pipeline.plan, rule)}"))
    if times.first is None or times.last is None:
        return wrong("event_time", f"{rule.field} holds no time in {times.rows:,} rows", "Choose another field.")
    message = f"{rule.field}, {times.words}"
    believed = f"now - {show_duration(rule.max_age)} to now + {show_duration(rule.max_ahead)}"
    if not times.nulls + times.outside:
        return good("event_time", f"{message}; all are believable ({believed})")
    reasons = {"have none": times.nulls, f"are outside {believed}": times.outside}
    quarantined = [
        f"{number:,} of {times.rows:,} rows ({number / times.rows:.1%}) {reason}"
        for reason, number in reasons.items()
        if number
    ]
    message += f"; {', '.join(quarantined)}: quarantined"
    fix = "Check event_time.unit, max_age and max_ahead. `headrace preview --at assigned` shows them."
    if times.nulls + times.outside == times.rows:
        return wrong("event_time", message, fix)
    return doubtful("event_time", message, fix)


def fix_event_time(plan: SchemaPlan, rule: TimeRule) -> str:
    """Return the end of a sentence about a field that the rule refuses: columns that it takes, or another unit."""
    usable = [column for column in plan.columns if not find_refusal(column.type, rule.unit)]
    times = [column.name for column in usable if pa.types.is_temporal(column.type)]
    numbers = [column.name for column in usable if pa.types.is_int64(column.type)]
    named = ", ".join(times or numbers)
    texts = (schema.text for schema in plan.schemas.values() if isinstance(schema, WriterSchema))
    misplaced_types = chain.from_iterable(find_misplaced_types(text, rule.field) for text in texts)
    misplaced = next(misplaced_types, None)
    if misplaced is not None and rule.unit == "logical":
        logical, unit = misplaced
        other = f", or event_time.field to one that is: {named}" if named else ""
        return (
            f"; its schema has logicalType {logical!r} beside the type instead of in it, where Avro ignores it. "
            f"Set event_time.unit to {unit}{other}."
        )
    return f". Set event_time.field to one that is: {named}." if named else ""


def find_misplaced_types(text: str, field: str) -> Iterator[tuple[str, str]]:
    """Yield the logical type, and its unit, that stands beside the type `long` of a field. `field`: dotted."""
    form = parse_schema(text)
    for part in iterate_types(form, form.root):
        # The name of a member of a union is no part of the path.
        names = [step.name for step in part.steps if step.kind != "member"]
        if part.schema != "long" or part.field is None or names != field.split("."):
            continue
        logical = part.field.get("logicalType")
        if not isinstance(logical, str):
            continue
        unit = timestamp_unit({"type": "long", "logicalType": logical})
        if unit is not None:
            yield logical, unit


def _buckets(columns: Sequence[str], sample: Sample) -> Finding:
    assigned = [group.assigned.buckets for group in sample.groups if group.assigned is not None]
    # A sample is small and read once, so Python objects do no harm.
    rows_by_bucket = Counter(buckets.values[code] for buckets in assigned for code in buckets.codes.to_pylist())
    labels = sorted(bucket_path(columns, bucket) for bucket in rows_by_bucket)
    message = f"{plural(len(labels), 'bucket')} in the sample: {labels[0]}"
    if len(labels) > 1:
        ((largest, rows),) = rows_by_bucket.most_common(1)
        share = rows / rows_by_bucket.total()
        message += f" to {labels[-1]}; {share:.1%} of the rows in {bucket_path(columns, largest)}"
    if len(labels) > _BUCKETS_MANY:
        return doubtful(
            "buckets", message, "Each commit writes a file to each of them: many small files. Consider wider buckets."
        )
    return good("buckets", message)
