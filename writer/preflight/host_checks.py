"""Checks of `validate` on this machine: locations, Java, jars, ports, other drivers, disk."""

import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import bucketers
from writer.clients import java_artifacts
from writer.clients.driver_endpoint import announcement, ask_driver
from writer.config.connections import Http
from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.config.table_sections import Catalog, layout
from writer.core.catalog_table import CatalogTable, written
from writer.core.errors import HeadraceError
from writer.core.text import instant, plural
from writer.core.units import show_size
from writer.preflight.finding import Finding, doubtful, failure, good, skipped, wrong
from writer.preflight.zone_checks import zone_data
from writer.scaling.spark_settings import slots_now_at_most
from writer.storage.base import S3Settings, StoreError
from writer.storage.locations import on_s3, store_at
from writer.storage.probe import probe
from writer.table import locations
from writer.table.factory import table_at
from writer.table.table import PipelineTable

_FREE_SHARE_MIN = 0.05  # of a disk; below it a person should know


def standing(location: str) -> Path:
    """Return the location, or the nearest directory above it that is there."""
    path = Path(location)
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


class ProbedPlaces:
    """The places that were probed. One that cannot be used is reported once, however many locations lie in it."""

    def __init__(
        self, s3: S3Settings | None, in_catalog: Callable[[str, str], CatalogTable | None] = lambda *_: None
    ) -> None:
        """`in_catalog`: place in the catalog of a pipeline's table at a location."""
        self.s3, self.in_catalog = s3, in_catalog
        self.no_catalog = ""  # why the catalog is not asked for tables
        self._unusable = dict[str, str]()  # place → the check that reported it

    def probed(self, check: str, location: str, *, exclusive: bool) -> str:
        """Probe a location, or the directory in which it would be made. Returns what can be done there, in words.

        Raises ReportedAlready, ProbeFailed, StoreSilent.
        """
        place = location if on_s3(location) else str(standing(location))
        if self.reported(location):
            raise ReportedAlready(f"{place} cannot be used: see {self._unusable[place].replace('_', ' ')}")
        try:
            probe(store_at(place, self.s3), exclusive=exclusive)
        except HeadraceError:
            self._unusable[place] = check
            raise
        return "can be written" if place == location else f"can be created in {place}"

    def reported(self, location: str) -> bool:
        """Return whether the place of a location is known to be unusable."""
        return (location if on_s3(location) else str(standing(location))) in self._unusable


class ReportedAlready(HeadraceError):
    """A place cannot be used, and another check has said so."""


def machine(config: Config, drivers: list[str], places: ProbedPlaces, *, offline: bool = False) -> Iterator[Finding]:
    """Look at what all pipelines share on this machine. `drivers`: pipelines of which a driver runs."""
    if offline and on_s3(config.checkpoints):
        yield skipped("checkpoints", "--offline")
    else:
        yield _checkpoints(config, places)
    if config.catalog is not None:
        yield _catalog(config, config.catalog, places, offline=offline)
    yield _java()
    yield _jars(s3=on_s3(config.checkpoints))
    yield _http(config.http, drivers)
    if any(pipeline.scheduling.min_share for pipeline in config.pipelines.values()):
        yield _scheduling(config)
    for receiver, url in (("openlineage", config.openlineage.url), ("opentelemetry", config.opentelemetry.url)):
        if url is not None:
            yield _receiver(receiver)


def _checkpoints(config: Config, places: ProbedPlaces) -> Finding:
    try:
        can = places.probed("checkpoints", config.checkpoints, exclusive=False)
    except HeadraceError as error:
        return failure("checkpoints", error)
    return good("checkpoints", f"{config.checkpoints} {can}")


def _catalog(config: Config, catalog: Catalog, places: ProbedPlaces, *, offline: bool) -> Finding:
    """Ask the catalog of Iceberg tables for a namespace: whether it answers, and knows who asks."""
    named = [(place, one.table.location) for name, one in config.pipelines.items()
             if (place := config.catalog_place(name, one.table.location)) is not None]  # fmt: skip
    if not named:
        return good("catalog", "no table is Iceberg's")
    if find_spec("pyiceberg") is None:
        places.no_catalog = "the catalog's package is not installed: see catalog"
        return wrong("catalog", "its package is not installed", "pip install 'headrace[iceberg]'")
    if offline and not (catalog.uri or "").startswith("sqlite:"):
        places.no_catalog = "--offline"
        return skipped("catalog", "--offline")
    from writer.table.iceberg.catalog.catalog_client import CatalogClient  # a second, for pyiceberg

    missing = set[str]()
    try:
        for place, location in named:
            if not CatalogClient(place, location, places.s3).has_namespace():
                missing.add(".".join(place.namespace))
    except OSError as error:
        places.no_catalog = "the catalog cannot be used: see catalog"
        return failure("catalog", error)
    where = f"{catalog.type} catalog {catalog.name!r} answers" + (f" at {catalog.uri}" if catalog.uri else "")
    made = f"; a start makes the namespace {', '.join(sorted(missing))}" if missing else ""
    return good("catalog", f"{where}{made}")


