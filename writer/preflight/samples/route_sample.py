"""Splits a sample of records by the tables that a route sends them to. Makes no table."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from writer.avro.schema_plan import SchemaPlan
from writer.batch.route import NoTarget, Route, Share
from writer.commit.target_table import admitted
from writer.commit.targets import record_names
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.core.errors import ConfigError
from writer.maintenance.local_pipeline import DeadLetter, LocalPipeline, Sample, opened, record_places
from writer.privacy.path_policies import RecordPolicies
from writer.privacy.record_sealing import RecordScreen
from writer.schemas.registry import SchemaSource
from writer.schemas.subjects import full_name
from writer.schemas.tracker import Admission
from writer.table.log.foreign_writes import CommitFailed


@dataclass(frozen=True)
class TargetPart:
    """Records that go to one table, and the configuration where this table is the pipeline's."""

    target: str
    config: Config
    records: pa.RecordBatch
    recorded: RecordPolicies  # what the log of the pipeline has as protected
    registered: Callable[[str], bool]  # which schemas of the topics fill the table before a record brings them


@dataclass(frozen=True)
class RouteSplit:
    """A sample by its tables, that with most records first; and records that go to none, with the reason."""

    parts: list[TargetPart]
    undecoded: list[DeadLetter]  # they never come to the route
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


def split(walk: LocalPipeline, batch: pa.RecordBatch) -> RouteSplit:
    """Split records of a pipeline that was opened `before_route`. Raises RegistryUnreachable, UnclearWire."""
    name, config, sample = walk.name, walk.config, walk.decoded(batch)
    route = _route(config.pipelines[name], record_names(walk.plan))
    screen = RecordScreen(walk.plan.privacy is not None and route.by == "header")

    def reason(share: Share, at: int) -> str:
        shown = share.name(at)
        return route.reason(screen.text(shown) if shown else shown)

    found, unrouted = dict[str, list[pa.Table]](), Sample()
    for group in sample.groups:
        for share in route.shares(group.schema_id, group.records, group.rows):
            records = group.part(share.mask).records
            if isinstance(share.target, NoTarget):
                unrouted.refuse(records, group.schema_id, partial(reason, share))
            else:
                found.setdefault(share.target, []).append(records.select(batch.schema.names))
    recorded = {} if walk.plan.privacy is None else walk.plan.privacy.recorded
    parts = [
        TargetPart(target, config.at_target(name, target), _batch(tables), recorded, partial(_goes_to, route, target))
        for target, tables in sorted(found.items(), key=lambda one: (-sum(t.num_rows for t in one[1]), one[0]))
    ]
    return RouteSplit(parts, sample.dead_letters, unrouted.dead_letters)


def opened_part(name: str, part: TargetPart, schemas: SchemaSource, *, with_table: bool = True) -> LocalPipeline:
    """Open the table of a part; where it does not exist yet or cannot be read, as if it did not exist.

    As the writer has it, it gets the columns of the schemas that go there by the name of their record, and of those
    that its records have. Without `with_table` it is as the writer makes it, which also rejects schemas without the
    event time; with it, this is left to the check that says what to do.
    """
    topics = sorted({topic for topic, _, _ in record_places(pa.Table.from_batches([part.records]))})
    if with_table:
        with suppress(ConfigError, CommitFailed):  # its own check says so
            admission = Admission(part.registered)
            return opened(
                name, part.config, schemas, topics=topics, admission=admission, recorded=part.recorded
            )  # fmt: skip
    settings = part.config.pipelines[name]
    extended = partial(admitted, settings, str(settings.event_time.unit)) if not with_table else SchemaPlan.extend
    admission = Admission(part.registered, extended)
    return opened(
        name, part.config, schemas, topics=topics, with_table=False, admission=admission, recorded=part.recorded
    )  # fmt: skip


def _route(settings: Pipeline, records: Mapping[int, str]) -> Route:
    assert settings.route is not None, "only a route splits records"
    by, key = settings.route.by_key
    rest = settings.route.unrouted
    otherwise = None if rest in ("dead_letters", "stop") else rest
    return Route(by, key, settings.route.rules, _OwnTable(), is_full=True, otherwise=otherwise, records=records)


def _goes_to(route: Route, target: str, text: str) -> bool:
    """Return whether a schema goes to a target by the name of its record."""
    return route.by == "record" and (name := full_name(text)) is not None and route.target(name) == target


def _batch(tables: list[pa.Table]) -> pa.RecordBatch:
    (batch,) = pa.concat_tables(tables).combine_chunks().to_batches()
    return batch
