"""Data files in stores of Google and Azure: each is there when it is whole, never before, and takes little memory."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from headrace.writer.batch.staging.parquet_files import Destination, OpenFile
from headrace.writer.storage.base import Store, StoreError
from headrace.writer.storage.locations import store_at
from tests.servers.cloud_stores import AzureStore, GcsStore

ROOT = Path(__file__).parents[2]
# Two parts are sent before the third is complete.
LARGE = 35 * 2**20
ROWS = pa.table({"id": range(1_000)})


@pytest.fixture(params=["gs", "az"])
def server(request: pytest.FixtureRequest) -> GcsStore | AzureStore:
    return request.getfixturevalue({"gs": "on_gcs", "az": "on_azure"}[request.param])


@pytest.fixture
def store(server: GcsStore | AzureStore) -> Store:
    return store_at(f"{server.bucket()}/lake")


@pytest.fixture
def files(store: Store) -> tuple[fs.FileSystem, str]:
    return store.files()


def test_a_file_appears_when_it_is_closed(store: Store, files: tuple[fs.FileSystem, str]) -> None:
    filesystem, root = files
    out = filesystem.open_output_stream(f"{root}/a/rows")
    out.write(os.urandom(LARGE))
    assert out.tell() == LARGE
    assert list(store.list("a")) == []
    out.close()
    assert out.closed
    assert filesystem.get_file_info(f"{root}/a/rows").size == LARGE


@pytest.mark.parametrize("size", [10, LARGE])
def test_an_exception_leaves_no_file(
    server: GcsStore | AzureStore, store: Store, files: tuple[fs.FileSystem, str], size: int
) -> None:
    filesystem, root = files

    def fail() -> None:
        with filesystem.open_output_stream(f"{root}/a") as out:
            out.write(b"x" * size)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    gc.collect()
    assert list(store.list()) == []
    if isinstance(server, GcsStore):
        assert server.unended_uploads(store.location) == []


@pytest.mark.parametrize("size", [10, LARGE])
def test_a_stream_that_is_dropped_leaves_no_file(store: Store, files: tuple[fs.FileSystem, str], size: int) -> None:
    filesystem, root = files
    out = filesystem.open_output_stream(f"{root}/a")
    out.write(b"x" * size)
    del out
    gc.collect()
    assert list(store.list()) == []


def test_a_parquet_file_that_is_discarded_is_never_seen(store: Store) -> None:
    destination = Destination(store, (), "test", 2**30)
    file = OpenFile(destination, (), ROWS)
    file.write(ROWS)
    file.discard()
    assert list(store.list()) == []
    file = OpenFile(destination, (), ROWS)
    file.write(ROWS)
    file.close()
    assert len(list(store.list())) == 1


def test_a_process_that_is_killed_in_an_upload_leaves_no_file(
    server: GcsStore | AzureStore, store: Store, files: tuple[fs.FileSystem, str]
) -> None:
    code = f"""
import os
from headrace.writer.storage.locations import store_at
filesystem, root = store_at({store.location!r}).files()
out = filesystem.open_output_stream(f"{{root}}/rows")
out.write(os.urandom({LARGE}))
print("written", flush=True)
input()
"""
    writer = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "written\n"
    writer.send_signal(signal.SIGKILL)
    assert writer.wait() == -signal.SIGKILL
    writer.communicate()
    assert list(store.list()) == []
    filesystem, root = files
    with filesystem.open_output_stream(f"{root}/rows") as out:
        out.write(b"after it")
    assert server.read(f"{store.location}/rows") == b"after it"


def test_parquet_is_read_by_ranges_and_by_folders(store: Store, files: tuple[fs.FileSystem, str]) -> None:
    filesystem, root = files
    for hour in ("05", "06"):
        with filesystem.open_output_stream(f"{root}/hour={hour}/a.parquet") as out:
            pq.write_table(ROWS, out)
    with filesystem.open_input_file(f"{root}/hour=05/a.parquet") as source:
        assert source.read_at(4, 0) == b"PAR1"
        assert source.read_at(4, source.size() - 4) == b"PAR1"
        assert pq.ParquetFile(source).read() == ROWS
    whole = pq.read_table(root, filesystem=filesystem, partitioning="hive")
    assert (whole.num_rows, whole.column_names) == (2_000, ["id", "hour"])
    infos = filesystem.get_file_info(fs.FileSelector(root, recursive=True))
    assert {info.path.removeprefix(f"{root}/"): info.type for info in infos} == {
        "hour=05": fs.FileType.Directory,
        "hour=06": fs.FileType.Directory,
        "hour=05/a.parquet": fs.FileType.File,
        "hour=06/a.parquet": fs.FileType.File,
    }
    assert [info.base_name for info in filesystem.get_file_info(fs.FileSelector(root))] == ["hour=05", "hour=06"]
    assert filesystem.get_file_info(f"{root}/hour=05").type == fs.FileType.Directory
    filesystem.delete_dir(f"{root}/hour=05")
    assert list(store.list()) == ["hour=06/"]
    filesystem.delete_file(f"{root}/hour=06/a.parquet")
    assert list(store.list()) == []


def test_what_is_missing_is_missing(files: tuple[fs.FileSystem, str]) -> None:
    filesystem, root = files
    with pytest.raises(FileNotFoundError, match=r"cannot read (gs|az)://.*/lake/none: 404 (NoSuchKey|BlobNotFound)"):
        filesystem.open_input_file(f"{root}/none")
    assert filesystem.get_file_info(f"{root}/none").type == fs.FileType.NotFound
    assert filesystem.get_file_info(fs.FileSelector(f"{root}/none", allow_not_found=True)) == []
    with pytest.raises(FileNotFoundError, match="there is nothing in"):
        filesystem.get_file_info(fs.FileSelector(f"{root}/none"))


def test_a_bucket_that_is_missing_is_an_error_with_the_fix(server: GcsStore | AzureStore) -> None:
    scheme = server.bucket().partition("://")[0]
    filesystem, root = store_at(f"{scheme}://no-such-bucket/lake").files()
    with (
        pytest.raises(StoreError, match=r"404 .*Make the (bucket|container), or correct the location"),
        filesystem.open_output_stream(f"{root}/a") as out,
    ):
        out.write(b"1")


_MEMORY = """
import os, resource
from headrace.writer.storage.locations import store_at
filesystem, root = store_at({location!r}).files()
part = os.urandom(2**20)
def write(name, parts):
    with filesystem.open_output_stream(f"{{root}}/{{name}}") as out:
        for _ in range(parts):
            out.write(part)
def read(name):
    with filesystem.open_input_file(f"{{root}}/{{name}}") as source:
        while source.read(2**22):
            pass
write("warm", 1)
read("warm")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
write("large", 300)
read("large")
print(filesystem.get_file_info(f"{{root}}/large").size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_a_file_of_300_mb_takes_less_than_100_mb_of_memory(store: Store) -> None:
    code = _MEMORY.format(location=store.location)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    size, more_kib = map(int, done.stdout.split())
    assert size == 300 * 2**20
    assert more_kib < 100 * 2**10
