"""What `validate` finds on this machine: whether the writer may write where it should, and has what it runs on."""

import os
import secrets
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import bucketers
from writer import artifacts
from writer.config import Config, Http, Pipeline, layout
from writer.errors import HeadraceError
from writer.surface.finding import Finding, doubtful, failure, good, skipped, wrong
from writer.surface.http import announced, asked
from writer.surface.words import instant, plural
from writer.tables.delta import DeltaLake
from writer.units import show_size

_FREE_SHARE_MIN = 0.05  # of a disk; below it somebody should know


class ProbeFailed(HeadraceError):
    """A directory does not do what the writer needs of it."""


def probe(directory: Path, *, exclusive: bool) -> None:
    """Write a file, and remove it. Raises ProbeFailed.

    `exclusive`: also create it twice, as a commit creates an entry of the table's log: complete under another name,
    then a hard link. The second one must fail, or two writers would both believe that theirs is the commit.
    """
    fresh, entry = (directory / f".headrace-probe-{secrets.token_hex(6)}" for _ in range(2))
    try:
        try:
            fresh.write_bytes(b"headrace\n")
        except OSError as error:
            raise ProbeFailed(
                f"{directory} takes no files: {error.strerror}. Let this user write there, or choose another location."
            ) from error
        if not exclusive:
            return
        try:
            entry.hardlink_to(fresh)
        except OSError as error:
            raise ProbeFailed(
                f"the file system of {directory} makes no hard links ({error.strerror}), by which a commit is created "
                "only once. Choose a location on another file system."
            ) from error
        try:
            entry.hardlink_to(fresh)
        except FileExistsError:
            return
        raise ProbeFailed(
            f"the file system of {directory} lets a file be created twice, so two writers could both commit. Choose a "
            "location on another file system."
        )
    finally:
        for path in (entry, fresh):
            with suppress(OSError):
                path.unlink(missing_ok=True)


def standing(location: str) -> Path:
    """Return the location, or the nearest directory above it that is there."""
    path = Path(location)
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def machine(config: Config, drivers: list[str]) -> Iterator[Finding]:
    """Look at what all pipelines share on this machine. `drivers`: pipelines of which a driver runs."""
    yield _checkpoints(config)
    yield _java()
    yield _jars()
    yield _http(config.http, drivers)


def _checkpoints(config: Config) -> Finding:
    place = standing(config.checkpoints)
    try:
        probe(place, exclusive=False)
    except ProbeFailed as error:
        return failure("checkpoints", error)
    return good("checkpoints", f"{config.checkpoints} {_can(Path(config.checkpoints), place)}")


def _can(wanted: Path, standing_at: Path) -> str:
    return "can be written" if wanted == standing_at else f"can be created in {standing_at}"


def _java() -> Finding:
    try:
        return good("java", f"{artifacts.java()} is a JDK {artifacts.JAVA_MIN} or newer")
    except artifacts.JavaMissing as error:
        return failure("java", error)


def _jars() -> Finding:
    """Tell where Spark's Kafka jars are, without fetching them."""
    given = os.environ.get("HEADRACE_JARS")
    bundle = artifacts.BUNDLES["spark-kafka"]
    directory = Path(given) if given else artifacts.cache_dir() / f"{bundle.name}-{bundle.version}"
    jars = list(directory.glob("*.jar"))
    if jars:
        return good("jars", f"{plural(len(jars), 'jar')} of Spark's Kafka source in {directory}")
    if given:
        return wrong("jars", f"{given} holds no jar", "Unset HEADRACE_JARS, or point it at Spark's Kafka jars.")
    return doubtful(
        "jars",
        f"Spark's Kafka jars are not in {directory.parent}: the first start fetches {bundle.megabytes} MB",
        "Without a way to the network, set HEADRACE_JARS to a directory that holds them.",
    )


