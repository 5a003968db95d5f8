"""A writer whose tables lie in Google's or Azure's store dies at its commits: no record is lost, and none there twice.

tests/fault/test_storage.py fails every operation, on local disks and S3.
"""

from pathlib import Path

import pytest

from headrace.writer.core.errors import HeadraceError
from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.support import oracle
from tests.support.failing_storage import KILLED_AFTER, KILLED_BEFORE, LOST, Killed, Storage
from tests.support.fixed_log_writer import TableLocation, carry, judge

# What makes rows visible, and what names them: a commit, a data file that is complete, a file's publication.
MOMENTS = ("put_if_absent", "complete", "move")
CloudServer = GcsStore | AzureStore


@pytest.fixture(params=["gs", "az"])
def server(request: pytest.FixtureRequest) -> CloudServer:
    """A server that plays the cloud."""
    started: CloudServer = request.getfixturevalue({"gs": "on_gcs", "az": "on_azure"}[request.param])
    return started


def live(location: TableLocation, form: str, storage: Storage) -> bool:
    """Let a writer carry a fixed log above a storage that may fail. Returns whether it came to its end."""
    with pytest.MonkeyPatch.context() as patch:
        storage.below(patch)
        try:
            carry(location.root, location.location, form)
        except (Killed, HeadraceError, OSError):
            return False
    return True


@pytest.mark.parametrize("mode", [KILLED_BEFORE, KILLED_AFTER, LOST])
@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_writer_that_dies_at_a_commit_loses_nothing_and_writes_nothing_twice(
    tmp_path: Path, server: CloudServer, form: str, mode: str
) -> None:
    def new_location(name: str) -> TableLocation:
        return TableLocation(tmp_path / name, f"{server.bucket()}/lake/clicks", server)  # type: ignore[arg-type]

    whole = Storage()
    assert live(new_location("whole"), form, whole)
    moments = [number for number, operation in enumerate(whole.done) if operation in MOMENTS]
    assert len(moments) > 10
    deaths = 0
    for number in moments:
        location = new_location(str(number))
        storage = Storage(number, mode)
        deaths += not live(location, form, storage)
        assert storage.at < len(storage.done), "the operation never came"
        oracle.check_rows(location.download(), "clicks")
        driver = carry(location.root, location.location, form)
        judge(driver, location.download())
    if mode != LOST:
        assert deaths == len(moments)
