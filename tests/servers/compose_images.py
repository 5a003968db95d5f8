"""What stands for the images of the compose example: the programs of the same versions, which the cache has as jars.

Each is laid out as its image has it: where its files are, what its entrypoint does with the environment.
"""

from pathlib import Path

from headrace.bench.engines import trino
from headrace.writer.clients import java_artifacts
from headrace.writer.demo.devstack.registry import JAVA_MIN
from tests.servers import parts
from tests.servers.compose import Program
from tests.servers.containers import Image, Mount
from tests.servers.headrace_image import USER, headrace_image

_SYSTEM = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
_QUICK_START = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData"
# As /etc/kafka/docker/run of the image: Kafka's own wrapper writes the settings of the environment, and formats.
_KAFKA = """#!/bin/bash
set -euo pipefail
mkdir -p /opt/kafka/config
java=({java} {options} -cp "{jars}/*")
"${{java[@]}}" kafka.docker.KafkaDockerWrapper setup --default-configs-dir /etc/kafka/docker \
  --mounted-configs-dir /mnt/shared/config --final-configs-dir /opt/kafka/config
exec "${{java[@]}}" $KAFKA_HEAP_OPTS kafka.Kafka /opt/kafka/config/server.properties
"""
_LOG4J = "Configuration:\n  Loggers:\n    Root:\n      level: WARN\n    Logger: []\n"
_TRINO = """#!/bin/bash
exec {java} {options} -Xmx{heap}m -XX:ReservedCodeCacheSize=256M -Djdk.attach.allowAttachSelf=true \
  -Djdk.nio.maxCachedBufferSize=2000000 -Dnode.environment=docker -Dnode.data-dir=/data/trino \
  -Dconfig=/etc/trino/config.properties -Dlog.levels-file=/etc/trino/log.properties \
  -cp '/usr/lib/trino/lib/*' io.trino.server.TrinoServer
"""
# config.properties of the image, and less memory.
_TRINO_CONFIG = """coordinator=true
node-scheduler.include-coordinator=true
http-server.http.port=8080
discovery.uri=http://localhost:8080
catalog.config-dir=/etc/trino/catalog
plugin.dir=/usr/lib/trino/plugin
query.max-memory=256MB
query.max-memory-per-node=256MB
memory.heap-headroom-per-node=200MB
"""
# The command line `trino` of the image, as far as the example uses it.
_TRINO_CLIENT = """#!{python}
import sys
sys.path[:0] = {path}
from headrace.bench.engines.statement import Coordinator
text = sys.argv[sys.argv.index("--execute") + 1] if "--execute" in sys.argv else sys.stdin.read()
text = "\\n".join(line for line in text.splitlines() if not line.startswith("--"))
for statement in filter(None, map(str.strip, text.split(";"))):
    for row in Coordinator("http://localhost:8080", "Trino").ask(statement).rows:
        print(",".join(f'"{{value}}"' for value in row))
"""


def headrace(folder: Path) -> Program:
    """Stand for the image of the writer."""
    return Program(headrace_image(_make(folder)), USER)


def kafka(folder: Path) -> Program:
    """Stand for apache/kafka."""
    _make(folder)
    jars = java_artifacts.fetch("kafka", progress=print)
    command = _script(folder / "run", _KAFKA.format(java=java_artifacts.java(), options=_QUICK_START, jars=jars))
    defaults = folder / "defaults"
    defaults.mkdir()
    (defaults / "server.properties").touch()
    for name in ("log4j2.yaml", "tools-log4j2.yaml"):
        (defaults / name).write_text(_LOG4J)
    mounts = [Mount(defaults, "/etc/kafka/docker"), Mount(command, "/usr/local/bin/kafka-run")]
    return Program(Image(["kafka-run"], _SYSTEM, mounts))


def registry(folder: Path) -> Program:
    """Stand for apicurio/apicurio-registry, which is the same Quarkus application."""
    _make(folder)
    home = java_artifacts.fetch("registry", progress=print)
    java = java_artifacts.java(JAVA_MIN)
    return Program(Image([str(java), *_QUICK_START.split(), "-Xmx256m", "-jar", f"{home}/quarkus-run.jar"], _SYSTEM))


def minio(folder: Path, program: Path) -> Program:
    """Stand for minio/minio. `program`: MinIO, or what answers in its place."""
    _make(folder)
    return Program(Image([], _SYSTEM, [Mount(program, "/usr/bin/minio")]))


def trino_server(folder: Path, python: Path, path: list[str]) -> Program:
    """Stand for trinodb/trino. `python` and `path`: what its command line is made of here."""
    _make(folder)
    home = parts.trino()
    java = java_artifacts.java(trino.JAVA_MIN)
    settings = folder / "etc"
    (settings / "catalog").mkdir(parents=True)
    (settings / "config.properties").write_text(_TRINO_CONFIG)
    (settings / "log.properties").write_text("=WARN\n")
    run = _TRINO.format(java=java, options=_QUICK_START, heap=trino.HEAP_MEGABYTES)
    client = _TRINO_CLIENT.format(python=python, path=path)
    mounts = [
        Mount(home, "/usr/lib/trino"),
        # A catalog's file is mounted into it.
        Mount(settings, "/etc/trino", writable=True),
        Mount(_script(folder / "run-trino", run), "/usr/local/bin/run-trino"),
        Mount(_script(folder / "trino", client), "/usr/bin/trino"),
    ]
    return Program(Image(["run-trino"], _SYSTEM, mounts))


def _make(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def _script(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path
