"""How a start finds its topics: against a real table, and a Kafka whose logs a test decides."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from headrace.writer.config.pipeline import Pipeline
from headrace.writer.core.errors import LogChanged
from headrace.writer.core.offsets import OffsetRange, TopicPartition
from headrace.writer.core.units import microseconds
from headrace.writer.offsets import start_offsets
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.table import PipelineTable
from tests.support.simulated_cluster import Cluster
from tests.support.table_formats import delta_table


@pytest.fixture
def table(tmp_path: Path) -> PipelineTable:
    made = delta_table(str(tmp_path / "lake"), "events")
    made.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
    return made


def settings(**more: Any) -> Pipeline:
    return Pipeline.model_validate(
        {"topics": ["clicks"], "table": {"location": "/lake"}, "event_time": {"field": "t"}, **more}
    )


def find(table: PipelineTable, cluster: Cluster, wait=lambda _: None, **more: Any) -> start_offsets.StartPosition:
    return start_offsets.find_start_position(settings(**more), cluster, cluster.topics(), table.snapshot(), wait)  # type: ignore[arg-type]


def known(table: PipelineTable, ids: list[str], frontier: Mapping[TopicPartition, int]) -> None:
    table.begin(frontier, {"clicks": ids})


def test_a_first_start_begins_where_the_configuration_says(table: PipelineTable) -> None:
    cluster = Cluster((3, 9), (0, 5))
    assert find(table, cluster).offsets == {("clicks", 0): 3, ("clicks", 1): 0}
    assert find(table, cluster, start="latest").offsets == {("clicks", 0): 9, ("clicks", 1): 5}
    found = find(table, cluster, start={"offsets": {"clicks": {0: 4}}})
    assert found.offsets == {("clicks", 0): 4, ("clicks", 1): 0}
    assert found.lost == ()


def test_no_start_skips_a_transaction_that_is_open(table: PipelineTable) -> None:
    cluster = Cluster((0, 9), stable=6)
    assert find(table, cluster, start="latest").offsets == {("clicks", 0): 6}
    assert find(table, cluster, start={"timestamp": "2026-11-20T05:00:00Z"}).offsets == {("clicks", 0): 6}


def test_a_first_position_that_the_log_has_no_longer_is_a_gap(table: PipelineTable) -> None:
    found = find(table, Cluster((3, 9)), start={"offsets": {"clicks": {0: 1}}})
    assert found.lost == [OffsetRange(TopicPartition("clicks", 1, 0), 1, 3)]
    assert (found.new_parts, found.offsets) == ({TopicPartition("clicks", 1, 0): 1}, {("clicks", 0): 3})


def test_the_loss_to_retention_ends_where_the_log_begins(table: PipelineTable) -> None:
    known(table, ["a"], {TopicPartition("clicks", 1, 0): 4, TopicPartition("clicks", 1, 1): 4})
    found = find(table, Cluster((7, 9), (4, 9)))
    assert found.lost == [OffsetRange(TopicPartition("clicks", 1, 0), 4, 7)]
    assert found.offsets == {("clicks", 0): 7, ("clicks", 1): 4}
    with pytest.raises(LogChanged, match=r"no longer holds 3 offsets .*\[4, 7\) of clicks/0. Set on_data_loss: record"):
        find(table, Cluster((7, 9), (4, 9)), on_data_loss="stop")


def test_a_further_partition_begins_at_its_first_record_and_misses_none_in_silence(table: PipelineTable) -> None:
    known(table, ["a"], {TopicPartition("clicks", 1, 0): 4})
    found = find(table, Cluster((0, 9), (0, 5), (2, 5)), start="latest")
    assert found.offsets == {("clicks", 0): 4, ("clicks", 1): 0, ("clicks", 2): 2}
    assert found.lost == [OffsetRange(TopicPartition("clicks", 1, 2), 0, 2)]


def test_a_topic_created_again_is_another_incarnation_from_its_first_record(table: PipelineTable) -> None:
    known(table, ["a"], {TopicPartition("clicks", 1, 0): 4})
    found = find(table, Cluster((1, 9), id_="b"))
    assert found.incarnations == {"clicks": ["a", "b"]}
    assert found.numbers == {"clicks": 2}
    assert (found.new_parts, found.lost) == (
        {TopicPartition("clicks", 2, 0): 0},
        [OffsetRange(TopicPartition("clicks", 2, 0), 0, 1)],
    )
    for topics in (["clicks"], {"pattern": "cl.*"}):
        with pytest.raises(LogChanged, match=r"id b, the table knows a\).*on_topic_recreated: start.*topic adopt"):
            find(table, Cluster((1, 9), id_="b"), on_topic_recreated="stop", topics=topics)


def test_an_incarnation_that_comes_back_is_read_on(table: PipelineTable) -> None:
    """As when the configuration points at the former cluster once more."""
    known(table, ["a", "b"], {TopicPartition("clicks", 1, 0): 4, TopicPartition("clicks", 2, 0): 2})
    found = find(table, Cluster((0, 9)), on_topic_recreated="stop")
    assert (found.numbers, found.offsets, found.new_parts) == ({"clicks": 1}, {("clicks", 0): 4}, {})


def test_a_log_that_was_cut_back_is_refused_and_one_that_only_seemed_so_is_not(table: PipelineTable) -> None:
    known(table, ["a"], {TopicPartition("clicks", 1, 0): 20})
    with pytest.raises(LogChanged, match=r"clicks/0 ends at 9, the table at 20.*headrace topic adopt"):
        find(table, Cluster((0, 9)))
    late = Cluster((0, 9))
    assert find(table, late, late.grows).offsets == {("clicks", 0): 20}
    assert late.waited == 2


def test_brokers_without_topic_ids_are_said(table: PipelineTable, caplog: pytest.LogCaptureFixture) -> None:
    find(table, Cluster((0, 9), id_="AAAAAAAAAAAAAAAAAAAAAA"))
    assert "topic_without_id topic=clicks" in caplog.text


def test_a_gap_says_between_which_event_times_its_records_may_have_lain(tmp_path: Path) -> None:
    noon, margin = datetime(2026, 11, 20, 12, tzinfo=UTC), timedelta(minutes=5)
    table = delta_table(str(tmp_path / "lake"), "events")
    table.create(pa.schema([("hour", pa.string())]), ["hour"])
    parts = [TopicPartition("clicks", 1, p) for p in range(3)]
    epoch = table.begin(dict.fromkeys(parts, 0), {"clicks": ["a"]})
    seen = {parts[0]: microseconds(noon), parts[1]: microseconds(noon)}
    table.append(Batch("id", epoch, [OffsetRange(p, 0, 1) for p in parts], newest_event_times=seen), table.snapshot())
    later = microseconds(noon + timedelta(hours=1)) // 1000
    left = {("clicks", 0): (9, later), ("clicks", 1): (-1, -1), ("clicks", 2): (9, later)}
    lost = [OffsetRange(part, 1, 9) for part in parts]
    now = noon + timedelta(hours=3)
    before, after = (noon - margin).isoformat(), (noon + timedelta(hours=1) + margin).isoformat()
    assert start_offsets.gap_hints(lost, table.snapshot(), left, margin, now) == [
        {"from": before, "until": after},
        {"from": before, "until": (now + margin).isoformat()},  # nothing is left: up to now
        {"from": None, "until": after},  # no row of it was ever seen
    ]


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (Cluster((3, 9), (0, 5)), ""),
        (Cluster((4, 9), (0, 5)), ""),
        (Cluster((5, 9), (0, 5)), "clicks/0 begins at offset 5, beyond the table's 4"),
        (Cluster((3, 9), (0, 1)), "the log of clicks/1 ends at 1, 1 offset before the table"),
        (Cluster((3, 9), (0, 5), id_="b"), "topic 'clicks' was deleted and created again (id b, it was a)"),
    ],
)
def test_a_log_that_moved_under_a_start_is_told_and_what_it_still_holds_is_not(now: Cluster, why: str) -> None:
    assert start_offsets.find_log_change(now, ["clicks"], {"clicks": "a"}, {("clicks", 0): 4, ("clicks", 1): 2}) == why
