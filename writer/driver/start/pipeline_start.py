"""What a start of a pipeline decides and writes before its first batch: its run, its tables, what Kafka lost."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pyarrow as pa

from headrace.bucketers.zone_data import find_zone_data
from headrace.writer.clients import notifications
from headrace.writer.clients.kafka import Cluster
from headrace.writer.columns.schema_plan import PROVENANCE, SchemaPlan
from headrace.writer.commit.event_specs import check_specs, find_unused_specs
from headrace.writer.commit.privacy import RecordedPrivacy, check_keys, check_privacy
from headrace.writer.commit.side_tables import SideTable, list_side_tables
from headrace.writer.config.pipeline import Pipeline, zones_of
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.table import layout
from headrace.writer.core import logging
from headrace.writer.core.catalog_table import written_locations
from headrace.writer.core.errors import ConfigError
from headrace.writer.offsets import start_offsets
from headrace.writer.offsets.run_record import find_lost_table
from headrace.writer.offsets.spark_checkpoint import Checkpoints, NewRun, Resume
from headrace.writer.offsets.start_offsets import StartPosition
from headrace.writer.privacy.keyring import KeyringPlace, KeySource
from headrace.writer.privacy.policy import fingerprint as policies_fingerprint
from headrace.writer.schemas.tracker import Schemas
from headrace.writer.specs.spec import fingerprint, to_json
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.probe import probe
from headrace.writer.table.gap_records import open_gap
from headrace.writer.table.locations import target_locations
from headrace.writer.table.log.operations.gaps import Gap
from headrace.writer.table.log.snapshot import PipelineSnapshot
from headrace.writer.table.log.zone_records import find_zone_changes
from headrace.writer.table.lost_tables import RAW_TABLE, SideTableLost, former_side_tables, side_table_loss
from headrace.writer.table.pipeline_tables import Tables
from headrace.writer.table.table import PipelineTable


def probe_locations(name: str, config: Config) -> None:
    """Look whether each location can be written to as a log needs it. Raises ConfigError, CommitFailed.

    Tables of a route that were made before may be away: their rows wait at the log.
    """
    targets = target_locations(name, config)
    for location in config.pipelines[name].locations:
        if location in targets:
            continue
        for path, has_log in written_locations(location, config.catalog_place(name, location)):
            probe(store_at(path, config.stores), exclusive=has_log)


def refuse_lost_table(table: PipelineTable, checkpoints: Checkpoints) -> None:
    """Raise ConfigError where a table is not there to which a run of the pipeline has written; StoreError."""
    lost = find_lost_table(checkpoints.store, table.location)
    if lost is not None:
        raise ConfigError(lost.text)


def make_tables(
    settings: Pipeline, tables: Tables, columns: pa.Schema, bucket_columns: Sequence[str]
) -> dict[str, str]:
    """Create the table and those beside it if needed. Returns the ids of those beside it, by location.

    With a route the table is only a log, and the targets are made by their names. Raises ConfigError where one is
    another pipeline's, SideTableLost where one was made before and is not there: then none is made.
    """
    table_columns = pa.schema([*columns, *(pa.field(name, pa.string()) for name in bucket_columns)])
    if settings.route is not None:
        log = tables.main.create(PROVENANCE, [])
    else:
        log = tables.main.create(table_columns, bucket_columns, layout(settings.bucket))
    side_tables = list_side_tables(settings, table_columns)
    former = former_side_tables(settings, log)
    snapshots = [_find_side_table(side_table, tables, log) for side_table in side_tables]
    for side_table, snapshot in zip(side_tables, snapshots, strict=True):
        if snapshot is None and former:
            logging.warning(
                "side_table_left",
                pipeline=tables.main.pipeline,
                kind=side_table.kind,
                location=side_table.location,
                former=former,
                reason="the configuration names a new place, and what the former tables hold stays there",
            )
    return {
        side_table.location: _open_side_table(side_table, snapshot, tables, log)
        for side_table, snapshot in zip(side_tables, snapshots, strict=True)
    }


def _find_side_table(side_table: SideTable, tables: Tables, log: PipelineSnapshot) -> PipelineSnapshot | None:
    """Return the newest version of a table beside the log; None: it is still to be made.

    Raises SideTableLost where it was made before, ConfigError where it is another pipeline's.
    """
    snapshot = tables.side(side_table.location).check(side_table.bucket_columns, side_table.layout)
    lost = side_table_loss(side_table.location, snapshot, side_table.kind, log, tables.main.location)
    if lost is not None:
        raise SideTableLost(lost.text)
    return snapshot


def _open_side_table(
    side_table: SideTable, snapshot: PipelineSnapshot | None, tables: Tables, log: PipelineSnapshot
) -> str:
    """Create a table beside the log if needed, and return its id. `snapshot`: its newest version, if it is there.

    Raises ConfigError where what is there belongs to another log.
    """
    table = tables.side(side_table.location)
    snapshot = table.create_or_repair(side_table.columns, side_table.bucket_columns, side_table.layout, snapshot)
    is_known_raw = side_table.location in log.raw_locations
    if side_table.kind == RAW_TABLE and not is_known_raw and snapshot.applied >= 0:
        raise ConfigError(
            f"the raw table at {table.location} has the records of another table, whose log counts its own versions: "
            "what comes now would be taken for records that it has. Give table.raw another location; `headrace "
            f"backfill --from-raw {table.location}` reads the one that is there."
        )
    if snapshot.applied > log.version:
        # A writer that is still running may have committed meanwhile.
        log = tables.main.snapshot()
    if snapshot.applied > log.version:
        # The table was removed and made again, or restored from an older copy: new commits would be taken for these.
        raise ConfigError(
            f"the table at {table.location} has what commits up to version {snapshot.applied} of another log brought, "
            f"and the log of the table at {tables.main.location} is at version {log.version}: what its next commits "
            f"bring would be dropped as known. Move {table.location} away, or give {side_table.key} another location."
        )
    return snapshot.table_id


def check_rules(name: str, settings: Pipeline, schemas: Schemas, recorded: RecordedPrivacy | None) -> None:
    """Raise ConfigError where privacy or event specs do not fit the schemas, or the keys what a log has recorded.

    `recorded`: what the table's log has of privacy; None: there is no table yet.
    """
    key_plan = None if schemas.keys is None else schemas.keys.plan
    check_privacy(name, settings, schemas.plan, key_plan, recorded)
    if recorded is not None:
        check_keys(name, schemas.plan.privacy, recorded)
    check_specs(name, settings, schemas.plan)


def set_rules(table: PipelineTable, epoch: int, settings: Pipeline, schemas: Schemas) -> int:
    """Enter privacy, data of time zones and event specs in the table's log, where they changed.

    Returns the version of the specs.
    """
    enter_privacy(table, epoch, settings, schemas)
    enter_zone_data(table, epoch, settings, datetime.now(UTC))
    return enter_specs(table, epoch, settings, schemas.plan)


def enter_specs(table: PipelineTable, epoch: int, settings: Pipeline, plan: SchemaPlan) -> int:
    """Enter the event specs in the table's log, where they changed. Returns their version; 0 without any.

    Raises Fenced. `plan`: with the schemas that are known; a spec that is of none of them is logged.
    """
    specs = to_json(settings.record_specs)
    version_before = table.snapshot().specs
    if not specs and not version_before:
        return 0
    version = table.set_specs(epoch, specs, fingerprint(specs))
    if version != version_before:
        logging.event("specs_changed", pipeline=table.pipeline, version=version, specs=list(specs))
    names = find_unused_specs(settings.record_specs, plan)
    if names:
        logging.warning("specs_unused", pipeline=table.pipeline, specs=names, reason="no known schema has such a name")
    return version


def enter_zone_data(table: PipelineTable, epoch: int, settings: Pipeline, now: datetime) -> None:
    """Enter the data of the time zones by which rows get their buckets, where they changed. Raises Fenced."""
    data = [find_zone_data(zone) for zone in zones_of(settings)]
    changes = find_zone_changes(table.snapshot().zone_data, data, now)
    if data:
        table.set_zone_data(epoch, data, changes)
    for change in changes:
        logging.warning("zone_data_changed", pipeline=table.pipeline, change=change.phrase)


def enter_privacy(table: PipelineTable, epoch: int, settings: Pipeline, schemas: Schemas) -> None:
    """Enter the privacy policies, their keys and the paths that they protect in the table's log. Raises Fenced.

    What the log has by then, also by a command, the schemas begin from.
    """
    version_before = table.snapshot().privacy
    policies = {} if settings.privacy is None else settings.privacy.policies.to_json()
    if not policies and not version_before:
        return
    privacy = schemas.plan.privacy
    keys = KeySource(KeyringPlace()) if privacy is None else privacy.keys
    policies_hash = policies_fingerprint(policies)
    version = table.set_privacy(epoch, policies, keys.ids, policies_hash, keys.numbers, schemas.privacy_news)
    snapshot = table.snapshot()
    schemas.remember(snapshot.protected_paths, snapshot.privacy)
    if version != version_before:
        ids = ", ".join(key.id for key in keys.keys.values())
        logging.event("privacy_changed", pipeline=table.pipeline, version=version, keys=ids or "none")


def record_gap(
    table: PipelineTable, epoch: int, run: int, position: StartPosition, cluster: Cluster, margin: timedelta
) -> tuple[Gap, notifications.Event]:
    """Record what Kafka holds no longer, before anything is read beyond it. Raises Fenced, CommitFailed."""
    now = datetime.now(UTC)
    snapshot = table.snapshot()
    first_records = cluster.first_records({r.part.source: 0 for r in position.lost})
    hints = start_offsets.gap_hints(position.lost, snapshot, first_records, margin, now)
    topics = sorted({r.part.topic for r in position.lost})
    ids = {topic: position.topic_ids[topic] for topic in topics}
    facts = {"run": run, "at": now.isoformat(), "hints": hints, "topic_ids": ids}
    gap = Gap(uuid4().hex, epoch, position.lost, "retention", facts)
    version = open_gap(table, table.pipeline, snapshot, gap)
    return gap, notifications.gap_event(table.pipeline, gap.entry_facts(), version, now)


def new_run_reason(position: StartPosition, snapshot: PipelineSnapshot, *, is_requested: bool) -> str:
    """Return why no checkpoint is continued; empty where one may be."""
    if position.incarnations != snapshot.incarnations():
        if snapshot.epoch:
            return "a topic is new, or was deleted and created again"
        return "the pipeline's first start"
    if is_requested:
        return "asked for by --new-run"
    if position.lost:
        return "Kafka lost what comes after the frontier"
    return ""


def choose_run_id(pipeline: str, decision: Resume | NewRun, epoch: int) -> int:
    """Return the run id of a decision. A new run is numbered after the start, so that no two starts share a new one."""
    if isinstance(decision, Resume):
        return decision.run
    run = max(decision.run, epoch)
    logging.event("run_started", pipeline=pipeline, run=run, reason=decision.reason)
    return run
