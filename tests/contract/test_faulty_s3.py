"""What happens when S3 throttles, breaks connections, loses answers, or is no S3 that a table can lie on."""

import time
from collections.abc import Iterator
from datetime import timedelta
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.core.files import BucketFile
from headrace.writer.storage.base import NotExclusive, OutcomeUnknown, Store, StoreError, Unanswered
from headrace.writer.storage.local import LocalStore
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.probe import ProbeFailed, StoreSilent, probe
from headrace.writer.storage.settings import S3Settings, StoreSettings
from headrace.writer.table.row_removal import write_remaining_rows
from tests.servers.faulty import (
    DENIED,
    LOST,
    RESET,
    SILENT,
    SLOW_DOWN,
    STRIP,
    UNKNOWN,
    Faults,
    proxy,
)  # fmt: skip
from tests.servers.objects import SECRET, ObjectServer, moto
from tests.support.commits import PARTS, Lake

pytestmark = pytest.mark.slow  # each test has an S3 of its own

RETRY_TIMEOUT = timedelta(seconds=1.5)  # so one request waits half a second for its answer


@pytest.fixture(scope="module")
def between(s3: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Faults]:
    with proxy(s3.url, tmp_path_factory.mktemp("proxy")) as found:
        yield found


@pytest.fixture
def faults(between: Faults) -> Iterator[Faults]:
    between.reset()
    yield between
    between.calm()


@pytest.fixture
def location(s3: ObjectServer) -> str:
    return f"{s3.bucket()}/lake"


@pytest.fixture
def store(faults: Faults, location: str) -> Store:
    return store_at(location, StoreSettings(S3Settings(faults.url, retry_timeout=RETRY_TIMEOUT)))


@pytest.fixture
def retrying_store(faults: Faults, location: str) -> Store:
    return store_at(location, StoreSettings(S3Settings(faults.url, retry_timeout=timedelta(seconds=10))))


@pytest.mark.parametrize("fault", [SLOW_DOWN, RESET, LOST])
@pytest.mark.parametrize("count", [1, 2])
def test_a_passing_fault_of_s3_is_tried_again(retrying_store: Store, faults: Faults, fault: str, count: int) -> None:
    faults.first(fault, count)
    retrying_store.put("a", b"one")
    faults.first(fault, count, "GET")
    stored = retrying_store.read("a")
    faults.first(fault, count, "HEAD")
    assert stored is not None
    assert (stored.content, retrying_store.mark("a")) == (b"one", stored.mark)
    faults.first(fault, count, "DELETE")
    retrying_store.delete("a")
    faults.first(fault, count, "GET")
    assert list(retrying_store.list()) == []
    assert faults.done[fault] == 5 * count


@pytest.mark.parametrize("fault", [LOST, SILENT])
def test_our_own_object_whose_answer_was_lost_is_known_as_ours(
    retrying_store: Store, faults: Faults, fault: str
) -> None:
    faults.first(fault, 1)
    assert retrying_store.put_if_absent("log/1", b"ours")
    assert not retrying_store.put_if_absent("log/1", b"ours")


def test_anothers_object_of_the_same_content_is_known_as_anothers(retrying_store: Store, faults: Faults) -> None:
    assert retrying_store.put_if_absent("log/1", b"same")
    faults.first(LOST, 1)
    assert not retrying_store.put_if_absent("log/1", b"same")
    faults.first(RESET, 2)
    assert not retrying_store.put_if_absent("log/1", b"same")


def test_a_store_that_throttles_for_ever_is_a_clear_failure_within_its_patience(store: Store, faults: Faults) -> None:
    faults.always(SLOW_DOWN)
    began = time.monotonic()
    with pytest.raises(Unanswered) as failed:
        store.read("a")
    assert time.monotonic() - began < 10 * RETRY_TIMEOUT.total_seconds(), "on a busy machine a try takes long"
    assert (failed.value.operation, failed.value.path) == ("read", f"{store.location}/a")
    assert "503 SlowDown (Please reduce your request rate), after" in str(failed.value)
    assert "in 1.5 s (s3.retry_timeout)" in str(failed.value)
    assert faults.done[SLOW_DOWN] <= 9, "pauses grow"


def test_a_put_of_which_nothing_is_known_says_so(store: Store, faults: Faults) -> None:
    faults.always(LOST)
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("log/1", b"ours")
    faults.calm()
    assert store.read("log/1") is not None


def test_a_put_that_never_left_is_known_not_to_be_there(location: str) -> None:
    nobody = store_at(location, StoreSettings(S3Settings("http://127.0.0.1:9", retry_timeout=timedelta(seconds=0.6))))
    with pytest.raises(Unanswered, match=r"Look at the network, and at s3\.endpoint") as failed:
        nobody.put_if_absent("log/1", b"ours")
    assert not isinstance(failed.value, OutcomeUnknown)


def test_a_lasting_fault_of_s3_fails_at_once_and_says_what_to_do(
    store: Store, faults: Faults, s3: ObjectServer
) -> None:
    faults.always(DENIED)
    with pytest.raises(StoreError, match=r"403 SignatureDoesNotMatch .*Give valid credentials") as denied:
        store.put("a", b"")
    assert not any(word in str(denied.value) for word in ("THE-KEY-ID", "THE-STRING", SECRET))
    assert faults.done[DENIED] == 1
    missing = store_at("s3://no-such-bucket/lake", StoreSettings(S3Settings(s3.url, retry_timeout=RETRY_TIMEOUT)))
    with pytest.raises(StoreError, match=r"404 NoSuchBucket .*Make the bucket, or correct the location"):
        missing.put("a", b"")


