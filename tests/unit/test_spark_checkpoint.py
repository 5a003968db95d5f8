"""What a checkpoint of Spark's says, and what is done about it. Directories as Spark writes them, by hand."""

import shutil

import pytest

from headrace.writer.core.errors import CheckpointUnusable
from headrace.writer.offsets.spark_checkpoint import Checkpoints, NewRun, NextBatch, Resume, decide
from headrace.writer.offsets.start_decision import Refuse
from headrace.writer.storage.base import Unanswered
from headrace.writer.storage.local import LocalStore
from tests.support.checkpoint_files import CheckpointRun

A, B = ("clicks", 0), ("clicks", 1)
REPLACED = NewRun(4, "run 3 planned a batch that this version of Spark cannot read again")
AHEAD = Refuse("run 3 would continue clicks/0 at offset 6, but the table ends at 5: 1 offset would be skipped")


@pytest.mark.parametrize(
    ("newest", "planned", "frontier", "decision"),
    [
        (None, None, {}, NewRun(1, "there is no checkpoint")),
        (None, None, {A: 5}, NewRun(1, "there is no checkpoint")),
        (3, None, {A: 5}, NewRun(4, "run 3 planned no batch")),
        (3, NextBatch({A: 5, B: 7}, None), {A: 5, B: 7}, Resume(3)),
        (3, NextBatch({A: 5, B: 7}, {A: 9, B: 7}), {A: 5, B: 7}, Resume(3)),
        (3, NextBatch({A: 5, B: 7}, {A: 9, B: 8}), {A: 9, B: 8}, Resume(3)),  # in the table, and Spark does not know
        (3, NextBatch({A: 5, B: 7}, {A: 9, B: 8}), {A: 9, B: 7}, NewRun(4, "run 3 is older than the table")),
        (3, NextBatch({A: 5, B: 7}, {A: 9, B: 8}), {A: 10, B: 8}, NewRun(4, "run 3 is older than the table")),
        (3, NextBatch({A: 5, B: 7}, None), {A: 6, B: 7}, NewRun(4, "run 3 is older than the table")),
        (3, NextBatch({A: 5}, None), {A: 5, B: 7}, NewRun(4, "run 3 knows other partitions than the table")),
        (3, NextBatch({A: 5, B: 0}, None), {A: 5}, NewRun(4, "run 3 knows other partitions than the table")),
        (3, NextBatch({A: 5}, None), {}, NewRun(4, "run 3 knows other partitions than the table")),
        (3, NextBatch({A: 9, B: 7}, None), {A: 5, B: 7},
         Refuse("run 3 would continue clicks/0 at offset 9, but the table ends at 5: 4 offsets would be skipped")),
        (3, NextBatch({A: 4, B: 9}, {A: 5, B: 9}), {A: 5, B: 7},
         Refuse("run 3 would continue clicks/1 at offset 9, but the table ends at 7: 2 offsets would be skipped")),
        (3, NextBatch({A: 9}, None), {A: 5, B: 7},
         Refuse("run 3 would continue clicks/0 at offset 9, but the table ends at 5: 4 offsets would be skipped")),
    ],
)  # fmt: skip
def test_the_decision_between_the_checkpoint_and_a_new_run(newest, planned, frontier, decision):
    assert decide(newest, planned, frontier) == decision


@pytest.mark.parametrize(
    ("planned", "decision"),
    [
        (NextBatch({A: 5, B: 7}, None), Resume(3)),
        # To be read, and in the table already.
        (NextBatch({A: 5, B: 7}, {A: 9, B: 7}), REPLACED),
        (NextBatch({A: 3, B: 7}, {A: 5, B: 7}), REPLACED),
        (NextBatch({A: 6, B: 7}, {A: 9, B: 7}), AHEAD),
    ],
)
def test_a_spark_that_cannot_replay_a_planned_batch_begins_a_new_run(planned, decision):
    assert decide(3, planned, {A: 5, B: 7}, can_replay=False) == decision


# --- directories ------------------------------------------------------------------------------------------------


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(str(tmp_path), "clicks")