def _http(http: Http, drivers: list[str]) -> Finding:
    if not http.enabled:
        return good("http", "switched off (http.enabled)")
    where = f"{http.host}:{http.port}"
    if http.port == 0:
        return good("http", f"any free port of {http.host}")
    if drivers:
        return skipped("http", f"a driver of {', '.join(drivers)} runs, and may be who listens on {where}")
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the driver does
        try:
            listener.bind((http.host, http.port))
        except OSError as error:
            return wrong(
                "http", f"{where} cannot be listened on: {error.strerror}",
                "Set http.port to a free one (0 takes any), or http.enabled to false.",
            )  # fmt: skip
    return good("http", f"{where} is free")


def running(config: Config, name: str, *, offline: bool) -> Finding:
    """Look for a driver that runs this pipeline already."""
    driver = announced(config.checkpoints, name)
    if driver is None:
        return good("driver", "none runs")
    if offline:
        return skipped("driver", f"--offline; one announced itself at {driver.url}")
    if asked(driver, name) is None:
        return good("driver", f"none answers; the one at {driver.url} (process {driver.pid}) is gone")
    return doubtful(
        "driver",
        f"one runs since {instant(driver.started)} (process {driver.pid}, start {driver.epoch}, {driver.url})",
        "Another start takes the pipeline over, and this driver ends with exit code 4. `headrace status` shows it.",
    )


def tables(name: str, pipeline: Pipeline) -> Iterator[Finding]:
    """Look at the table and the dead-letter table: whose they are, and whether commits are exclusive there."""
    columns = bucketers.build(pipeline.bucket).columns
    yield _table("table", name, pipeline.table.location, columns, layout(pipeline.bucket))
    yield _table("dead_letters", name, pipeline.dead_letters, (), "")
    yield _disk(pipeline)


def _table(check: str, name: str, location: str, columns: tuple[str, ...], words: str) -> Finding:
    table, place = DeltaLake(location, name), standing(location)
    if not place.is_dir():
        return wrong(check, f"{place} is a file, so {location} cannot be a table", "Choose another location.")
    try:
        exists = table.exists()
        if exists:
            table.check_identity(columns, words)
        for directory in (place, place / "_delta_log") if exists else (place,):
            probe(directory, exclusive=True)
    except HeadraceError as error:
        return failure(check, error)
    sure = "commits are exclusive there"
    if exists:
        return good(check, f"{location} is the table of {name}, at version {table.snapshot().version}; {sure}")
    if str(place) == location and any(place.iterdir()):
        return doubtful(
            check, f"{location} holds files, but no table; {sure}", "Make sure that nothing else lives there."
        )
    return good(check, f"{location} {_can(Path(location), place)}; {sure}")


def _disk(pipeline: Pipeline) -> Finding:
    place = standing(pipeline.table.location)
    usage = shutil.disk_usage(place)
    said = f"{show_size(usage.free)} of {show_size(usage.total)} free at {place}"
    file = pipeline.roll.target_file_size
    if usage.free < file:
        return wrong("disk", f"{said}, less than one file ({show_size(file)})", "Make room there.")
    if usage.free < _FREE_SHARE_MIN * usage.total:
        return doubtful("disk", f"{said}: under {_FREE_SHARE_MIN:.0%}", "Make room there soon.")
    return good("disk", said)


def scratch(pipeline: Pipeline, row_bytes: float) -> Finding:
    """Look at the local disk that tasks spill to. `row_bytes`: of a row in memory, as the sample has them."""
    place = Path((os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0])
    need = pipeline.commit.max_records * row_bytes
    free = shutil.disk_usage(standing(str(place))).free
    said = (
        f"the rows of a full batch ({pipeline.commit.max_records:,} records) are about {show_size(need)}; "
        f"{show_size(free)} are free at {place}"
    )
    if free < need:
        return doubtful("spill", said, "Make room there, or set SPARK_LOCAL_DIRS, or lower commit.max_records.")
    return good("spill", said)
