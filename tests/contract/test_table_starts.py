"""What every table format promises of starts and adoptions: whose a table is, and who is fenced."""

from collections.abc import Callable

import pytest

from headrace.writer.core.errors import ConfigError, Fenced
from headrace.writer.core.files import StagedFile
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.table.log.commits.starts import Adoption
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.table import PipelineTable
from tests.support.table_formats import OPENED
from tests.support.tables import (
    COLUMNS,
    P0,
    P1,
    batch,
    begin,
    delta_client,
    location,
    rows,
    stage,
    table,
)

__all__ = ["location", "stage", "table"]


def test_a_start_sets_the_frontier_and_raises_the_epoch(table: PipelineTable) -> None:
    assert table.snapshot().frontier(P0) is None
    assert begin(table, p0=17) == 1
    snapshot = table.snapshot()
    assert (snapshot.frontier(P0), snapshot.frontier(P1), snapshot.epoch) == (17, 0, 1)
    assert snapshot.incarnations() == {"clicks": ["uuid-1"]}
    assert table.begin({}, {"clicks": ["uuid-1"]}) == 2
    assert table.snapshot().frontier(P0) == 17


def test_a_start_does_not_move_a_frontier_that_was_set_meanwhile(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    """Two starts see a new part; the first commits before the second begins."""
    epoch = begin(table)
    table.append(batch(epoch, 0, 100, stage(100)), table.snapshot())
    assert begin(table) == epoch + 1
    assert table.snapshot().frontier(P0) == 100


def test_a_later_start_fences_the_earlier_one(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    old = begin(table)
    stale = table.snapshot()
    table.begin({}, {"clicks": ["uuid-1"]})
    for snapshot in (stale, table.snapshot()):
        with pytest.raises(Fenced, match="started again"):
            table.append(batch(old, 0, 10, stage(10)), snapshot)
    assert rows(table) == 0


def test_a_straggler_of_an_older_lease_is_fenced(table: PipelineTable, stage: Callable[[int], StagedFile]) -> None:
    """A driver that an older supervisor ordered, and that begins after the newer one's."""
    ids = {"clicks": ["uuid-1"]}
    table.begin({P0: 0, P1: 0}, ids, lease=6)
    heir = table.begin({}, ids, lease=7)
    with pytest.raises(Fenced, match="lease 7 of its supervisors, this start was ordered under lease 6"):
        table.begin({}, ids, lease=6)
    table.append(batch(heir, 0, 10, stage(10)), table.snapshot())
    assert (rows(table), table.snapshot().lease) == (10, 7)
    by_hand = table.begin({}, ids)
    assert (by_hand, table.snapshot().lease) == (heir + 1, 7), (
        "who starts it by hand takes it over, and keeps the lease"
    )
    assert table.begin({}, ids, lease=7) == by_hand + 1


def test_a_run_that_was_closed_stays_closed(table: PipelineTable) -> None:
    for closed, expected in ((4, 4), (0, 4), (2, 4), (5, 5)):
        table.begin({}, {"clicks": ["uuid-1"]}, closed)
        assert table.snapshot().closed == expected


def test_a_start_with_new_incarnations_is_one_entry(table: PipelineTable) -> None:
    """A process that dies can leave no frontier of an incarnation that the table does not name."""
    begin(table)
    before = table.snapshot().version
    table.begin({TopicPartition("clicks", 2, 0): 0}, {"clicks": ["uuid-1", "uuid-2"]})
    snapshot = table.snapshot()
    assert snapshot.version == before + 1
    assert (snapshot.incarnations(), snapshot.frontier(TopicPartition("clicks", 2, 0))) == (
        {"clicks": ["uuid-1", "uuid-2"]},
        0,
    )


@pytest.mark.parametrize("checkpointed", [False, True])
def test_an_adoption_renames_incarnations_and_fences_who_ran(
    table: PipelineTable, form: str, stage: Callable[[int], StagedFile], checkpointed: bool
) -> None:
    epoch = begin(table)
    table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
    if checkpointed:
        OPENED[form](table.location, "events", checkpoint_interval=1).tidy()
        table = OPENED[form](table.location, "events")
    other = TopicPartition("source.clicks", 1, 0)
    before = table.snapshot()
    ids = {"clicks": ["uuid-9"], "source.clicks": ["uuid-8"]}
    version = table.adopt(before, Adoption(ids, {other: 10}, 3, {"at": "2026-11-20T05:00:00+00:00"}))
    snapshot = table.snapshot()
    assert (snapshot.version, snapshot.epoch, snapshot.incarnations()) == (version, epoch + 1, ids)
    assert (before.closed, snapshot.closed) == (0, 3)
    assert (snapshot.frontier(P0), snapshot.frontier(other), rows(table)) == (10, 10, 10)
    assert table.history(1)[0].facts == {"kind": "adopt", "at": "2026-11-20T05:00:00+00:00"}
    with pytest.raises(Fenced):
        table.append(batch(epoch, 10, 20, stage(10)), before)
    if form == "delta":
        again = delta_client(table.location)
        assert again.metadata().name == "headrace/events"
        assert again.metadata().partition_columns == ["hour"]
        assert (again.protocol().min_reader_version, again.protocol().min_writer_version) == (1, 2)


def test_an_adoption_is_of_what_was_looked_at_or_not_at_all(
    table: PipelineTable, stage: Callable[[int], StagedFile]
) -> None:
    epoch = begin(table)
    looked = table.snapshot()
    table.append(batch(epoch, 0, 10, stage(10)), looked)
    with pytest.raises(CommitFailed, match="nothing was adopted"):
        table.adopt(looked, Adoption({"clicks": ["uuid-9"]}, {}))
    assert table.snapshot().incarnations() == {"clicks": ["uuid-1"]}


def test_a_table_belongs_to_one_pipeline_and_one_bucketing(table: PipelineTable, form: str) -> None:
    again = OPENED[form]
    with pytest.raises(ConfigError, match="belongs to pipeline 'events'"):
        again(table.location, "other").create(COLUMNS, ["hour"])
    with pytest.raises(ConfigError, match="is bucketed by hour, the configuration says day"):
        again(table.location, "events").create(COLUMNS, ["day"])
    with pytest.raises(ConfigError, match="the configuration says 1 h in Berlin"):
        again(table.location, "events").create(COLUMNS, ["hour"], "1 h in Berlin")


def test_a_table_of_one_format_is_not_opened_as_another(table: PipelineTable, form: str) -> None:
    other, name = {
        "delta": ("parquet", "a Delta table"),
        "parquet": ("delta", "a table in Parquet format"),
        "iceberg": ("delta", "an Iceberg table"),
    }[form]
    with pytest.raises(ConfigError, match=f"holds {name}. Choose a new location, or correct table.format"):
        OPENED[other](table.location, "events").create(COLUMNS, ["hour"])


def test_a_table_is_opened_by_the_next_start_as_it_was_made(table: PipelineTable, form: str) -> None:
    again = OPENED[form](table.location, "events")
    assert again.exists()
    again.create(COLUMNS, ["hour"])
    assert again.snapshot().version == table.snapshot().version == 0
    assert again.snapshot().columns().equals(COLUMNS)
