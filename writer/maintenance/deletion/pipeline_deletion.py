"""Deletes the rows of some keys from all tables of a pipeline, or finds what would go."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from uuid import uuid4

from headrace import bucketers
from headrace.writer.columns.schema_plan import parse_records
from headrace.writer.config.pipelines import Config
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.offsets import OffsetSet
from headrace.writer.maintenance.deletion import dead_letter_deletion
from headrace.writer.maintenance.deletion.dead_letter_deletion import DeadLetters
from headrace.writer.maintenance.deletion.row_deletion import DeletionResult, DeletionScan, RawDeletion, RowDeletion
from headrace.writer.maintenance.deletion.row_keys import Keys, with_hashes
from headrace.writer.maintenance.local_pipeline import open_local_pipeline
from headrace.writer.privacy.keyring import read_keyring
from headrace.writer.privacy.policy import Action, PrivacyError
from headrace.writer.schemas.registry import SchemaSource
from headrace.writer.table.factory import all_tables
from headrace.writer.table.log.foreign_writes import CommitFailed, one_line
from headrace.writer.table.lost_tables import refuse_lost_tables
from headrace.writer.table.table import PipelineTable


@dataclass(frozen=True)
class DeletionRequest:
    """Which rows of a pipeline are to go."""

    pipeline: str
    keys: Keys
    now: datetime
    target: str | None = None  # of a route; None: the pipeline's own table
    with_dead_letters: bool = True
    id: str = field(default_factory=lambda: uuid4().hex)  # what the entries of the log name


@dataclass
class TableDeletion:
    """The rows that were found in one table, and what was taken out, bucket by bucket."""

    scan: DeletionScan
    results: list[DeletionResult] = field(default_factory=list)


@dataclass
class PipelineDeletion:
    """What was found in the tables of a pipeline, and what was taken out of them."""

    bucket_columns: Sequence[str]
    keeps_versions: bool  # whether former files stay for readers of an older version
    table: TableDeletion
    late_table: TableDeletion | None = None  # None: there is none
    dead_letters: DeadLetters | None = None  # None: they were not looked at
    raw_records: int | None = None  # None: there is no raw table
    raw_versions: Sequence[int] = ()


def delete_rows(config: Config, request: DeletionRequest, source: SchemaSource, *, write: bool) -> PipelineDeletion:
    """Take the rows out of a pipeline's tables, or only find what would go. Raises HeadraceError."""
    # A target has settings of its own, and the log of its pipeline.
    whole_settings = config.pipelines[request.pipeline]
    whole_pipeline = all_tables(request.pipeline, config)
    config = config.at_target(request.pipeline, request.target)
    settings = config.pipelines[request.pipeline]
    tables = all_tables(request.pipeline, config)
    main = tables.main
    main.check_current()
    refuse_lost_tables(whole_settings, whole_pipeline.main, whole_pipeline.side)
    raw = RawDeletion(whole_pipeline, request.now, request.id)
    keys = _protect_keys(config, request, main, source)
    bucket_columns = bucketers.build(settings.bucket).columns
    rule = settings.event_time.rule(settings.event_time.unit)
    deletions = [
        RowDeletion(table, keys, bucket_columns, rule, settings.roll.target_file_size, request=request.id, raw=raw)
        for table in (main, tables.side(settings.late_place))
        if table is main or table.exists()
    ]
    try:
        if write:
            # Rows and dead letters that wait are there by then.
            whole_pipeline.apply_side_files()
            for location, reason in whole_pipeline.behind.items():
                if location in (main.location, settings.late_place):
                    raise HeadraceError(f"rows that were committed for the table are not in it yet: {reason}")
        reports = [TableDeletion(deletion.look()) for deletion in deletions]
        replays = whole_pipeline.main.snapshot().replays
        if write:
            _delete_from_tables(deletions, reports, request.now)
        dead_letters = None
        side = whole_pipeline.side(settings.dead_letters)
        if request.with_dead_letters and side.exists():
            pipeline = open_local_pipeline(request.pipeline, config, source, forgives=True)
            find = partial(dead_letter_deletion.find, side, pipeline, keys, main.snapshot().columns())
            if write:
                dead_letters = dead_letter_deletion.delete(
                    whole_pipeline, side, find, keys, request.now, request.id, raw.remove
                )
            else:
                dead_letters = find(side.snapshot())
        if write and whole_pipeline.main.snapshot().replays != replays:
            # A replay may have made rows of dead letters meanwhile.
            whole_pipeline.apply_side_files()
            _delete_from_tables(deletions, reports, request.now)
        raw_records = None
        if raw:
            raw_records = raw.records if write else _count_raw_records(raw, deletions, reports, dead_letters)
    except OSError as error:
        raise CommitFailed(f"cannot read {main.location}: {one_line(error)}") from error
    return PipelineDeletion(
        bucket_columns,
        keeps_versions=not main.hidden,
        table=reports[0],
        late_table=reports[1] if len(reports) > 1 else None,
        dead_letters=dead_letters,
        raw_records=raw_records,
        raw_versions=raw.versions,
    )


def _delete_from_tables(deletions: Sequence[RowDeletion], reports: Sequence[TableDeletion], now: datetime) -> None:
    for deletion, report in zip(deletions, reports, strict=True):
        report.results += deletion.run(now)


def _count_raw_records(
    raw: RawDeletion,
    deletions: Sequence[RowDeletion],
    reports: Sequence[TableDeletion],
    dead_letters: DeadLetters | None,
) -> int:
    """Count the raw records at the offsets of what would go."""
    offsets = [deletion.offsets(report.scan) for deletion, report in zip(deletions, reports, strict=True)]
    if dead_letters:
        offsets.append(dead_letters.offsets)
    return raw.look(OffsetSet.union(offsets))


def _protect_keys(config: Config, request: DeletionRequest, main: PipelineTable, source: SchemaSource) -> Keys:
    """Return keys that find rows with hashes of their values, too, by any hash key of the keyring.

    Raises ConfigError for a column that holds nothing to compare with; HeadraceError where the schemas are not read.
    """
    settings = config.pipelines[request.pipeline]
    snapshot = main.snapshot()
    if config.keys is None or not (settings.privacy or snapshot.privacy):
        return request.keys
    if settings.privacy:
        for column, action in _list_actions(config, request, source):
            if action.kind in ("encrypt", "mask"):
                raise ConfigError(
                    f"column {column!r} has the policy {action}: its values cannot be compared. Name another column."
                )
    return with_hashes(request.keys, snapshot.columns(), read_keyring(config.keys.source).hash_keys.values())


def _list_actions(config: Config, request: DeletionRequest, source: SchemaSource) -> Iterator[tuple[str, Action]]:
    """Yield the columns that are named with the policies of their values, of each schema."""
    plan = open_local_pipeline(request.pipeline, config, source).plan
    specs = config.pipelines[request.pipeline].record_specs
    assert plan.privacy is not None, "the pipeline has policies"
    for column in request.keys.fields:
        path = tuple(column.split("."))
        action = plan.privacy.policies.by_path.get(path)
        if action is not None:
            yield column, action
        for record in parse_records(plan.known_texts):
            # Records of a schema that privacy refuses are dead letters.
            with suppress(PrivacyError):
                yield from ((column, action) for action in plan.privacy.actions(path, record, specs))
