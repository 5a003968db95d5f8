"""What Trino and Presto share: one process that is coordinator and worker, files of Java properties, a first answer."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from headrace.bench.engines.statement import Coordinator
from headrace.writer.clients import java_artifacts
from headrace.writer.demo.devstack.process import LOOPBACK, Process, free_ports, java_options

# It takes 10 s on a quiet machine.
READY_WITHIN = timedelta(seconds=180)
Settings = Mapping[str, str]


@dataclass(frozen=True)
class Program:
    """How one of them is started. Its catalogs are named `delta` and `hive`."""

    # As its protocol's headers have it.
    name: str
    # The Java class.
    main: str
    home: Path
    java_min: int
    heap_megabytes: int
    # Of the Java runtime.
    options: Sequence[str]
    config: Settings
    catalogs: Mapping[str, Settings]


@contextmanager
def coordinator(program: Program, directory: Path) -> Iterator[Coordinator]:
    """Run it until the end of the block. Its catalogs have no schemas yet."""
    (port,) = free_ports(1)
    url = f"http://{LOOPBACK}:{port}"
    name = program.name.lower()
    _configure(program, directory, url)
    command: list[str | Path] = [
        java_artifacts.java(program.java_min),
        *java_options(directory, heap_megabytes=program.heap_megabytes),
        "-Djdk.attach.allowAttachSelf=true",
        *program.options,
        "-Dnode.environment=test",
        f"-Dnode.id={name}",
        f"-Dnode.internal-address={LOOPBACK}",
        f"-Dnode.bind-ip={LOOPBACK}",
        f"-Dnode.data-dir={directory}/data",
        f"-Dconfig={directory}/config.properties",
        f"-Dlog.levels-file={directory}/log.properties",
        "-cp",
        f"{program.home}/lib/*",
        program.main,
    ]
    # Else Presto cannot open files whose names are not ASCII.
    utf8 = {"LC_ALL": "C.UTF-8"}
    process = Process(name, command, cwd=directory, log=directory / f"{name}.log", env=utf8)
    server = Coordinator(url, program.name)
    try:
        process.launch()
        process.wait_until(
            lambda: server.answers("SELECT count(*) FROM delta.information_schema.tables"), within=READY_WITHIN
        )
        yield server
    finally:
        process.stop(grace=timedelta(0))


def _configure(program: Program, directory: Path, url: str) -> None:
    for folder in ("data", "catalog"):
        (directory / folder).mkdir(parents=True, exist_ok=True)
    config = {
        "coordinator": "true",
        "node-scheduler.include-coordinator": "true",
        "http-server.http.port": url.rpartition(":")[2],
        "discovery.uri": url,
        "catalog.config-dir": f"{directory}/catalog",
        **program.config,
    }
    lines(directory / "config.properties", config)
    lines(directory / "log.properties", {"": "WARN"})
    for name, settings in program.catalogs.items():
        lines(directory / "catalog" / f"{name}.properties", settings)


def lines(path: Path, settings: Settings) -> None:
    """Write a file of Java properties."""
    path.write_text("".join(f"{key}={value}\n" for key, value in settings.items()), encoding="utf-8")
