"""A cluster for a rewind, and the rewind itself."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from headrace.recovery.cli.fix import rewind
from headrace.recovery.rewind.execution import RewindExecution
from headrace.writer.clients.kafka import Topic
from tests.support.local_driver import Driver
from tests.support.sample_records import NOW


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


def rewind_of(driver: Driver, cluster: Any = None) -> RewindExecution:
    return RewindExecution(driver.config, "clicks", cluster or Cluster(24))


def rewind_report(
    driver: Driver, to: int | datetime, cluster: Any = None, *, write: bool = True, accept_loss: bool = False
) -> rewind.RewindReport:
    """Go back, as the command does."""
    execution = rewind_of(driver, cluster)
    return rewind.run_rewind(execution, driver.config, to, accept_loss=accept_loss, write=write, now=NOW)


def run_rewind(driver: Driver, to: int | datetime, cluster: Any = None, *, accept_loss: bool = False) -> int:
    """Go back, as the command does. Returns its exit code."""
    return rewind_report(driver, to, cluster, accept_loss=accept_loss).exit_code
