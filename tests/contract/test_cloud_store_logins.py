"""A store of Google or Azure finds the credentials of each kind, for small objects and data files, and renews them."""

import logging
import time
import traceback
from datetime import timedelta
from pathlib import Path

import pytest

from headrace.writer.storage.base import Store, StoreError
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.probe import probe
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings
from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.servers.cloud_tokens import (
    AZURE_CLIENT_SECRET,
    AZURE_FEDERATED,
    AZURE_MANAGED_IDENTITY,
    CANARIES,
    GCP_METADATA,
    GCP_SERVICE_ACCOUNT,
    CloudTokens,
)
from tests.support.cloud_logins import CLOUD_LOGINS, JWT, cloud_login

pytestmark = pytest.mark.slow  # servers of their own

AZURE_KINDS = [AZURE_CLIENT_SECRET, AZURE_FEDERATED, AZURE_MANAGED_IDENTITY]
TIMEOUT = timedelta(seconds=5)
SETTINGS = StoreSettings(gcs=GcsSettings(retry_timeout=TIMEOUT), azure=AzureSettings(retry_timeout=TIMEOUT))


@pytest.fixture(params=[GCP_METADATA, GCP_SERVICE_ACCOUNT, *AZURE_KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(
    kind: str,
    tokens: CloudTokens,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Store:
    """A store that demands tokens. What gives them stands in the environment."""
    name = "demanding_azure" if kind in AZURE_KINDS else "demanding_gcs"
    server: GcsStore | AzureStore = request.getfixturevalue(name)
    if kind == GCP_SERVICE_ACCOUNT:
        server.tell(public_key=tokens.public_key)
    server.tell(demand_tokens=False)
    bucket = server.bucket()
    server.tell(demand_tokens=True)
    for variable, value in {**server.address, **tokens.environment(kind, tmp_path)}.items():
        monkeypatch.setenv(variable, value)
    return store_at(f"{bucket}/lake", SETTINGS)


def test_credentials_of_each_kind_are_found(store: Store) -> None:
    probe(store, exclusive=True)
    filesystem, root = store.files()
    with filesystem.open_output_stream(f"{root}/a") as out:
        out.write(b"one")
    with filesystem.open_input_file(f"{root}/a") as source:
        assert source.read() == b"one"
    assert list(store.list()) == ["a"]
    store.delete("a")
    assert list(store.list()) == []


@pytest.mark.parametrize("kind", [GCP_METADATA, *AZURE_KINDS])
def test_tokens_that_end_are_renewed(kind: str, store: Store, tokens: CloudTokens) -> None:
    tokens.life_s = 1
    store.put("a", b"1")
    time.sleep(1.1)
    store.put("b", b"1")
    assert tokens.given[kind] >= 2


# Google's metadata server is asked at a second, fixed address when it fails, which no test can play.
@pytest.mark.parametrize("kind", AZURE_KINDS)
def test_a_token_service_that_fails_for_a_moment_is_asked_again(store: Store, tokens: CloudTokens) -> None:
    tokens.failures = 2
    assert store.put_if_absent("log/1", b"ours")
    assert not store.put_if_absent("log/1", b"ours")


@pytest.mark.parametrize("kind", [GCP_METADATA, *AZURE_KINDS])
def test_a_token_that_is_refused_is_told_with_what_to_grant(kind: str, store: Store, tokens: CloudTokens) -> None:
    tokens.gives_ended_tokens = True
    role = "Storage Blob Data Contributor" if kind in AZURE_KINDS else r"roles/storage\.objectUser"
    with pytest.raises(StoreError, match=f"401 .*{role}") as refused:
        store.put("a", b"1")
    assert not any(canary in str(refused.value) for canary in (*CANARIES, *tokens.tokens))


@pytest.mark.parametrize("login_kind", CLOUD_LOGINS)
def test_no_error_and_no_log_line_of_a_refused_login_shows_a_credential(
    login_kind: str,
    tokens: CloudTokens,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    name = "demanding_azure" if login_kind.startswith("azure") else "demanding_gcs"
    server: GcsStore | AzureStore = request.getfixturevalue(name)
    server.tell(demand_tokens=False)
    location = f"{server.bucket()}/lake"
    login = cloud_login(login_kind, server, location, tokens, tmp_path)
    for variable, value in {**server.address, **login.environment}.items():
        monkeypatch.setenv(variable, value)
    caplog.set_level(logging.DEBUG)
    tokens.life_s = 1
    store = store_at(location, SETTINGS)
    store.put("a", b"1")
    login.refuse()
    time.sleep(1.1)
    with pytest.raises(StoreError, match=r"401|403") as refused:
        store.put("b", b"1")
    filesystem, root = store.files()
    with pytest.raises(OSError, match=r"401|403") as of_file:
        filesystem.open_input_file(f"{root}/a")
    shown = [caplog.text]
    for error in (refused.value, of_file.value):
        shown += [repr(error), "".join(traceback.format_exception(error))]
    for text in shown:
        assert not [secret for secret in login.secrets if secret in text]
        assert not JWT.search(text)
