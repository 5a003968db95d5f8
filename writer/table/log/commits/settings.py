"""Commits of what a pipeline does from then on: targets of a route, a raw table, event specs, time zones."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from headrace.bucketers.zone_data import ZoneData
from headrace.writer.table.log.appender import Appender
from headrace.writer.table.log.snapshot import (
    INCARNATIONS,
    RAW,
    REPLACES,
    ZONE_DATA,
    Incarnations,
    PipelineSnapshot,
    TargetRecord,
    targets_property,
)
from headrace.writer.table.log.zone_records import ZoneChange, format_zone_data


def add_targets(appender: Appender, epoch: int | None, targets: Sequence[TargetRecord]) -> dict[int, TargetRecord]:
    """Enter tables of a route, by location: those that are new get a number, of others a name may be another by now.

    Returns all, by number. `epoch`: of the start that asks; None: a command does. Raises Fenced.
    """

    def add(snapshot: PipelineSnapshot) -> dict[int, TargetRecord]:
        if epoch is not None:
            appender.check_owner(snapshot, epoch)
        recorded_targets = snapshot.targets()
        numbered_targets = _number_targets(recorded_targets, targets)
        changed_targets = {
            number: target for number, target in numbered_targets.items() if recorded_targets.get(number) != target
        }
        if not changed_targets:
            return recorded_targets
        facts = {"kind": "targets", "epoch": epoch, "added": _targets_to_json(changed_targets)}
        appender.write(snapshot, [], {}, facts, targets_property(numbered_targets))
        return numbered_targets

    return appender.retry_lost_races(add)


def _number_targets(
    recorded_targets: Mapping[int, TargetRecord], targets: Sequence[TargetRecord]
) -> dict[int, TargetRecord]:
    """Return the recorded targets with those of a route: known ones keep what is recorded, new ones get a number."""
    numbers = {target.location: number for number, target in recorded_targets.items()}
    numbered_targets = dict(recorded_targets)
    for target in targets:
        number = numbers.get(target.location, max(numbered_targets, default=0) + 1)
        recorded_target = recorded_targets.get(number, target)
        numbered_targets[number] = target._replace(
            late=target.late or recorded_target.late,
            id=recorded_target.id or target.id,
            late_id=recorded_target.late_id or target.late_id,
            format=recorded_target.format,
            layout=recorded_target.layout or target.layout,
            table=recorded_target.table,
            number=number,
        )
    return numbered_targets


def _targets_to_json(targets: Mapping[int, TargetRecord]) -> list[dict[str, Any]]:
    return [{"number": number, **target.to_json()} for number, target in targets.items()]


def convert_targets(appender: Appender, facts: Mapping[str, Any], targets: Mapping[int, TargetRecord]) -> None:
    """Enter that tables of a route, by their numbers, are Iceberg tables by now. A second time does nothing."""

    def change(snapshot: PipelineSnapshot) -> None:
        recorded_targets = snapshot.targets()
        changed_targets = {number: target for number, target in targets.items() if recorded_targets[number] != target}
        if changed_targets:
            all_facts = {"kind": "targets", **facts, "added": _targets_to_json(changed_targets)}
            properties = targets_property({**recorded_targets, **changed_targets})
            appender.write(snapshot, [], {}, all_facts, properties)

    appender.retry_lost_races(change)


def enter_raw(appender: Appender, epoch: int, location: str) -> None:
    """Enter a raw table, before records are kept in it. A second time does nothing. Raises Fenced.

    `epoch`: of the start that asks.
    """

    def enter(snapshot: PipelineSnapshot) -> None:
        appender.check_owner(snapshot, epoch)
        if location not in snapshot.raw_locations:
            facts = {"kind": "raw", "epoch": epoch, "location": location}
            properties = {RAW: json.dumps([*snapshot.raw_locations, location])}
            appender.write(snapshot, [], {}, facts, properties)

    appender.retry_lost_races(enter)


def note_incarnations(appender: Appender, incarnations: Incarnations) -> None:
    """Note in the log of a raw table which topics its incarnations are. A second time does nothing."""

    def note(snapshot: PipelineSnapshot) -> None:
        incarnation_lists = {topic: list(ids) for topic, ids in incarnations.items()}
        if snapshot.incarnations() != incarnation_lists:
            facts: dict[str, Any] = {"kind": "columns", "epoch": None, "changes": []}
            appender.write(snapshot, [], {}, facts, {INCARNATIONS: json.dumps(incarnation_lists)})

    appender.retry_lost_races(note)


def enter_loss(appender: Appender, table_id: str, version: int, rows: int) -> int:
    """Enter in the log of a table beside another log which lost table it replaces. Returns the version of the entry.

    `table_id`: of the lost one; `version`: of the other log up to which nothing is applied to this table any more;
    `rows`: how many went with the lost one. A second time does nothing. Raises CommitFailed.
    """

    def enter(snapshot: PipelineSnapshot) -> int:
        if snapshot.replaces == table_id:
            return snapshot.version
        applied = max(version, snapshot.applied)
        facts = {"kind": "side", "main_version": applied, "taken": {"why": "table accept", "rows": rows}}
        appender.write(snapshot, [], {f"{appender.pipeline}/main": applied}, facts, {REPLACES: table_id})
        return snapshot.version + 1

    return appender.retry_lost_races(enter)


def set_specs(appender: Appender, epoch: int, specs: Mapping[str, Any], fingerprint: int) -> int:
    """Enter event specs where they are others than those of the log. Returns their version. Raises Fenced.

    `fingerprint`: 0 for none. A start does it, after it has fenced other writers: so a batch knows one version only.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        appender.check_owner(snapshot, epoch)
        if snapshot.specs_fingerprint == fingerprint:
            return snapshot.specs
        version = snapshot.specs + 1
        facts = {"kind": "specs", "epoch": epoch, "specs_version": version, "specs": specs}
        values = {f"{appender.pipeline}/specs": version, f"{appender.pipeline}/specs_fingerprint": fingerprint}
        appender.write(snapshot, [], values, facts)
        return version

    return appender.retry_lost_races(change)


def set_zone_data(appender: Appender, epoch: int, data: Sequence[ZoneData], changes: Sequence[ZoneChange]) -> None:
    """Enter the data of time zones by which rows get their buckets from then on. Raises Fenced.

    `changes`: of those that the log has others of. `epoch`: of the start that asks.
    """

    def change(snapshot: PipelineSnapshot) -> None:
        appender.check_owner(snapshot, epoch)
        zones = snapshot.zone_data | {zone_data.zone: zone_data for zone_data in data}
        if zones == snapshot.zone_data:
            return
        facts = {
            "kind": "zones",
            "epoch": epoch,
            "versions": {zone_data.zone: zone_data.version for zone_data in data},
            "changes": [change.to_dict() for change in changes],
        }
        appender.write(snapshot, [], {}, facts, {ZONE_DATA: format_zone_data(zones.values())})

    appender.retry_lost_races(change)
