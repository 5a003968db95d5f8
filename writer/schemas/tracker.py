"""The driver's schema plan: registered schemas, those of a batch, and the table's columns that follow."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import TypeVar

import pyarrow as pa

from writer.avro.schema_plan import PROVENANCE, Rejected, SchemaPlan
from writer.avro.wire_format import CONFLUENT, Wire, show_id
from writer.core import logging
from writer.core.backoff import Backoff
from writer.core.errors import ConfigError, Draining
from writer.schemas.registry import RegistryUnreachable, SchemaNotFound, SchemaSource, by
from writer.schemas.schema_id_check import Meanings

ASK_AGAIN = timedelta(minutes=5)  # before a refused schema is requested again: as long as the default timeout
_BACKOFF = Backoff(1, 30)  # between two questions to a registry that does not answer
_NO_GRACE = timedelta(0)
_T = TypeVar("_T")


def _knows(source: SchemaSource, topics: Iterable[str], wire: Wire, schema_id: int) -> bool:
    """Return whether a schema can be had by this id of a wire format. Raises RegistryUnreachable."""
    try:
        schemas = by(source, wire.ids)
        if wire.ids == "fingerprint":  # no registry is asked by it
            return any(schema_id in schemas.known(topic) for topic in topics)
        schemas.schema(schema_id)
    except (SchemaNotFound, ConfigError):
        return False
    return True


class Schemas:
    """The schema plan of one pipeline. It only grows, and is handed to the tasks batch by batch.

    A driver's waits for the registry and logs what it admits. A command's, without `unknown_id_timeout`, asks once.
    """

    def __init__(
        self,
        pipeline: str,
        source: SchemaSource,
        topics: Sequence[str],
        meanings: Meanings,
        *,
        bucket_columns: Sequence[str],
        record_columns: pa.Schema,
        widen: bool,
        unknown_id_timeout: timedelta | None = None,
        stopping: threading.Event | None = None,
        wire: Wire = CONFLUENT,
    ) -> None:
        """Let columns get wider types if `widen`. `record_columns`: of the records' keys and headers.

        Wait at most `unknown_id_timeout` for an unknown id, and no longer when `stopping` is set.
        """
        self._pipeline, self._named, self._topics = pipeline, source, topics
        self.meanings, self._wire, self._source = meanings, wire, meanings.checked(by(source, wire.ids), wire.ids)
        self._unknown_id_timeout = unknown_id_timeout
        # Names that no field of a schema may take, in lower case.
        self._reserved = frozenset(name.lower() for name in (*PROVENANCE.names, *bucket_columns, *record_columns.names))
        self._record_columns = record_columns
        self._stopping = stopping or threading.Event()
        self.plan = SchemaPlan(pa.schema([]), self._reserved, widen=widen)
        self._asked_s: dict[int, float] = {}  # when an id was last asked for, or seen, monotonic

    def begin(self) -> None:
        """Admit every schema that is registered. Raises RegistryUnreachable, SchemaChanged."""
        self.plan = self._registered(self.plan)
        for schema_id in self.plan.schemas:
            self._tell(schema_id)

    def follow(self, table: pa.Schema) -> None:
        """Let the columns that the table already has decide, and admit the schemas again on top of them."""
        columns = [f for f in table if f.name.lower() not in self._reserved]
        self._anew(pa.schema(columns) if columns else self.plan.columns)

    def read_by(self, wire: Wire) -> None:
        """Take the schema ids of the records for those of this format from now on. Raises as `begin` does."""
        self._wire, self._source = wire, self.meanings.checked(by(self._named, wire.ids), wire.ids)
        self._anew(self.plan.columns)

    def _anew(self, columns: pa.Schema) -> None:
        since = self.meanings.since(self._wire.ids)
        plan = SchemaPlan(columns, self._reserved, widen=self.plan.widen, since=since)
        self.plan = self._registered(plan)

    def _registered(self, plan: SchemaPlan) -> SchemaPlan:
        """Extend the plan by every schema that is registered for the topics, oldest first. Raises RegistryUnreachable.

        Where one schema is that of all values, by that one alone. Raises ConfigError when it does not exist.
        """
        if self._wire.schema_id is not None:
            try:
                return plan.extend(self._wire.schema_id, self._source.schema(self._wire.schema_id))
            except SchemaNotFound as error:
                raise ConfigError(f"wire.schema_id: {error}. Register the schema, or name another.") from error
        for topic in self._topics:
            for schema_id, text in self._source.known(topic).items():
                plan = plan.extend(schema_id, text)
        return plan

    def knows(self, wire: Wire, schema_id: int) -> bool:
        """Return whether a schema can be had, holding the batch while the registry is down. Raises Draining."""
        return bool(self._asked(partial(_knows, self._named, self._topics, wire, schema_id), schema_id))

    def columns(self) -> pa.Schema:
        """Columns that the table needs: of values, of keys and headers, and provenance; bucket columns not."""
        return pa.schema([*self.plan.columns, *self._record_columns, *PROVENANCE])

    def forget_rejected(self, now_s: float) -> None:
        """Leave ids that were rejected ASK_AGAIN ago to the next batch that meets them."""
        rejected = [schema_id for schema_id, known in self.plan.schemas.items() if isinstance(known, Rejected)]
        self.plan = self.plan.without([schema_id for schema_id in rejected if self._is_due(schema_id, now_s)])

    def confirm(self, used: Iterable[int], now_s: float) -> dict[str, int]:
        """Return what these ids mean, as a commit keeps it. Raises SchemaChanged.

        Those that were last asked for ASK_AGAIN ago are asked for anew; a registry that does not answer holds nothing.
        """
        due = [schema_id for schema_id in sorted(used) if self._is_due(schema_id, now_s)]
        self._asked_s |= dict.fromkeys(due, now_s)
        with suppress(RegistryUnreachable):
            for schema_id in due:
                with suppress(SchemaNotFound):
                    self._source.schema(schema_id)
        return self.meant(used)

    def meant(self, used: Iterable[int]) -> dict[str, int]:
        """Return what these ids mean, as a commit keeps it."""
        return self.meanings.of(self.plan, used, self._wire.ids)

    def _is_due(self, schema_id: int, now_s: float) -> bool:
        return now_s - self._asked_s.setdefault(schema_id, now_s) >= ASK_AGAIN.total_seconds()

    def learn(self, ids: Iterable[int]) -> None:
        """Extend the plan by schemas that a batch has met, in the order of their ids. Raises Draining, SchemaChanged.

        An id that was asked for before has had its grace. Without one: raises RegistryUnreachable.
        """
        for schema_id in sorted(ids):
            before = self._asked_s.pop(schema_id, None)
            unknown_id_timeout = (self._unknown_id_timeout if before is None else None) or _NO_GRACE
            text = self._asked(partial(self._source.schema, schema_id), schema_id, unknown_id_timeout)
            if text is None:
                self.plan = self.plan.reject(schema_id, f"schema id {show_id(schema_id)} is unknown to the registry")
            else:
                self.plan = self.plan.extend(schema_id, text)
            self._tell(schema_id)

    def _asked(self, ask: Callable[[], _T], schema_id: int, unknown_id_timeout: timedelta = _NO_GRACE) -> _T | None:
        """Ask the registry, holding the batch while it is down. None: the id is still unknown after the grace."""
        grace_until = time.monotonic() + unknown_id_timeout.total_seconds()
        attempt = 0
        while not self._stopping.is_set():
            try:
                return ask()
            except SchemaNotFound:
                if time.monotonic() >= grace_until:
                    return None
                logging.warning("schema_unknown", pipeline=self._pipeline, schema_id=schema_id, holding="batch")
            except RegistryUnreachable as error:
                if self._unknown_id_timeout is None:
                    raise
                logging.warning("registry_unreachable", pipeline=self._pipeline, holding="batch", error=str(error))
                grace_until = time.monotonic() + unknown_id_timeout.total_seconds()
            self._stopping.wait(_BACKOFF.delay_s(attempt))
            attempt += 1
        what = f"schema id {show_id(schema_id)}"
        raise Draining(f"pipeline {self._pipeline!r} was asked to stop while it waited for {what}")

    def _tell(self, schema_id: int) -> None:
        if self._unknown_id_timeout is None:
            return
        known = self.plan.schemas[schema_id]
        if isinstance(known, Rejected):
            logging.warning("schema_rejected", pipeline=self._pipeline, schema_id=schema_id, reason=known.reason)
            return
        decoder = "native" if known.native else "fastavro"
        logging.event(
            "schema_admitted", pipeline=self._pipeline, schema_id=schema_id, decoder=decoder, fields=len(known.columns)
        )
