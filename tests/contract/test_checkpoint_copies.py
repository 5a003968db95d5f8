"""Copies of checkpoints, on a disk and on S3: taken, listed, read, and let go."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from headrace.recovery.checkpoints.reader import read_checkpoint
from headrace.writer.offsets import checkpoint_backups, run_record
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.storage.locations import store_at
from tests.servers.objects import ObjectServer
from tests.support.checkpoint_files import CheckpointRun

pytestmark = pytest.mark.slow
AT = datetime(2026, 11, 22, 1, tzinfo=UTC)


@pytest.fixture(params=["disk", "s3"])
def checkpoints(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoints:
    """A run with two batches done and a torn third, where the parameter says."""
    run = CheckpointRun(tmp_path / "made").started(0, 0).planned(0, 5, 4).committed(0).planned(1, 6, 4).committed(1)
    (run.path / "metadata").write_text('{"id":"a76f7e84-306b-4262-ab49-81df29c41119"}')
    (run.path / "offsets/2").write_bytes(b"v1")
    location = str(tmp_path / "checkpoints")
    if request.param == "s3":
        server: ObjectServer = request.getfixturevalue("on_s3")
        location = f"{server.bucket()}/checkpoints"
    found = Checkpoints(location, "clicks")
    for path in run.path.rglob("*"):
        if path.is_file():
            found.store.put(f"000001/{path.relative_to(run.path).as_posix()}", path.read_bytes())
    return found


def test_a_copy_is_taken_read_and_let_go(checkpoints: Checkpoints) -> None:
    store = checkpoints.store
    copy = checkpoint_backups.back_up(store, 1, 2, AT)
    assert checkpoint_backups.list_backups(store) == [copy]
    assert checkpoints.runs() == [1]
    assert read_checkpoint(store_at(f"{store.location}/{copy.folder}")).start_offsets() == {
        ("clicks", 0): 6,
        ("clicks", 1): 4,
    }
    checkpoint_backups.remove_backup(store, copy)
    checkpoint_backups.remove_backup(store, copy)
    assert checkpoint_backups.list_backups(store) == []


def test_a_run_record_is_kept(checkpoints: Checkpoints) -> None:
    seen = run_record.new_run_record(1, "test", AT, {("clicks", 0): 0}).with_batch(1, run_record.Stamp(7, 3), "an id")
    run_record.write_run_record(checkpoints.store, seen)
    assert run_record.read_run_record(checkpoints.store, 1) == seen
