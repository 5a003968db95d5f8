"""A cluster for a rewind, and the rewind itself."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import typer

from recovery.cli.fix import rewind
from recovery.rewind.execution import RewindExecution
from tests.support.local_driver import Driver
from tests.support.sample_records import NOW
from writer.clients.kafka import Topic
from writer.output.tables import console


class Cluster:
    """Kafka, as it says that it holds topic `clicks`."""

    def __init__(self, end: int, earliest: int = 0, topic_id: str = "uuid-1", partitions: int = 1) -> None:
        self.end = end
        self.first = earliest
        self.id = topic_id
        self.partitions = partitions

    def topics(self, names: Sequence[str]) -> Mapping[str, Topic]:
        return {name: Topic(name, self.id, self.partitions) for name in names}

    def earliest(self, sources: Sequence[Any]) -> Mapping[Any, int]:
        return dict.fromkeys(sources, self.first)

    def latest(self, sources: Sequence[Any]) -> Mapping[Any, int]:
        return dict.fromkeys(sources, self.end)


class DamagedDriver(Driver):
    """A driver of which wrong data landed."""

    good = 0  # the version before it


def rewind_of(driver: DamagedDriver, cluster: Any = None) -> RewindExecution:
    return RewindExecution(driver.config, "clicks", cluster or Cluster(24))


def run_rewind(driver: DamagedDriver, to: int | datetime, cluster: Any = None, **flags: bool) -> int:
    """Go back, as the verb does. Returns its exit code."""
    flags = {"write": True, "accept_loss": False, **flags}
    try:
        rewind.run(rewind_of(driver, cluster), driver.config, to, now=NOW, as_json=True, out=console(), **flags)
    except typer.Exit as ended:
        return ended.exit_code
    return 0
