"""A start and a running writer whose log is not the one that the table was filled from: against a real table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from headrace.recovery.backfill import kafka_source
from headrace.recovery.backfill.source import SourceFailed
from headrace.recovery.checkpoints.checks import CheckFacts, TopicIds, preflight
from headrace.recovery.checkpoints.facts import _with_logs
from headrace.recovery.escalation.levels import RecoveryLevel
from headrace.writer.clients.kafka import Topic
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.connections import Kafka as KafkaSettings
from headrace.writer.core.errors import LogChanged, LogMoved
from headrace.writer.core.log_mark import LogMark
from headrace.writer.core.offsets import OffsetRange, Source, TopicPartition
from headrace.writer.driver.readers.native_reader import NativeReader
from headrace.writer.driver.readers.spark_reader import SparkReader
from headrace.writer.kafka_reader.errors import Unavailable, UnsupportedBroker
from headrace.writer.kafka_reader.requests.epoch_ends import EpochEnd
from headrace.writer.offsets import skip_to_latest, start_offsets
from headrace.writer.offsets.log_check import LogCheck, LogWatch
from headrace.writer.offsets.start_decision import LogRange, Refuse
from headrace.writer.table.gap_records import read_history
from headrace.writer.table.log.commits.starts import Adoption, LogCut
from headrace.writer.table.log.operations.rows import Batch
from headrace.writer.table.table import PipelineTable
from tests.support.table_formats import delta_table

ID = "AAAAAAAAAAAAAAAAAAAAAQ"
P0, P1 = TopicPartition("clicks", 1, 0), TopicPartition("clicks", 1, 1)
N0, N1 = replace(P0, incarnation=2), replace(P1, incarnation=2)
OLD, NEW = LogMark(3, 30), LogMark(5, 50)


@dataclass
class Kafka:
    """One topic of two partitions. `marks`: by offset, of partition 0; partition 1 is as it was."""

    held: list[tuple[int, int]] = field(default_factory=lambda: [(0, 1_900), (0, 70)])
    marks: dict[int, LogMark] = field(default_factory=dict)
    ends: dict[int, tuple[int, int]] = field(default_factory=lambda: {3: (3, 1_900), 5: (5, 1_900)})
    epoch: int = 3
    other_end: int = 70  # of epoch 3 in partition 1
    failure: Exception | None = None
    questions: int = 0

    def topics(self, _names: Sequence[str] = ()) -> dict[str, Topic]:
        return {"clicks": Topic("clicks", ID, len(self.held))}

    def earliest(self, sources: Any) -> dict[Source, int]:
        return {source: self.held[source[1]][0] for source in sources}

    def latest(self, sources: Any) -> dict[Source, int]:
        return {source: self.held[source[1]][1] for source in sources}

    def leader_epochs(self, topics: Mapping[str, UUID]) -> dict[Source, int]:
        assert topics == {"clicks": UUID(int=1)}
        return {("clicks", 0): self.epoch, ("clicks", 1): 3}

    def marks_before(self, offsets: Mapping[Source, int], _: Mapping[str, UUID]) -> dict[Source, LogMark]:
        found = {source: OLD if source[1] else self.marks.get(at) for source, at in offsets.items()}
        return {source: mark for source, mark in found.items() if mark is not None}

    def epoch_ends(self, epochs: Mapping[Source, int]) -> dict[Source, EpochEnd]:
        self.questions += 1
        if self.failure is not None:
            raise self.failure
        return {
            source: EpochEnd(0, 3, self.other_end) if source[1] else EpochEnd(0, *self.ends[epoch])
            for source, epoch in epochs.items()
        }


@pytest.fixture
def table(tmp_path: Path) -> PipelineTable:
    """A table with commits up to 600, 1,000 and 1,500, and up to 70 of the other partition."""
    made = delta_table(str(tmp_path / "lake"), "events")
    made.create(pa.schema([("id", pa.int64()), ("hour", pa.string())]), ["hour"])
    epoch = made.begin({P0: 0, P1: 0}, {"clicks": [ID]})
    for start, end, mark in ((0, 600, LogMark(3, 6)), (600, 1_000, LogMark(3, 10)), (1_000, 1_500, OLD)):
        made.append(Batch(f"to {end}", epoch, [OffsetRange(P0, start, end)], marks={P0: mark}), made.snapshot())
    made.append(Batch("other", epoch, [OffsetRange(P1, 0, 70)], marks={P1: OLD}), made.snapshot())
    return made


def find(table: PipelineTable, kafka: Kafka, **settings: Any) -> start_offsets.StartPosition:
    wanted = Pipeline.model_validate(
        {"topics": ["clicks"], "table": {"location": "/lake"}, "event_time": {"field": "t"}, **settings}
    )
    check = LogCheck("events", kafka, lambda: table.entries(-1))
    return start_offsets.find_start_position(wanted, kafka, kafka.topics(), table.snapshot(), lambda _: None, check)  # type: ignore[arg-type]


def test_the_same_log_is_read_on(table: PipelineTable) -> None:
    found = find(table, Kafka(marks={1_500: OLD}))
    assert (found.cuts, found.lost, found.new_parts) == ([], (), {})
    assert found.offsets == {("clicks", 0): 1_500, ("clicks", 1): 70}


def test_a_log_that_was_cut_goes_on_as_an_incarnation_and_the_other_partition_where_it_was(
    table: PipelineTable,
) -> None:
    kafka = Kafka(marks={1_500: NEW, 1_000: LogMark(3, 10), 600: LogMark(3, 6)}, ends={3: (3, 1_200)})
    found = find(table, kafka)
    assert found.cuts == [LogCut(OffsetRange(P0, 1_200, 1_500), 2, is_proven=True)]
    assert found.incarnations == {"clicks": [ID, ID]}
    assert found.numbers == {"clicks": 2}
    assert found.new_parts == {N0: 1_200, N1: 70}
    assert found.offsets == {("clicks", 0): 1_200, ("clicks", 1): 70}
    table.begin(found.new_parts, found.incarnations, cuts=found.cuts)
    again = find(table, Kafka())
    assert (again.cuts, again.offsets) == ([], found.offsets)


def test_a_restored_volume_goes_on_behind_the_last_commit_that_it_still_has(table: PipelineTable) -> None:
    kafka = Kafka(marks={1_500: LogMark(3, 99), 1_000: LogMark(3, 98), 600: LogMark(3, 6)})
    assert find(table, kafka).cuts == [LogCut(OffsetRange(P0, 600, 1_500), 2, is_proven=False)]
    nothing = Kafka(marks={1_500: LogMark(3, 99)})
    assert find(table, nothing).cuts == [LogCut(OffsetRange(P0, 0, 1_500), 2, is_proven=False)]


def test_a_log_that_ends_before_the_table_is_read_on_where_it_was_cut(table: PipelineTable) -> None:
    kafka = Kafka(held=[(0, 1_200), (0, 70)], marks={1_000: LogMark(3, 10)}, ends={3: (3, 1_200)})
    assert find(table, kafka).cuts == [LogCut(OffsetRange(P0, 1_200, 1_500), 2, is_proven=True)]


def test_on_data_loss_stop_refuses_with_the_range_and_the_mend(table: PipelineTable) -> None:
    kafka = Kafka(marks={1_500: NEW, 1_000: LogMark(3, 10)}, ends={3: (3, 1_200)})
    with pytest.raises(LogChanged, match=r"cut and grew.*\[1200, 1500\) of clicks/0.*on_data_loss: record"):
        find(table, kafka, on_data_loss="stop")


def test_where_nothing_says_where_a_person_has_to(table: PipelineTable) -> None:
    wanted = LogCheck("events", Kafka(marks={1_500: NEW}), lambda: table.entries(3))
    diverging = Pipeline.model_validate(
        {"topics": ["clicks"], "table": {"location": "/lake"}, "event_time": {"field": "t"}}
    )
    kafka = Kafka(marks={1_500: NEW})
    with pytest.raises(LogChanged, match=r"nothing in the table's log says where: clicks/0.*topic adopt --offsets"):
        start_offsets.find_start_position(diverging, kafka, kafka.topics(), table.snapshot(), lambda _: None, wanted)  # type: ignore[arg-type]


def test_retention_behind_a_cut_is_a_gap_of_the_new_incarnation_from_the_last_sound_commit(
    table: PipelineTable,
) -> None:
    kafka = Kafka(held=[(500, 1_900), (0, 70)], marks={600: LogMark(3, 6)}, ends={3: (0, 900)})
    found = find(table, kafka)
    assert found.cuts == [LogCut(OffsetRange(P0, 600, 1_500), 2, is_proven=False)]
    assert found.lost == ()
    # Retention took what could say where, and the leader has no epoch from before: it may have been anywhere.
    kafka = Kafka(held=[(1_200, 1_900), (0, 70)], ends={3: (3, 1_200)})
    found = find(table, kafka)
    assert found.cuts == [LogCut(OffsetRange(P0, 0, 1_500), 2, is_proven=False)]
    assert found.lost == [OffsetRange(N0, 0, 1_200)]


def test_a_partition_that_went_on_uncut_is_cut_before_its_first_commit_as_its_earlier_incarnation_says(
    table: PipelineTable,
) -> None:
    position = find(table, Kafka(marks={1_500: OLD}, other_end=60))
    assert position.cuts == [LogCut(OffsetRange(P1, 0, 70), 2, is_proven=False)]
    table.begin(position.new_parts, position.incarnations, cuts=position.cuts)
    assert (table.snapshot().frontier(N0), table.snapshot().mark(N0)) == (1_500, OLD)
    position = find(table, Kafka(marks={1_500: NEW, 1_000: LogMark(3, 10)}, ends={3: (3, 1_200)}))
    third = replace(N0, incarnation=3)
    assert position.cuts == [LogCut(OffsetRange(part, 1_200, 1_500), 3, is_proven=True) for part in (N0, P0)]
    assert position.new_parts == {third: 1_200, replace(N1, incarnation=3): 0}
    table.begin(position.new_parts, position.incarnations, cuts=position.cuts)
    assert table.snapshot().frontier(third) == 1_200
    orphans = [OffsetRange(P0, 1_200, 1_500), OffsetRange(P1, 0, 70), OffsetRange(N0, 1_200, 1_500)]
    assert table.snapshot().orphans() == orphans


def test_a_partition_that_is_cut_again_below_its_incarnation_takes_rows_of_the_one_before(table: PipelineTable) -> None:
    position = find(table, Kafka(marks={1_500: NEW, 1_000: LogMark(3, 10)}, ends={3: (3, 1_200)}))
    epoch = table.begin(position.new_parts, position.incarnations, cuts=position.cuts)
    last = Batch("to 1300", epoch, [OffsetRange(N0, 1_200, 1_300)], marks={N0: NEW})
    table.append(last, table.snapshot())
    position = find(table, Kafka(marks={1_300: LogMark(7, 70), 600: LogMark(3, 6)}, ends={3: (3, 800), 5: (3, 800)}))
    assert position.cuts == [
        LogCut(OffsetRange(N0, 600, 1_300), 3, is_proven=False),
        LogCut(OffsetRange(P0, 600, 1_500), 3, is_proven=False),
    ]
    table.begin(position.new_parts, position.incarnations, cuts=position.cuts)
    assert table.snapshot().orphans() == [OffsetRange(P0, 600, 1_500), OffsetRange(N0, 600, 1_300)]
    _, segments = read_history(table, "events", table.rows_at)
    cuts = [(cut.range.part, *cut.range.span) for segment in segments for cut in segment.cut_ranges]
    assert sorted(cuts) == [(P0, 600, 1_500), (P0, 1_200, 1_500), (N0, 600, 1_300)]


def test_a_cluster_whose_log_was_cut_and_that_was_left_is_not_read_on_where_it_was_cut(table: PipelineTable) -> None:
    position = find(table, Kafka(marks={1_500: NEW, 1_000: LogMark(3, 10)}, ends={3: (3, 1_200)}))
    table.begin(position.new_parts, position.incarnations, cuts=position.cuts)
    table.adopt(table.snapshot(), Adoption({"clicks": [ID, "the other cluster's"]}, {}))
    back = Kafka(marks={1_500: NEW, 1_000: LogMark(3, 10)}, ends={3: (3, 1_200)})
    with pytest.raises(LogChanged, match=r"has the id of its incarnation 1 .*adopted as incarnation 2.*--offsets"):
        find(table, back)
    assert "topic adopt" in start_offsets.orphan_reason(table.snapshot(), {"clicks": 1})
    third = {replace(N0, incarnation=3): 1_300, replace(N1, incarnation=3): 70}
    table.adopt(table.snapshot(), Adoption({"clicks": [ID, "the other cluster's", ID]}, third))
    position = find(table, back)
    assert (position.cuts, position.numbers) == ([], {"clicks": 3})
    assert position.offsets == {("clicks", 0): 1_300, ("clicks", 1): 70}


def test_brokers_that_are_too_old_to_say_anything_are_read_as_before(
    table: PipelineTable, caplog: pytest.LogCaptureFixture
) -> None:
    found = find(table, Kafka(failure=UnsupportedBroker("too old")))
    assert (found.cuts, found.offsets["clicks", 0]) == ([], 1_500)
    assert "log_not_compared" in caplog.text


def test_a_log_without_epochs_is_compared_by_its_batches_alone(table: PipelineTable) -> None:
    without_epoch = LogMark(-1, 30)
    epoch = table.snapshot().epoch
    last = Batch("to 1600", epoch, [OffsetRange(P0, 1_500, 1_600)], marks={P0: without_epoch})
    table.append(last, table.snapshot())
    # A leader that is asked about -1 says that it knows no such epoch.
    kafka = Kafka(marks={1_600: without_epoch}, ends={-1: (-1, -1)})
    assert find(table, kafka).cuts == []
    kafka.marks = {1_600: LogMark(-1, 31 << 32), 1_000: LogMark(3, 10)}
    assert find(table, kafka).cuts == [LogCut(OffsetRange(P0, 1_000, 1_600), 2, is_proven=False)]


def test_a_start_that_nobody_answers_fails(table: PipelineTable) -> None:
    with pytest.raises(Unavailable, match="silent"):
        find(table, Kafka(failure=Unavailable("silent")))


def test_a_running_writer_compares_when_a_leader_changed_and_not_before(table: PipelineTable) -> None:
    kafka = Kafka(marks={1_500: OLD})
    check = LogCheck("events", kafka, lambda: table.entries(-1))
    watch = LogWatch(check, kafka, table.snapshot, {"clicks": ID}, {"clicks": 1})  # type: ignore[arg-type]
    assert [watch.divergence(), watch.divergence()] == ["", ""]
    assert kafka.questions == 0
    kafka.epoch = 4
    assert [watch.divergence(), watch.divergence()] == ["", ""]
    assert kafka.questions == 1, "a clean change of leaders is looked at once"
    kafka.epoch, kafka.ends = 5, {3: (3, 1_200)}
    assert watch.divergence() == "the log of clicks/0 was cut below what was read of it"
    assert watch.divergence() == "the log of clicks/0 was cut below what was read of it"


@pytest.mark.parametrize(("stops", "level", "words"), [
    (False, RecoveryLevel.RESTART, "a start goes on as a further incarnation"),
    (True, None, "set on_data_loss: record"),
])  # fmt: skip
def test_doctor_says_what_a_start_would_do(
    table: PipelineTable, stops: bool, level: RecoveryLevel | None, words: str
) -> None:
    frontier = {("clicks", 0): 1_500, ("clicks", 1): 70}
    held = {("clicks", 0): LogRange(0, 1_900), ("clicks", 1): LogRange(0, 70)}
    facts = CheckFacts(None, frontier, {"clicks": TopicIds(ID, ID)}, held, stops_at_loss=stops)

    def checks(kafka: Kafka) -> dict[str, Any]:
        check = LogCheck("events", kafka, lambda: table.entries(-1))
        return {one.name: one for one in preflight(_with_logs(facts, table.snapshot(), check))}

    assert checks(Kafka(marks={1_500: OLD}))["log"].message == "Kafka holds what comes next"
    found = checks(Kafka(marks={1_500: NEW}, ends={3: (3, 1_200)}))["log"]
    assert (found.ok, found.level) == (False, level)
    assert "clicks/0" in found.message
    assert words in found.message
    assert "not known (silent)" in checks(Kafka(failure=Unavailable("silent")))["log"].message
    cut = LogCut(OffsetRange(P0, 1_200, 1_500), 2, is_proven=True)
    table.begin({N0: 1_200, N1: 70}, {"clicks": [ID, ID]}, cuts=[cut])
    assert "[1200, 1500) of clicks/0, incarnation 1" in checks(Kafka())["rows"].message


def not_read_natively() -> NativeReader:
    raise AssertionError("Spark's source reads these records")


def test_spark_s_source_is_asked_about_before_and_after_its_tasks() -> None:
    kafka = Kafka(marks={1_000: NEW, 1_500: OLD})
    reader = SparkReader(100, kafka, lambda: {"clicks": ID}, not_read_natively, with_topic=False)
    ends = {("clicks", 0): 1_500}
    marks = reader._marks_before(ends)
    assert marks == {("clicks", 0): OLD}
    assert reader._check_log(ends, marks) == {("clicks", 0)}
    with pytest.raises(LogMoved, match="the log of clicks/0 has other records before offset 1000 than were read"):
        reader._check_log({("clicks", 0): 1_000}, {("clicks", 0): OLD})
    kafka.marks = {}
    assert reader._check_log(ends, marks) == set(), "the log lost them"


def test_no_offset_is_skipped_in_a_log_that_was_cut() -> None:
    held = {P0: LogRange(0, 1_900)}
    refused = skip_to_latest.decide({P0: 1_500}, held, "person", cut=[P0])
    assert isinstance(refused, Refuse)
    assert "cut below what the table has of clicks/0" in refused.reason
    assert isinstance(skip_to_latest.decide({P0: 1_500}, held, "person"), skip_to_latest.Skip)


def test_a_gap_is_not_filled_from_a_log_that_was_cut() -> None:
    asked = list[Mapping[TopicPartition, LogRange]]()

    def cut(log_ranges: Mapping[TopicPartition, LogRange], _: Mapping[str, str]) -> list[TopicPartition]:
        asked.append(log_ranges)
        return [P0]

    source = kafka_source.KafkaSource(KafkaSettings(bootstrap_servers="localhost:1"), headers=False, ids={}, cut=cut)
    source._cluster = Kafka()  # type: ignore[assignment]
    with pytest.raises(SourceFailed, match=r"cut below what the table has of clicks/0.*a mirror or an archive"):
        source._check_logs({("clicks", 0): P0})
    assert asked == [{P0: LogRange(0, 1_900)}]
