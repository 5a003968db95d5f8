"""The tally of requests to stores of Google and Azure is what their servers saw, and all of them keep to the pace."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from headrace.bench.features.request_counter import RequestCounter
from headrace.bench.features.store_requests import CommitRequests, count_requests
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.storage.base import Store, Unanswered
from headrace.writer.storage.bucket_store import BucketStore
from headrace.writer.storage.clouds.obstore_client import ObstoreClient, azure_address, gcs_address
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.requests.budget import budget_of
from headrace.writer.storage.requests.counts import REQUEST_COUNTS
from headrace.writer.storage.settings import AzureSettings, GcsSettings, StoreSettings
from headrace.writer.table.iceberg.catalog.bucket_file_io import BucketFileIO, bucket_properties
from tests.servers.cloud_stores import AzureStore, GcsStore, told
from tests.servers.faulty import SLOW_DOWN, TOO_MANY, Faults, proxy
from tests.support.store_requests import by_method, send_each_kind

PART = 10 * 2**20
RETRY_TIMEOUT = timedelta(seconds=20)
Server = GcsStore | AzureStore


@pytest.fixture(params=["gs", "az"])
def cloud(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server(cloud: str, request: pytest.FixtureRequest) -> Server:
    found: Server = request.getfixturevalue({"gs": "on_gcs", "az": "on_azure"}[cloud])
    return found


@pytest.fixture
def location(server: Server) -> str:
    return f"{server.bucket()}/lake"


@pytest.fixture
def faults(server: Server, tmp_path: Path) -> Iterator[Faults]:
    with proxy(f"http://{server.host}", tmp_path) as found:
        yield found


def settings(
    cloud: str, url: str | None = None, retry: timedelta = RETRY_TIMEOUT, per_s: float | None = None
) -> StoreSettings:
    if cloud == "gs":
        return StoreSettings(gcs=GcsSettings(url, retry_timeout=retry, requests_per_second=per_s))
    return StoreSettings(azure=AzureSettings(endpoint=url, retry_timeout=retry, requests_per_second=per_s))


def tallied() -> Counter[str]:
    """Return the requests that were counted since the last time, by kind."""
    kinds = Counter[str]()
    for request, count in REQUEST_COUNTS.take().requests.items():
        kinds[request.kind] += count
    return kinds


def compare(cloud: str, server: Server, call: Callable[[], object]) -> Counter[str]:
    """Return the kinds of requests of a call, which must be what the server saw."""
    before = server.asked
    REQUEST_COUNTS.take()
    call()
    kinds = tallied()
    assert by_method(cloud, kinds) == server.asked - before
    return kinds


def write(filesystem: fs.FileSystem, path: str, size: int) -> None:
    with filesystem.open_output_stream(path) as out:
        for start in range(0, size, 2**20):
            out.write(bytes(min(2**20, size - start)))


def test_what_a_store_sends_is_what_the_server_saw(cloud: str, server: Server, location: str) -> None:
    store = store_at(location)

    kinds = compare(cloud, server, lambda: send_each_kind(store))
    # Azure is asked whether each copy is complete.
    heads = 3 if cloud == "az" else 1
    assert kinds == {"put": 3, "get": 2, "head": heads, "list": 1, "copy": 2, "delete": 3}


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 2 * PART, 35 * 2**20])
def test_a_data_file_is_one_put_or_its_parts(cloud: str, server: Server, location: str, size: int) -> None:
    filesystem, root = store_at(location).files()
    kinds = compare(cloud, server, lambda: write(filesystem, f"{root}/a", size))
    if size < PART:
        assert kinds == {"put": 1}
    else:
        beginning = {"create_upload": 1} if cloud == "gs" else {}
        assert kinds == {**beginning, "upload_part": -(-size // PART), "complete_upload": 1}
    assert filesystem.get_file_info(f"{root}/a").size == size


def test_an_upload_that_is_abandoned_is_counted(cloud: str, server: Server, location: str) -> None:
    filesystem, root = store_at(location).files()

    def abandon() -> None:
        out = filesystem.open_output_stream(f"{root}/a")
        out.write(bytes(25 * 2**20))
        # Parts on the way arrive.
        time.sleep(0.5)
        out.abandon()

    kinds = compare(cloud, server, abandon)
    google = {"create_upload": 1, "delete": 1} if cloud == "gs" else {}
    assert kinds == {**google, "upload_part": 2}


def test_reads_of_parquet_and_what_else_arrow_asks_are_counted(cloud: str, server: Server, location: str) -> None:
    store = store_at(location)
    filesystem, root = store.files()
    rows = pa.table({"id": range(1_000)})
    destination = Destination(store, (), "000001", 2**20)
    paths = list[str]()

    def stage() -> None:
        path, sink = destination.open(())
        pq.write_table(rows, sink)
        destination.close(path, sink)
        paths.append(path)

    assert compare(cloud, server, stage) == {"put": 1}
    full_path = f"{root}/{paths[0]}"
    kinds = compare(cloud, server, lambda: pq.ParquetFile(full_path, filesystem=filesystem).read())
    assert kinds["head"] == 1
    assert kinds["get"] >= 1
    assert compare(cloud, server, lambda: filesystem.get_file_info(f"{root}/none")) == {"head": 1, "list": 1}
    kinds = compare(cloud, server, lambda: filesystem.copy_file(full_path, f"{root}/day=1/b.parquet"))
    assert kinds == {"copy": 1}
    kinds = compare(cloud, server, lambda: filesystem.get_file_info(fs.FileSelector(root)))
    assert kinds == {"list": 1}
    kinds = compare(cloud, server, lambda: filesystem.delete_dir(root))
    assert kinds == {"list": 1, "delete": 2}
    assert server.keys(location) == []


def small_pages(cloud: str, location: str, url: str | None = None, per_s: float | None = None) -> BucketStore:
    """Return a store whose client knows that a page has 10 names."""
    stores = settings(cloud, url, per_s=per_s)
    address = gcs_address(location, stores.gcs) if cloud == "gs" else azure_address(location, stores.azure)
    client = ObstoreClient(replace(address, cloud=replace(address.cloud, page_names_max=10)))
    return BucketStore(location, client, RETRY_TIMEOUT, "retry_timeout", per_s)


@pytest.mark.parametrize(("names", "folders"), [(0, 0), (1, 0), (10, 0), (11, 0), (18, 2), (25, 6)])
def test_each_page_of_a_list_is_counted(cloud: str, server: Server, location: str, names: int, folders: int) -> None:
    store = small_pages(cloud, location)
    for number in range(names):
        store.put(f"f/{number:02}", b"")
    for number in range(folders):
        store.put(f"f/d{number:02}/a", b"")
    filesystem, root = store.files()
    pages = max(1, -(-(names + folders) // 10))
    with told(server, page_max=10):
        assert compare(cloud, server, lambda: len(list(store.list("f"))) == names + folders) == {"list": pages}
        selector = fs.FileSelector(f"{root}/f", allow_not_found=True)
        assert compare(cloud, server, lambda: filesystem.get_file_info(selector)) == {"list": pages}
        below = fs.FileSelector(f"{root}/f", allow_not_found=True, recursive=True)
        assert compare(cloud, server, lambda: filesystem.get_file_info(below)) == {"list": pages}


def test_files_of_iceberg_are_counted_and_keep_to_the_budget_of_the_table(
    cloud: str, server: Server, location: str
) -> None:
    scheme = "gs" if cloud == "gs" else "abfss"
    bucket = location.partition("://")[2].partition("/")[0]
    authority = bucket if cloud == "gs" else f"{bucket}@{server.account}.dfs.core.windows.net"
    table = f"{scheme}://{authority}/lake/clicks"
    stores = settings(cloud, server.url, per_s=1_000)
    if cloud == "az":
        stores = StoreSettings(azure=replace(stores.azure, account=server.account))
    files = BucketFileIO(bucket_properties(stores))
    budget = budget_of(table, 1_000)
    path = f"{table}/metadata/snap-1.avro"

    def use() -> None:
        with files.new_output(path).create(overwrite=True) as out:
            out.write(b"manifest")
        with files.new_input(path).open() as source:
            assert source.read() == b"manifest"
        files.delete(path)

    sent = budget.pace.in_window + budget.pace.before_window
    kinds = compare(cloud, server, use)
    assert kinds["put"] == 1
    assert kinds["get"] == 1
    assert kinds["delete"] == 1
    assert budget.pace.in_window + budget.pace.before_window - sent == kinds.total()


@pytest.mark.parametrize("table_format", ["parquet", "iceberg"])
def test_the_tally_of_commits_is_what_the_server_saw(
    cloud: str, server: Server, location: str, table_format: str
) -> None:
    """Delta's checkpoints are delta-rs's, which tells nothing of its requests."""
    if cloud == "az":
        container, _, folder = location.partition("://")[2].partition("/")
        location = f"abfss://{container}@{server.account}.dfs.core.windows.net/{folder}"
    seen = list[CommitRequests]()

    def commit() -> None:
        with RequestCounter(server.url) as counter:
            seen.append(count_requests(table_format, location, counter, 4, {60.0: 12 * 2**20}, lambda _: None))

    kinds = compare(cloud, server, commit)
    assert kinds["list"] > 0
    assert seen[0].of_log.counts["GET"] > 0
    assert seen[0].of_data[60.0].counts["UPLOAD_PART"] == 2


# ---- throttling


def outcomes() -> Counter[tuple[str, str]]:
    return Counter({request[2:]: count for request, count in REQUEST_COUNTS.take().requests.items()})


def _file_in(store: Store) -> tuple[fs.FileSystem, str]:
    filesystem, root = store.files()
    return filesystem, f"{root}/a.parquet"


def _infos_below(store: Store) -> list[fs.FileInfo]:
    filesystem, root = store.files()
    infos: list[fs.FileInfo] = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True, recursive=True))
    return infos


def test_a_throttled_data_file_and_list_slow_the_table_down(
    cloud: str, server: Server, location: str, faults: Faults
) -> None:
    stores = settings(cloud, server.behind(faults.url).url)
    write(*_file_in(store_at(f"{location}/3", stores)), 100)
    for number, (fault, method, kind, call) in enumerate(
        (
            (SLOW_DOWN, "PUT", "put", lambda store: write(*_file_in(store), 100)),
            (TOO_MANY, "GET", "list", lambda store: list(store.list())),
            (SLOW_DOWN, "GET", "list", _infos_below),
            (TOO_MANY, "GET", "get", lambda store: store.files()[0].open_input_file(_file_in(store)[1]).read()),
        )
    ):
        # Each table has its own budget.
        table = f"{location}/{number}"
        REQUEST_COUNTS.take()
        faults.first(fault, 1, method)
        call(store_at(table, stores))
        counted = outcomes()
        assert (counted[kind, "throttled"], counted[kind, "ok"]) == (1, 1)
        assert budget_of(table, None).pace.is_slowed
    assert faults.done == {SLOW_DOWN: 2, TOO_MANY: 2}


def test_a_list_whose_later_page_is_throttled_comes_to_its_end(
    cloud: str, server: Server, location: str, faults: Faults
) -> None:
    store = small_pages(cloud, location, server.behind(faults.url).url)
    for number in range(35):
        store.put(f"f/{number:02}", b"")
    filesystem, root = store.files()
    with told(server, page_max=10):
        faults.first(SLOW_DOWN, 1, "GET", after=2)
        REQUEST_COUNTS.take()
        assert len(list(store.list("f"))) == 35
        # How many pages came before the one that failed, obstore does not tell.
        assert outcomes() == {("list", "throttled"): 1, ("list", "ok"): 4}
        assert budget_of(location, None).pace.is_slowed
        faults.first(SLOW_DOWN, 1, "GET", after=2)
        below = filesystem.get_file_info(fs.FileSelector(f"{root}/f", recursive=True))
        assert [info.base_name for info in below] == [f"{number:02}" for number in range(35)]
        assert outcomes() == {("list", "throttled"): 1, ("list", "ok"): 4}


def test_an_upload_in_parts_that_is_given_up_is_counted_with_its_tries(
    cloud: str, server: Server, location: str, faults: Faults
) -> None:
    stores = settings(cloud, server.behind(faults.url).url, timedelta(seconds=1))
    filesystem, root = store_at(location, stores).files()
    faults.always(SLOW_DOWN)
    REQUEST_COUNTS.take()
    with pytest.raises(OSError, match="503 SlowDown"):
        write(filesystem, f"{root}/a", 12 * 2**20)
    throttled = sum(count for (_, outcome), count in outcomes().items() if outcome == "throttled")
    assert throttled > 1
    assert budget_of(location, None).pace.is_slowed
    # Azure's second part is on its way, too; nothing tells of it.
    assert throttled == faults.done[SLOW_DOWN] if cloud == "gs" else throttled <= faults.done[SLOW_DOWN]


def test_what_obstore_tries_again_in_an_upload_is_all_that_is_not_counted(
    cloud: str, server: Server, location: str, faults: Faults
) -> None:
    filesystem, root = store_at(location, settings(cloud, server.behind(faults.url).url)).files()
    faults.first(SLOW_DOWN, 2)
    kinds = compare(cloud, server, lambda: write(filesystem, f"{root}/a", 25 * 2**20))
    assert kinds["upload_part"] == 3
    assert faults.done[SLOW_DOWN] == 2


def test_a_file_that_is_throttled_for_ever_is_unanswered(
    cloud: str, server: Server, location: str, faults: Faults
) -> None:
    stores = settings(cloud, server.behind(faults.url).url, timedelta(seconds=0.5))
    filesystem, root = store_at(location, stores).files()
    faults.always(SLOW_DOWN)
    section = {"gs": "gcs", "az": "azure"}[cloud]
    with pytest.raises(Unanswered, match=rf"503 SlowDown .* in 0\.5 s \({section}\.retry_timeout\)"):
        write(filesystem, f"{root}/a", 1)


def test_the_limit_of_the_configuration_holds_for_parts_and_pages(cloud: str, server: Server, location: str) -> None:
    per_s = 10
    store = store_at(location, settings(cloud, per_s=per_s))
    filesystem, root = store.files()
    REQUEST_COUNTS.take()
    began = time.monotonic()
    write(filesystem, f"{root}/a", 35 * 2**20)
    for _ in range(3):
        list(store.list())
        filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    sent = tallied().total()
    assert sent >= 5 + 6
    assert time.monotonic() - began >= (sent - 1) / per_s * 0.99
    paged = small_pages(cloud, f"{location}/paged", per_s=per_s)
    unlimited = store_at(f"{location}/paged")
    for number in range(25):
        unlimited.put(f"f/{number:02}", b"")
    with told(server, page_max=10):
        began = time.monotonic()
        list(paged.list("f"))
        list(paged.list("f"))
        # The pages of the first list hold up the second one.
        assert time.monotonic() - began >= 3 / per_s * 0.99
