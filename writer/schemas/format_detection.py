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

from writer.avro.schema_plan import SchemaPlan
from writer.avro.wire_format import CONFLUENT, Part, Wire, detect_wire, keys_as_values, values_with_headers
from writer.batch.bucketing import times_of
from writer.clients import kafka_sample
from writer.config.connections import Kafka
from writer.config.pipeline import Pipeline
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.offsets import Source, Span
from writer.core.text import instant
from writer.schemas.tracker import Schemas

RECORDS_MAX = 100  # of a sample: half of them the oldest, half the newest
_ENOUGH = 20  # fewer unrecognised values may be a producer's first attempts; so many are a topic
_MOST = 0.9  # of the values whose schema is known; the others are strays
_IDS_ASKED = 8  # for each format: what is no id is another one in each value
SETTINGS: Mapping[Part, str] = {"value": "wire", "key": "columns.key.wire"}
_DETECTED = "detected"  # fact of a commit: what detected its formats
_FACTS: Mapping[Part, str] = {"value": "wire", "key": "key_wire"}  # as commits store them
Knows = Callable[[Wire, int], bool]


class UnclearWire(ConfigError):
    """The records do not show their wire format; the configuration must set it."""


class MixedWire(UnclearWire):
    """The records have two formats."""


@dataclass(frozen=True)
class Verdict:
    """The format that a sample shows. `sure`: the schema that its records name is known, so no later look is needed."""

    wire: Wire
    sure: bool
    message: str


