"""Which older checkpoint is walked back to, when the table does not say how far it has come."""

from datetime import UTC, datetime

import pytest

from headrace.recovery.checkpoints.checks import TopicIds
from headrace.recovery.checkpoints.reader import read_checkpoint
from headrace.recovery.checkpoints.walk_back import (
    Candidate,
    NotRebuilt,
    RebuiltOffsets,
    choose_offsets,
    list_candidates,
)
from headrace.writer.core.offsets import TopicPartition
from headrace.writer.offsets import checkpoint_backups
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.offsets.start_decision import LogRange
from headrace.writer.storage.local import LocalStore
from tests.support.checkpoint_files import CheckpointRun

A, B = TopicPartition("clicks", 1, 0), TopicPartition("clicks", 1, 1)
HELD = {("clicks", 0): LogRange(0, 20), ("clicks", 1): LogRange(0, 20)}
SAME = {"clicks": TopicIds("u1", "u1")}


def at(root, run, *starts):
    """A run whose next batch begins at these offsets."""
    made = CheckpointRun(root, run).started(0, 0).planned(0, *starts).committed(0)
    return Candidate(f"run {run}", run, read_checkpoint(LocalStore(str(made.path))))


@pytest.mark.parametrize(
    ("starts", "committed_since_start", "chosen", "offsets"),
    [
        ([(6, 4)], {A: 6, B: 4}, "run 9", {A: 6, B: 4}),
        ([(5, 4)], {A: 6, B: 4}, "run 9", {A: 6, B: 4}),  # older than the files: these say how far it is
        ([(7, 4), (6, 4)], {A: 6, B: 4}, "run 8", {A: 6, B: 4}),  # what it is beyond the files nobody can prove
        ([(7, 4), (6, 9), (3, 3)], {A: 6, B: 4}, "run 7", {A: 6, B: 4}),
        ([(6, 4)], {A: 6}, "run 9", {A: 6, B: 4}),  # a part without rows: the checkpoint's word
        (
            [(6, 4)],
            {A: 6, B: 4, TopicPartition("clicks", 2, 0): 90},
            "run 9",
            {A: 6, B: 4},
        ),  # of another life of the topic
    ],
)
def test_the_newest_that_agrees_with_the_files_is_taken(tmp_path, starts, committed_since_start, chosen, offsets):
    found = choose_offsets(
        [at(tmp_path, 9 - i, *one) for i, one in enumerate(starts)], committed_since_start, SAME, {"clicks": 1}, HELD
    )
    assert isinstance(found, RebuiltOffsets)
    assert (found.location, found.offsets) == (chosen, offsets)
    assert len(found.rejected) == 9 - int(chosen.split()[1])


@pytest.mark.parametrize(
    ("topics", "held", "said"),
    [
        ({"clicks": TopicIds("u1", "u2")}, HELD, "was created again"),
        ({"clicks": TopicIds("u1", None)}, HELD, "is not there"),
        (SAME, {("clicks", 0): LogRange(7, 20), ("clicks", 1): LogRange(0, 20)}, "no checkpoint"),
        (SAME, {("clicks", 0): LogRange(0, 5), ("clicks", 1): LogRange(0, 20)}, "no checkpoint"),
    ],
)
def test_where_nothing_agrees_a_person_must_say(tmp_path, topics, held, said):
    found = choose_offsets([at(tmp_path, 1, 6, 4)], {A: 6, B: 4}, topics, {"clicks": 1}, held)
    assert isinstance(found, NotRebuilt)
    assert said in found.reason


def test_a_corrupt_checkpoint_and_one_of_other_topics_are_passed_over(tmp_path):
    broken = CheckpointRun(tmp_path, 3).started(0, 0).planned(0, 6, 4).committed(0)
    (broken.path / "offsets/0").write_bytes(b"")
    corrupt = Candidate("torn", 3, read_checkpoint(LocalStore(str(broken.path))))
    found = choose_offsets([corrupt, at(tmp_path, 2, 6, 4)], {A: 6, B: 4}, SAME, {"clicks": 1}, HELD)
    assert isinstance(found, RebuiltOffsets)
    assert found.location == "run 2"
    assert found.rejected == ["torn: offsets/0: it is empty"]
    other = choose_offsets([at(tmp_path, 4, 6, 4)], {}, {"installs": TopicIds(None, "u")}, {"installs": 1}, HELD)
    assert isinstance(other, NotRebuilt)
    assert "other topics: clicks" in other.rejected[0]


def test_runs_come_before_their_copies_and_newer_runs_first(tmp_path):
    checkpoints = Checkpoints(str(tmp_path), "clicks")
    for run in (1, 2):
        CheckpointRun(tmp_path, run).started(0, 0).planned(0, 6, 4).committed(0)
    when = datetime(2026, 11, 22, 1, tzinfo=UTC)
    early, late = (
        checkpoint_backups.back_up(checkpoints.store, 1, 0, when),
        checkpoint_backups.back_up(checkpoints.store, 1, 3, when),
    )
    places = [one.location.removeprefix(f"{tmp_path}/clicks/") for one in list_candidates(checkpoints)]
    assert places == ["000002", "000001", late.folder, early.folder]
