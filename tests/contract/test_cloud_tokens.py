"""Who gives tokens for Google Cloud Storage and Azure, and the stores that demand them."""

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request, urlopen

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs

from tests.servers.cloud_stores import AzureStore, GcsStore, python_azure, python_gcs
from tests.servers.cloud_tokens import (
    AZURE,
    AZURE_CLIENT_SECRET,
    AZURE_FEDERATED,
    AZURE_MANAGED_IDENTITY,
    CANARIES,
    CLIENT_ID,
    CLIENT_SECRET,
    GCP_METADATA,
    GCP_SERVICE_ACCOUNT,
    GCS,
    SERVICE_ACCOUNT,
    TENANT_ID,
    CloudTokens,
    cloud_tokens,
    is_live,
    make_token,
)
from tests.servers.token_server import JWT_GRANT, JWT_PROOF, SigningKey

pytestmark = pytest.mark.slow  # servers of their own

GCP_KINDS = [GCP_METADATA, GCP_SERVICE_ACCOUNT]
AZURE_KINDS = [AZURE_CLIENT_SECRET, AZURE_FEDERATED, AZURE_MANAGED_IDENTITY]
SCOPE = "https://storage.azure.com/.default"


@pytest.fixture(params=[*GCP_KINDS, *AZURE_KINDS])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(kind: str, tokens: CloudTokens, request: pytest.FixtureRequest) -> GcsStore | AzureStore:
    running: GcsStore | AzureStore
    if kind in AZURE_KINDS:
        running = request.getfixturevalue("demanding_azure")
    else:
        running = request.getfixturevalue("demanding_gcs")
    if kind == GCP_SERVICE_ACCOUNT:
        running.tell(public_key=tokens.public_key)
    return running


