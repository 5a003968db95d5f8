"""Stores that speak the interfaces of Google Cloud Storage and Azure Blob Storage, each a process of its own.

The servers in Python need nothing but Python. fake-gcs-server and Azurite are fetched by `make test-stores`.
"""

import json
import os
import re
import sys
from base64 import b64encode
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.error import HTTPError
from urllib.parse import quote, urlencode, urlsplit
from urllib.request import Request, urlopen
from uuid import uuid4
from xml.etree import ElementTree as ET

from tests.servers.azure_keys import container_sas, sign_text, text_to_sign
from tests.servers.cloud_http import CONTROL, Behaviour

FAKE_GCS = "fake-gcs-server-v1.56.1"
AZURITE = "azurite-3.37.0"
ACCOUNT = "headracetest"
# A canary that no log may hold.
KEY = b64encode(b"canary: the key of an account of Azure, which no log may hold...").decode()
_URL = r"http://[\d.]+:\d+"
_ARROW_FILES = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
_RETRY_TIMEOUT = timedelta(seconds=30)
# Fixtures of the servers, and of those that a test may tell how to behave: Azurite does as it likes.
CLOUDS = ("gs", "az")
SERVERS = ("gcs", "azure")
PLAYED_SERVERS = ("gcs", "played_azure" if os.environ.get("HEADRACE_TEST_AZURE") == "azurite" else "azure")


class CloudStore(Protocol):
    """What tests may use of a store, as of `tests.servers.objects.ObjectServer`.

    `url`: where clients find it, which may be a proxy's; the methods here ask the server itself.
    """

    url: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which object_store finds the store and its credentials."""

    @property
    def address(self) -> dict[str, str]:
        """The same without credentials."""

    @property
    def delta_options(self) -> dict[str, str]:
        """Options of delta-rs."""

    @property
    def iceberg_options(self) -> dict[str, str]:
        """Properties of pyiceberg, with Arrow's file system."""

    def behind(self, url: str) -> Self:
        """Return the store as clients find it behind a proxy at a URL."""

    def bucket(self, name: str = "") -> str:
        """Make a bucket, by default one of its own. Returns its location."""

    def remove_bucket(self, location: str) -> None:
        """Remove a bucket with all that it holds."""

    def keys(self, location: str, page_max: int = 1_000) -> list[str]:
        """Keys below a location, relative to it, in order. `page_max`: so many are asked for at once."""

    def read(self, location: str) -> bytes:
        """Return the content of an object. Raises FileNotFoundError."""

    def metadata(self, location: str) -> dict[str, str]:
        """Return an object's own metadata."""

    def download(self, location: str, into: Path) -> None:
        """Copy what lies below a location into a directory, for judges that read files."""

    def obstore(self, location: str, retries: int = 0, **options: Any) -> Any:
        """Return obstore's store of a location."""

    def arrow(self) -> Any:
        """Return Arrow's file system; its paths begin with the bucket."""

    def tell(self, **behaviour: bool | int | str) -> None:
        """Tell a server in Python how to behave (`cloud_http.Behaviour`)."""

    @property
    def asked(self) -> Counter[str]:
        """Method → how many requests have come to `url`: to a server in Python, or a proxy of `faulty`."""


