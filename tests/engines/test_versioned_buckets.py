"""Buckets that keep old versions, or protect them, serve a store and a table as others do."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen
from uuid import uuid4

import pytest

from headrace.writer.storage.base import Store
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.probe import probe
from headrace.writer.storage.settings import GcsSettings, S3Settings, StoreSettings
from tests.servers.cloud_stores import GcsStore
from tests.servers.faulty import ERROR_THEN_TAKEN, LOST, Faults, proxy
from tests.servers.objects import ObjectServer
from tests.support.fixed_log_writer import TableLocation, carry, judge

pytestmark = [pytest.mark.slow, pytest.mark.engines]


@dataclass(frozen=True)
class VersionedBucket:
    """A bucket that keeps versions. `server`: of the clouds, or of S3."""

    server: Any
    name: str

    @property
    def location(self) -> str:
        """Where a table lies in it."""
        scheme = "s3" if isinstance(self.server, ObjectServer) else "gs"
        return f"{scheme}://{self.name}/lake/clicks"

    def versions(self, key: str) -> int:
        """Return how many versions of a key the bucket has, without marks of deletions."""
        if isinstance(self.server, ObjectServer):
            page = self.server.client().list_object_versions(Bucket=self.name, Prefix=key)
            return len(page.get("Versions", []))
        url = f"{self.server.origin}/storage/v1/b/{self.name}/o?versions=true&prefix={key}"
        with urlopen(url) as answer:
            return len(json.loads(answer.read()).get("items", []))

    def store(self, url: str) -> Store:
        """Return the store of the location, behind a URL."""
        return store_at(self.location, StoreSettings(S3Settings(url), gcs=GcsSettings(url)))


def versioned_s3(server: ObjectServer, *, is_locked: bool) -> VersionedBucket:
    """Make a bucket that keeps versions, and, where it is locked, lets nobody remove one within a day."""
    name = f"versioned-{uuid4().hex[:12]}"
    client: Any = server.client()
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=is_locked)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    if is_locked:
        retention = {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 1}}
        configuration = {"ObjectLockEnabled": "Enabled", "Rule": retention}
        client.put_object_lock_configuration(Bucket=name, ObjectLockConfiguration=configuration)
    return VersionedBucket(server, name)


def versioned_gcs(server: GcsStore) -> VersionedBucket:
    """Make a bucket that keeps versions."""
    name = f"versioned-{uuid4().hex[:12]}"
    document = json.dumps({"name": name, "versioning": {"enabled": True}}).encode()
    url = f"{server.origin}/storage/v1/b?project=headrace"
    with urlopen(Request(url, document, {"Content-Type": "application/json"})):
        return VersionedBucket(server, name)


# The server in Python keeps no versions.
VERSIONED = ["s3", "s3-locked", *(["gs"] if os.environ.get("HEADRACE_TEST_GCS") == "fake-gcs" else [])]


@pytest.fixture(params=VERSIONED)
def bucket(request: pytest.FixtureRequest) -> VersionedBucket:
    if request.param == "gs":
        return versioned_gcs(request.getfixturevalue("on_gcs"))
    return versioned_s3(request.getfixturevalue("on_s3"), is_locked=request.param == "s3-locked")


@pytest.fixture
def faults(bucket: VersionedBucket, tmp_path: Path) -> Iterator[Faults]:
    with proxy(bucket.server.url, tmp_path) as between:
        yield between


def test_a_name_that_was_deleted_is_free_and_is_put_once_more(bucket: VersionedBucket) -> None:
    store = bucket.store(bucket.server.url)
    probe(store, exclusive=True)
    assert list(store.list()) == []
    for content in (b"first", b"second"):
        assert store.put_if_absent("log/1", content)
        assert not store.put_if_absent("log/1", b"another's")
        stored = store.read("log/1")
        assert stored is not None
        assert (stored.content, store.mark("log/1")) == (content, stored.mark)
        assert list(store.list("log")) == ["1"]
        store.delete("log/1")
        store.delete("log/1")
        assert (store.read("log/1"), store.mark("log/1"), list(store.list("log"))) == (None, None, [])
    assert bucket.versions("lake/clicks/log/1") == 2


def test_an_object_that_is_replaced_or_moved_is_read_as_it_is_now(bucket: VersionedBucket) -> None:
    store = bucket.store(bucket.server.url)
    for content in (b"one", b"two"):
        store.put("staged/a", content)
    assert store.move("staged/a", "a")
    assert not store.move("staged/a", "a")
    moved = store.read("a")
    assert moved is not None
    assert moved.content == b"two"
    # MinIO lists a folder as long as it has versions.
    assert [name for name in store.list() if not name.endswith("/")] == ["a"]
    assert list(store.list("staged")) == []
    assert bucket.versions("lake/clicks/staged/a") == 2


@pytest.mark.parametrize("fault", [LOST, ERROR_THEN_TAKEN])
def test_an_answer_that_was_lost_is_found_in_the_newest_version(
    bucket: VersionedBucket, faults: Faults, fault: str
) -> None:
    store = bucket.store(faults.url)
    for _ in range(2):
        faults.first(fault, 1)
        assert store.put_if_absent("log/1", b"ours")
        assert not store.put_if_absent("log/1", b"ours")
        store.delete("log/1")
    assert faults.done == {fault: 2}


@pytest.mark.parametrize("form", ["delta", "parquet"])
def test_a_table_is_exact(bucket: VersionedBucket, tmp_path: Path, form: str) -> None:
    location = TableLocation(tmp_path / "table", bucket.location, bucket.server)
    driver = carry(location.root, location.location, form)
    judge(driver, location.download())
    assert bucket.versions("lake/clicks/_delta_log/" if form == "delta" else "lake/clicks/") > 0
