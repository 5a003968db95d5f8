"""Walks docs/examples/compose as its README has it: the lines of the page, on services that run without Docker."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.servers import compose_images
from tests.servers.compose import Composition, Program, composition
from tests.support.compose_file import read_compose_file
from tests.support.doc_examples import EXAMPLES, ROOT, SHELL, list_blocks

FOLDER = EXAMPLES / "compose"
_PAGE = str((FOLDER / "README.md").relative_to(ROOT))
_SECRET_LINE = "printf "
RUN = "docker compose run --rm "
DOWN = "docker compose down -v"
# `docker compose exec`, and no other command of Docker.
_DOCKER = """#!/bin/bash
set -e
[ "$1 $2" = "compose exec" ] || {{ echo "nobody plays docker $*" >&2; exit 64; }}
shift 2
[ "$1" != -T ] || shift
service=$1
shift
case $service in
{cases}
esac
"""
# What the bucket holds, said by a reader of another kind.
_COUNT_ROWS = """
import os, sys
from deltalake import DeltaTable
options = {"AWS_ENDPOINT_URL": sys.argv[1], "AWS_ALLOW_HTTP": "true", "AWS_REGION": "us-east-1"}
rows = DeltaTable(sys.argv[2], storage_options=options).to_pyarrow_dataset().to_table(
    columns=["_topic", "_incarnation", "_partition", "_offset"]
).to_pylist()
print(len(rows), len({tuple(row.values()) for row in rows}), flush=True)
# Threads of the store may still run, and abort an orderly end.
os._exit(0)
"""


def readme_lines() -> list[str]:
    """Return the commands of the page, in their order."""
    blocks = [block for block in list_blocks() if (block.page, block.language) == (_PAGE, SHELL)]
    return [line for block in blocks for line in block.text.splitlines()]


@dataclass
class Walk:
    """Somebody in a copy of the example's folder. `services`: those that `docker compose up` starts here."""

    composition: Composition
    services: tuple[str, ...]
    folder: Path

    def lines(self) -> Iterator[str]:
        """Yield the lines of the page after the one of the secret, but for those of services that are not here."""
        absent = self.composition.file.services.keys() - set(self.services)
        for line in readme_lines():
            words = set(shlex.split(line))
            if not line.startswith(_SECRET_LINE) and not ("exec" in words and absent & words):
                yield line

    def run(self, line: str) -> str:
        """Run a line of the page. Returns what it said; raises AssertionError when it fails."""
        if line == "docker compose up -d":
            self.composition.up(*self.services)
            return ""
        if line == "docker compose ps":
            self._await_health()
            return ""
        if line == DOWN:
            codes = self.composition.stop()
            assert codes["headrace"] == 0, codes
            return ""
        if line.startswith(RUN):
            return self.composition.run(line.removeprefix(RUN))
        return self._run_shell(line)

    def _await_health(self) -> None:
        for name in self.services:
            if self.composition.file.services[name].healthcheck:
                self.composition.await_health(name)

    def _run_shell(self, line: str) -> str:
        cases = [
            f'{name}) exec {shlex.join(self.composition.entering(name))} "$@";;' for name in self.composition.running()
        ]
        docker = self.folder / "bin" / "docker"
        docker.parent.mkdir(exist_ok=True)
        docker.write_text(_DOCKER.format(cases="\n".join(cases)))
        docker.chmod(0o755)
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], cwd=self.folder, check=False, timeout=400,
            env={**os.environ, "PATH": f"{docker.parent}:{os.environ['PATH']}"}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def await_rows(self, count: int, seconds: float = 180) -> None:
        """Wait until the table has so many rows, each of an offset of its own."""
        deadline = time.monotonic() + seconds
        while (rows := self.count_rows()) != (count, count):
            assert time.monotonic() < deadline, f"{rows}: {self.composition.log('headrace')}"
            time.sleep(1)

    def count_rows(self) -> tuple[int, int]:
        """Count the rows of the table, and the different offsets in them, with delta-rs."""
        host = self.composition.hosts["minio"]
        credentials = {**os.environ, **self.composition.file.services["headrace"].environment}
        command = [sys.executable, "-c", _COUNT_ROWS, f"http://{host.address}:9000", "s3://lake/clicks"]
        with self.composition.hosts["headrace"].enter():
            done = subprocess.run(command, env=credentials, check=True, capture_output=True, text=True, timeout=300)
        rows, offsets = done.stdout.split()
        return int(rows), int(offsets)


@contextmanager
def walk(directory: Path, programs: Mapping[str, Program], services: tuple[str, ...] = ()) -> Iterator[Walk]:
    """Copy the example, and write its secret as the page does. Services: all, or some with what they depend on."""
    directory.chmod(0o755)
    folder = directory / "example"
    shutil.copytree(FOLDER, folder)
    (line,) = [line for line in readme_lines() if line.startswith(_SECRET_LINE)]
    subprocess.run(["bash", "-euo", "pipefail", "-c", line], cwd=folder, check=True, timeout=60)
    file = read_compose_file(folder / "compose.yaml")
    with composition(file, programs, directory / "services") as running:
        yield Walk(running, services or tuple(file.services), folder)


def common_programs(folder: Path) -> dict[str, Program]:
    """Return what stands for the images that come from the cache in any suite."""
    return {
        "apache/kafka": compose_images.kafka(folder / "kafka"),
        "apicurio/apicurio-registry": compose_images.registry(folder / "registry"),
        "headrace": compose_images.headrace(folder / "headrace"),
    }