@dataclass(frozen=True)
class GcsStore:
    """A server that speaks the interfaces of Google Cloud Storage."""

    url: str
    origin: str

    @property
    def host(self) -> str:
        """Address and port."""
        return urlsplit(self.url).netloc

    @property
    def address(self) -> dict[str, str]:
        """The variable by which object_store finds the server."""
        return {"GOOGLE_BASE_URL": self.url}

    @property
    def service_account_key(self) -> str:
        """The key of an account that asks for no token: object_store heeds `skip_signature` only where it reads."""
        account = {"client_email": "", "private_key": "", "private_key_id": ""}
        return json.dumps({"gcs_base_url": self.url, "disable_oauth": True, **account})

    @property
    def environment(self) -> dict[str, str]:
        """Variables by which object_store finds the server, and asks for no token."""
        # The writer takes an address without TLS only where it is told of it.
        return {**self.address, "GOOGLE_SERVICE_ACCOUNT_KEY": self.service_account_key}

    @property
    def delta_options(self) -> dict[str, str]:
        """Options of delta-rs."""
        return {"google_service_account_key": self.service_account_key, "allow_http": "true"}

    @property
    def iceberg_options(self) -> dict[str, str]:
        """Properties of pyiceberg, with Arrow's file system."""
        # It asks the metadata server for a token if it has none.
        token = {"gcs.oauth2.token": "none", "gcs.oauth2.token-expires-at": "4102444800000"}
        return {**_ARROW_FILES, "gcs.service.host": self.url, **token}

    def behind(self, url: str) -> "GcsStore":
        """Return the store behind a proxy."""
        return replace(self, url=url)

    def bucket(self, name: str = "") -> str:
        """Make a bucket, by default one of its own. Returns its location."""
        name = name or f"bucket-{uuid4().hex[:12]}"
        self._ask("POST", "/storage/v1/b?project=headrace", json.dumps({"name": name}).encode())
        return f"gs://{name}"

    def remove_bucket(self, location: str) -> None:
        """Remove a bucket with all that it holds."""
        for key in self.keys(location):
            self._ask("DELETE", _gcs_path(f"{location}/{key}"))
        self._ask("DELETE", f"/storage/v1/b/{_split(location)[0]}")

    def keys(self, location: str, page_max: int = 1_000) -> list[str]:
        """Keys below a location, relative to it, in order."""
        bucket, prefix = _split(location)
        prefix = f"{prefix}/" if prefix else ""
        query = {"prefix": prefix, "maxResults": str(page_max)}
        names: list[str] = []
        while True:
            page = json.loads(self._ask("GET", f"/storage/v1/b/{bucket}/o?{urlencode(query)}"))
            names += [item["name"].removeprefix(prefix) for item in page.get("items", [])]
            if not page.get("nextPageToken"):
                return names
            query["pageToken"] = page["nextPageToken"]

    def read(self, location: str) -> bytes:
        """Return the content of an object. Raises FileNotFoundError."""
        return self._ask("GET", f"{_gcs_path(location)}?alt=media")

    def metadata(self, location: str) -> dict[str, str]:
        """Return an object's own metadata."""
        return dict(json.loads(self._ask("GET", _gcs_path(location))).get("metadata") or {})

    def download(self, location: str, into: Path) -> None:
        """Copy what lies below a location into a directory."""
        _download(self, location, into)

    def obstore(self, location: str, retries: int = 0, **options: Any) -> Any:
        """Return obstore's store of a location. With tokens: `config={"base_url": …}`."""
        from obstore.store import GCSStore

        bucket, prefix = _split(location)
        # The address stands beside the key too: that of the environment has precedence over the key's.
        config = options.pop("config", {"service_account_key": self.service_account_key, "base_url": self.url})
        return GCSStore(bucket, prefix=prefix or None, config=config, **_client_options(retries), **options)

    def arrow(self) -> Any:
        """Return Arrow's file system."""
        from pyarrow import fs

        return fs.GcsFileSystem(
            anonymous=True, scheme="http", endpoint_override=self.host, retry_time_limit=timedelta(seconds=10)
        )

    def unended_uploads(self, location: str) -> list[str]:
        """Keys of a bucket whose uploads by the XML API have not ended."""
        page = ET.fromstring(self._ask("GET", f"/{_split(location)[0]}?uploads"))
        return [key.text or "" for key in page.iterfind("Upload/Key")]

    def tell(self, **behaviour: bool | int | str) -> None:
        """Tell a server in Python how to behave."""
        _tell(self.origin, behaviour)

    @property
    def asked(self) -> Counter[str]:
        """Method → how many requests have come to `url`."""
        return _asked(self.url)

    def _ask(self, method: str, target: str, body: bytes | None = None) -> bytes:
        return _send(Request(self.origin + target, body, {"Content-Type": "application/json"}, method=method))


