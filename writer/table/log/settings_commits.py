"""Entries that tell what a pipeline does from then on: targets of a route, a raw table, event specs, privacy, zones.

They raise as `control_commits` says.
"""

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from bucketers.zone_data import ZoneData
from writer.core import fault_points
from writer.privacy.path_policies import RecordPolicies, difference, overlaid, to_json
from writer.privacy.policy import fingerprint as path_fingerprint
from writer.table.log.appender import Appender, check_privacy
from writer.table.log.snapshot import (
    INCARNATIONS,
    PROTECTED_PATHS,
    RAW,
    ZONE_DATA,
    PipelineSnapshot,
    TargetRecord,
    recorded,
)
from writer.table.log.zone_records import ZoneChange, format_zone_data

Ids = Mapping[str, Sequence[str]]  # topic → ids of its incarnations


def add_targets(end: Appender, epoch: int | None, wanted: Sequence[TargetRecord]) -> dict[int, TargetRecord]:
    """Enter tables of a route, by location: those that are new get a number, of others a name may be another by now.

    Returns all, by number. `epoch`: of the start that asks; None: a command does. Raises Fenced.
    """

    def add(snapshot: PipelineSnapshot) -> dict[int, TargetRecord]:
        if epoch is not None:
            end.check_owner(snapshot, epoch)
        known = snapshot.targets()
        there = {one.location: number for number, one in known.items()}
        numbered = dict(known)
        for one in wanted:
            number = there.get(one.location, max(numbered, default=0) + 1)
            before = known.get(number, one)
            numbered[number] = one._replace(
                late=one.late or before.late, id=before.id or one.id, format=before.format,
                layout=before.layout or one.layout, table=before.table, number=number,
            )  # fmt: skip
        new = [one for number, one in numbered.items() if known.get(number) != one]
        if not new:
            return known
        about = {"kind": "targets", "epoch": epoch, "added": [{"number": o.number, **o.to_json()} for o in new]}
        end.write(snapshot, [], {}, about, recorded(numbered))
        return numbered

    return end.retried(add)


def convert_targets(end: Appender, facts: Mapping[str, Any], wanted: Mapping[int, TargetRecord]) -> None:
    """Enter that tables of a route, by their numbers, are Iceberg tables by now. A second time does nothing."""

    def change(snapshot: PipelineSnapshot) -> None:
        known = snapshot.targets()
        if new := {number: one for number, one in wanted.items() if known[number] != one}:
            added = [{"number": number, **one.to_json()} for number, one in new.items()]
            end.write(snapshot, [], {}, {"kind": "targets", **facts, "added": added}, recorded({**known, **new}))

    end.retried(change)


def enter_raw(end: Appender, epoch: int, location: str) -> None:
    """Enter a raw table, before records are kept in it. A second time does nothing. Raises Fenced.

    `epoch`: of the start that asks.
    """

    def enter(snapshot: PipelineSnapshot) -> None:
        end.check_owner(snapshot, epoch)
        if location not in snapshot.raw_places:
            about = {"kind": "raw", "epoch": epoch, "location": location}
            properties = {RAW: json.dumps([*snapshot.raw_places, location])}
            end.write(snapshot, [], {}, about, properties)

    end.retried(enter)


def note_incarnations(end: Appender, incarnations: Ids) -> None:
    """Note in the log of a raw table which topics its incarnations are. A second time does nothing."""

    def note(snapshot: PipelineSnapshot) -> None:
        wanted = {topic: list(ids) for topic, ids in incarnations.items()}
        if snapshot.incarnations() != wanted:
            about: dict[str, Any] = {"kind": "columns", "epoch": None, "changes": []}
            end.write(snapshot, [], {}, about, {INCARNATIONS: json.dumps(wanted)})

    end.retried(note)