def looked_at(kafka: Kafka, held: Mapping[Source, Span]) -> pa.Table:
    """Read the oldest and the newest records of these spans. Raises as `sample.read` does."""
    shares = kafka_sample.spread({source: end - start for source, (start, end) in held.items()}, RECORDS_MAX)
    oldest = {source: (start, start + shares[source] // 2) for source, (start, _) in held.items()}
    newest = {source: (end - shares[source] + shares[source] // 2, end) for source, (_, end) in held.items()}
    return pa.Table.from_batches([kafka_sample.read(kafka, oldest), kafka_sample.read(kafka, newest)])


def judge(records: pa.Table, knows: Knows, part: Part = "value") -> Verdict:
    """Find the wire format of records' values or keys (schema `sample.RECORDS`). Raises UnclearWire.

    A record speaks for the one format that it can be seen to have, and counts when `knows` its schema id. Where no
    record counts, the only format that most values show is taken, but not for good; and where there are too few values
    to tell, it is Confluent's, until there are more. Pure but for `knows`.
    """
    values = records.filter(pc.is_valid(records.column("value"))) if part == "value" else keys_as_values(records)
    marks = [(value, detect_wire(value, headers, part)) for value, headers in values_with_headers(values)]
    seen = [pair for _, pair in marks if pair is not None]
    total = sum(pair is not None or bool(value) for value, pair in marks)  # an empty value says nothing of a format
    asked = {
        pair: knows(*pair)
        for wire in {wire for wire, _ in seen}
        for pair, _ in Counter(pair for pair in seen if pair[0] == wire).most_common(_IDS_ASKED)
    }
    shown = Counter(wire for wire, _ in seen)
    known = Counter(pair[0] for pair in seen if asked.get(pair))
    message, setting = _message(total, shown, part), SETTINGS[part]
    if known:
        ((wire, most), *_) = known.most_common(1)
        if most < _MOST * known.total():
            raise MixedWire(
                f"{message}. One pipeline reads one format: set `{setting}` to the one that is meant, and the others "
                "become dead letters; or give them pipelines of their own."
            )
        return Verdict(wire, True, message)
    if len(shown) == 1 and 2 * shown.total() >= total:
        return Verdict(next(iter(shown)), False, f"{message}, with schema ids that the registry does not know")
    if total >= _ENOUGH:
        raise UnclearWire(
            f"{message}, and no schema that they name is known. If they are Avro without any header, set `{setting}` "
            "to {format: bare, schema_id: …}; to take all that is not Confluent's for dead letters, set "
            f"`{setting}: confluent`."
        )
    return Verdict(CONFLUENT, False, message)


def _message(values: int, shown: Counter[Wire], part: Part) -> str:
    if not values:
        return f"there are no {part}s to look at"
    if not shown:
        return f"none of {values:,} {part}s has a wire format that can be seen"
    return ", ".join(
        f"{count:,} of {values:,} {part}s have a {wire.description}" for wire, count in shown.most_common()
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
        if facts.get(name):
            return replace(
                Wire(**facts[name]), origin=_wire_origin(_origin_of(facts, name) or "an earlier batch", part)
            )
    return None


def _wire_origin(detected_by: str, part: Part) -> str:
    return f"detected by {detected_by}; `{SETTINGS[part]}` sets another"


@dataclass
class DetectedWire:
    """The wire format of a pipeline's values, or of its keys."""

    pipeline: str
    part: Part
    wire: Wire
    known: bool  # for good
    detected_by: str = ""  # what showed it, as commits store it

    @classmethod
    def begun(cls, pipeline: str, part: Part, fixed: Wire | None) -> "DetectedWire":
        """Begin with what the configuration says. `fixed`: None where the format is to be detected."""
        if fixed is not None:
            return cls(pipeline, part, replace(fixed, origin=f"as `{SETTINGS[part]}` says"), known=True)
        assumed = replace(CONFLUENT, origin=f"assumed while no {part} shows a format; `{SETTINGS[part]}` sets one")
        return cls(pipeline, part, assumed, known=False)

    def keep(self, recent: Sequence[Mapping[str, Any]], schemas: Schemas) -> None:
        """Keep the format that earlier batches were read by; `auto` does not decide otherwise later."""
        wire = wire_of(recent, self.part)
        if wire is None or self.known:
            return
        self.wire, self.known = wire, True
        self.detected_by = next((_origin_of(facts, _FACTS[self.part]) for facts in recent), "")
        schemas.read_by(self.wire)

    def look(self, records: pa.Table, schemas: Schemas) -> None:
        """Look for the format in a sample, until one shows it. Raises UnclearWire."""
        if self.known or (self.part == "key" and records.column("key").null_count == records.num_rows):
            return
        try:
            verdict = judge(records, schemas.knows, self.part)
        except UnclearWire as error:
            raise UnclearWire(f"pipelines.{self.pipeline}.{SETTINGS[self.part]}: {error}") from error
        if verdict.wire != self.wire:
            schemas.read_by(verdict.wire)
        now = datetime.now(UTC)
        self.detected_by = f"a sample of {instant(now)}"
        origin = _wire_origin(self.detected_by, self.part)
        self.wire, self.known = replace(verdict.wire, origin=origin), verdict.sure
        log = logging.event if verdict.sure else logging.warning
        event = "wire_format_found" if verdict.sure else "wire_format_assumed"
        log(event, pipeline=self.pipeline, wire=verdict.wire.format, records=verdict.message)


class DetectedFormat:
    """The detected values of `auto` in one pipeline's configuration."""

    def __init__(self, pipeline: str, settings: Pipeline, kafka: Kafka) -> None:
        self._pipeline, self._settings, self._kafka = pipeline, settings, kafka
        self._values = DetectedWire.begun(pipeline, "value", settings.wire.fixed)
        self._keys: DetectedWire | None = None
        if settings.columns.avro_key is not None:
            self._keys = DetectedWire.begun(pipeline, "key", settings.columns.avro_key.wire.fixed)
        self._unit: str | None = None
        self.unit_origin = ""  # the batch that detected the unit

    @property
    def wire(self) -> Wire:
        """Wire format of the values; a guess unless it is known."""
        return self._values.wire

    @property
    def key_wire(self) -> Wire:
        """Wire format of keys that are Avro; a guess unless it is known."""
        return CONFLUENT if self._keys is None else self._keys.wire

    @property
    def wires_known(self) -> bool:
        """Whether no wire format is to be looked for."""
        return self._values.known and (self._keys is None or self._keys.known)

    def facts(self) -> dict[str, Any]:
        """Return the wire formats as a commit stores them, and what detected them."""
        both = [one for one in (self._values, self._keys) if one is not None]
        detected = {_FACTS[one.part]: one.detected_by for one in both if one.known and one.detected_by}
        if self.unit_origin:
            detected["time_unit"] = self.unit_origin
        formats = {_FACTS[one.part]: one.wire.facts() if one.known else None for one in both}
        return {**formats, **({_DETECTED: detected} if detected else {})}

    @property
    def unit(self) -> str:
        """Unit of the event time; `auto` while no row has shown it."""
        return self._unit or self._settings.event_time.unit

    def needs_headers(self) -> bool:
        """Return whether Spark must read Kafka's headers: for the table's columns, or for a schema id in them."""
        return self.reads_headers() or not self.wires_known

    def reads_headers(self) -> bool:
        """Return whether a task needs the headers of its records."""
        wanted = self._settings.record_columns.has_headers
        return wanted or self.wire.header is not None or self.key_wire.header is not None

    def check_time(self, plan: SchemaPlan) -> None:
        """Raise ConfigError when the event-time field is no time by the schemas that are known so far."""
        rule = self._settings.event_time
        try:
            for columns in filter(len, plan.inputs):
                times_of(columns.empty_table(), rule.rule(rule.unit), pa.array([], pa.string()))
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
        for one, known in self._each(schemas):
            one.keep(recent, known)

    def look_for_wires(self, waiting: Mapping[Source, Span], schemas: Schemas) -> None:
        """Look for the wire formats among the records that wait, until these show them. Raises UnclearWire."""
        if self.wires_known or not any(start < end for start, end in waiting.values()):
            return
        records = looked_at(self._kafka, waiting)
        for one, known in self._each(schemas):
            one.look(records, known)

    def _each(self, schemas: Schemas) -> list[tuple[DetectedWire, Schemas]]:
        found = [(self._values, schemas)]
        if self._keys is not None and schemas.keys is not None:
            found.append((self._keys, schemas.keys))
        return found
