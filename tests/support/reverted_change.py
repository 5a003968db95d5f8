"""The change of another client, and the way back from it."""

from typing import Any

import typer

from recovery.cli.fix import rewind
from recovery.rewind.execution import RewindExecution
from tests.support.local_driver import Driver
from tests.support.rewound_cluster import Cluster
from tests.support.sample_records import NOW
from writer.output.tables import console


def revert_change(driver: Driver, to: int, *, write: bool = True, cluster: Any = None) -> int:
    way = RewindExecution(driver.config, "clicks", cluster or Cluster(60))
    try:
        rewind.run(way, driver.config, to, write=write, accept_loss=False, now=NOW, as_json=False, out=console())
    except typer.Exit as ended:
        return ended.exit_code
    return 0
