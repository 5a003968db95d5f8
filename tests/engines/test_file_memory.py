"""What a data file of 300 MB takes of a task's memory while it is written to a bucket, and read from it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.servers.cloud_stores import AzureStore, GcsStore
from tests.servers.objects import ObjectServer

pytestmark = [pytest.mark.slow, pytest.mark.engines]

ROOT = Path(__file__).parents[2]
# Eight row groups of a million rows, with 40 random bytes in each row.
_TASK = """
import resource
import numpy as np, pyarrow as pa, pyarrow.parquet as pq
from headrace.writer.batch.staging.parquet_files import Destination, OpenFile
from headrace.writer.storage.locations import store_at

def memory_kib():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

def write(groups):
    file = OpenFile(destination, (), rows)
    for _ in range(groups):
        file.write(rows)
    file.close()
    return file.bytes

def read():
    filesystem, root = store.files()
    name = destination.opened[-1]
    with filesystem.open_input_file(f"{{root}}/{{name}}") as source:
        file = pq.ParquetFile(source)
        return sum(file.read_row_group(group).num_rows for group in range(file.num_row_groups))

store = store_at({location!r})
destination = Destination(store, (), "test", 2**40)
random = np.random.default_rng(7)
rows = pa.table({{f"c{{number}}": random.integers(0, 2**63, 1_000_000) for number in range(5)}})
write(1)
read()
before = memory_kib()
size = write(8)
written = memory_kib()
count = read()
print(size, count, written - before, memory_kib() - before)
"""


@pytest.fixture(params=["s3", "gs", "az"])
def server(request: pytest.FixtureRequest) -> ObjectServer | GcsStore | AzureStore:
    return request.getfixturevalue({"s3": "on_s3", "gs": "on_gcs", "az": "on_azure"}[request.param])


def test_a_file_of_300_mb_takes_less_than_200_mb_of_a_task(server: ObjectServer | GcsStore | AzureStore) -> None:
    code = _TASK.format(location=f"{server.bucket()}/lake")
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=dict(os.environ), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    size, rows, write_kib, both_kib = map(int, done.stdout.split())
    print(
        f"{type(server).__name__}: {size / 1e6:.0f} MB, written {write_kib / 976:.0f} MB, read {both_kib / 976:.0f} MB"
    )
    assert rows == 8_000_000
    assert size > 300 * 10**6
    assert both_kib < 200 * 10**6 / 1024
