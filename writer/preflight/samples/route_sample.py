"""Splits a sample of records by the tables that a route sends them to. Makes no table."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from headrace.writer.batch.route import NoTarget, Route, Share
from headrace.writer.commit.target_table import admit_schema
from headrace.writer.commit.targets import record_names
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError
from headrace.writer.maintenance.local_pipeline import (
    DeadLetter,
    LocalPipeline,
    Sample,
    open_local_pipeline,
    record_positions,
)
from headrace.writer.privacy.path_policies import RecordPolicies
from headrace.writer.privacy.record_sealing import RecordScreen
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.schemas.subjects import full_name
from headrace.writer.schemas.tracker import Admission
from headrace.writer.table.log.foreign_writes import CommitFailed


@dataclass(frozen=True)
class TargetPart:
    """Records that go to one table, and the configuration where this table is the pipeline's."""

    target: str
    config: Config
    records: pa.RecordBatch
    # What the log of the pipeline has as protected.
    recorded: RecordPolicies
    # Whether a schema of the topics fills the table before a record brings it.
    registered: Callable[[str], bool]


@dataclass(frozen=True)
class RouteSplit:
    """A sample by its tables, that with most records first; and records that go to none, with the reason."""

    parts: list[TargetPart]
    # These records never come to the route.
    undecoded: list[DeadLetter]
    unrouted: list[DeadLetter]

    @property
    def refused(self) -> list[DeadLetter]:
        """All records that go to no table."""
        return [*self.undecoded, *self.unrouted]


class _OwnTable(dict[str, str | None]):
    """Any name has a table of its own, as if the writer had made it."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return name


def split(local_pipeline: LocalPipeline, batch: pa.RecordBatch) -> RouteSplit:
    """Split records of a pipeline that was opened `before_route`. Raises RegistryUnreachable, UnclearWire."""
    name = local_pipeline.name
    config = local_pipeline.config
    sample = local_pipeline.decode(batch)
    route = _route(config.pipelines[name], record_names(local_pipeline.plan))
    screen = RecordScreen(local_pipeline.plan.privacy is not None and route.by == "header")

    def reason(share: Share, row: int) -> str:
        target = share.name(row)
        return route.reason(screen.text(target) if target else target)

    tables_of = dict[str, list[pa.Table]]()
    unrouted = Sample()
    for group in sample.groups:
        for share in route.shares(group.schema_id, group.records, group.rows):
            records = group.filter(share.mask).records
            if isinstance(share.target, NoTarget):
                unrouted.refuse(records, group.schema_id, partial(reason, share))
            else:
                tables_of.setdefault(share.target, []).append(records.select(batch.schema.names))
    privacy = local_pipeline.plan.privacy
    recorded = {} if privacy is None else privacy.recorded
    parts = [
        TargetPart(target, config.at_target(name, target), _batch(tables), recorded, partial(_goes_to, route, target))
        for target, tables in tables_of.items()
    ]
    parts.sort(key=lambda part: (-part.records.num_rows, part.target))
    return RouteSplit(parts, sample.dead_letters, unrouted.dead_letters)


def open_part(name: str, part: TargetPart, schemas: SchemaSource, *, with_table: bool = True) -> LocalPipeline:
    """Open the table of a part; where it does not exist yet or cannot be read, as if it did not exist.

    As the writer has it, it gets the columns of the schemas that go there by the name of their record, and of those
    that its records have. Without `with_table` it is as the writer makes it, which also rejects schemas without the
    event time; with it, this is left to the check that says what to do.
    """
    topics = sorted({topic for topic, _, _ in record_positions(pa.Table.from_batches([part.records]))})
    if with_table:
        # The check of the table reports the error.
        with suppress(ConfigError, CommitFailed):
            admission = Admission(part.registered)
            return open_local_pipeline(
                name, part.config, schemas, topics=topics, admission=admission, recorded=part.recorded
            )
    settings = part.config.pipelines[name]
    admission = Admission(part.registered)
    if not with_table:
        admission = Admission(part.registered, partial(admit_schema, settings, str(settings.event_time.unit)))
    return open_local_pipeline(
        name, part.config, schemas, topics=topics, with_table=False, admission=admission, recorded=part.recorded
    )


def _route(settings: Pipeline, records: Mapping[int, str]) -> Route:
    assert settings.route is not None, "only a route splits records"
    by, key = settings.route.by_key
    otherwise: str | None = settings.route.unrouted
    if otherwise in ("dead_letters", "stop"):
        otherwise = None
    return Route(by, key, settings.route.rules, _OwnTable(), is_full=True, otherwise=otherwise, records=records)


def _goes_to(route: Route, target: str, text: str) -> bool:
    """Return whether a schema goes to a target by the name of its record."""
    return route.by == "record" and (name := full_name(text)) is not None and route.target(name) == target


def _batch(tables: list[pa.Table]) -> pa.RecordBatch:
    (batch,) = pa.concat_tables(tables).combine_chunks().to_batches()
    return batch
