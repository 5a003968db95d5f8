"""Which tests `make check`, `make slow` and `make test-long` run, by their markers and tests/long.txt."""

import re
from pathlib import Path

import pytest

COLLECTED = pytest.StashKey[list[str]]()  # ids of all tests, before any is deselected
IN_MAKE_SLOW = pytest.StashKey[list[str]]()  # ids of the collected tests that `make slow` runs
LONG = [
    line
    for line in (Path(__file__).parents[1] / "long.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
]
# Without servers, but tables with a history take each of their tests a third of a second: `make slow` runs them.
HISTORIES = (
    "tests/contract/test_adopt_iceberg.py",
    "tests/contract/test_audit.py",
    "tests/contract/test_audit_clients.py",
    "tests/contract/test_backfill.py",
    "tests/contract/test_bucket_commands.py",
    "tests/contract/test_compact.py",
    "tests/contract/test_confirmation.py",
    "tests/contract/test_convert.py",
    "tests/contract/test_convert_routes.py",
    "tests/contract/test_dedupe_window.py",
    "tests/contract/test_dedupe_window_routes.py",
    "tests/contract/test_delete.py",
    "tests/contract/test_diff.py",
    "tests/contract/test_existing_lake.py",
    "tests/contract/test_field_decryption.py",
    "tests/contract/test_field_decryption_start.py",
    "tests/contract/test_foreign_change.py",
    "tests/contract/test_foreign_damage.py",
    "tests/contract/test_gaps.py",
    "tests/contract/test_iceberg.py",
    "tests/contract/test_iceberg_clients.py",
    "tests/contract/test_iceberg_columns.py",
    "tests/contract/test_iceberg_faults.py",
    "tests/contract/test_iceberg_kill.py",
    "tests/contract/test_iceberg_paths.py",
    "tests/contract/test_iceberg_routes.py",
    "tests/contract/test_iceberg_transactions.py",
    "tests/contract/test_iceberg_unknown_commits.py",
    "tests/contract/test_late_tiers.py",
    "tests/contract/test_lease.py",
    "tests/contract/test_privacy_everywhere.py",
    "tests/contract/test_promote.py",
    "tests/contract/test_raw_table.py",
    "tests/contract/test_raw_table_backfill.py",
    "tests/contract/test_replay.py",
    "tests/contract/test_replay_wire.py",
    "tests/contract/test_reprocess.py",
    "tests/contract/test_reprocess_race.py",
    "tests/contract/test_retention.py",
    "tests/contract/test_rewind.py",
    "tests/contract/test_shadow.py",
    "tests/contract/test_target_kills.py",
    "tests/property/test_dedupe_window.py",
    "tests/property/test_reprocess.py",
    "tests/unit/test_lateness.py",
)
# Fixtures that start servers, and values of a parameter that names one of stores.
_SERVERS = {"stack", "s3", "gcs", "azure"}
_STORES = ("s3", "gs", "gcs", "az", "azure")


def _expression(pattern: str) -> str:
    return re.escape(pattern).replace(r"\*", ".*")


_LONG = re.compile("|".join(map(_expression, LONG)))


def sort(items: list[pytest.Item]) -> list[str]:
    """Mark tests as slow (needs servers, or of HISTORIES), long (tests/long.txt) and sharded; return `make slow`'s."""
    for item in items:
        if is_long(item.nodeid):
            item.add_marker(pytest.mark.long)
        if _needs_servers(item) or item.nodeid.startswith(HISTORIES):
            item.add_marker(pytest.mark.slow)
        if _is_sharded(item):
            item.add_marker(pytest.mark.sharded)
    return [item.nodeid for item in items if _marks(item) & {"slow", "long", "engines"} == {"slow"}]


def is_long(test: str) -> bool:
    """Return whether a test, by its id, is one of `make test-long` alone."""
    return _LONG.fullmatch(test) is not None


def matches(pattern: str, test: str) -> bool:
    """Return whether a pattern of tests/long.txt is one of a test, by its id."""
    return re.fullmatch(_expression(pattern), test) is not None


def _is_sharded(item: pytest.Item) -> bool:
    """Return whether `make test-long` runs it: the long, the fault suite, which it records, and quick properties."""
    is_property = getattr(getattr(item, "obj", None), "is_hypothesis_test", False)
    return "long" in _marks(item) or "tests/fault/" in item.nodeid or (is_property and "slow" not in _marks(item))


def _needs_servers(item: pytest.Item) -> bool:
    """Return whether a test asks for Kafka, a registry or an object store, by a fixture or by its parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    stores = [value for value in parameters.values() if value in _STORES]
    return bool(stores) or not _SERVERS.isdisjoint(getattr(item, "fixturenames", ()))


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}
