"""The driver's schema plan: what is registered, what a batch meets, and the columns of the table that follow."""

import threading
import time
from collections.abc import Iterable, Sequence
from datetime import timedelta

import pyarrow as pa

from writer import log
from writer.errors import Draining
from writer.registry import RegistryUnreachable, SchemaNotFound, SchemaSource
from writer.rooms.plan import PROVENANCE, Rejected, SchemaPlan

_PAUSE_MAX_S = 30  # between two questions to a registry that does not answer


def reserved(bucket_columns: Iterable[str]) -> frozenset[str]:
    """Names that no field of a schema may take, in lower case."""
    return frozenset(name.lower() for name in (*PROVENANCE.names, *bucket_columns))


def registered(source: SchemaSource, topics: Iterable[str], plan: SchemaPlan) -> SchemaPlan:
    """Extend the plan by every schema that is registered for the topics, oldest first. Raises RegistryUnreachable."""
    for topic in topics:
        for schema_id, text in source.known(topic).items():
            plan = plan.extend(schema_id, text)
    return plan


class Schemas:
    """The schema plan of one pipeline. It only grows, and is handed to the tasks batch by batch."""

    def __init__(
        self,
        pipeline: str,
        source: SchemaSource,
        topics: Sequence[str],
        *,
        bucket_columns: Sequence[str],
        widen: bool,
        grace: timedelta,
        stopping: threading.Event,
    ) -> None:
        """Let columns get wider types if `widen`.

        Wait at most `grace` for an unknown id, and no longer when `stopping` is set.
        """
        self._pipeline, self._source, self._topics = pipeline, source, topics
        self._reserved, self._grace, self._stopping = reserved(bucket_columns), grace, stopping
        self.plan = SchemaPlan(pa.schema([]), self._reserved, widen=widen)

    def begin(self) -> None:
        """Admit every schema that is registered. Raises RegistryUnreachable."""
        self.plan = registered(self._source, self._topics, self.plan)
        for schema_id in self.plan.schemas:
            self._tell(schema_id)

    def follow(self, table: pa.Schema) -> None:
        """Let the columns that the table already has decide, and admit the schemas again on top of them."""
        columns = [f for f in table if f.name.lower() not in self._reserved]
        if columns:
            plan = SchemaPlan(pa.schema(columns), self._reserved, widen=self.plan.widen)
            self.plan = registered(self._source, self._topics, plan)

    def columns(self) -> pa.Schema:
        """Columns that the table needs, provenance included, bucket columns not."""
        return pa.schema([*self.plan.columns, *PROVENANCE])

    def learn(self, ids: Iterable[int]) -> None:
        """Extend the plan by schemas that a batch has met, in the order of their ids. Raises Draining."""
        for schema_id in sorted(ids):
            text = self._fetched(schema_id)
            if text is None:
                self.plan = self.plan.reject(schema_id, f"schema id {schema_id} is unknown to the registry")
            else:
                self.plan = self.plan.extend(schema_id, text)
            self._tell(schema_id)

    def _fetched(self, schema_id: int) -> str | None:
        """Ask for a schema, holding the batch while the registry is down. None: still unknown after the grace."""
        grace_until = time.monotonic() + self._grace.total_seconds()
        pause = 1.0
        while not self._stopping.is_set():
            try:
                return self._source.schema(schema_id)
            except SchemaNotFound:
                if time.monotonic() >= grace_until:
                    return None
                log.warning("schema_unknown", pipeline=self._pipeline, schema_id=schema_id, holding="batch")
            except RegistryUnreachable as error:
                log.warning("registry_unreachable", pipeline=self._pipeline, holding="batch", error=str(error))
                grace_until = time.monotonic() + self._grace.total_seconds()
            self._stopping.wait(pause)
            pause = min(pause * 2, _PAUSE_MAX_S)
        raise Draining(f"pipeline {self._pipeline!r} was asked to stop while it waited for schema id {schema_id}")

    def _tell(self, schema_id: int) -> None:
        known = self.plan.schemas[schema_id]
        if isinstance(known, Rejected):
            log.warning("schema_rejected", pipeline=self._pipeline, schema_id=schema_id, reason=known.reason)
            return
        decoder = "native" if known.native else "fastavro"
        log.event(
            "schema_admitted", pipeline=self._pipeline, schema_id=schema_id, decoder=decoder, fields=len(known.columns)
        )
