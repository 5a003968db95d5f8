"""Detects the wire format and the unit of the event time from records, and stores them.

The wire format is found in a sample of them, and refused where it would be a guess.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from writer.avro.wire_format import CONFLUENT, Wire, each, recognised
from writer.batch.bucketing import times_of
from writer.clients import kafka_sample
from writer.config import pipelines
from writer.config.connections import Kafka
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.offsets import Source, Span
from writer.schemas.tracker import Schemas

RECORDS_MAX = 100  # of a sample: half of them the oldest, half the newest
_ENOUGH = 20  # fewer unrecognised values may be a producer's first attempts; so many are a topic
_MOST = 0.9  # of the values whose schema is known; the others are strays
_IDS_ASKED = 8  # for each format: what is no id is another one in each value
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


def judge(records: pa.Table, knows: Knows) -> Verdict:
    """Find the wire format of records (schema `sample.RECORDS`). Raises UnclearWire. Pure but for `knows`.

    A record speaks for the one format that it can be seen to have, and counts when `knows` its schema id. Where no
    record counts, the only format that most values show is taken, but not for good; and where there are too few values
    to tell, it is Confluent's, until there are more.
    """
    values = records.filter(pc.is_valid(records.column("value")))
    seen = [found for value, headers in each(values) if (found := recognised(value, headers)) is not None]
    asked = {
        pair: knows(*pair)
        for wire in {wire for wire, _ in seen}
        for pair, _ in Counter(pair for pair in seen if pair[0] == wire).most_common(_IDS_ASKED)
    }
    shown = Counter(wire for wire, _ in seen)
    known = Counter(pair[0] for pair in seen if asked.get(pair))
    message = _said(values.num_rows, shown)
    if known:
        ((wire, most), *_) = known.most_common(1)
        if most < _MOST * known.total():
            raise MixedWire(
                f"{message}. One pipeline reads one format: set `wire` to the one that is meant, and the others become "
                "dead letters; or give them pipelines of their own."
            )
        return Verdict(wire, True, message)
    if len(shown) == 1 and 2 * shown.total() >= values.num_rows:
        return Verdict(next(iter(shown)), False, f"{message}, with schema ids that the registry does not know")
    if values.num_rows >= _ENOUGH:
        raise UnclearWire(
            f"{message}, and no schema that they name is known. If they are Avro without any header, set `wire` to "
            "{format: bare, schema_id: …}; to take all that is not Confluent's for dead letters, set `wire: confluent`."
        )
    return Verdict(CONFLUENT, False, message)


def _said(values: int, shown: Counter[Wire]) -> str:
    if not values:
        return "there are no values to look at"
    if not shown:
        return f"none of {values:,} values has a wire format that can be seen"
    return ", ".join(f"{count:,} of {values:,} values have a {wire.words}" for wire, count in shown.most_common())


def unit_of(configured: str, recent: Iterable[Mapping[str, Any]]) -> str:
    """Return the unit of the event time: as configured or, for `auto`, as commits have stored it."""
    found = next((facts["time_unit"] for facts in recent if facts.get("time_unit")), configured)
    return found if configured == "auto" else configured


def wire_of(recent: Iterable[Mapping[str, Any]]) -> Wire | None:
    """Return the wire format that commits have stored; None if none has."""
    return next((Wire(**facts["wire"]) for facts in recent if facts.get("wire")), None)


class DetectedFormat:
    """The detected values of `auto` in one pipeline's configuration."""

    def __init__(self, pipeline: str, settings: pipelines.Pipeline, kafka: Kafka) -> None:
        self._pipeline, self._settings, self._kafka = pipeline, settings, kafka
        self.wire: Wire = settings.wire.fixed or CONFLUENT
        self.wire_known = settings.wire.fixed is not None
        self._unit: str | None = None

    @property
    def unit(self) -> str:
        """Unit of the event time; `auto` while no row has shown it."""
        return self._unit or self._settings.event_time.unit

    def needs_headers(self) -> bool:
        """Return whether Spark must read Kafka's headers: for the table's columns, or for a schema id in them."""
        wanted = self._settings.columns.record_columns.needs_headers
        return wanted or self.wire.header is not None or not self.wire_known

    def check_time(self, columns: pa.Schema) -> None:
        """Raise ConfigError when the event-time field is no time by the schemas that are known so far."""
        if not columns.names:
            return
        rule = self._settings.event_time
        try:
            times_of(columns.empty_table(), rule.rule(rule.unit), pa.array([], pa.string()))
        except ValueError as error:
            raise ConfigError(f"pipelines.{self._pipeline}.event_time: {error}") from error

    def keep_unit(self, found: str) -> None:
        """Store the unit that `auto` detected in the first rows, so that a later batch uses the same."""
        rule = self._settings.event_time
        if rule.unit == "auto" and self._unit is None and found not in ("", "auto"):
            self._unit = found
            logging.event("event_time_unit_detected", pipeline=self._pipeline, field=rule.field, unit=found)

    def keep_wire(self, found: Wire | None, schemas: Schemas) -> None:
        """Keep the wire format that earlier batches were read by; `auto` does not decide otherwise later."""
        if found is None or self.wire_known:
            return
        self.wire, self.wire_known = found, True
        schemas.read_by(self.wire)

    def look_for_wire(self, waiting: Mapping[Source, Span], schemas: Schemas) -> None:
        """Look for the wire format among the records that wait, until one shows it. Raises UnclearWire."""
        if self.wire_known or not any(start < end for start, end in waiting.values()):
            return
        try:
            verdict = judge(looked_at(self._kafka, waiting), schemas.knows)
        except UnclearWire as error:
            raise UnclearWire(f"pipelines.{self._pipeline}.wire: {error}") from error
        if verdict.wire != self.wire:
            schemas.read_by(verdict.wire)
        self.wire, self.wire_known = verdict.wire, verdict.sure
        tell = logging.event if verdict.sure else logging.warning
        event = "wire_format_found" if verdict.sure else "wire_format_assumed"
        tell(event, pipeline=self._pipeline, wire=verdict.wire.format, records=verdict.message)
