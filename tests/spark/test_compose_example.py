"""The compose example runs: its own commands, files and healthchecks, as processes, with moto in the place of MinIO.

tests/engines/test_compose_example.py walks the whole page, with MinIO and Trino.
"""

import sys
from pathlib import Path

import pytest

from tests.servers import compose_images, network_hosts
from tests.support.compose_example import RUN, common_programs, walk

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
SENT = 10_000
# MinIO as far as the example uses it: a folder of its disk is a bucket.
_MOTO = """#!{python}
import os, signal, sys, threading
sys.path[:0] = {path}
import boto3
from werkzeug.serving import make_server
from tests.servers.exclusive import serve
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
server = make_server("0.0.0.0", 9000, serve, threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
credentials = dict(aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1")
for bucket in os.listdir(sys.argv[2]):
    boto3.client("s3", endpoint_url="http://127.0.0.1:9000", **credentials).create_bucket(Bucket=bucket)
signal.pause()
"""


def test_the_compose_example_carries_each_event_once_and_stops_well(tmp_path: Path) -> None:
    if missing := network_hosts.missing():
        pytest.skip(f"NOT RUN: {missing}")
    moto = tmp_path / "moto"
    moto.write_text(_MOTO.format(python=sys.executable, path=sys.path))
    moto.chmod(0o755)
    programs = common_programs(tmp_path / "images")
    programs["quay.io/minio/minio"] = compose_images.minio(tmp_path / "images" / "minio", moto)
    services = ("kafka", "registry", "minio", "events", "check", "headrace")
    with walk(tmp_path, programs, services) as walker:
        for line in walker.lines():
            said = walker.run(line)
            if line.startswith(RUN):
                assert f"{SENT:,} events in clicks" in said
                walker.await_rows(2 * SENT)
        assert walker.composition.running() == []
