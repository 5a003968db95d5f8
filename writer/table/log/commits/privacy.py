"""Commits of privacy policies, their keys, and the paths of records that are to be protected."""

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from headrace.writer.core import fault_points
from headrace.writer.privacy.path_policies import RecordPolicies, difference, overlay_policies, to_json
from headrace.writer.privacy.policy import fingerprint as fingerprint_of
from headrace.writer.table.log.appender import Appender
from headrace.writer.table.log.operations.operation import check_privacy
from headrace.writer.table.log.snapshot import PROTECTED_PATHS, PipelineSnapshot


def set_privacy(
    appender: Appender,
    epoch: int,
    policies: Mapping[str, Any],
    keys: Mapping[str, Any],
    fingerprint: int,
    key_fingerprints: Mapping[str, int],
    paths: RecordPolicies,
) -> int:
    """Enter privacy policies and keys where they are others than the log's. Returns their version. Raises Fenced.

    `keys`: their ids and fingerprints; `key_fingerprints`: these by purpose; the log's stay where one is not there.
    `fingerprint`: of the policies, 0 for none. `paths`: that schemas say are to be protected, beside those of the log.
    `epoch`: of the start that asks.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        appender.check_owner(snapshot, epoch)
        facts = {"epoch": epoch, "policies": policies, "keys": keys}
        return _write_privacy(appender, snapshot, facts, fingerprint, key_fingerprints, paths)

    return appender.retry_lost_races(change)


def protect_paths(appender: Appender, epoch: int | None, paths: RecordPolicies, version: int) -> int:
    """Enter paths that schemas say are to be protected, before rows are. Returns the version that the log has then.

    `version`: that it is to have before. `epoch`: of the start that asks; None: a command does.
    Raises Fenced, PrivacyChanged where the log has another version.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        if epoch is not None:
            appender.check_owner(snapshot, epoch)
        check_privacy(appender.location, snapshot, version)
        return _write_privacy(appender, snapshot, {"epoch": epoch}, snapshot.privacy_fingerprint, {}, paths)

    fault_points.point("before_protect")
    new_version = appender.retry_lost_races(change)
    fault_points.point("after_protect")
    return new_version


def release_paths(appender: Appender, paths: RecordPolicies, facts: Mapping[str, Any]) -> int:
    """Enter that a person released paths while no writer runs. Returns the version. Raises CommitFailed.

    `facts`: who did it, when and why.
    """

    def change(snapshot: PipelineSnapshot) -> int:
        all_facts = {"epoch": None, "released": to_json(paths), **facts}
        return _write_privacy(appender, snapshot, all_facts, snapshot.privacy_fingerprint, {}, paths)

    return appender.retry_lost_races(change)


def set_keys(appender: Appender, keys: Mapping[str, Any], key_fingerprints: Mapping[str, int]) -> None:
    """Enter other keys while no writer runs; the policies stay. A second time does nothing. Raises CommitFailed.

    `keys` and `key_fingerprints` as for `set_privacy`.
    """

    def change(snapshot: PipelineSnapshot) -> None:
        facts = {"epoch": None, "keys": keys}
        _write_privacy(appender, snapshot, facts, snapshot.privacy_fingerprint, key_fingerprints)

    appender.retry_lost_races(change)


def _write_privacy(
    appender: Appender,
    snapshot: PipelineSnapshot,
    facts: Mapping[str, Any],
    fingerprint: int,
    key_fingerprints: Mapping[str, int],
    paths: RecordPolicies = MappingProxyType({}),
) -> int:
    """Write the entry of a privacy version if it differs from the log's. Returns the version that the log has then."""
    pipeline = appender.pipeline
    hash_key = key_fingerprints.get("hash", snapshot.hash_key)
    encryption_key = key_fingerprints.get("encrypt", snapshot.encryption_key)
    new_paths = difference(paths, snapshot.protected_paths)
    is_same = (
        snapshot.privacy_fingerprint == fingerprint
        and snapshot.hash_key == hash_key
        and snapshot.encryption_key == encryption_key
    )
    if is_same and not new_paths:
        return snapshot.privacy
    version = snapshot.privacy + 1
    all_facts = {"kind": "privacy", "privacy_version": version, **facts}
    if new_paths and "released" not in facts:
        all_facts["protected"] = to_json(new_paths)
    protected_paths = to_json(overlay_policies(snapshot.protected_paths, new_paths))
    values = {
        f"{pipeline}/privacy": version,
        f"{pipeline}/privacy_fingerprint": fingerprint,
        f"{pipeline}/hash_key": hash_key,
        f"{pipeline}/encryption_key": encryption_key,
        f"{pipeline}/protected_paths": fingerprint_of(protected_paths),
    }
    properties = {PROTECTED_PATHS: json.dumps(protected_paths)} if new_paths else None
    appender.write(snapshot, [], values, all_facts, properties)
    return version
