"""Detects the wire format and the unit of the event time from records, and stores them.

The wire format is found in a sample of them, and refused where it would be a guess.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.writer.batch.bucketing import times_of_columns
from headrace.writer.clients import kafka_sample
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.connections import Kafka
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.offsets import Source, Span
from headrace.writer.core.text import instant
from headrace.writer.framing.wire_format import (
    CONFLUENT,
    NO_WIRE,
    Part,
    Wire,
    detect_wire,
    keys_as_values,
    values_with_headers,
)
from headrace.writer.schemas.tracker import Schemas

# Of a sample: half of them are the oldest, half the newest.
RECORDS_MAX = 100
# Fewer unrecognised values may be a producer's first attempts; so many are a topic.
_TOPIC_VALUES_MIN = 20
# Of the values whose schema is known; the others are strays.
_MAJORITY = 0.9
# Ids of each format that a registry is asked for: what is no id is another one in each value.
_IDS_MAX = 8
SETTINGS: Mapping[Part, str] = {"value": "wire", "key": "columns.key.wire"}
# Fact of a commit: what detected its formats.
_DETECTED = "detected"
# Facts of a commit: its formats.
_FACTS: Mapping[Part, str] = {"value": "wire", "key": "key_wire"}
# Whether a schema can be had by an id of a wire format.
KnowsId = Callable[[Wire, int], bool]


class UnclearWire(ConfigError):
    """The records do not show their wire format; the configuration must set it."""


class MixedWire(UnclearWire):
    """The records have several formats. `wires`: in the order in which values are to be looked at."""

    def __init__(self, message: str, wires: Sequence[Wire] = ()) -> None:
        super().__init__(message)
        self.wires = tuple(wires)


@dataclass(frozen=True)
class Verdict:
    """The format that a sample shows.

    `is_sure`: the schema that its records name is known, so no later look is needed.
    """

    wire: Wire
    is_sure: bool
    message: str


def read_sample(kafka: Kafka, spans: Mapping[Source, Span]) -> pa.Table:
    """Read the oldest and the newest records of these spans. Raises as `kafka_sample.read` does."""
    shares = kafka_sample.spread({source: stop - start for source, (start, stop) in spans.items()}, RECORDS_MAX)
    oldest: dict[Source, Span] = {}
    newest: dict[Source, Span] = {}
    for source, (start, stop) in spans.items():
        oldest_count = shares[source] // 2
        newest_count = shares[source] - oldest_count
        oldest[source] = (start, start + oldest_count)
        newest[source] = (stop - newest_count, stop)
    return pa.Table.from_batches([kafka_sample.read(kafka, oldest), kafka_sample.read(kafka, newest)])


def judge(records: pa.Table, knows: KnowsId, part: Part = "value") -> Verdict:
    """Find the wire format of records' values or keys (schema `kafka_sample.RECORDS`). Raises UnclearWire.

    A record speaks for the one format that it can be seen to have, and counts when `knows` its schema id. Where no
    record counts, the only format that most values show is taken, but not for good; and where there are too few values
    to tell, it is Confluent's, until there are more. Pure but for `knows`.
    """
    values = records.filter(pc.is_valid(records.column("value"))) if part == "value" else keys_as_values(records)
    wire_ids: list[tuple[Wire, int]] = []
    total = 0
    for value, headers in values_with_headers(values):
        wire_id = detect_wire(value, headers, part)
        if wire_id is not None:
            wire_ids.append(wire_id)
        # An empty value says nothing of a format.
        total += wire_id is not None or bool(value)
    wires = Counter(wire for wire, _ in wire_ids)
    known_ids = _find_known_ids(wire_ids, knows)
    known_wires = Counter(wire_id[0] for wire_id in wire_ids if wire_id in known_ids)
    message = _message(total, wires, part)
    setting = SETTINGS[part]
    if known_wires:
        ((wire, count), *_) = known_wires.most_common(1)
        if count < _MAJORITY * known_wires.total():
            known = _order_wires(known_wires)
            raise MixedWire(
                f"{message}. Set `{setting}` to the one that is meant, and the others become dead letters; or to the "
                f"list of those that are to be read, such as {_list_formats(known)}.",
                known,
            )
        return Verdict(wire, True, message)
    if len(wires) == 1 and 2 * wires.total() >= total:
        return Verdict(next(iter(wires)), False, f"{message}, with schema ids that the registry does not know")
    if total >= _TOPIC_VALUES_MIN:
        raise UnclearWire(
            f"{message}, and no schema that they name is known. If they are Avro without any header, set `{setting}` "
            "to {format: bare, schema_id: …}; to take all that is not Confluent's for dead letters, set "
            f"`{setting}: confluent`."
        )
    return Verdict(CONFLUENT, False, message)


def _find_known_ids(wire_ids: Sequence[tuple[Wire, int]], knows: KnowsId) -> set[tuple[Wire, int]]:
    """Return the known ones among the most frequent ids of each format."""
    known_ids = set[tuple[Wire, int]]()
    for wire in {wire for wire, _ in wire_ids}:
        counts = Counter(wire_id for wire_id in wire_ids if wire_id[0] == wire)
        known_ids.update(wire_id for wire_id, _ in counts.most_common(_IDS_MAX) if knows(*wire_id))
    return known_ids


def _order_wires(wires: Counter[Wire]) -> list[Wire]:
    """Return the formats of Kafka headers, then the others; of each kind the most frequent one first.

    A value whose id is in a header may begin as if there were an id before it, and no other has the header.
    """
    frequent = [wire for wire, _ in wires.most_common()]
    return sorted(frequent, key=lambda wire: wire.header is None)


def _list_formats(wires: Sequence[Wire]) -> str:
    """Return formats as the configuration has them."""
    names = [wire.format if wire.header is None else f"{{format: header, header: {wire.header}}}" for wire in wires]
    return f"[{', '.join(names)}]"


def _message(values: int, wires: Counter[Wire], part: Part) -> str:
    if not values:
        return f"there are no {part}s to look at"
    if not wires:
        return f"none of {values:,} {part}s has a wire format that can be seen"
    return ", ".join(
        f"{count:,} of {values:,} {part}s have a {wire.description}" for wire, count in wires.most_common()
    )


def unit_of(configured: str, recent: Iterable[Mapping[str, Any]]) -> str:
    """Return the unit of the event time: as configured or, for `auto`, as commits have stored it."""
    return configured if configured != "auto" else detected_unit(recent)[0]


def detected_unit(recent: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """Return the unit of the event time that commits have stored, and what detected it; `auto` where none did."""
    for facts in recent:
        if facts.get("time_unit", "auto") not in ("", "auto", None):
            return str(facts["time_unit"]), _origin_of(facts, "time_unit")
    return "auto", ""


def _origin_of(facts: Mapping[str, Any], name: str) -> str:
    return str(facts.get(_DETECTED, {}).get(name, ""))


def wire_of(recent: Iterable[Mapping[str, Any]], part: Part = "value") -> Wire | None:
    """Return the wire format of values or keys that commits have stored; None if none has."""
    name = _FACTS[part]
    for facts in recent:
        # A pipeline whose values named no schema may read others by now.
        if facts.get(name) and facts[name]["format"] != NO_WIRE.format:
            origin = _wire_origin(_origin_of(facts, name) or "an earlier batch", part)
            return replace(Wire(**facts[name]), origin=origin)
    return None


def _wire_origin(detected_by: str, part: Part) -> str:
    return f"detected by {detected_by}; `{SETTINGS[part]}` sets another"


@dataclass
class DetectedWire:
    """The wire format of a pipeline's values, or of its keys.

    `is_known`: for good. `detected_by`: what showed it, as commits store it.
    """

    pipeline: str
    part: Part
    wire: Wire
    is_known: bool
    detected_by: str = ""

    @classmethod
    def from_settings(cls, pipeline: str, part: Part, fixed: Wire | None) -> "DetectedWire":
        """Begin with what the configuration says. `fixed`: None where the format is to be detected."""
        if fixed is not None:
            return cls(pipeline, part, replace(fixed, origin=f"as `{SETTINGS[part]}` says"), is_known=True)
        assumed = replace(CONFLUENT, origin=f"assumed while no {part} shows a format; `{SETTINGS[part]}` sets one")
        return cls(pipeline, part, assumed, is_known=False)

    def keep(self, recent: Sequence[Mapping[str, Any]], schemas: Schemas) -> None:
        """Keep the format that earlier batches were read by; `auto` does not decide otherwise later."""
        wire = wire_of(recent, self.part)
        if wire is None or self.is_known:
            return
        self.wire = wire
        self.is_known = True
        self.detected_by = next((_origin_of(facts, _FACTS[self.part]) for facts in recent), "")
        schemas.use_wire(self.wire)

    def look(self, records: pa.Table, schemas: Schemas) -> None:
        """Look for the format in a sample, until one shows it. Raises UnclearWire."""
        if self.is_known or (self.part == "key" and records.column("key").null_count == records.num_rows):
            return
        try:
            verdict = judge(schemas.select_framed(records), schemas.knows, self.part)
        except UnclearWire as error:
            raise UnclearWire(f"pipelines.{self.pipeline}.{SETTINGS[self.part]}: {error}") from error
        if verdict.wire != self.wire:
            schemas.use_wire(verdict.wire)
        now = datetime.now(UTC)
        self.detected_by = f"a sample of {instant(now)}"
        self.wire = replace(verdict.wire, origin=_wire_origin(self.detected_by, self.part))
        self.is_known = verdict.is_sure
        facts = {"pipeline": self.pipeline, "wire": verdict.wire.format, "records": verdict.message}
        if verdict.is_sure:
            logging.event("wire_format_found", **facts)
        else:
            logging.warning("wire_format_assumed", **facts)


class DetectedFormat:
    """The detected values of `auto` in one pipeline's configuration."""

    def __init__(self, pipeline: str, settings: Pipeline, kafka: Kafka) -> None:
        self._pipeline = pipeline
        self._settings = settings
        self._kafka = kafka
        self._values = DetectedWire.from_settings(pipeline, "value", settings.wire_of_values)
        self._keys: DetectedWire | None = None
        if settings.columns.avro_key is not None:
            self._keys = DetectedWire.from_settings(pipeline, "key", settings.columns.avro_key.wire.fixed)
        self._unit: str | None = None
        # The batch that detected the unit.
        self.unit_origin = ""

    @property
    def wire(self) -> Wire:
        """The wire format of the values; a guess unless it is known."""
        return self._values.wire

    @property
    def key_wire(self) -> Wire:
        """The wire format of keys that are Avro; a guess unless it is known."""
        return CONFLUENT if self._keys is None else self._keys.wire

    @property
    def has_all_wires(self) -> bool:
        """Whether no wire format is to be looked for."""
        return self._values.is_known and (self._keys is None or self._keys.is_known)

    def facts(self) -> dict[str, Any]:
        """Return the wire formats as a commit stores them, and what detected them."""
        facts: dict[str, Any] = {}
        origins: dict[str, str] = {}
        for detected_wire in (self._values, self._keys):
            if detected_wire is None:
                continue
            name = _FACTS[detected_wire.part]
            facts[name] = detected_wire.wire.facts() if detected_wire.is_known else None
            if detected_wire.is_known and detected_wire.detected_by:
                origins[name] = detected_wire.detected_by
        if self.unit_origin:
            origins["time_unit"] = self.unit_origin
        if origins:
            facts[_DETECTED] = origins
        return facts

    @property
    def unit(self) -> str:
        """The unit of the event time; `auto` while no row has shown it."""
        return self._unit or self._settings.event_time.unit

    def needs_headers(self) -> bool:
        """Return whether Spark must read Kafka's headers: for the table's columns, or for a schema id in them."""
        return self.reads_headers() or not self.has_all_wires

    def reads_headers(self) -> bool:
        """Return whether a task needs the headers of its records."""
        has_header_columns = self._settings.record_columns.has_headers
        return has_header_columns or self.wire.reads_headers or self.key_wire.reads_headers

    def check_time(self, plan: SchemaPlan) -> None:
        """Raise ConfigError when the event-time field is no time by the schemas that are known so far."""
        rule = self._settings.event_time
        try:
            for columns in filter(len, plan.inputs):
                times_of_columns(columns, rule.rule(rule.unit), self._settings.record_columns.schema)
        except ValueError as error:
            raise ConfigError(f"pipelines.{self._pipeline}.event_time: {error}") from error

    def keep_unit(self, unit: str, detected_by: str) -> None:
        """Store the unit that `auto` detected in the first rows, so that a later batch uses the same.

        `detected_by`: the batch, for a person.
        """
        rule = self._settings.event_time
        if rule.unit == "auto" and self._unit is None and unit not in ("", "auto"):
            self._unit = unit
            self.unit_origin = detected_by
            logging.event(
                "event_time_unit_detected", pipeline=self._pipeline, field=rule.field, unit=unit, by=detected_by
            )

    def keep_wires(self, recent: Sequence[Mapping[str, Any]], schemas: Schemas) -> None:
        """Keep the wire formats that earlier batches were read by; `auto` does not decide otherwise later."""
        for detected_wire, part_schemas in self._wires_with_schemas(schemas):
            detected_wire.keep(recent, part_schemas)

    def look_for_wires(self, waiting: Mapping[Source, Span], schemas: Schemas) -> None:
        """Look for the wire formats among the records that wait, until these show them. Raises UnclearWire."""
        if self.has_all_wires or not any(start < stop for start, stop in waiting.values()):
            return
        records = read_sample(self._kafka, waiting)
        for detected_wire, part_schemas in self._wires_with_schemas(schemas):
            detected_wire.look(records, part_schemas)

    def _wires_with_schemas(self, schemas: Schemas) -> list[tuple[DetectedWire, Schemas]]:
        """Return the wire formats of values and of keys, each with the schemas of its part."""
        wires = [(self._values, schemas)]
        if self._keys is not None and schemas.keys is not None:
            wires.append((self._keys, schemas.keys))
        return wires
