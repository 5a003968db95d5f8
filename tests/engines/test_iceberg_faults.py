"""A REST catalog that wants a login, and one that fails: Iceberg's own server behind a proxy."""

import logging
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog

from headrace.writer.config.sections.table import Catalog
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.files import StagedFile
from headrace.writer.table.factory import table_at
from headrace.writer.table.log.foreign_writes import CommitFailed
from headrace.writer.table.log.operations.rows import Rewrite
from headrace.writer.table.table import PipelineTable
from tests.servers.catalog_proxy import (
    FAULTS,
    RETRY_AFTER_S,
    THROTTLED,
    CatalogProxy,
    OAuth,
    SigV4,
    catalog_proxy,
)
from tests.servers.iceberg_rest import iceberg_rest
from tests.support.tables import COLUMNS, P0, batch, begin, write_file

pytestmark = [pytest.mark.slow, pytest.mark.engines, pytest.mark.timeout(900)]
HOUR = "2026-11-20T05"
CLIENT, SECRET = "the-writer", "a-secret-that-no-log-may-hold"
Stage = Callable[[int], StagedFile]


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with iceberg_rest(tmp_path_factory.mktemp("rest")) as server:
        yield server


@pytest.fixture
def proxy(upstream: str) -> Iterator[CatalogProxy]:
    with catalog_proxy(upstream) as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return lambda rows: write_file(str(tmp_path / "lake"), HOUR, rows, "iceberg")


def place(url: str, root: Path, **settings: Any) -> CatalogTable:
    catalog = Catalog.model_validate({"type": "rest", "uri": url, **settings})
    return catalog.place(str(root / "lake"), f"lake.{root.name}", is_main=True)


def opened(url: str, root: Path, *, tried: timedelta = timedelta(minutes=2), **settings: Any) -> PipelineTable:
    catalog_table = place(url, root, **settings)
    return table_at("iceberg", str(root / "lake"), "events", catalog=catalog_table, retry_timeout=tried)


def rows(url: str, root: Path) -> int:
    """Count what a reader sees that asks the catalog itself."""
    catalog_table = place(url, root)
    return int(
        load_catalog(catalog_table.catalog, **dict(catalog_table.settings))
        .load_table(catalog_table.identifier)
        .scan()
        .count()
    )


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_the_catalog_does_to_a_request_it_has_each_commit_once(
    proxy: CatalogProxy, upstream: str, tmp_path: Path, stage: Stage, fault: str
) -> None:
    table = opened(proxy.url, tmp_path)
    proxy.next_commits.append(fault)
    table.create(COLUMNS, ["hour"])
    proxy.next_commits.append(fault)
    epoch = begin(table)
    for offset in range(2):
        proxy.next_commits.append(fault)
        table.append(batch(epoch, 10 * offset, 10 * offset + 10, stage(10)), table.snapshot())
    proxy.next_commits.append(fault)
    table.grow([pa.field("price", pa.float64())], epoch)
    proxy.next_commits.append(fault)
    table.append(Rewrite("merge", table.bucket_files(table.snapshot()), [stage(20)]), table.snapshot())
    assert proxy.done[fault] == 6
    next_start = opened(upstream, tmp_path)
    begin(next_start)
    next_start.append(batch(2, 20, 30, stage(10)), next_start.snapshot())
    assert (rows(upstream, tmp_path), next_start.snapshot().frontier(P0)) == (30, 30)
    kinds = [entry.kind for entry in next_start.history()]
    assert kinds == ["batch", "start", "rewrite", "columns", "batch", "batch", "start", "create"]