def _java() -> Finding:
    try:
        return good("java", f"{java_artifacts.java()} is a JDK {java_artifacts.JAVA_MIN} or newer")
    except java_artifacts.JavaMissing as error:
        return failure("java", error)


def _jars(*, s3: bool = False) -> Finding:
    """Return where Spark's Kafka jars are, without fetching them; those of its S3 file system too, if it needs them."""
    given = os.environ.get("HEADRACE_JARS")
    home = java_artifacts.cache_dir()
    bundles = [java_artifacts.BUNDLES["spark-kafka"], *(java_artifacts.S3_BUNDLES.values() if s3 else ())]
    missing = [] if given else [b for b in bundles if not any((home / f"{b.name}-{b.version}").glob("*.jar"))]
    what = "Spark's Kafka source and S3 file system" if s3 else "Spark's Kafka source"
    if missing:
        size = sum(bundle.megabytes for bundle in missing)
        return doubtful(
            "jars",
            f"jars of {what} are not in {home}: the first start fetches {size} MB",
            "Without a way to the network, set HEADRACE_JARS to a directory that holds them.",
        )
    try:
        jars = java_artifacts.spark_jars(s3=s3)
    except java_artifacts.ArtifactError as error:
        return failure("jars", error)
    return good("jars", f"{plural(len(jars), 'jar')} of {what} in {given or home}")


def _http(http: Http, drivers: list[str]) -> Finding:
    if not http.enabled:
        return good("http", "switched off (http.enabled)")
    where = f"{http.host}:{http.port}"
    if http.port == 0:
        return good("http", f"any free port of {http.host}")
    if drivers:
        return skipped("http", f"a driver of {', '.join(drivers)} runs, and may be the one that listens on {where}")
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


def _scheduling(config: Config) -> Finding:
    """Compare what pipelines are to get before others with what there is."""
    total = sum(pipeline.scheduling.min_share for pipeline in config.pipelines.values())
    slots = slots_now_at_most(config)
    message = f"minimum shares of {plural(total, 'slot')} in all"
    if slots is None or total <= slots:
        return good("scheduling", f"{message}; {'slots are not known here' if slots is None else f'of {slots}'}")
    return doubtful(
        "scheduling", f"{message}, and there are {slots}: not all can be kept, and pipelines without may starve",
        "Lower scheduling.min_share, or add cores (spark.master) or executors (autoscaler.executors_max).",
    )  # fmt: skip


def _receiver(receiver: str) -> Finding:
    """Look whether the package of a receiver is here; whether it answers is nothing that a batch depends on."""
    if find_spec(receiver) is None:
        return wrong(receiver, "its package is not installed", f"pip install 'headrace[{receiver}]'")
    return good(receiver, "its package is installed")


def running(config: Config, name: str, *, offline: bool) -> Finding:
    """Look for a driver that runs this pipeline already."""
    if offline and on_s3(config.checkpoints):
        return skipped("driver", "--offline")
    try:
        driver = announcement(config.checkpoints, name, config.s3.settings)
    except StoreError as error:
        return failure("driver", error)
    if driver is None:
        return good("driver", "none runs")
    if offline:
        return skipped("driver", f"--offline; one announced itself at {driver.url}")
    if ask_driver(driver, name) is None:
        return good("driver", f"none answers; the one at {driver.url} (process {driver.pid}) is gone")
    return doubtful(
        "driver",
        f"one runs since {instant(driver.started)} (process {driver.pid}, epoch {driver.epoch}, {driver.url})",
        "Another start takes the pipeline over, and this driver ends with exit code 4. `headrace status` shows it.",
    )


