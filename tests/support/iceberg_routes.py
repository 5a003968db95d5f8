"""Routes into Iceberg tables."""

from pathlib import Path
from typing import Any

from tests.support.route_targets import RouteTables

TARGETS = ("a", "b")


def start_route(root: Path, names: tuple[str, ...] = TARGETS, **more: Any) -> RouteTables:
    return RouteTables(root, {"targets": {name: str(root / name) for name in names}}, form="iceberg", **more)


def apply_waiting(one: RouteTables) -> dict[str, str]:
    """Apply what waits, tables that refused a moment ago included. Returns those that refuse, and why."""
    one.tables._retries.clear()
    one.tables.apply_side_files()
    return {Path(place).name: why for place, why in one.tables.behind.items()}