def test_a_catalog_that_asks_for_time_gets_it_and_the_log_has_one_line_of_it(
    proxy: CatalogProxy, tmp_path: Path, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    table = opened(proxy.url, tmp_path)
    table.create(COLUMNS, ["hour"])
    epoch = begin(table)
    snapshot = table.snapshot()
    caplog.clear()
    proxy.next_commits += [THROTTLED] * 3
    proxy.asked_at.clear()
    table.append(batch(epoch, 0, 10, stage(10)), snapshot)
    waits = [after - before for before, after in zip(proxy.asked_at, proxy.asked_at[1:], strict=False)]
    assert sum(wait >= RETRY_AFTER_S for wait in waits) == 3
    assert caplog.text.count("WARNING catalog_unanswered") == 1


def test_a_catalog_that_is_down_holds_a_commit_until_it_is_back(
    proxy: CatalogProxy, upstream: str, tmp_path: Path, stage: Stage
) -> None:
    table = opened(proxy.url, tmp_path)
    table.create(COLUMNS, ["hour"])
    epoch = begin(table)
    snapshot = table.snapshot()
    proxy.go_down(5)
    table.append(batch(epoch, 0, 10, stage(10)), snapshot)
    assert proxy.done["is down"] >= 3
    assert (rows(upstream, tmp_path), table.snapshot().frontier(P0)) == (10, 10)
    brief = opened(proxy.url, tmp_path, retry_timeout="1 s", tried=timedelta(seconds=1))
    proxy.go_down(60)
    with pytest.raises(CommitFailed, match=r"catalog 'headrace' did not answer for table lake\."):
        brief.append(batch(epoch, 10, 20, stage(10)), table.snapshot_at(2))
    proxy.go_down(0)
    assert (rows(upstream, tmp_path), table.snapshot().frontier(P0)) == (10, 10)


# --- logins -------------------------------------------------------------------------------------------------------


@pytest.fixture
def all_logs(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    with caplog.at_level(logging.DEBUG):
        yield caplog


def oauth(secret: str = SECRET) -> dict[str, Any]:
    return {"credential": f"{CLIENT}:{secret}", "options": {"scope": "lake:write"}}


def test_a_client_with_a_secret_gets_tokens_and_renews_them_by_itself(
    upstream: str, tmp_path: Path, all_logs: pytest.LogCaptureFixture
) -> None:
    login = OAuth(CLIENT, SECRET, "lake:write", life_s=1)
    for status in (401, 419):
        login.expired_status, root = status, tmp_path / str(status)
        root.mkdir()
        with catalog_proxy(upstream, login) as proxy:
            table = opened(proxy.url, root, **oauth())
            table.create(COLUMNS, ["hour"])
            epoch, before = begin(table), len(login.given)
            for offset in range(2):
                time.sleep(1.1)
                table.append(
                    batch(epoch, 10 * offset, 10 * offset + 10, write_file(f"{root}/lake", HOUR, 10, "x")),
                    table.snapshot(),
                )
            assert len(login.given) >= before + 2
            assert (rows(upstream, root), table.snapshot().frontier(P0)) == (20, 20)
    assert SECRET not in all_logs.text


@pytest.mark.parametrize("settings", [oauth("another-secret-of-mine"), {"token": "another-secret-of-mine"}])
def test_a_wrong_secret_is_a_sentence_without_it(
    upstream: str, tmp_path: Path, all_logs: pytest.LogCaptureFixture, settings: dict[str, Any]
) -> None:
    with catalog_proxy(upstream, OAuth(CLIENT, SECRET, "lake:write")) as proxy:
        began = time.monotonic()
        with pytest.raises(ConfigError) as error:
            opened(proxy.url, tmp_path, **settings).create(COLUMNS, ["hour"])
        assert time.monotonic() - began < 10, "it is not tried again"
    text = str(error.value)
    assert f"catalog 'headrace' refused the login for table lake.{tmp_path.name}" in text
    assert "Correct catalog.credential or catalog.token" in text
    assert "another-secret-of-mine" not in text + all_logs.text


@pytest.mark.parametrize("kind", ["credential", "token"])
def test_a_right_that_is_revoked_stops_the_commit_by_a_sentence(
    upstream: str, tmp_path: Path, stage: Stage, all_logs: pytest.LogCaptureFixture, kind: str
) -> None:
    login = OAuth(CLIENT, SECRET, "lake:write")
    token = "the-token-of-an-hour"
    login.given[token] = time.monotonic() + 3600
    settings = oauth() if kind == "credential" else {"token": token}
    with catalog_proxy(upstream, login) as proxy:
        table = opened(proxy.url, tmp_path, tried=timedelta(seconds=1), **settings)
        table.create(COLUMNS, ["hour"])
        epoch = begin(table)
        snapshot = table.snapshot()
        table.append(batch(epoch, 0, 10, stage(10)), snapshot)
        snapshot = table.snapshot()
        login.revoke()
        with pytest.raises(CommitFailed, match=f"refused the login for table lake.{tmp_path.name}") as error:
            table.append(batch(epoch, 10, 20, stage(10)), snapshot)
    assert not {SECRET, token} & {word for word in (SECRET, token) if word in str(error.value) + all_logs.text}
    assert rows(upstream, tmp_path) == 10


def test_requests_are_signed_for_aws(
    upstream: str, tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch, all_logs: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    signed = {"options": {"rest.sigv4-enabled": "true", "rest.signing-name": "glue"}}
    with catalog_proxy(upstream, SigV4("the-key", SECRET, "eu-central-1", "glue")) as proxy:
        table = opened(proxy.url, tmp_path, **signed)
        table.create(COLUMNS, ["hour"])
        epoch = begin(table)
        table.append(batch(epoch, 0, 10, stage(10)), table.snapshot())
        assert rows(upstream, tmp_path) == 10
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another-secret-of-mine")
    sentence = r"refused the login.*credentials of AWS"
    with (
        catalog_proxy(upstream, SigV4("the-key", SECRET, "eu-central-1", "glue")) as proxy,
        pytest.raises(ConfigError, match=sentence) as error,
    ):
        opened(proxy.url, tmp_path, **signed).check(["hour"])
    assert not any(word in str(error.value) + all_logs.text for word in (SECRET, "another-secret-of-mine"))
