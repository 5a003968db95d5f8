"""Druid on loopback: ZooKeeper, coordinator with overlord, historical, indexer and broker, all in one JVM."""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from headrace.bench.engines.coordinator import lines
from headrace.writer.clients import java_artifacts
from headrace.writer.demo.devstack.process import LOOPBACK, Process, free_ports, java_options
from tests.servers import parts
from tests.servers.objects import ObjectServer

HEAP_MEGABYTES = 384
DIRECT_MEGABYTES = 400
READY_WITHIN = timedelta(seconds=240)  # seen: 25 s
EXTENSIONS = (
    "druid-parquet-extensions",
    "druid-deltalake-extensions",
    "druid-multi-stage-query",
    "druid-s3-extensions",
)
_EXPORTED = ("jdk.internal.ref", "jdk.internal.misc")
_OPENED = ("java.lang", "java.io", "java.nio", "java.util", "jdk.internal.ref", "sun.nio.ch", "jdk.internal.perf")
_LOG = """<Configuration status="WARN"><Appenders><Console name="C">
<PatternLayout pattern="%d{ISO8601} %p [%t] %c - %m%n"/>
</Console></Appenders><Loggers><Root level="warn"><AppenderRef ref="C"/></Root></Loggers></Configuration>"""


class IngestFailed(AssertionError):
    """Druid refused a task, or the task failed."""