def tables(name: str, pipeline: Pipeline, places: ProbedPlaces, *, offline: bool = False) -> Iterator[Finding]:
    """Check the tables and those beside them: their owner, and whether commits are exclusive there."""
    own = [("table", pipeline)] if pipeline.route is None else [
        ("target", pipeline.of_target(rule, rule)) for rule in pipeline.route.fixed
    ]  # fmt: skip
    own += [("raw_table", raw)] if (raw := pipeline.of_raw) is not None else []
    checked = [(check, one.table, bucketers.build(one.bucket).columns, layout(one.bucket)) for check, one in own]
    log = [] if pipeline.route is None else [("table", pipeline.table, (), "")]
    dead_letters = pipeline.table.model_copy(update={"location": pipeline.dead_letters})
    for check, settings, by, words in [*log, *checked, ("dead_letters", dead_letters, (), "")]:
        away = offline and on_s3(settings.location)
        in_catalog = places.in_catalog(name, settings.location)
        if in_catalog is not None and places.no_catalog:
            yield skipped(check, places.no_catalog)
            continue
        table = table_at(settings.format, settings.location, name, s3=places.s3, catalog=in_catalog)
        same = partial(table.check_identity, by, words)
        to = written(settings.location, in_catalog)
        yield skipped(check, "--offline") if away else _table(check, name, table, same, to, places)
        if settings is pipeline.table and not away:
            yield from zone_data(pipeline, table, datetime.now(UTC))
    if not on_s3(pipeline.table.location) and not places.reported(pipeline.table.location):
        yield _disk(pipeline)


def nesting(name: str, config: Config, *, offline: bool = False, no_catalog: str = "") -> Iterator[Finding]:
    """Look whether a location of the pipeline lies inside another table or checkpoints, or around some."""
    settings = config.pipelines[name]
    if settings.table.format == "iceberg" and no_catalog:
        yield skipped("locations", no_catalog)
        return
    own = (config.checkpoints, *settings.locations)
    if offline and any(map(on_s3, own)):
        yield skipped("locations", "--offline")
        return
    try:
        found = locations.inspect(name, config)
    except HeadraceError as error:
        yield failure("locations", error)
        return
    for one in found.nestings:
        if one.refused:
            yield wrong("locations", str(one), locations.FIX)
        else:
            yield doubtful("locations", str(one), locations.MOVE)
    if not found.nestings:
        unseen = f"; {', '.join(found.unseen)} cannot be listed: a table there is not seen" if found.unseen else ""
        yield good("locations", f"none of its tables and checkpoints is inside another table{unseen}")


def _table(
    check: str, name: str, table: PipelineTable, check_identity: Callable[[], None],
    to: Sequence[tuple[str, bool]], places: ProbedPlaces,
) -> Finding:  # fmt: skip
    location = table.location
    if not on_s3(location) and not (place := standing(location)).is_dir():
        return wrong(check, f"{place} is a file, so {location} cannot be a table", "Choose another location.")
    try:
        can, *_ = [places.probed(check, at, exclusive=has_log) for at, has_log in to]
        exists = table.exists()
        if exists:
            check_identity()
            places.probed(check, table.log_location, exclusive=True)
        else:
            table.check_place()
    except ReportedAlready as error:
        return skipped(check, str(error))
    except HeadraceError as error:
        return failure(check, error)
    sure = "commits are exclusive there"
    if exists:
        return good(check, f"{location} is the table of {name}, at version {table.snapshot().version}; {sure}")
    if any(True for _ in store_at(location, places.s3).list()):
        return doubtful(
            check, f"{location} holds files, but no table; {sure}", "Make sure that nothing else lives there."
        )
    return good(check, f"{location} {can}; {sure}")


def _disk(pipeline: Pipeline) -> Finding:
    place = standing(pipeline.table.location)
    usage = shutil.disk_usage(place)
    message = f"{show_size(usage.free)} of {show_size(usage.total)} free at {place}"
    file = pipeline.roll.target_file_size
    if usage.free < file:
        return wrong("disk", f"{message}, less than one file ({show_size(file)})", "Make room there.")
    if usage.free < _FREE_SHARE_MIN * usage.total:
        return doubtful("disk", f"{message}: under {_FREE_SHARE_MIN:.0%}", "Make room there soon.")
    return good("disk", message)


def scratch(pipeline: Pipeline, row_bytes: float) -> Finding:
    """Look at the local disk that tasks spill to. `row_bytes`: of a row in memory, as the sample has them."""
    place = Path((os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0])
    need = pipeline.commit.max_records * row_bytes
    free = shutil.disk_usage(standing(str(place))).free
    message = (
        f"the rows of a full batch ({pipeline.commit.max_records:,} records) are about {show_size(need)}; "
        f"{show_size(free)} are free at {place}"
    )
    if free < need:
        return doubtful("spill", message, "Make room there, or set SPARK_LOCAL_DIRS, or lower commit.max_records.")
    return good("spill", message)
