"""Routes into Iceberg tables."""

from pathlib import Path
from typing import Any

from tests.support.route_targets import RouteTables

TARGETS = ("a", "b")


def start_route(root: Path, names: tuple[str, ...] = TARGETS, **more: Any) -> RouteTables:
    return RouteTables(root, {"targets": {name: str(root / name) for name in names}}, form="iceberg", **more)


def apply_waiting(route: RouteTables) -> dict[str, str]:
    """Apply what waits, tables that refused a moment ago included. Returns those that refuse, and why."""
    route.tables._retries.clear()
    route.tables.apply_side_files()
    return {Path(location).name: why for location, why in route.tables.behind.items()}
