"""The change of another client, and the way back from it."""

from typing import Any

from tests.support.local_driver import Driver
from tests.support.rewound_cluster import Cluster, rewind_report


def revert_change(driver: Driver, to: int, *, cluster: Any = None) -> int:
    return rewind_report(driver, to, cluster or Cluster(60)).exit_code