def test_the_newest_run_has_the_highest_number(checkpoints, tmp_path):
    assert checkpoints.newest() is None
    for number in (2, 10, 9):
        CheckpointRun(tmp_path, number)
    (tmp_path / "clicks" / "old").mkdir()
    (tmp_path / "clicks" / "000099").write_text("a file")
    assert checkpoints.newest() == 10
    assert checkpoints.path(10) == f"{tmp_path}/clicks/000010"


def test_a_run_that_planned_nothing_says_nothing(checkpoints, tmp_path):
    assert checkpoints.next_batch(7) is None
    CheckpointRun(tmp_path).started(0, 0)
    assert checkpoints.next_batch(1) is None


def test_a_first_batch_begins_at_the_start_of_the_source(checkpoints, tmp_path):
    CheckpointRun(tmp_path).started(3, 4).planned(0, 5, 4)
    assert checkpoints.next_batch(1) == NextBatch({A: 3, B: 4}, {A: 5, B: 4})


def test_a_committed_batch_is_where_the_next_begins(checkpoints, tmp_path):
    CheckpointRun(tmp_path).started(0, 0).planned(0, 5, 4).committed(0)
    assert checkpoints.next_batch(1) == NextBatch({A: 5, B: 4}, None)


def test_a_batch_that_was_only_planned_begins_at_the_one_before(checkpoints, tmp_path):
    run = CheckpointRun(tmp_path).started(0, 0)
    for batch in range(12):
        run.planned(batch, batch, 2 * batch).committed(batch)
    run.planned(12, 40, 50)
    assert checkpoints.next_batch(1) == NextBatch({A: 11, B: 22}, {A: 40, B: 50})
    assert checkpoints.batch_offsets(1, 12) == ({A: 11, B: 22}, {A: 40, B: 50})


def test_a_partition_that_is_new_in_a_batch_starts_at_zero(checkpoints, tmp_path):
    CheckpointRun(tmp_path).started(7).planned(0, 9).committed(0).planned(1, 9, 3)
    assert checkpoints.batch_offsets(1, 1) == ({A: 9, B: 0}, {A: 9, B: 3})


# --- damage -----------------------------------------------------------------------------------------------------


def damaged(run: CheckpointRun, name: str, content: bytes | None) -> None:
    path = run.path / name
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)


GARBAGE = [
    b"", b"\n", b"v1", b"v1\n", b"v2\n{}\n{}", b"v1\n{}\n{", b"v1\n{}\n[]", b"v1\n{}\n5", b"v1\n{}\nnull",
    b"\xff\xfe\x00",
    b'v1\n{}\n{"clicks": 5}', b'v1\n{}\n{"clicks": {"zero": 5}}', b'v1\n{}\n{"clicks": {"0": "five"}}',
    b'v1\n{}\n{"clicks": {"0": null}}', b'v1\n{}\n{"clicks": {"0": [5]}}', b'v1\n{}\n{"clicks": {"0": -5}}',
    b'v1\n{}\n{"clicks": {"0": 1.5}}', b'v1\n{}\n{"clicks": {"0": true}}',
]  # fmt: skip


@pytest.mark.parametrize("content", [*GARBAGE, None], ids=repr)
@pytest.mark.parametrize("name", ["offsets/2", "offsets/1", "sources/0/0"])
def test_a_damaged_file_makes_the_checkpoint_unusable_and_is_named(checkpoints, tmp_path, name, content):
    run = CheckpointRun(tmp_path).started(0, 0).planned(0, 5, 4)
    if not name.startswith("sources"):
        run.committed(0).planned(1, 6, 4).committed(1).planned(2, 7, 4)
    if content is not None and name.startswith("sources"):
        content = b"\0" + content.replace(b"\n{}", b"", 1)
    damaged(run, name, content)
    if name == "offsets/2" and content is None:  # as if the batch had never been planned
        assert checkpoints.next_batch(1) == NextBatch({A: 6, B: 4}, None)
        return
    with pytest.raises(CheckpointUnusable) as unusable:
        checkpoints.next_batch(1)
    assert str(unusable.value).startswith(f"checkpoint {run.path}: {name} ")
    assert unusable.value.exit_code == 3