@dataclass(frozen=True)
class AzureStore:
    """A server that speaks Azure's Blob API. `url` and `origin` end with the account."""

    url: str
    origin: str
    account: str = ACCOUNT
    key: str = KEY

    @property
    def host(self) -> str:
        """Address and port."""
        return urlsplit(self.url).netloc

    @property
    def address(self) -> dict[str, str]:
        """Variables by which object_store finds the server."""
        return {"AZURE_STORAGE_ACCOUNT_NAME": self.account, "AZURE_STORAGE_ENDPOINT": self.url}

    @property
    def environment(self) -> dict[str, str]:
        """The same, and the key."""
        return {**self.address, "AZURE_STORAGE_ACCOUNT_KEY": self.key}

    @property
    def delta_options(self) -> dict[str, str]:
        """Options of delta-rs."""
        return {
            "account_name": self.account,
            "account_key": self.key,
            "endpoint": self.url,
            "allow_http": "true",
        }

    @property
    def iceberg_options(self) -> dict[str, str]:
        """Properties of pyiceberg, with Arrow's file system. Locations: abfss://container/path, and never az://."""
        return {
            **_ARROW_FILES,
            "adls.account-name": self.account,
            "adls.account-key": self.key,
            "adls.blob-storage-authority": self.host,
            "adls.dfs-storage-authority": self.host,
            "adls.blob-storage-scheme": "http",
            "adls.dfs-storage-scheme": "http",
        }

    def behind(self, url: str) -> "AzureStore":
        """Return the store behind a proxy at a URL without the account."""
        return replace(self, url=f"{url}/{self.account}")

    def sas(self, location: str, life: timedelta = timedelta(hours=1), permissions: str = "racwdl") -> str:
        """Return a shared access signature of a location's container; with a negative life, one that has ended."""
        return container_sas(self.account, self.key, _split(location)[0], life, permissions)

    def bucket(self, name: str = "") -> str:
        """Make a container, by default one of its own. Returns its location."""
        name = name or f"container-{uuid4().hex[:12]}"
        self._ask("PUT", name, {"restype": "container"})
        return f"az://{name}"

    def remove_bucket(self, location: str) -> None:
        """Remove a container with all that it holds."""
        self._ask("DELETE", _split(location)[0], {"restype": "container"})

    def keys(self, location: str, page_max: int = 1_000) -> list[str]:
        """Keys below a location, relative to it, in order."""
        container, prefix = _split(location)
        prefix = f"{prefix}/" if prefix else ""
        query = {"restype": "container", "comp": "list", "prefix": prefix, "maxresults": str(page_max)}
        names: list[str] = []
        while True:
            page = ET.fromstring(self._ask("GET", container, query))
            names += [(name.text or "").removeprefix(prefix) for name in page.iterfind("Blobs/Blob/Name")]
            marker = page.findtext("NextMarker")
            if not marker:
                return names
            query["marker"] = marker

    def read(self, location: str) -> bytes:
        """Return the content of a blob. Raises FileNotFoundError."""
        return self._ask("GET", _azure_path(location), {})

    def metadata(self, location: str) -> dict[str, str]:
        """Return a blob's own metadata; its names in lower case."""
        container, name = _split(location)
        query = {"restype": "container", "comp": "list", "prefix": name, "include": "metadata"}
        page = ET.fromstring(self._ask("GET", container, query))
        blob = next((blob for blob in page.iterfind("Blobs/Blob") if blob.findtext("Name") == name), None)
        if blob is None:
            raise FileNotFoundError(location)
        return {each.tag.lower(): each.text or "" for each in blob.iterfind("Metadata/*")}

    def download(self, location: str, into: Path) -> None:
        """Copy what lies below a location into a directory."""
        _download(self, location, into)

    def obstore(self, location: str, retries: int = 0, **options: Any) -> Any:
        """Return obstore's store of a location. Other credentials than the key: `config={"sas_key": …}`."""
        from obstore.store import AzureStore as ObstoreAzure

        container, prefix = _split(location)
        config = {"account_name": self.account, "endpoint": self.url}
        config |= options.pop("config", {"account_key": self.key})
        return ObstoreAzure(container, prefix=prefix or None, config=config, **_client_options(retries), **options)

    def arrow(self) -> Any:
        """Return Arrow's file system."""
        from pyarrow import fs

        return fs.AzureFileSystem(
            account_name=self.account,
            account_key=self.key,
            blob_storage_authority=self.host,
            dfs_storage_authority=self.host,
            blob_storage_scheme="http",
            dfs_storage_scheme="http",
        )

    def tell(self, **behaviour: bool | int | str) -> None:
        """Tell a server in Python how to behave."""
        _tell(self.origin.rpartition("/")[0], behaviour)

    @property
    def asked(self) -> Counter[str]:
        """Method → how many requests have come to `url`."""
        return _asked(self.url.rpartition("/")[0])

    def _ask(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        """Ask by a signed request. `path`: quoted, below the account."""
        headers = {
            "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True),
            "x-ms-version": "2021-12-02",
            "Content-Type": "application/octet-stream",
        }
        text = text_to_sign(method, self.account, f"/{self.account}/{path}", query, headers)
        headers["Authorization"] = f"SharedKey {self.account}:{sign_text(self.key, text)}"
        target = f"{self.origin}/{path}" + (f"?{urlencode(query)}" if query else "")
        return _send(Request(target, b"" if method == "PUT" else None, headers, method=method))


@contextmanager
def python_gcs(directory: Path) -> Iterator[GcsStore]:
    """Run the server in Python that plays Google Cloud Storage."""
    with _run_python("gcs_server", directory) as url:
        yield GcsStore(url, url)


@contextmanager
def bare_fake_gcs(directory: Path, *, is_on_disk: bool = False) -> Iterator[GcsStore]:
    """Run fake-gcs-server, which has no PUT of the XML API: no table may lie on it.

    In memory it looks at all names of a bucket at each put. On disk it does not, but a name cannot be a folder, too.
    """
    from tests.servers.objects import free_port, program_path, run_server

    port = free_port()
    backend = ["-backend", "memory"]
    if is_on_disk:
        backend = ["-backend", "filesystem", "-filesystem-root", str(directory / "fake-gcs")]
    command = [
        str(program_path(FAKE_GCS, "fake-gcs-server")),
        "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), *backend,
        "-public-host", f"127.0.0.1:{port}", "-external-url", f"http://127.0.0.1:{port}",
    ]  # fmt: skip
    with run_server(command, directory / "fake-gcs.log", f":{port}"):
        yield GcsStore(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{port}")


@contextmanager
def fake_gcs(directory: Path, *, is_on_disk: bool = False) -> Iterator[GcsStore]:
    """Run fake-gcs-server, and before it the server that translates the XML API."""
    with (
        bare_fake_gcs(directory, is_on_disk=is_on_disk) as bare,
        _run_python("gcs_server", directory, "--behind", bare.url) as url,
    ):
        yield GcsStore(url, url)


@contextmanager
def python_azure(directory: Path, account: str = ACCOUNT) -> Iterator[AzureStore]:
    """Run the server in Python that plays Azure Blob Storage."""
    with _run_python("azure_server", directory, "--account", account, "--key", KEY) as url:
        yield AzureStore(f"{url}/{account}", f"{url}/{account}", account)


@contextmanager
def azurite(directory: Path) -> Iterator[AzureStore]:
    """Run Azurite, which checks signatures and keeps its blobs on disk."""
    from tests.servers.objects import free_port, program_path, run_server

    port = free_port()
    program = program_path(AZURITE, "node_modules/azurite/dist/src/blob/main.js")
    # Without the check it takes clients that are newer than itself.
    command = [
        "node", str(program), "--blobHost", "127.0.0.1", "--blobPort", str(port),
        "--location", str(directory / "azurite"), "--skipApiVersionCheck", "--disableTelemetry",
    ]  # fmt: skip
    env = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with run_server(command, directory / "azurite.log", "successfully listen", env):
        url = f"http://127.0.0.1:{port}/{ACCOUNT}"
        yield AzureStore(url, url)


@contextmanager
def told(store: CloudStore, **behaviour: bool | int | str) -> Iterator[None]:
    """Let a server in Python behave otherwise until the end of the block."""
    store.tell(**behaviour)
    try:
        yield
    finally:
        store.tell(**{each.name: each.default for each in fields(Behaviour)})


@contextmanager
def _run_python(module: str, directory: Path, *options: str) -> Iterator[str]:
    # Processes that only use a store need no boto3.
    from tests.servers.objects import run_server

    command = [sys.executable, "-m", f"tests.servers.{module}", *options]
    with run_server(command, directory / f"{module}.log", _URL) as url:
        yield url


def _split(location: str) -> tuple[str, str]:
    """Return the bucket and the path of a location."""
    bucket, _, path = re.sub(r"^\w+://", "", location).partition("/")
    return bucket, path.rstrip("/")


def _gcs_path(location: str) -> str:
    bucket, name = _split(location)
    return f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"


def _azure_path(location: str) -> str:
    container, name = _split(location)
    return f"{container}/{quote(name)}"


def _download(store: CloudStore, location: str, into: Path) -> None:
    for key in store.keys(location):
        target = into / key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(store.read(f"{location}/{key}"))


def _client_options(retries: int) -> dict[str, Any]:
    return {
        "client_options": {"allow_http": True, "timeout": "20s"},
        "retry_config": {"max_retries": retries, "retry_timeout": _RETRY_TIMEOUT},
    }


def _send(request: Request) -> bytes:
    try:
        with urlopen(request, timeout=30) as answer:
            return bytes(answer.read())
    except HTTPError as error:
        if error.code == 404:
            raise FileNotFoundError(urlsplit(request.full_url).path) from error
        raise AssertionError(f"{request.get_method()} {request.full_url}: {error.code} {error.read()!r}") from error


def _tell(url: str, behaviour: Mapping[str, object]) -> None:
    _send(Request(url + CONTROL, json.dumps(behaviour).encode()))


def _asked(url: str) -> Counter[str]:
    return Counter(json.loads(_send(Request(url + CONTROL)))["asked"])
