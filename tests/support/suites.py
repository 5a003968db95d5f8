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
HISTORIES = tuple(
    f"tests/{module}.py"
    for module in (
        "contract/test_adopt_iceberg", "contract/test_audit", "contract/test_audit_clients", "contract/test_backfill",
        "contract/test_bucket_commands", "contract/test_compact", "contract/test_confirmation", "contract/test_convert",
        "contract/test_convert_routes", "contract/test_dedupe_window", "contract/test_dedupe_window_routes",
        "contract/test_delete", "contract/test_diff", "contract/test_field_decryption",
        "contract/test_field_decryption_start",
        "contract/test_foreign_change", "contract/test_gaps", "contract/test_iceberg", "contract/test_iceberg_faults",
        "contract/test_iceberg_kill", "contract/test_iceberg_routes", "contract/test_late_tiers",
        "contract/test_lease", "contract/test_privacy_everywhere", "contract/test_promote", "contract/test_raw_table",
        "contract/test_raw_table_backfill",
        "contract/test_replay", "contract/test_replay_wire", "contract/test_reprocess",
        "contract/test_reprocess_race", "contract/test_retention", "contract/test_rewind", "contract/test_shadow",
        "contract/test_target_kills", "property/test_dedupe_window", "property/test_reprocess",
        "contract/test_existing_lake", "unit/test_lateness",
    )
)  # fmt: skip


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
    """Return whether a test asks for Kafka, a registry or S3, by a fixture or by its parameter."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    return "s3" in parameters.values() or not {"stack", "s3"}.isdisjoint(getattr(item, "fixturenames", ()))


def _marks(item: pytest.Item) -> set[str]:
    return {mark.name for mark in item.iter_markers()}