@pytest.mark.parametrize(
    ("planned", "committed", "said"),
    [
        ([], [0], "offsets/ is empty, but commits/ is not"),
        ([0, 1, 2], [0], "offsets end at batch 2, commits at 0: batches between are in doubt"),
        ([0], [0, 1], "offsets end at batch 0, commits at 1: batches between are in doubt"),
        ([2], [0, 1], "offsets/1 cannot be read"),
        ([1], [], "offsets/0 cannot be read"),
    ],
)
def test_batches_that_do_not_follow_each_other_make_the_checkpoint_unusable(
    checkpoints, tmp_path, planned, committed, said
):
    run = CheckpointRun(tmp_path).started(0)
    for batch in planned:
        run.planned(batch, batch)
    for batch in committed:
        run.committed(batch)
    with pytest.raises(CheckpointUnusable) as unusable:
        checkpoints.next_batch(1)
    assert f"checkpoint {run.path}: {said}" in str(unusable.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("metadata", "metadata is a directory"),
        ("offsets/2", "offsets/2 is a directory"),
        ("offsets/3", "offsets/3 is a directory"),
        ("commits/2", "commits/2 is a directory"),
        ("offsets/1", "offsets/1 is a directory"),
    ],
)
def test_a_directory_where_spark_has_a_file_makes_the_checkpoint_unusable(checkpoints, tmp_path, name, said):
    run = (
        CheckpointRun(tmp_path)
        .started(0, 0)
        .planned(0, 5, 4)
        .committed(0)
        .planned(1, 6, 4)
        .committed(1)
        .planned(2, 7, 4)
    )
    (run.path / name).unlink(missing_ok=True)
    (run.path / name).mkdir()
    with pytest.raises(CheckpointUnusable) as unusable:
        checkpoints.next_batch(1)
    assert str(unusable.value).startswith(f"checkpoint {run.path}: {said}, where Spark has a file. ")


@pytest.mark.parametrize("folder", ["offsets", "commits", "sources"])
def test_a_file_where_spark_has_a_directory_makes_the_checkpoint_unusable(checkpoints, tmp_path, folder):
    run = CheckpointRun(tmp_path).started(0, 0).planned(0, 5, 4)
    shutil.rmtree(run.path / folder)
    (run.path / folder).write_bytes(b"")
    with pytest.raises(CheckpointUnusable) as unusable:
        checkpoints.next_batch(1)
    assert str(unusable.value).startswith(f"checkpoint {run.path}: {folder}")


def test_a_storage_that_does_not_answer_says_nothing_of_the_checkpoint(checkpoints, tmp_path):
    CheckpointRun(tmp_path).started(0, 0).planned(0, 5, 4).committed(0)

    class Silent(LocalStore):
        def read(self, name):
            raise Unanswered("read", name, "503", "Wait.")

    checkpoints.store = Silent(checkpoints.store.location)
    with pytest.raises(Unanswered):
        checkpoints.next_batch(1)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("metadata", b"", "metadata cannot be read"),
        ("metadata", b"{}", "metadata cannot be read"),
        ("commits/1", b"", "commits/1 cannot be read"),
        ("commits/1", b'v1\n{"next', "commits/1 cannot be read"),
        ("offsets/0", b"", "offsets/0 cannot be read"),
        ("offsets/0", None, "offsets/0 cannot be read (there is none)"),
    ],
)
def test_a_checkpoint_on_which_each_start_would_fail_is_refused_at_once(checkpoints, tmp_path, name, content, said):
    run = CheckpointRun(tmp_path).started(0, 0).planned(0, 5, 4).committed(0).planned(1, 6, 4).committed(1)
    damaged(run, name, content)
    with pytest.raises(CheckpointUnusable) as unusable:
        checkpoints.next_batch(1)
    assert said in str(unusable.value)


def test_a_closed_run_is_not_continued_and_none_is_read_where_a_new_one_is_wanted(checkpoints, tmp_path):
    CheckpointRun(tmp_path, 2).started(5).planned(0, 9)
    assert checkpoints.choose({A: 5}, "", 1) == Resume(2)
    assert checkpoints.choose({A: 5}, "", 2) == NewRun(
        3, "run 2 was closed: an earlier start, an adoption or a skip went on from other offsets"
    )
    with pytest.raises(CheckpointUnusable, match="5 offsets would be skipped"):
        checkpoints.choose({A: 0}, "", 1)
    (tmp_path / "clicks/000002/offsets/0").write_text("torn")
    assert checkpoints.choose({A: 5}, "asked for by --new-run", 1) == NewRun(3, "asked for by --new-run")
