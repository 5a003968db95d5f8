"""Stores that the tests' own S3 does not stand for: one that checks who asks, and one that no table may lie on."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.writer.storage.base import StoreError
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.probe import ProbeFailed, probe
from headrace.writer.storage.settings import S3Settings, StoreSettings
from tests.servers.cloud_stores import bare_fake_gcs
from tests.servers.objects import SECRET, ObjectServer, minio, s3rver
from tests.support.writer_process import Site

pytestmark = [pytest.mark.slow, pytest.mark.engines]


@pytest.fixture
def careless(tmp_path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    """A store that ignores the condition of a PUT."""
    with s3rver(tmp_path) as server:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", server.secret)
        yield server


def test_a_store_that_ignores_put_if_absent_is_refused(careless: ObjectServer) -> None:
    store = store_at(f"{careless.bucket()}/lake", StoreSettings(S3Settings(careless.url, "us-east-1")))
    with pytest.raises(ProbeFailed, match=r"lets an object be created \d times under one name"):
        probe(store, exclusive=True)
    assert list(store.list()) == []


def test_a_store_without_googles_put_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with bare_fake_gcs(tmp_path) as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ProbeFailed, match=r"cannot be used: cannot write gs://.*: 400"):
            probe(store_at(f"{server.bucket()}/lake"), exclusive=True)


def test_validate_says_that_a_store_ignores_put_if_absent(careless: ObjectServer, tmp_path) -> None:
    site = Site(tmp_path, "127.0.0.1:9", "http://127.0.0.1:9")
    site.overrides = {"s3": {"endpoint": careless.url, "region": "us-east-1"}}
    site.pipeline("clicks", ["clicks"], table={"location": f"{careless.bucket()}/clicks"})
    result = subprocess.run(
        [sys.executable, "-m", "headrace.writer.cli", "validate", str(site.config), "--json"],
        capture_output=True, text=True, check=False, timeout=400,
    )  # fmt: skip
    table = next(finding for finding in json.loads(result.stdout)["findings"] if finding["check"] == "table")
    assert result.returncode == 2
    assert (table["status"], "lets an object be created" in table["message"]) == ("failed", True)


def test_a_secret_that_is_wrong_is_refused_and_not_shown(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    with minio(tmp_path) as server:
        location = f"{server.bucket()}/lake"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", server.key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET[::-1])
        settings = S3Settings(server.url, "us-east-1", retry_timeout=timedelta(seconds=7))  # a client of its own
        with pytest.raises(StoreError, match=r"403 SignatureDoesNotMatch.*Give valid credentials") as refused:
            store_at(location, StoreSettings(settings)).read("a")
        assert not any(word in str(refused.value) for word in (SECRET, SECRET[::-1], server.key))