def set_specs(end: Appender, epoch: int, specs: Mapping[str, Any], fingerprint: int) -> int:
    """Enter event specs where they are others than those of the log. Returns their version. Raises Fenced.

    `fingerprint`: 0 for none. A start does it, after it has fenced other writers: so a batch knows one version only.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        end.check_owner(snapshot, epoch)
        if snapshot.specs_fingerprint == fingerprint:
            return snapshot.specs
        version = snapshot.specs + 1
        about = {"kind": "specs", "epoch": epoch, "specs_version": version, "specs": specs}
        values = {f"{end.pipeline}/specs": version, f"{end.pipeline}/specs_fingerprint": fingerprint}
        end.write(snapshot, [], values, about)
        return version

    return end.retried(change)


def set_zone_data(end: Appender, epoch: int, data: Sequence[ZoneData], changes: Sequence[ZoneChange]) -> None:
    """Enter the data of time zones by which rows get their buckets from then on. Raises Fenced.

    `changes`: of those that the log has others of. `epoch`: of the start that asks.
    """

    def change(snapshot: PipelineSnapshot) -> None:
        end.check_owner(snapshot, epoch)
        recorded = snapshot.zone_data
        known = recorded | {zone_data.zone: zone_data for zone_data in data}
        if known == recorded:
            return
        versions = {zone_data.zone: zone_data.version for zone_data in data}
        facts = {"kind": "zones", "epoch": epoch, "versions": versions, "changes": [one.to_dict() for one in changes]}
        end.write(snapshot, [], {}, facts, {ZONE_DATA: format_zone_data(known.values())})

    end.retried(change)


def set_privacy(
    end: Appender, epoch: int, policies: Mapping[str, Any], keys: Mapping[str, Any], fingerprint: int,
    numbers: Mapping[str, int], paths: RecordPolicies,
) -> int:  # fmt: skip
    """Enter privacy policies and keys where they are others than the log's. Returns their version. Raises Fenced.

    `keys`: their ids and fingerprints; `numbers`: the fingerprints of these, by purpose; the log's stay where one is
    not there. `fingerprint`: of the policies, 0 for none. `paths`: that schemas say are to be protected, beside those
    of the log. `epoch`: of the start that asks.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        end.check_owner(snapshot, epoch)
        about = {"epoch": epoch, "policies": policies, "keys": keys}
        return _write_privacy(end, snapshot, about, fingerprint, numbers, paths)

    return end.retried(change)


def protect_paths(end: Appender, epoch: int | None, paths: RecordPolicies, version: int) -> int:
    """Enter paths that schemas say are to be protected, before rows are. Returns the version that the log has then.

    `version`: that it is to have before. `epoch`: of the start that asks; None: a command does.
    Raises Fenced, PrivacyChanged where the log has another version.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        if epoch is not None:
            end.check_owner(snapshot, epoch)
        check_privacy(end, snapshot, version)
        return _write_privacy(end, snapshot, {"epoch": epoch}, snapshot.privacy_fingerprint, {}, paths)

    fault_points.point("before_protect")
    entered = end.retried(change)
    fault_points.point("after_protect")
    return entered


def release_paths(end: Appender, paths: RecordPolicies, facts: Mapping[str, Any]) -> int:
    """Enter that a person released paths while no writer runs. Returns the version. Raises CommitFailed.

    `facts`: who did it, when and why.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        about = {"epoch": None, "released": to_json(paths), **facts}
        return _write_privacy(end, snapshot, about, snapshot.privacy_fingerprint, {}, paths)

    return end.retried(change)


def set_hash_key(end: Appender, keys: Mapping[str, Any], numbers: Mapping[str, int]) -> None:
    """Enter another hash key while no writer runs; the policies stay. A second time does nothing. Raises CommitFailed.

    `keys` and `numbers` as for `set_privacy`.
    """

    def change(snapshot: PipelineSnapshot) -> None:
        _write_privacy(end, snapshot, {"epoch": None, "keys": keys}, snapshot.privacy_fingerprint, numbers)

    end.retried(change)


def _write_privacy(
    end: Appender, snapshot: PipelineSnapshot, about: Mapping[str, Any], fingerprint: int, numbers: Mapping[str, int],
    paths: RecordPolicies = MappingProxyType({}),
) -> int:  # fmt: skip
    hash_key = numbers.get("hash", snapshot.hash_key)
    encryption_key = numbers.get("encrypt", snapshot.encryption_key)
    known = snapshot.privacy_fingerprint, snapshot.hash_key, snapshot.encryption_key
    new = difference(paths, snapshot.protected_paths)
    if known == (fingerprint, hash_key, encryption_key) and not new:
        return snapshot.privacy
    version = snapshot.privacy + 1
    values = {
        f"{end.pipeline}/privacy": version, f"{end.pipeline}/privacy_fingerprint": fingerprint,
        f"{end.pipeline}/hash_key": hash_key, f"{end.pipeline}/encryption_key": encryption_key,
    }  # fmt: skip
    facts = {"kind": "privacy", "privacy_version": version, **about}
    if new and "released" not in about:
        facts["protected"] = to_json(new)
    whole = to_json(overlaid(snapshot.protected_paths, new))
    values[f"{end.pipeline}/protected_paths"] = path_fingerprint(whole)
    end.write(snapshot, [], values, facts, {PROTECTED_PATHS: json.dumps(whole)} if new else None)
    return version
