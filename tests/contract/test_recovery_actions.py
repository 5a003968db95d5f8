"""The actions of the recovery levels that are more than a start, on real tables: what they do and refuse."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.recovery.supervisor.recovery_actions import Refusal, actions
from headrace.writer.clients.kafka import BrokerUnreachable, Topic
from headrace.writer.core.errors import Fenced
from headrace.writer.core.offsets import Source, TopicPartition
from headrace.writer.table.gap_records import gap_records
from tests.support import oracle
from tests.support.local_driver import Driver, log
from tests.support.sample_records import event
from tests.support.simulated_cluster import Cluster


class Held(Cluster):
    """A topic of the table's own id, of which the log holds these offsets."""

    def __init__(self, *held: tuple[int, int]) -> None:
        super().__init__(*held, id_="uuid-1")

    def topics(self, names: Sequence[str] = ()) -> dict[str, Topic]:
        return {name: Topic(name, self.id, len(self.held)) for name in names}


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    """A table that has the offsets up to 20 of two partitions."""
    new_driver = Driver(tmp_path)
    new_driver.start(2)
    new_driver.carry([log({n: event(n) for n in range(20)}), log({n: event(n) for n in range(20)}, 1)], {0: 20, 1: 20})
    return new_driver


def test_the_last_level_skips_what_kafka_lost_and_records_exactly_that(driver: Driver) -> None:
    done = actions(driver.config, lambda _: Held((50, 120), (30, 60)))[RecoveryLevel.LATEST]("clicks")  # type: ignore[arg-type,return-value]
    (gap_record,) = gap_records(driver.table, "clicks").values()
    assert gap_record.opened is not None
    assert [(r.part.partition, r.start, r.end) for r in gap_record.opened.ranges] == [(0, 20, 120), (1, 20, 60)]
    assert (gap_record.opened.cause, gap_record.opened.by) == ("latest", "headrace supervisor")
    assert "with 140 offsets" in done
    assert driver.table.snapshot().frontier(TopicPartition("clicks", 1, 0)) == 120
    with pytest.raises(Fenced):
        driver.carry([log({n: event(n) for n in range(120, 150)})], {0: 150})
    oracle.check(Path(driver.lake), "clicks")


def test_the_last_level_refuses_what_a_new_run_would_read(driver: Driver) -> None:
    before = driver.table.snapshot().version
    for held, why in (((0, 120), "Kafka still holds the frontier"), ((0, 20), "nothing to be skipped")):
        with pytest.raises(Refusal, match=why):
            actions(driver.config, lambda _, held=held: Held(held, (0, 20)))[RecoveryLevel.LATEST]("clicks")  # type: ignore[misc]
    assert driver.table.snapshot().version == before


def test_a_table_with_a_frontier_is_not_walked_back(driver: Driver) -> None:
    able = actions(driver.config, lambda _: Held((0, 120), (0, 60)))  # type: ignore[arg-type,return-value]
    with pytest.raises(Refusal, match="the table tells the frontier"):
        able[RecoveryLevel.WALK_BACK]("clicks")


class SilentCluster(Held):
    """A cluster of which no broker answers."""

    def topics(self, names: Sequence[str] = ()) -> dict[str, Topic]:
        raise BrokerUnreachable(f"no broker answers for {names}")


def test_a_broker_that_does_not_answer_is_a_refusal(driver: Driver) -> None:
    skip = actions(driver.config, lambda _: SilentCluster((0, 20), (0, 20)))[RecoveryLevel.LATEST]  # type: ignore[arg-type,return-value]
    with pytest.raises(Refusal, match="no broker answers"):
        skip("clicks")


class DatedCluster(Held):
    """A cluster that notes when it was asked for the ends of its logs."""

    asked_at = datetime.min.replace(tzinfo=UTC)

    def readable(self, sources: Iterable[Source]) -> dict[Source, int]:
        self.asked_at = datetime.now(UTC)
        return super().readable(sources)


def test_a_gap_of_the_last_level_reaches_until_the_ends_of_the_logs_were_read(driver: Driver) -> None:
    cluster = DatedCluster((50, 120), (30, 60))
    actions(driver.config, lambda _: cluster)[RecoveryLevel.LATEST]("clicks")  # type: ignore[arg-type,return-value]
    (gap_record,) = gap_records(driver.table, "clicks").values()
    assert gap_record.opened is not None
    margin = driver.config.pipelines["clicks"].seal.out_of_orderness
    assert all(hint.end >= cluster.asked_at + margin for hint in gap_record.opened.hints)
    assert gap_record.opened.hints
