"""What the servers that play Google Cloud Storage and Azure promise, by the clients that headrace has of them.

In `make test` they are of Python; `make test-stores` holds fake-gcs-server and Azurite against the same.
"""

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyarrow import fs
from pyiceberg.catalog.sql import SqlCatalog

from tests.servers.cloud_stores import (
    CLOUDS,
    KEY,
    PLAYED_SERVERS,
    SERVERS,
    AzureStore,
    CloudStore,
    GcsStore,
    bare_fake_gcs,
    told,
)
from tests.servers.faulty import ERROR_THEN_TAKEN, LOST, RESET, SLOW_DOWN, STRIP, TOO_MANY, Faults, proxy
from tests.support.put_race import TOKEN, put_if_absent, race

ODD = "dt=2026-11-20/h x+%3A:é&;=@,'()!~\u2028ü.json"
ROWS = pa.table({"id": list(range(1_000))})


# Of servers that do as they are told.
each_played_store = pytest.mark.parametrize("store", PLAYED_SERVERS, ids=CLOUDS, indirect=True)


@pytest.fixture(params=SERVERS, ids=CLOUDS)
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CloudStore:
    """A server that every client of object_store finds."""
    server: CloudStore = request.getfixturevalue(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def location(store: CloudStore) -> str:
    return f"{store.bucket()}/lake/clicks"


@pytest.fixture
def bucket(store: CloudStore, location: str) -> Any:
    """obstore's store of the location."""
    return store.obstore(location)


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Faults]]:
    """Return a proxy in front of a server, the same one each time."""
    with ExitStack() as running:
        yield cache(lambda url: running.enter_context(proxy(url, tmp_path_factory.mktemp("proxy"))))


@pytest.fixture
def faults(store: GcsStore | AzureStore, proxies: Callable[[str], Faults]) -> Iterator[Faults]:
    between = proxies(f"http://{store.host}")
    between.reset()
    yield between
    between.calm()


def put(bucket: Any, name: str, content: bytes = b"1") -> None:
    obstore.put(bucket, name, content, use_multipart=False)


def names(bucket: Any, folder: str | None = None, offset: str | None = None) -> list[str]:
    return [entry["path"] for page in obstore.list(bucket, folder, offset=offset) for entry in page]


def folder_of(location: str) -> str:
    """Return a location as Arrow's file systems take it."""
    return location.partition("://")[2]


def test_of_eight_processes_one_gets_each_name(store: CloudStore, location: str) -> None:
    log = [f"_delta_log/{version:020}.json" for version in range(25)]
    puts = race(store, location, log, processes=8)
    winners = {put.name: put.token for put in puts if put.won}
    assert len(puts) == 200
    assert sorted(put.name for put in puts if put.won) == log
    for name, token in winners.items():
        assert store.read(f"{location}/{name}").decode() == token
        assert store.metadata(f"{location}/{name}") == {TOKEN: token}


def test_a_token_in_the_metadata_tells_whose_an_object_is(store: CloudStore, location: str, bucket: Any) -> None:
    assert put_if_absent(bucket, "log/1", "first")
    assert not put_if_absent(bucket, "log/1", "second")
    read = obstore.get(bucket, "log/1")
    assert (bytes(read.bytes()), read.attributes[TOKEN]) == (b"first", "first")
    assert store.metadata(f"{location}/log/1") == {TOKEN: "first"}


def test_an_object_is_replaced_only_while_it_is_the_one_that_was_read(bucket: Any) -> None:
    answer = obstore.put(bucket, "a", b"one", use_multipart=False)
    first = {name: value for name, value in answer.items() if value is not None}
    obstore.put(bucket, "a", b"two", mode=first, use_multipart=False)
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(bucket, "a", b"three", mode=first, use_multipart=False)
    assert bytes(obstore.get(bucket, "a").bytes()) == b"two"


def test_names_may_be_odd(store: CloudStore, location: str, bucket: Any) -> None:
    put(bucket, ODD, b"odd")
    assert store.keys(location) == names(bucket) == [ODD]
    assert bytes(obstore.get(bucket, ODD).bytes()) == store.read(f"{location}/{ODD}") == b"odd"
    obstore.copy(bucket, ODD, f"{ODD} again")
    obstore.delete(bucket, ODD)
    assert names(bucket) == [f"{ODD} again"]


