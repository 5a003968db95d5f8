"""Which checkpoint a start continues, and what it refuses."""

import json
from pathlib import Path

import pytest

from writer.checkpoint import Checkpoints, NewRun, Planned, Refuse, Resume, decide
from writer.errors import CheckpointUnusable

A, B = ("clicks", 0), ("clicks", 1)
TABLE = {A: 10, B: 20}


@pytest.mark.parametrize(
    ("newest", "planned", "decision"),
    [
        (None, None, NewRun(1, "there is no checkpoint")),
        (3, None, NewRun(4, "run 3 planned no batch")),
        (3, Planned({A: 10, B: 20}, None), Resume(3)),
        (3, Planned({A: 5, B: 20}, {A: 10, B: 20}), Resume(3)),  # committed, only Spark does not know
        (3, Planned({A: 10, B: 20}, {A: 15, B: 25}), Resume(3)),  # planned, not committed
        (3, Planned({A: 5, B: 20}, None), NewRun(4, "run 3 is older than the table")),
        (3, Planned({A: 5, B: 20}, {A: 7, B: 20}), NewRun(4, "run 3 is older than the table")),
        (3, Planned({A: 10}, None), NewRun(4, "run 3 knows other partitions than the table")),
    ],
)
def test_the_decision(newest: int | None, planned: Planned | None, decision: Resume | NewRun) -> None:
    assert decide(newest, planned, TABLE) == decision


def test_a_checkpoint_ahead_of_the_table_is_refused_with_the_loss() -> None:
    decision = decide(3, Planned({A: 10, B: 25}, None), TABLE)
    assert isinstance(decision, Refuse)
    assert "clicks/1 at offset 25, but the table ends at 20: 5 records would be lost" in decision.reason


def written(root: Path, run: int, name: str, text: str) -> None:
    path = root / "events" / f"{run:06d}" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def offsets(a: int, b: int) -> str:
    return "v1\n" + json.dumps({"batchWatermarkMs": 0}) + "\n" + json.dumps({"clicks": {"0": a, "1": b}})


@pytest.fixture
def checkpoints(tmp_path: Path) -> Checkpoints:
    written(tmp_path, 2, "sources/0/0", "\0v1\n" + json.dumps({"clicks": {"0": 1, "1": 2}}))
    written(tmp_path, 2, "offsets/0", offsets(5, 6))
    written(tmp_path, 2, "offsets/1", offsets(8, 9))
    written(tmp_path, 2, "commits/0", 'v1\n{"nextBatchWatermarkMs":0}')
    return Checkpoints(str(tmp_path), "events")


def test_no_directory_is_no_run(tmp_path: Path) -> None:
    assert Checkpoints(str(tmp_path), "events").newest() is None


def test_a_planned_batch_is_read_again(checkpoints: Checkpoints) -> None:
    assert checkpoints.newest() == 2
    assert checkpoints.planned(2) == Planned({A: 5, B: 6}, {A: 8, B: 9})


def test_a_finished_batch_is_followed_by_the_next(checkpoints: Checkpoints, tmp_path: Path) -> None:
    written(tmp_path, 2, "commits/1", "v1\n{}")
    assert checkpoints.planned(2) == Planned({A: 8, B: 9}, None)


def test_the_first_batch_starts_where_the_source_was_seeded(checkpoints: Checkpoints) -> None:
    assert checkpoints.range(2, 0) == ({A: 1, B: 2}, {A: 5, B: 6})


def test_a_partition_that_is_new_in_a_batch_starts_at_zero(checkpoints: Checkpoints, tmp_path: Path) -> None:
    grown = "v1\n{}\n" + json.dumps({"clicks": {"0": 8, "1": 9, "2": 4}})
    written(tmp_path, 2, "offsets/1", grown)
    start, _ = checkpoints.range(2, 1)
    assert start == {A: 5, B: 6, ("clicks", 2): 0}


@pytest.mark.parametrize("text", ["", "v1\n", "v1\n{}\n", "v2\n{}\n{}", "v1\n{}\n[1]", 'v1\n{}\n{"clicks": {"0": '])
def test_a_damaged_file_is_named_with_the_mend(checkpoints: Checkpoints, tmp_path: Path, text: str) -> None:
    written(tmp_path, 2, "offsets/1", text)
    with pytest.raises(CheckpointUnusable, match=r"offsets/1 .*`headrace run --new-run`") as caught:
        checkpoints.planned(2)
    assert caught.value.exit_code == 3


def test_batches_in_doubt_are_refused(checkpoints: Checkpoints, tmp_path: Path) -> None:
    written(tmp_path, 2, "offsets/3", offsets(10, 11))
    with pytest.raises(CheckpointUnusable, match="batches between are in doubt"):
        checkpoints.planned(2)


def test_commits_without_offsets_are_refused(tmp_path: Path) -> None:
    written(tmp_path, 1, "commits/4", "v1\n{}")
    with pytest.raises(CheckpointUnusable, match="offsets/ is empty, but commits/ is not"):
        Checkpoints(str(tmp_path), "events").planned(1)
