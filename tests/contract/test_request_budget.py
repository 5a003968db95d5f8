"""While S3 throttles, all threads of a process send less, and lose nothing. What is counted is what S3 saw."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.io import PY_IO_IMPL, S3_RETRY_STRATEGY_IMPL, load_file_io
from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace.bench.features.request_counter import RequestCounter
from headrace.writer.batch.staging.parquet_files import Destination
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.storage.locations import store_at
from headrace.writer.storage.requests.budget import budget_of
from headrace.writer.storage.requests.counts import REQUEST_COUNTS
from headrace.writer.storage.requests.pace import RATE_MIN
from headrace.writer.storage.settings import S3Settings, StoreSettings
from headrace.writer.table.iceberg.catalog.catalog_client import client_settings, file_settings
from headrace.writer.table.iceberg.catalog.s3_file_io import FewRequestsFileIO
from tests.servers.faulty import SLOW_DOWN, Faults, proxy
from tests.servers.objects import SECRET, ObjectServer
from tests.support.store_requests import send_each_kind

pytestmark = pytest.mark.slow  # an S3

THREADS = 4
BURST_S = 4.0
RETRY_TIMEOUT = timedelta(seconds=30)


@pytest.fixture
def faults(s3: ObjectServer, tmp_path: Path) -> Iterator[Faults]:
    with proxy(s3.url, tmp_path) as found:
        yield found


@pytest.fixture
def counter(s3: ObjectServer) -> Iterator[RequestCounter]:
    with RequestCounter(s3.url) as found:
        yield found


def throttled() -> int:
    return sum(count for request, count in REQUEST_COUNTS.tally.requests.items() if request.outcome == "throttled")


def test_four_threads_send_few_requests_while_s3_throttles_and_lose_none(s3: ObjectServer, faults: Faults) -> None:
    location = f"{s3.bucket()}/lake"
    stores = StoreSettings(S3Settings(faults.url, retry_timeout=RETRY_TIMEOUT))
    stop = threading.Event()
    written = list[str]()

    def write(thread: int) -> None:
        store = store_at(f"{location}/_delta_log" if thread % 2 else location, stores)
        number = 0
        while not stop.is_set():
            name = f"{thread}/{number}"
            store.put(name, b"record")
            written.append(store.path(name))
            number += 1

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(THREADS)]
    for thread in threads:
        thread.start()
    time.sleep(2)
    per_s = len(written) / 2
    REQUEST_COUNTS.take()
    faults.always(SLOW_DOWN)
    time.sleep(BURST_S)
    faults.calm()
    sent = faults.done[SLOW_DOWN]
    counted = throttled()
    # Each second halves the rate.
    halvings = sum(max(RATE_MIN, per_s / 2**second) for second in range(1, int(BURST_S) + 2))
    deadline = time.monotonic() + 20
    while budget_of(location, None).pace.rate is not None and time.monotonic() < deadline:
        time.sleep(0.2)
    stop.set()
    for thread in threads:
        thread.join()
    assert 0 < sent <= THREADS + halvings, f"{per_s:.0f} requests went a second before"
    assert abs(counted - sent) <= THREADS, "an answer may have been on its way"
    assert budget_of(location, None).pace.rate is None, "all may go again"
    assert sorted(path.removeprefix(f"{location}/") for path in written) == sorted(s3.keys(location))


def test_the_limit_of_the_configuration_holds_for_all_threads(s3: ObjectServer, counter: RequestCounter) -> None:
    location = f"{s3.bucket()}/lake"
    stores = StoreSettings(S3Settings(counter.url, requests_per_second=10))

    def write(thread: int) -> None:
        store = store_at(location, stores)
        for number in range(8):
            store.put(f"{thread}/{number}", b"record")

    threads = [threading.Thread(target=write, args=(thread,)) for thread in range(THREADS)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took_s = time.monotonic() - began
    assert counter.counts() == {"PUT": 32}
    assert took_s >= 31 / 10 * 0.99


def test_the_counts_are_those_of_a_proxy_that_saw_all_requests(s3: ObjectServer, counter: RequestCounter) -> None:
    location = f"{s3.bucket()}/canary-table"
    store = store_at(location, StoreSettings(S3Settings(counter.url)))
    REQUEST_COUNTS.take()
    send_each_kind(store)
    destination = Destination(store, (), "000001", 2**20)
    for rows in (10, 10_000):
        path, sink = destination.open(())
        pq.write_table(pa.table({"id": range(rows)}), sink)
        destination.close(path, sink)
    counts = Counter[str]()
    for request, count in REQUEST_COUNTS.tally.requests.items():
        counts[request.kind.upper()] += count
        assert not any("canary" in label or SECRET in label for label in request)
    assert dict(counts) == counter.counts()
    data = {request.kind for request in REQUEST_COUNTS.tally.requests if request.purpose == "data"}
    assert data == {"put"}
    REQUEST_COUNTS.take()


def test_a_small_object_of_an_iceberg_table_is_one_put(s3: ObjectServer, counter: RequestCounter) -> None:
    location = f"{s3.bucket()}/lake"
    settings = file_settings(location, StoreSettings(S3Settings(counter.url)))
    written = {
        FewRequestsFileIO: {"PUT": 1},
        PyArrowFileIO: {"CREATE_UPLOAD": 1, "UPLOAD_PART": 1, "COMPLETE_UPLOAD": 1},
    }
    chosen = [
        load_file_io(settings, location),
        load_file_io({**settings, S3_RETRY_STRATEGY_IMPL: "pyarrow.fs.AwsStandardS3RetryStrategy"}, location),
        load_file_io({**settings, PY_IO_IMPL: "pyiceberg.io.pyarrow.PyArrowFileIO"}, location),
    ]
    assert [type(each) for each in chosen] == [FewRequestsFileIO, FewRequestsFileIO, PyArrowFileIO]
    # With a strategy of its own, pyiceberg's file system stays as it is.
    expected = [written[FewRequestsFileIO], written[PyArrowFileIO], written[PyArrowFileIO]]
    for number, (file_io, requests) in enumerate(zip(chosen, expected, strict=True)):
        counter.clear()
        with file_io.new_output(f"{location}/{number}.json").create(overwrite=True) as stream:
            stream.write(b"{}")
        assert counter.counts() == requests
        assert file_io.new_input(f"{location}/{number}.json").open().read() == b"{}"
    named = CatalogTable(
        "lake", ("bench",), "clicks", (("type", "sql"), (PY_IO_IMPL, "pyiceberg.io.pyarrow.PyArrowFileIO"))
    )
    assert client_settings(named, location)[PY_IO_IMPL] == "pyiceberg.io.pyarrow.PyArrowFileIO"