def test_an_object_that_is_not_there_is_not_found(bucket: Any) -> None:
    for ask in (obstore.get, obstore.head):
        with pytest.raises(FileNotFoundError):
            ask(bucket, "none")
    assert names(bucket) == []


def test_a_list_says_what_stands_in_a_folder(bucket: Any) -> None:
    for name in ("a", "b/c", "b/d/e", "bc", "f/g"):
        put(bucket, name)
    top = obstore.list_with_delimiter(bucket)
    inner = obstore.list_with_delimiter(bucket, "b")
    assert [entry["path"] for entry in top["objects"]] == ["a", "bc"]
    assert top["common_prefixes"] == ["b", "f"]
    assert ([entry["path"] for entry in inner["objects"]], inner["common_prefixes"]) == (["b/c"], ["b/d"])
    assert names(bucket, "b") == ["b/c", "b/d/e"]


def test_a_list_has_several_pages(store: CloudStore, location: str, bucket: Any) -> None:
    log = [f"{version:05}" for version in range(40)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: put(bucket, name), log))
    assert store.keys(location, page_max=7) == log
    assert names(bucket, offset="00030") == log[31:]


@each_played_store
def test_clients_read_each_page_of_a_list(store: CloudStore, bucket: Any) -> None:
    log = [f"log/{version:05}" for version in range(23)]
    for name in log:
        put(bucket, name)
        put(bucket, f"folders/{name[-2:]}/x")
    with told(store, page_max=5):
        assert names(bucket, "log") == log
        assert names(bucket, "log", offset="log/00003") == log[4:]
        folders = obstore.list_with_delimiter(bucket, "folders")["common_prefixes"]
    assert folders == [f"folders/{name[-2:]}" for name in log]


def test_ranges_of_an_object_are_read(bucket: Any) -> None:
    content = bytes(range(256)) * 10
    put(bucket, "a", content)
    assert bytes(obstore.get_range(bucket, "a", start=250, length=20)) == content[250:270]
    assert bytes(obstore.get(bucket, "a", options={"range": {"offset": 2_500}}).bytes()) == content[2_500:]
    assert [bytes(part) for part in obstore.get_ranges(bucket, "a", starts=[0, 2_000], lengths=[3, 4])] == [
        content[:3], content[2_000:2_004],
    ]  # fmt: skip


def test_an_upload_in_parts_is_one_object(store: CloudStore, location: str, bucket: Any) -> None:
    content = os.urandom(2**20)
    with obstore.open_writer(bucket, "large", attributes={TOKEN: "mine"}, buffer_size=5 * 2**20) as writer:
        for _ in range(12):
            writer.write(content)
        assert store.keys(location) == []
    assert bytes(obstore.get(bucket, "large").bytes()) == content * 12
    assert store.metadata(f"{location}/large") == {TOKEN: "mine"}


def test_an_upload_that_is_given_up_leaves_nothing(store: CloudStore, location: str, bucket: Any) -> None:
    def upload() -> None:
        with obstore.open_writer(bucket, "large", buffer_size=5 * 2**20) as writer:
            writer.write(b"x" * (12 * 2**20))
            raise KeyError

    with pytest.raises(KeyError):
        upload()
    assert store.keys(location) == names(bucket) == []
    if isinstance(store, GcsStore):
        assert store.unended_uploads(location) == []


@pytest.mark.parametrize("fault", [RESET, SLOW_DOWN])
def test_an_upload_that_is_cut_leaves_nothing(
    store: GcsStore | AzureStore, location: str, faults: Faults, fault: str
) -> None:
    def upload() -> None:
        with obstore.open_writer(bucket, "large", buffer_size=5 * 2**20) as writer:
            writer.write(b"x" * (6 * 2**20))
            faults.always(fault)
            writer.write(b"x" * (6 * 2**20))

    bucket = store.behind(faults.url).obstore(location)
    with pytest.raises(OSError, match="large"):
        upload()
    assert faults.done[fault]
    assert store.keys(location) == []


