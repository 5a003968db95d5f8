"""The script of a run of chaos, the damage it does, and its judge."""

import json
from datetime import timedelta
from pathlib import Path
from random import Random

import duckdb
import pytest

from headrace.bench.chaos.damage import damage
from headrace.bench.chaos.schedule import DAMAGES, Fault, script
from headrace.bench.chaos.verification import PartitionOffsets, TopicLife, judge, read_offsets, subtract_spans
from headrace.writer.core.errors import CheckpointUnusable
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.storage.base import OutcomeUnknown, StoreError
from headrace.writer.storage.local import LocalStore

TEN_MINUTES = timedelta(minutes=10)


def test_a_seed_gives_the_same_script_and_another_seed_another() -> None:
    assert script(7, TEN_MINUTES) == script(7, TEN_MINUTES)
    assert script(7, TEN_MINUTES) != script(8, TEN_MINUTES)


@pytest.mark.parametrize("seed", range(20))
def test_each_fault_comes_once_before_any_comes_again(seed: int) -> None:
    faults = [event.fault for event in script(seed, timedelta(minutes=30))]
    for start in range(0, len(faults) - len(Fault), len(Fault)):
        assert set(faults[start : start + len(Fault)]) == set(Fault)


def test_every_damage_is_done_some_day() -> None:
    assert {e.target for e in script(1, timedelta(days=1)) if e.fault is Fault.DAMAGE} == set(DAMAGES)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A checkpoint that has committed two batches and planned a third."""
    there = tmp_path / "events" / "000001"
    for folder in ("offsets", "commits", "sources/0"):
        (there / folder).mkdir(parents=True)
    (there / "metadata").write_text('{"id":"7c55a4d1-0000-0000-0000-000000000000"}')
    (there / "sources/0/0").write_text('v1\n{"clicks":{"0":0,"1":0}}')
    for batch in range(3):
        ends = json.dumps({"clicks": {"0": 10 * (batch + 1), "1": 20 * (batch + 1)}})
        (there / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{ends}')
    for batch in range(2):
        (there / "commits" / str(batch)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return there


@pytest.mark.parametrize("kind", DAMAGES)
def test_damage_changes_what_is_there(run: Path, kind: str) -> None:
    def content() -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}

    before = content()
    said = damage(run, kind, Random(3))
    assert "nothing to damage" not in said
    assert content() != before


def test_corrupt_offsets_are_not_believed(run: Path) -> None:
    damage(run, "newest offsets zeroed", Random(1))
    with pytest.raises(CheckpointUnusable, match=r"offsets/2 (cannot be read|has version)"):
        Checkpoints(str(run.parents[1]), "events").next_batch(1)


def test_edited_offsets_are_believed_by_a_reader_of_offsets_only(run: Path) -> None:
    before = Checkpoints(str(run.parents[1]), "events").end_offsets(1, 2)
    damage(run, "offsets edited", Random(1))
    after = Checkpoints(str(run.parents[1]), "events").end_offsets(1, 2)
    assert after.keys() == before.keys()
    assert after != before


def test_a_checkpoint_that_is_not_there_is_no_error(tmp_path: Path) -> None:
    assert "nothing to damage" in damage(tmp_path / "none", "newest offsets cut", Random(1))


def test_intervals_without_others_keep_the_parts_between_them() -> None:
    assert list(subtract_spans((0, 10), [])) == [(0, 10)]
    assert list(subtract_spans((0, 10), [(0, 10)])) == []
    assert list(subtract_spans((2, 10), [(0, 3), (5, 6), (9, 20)])) == [(3, 5), (6, 9)]


def test_all_held_once_is_clean() -> None:
    verdict = judge({("t", 1): TopicLife("t", {0: 10})}, {("t", 1, 0): PartitionOffsets(10, [(0, 10)])})
    assert verdict.clean
    assert (verdict.produced, verdict.held) == (10, 10)


def test_a_missing_offset_is_lost_and_reported() -> None:
    verdict = judge({("t", 1): TopicLife("t", {0: 10})}, {("t", 1, 0): PartitionOffsets(7, [(0, 4), (7, 10)])})
    assert (verdict.lost, verdict.clean) == (3, False)
    assert verdict.said == ["t/0 (life 1): offsets [4, 7) are nowhere in the lake"]


def test_an_offset_that_is_there_twice_is_said() -> None:
    verdict = judge({("t", 1): TopicLife("t", {0: 10})}, {("t", 1, 0): PartitionOffsets(12, [(0, 10)])})
    assert (verdict.twice, verdict.clean) == (2, False)


def test_rows_that_were_not_produced_are_reported() -> None:
    life = {("t", 1): TopicLife("t", {0: 10})}
    assert judge(life, {("t", 1, 0): PartitionOffsets(11, [(0, 11)])}).unknown == 1
    assert (
        judge(life, {("t", 1, 0): PartitionOffsets(10, [(0, 10)]), ("t", 2, 0): PartitionOffsets(5, [(0, 5)])}).unknown
        == 5
    )


def test_records_that_retention_took_are_no_loss_and_the_rest_are() -> None:
    life = TopicLife("t", {0: 10}, taken={0: [(0, 5)]})
    verdict = judge({("t", 1): life}, {("t", 1, 0): PartitionOffsets(6, [(0, 2), (6, 10)])})
    assert (verdict.taken, verdict.lost) == (3, 1)


def test_the_end_of_a_deleted_topic_is_no_loss_and_a_missing_offset_before_it_is() -> None:
    life = TopicLife("t", {0: 10, 1: 10}, deleted=True)
    held = {("t", 1, 0): PartitionOffsets(6, [(0, 6)]), ("t", 1, 1): PartitionOffsets(5, [(0, 2), (3, 6)])}
    verdict = judge({("t", 1): life}, held)
    assert (verdict.died, verdict.lost) == (8, 1)


def test_a_life_without_rows_that_is_not_over_is_lost() -> None:
    assert judge({("t", 2): TopicLife("t", {0: 10})}, {}).lost == 10


def test_offsets_are_read_as_intervals_with_their_doubles(tmp_path: Path) -> None:
    table = tmp_path / "t"
    (table / "_delta_log").mkdir(parents=True)
    source = "SELECT 't' AS _topic, 1 AS _incarnation, 0 AS _partition, unnest([0, 1, 2, 5, 5, 6]) AS _offset"
    duckdb.execute(f"COPY ({source}) TO '{table / 'a.parquet'}' (FORMAT parquet)")
    entry = {"add": {"path": "a.parquet", "size": 1, "partitionValues": {}}}
    (table / "_delta_log" / f"{0:020}.json").write_text(json.dumps(entry))
    assert read_offsets([table]) == {("t", 1, 0): PartitionOffsets(6, [(0, 3), (5, 7)])}


def test_local_storage_fails_as_it_is_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trouble = tmp_path / "trouble"
    monkeypatch.setenv("HEADRACE_TROUBLE", str(trouble))
    store = LocalStore(str(tmp_path / "lake"))
    store.put("before", b"1")
    trouble.write_text("1 0")
    seen = set()
    for turn in range(40):
        with pytest.raises(StoreError) as failed:
            store.put(f"{turn}", b"1")
        seen.add(isinstance(failed.value, OutcomeUnknown))
    assert seen == {False, True}
    trouble.unlink()
    assert store.read("before") is not None
