"""Iceberg's own REST catalog on loopback, over SQLite."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

from headrace.writer.clients import java_artifacts
from headrace.writer.demo.devstack.process import LOOPBACK, Process, free_ports, java_options
from tests.servers import parts
from tests.servers.objects import ObjectServer

READY_WITHIN = timedelta(seconds=60)  # seen: 3 s


@contextmanager
def iceberg_rest(directory: Path, s3: ObjectServer | None = None) -> Iterator[str]:
    """Run the catalog until the end of the block. Yields its URL. `s3`: where tables may lie, beside local disks."""
    # Its tests have one class of S3A, which is empty, so S3A's own files come first.
    class_path = [*(_s3_files(directory, s3) if s3 else ()), *parts.iceberg_rest()]
    (port,) = free_ports(1)
    path = ":".join(map(str, class_path))
    options = [*java_options(directory, heap_megabytes=256), "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
    arguments = ["IcebergRest", str(port), f"{directory}/rest.db", directory]
    command = [java_artifacts.java(), *options, "-cp", path, *arguments]
    process = Process("iceberg-rest", command, cwd=directory, log=directory / "rest.log")
    url = f"http://{LOOPBACK}:{port}"
    try:
        process.launch()
        process.wait_until(lambda: _answers(url), within=READY_WITHIN)
        yield url
    finally:
        process.stop(grace=timedelta(0))


def _s3_files(directory: Path, s3: ObjectServer) -> list[Path]:
    """Return what makes Hadoop read and write s3:// there: a folder with its settings, and the jars."""
    settings = {
        "fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        "fs.s3a.endpoint": s3.url,
        "fs.s3a.access.key": s3.key,
        "fs.s3a.secret.key": s3.secret,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.endpoint.region": "us-east-1",
    }
    properties = "".join(f"<property><name>{k}</name><value>{v}</value></property>" for k, v in settings.items())
    (directory / "hadoop").mkdir()
    (directory / "hadoop" / "core-site.xml").write_text(f"<configuration>{properties}</configuration>")
    jars = java_artifacts.fetch("spark-s3a", progress=print)
    wanted = ("jcl-over-slf4j-*.jar", "httpclient-4*.jar", "httpcore-4*.jar", "commons-codec-*.jar")
    beside = [jar for pattern in wanted for jar in java_artifacts.pyspark_jars(pattern)]
    return [directory / "hadoop", *sorted(jars.glob("*.jar")), *beside]


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/v1/config", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