@pytest.mark.parametrize("fault", [SLOW_DOWN, TOO_MANY, RESET, LOST, ERROR_THEN_TAKEN])
def test_a_token_decides_whether_a_put_that_failed_was_done(
    store: GcsStore | AzureStore, location: str, faults: Faults, fault: str
) -> None:
    bucket = store.behind(faults.url).obstore(location)
    faults.first(fault, 1)
    with pytest.raises(obstore.exceptions.GenericError):
        put_if_absent(bucket, "log/1", "mine")
    assert faults.done == {fault: 1}
    is_done = fault in (LOST, ERROR_THEN_TAKEN)
    assert put_if_absent(bucket, "log/1", "the repeat's") is not is_done
    assert store.metadata(f"{location}/log/1") == {TOKEN: "mine" if is_done else "the repeat's"}


def test_a_client_that_repeats_by_itself_takes_its_own_object_for_anothers(
    store: GcsStore | AzureStore, location: str, faults: Faults
) -> None:
    bucket = store.behind(faults.url).obstore(location, retries=3)
    faults.first(ERROR_THEN_TAKEN, 1)
    assert not put_if_absent(bucket, "log/1", "mine")
    assert store.metadata(f"{location}/log/1") == {TOKEN: "mine"}


def test_a_condition_may_be_lost_on_the_way_but_not_where_a_key_has_signed_it(
    store: GcsStore | AzureStore, location: str, faults: Faults
) -> None:
    bucket = store.behind(faults.url).obstore(location)
    faults.always(STRIP)
    if isinstance(store, AzureStore):
        with pytest.raises(obstore.exceptions.PermissionDeniedError, match="403"):
            put_if_absent(bucket, "a", "one")
        assert store.keys(location) == []
    else:
        assert [put_if_absent(bucket, "a", token) for token in ("one", "two")] == [True, True]
        assert store.read(f"{location}/a") == b"two"


@each_played_store
def test_a_store_that_overwrites_can_be_played(store: CloudStore, location: str, bucket: Any) -> None:
    with told(store, overwrites=True):
        assert [put_if_absent(bucket, "a", token) for token in ("one", "two")] == [True, True]
    assert store.read(f"{location}/a") == b"two"
    assert not put_if_absent(bucket, "a", "three")


@each_played_store
def test_a_store_that_says_yes_to_two_can_be_played(store: CloudStore, location: str, bucket: Any) -> None:
    with told(store, answers_twice=True):
        assert [put_if_absent(bucket, "a", token) for token in ("one", "two")] == [True, True]
    assert store.read(f"{location}/a") == b"one"
    assert not put_if_absent(bucket, "a", "three")


def test_a_copy_stands_for_itself(store: CloudStore, location: str, bucket: Any) -> None:
    put_if_absent(bucket, "a", "one")
    obstore.copy(bucket, "a", "b/c")
    put(bucket, "a", b"two")
    obstore.rename(bucket, "b/c", "d")
    assert store.keys(location) == ["a", "d"]
    assert (store.read(f"{location}/d"), store.metadata(f"{location}/d")) == (b"one", {TOKEN: "one"})


def test_many_objects_are_deleted_at_once(bucket: Any) -> None:
    many = [f"many/{number:03}" for number in range(30)]
    for name in [*many, "other"]:
        put(bucket, name)
    obstore.delete(bucket, many)
    assert names(bucket) == ["other"]


def test_arrow_reads_what_it_wrote_and_what_obstore_wrote(store: CloudStore, location: str, bucket: Any) -> None:
    files = store.arrow()
    folder = folder_of(location)
    with files.open_output_stream(f"{folder}/data/rows.parquet") as out:
        pq.write_table(ROWS, out)
    with obstore.open_writer(bucket, "data/more.parquet") as writer:
        writer.write(store.read(f"{location}/data/rows.parquet"))
    found = files.get_file_info(fs.FileSelector(f"{folder}/data"))
    assert sorted(info.base_name for info in found) == ["more.parquet", "rows.parquet"]
    for info in found:
        assert pq.read_table(info.path, filesystem=files) == ROWS
        with files.open_input_file(info.path) as file:
            assert file.read_at(4, info.size - 4) == b"PAR1"
    assert files.get_file_info(f"{folder}/none").type == fs.FileType.NotFound


