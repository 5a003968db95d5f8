"""Builds the plan of a batch's tasks from the configuration, for Spark's tasks and for commands."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from headrace.bucketers.zone_data import find_zone_data
from headrace.writer.batch.plan import TaskPlan
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.columns.schema_plan import SchemaPlan
from headrace.writer.config.pipeline import Pipeline, zones_of_table
from headrace.writer.core.offsets import Source
from headrace.writer.framing.wire_format import Wire
from headrace.writer.storage.settings import StoreSettings

_NO_OFFSETS: Mapping[Source, int] = {}


def build_task_plan(
    settings: Pipeline,
    stores: StoreSettings | None,
    schemas: SchemaPlan,
    wire: Wire,
    unit: str,
    *,
    now: datetime,
    prefix: str,
    incarnations: Mapping[str, int],
    record_columns: RecordColumns,
    frontier: Mapping[Source, int] = _NO_OFFSETS,
    unit_origin: str = "",
    **others: Any,
) -> TaskPlan:
    """Return the plan. `unit`: of the event times; `unit_origin`: the batch that detected it.

    `prefix`: of the names of files. `others`: as TaskPlan has them.
    """
    return TaskPlan(
        now=now,
        wire=wire,
        keeps_tombstones="raw" in settings.formats,
        frontier=frontier,
        incarnations=incarnations,
        # A task does not learn schemas, so it needs none of this.
        schemas=replace(schemas, known_texts=(), ranks={}),
        time_rule=settings.event_time.rule(unit, unit_origin),
        bucket=settings.bucket,
        zones=tuple(map(find_zone_data, zones_of_table(settings))),
        table=settings.table.location,
        dead_letters=settings.dead_letters,
        prefix=prefix,
        budget=settings.memory.buffer,
        target_file_size=settings.roll.target_file_size,
        entropy_bits=settings.table.entropy_bits,
        stores=stores,
        out_of_orderness=settings.seal.out_of_orderness,
        late=settings.seal.tiers,
        late_table=settings.late_table,
        record_columns=record_columns,
        sealing=None if schemas.privacy is None else schemas.privacy.sealing,
        **others,
    )
