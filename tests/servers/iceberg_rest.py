"""Iceberg's own REST catalog on loopback, over SQLite."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from urllib.request import urlopen

from tests.servers import parts
from writer.clients import java_artifacts
from writer.demo.devstack.process import LOOPBACK, Process, free_ports, java_options

READY_WITHIN = timedelta(seconds=60)  # seen: 3 s


@contextmanager
def iceberg_rest(directory: Path) -> Iterator[str]:
    """Run the catalog until the end of the block. Yields its URL."""
    (port,), path = free_ports(1), ":".join(map(str, parts.iceberg_rest()))
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


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/v1/config", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