def test_arrow_writes_a_large_file_copies_and_deletes_it(store: CloudStore, location: str) -> None:
    files = store.arrow()
    folder = folder_of(location)
    content = os.urandom(2**20) * 20
    with files.open_output_stream(f"{folder}/a/large") as out:
        out.write(content)
    files.copy_file(f"{folder}/a/large", f"{folder}/a/copy")
    assert store.read(f"{location}/a/copy") == content
    files.delete_file(f"{folder}/a/large")
    assert [key for key in store.keys(location) if not key.endswith("/")] == ["a/copy"]
    files.delete_file(f"{folder}/a/copy")
    assert [key for key in store.keys(location) if not key.endswith("/")] == []


def test_arrow_repeats_what_a_store_throttles(store: GcsStore | AzureStore, location: str, faults: Faults) -> None:
    files = store.behind(faults.url).arrow()
    folder = folder_of(location)
    faults.first(SLOW_DOWN, 1, "PUT" if isinstance(store, AzureStore) else "POST")
    with files.open_output_stream(f"{folder}/a") as out:
        out.write(b"one")
    assert faults.done == {SLOW_DOWN: 1}
    assert store.read(f"{location}/a") == b"one"
    files.delete_file(f"{folder}/a")
    assert "a" not in store.keys(location)


def test_delta_rs_commits_and_sees_an_entry_that_obstore_puts(store: CloudStore, location: str, bucket: Any) -> None:
    for _ in range(2):
        write_deltalake(location, ROWS, mode="append", storage_options=store.delta_options)
    entry = json.dumps({"commitInfo": {"operation": "WRITE"}})
    assert put_if_absent(bucket, f"_delta_log/{2:020}.json", entry)
    assert not put_if_absent(bucket, f"_delta_log/{1:020}.json", entry)
    table = DeltaTable(location, storage_options=store.delta_options)
    table.create_checkpoint()
    assert (table.version(), len(table.file_uris())) == (2, 2)
    assert f"_delta_log/{2:020}.checkpoint.parquet" in store.keys(location)


def test_pyiceberg_commits_by_arrows_file_system(store: CloudStore, location: str, tmp_path: Path) -> None:
    warehouse = location.replace("az://", "abfss://")
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=warehouse, **store.iceberg_options)
    catalog.create_namespace("events")
    table = catalog.create_table("events.clicks", ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    assert catalog.load_table("events.clicks").scan().to_arrow() == pa.concat_tables([ROWS, ROWS])
    assert sum(key.endswith(".metadata.json") for key in store.keys(location)) == 3


def test_azure_refuses_a_key_that_is_wrong(azure: AzureStore) -> None:
    key = b64encode(b64decode(KEY)[::-1]).decode()
    wrong = azure.obstore(azure.bucket(), config={"account_key": key})
    for ask in (lambda: put(wrong, "a"), lambda: obstore.get(wrong, "a"), lambda: names(wrong)):
        with pytest.raises(obstore.exceptions.BaseError, match="403") as refused:
            ask()
        assert key not in str(refused.value)


def test_azure_takes_a_shared_access_signature_until_it_ends(azure: AzureStore) -> None:
    location = azure.bucket()
    other = azure.bucket()
    sas = azure.sas(location)
    bucket = azure.obstore(location, config={"sas_key": sas})
    assert put_if_absent(bucket, ODD, "mine")
    assert not put_if_absent(bucket, ODD, "another's")
    obstore.copy(bucket, ODD, "copy")
    assert names(bucket) == ["copy", ODD]
    ended = azure.sas(location, life=timedelta(minutes=-1))
    forged = sas.replace("sig=", "sig=a")
    for place, refused in ((location, ended), (location, forged), (other, sas)):
        with pytest.raises(obstore.exceptions.BaseError, match="403") as error:
            put(azure.obstore(place, config={"sas_key": refused}), "a")
        assert refused.partition("sig=")[2] not in str(error.value)


@pytest.mark.slow
@pytest.mark.engines
def test_fake_gcs_alone_is_no_store_for_object_store(tmp_path: Path) -> None:
    with bare_fake_gcs(tmp_path) as bare:
        location = bare.bucket()
        with pytest.raises(obstore.exceptions.BaseError, match="400"):
            put_if_absent(bare.obstore(location), "a", "mine")
        assert bare.keys(location) == []
