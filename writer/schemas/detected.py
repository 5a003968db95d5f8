"""What a pipeline found out about its records by looking, and keeps: wire format, unit of the event time."""

from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from writer.avro.wire_format import CONFLUENT, Wire
from writer.batch.bucketing import times_of
from writer.config import pipelines
from writer.config.connections import Kafka
from writer.core import logging
from writer.core.errors import ConfigError
from writer.core.offsets import Source, Span
from writer.schemas import wire_detection
from writer.schemas.tracker import Schemas


def unit_of(configured: str, recent: Iterable[Mapping[str, Any]]) -> str:
    """Return the unit of the event time: as configured, or where that is `auto`, as commits have found it."""
    found = next((facts["time_unit"] for facts in recent if facts.get("time_unit")), configured)
    return found if configured == "auto" else configured


def wire_of(recent: Iterable[Mapping[str, Any]]) -> Wire | None:
    """Return the wire format that commits have found; None where none has."""
    return next((Wire(**facts["wire"]) for facts in recent if facts.get("wire")), None)


class DetectedFormat:
    """What `auto` stands for in the configuration of one pipeline, from the first records on that showed it."""

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
        """Tell whether Spark must hand over Kafka's headers: a schema id stands in one, or may."""
        return self.wire.header is not None or not self.wire_known

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
        """Keep the unit that `auto` found in the first rows, so that a later batch cannot decide otherwise."""
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
            verdict = wire_detection.judge(wire_detection.looked_at(self._kafka, waiting), schemas.knows)
        except wire_detection.UnclearWire as error:
            raise wire_detection.UnclearWire(f"pipelines.{self._pipeline}.wire: {error}") from error
        if verdict.wire != self.wire:
            schemas.read_by(verdict.wire)
        self.wire, self.wire_known = verdict.wire, verdict.sure
        tell = logging.event if verdict.sure else logging.warning
        event = "wire_format_found" if verdict.sure else "wire_format_assumed"
        tell(event, pipeline=self._pipeline, wire=verdict.wire.format, records=verdict.said)
