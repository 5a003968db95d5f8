"""Servers that speak S3, each a process of its own on a free port."""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import boto3
from botocore.config import Config

KEY, SECRET = "headrace-test", "a-secret-that-no-log-may-hold"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}  # fmt: skip


@dataclass(frozen=True)
class ObjectServer:
    """A server that speaks S3."""

    url: str

    def bucket(self) -> str:
        """Make a bucket of its own. Returns its location."""
        name = f"lake-{uuid4().hex[:12]}"
        self.client().create_bucket(Bucket=name)
        return f"s3://{name}"

    def client(self) -> object:
        style = Config(s3={"addressing_style": "path"}, request_checksum_calculation="when_required")
        return boto3.client(
            "s3", endpoint_url=self.url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, config=style,
            region_name="us-east-1",
        )  # fmt: skip

    def keys(self, location: str) -> list[str]:
        """Keys below a location, relative to it."""
        bucket, _, prefix = location.removeprefix("s3://").partition("/")
        prefix = f"{prefix}/" if prefix else ""
        pages = self.client().get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [found["Key"].removeprefix(prefix) for page in pages for found in page.get("Contents", [])]

    def download(self, location: str, into: Path) -> None:
        """Copy what lies below a location into a directory, for judges that read files."""
        bucket, _, prefix = location.removeprefix("s3://").partition("/")
        for key in self.keys(location):
            target = into / key
            target.parent.mkdir(parents=True, exist_ok=True)
            self.client().download_file(bucket, f"{prefix}/{key}", str(target))


@contextmanager
def moto(directory: Path) -> Iterator[ObjectServer]:
    """Run moto, which keeps its objects in memory."""
    log = directory / "moto.log"
    with started(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], log, r"http://127\.0\.0\.1:\d+"
    ) as url:
        yield ObjectServer(url)


@contextmanager
def started(command: list[str], log: Path, ready: str, env: dict[str, str] | None = None) -> Iterator[str]:
    """Run a server until the end of the block. Yields what its log says that matches `ready`."""
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=env)
    try:
        deadline = time.monotonic() + 60
        while (found := re.search(ready, log.read_text(errors="replace"))) is None:
            assert process.poll() is None, f"{command[0]} ended with {process.returncode}:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{command} is not ready after 60 s:\n{log.read_text()}"
            time.sleep(0.05)
        yield found[0]
    finally:
        process.kill()
        process.wait(10)