@pytest.fixture
def location(
    kind: str, server: GcsStore | AzureStore, tokens: CloudTokens, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """A bucket of a store that demands tokens. What gives them stands in the environment."""
    server.tell(demand_tokens=False)
    made = server.bucket()
    server.tell(demand_tokens=True)
    for name, value in {**server.address, **tokens.environment(kind, tmp_path)}.items():
        monkeypatch.setenv(name, value)
    return made


@pytest.fixture
def bucket(server: GcsStore | AzureStore, location: str) -> Any:
    """obstore's store of the bucket, which finds its credentials in the environment."""
    return server.obstore(location, config={})


def ask(url: str, fields: dict[str, str] | None = None, **headers: str) -> tuple[int, dict[str, Any]]:
    body = urlencode(fields).encode() if fields is not None else None
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        with urlopen(Request(url, body, named)) as answer:
            return answer.status, json.loads(answer.read())
    except HTTPError as error:
        return error.code, json.loads(error.read())


def put(bucket: Any, name: str) -> None:
    obstore.put(bucket, name, b"one", use_multipart=False)


def test_obstore_finds_credentials_of_each_kind(kind: str, bucket: Any, tokens: CloudTokens) -> None:
    put(bucket, "a")
    assert bytes(obstore.get(bucket, "a").bytes()) == b"one"
    # With a service account it signs its own tokens.
    assert tokens.given == ({} if kind == GCP_SERVICE_ACCOUNT else {kind: 1})
    assert not tokens.refused


def test_delta_rs_finds_credentials_of_each_kind(kind: str, location: str, tokens: CloudTokens) -> None:
    rows = pa.table({"id": [1, 2, 3]})
    for _ in range(2):
        write_deltalake(location, rows, mode="append", storage_options={"allow_http": "true"})
    assert DeltaTable(location, storage_options={"allow_http": "true"}).version() == 1
    assert set(tokens.given) == ({kind} - {GCP_SERVICE_ACCOUNT})


@pytest.mark.parametrize("kind", GCP_KINDS)
def test_arrow_finds_googles_credentials(kind: str, server: GcsStore, location: str, tokens: CloudTokens) -> None:
    files = fs.GcsFileSystem(scheme="http", endpoint_override=server.host, retry_time_limit=timedelta(seconds=10))
    with files.open_output_stream(f"{location.removeprefix('gs://')}/a") as out:
        out.write(b"one")
    assert set(tokens.given) == ({kind} - {GCP_SERVICE_ACCOUNT})


@pytest.mark.parametrize("kind", [AZURE_CLIENT_SECRET])
def test_arrow_sends_azures_tokens_over_tls_alone(server: AzureStore, location: str) -> None:
    files = fs.AzureFileSystem(
        account_name=server.account,
        blob_storage_authority=server.host,
        dfs_storage_authority=server.host,
        blob_storage_scheme="http",
        dfs_storage_scheme="http",
        tenant_id=TENANT_ID,
        client_id=CLIENT_ID,
        client_secret=CLIENT_SECRET,
    )
    with pytest.raises(pa.ArrowException, match="not permitted for non TLS") as refused:
        files.open_output_stream(f"{location.removeprefix('az://')}/a")
    assert CLIENT_SECRET not in str(refused.value)


@pytest.mark.parametrize("kind", [GCP_METADATA, *AZURE_KINDS])
def test_obstore_renews_tokens_that_end(kind: str, bucket: Any, tokens: CloudTokens) -> None:
    tokens.life_s = 1
    put(bucket, "a")
    time.sleep(1.1)
    put(bucket, "b")
    assert tokens.given[kind] >= 2
    assert not any(is_live(tokens.tokens[0], cloud) for cloud in (GCS, AZURE))


@pytest.mark.parametrize("kind", [GCP_METADATA, *AZURE_KINDS])
def test_a_token_that_has_ended_is_refused(kind: str, bucket: Any, tokens: CloudTokens) -> None:
    tokens.gives_ended_tokens = True
    with pytest.raises(obstore.exceptions.UnauthenticatedError, match="401") as refused:
        put(bucket, "late")
    assert tokens.given[kind] == 1
    assert not any(canary in str(refused.value) for canary in CANARIES)


@pytest.mark.parametrize("kind", [GCP_SERVICE_ACCOUNT])
def test_a_token_of_another_account_is_refused(server: GcsStore, bucket: Any, tokens: CloudTokens) -> None:
    with cloud_tokens() as others:
        server.tell(public_key=others.public_key)
    with pytest.raises(obstore.exceptions.UnauthenticatedError, match="401") as refused:
        put(bucket, "forged")
    assert tokens.private_key not in str(refused.value)


@pytest.mark.parametrize("kind", AZURE_KINDS)
def test_a_service_that_fails_gives_nothing(bucket: Any, tokens: CloudTokens) -> None:
    tokens.failures = 5
    with pytest.raises(obstore.exceptions.GenericError, match="503"):
        put(bucket, "a")
    assert tokens.given == {}


def test_a_store_that_demands_tokens_refuses_those_without(tmp_path: Path) -> None:
    with python_gcs(tmp_path) as gcs, python_azure(tmp_path) as azure:
        for server in (gcs, azure):
            bucket = server.obstore(server.bucket())
            put(bucket, "a")
            server.tell(demand_tokens=True)
            with pytest.raises(obstore.exceptions.UnauthenticatedError, match="401"):
                put(bucket, "b")


def test_a_token_is_of_one_cloud_and_ends() -> None:
    token = make_token(GCS, time.time() + 60)
    assert (is_live(token, GCS), is_live(token, AZURE)) == (True, False)
    assert not is_live(token, GCS, now_s=time.time() + 61)
    assert not is_live(token.replace(GCS, AZURE), AZURE)
    assert not is_live(make_token(GCS, time.time() - 1), GCS)
    assert not is_live("", GCS)


def test_googles_metadata_server_answers_only_who_says_its_name(tokens: CloudTokens) -> None:
    url = f"{tokens.url}/computeMetadata/v1/instance/service-accounts/default/token"
    assert ask(url)[0] == 401
    status, answer = ask(url, Metadata_Flavor="Google")
    assert (status, is_live(answer["access_token"], GCS), answer["expires_in"]) == (200, True, 3_600)
    assert (tokens.given, tokens.refused) == ({GCP_METADATA: 1}, {GCP_METADATA: 1})


def test_a_service_account_proves_itself_by_its_key(tokens: CloudTokens) -> None:
    url = f"{tokens.url}/google/token"
    claims = {
        "iss": SERVICE_ACCOUNT,
        "scope": "https://www.googleapis.com/auth/devstorage.full_control",
        "aud": url,
        "exp": int(time.time() + 60),
    }

    def status_of(key: SigningKey, **others: object) -> int:
        return ask(url, {"grant_type": JWT_GRANT, "assertion": key.sign({**claims, **others})})[0]

    assert status_of(tokens.account_key) == 200
    assert status_of(SigningKey()) == 401
    assert status_of(tokens.account_key, exp=int(time.time() - 60)) == 401
    assert status_of(tokens.account_key, aud="https://oauth2.example.com/token") == 401
    assert status_of(tokens.account_key, iss="another@headrace-test.iam.gserviceaccount.com") == 401


def test_azure_gives_tokens_for_a_secret_and_for_a_workload(tokens: CloudTokens) -> None:
    url = f"{tokens.url}/{TENANT_ID}/oauth2/v2.0/token"
    client = {"grant_type": "client_credentials", "client_id": CLIENT_ID, "scope": SCOPE}
    workload = tokens.workload_key.sign({"sub": CLIENT_ID, "exp": int(time.time() + 60)})
    proof = {"client_assertion_type": JWT_PROOF}
    assert ask(url, {**client, "client_secret": CLIENT_SECRET})[0] == 200
    assert ask(url, {**client, "client_secret": CLIENT_SECRET[::-1]})[0] == 401
    assert ask(url, {**client, "client_secret": CLIENT_SECRET, "scope": "https://vault.azure.net/.default"})[0] == 401
    assert ask(url, {**client, **proof, "client_assertion": workload})[0] == 200
    assert ask(url, {**client, **proof, "client_assertion": SigningKey().sign({"sub": CLIENT_ID})})[0] == 401
    assert ask(f"{tokens.url}/another-tenant/oauth2/v2.0/token", client)[0] == 404
    assert tokens.given == {AZURE_CLIENT_SECRET: 1, AZURE_FEDERATED: 1}


def test_a_managed_identity_is_asked_with_a_header(tokens: CloudTokens) -> None:
    url = f"{tokens.url}/metadata/identity/oauth2/token?resource=https%3A%2F%2Fstorage.azure.com"
    assert ask(url)[0] == 401
    status, answer = ask(url, Metadata="true")
    assert (status, is_live(answer["access_token"], AZURE), answer["expires_in"]) == (200, True, "3600")
