"""Checks of `validate` on a sample of records: wire format, decoding, routes, event times, buckets."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

import pyarrow as pa
import pyarrow.compute as pc

import bucketers
from bucketers.arrow import column
from writer.avro.wire_format import Wire
from writer.batch.bucketing import ClockFieldMissing, TimeRule, times_of
from writer.config.routing import RouteSection
from writer.core.errors import ConfigError
from writer.core.text import instant, listed, plural
from writer.core.units import show_duration
from writer.maintenance.local_pipeline import DeadLetter, LocalPipeline, Sample
from writer.output.tables import legible, short_type
from writer.preflight.event_time_hints import fix_event_time
from writer.preflight.finding import Finding, doubtful, failure, good, skipped, wrong
from writer.preflight.host_checks import scratch
from writer.preflight.samples.route_sample import RouteSplit, opened_part, split
from writer.privacy.record_sealing import RecordScreen
from writer.schemas.format_detection import MixedWire, UnclearWire
from writer.schemas.registry import SchemaSource
from writer.sealing.manifest import bucket_path

SAMPLED = ("wire", "decode", "event_time", "buckets", "spill")
_TARGETS_NAMED = 6
_BUCKETS_MANY = 100  # each gets a file of its own in each commit
_REASONS_NAMED = 3
_GUESSED_BYTES = 24
_FORMATS = {
    b"{": "JSON: ", b"[": "JSON: ", b"Obj\x01": "an Avro file: ", b"\xc3\x01": "Avro, single-object encoding: ",
}  # fmt: skip


def sampled(walk: LocalPipeline, batch: pa.RecordBatch, now: datetime) -> Iterator[Finding]:
    """Carry a sample through the steps up to the buckets, and judge what becomes of it."""
    values = batch.column("value").drop_null()
    wire = _settled(walk, batch, values)
    if isinstance(wire, Finding):
        yield wire
        why = "there is no sample" if wire.status == "not_checked" else "the wire format is not known"
        yield from (skipped(check, why) for check in SAMPLED[1:])
        return
    registered = set(walk.plan.schemas)
    sample = walk.decoded(batch)
    bare = [dead_letter.value for dead_letter in sample.dead_letters if dead_letter.schema_id is None]
    yield _wire(bare, wire, len(values), batch.num_rows - len(values), _screen(walk))
    if len(bare) == len(values):
        yield from (skipped(check, "no value has a header") for check in SAMPLED[1:])
        return
    strangers = {group.schema_id for group in sample.groups} - registered
    yield _decode(sample.rows + len(sample.filtered), _reasons(sample.dead_letters), strangers)
    if not sample.rows:
        why = "event specs leave out every record" if sample.filtered else "no record can be decoded"
        yield from (skipped(check, why) for check in SAMPLED[2:])
        return
    timed = _event_time(walk, sample, now)
    yield timed
    if timed.status == "failed":
        yield skipped("buckets", "the event times are not usable")
    else:
        yield _buckets(bucketers.build(walk.config.pipelines[walk.name].bucket).columns, walk.assigned(batch, now))
    yield scratch(walk.config.pipelines[walk.name], sum(group.rows.nbytes for group in sample.groups) / sample.rows)


def _settled(walk: LocalPipeline, batch: pa.RecordBatch, values: pa.Array) -> Wire | Finding:
    """Return the wire format of a sample, or what is wrong with it."""
    if len(values) == 0:
        return skipped("wire", "the topics hold no records with a value")
    try:
        return walk.settled(batch)
    except UnclearWire as error:
        message, _, fix = str(error).partition(". ")
        shown = values if walk.wire is None else batch.column("key").drop_null()
        one = "" if isinstance(error, MixedWire) else f"; one is {_guess(shown[0].as_py(), _screen(walk))}"
        return wrong("wire", message + one, fix)


def sampled_route(
    walk: LocalPipeline, schemas: SchemaSource, batch: pa.RecordBatch, now: datetime
) -> Iterator[Finding]:
    """Judge a sample by the tables that its records go to: each as the table of a pipeline."""
    values = batch.column("value").drop_null()
    wire = _settled(walk, batch, values)
    if isinstance(wire, Finding):
        yield wire
        return
    found = split(walk, batch)
    bare = [one.value for one in found.undecoded if one.schema_id is None]
    yield _wire(bare, wire, len(values), batch.num_rows - len(values), _screen(walk))
    broken = _reasons(found.undecoded)
    if broken:
        yield _decode(len(values) - len(found.undecoded), broken, set())
    settings = walk.config.pipelines[walk.name]
    assert settings.route is not None, "only a route is split"
    yield _routing(settings.route, found)
    for part in found.parts:
        for finding in sampled(opened_part(walk.name, part, schemas), part.records, now):
            if finding.status != "not_checked" and finding.check != "wire":
                yield replace(finding, check=f"{finding.check} {part.target}")


def _routing(section: RouteSection, found: RouteSplit) -> Finding:
    """Say which tables a sample goes to, and what goes to none."""
    made = [part for part in found.parts if part.target not in section.fixed]
    shown = listed([f"{part.target} {part.records.num_rows:,}" for part in found.parts], _TARGETS_NAMED)
    message = f"{plural(len(found.parts), 'table')}: {shown}" if found.parts else "no record goes to a table"
    reasons = Counter(one.reason for one in found.unrouted)
    message += "".join(f"; {number:,}: {reason}" for reason, number in reasons.most_common(_REASONS_NAMED))
    if len(made) > section.max_targets:
        return doubtful(
            "route", f"{message}; {len(made)} tables would be made, and route.max_targets is {section.max_targets}",
            "Raise route.max_targets, or give such names one target.",
        )  # fmt: skip
    if reasons and section.unrouted == "stop":
        return wrong("route", message, "route.unrouted is stop: add a target for them, or let them be dead letters.")
    if reasons:
        return doubtful("route", message, "They become dead letters. `headrace preview` shows them.")
    return good("route", message)


def _screen(walk: LocalPipeline) -> RecordScreen:
    return RecordScreen(walk.plan.privacy is not None)


def _wire(bare: list[bytes], wire: Wire, values: int, tombstones: int, screen: RecordScreen) -> Finding:
    empty = f"; {plural(tombstones, 'tombstone')} besides" if tombstones else ""
    if not bare:
        return good("wire", f"{values:,} of {values:,} values have a {wire.words}{empty}")
    message = f"{len(bare):,} of {values:,} values have no {wire.words}; one is {_guess(bare[0], screen)}{empty}"
    if len(bare) == values:
        return wrong("wire", message, "Set `wire` to the format that the producers write (docs/TYPES.md).")
    return doubtful("wire", message, "They become dead letters. `headrace preview --at raw` shows them.")


def _guess(value: bytes, screen: RecordScreen) -> str:
    """Name the format that a value without a header seems to have."""
    name = next((name for head, name in _FORMATS.items() if value.startswith(head)), "")
    shown = legible(value)
    cut = _GUESSED_BYTES * (2 if shown.startswith("0x") else 1)
    head = shown[:cut] + ("…" if len(shown) > cut else "")
    return f"{name}{screen.text(head)}" if value else "empty"


def _reasons(dead_letters: Sequence[DeadLetter]) -> Counter[str]:
    """Count the reasons why values with a header are not decoded."""
    return Counter(one.reason for one in dead_letters if one.schema_id is not None)


def _decode(rows: int, reasons: Counter[str], strangers: set[int | None]) -> Finding:
    """Say how many values are decoded, and why others are not. `strangers`: schema ids that no subject has."""
    message = f"{rows:,} of {rows + reasons.total():,} values with a header are decoded"
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
        times, unit = group.times or times_of(group.rows, rule, group.records.column("topic"), now)
        kind = "timestamp" if group.times else short_type(column(group.rows, rule.field).type)
        words = {"logical": kind, "auto": f"{kind} of no unit that its values show"}
        found.add(times, words.get(unit, f"{kind} in {unit}"), window)
    return found


def _event_time(walk: LocalPipeline, sample: Sample, now: datetime) -> Finding:
    """Check the field's times: detected unit, range, nulls, and the share outside the accepted window."""
    rule = walk.time_rule
    try:
        found = times_in(sample, rule, now)
    except ValueError as error:
        fix = "" if isinstance(error, ClockFieldMissing) else fix_event_time(walk.plan, rule)
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