def test_without_credentials_it_says_where_they_are_looked_for(
    monkeypatch: pytest.MonkeyPatch, location: str, faults: Faults
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nothing")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nothing")
    # The region is another's: a client of its own.
    settings = S3Settings(faults.url, "us-east-2", retry_timeout=RETRY_TIMEOUT)
    bare = store_at(location, StoreSettings(settings))
    with pytest.raises(StoreError, match=r"Unable to locate credentials.*the standard chain of AWS"):
        bare.read("a")


# ---- the probe


@pytest.mark.usefixtures("s3")  # for its credentials
def test_a_store_that_ignores_the_condition_is_refused(tmp_path: Path) -> None:
    with moto(tmp_path) as server, proxy(server.url, tmp_path) as careless:  # who checks signatures misses the header
        store = store_at(
            f"{server.bucket()}/lake", StoreSettings(S3Settings(careless.url, retry_timeout=RETRY_TIMEOUT))
        )
        careless.always(STRIP)
        with pytest.raises(ProbeFailed, match=r"an object be created 5 times .*Choose a store that honours put-if"):
            probe(store, exclusive=True)
        assert server.keys(store.location) == []


def test_a_store_that_does_not_know_the_condition_is_refused(store: Store, faults: Faults) -> None:
    faults.always(UNKNOWN)
    with pytest.raises(ProbeFailed, match="501 NotImplemented"):
        probe(store, exclusive=True)
    faults.first(UNKNOWN, 1)
    with pytest.raises(NotExclusive, match="knows no conditional PUT"):
        store.put_if_absent("log/1", b"")


def test_a_store_that_is_silent_may_be_asked_again_later(store: Store, faults: Faults) -> None:
    faults.always(RESET)
    with pytest.raises(StoreSilent) as silent:
        probe(store, exclusive=True)
    assert silent.value.exit_code == 1


@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails_now_and_then_passes_the_probe(retrying_store: Store, faults: Faults, seed: int) -> None:
    faults.draw(seed, 0.3)
    probe(retrying_store, exclusive=True)
    faults.calm()
    assert list(retrying_store.list()) == []


# ---- tables and files


@pytest.mark.parametrize("seed", range(3))
def test_commits_through_a_storage_that_fails_land_once_each(
    faults: Faults, location: str, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", faults.url)
    lake = Lake(location)
    lake.begin()
    begun = lake.table.snapshot().version
    faults.draw(seed, 0.15)
    versions = [lake.commit(n, n + 1) for n in range(15)]
    lake.table.tidy()
    faults.calm()
    assert versions == list(range(begun + 1, begun + 16))
    assert [commit.version for commit in lake.table.commits_since(begun)] == versions
    assert Lake(location).table.snapshot().frontier(PARTS[0]) == 15
    assert sum(faults.done[fault] for fault in (SLOW_DOWN, RESET, LOST)) > 5


@pytest.mark.parametrize("seed", range(3))
def test_files_are_written_whole_through_a_storage_that_fails(retrying_store: Store, faults: Faults, seed: int) -> None:
    rows = pa.table({"id": pa.array(range(2_000_000)), "more": pa.array(range(2_000_000, 0, -1))})
    to = Destination(retrying_store, ("hour",), "test", 2**30)
    faults.draw(seed, 0.2, (SLOW_DOWN, RESET, LOST))
    path, sink = to.open(("x",))
    pq.write_table(rows, sink, compression="none", use_dictionary=False)
    to.close(path, sink)
    faults.calm()
    filesystem, root = retrying_store.files()
    assert pq.read_table(f"{root}/{path}", filesystem=filesystem, partitioning=None).equals(rows)
    to.remove()
    assert list(retrying_store.list()) == []


class Ended:
    """A file whose end was done, or not, and whose answer was lost: repeated, the store knows no such upload."""

    def __init__(self, sink: Any, *, done: bool) -> None:
        self._sink, self._done = sink, done

    def tell(self) -> int:
        return int(self._sink.tell())

    def close(self) -> None:
        if not self._done:
            self._sink.truncate(1)
        self._sink.close()
        raise OSError("AWS Error NO_SUCH_UPLOAD during CompleteMultipartUpload operation")


@pytest.mark.parametrize("done", [True, False])
def test_an_upload_that_is_over_already_is_judged_by_what_is_there(tmp_path: Path, done: bool) -> None:
    to = Destination(LocalStore(str(tmp_path)), (), "test", 2**30)
    path, sink = to.open(())
    sink.close()
    file = (tmp_path / path).open("wb")
    file.write(b"ten bytes.")
    if done:
        to.close(path, Ended(file, done=True))
        assert (tmp_path / path).read_bytes() == b"ten bytes."
    else:
        with pytest.raises(OSError, match="NO_SUCH_UPLOAD"):
            to.close(path, Ended(file, done=False))


class LostAtTheEnd(FileIO):
    """A file whose content is written, and whose end fails."""

    def close(self) -> None:
        if not self.closed:
            super().close()
            raise OSError("AWS Error INTERNAL_FAILURE during CompleteMultipartUpload operation")


def test_the_rest_of_a_file_is_not_staged_when_its_upload_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"id": [1, 2, 3]}), tmp_path / "whole.parquet")
    sink = pa.PythonFile(LostAtTheEnd(tmp_path / "rest.parquet", "wb"), mode="w")
    monkeypatch.setattr(Destination, "open", lambda *_: ("rest.parquet", sink))
    to = Destination(LocalStore(str(tmp_path)), (), "test", 2**30)
    with pytest.raises(OSError, match="INTERNAL_FAILURE"):
        write_remaining_rows(to, BucketFile("whole.parquet", (), 3, 1), 1, lambda rows: np.arange(rows.num_rows) == 0)