@dataclass(frozen=True)
class Druid:
    """A running Druid: `broker` answers SQL, `overlord` takes tasks."""

    broker: str
    overlord: str

    def ask(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a query. Returns its rows."""
        query = {"query": sql, "resultFormat": "array", "context": {"useApproximateCountDistinct": False}}
        return [tuple(row) for row in _call(f"{self.broker}/druid/v2/sql", query)]

    def ingest(self, spec: Mapping[str, Any], *, seconds_max: float = 600) -> str:
        """Submit an ingestion, wait for its end and until its segments are served. Returns the task's id."""
        task = str(_call(f"{self.overlord}/druid/indexer/v1/task", spec)["task"])
        self.wait_for(task, seconds_max=seconds_max)
        return task

    def replace(self, sql: str, *, seconds_max: float = 600) -> str:
        """Run an INSERT or REPLACE to its end, as a multi-stage query. Returns the task's id."""
        task = _call(f"{self.broker}/druid/v2/sql/task", {"query": sql, "context": {"maxNumTasks": 2}})
        if task.get("state") == "FAILED":
            raise IngestFailed(f"Druid: {task}\n  {sql}")
        self.wait_for(task["taskId"], seconds_max=seconds_max)
        return str(task["taskId"])

    def wait_for(self, task: str, *, seconds_max: float) -> None:
        """Wait until a task has succeeded. Raises IngestFailed with Druid's own words."""
        deadline = time.monotonic() + seconds_max
        while True:
            try:
                status = _call(f"{self.overlord}/druid/indexer/v1/task/{task}/status")["status"]
            except HTTPError as error:  # a task that was submitted a moment ago
                if error.code != 404:
                    raise
                status = {"status": "UNKNOWN"}
            if status["status"] == "SUCCESS":
                return
            if status["status"] == "FAILED":
                raise IngestFailed(f"Druid: {task} failed: {status.get('errorMsg')}")
            if time.monotonic() > deadline:
                raise IngestFailed(f"Druid: {task} is {status['status']} after {seconds_max:g} s")
            time.sleep(0.2)

    def wait_for_segments(self, source: str, *, seconds_max: float = 300) -> None:
        """Wait until every segment of a data source that is used is available to queries, and known to the broker."""
        used = f"""SELECT count(*) FILTER (WHERE is_available = 0 AND is_overshadowed = 0), count(*)
          FROM sys.segments WHERE datasource = '{source}' AND is_active = 1"""
        shown = f"SELECT count(*) FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_NAME = '{source}'"
        deadline = time.monotonic() + seconds_max
        while True:
            missing, total = next(iter(self.ask(used)), (0, 0))  # over no segment there is no row
            if total and not missing and self.ask(shown) > [(1,)]:
                return
            assert time.monotonic() < deadline, f"{missing} of {total} segments of {source} are not served"
            time.sleep(0.2)


@contextmanager
def druid(directory: Path, s3: ObjectServer | None = None) -> Iterator[Druid]:
    """Run Druid until the end of the block."""
    home = parts.druid()
    zk, coordinator, broker, historical, indexer, derby = free_ports(6)
    _configure(directory, home, zk, derby, s3)
    _roles(directory, coordinator, broker, historical, indexer)
    command = [
        java_artifacts.java(),
        *java_options(directory, heap_megabytes=HEAP_MEGABYTES),
        f"-XX:MaxDirectMemorySize={DIRECT_MEGABYTES}m",
        "-XX:+ExitOnOutOfMemoryError",
        "-Duser.timezone=UTC",
        "-Daws.region=us-east-1",  # S3 input asks for one, whatever the endpoint
        "-Dfile.encoding=UTF-8",
        f"-Dderby.stream.error.file={directory}/derby.log",
        *(f"--add-exports=java.base/{package}=ALL-UNNAMED" for package in _EXPORTED),
        *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
        "--add-opens=jdk.management/com.sun.management.internal=ALL-UNNAMED",
        "-cp",
        home / "main",
        "DruidOneJvm",
        home / "lib",
        directory / "conf",
        *("zk", "coordinator", "historical", "indexer", "broker"),
    ]
    process = Process("druid", command, cwd=directory, log=directory / "druid.log", env={"LC_ALL": "C.UTF-8"})
    server = Druid(f"http://{LOOPBACK}:{broker}", f"http://{LOOPBACK}:{coordinator}")
    try:
        process.launch()
        process.wait_until(lambda: _answers(server), within=READY_WITHIN)
        yield server
    finally:
        process.stop(grace=timedelta(0))  # a gentle stop takes up to 20 s


def _answers(druid: Druid) -> bool:
    try:
        workers = _call(f"{druid.overlord}/druid/indexer/v1/workers")
        servers = {name for (name,) in druid.ask("SELECT server_type FROM sys.servers")}
    except (OSError, ValueError):
        return False
    return bool(workers) and {"historical", "indexer"} <= servers


def _call(url: str, body: Mapping[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    try:
        with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=400) as response:
            return json.load(response)
    except HTTPError as error:
        if body is None:
            raise
        raise IngestFailed(f"Druid: {error.code} {error.read().decode(errors='replace')[:2000]}") from error


def _configure(directory: Path, home: Path, zk: int, derby: int, s3: ObjectServer | None) -> None:
    for folder in ("conf/_common", "zk", "segments", "cache", "tasklogs", "taskbase"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    common = {
        "druid.extensions.directory": f"{home}/extensions",
        "druid.extensions.loadList": json.dumps(EXTENSIONS),
        "druid.host": "localhost",
        "druid.zk.service.host": f"localhost:{zk}",
        "druid.zk.paths.base": "/druid",
        "druid.metadata.storage.type": "derby",
        "druid.metadata.storage.connector.connectURI": f"jdbc:derby://localhost:{derby}/{directory}/metadata;create=true",
        "druid.metadata.storage.connector.host": "localhost",
        "druid.metadata.storage.connector.port": str(derby),
        "druid.storage.type": "local",
        "druid.storage.storageDirectory": f"{directory}/segments",
        "druid.indexer.logs.type": "file",
        "druid.indexer.logs.directory": f"{directory}/tasklogs",
        "druid.selectors.indexing.serviceName": "druid/overlord",
        "druid.selectors.coordinator.serviceName": "druid/coordinator",
        "druid.lookup.enableLookupSyncOnStartup": "false",
        "druid.emitter": "noop",
        "druid.startup.logging.logProperties": "false",
        "druid.server.http.numThreads": "12",
        "druid.processing.buffer.sizeBytes": "8MiB",
        "druid.processing.numThreads": "1",
        "druid.processing.numMergeBuffers": "1",
        "druid.sql.planner.metadataRefreshPeriod": "PT1S",
    }
    if s3 is not None:
        common |= {
            "druid.s3.accessKey": s3.key,
            "druid.s3.secretKey": s3.secret,
            "druid.s3.protocol": "http",
            "druid.s3.endpoint.url": s3.url,
            "druid.s3.endpoint.signingRegion": "us-east-1",
            "druid.s3.enablePathStyleAccess": "true",
        }
    lines(directory / "conf/_common/common.runtime.properties", common)
    (directory / "conf/_common/log4j2.xml").write_text(_LOG)
    zookeeper = {
        "tickTime": "2000",
        "dataDir": f"{directory}/zk",
        "clientPort": str(zk),
        "clientPortAddress": LOOPBACK,
        "admin.enableServer": "false",
        "maxClientCnxns": "0",
    }
    lines(directory / "conf/zoo.cfg", zookeeper)


def _roles(directory: Path, coordinator: int, broker: int, historical: int, indexer: int) -> None:
    uncached = {"useCache": "false", "populateCache": "false"}
    roles = {
        "coordinator": {
            "druid.service": "druid/coordinator",
            "druid.plaintextPort": str(coordinator),
            "druid.coordinator.asOverlord.enabled": "true",
            "druid.coordinator.asOverlord.overlordService": "druid/overlord",
            "druid.coordinator.startDelay": "PT1S",
            "druid.coordinator.period": "PT1S",
            "druid.manager.segments.pollDuration": "PT1S",
            "druid.indexer.queue.startDelay": "PT0S",
            "druid.indexer.runner.type": "httpRemote",
            "druid.indexer.storage.type": "metadata",
        },
        "broker": {
            "druid.service": "druid/broker",
            "druid.plaintextPort": str(broker),
            "druid.broker.http.numConnections": "5",
            **{f"druid.broker.cache.{key}": value for key, value in uncached.items()},
        },
        "historical": {
            "druid.service": "druid/historical",
            "druid.plaintextPort": str(historical),
            "druid.server.maxSize": "2000000000",
            "druid.segmentCache.locations": json.dumps([{"path": f"{directory}/cache", "maxSize": 2_000_000_000}]),
            "druid.cache.sizeInBytes": "1MiB",
            **{f"druid.historical.cache.{key}": value for key, value in uncached.items()},
        },
        "indexer": {  # whose tasks are threads
            "druid.service": "druid/indexer",
            "druid.plaintextPort": str(indexer),
            "druid.worker.capacity": "2",
            "druid.indexer.task.baseTaskDir": f"{directory}/taskbase",
            "druid.processing.numMergeBuffers": "2",
        },
    }
    for role, settings in roles.items():
        (directory / "conf" / role).mkdir(exist_ok=True)
        lines(directory / "conf" / role / "runtime.properties", settings)
