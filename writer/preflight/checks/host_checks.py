"""Checks of `validate` on this machine: locations, versions, jars, ports, other drivers, disk."""

import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from headrace import bucketers
from headrace.bucketers.zone_data import find_zone_data
from headrace.writer.clients import java_artifacts
from headrace.writer.clients.driver_endpoint import ask_driver, read_announcement
from headrace.writer.config.pipeline import Pipeline, zones_of
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.connections import Http
from headrace.writer.config.sections.table import Catalog, Table, layout
from headrace.writer.core.catalog_table import CatalogTable, written_locations
from headrace.writer.core.errors import HeadraceError
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import instant, plural
from headrace.writer.core.units import show_size
from headrace.writer.offsets.run_record import find_lost_table
from headrace.writer.offsets.spark_checkpoint import Checkpoints
from headrace.writer.preflight.checks.finding import Finding, doubtful, failure, good, not_checked, wrong
from headrace.writer.preflight.checks.spark_login_check import needs_msk_jar
from headrace.writer.preflight.checks.version_runs import Versions, judge_versions, read_runs
from headrace.writer.scaling.spark_settings import slots_now_at_most
from headrace.writer.storage.base import StoreError
from headrace.writer.storage.locations import in_bucket, on_s3, store_at
from headrace.writer.storage.probe import probe
from headrace.writer.storage.settings import StoreSettings
from headrace.writer.table import locations
from headrace.writer.table.factory import main_table, table_at
from headrace.writer.table.log.zone_records import find_zone_changes
from headrace.writer.table.lost_tables import (
    DEAD_LETTER_TABLE,
    LATE_TABLE,
    RAW_TABLE,
    find_lost_side_table,
    former_side_tables,
)
from headrace.writer.table.table import PipelineTable

# A disk with a smaller free share is a warning.
_FREE_SHARE_MIN = 0.05


def existing_ancestor(location: str) -> Path:
    """Return the location, or the nearest directory above it that exists."""
    path = Path(location)
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


class ProbedLocations:
    """The locations that were probed. A directory that cannot be used is reported once, for all locations in it."""

    def __init__(
        self, stores: StoreSettings | None, in_catalog: Callable[[str, str], CatalogTable | None] = lambda *_: None
    ) -> None:
        """`in_catalog`: place in the catalog of a pipeline's table at a location."""
        self.stores = stores
        self.in_catalog = in_catalog
        # Why the catalog is not asked for tables; empty: it is asked.
        self.no_catalog = ""
        # The check that reported each unusable place.
        self._unusable = dict[str, str]()

    def probe_location(self, check: str, location: str, *, exclusive: bool) -> str:
        """Probe a location, or the directory in which it would be made. Returns what can be done there, in words.

        Raises ReportedAlready, ProbeFailed, StoreSilent.
        """
        directory = _probed_directory(location)
        if self.is_unusable(location):
            raise ReportedAlready(f"{directory} cannot be used: see {self._unusable[directory].replace('_', ' ')}")
        try:
            probe(store_at(directory, self.stores), exclusive=exclusive)
        except HeadraceError:
            self._unusable[directory] = check
            raise
        if directory == location:
            return "can be written"
        return f"can be created in {directory}"

    def is_unusable(self, location: str) -> bool:
        """Return whether a check reported the directory of a location as unusable."""
        return _probed_directory(location) in self._unusable


def _probed_directory(location: str) -> str:
    return location if in_bucket(location) else str(existing_ancestor(location))


class ReportedAlready(HeadraceError):
    """A directory cannot be used, and another check has said so."""


def machine(config: Config, drivers: list[str], probed: ProbedLocations, *, offline: bool = False) -> Iterator[Finding]:
    """Check what all pipelines share on this machine. `drivers`: pipelines of which a driver runs."""
    if offline and in_bucket(config.checkpoints):
        yield not_checked("checkpoints", "--offline")
    else:
        yield _checkpoints(config, probed)
    if config.catalog is not None:
        yield _catalog(config, config.catalog, probed, offline=offline)
    yield _versions()
    yield _jars(s3=on_s3(config.checkpoints), msk_iam=needs_msk_jar(config))
    yield _http(config.http, drivers)
    if any(pipeline.scheduling.min_share for pipeline in config.pipelines.values()):
        yield _scheduling(config)
    for receiver, url in (("openlineage", config.openlineage.url), ("opentelemetry", config.opentelemetry.url)):
        if url is not None:
            yield _receiver(receiver)


def _checkpoints(config: Config, probed: ProbedLocations) -> Finding:
    try:
        possible = probed.probe_location("checkpoints", config.checkpoints, exclusive=False)
    except HeadraceError as error:
        return failure("checkpoints", error)
    return good("checkpoints", f"{config.checkpoints} {possible}")


def _catalog(config: Config, catalog: Catalog, probed: ProbedLocations, *, offline: bool) -> Finding:
    """Ask the catalog of Iceberg tables for a namespace: whether it answers, and knows who asks."""
    iceberg_tables = [
        (table, pipeline.table.location)
        for name, pipeline in config.pipelines.items()
        if (table := config.catalog_place(name, pipeline.table.location)) is not None
    ]
    if not iceberg_tables:
        return good("catalog", "no table is Iceberg's")
    if find_spec("pyiceberg") is None:
        probed.no_catalog = "the catalog's package is not installed: see catalog"
        return wrong("catalog", "its package is not installed", "pip install 'headrace[iceberg]'")
    if offline and not (catalog.uri or "").startswith("sqlite:"):
        probed.no_catalog = "--offline"
        return not_checked("catalog", "--offline")
    # pyiceberg takes a second to import.
    from headrace.writer.table.iceberg.catalog.catalog_client import CatalogClient

    missing = set[str]()
    try:
        for table, location in iceberg_tables:
            if not CatalogClient(table, location, probed.stores).has_namespace():
                missing.add(".".join(table.namespace))
    except OSError as error:
        probed.no_catalog = "the catalog cannot be used: see catalog"
        return failure("catalog", error)
    where = f"{catalog.type} catalog {catalog.name!r} answers" + (f" at {catalog.uri}" if catalog.uri else "")
    note = ""
    if missing:
        note = f"; a start makes the namespace {', '.join(sorted(missing))}"
    return good("catalog", f"{where}{note}")


def _versions() -> Finding:
    """Say which Spark, Java and Python a driver has here, and whether the project ran them."""
    try:
        spark = java_artifacts.spark_version()
        java = java_artifacts.java_version(java_artifacts.spark_java())
    except (java_artifacts.JavaMissing, java_artifacts.SparkUnsupported) as error:
        return failure("versions", error)
    assert java is not None, "spark_java has asked this binary"
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return judge_versions(Versions(spark, java, python), read_runs())


def _jars(*, s3: bool = False, msk_iam: bool = False) -> Finding:
    """Return where Spark's Kafka jars are, without fetching them, with those of its S3 file system and of MSK's login.

    `s3`, `msk_iam`: whether it needs them.
    """
    directory = os.environ.get("HEADRACE_JARS")
    purpose = "Spark's Kafka source"
    if s3:
        purpose += " and S3 file system"
    if msk_iam:
        purpose += " and of its login at Amazon MSK"
    try:
        missing = java_artifacts.missing_bundles(s3=s3, msk_iam=msk_iam)
    except java_artifacts.SparkUnsupported:
        return not_checked("jars", "there are none for this Spark: see versions")
    if missing:
        size = sum(bundle.megabytes for bundle in missing)
        return doubtful(
            "jars",
            f"jars of {purpose} are not in {java_artifacts.cache_dir()}: the first start fetches {size} MB",
            "Without a way to the network, set HEADRACE_JARS to a directory that holds them.",
        )
    try:
        jars = java_artifacts.spark_jars(s3=s3, msk_iam=msk_iam)
    except java_artifacts.ArtifactError as error:
        return failure("jars", error)
    return good("jars", f"{plural(len(jars), 'jar')} of {purpose} in {directory or java_artifacts.cache_dir()}")


def _http(http: Http, drivers: list[str]) -> Finding:
    if not http.enabled:
        return good("http", "switched off (http.enabled)")
    where = f"{http.host}:{http.port}"
    if http.port == 0:
        return good("http", f"any free port of {http.host}")
    if drivers:
        return not_checked("http", f"a driver of {', '.join(drivers)} runs, and may be the one that listens on {where}")
    family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
    with socket.socket(family) as listener:
        # The driver sets it, too.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((http.host, http.port))
        except OSError as error:
            return wrong(
                "http",
                f"{where} cannot be listened on: {error.strerror}",
                "Set http.port to a free one (0 takes any), or http.enabled to false.",
            )
    return good("http", f"{where} is free")


def _scheduling(config: Config) -> Finding:
    """Compare what pipelines are to get before others with what there is."""
    total = sum(pipeline.scheduling.min_share for pipeline in config.pipelines.values())
    slots = slots_now_at_most(config)
    message = f"minimum shares of {plural(total, 'slot')} in all"
    if slots is None:
        return good("scheduling", f"{message}; slots are not known here")
    if total <= slots:
        return good("scheduling", f"{message}; of {slots}")
    return doubtful(
        "scheduling",
        f"{message}, and there are {slots}: not all can be kept, and pipelines without may starve",
        "Lower scheduling.min_share, or add cores (spark.master) or executors (autoscaler.max_executors).",
    )


def _receiver(receiver: str) -> Finding:
    """Check that the package of a receiver is installed. No batch depends on whether the receiver answers."""
    if find_spec(receiver) is None:
        return wrong(receiver, "its package is not installed", f"pip install 'headrace[{receiver}]'")
    return good(receiver, "its package is installed")


def running_driver(config: Config, name: str, *, offline: bool) -> Finding:
    """Look for a driver that runs this pipeline already."""
    if offline and in_bucket(config.checkpoints):
        return not_checked("driver", "--offline")
    try:
        driver = read_announcement(config.checkpoints, name, config.stores)
    except StoreError as error:
        return failure("driver", error)
    if driver is None:
        return good("driver", "none runs")
    if offline:
        return not_checked("driver", f"--offline; one announced itself at {driver.url}")
    if ask_driver(driver, name) is None:
        return good("driver", f"none answers; the one at {driver.url} (process {driver.pid}) is gone")
    return doubtful(
        "driver",
        f"one runs since {instant(driver.started)} (process {driver.pid}, epoch {driver.epoch}, {driver.url})",
        "Another start takes the pipeline over, and this driver ends with exit code 4. `headrace status` shows it.",
    )


@dataclass(frozen=True)
class _CheckedTable:
    """A table of a pipeline, and the bucket columns and layout that it must have.

    `kind`: of one beside the log that is none of a route, as in "dead-letter table".
    """

    check: str
    settings: Table
    columns: tuple[str, ...] = ()
    layout: str = ""
    kind: str = ""

    @classmethod
    def with_buckets(cls, check: str, pipeline: Pipeline, kind: str = "") -> "_CheckedTable":
        columns = bucketers.build(pipeline.bucket).columns
        return cls(check, pipeline.table, tuple(columns), layout(pipeline.bucket), kind)


def tables(name: str, config: Config, probed: ProbedLocations, *, offline: bool = False) -> Iterator[Finding]:
    """Check the tables and those beside them: their owner, and whether commits are exclusive there."""
    pipeline = config.pipelines[name]
    for checked in _checked_tables(pipeline):
        location = checked.settings.location
        in_catalog = probed.in_catalog(name, location)
        if in_catalog is not None and probed.no_catalog:
            yield not_checked(checked.check, probed.no_catalog)
        elif offline and in_bucket(location):
            yield not_checked(checked.check, "--offline")
        else:
            table = table_at(checked.settings.format, location, name, stores=probed.stores, catalog=in_catalog)
            check_identity = partial(table.check_identity, checked.columns, checked.layout)
            yield _table(checked.check, name, table, check_identity, written_locations(location, in_catalog), probed)
            if checked.kind and not (offline and in_bucket(pipeline.table.location)):
                yield from _side_table(checked, table, main_table(name, config), pipeline)
            if checked.settings is pipeline.table:
                if not (offline and in_bucket(config.checkpoints)):
                    yield from _lost_table(table, Checkpoints(config.checkpoints, name, config.stores))
                yield from zone_data(pipeline, table, datetime.now(UTC))
    if not in_bucket(pipeline.table.location) and not probed.is_unusable(pipeline.table.location):
        yield _disk(pipeline)


def _checked_tables(pipeline: Pipeline) -> Iterator[_CheckedTable]:
    if pipeline.route is None:
        yield _CheckedTable.with_buckets("table", pipeline)
    else:
        # The location of a pipeline with a route has the log alone.
        yield _CheckedTable("table", pipeline.table)
        for target in pipeline.route.fixed:
            yield _CheckedTable.with_buckets("target", pipeline.of_target(target, target))
    if pipeline.of_raw is not None:
        yield _CheckedTable.with_buckets("raw_table", pipeline.of_raw, RAW_TABLE)
    if pipeline.late_table is not None:
        late = pipeline.table.model_copy(update={"location": pipeline.late_table})
        late_pipeline = pipeline.model_copy(update={"table": late})
        yield _CheckedTable.with_buckets("late_table", late_pipeline, LATE_TABLE)
    dead_letters = pipeline.table.model_copy(update={"location": pipeline.dead_letters})
    yield _CheckedTable("dead_letters", dead_letters, kind=DEAD_LETTER_TABLE)


def nesting(name: str, config: Config, *, offline: bool = False, no_catalog: str = "") -> Iterator[Finding]:
    """Check that no location of the pipeline lies inside another table or checkpoints, or around some."""
    settings = config.pipelines[name]
    if settings.table.format == "iceberg" and no_catalog:
        yield not_checked("locations", no_catalog)
        return
    own = (config.checkpoints, *settings.locations)
    if offline and any(map(in_bucket, own)):
        yield not_checked("locations", "--offline")
        return
    try:
        inspection = locations.inspect_locations(name, config)
    except HeadraceError as error:
        yield failure("locations", error)
        return
    for nesting in inspection.nestings:
        if nesting.refused:
            yield wrong("locations", str(nesting), locations.FIX)
        else:
            yield doubtful("locations", str(nesting), locations.MOVE)
    if not inspection.nestings:
        note = ""
        if inspection.unseen:
            note = f"; {', '.join(inspection.unseen)} cannot be listed: a table there is not seen"
        yield good("locations", f"none of its tables and checkpoints is inside another table{note}")


def _table(
    check: str,
    name: str,
    table: PipelineTable,
    check_identity: Callable[[], object],
    locations: Sequence[tuple[str, bool]],
    probed: ProbedLocations,
) -> Finding:
    location = table.location
    if not in_bucket(location) and not (directory := existing_ancestor(location)).is_dir():
        return wrong(check, f"{directory} is a file, so {location} cannot be a table", "Choose another location.")
    try:
        possible, *_ = [probed.probe_location(check, location, exclusive=has_log) for location, has_log in locations]
        exists = table.exists()
        if exists:
            check_identity()
            probed.probe_location(check, table.log_location, exclusive=True)
        else:
            table.check_location()
    except ReportedAlready as error:
        return not_checked(check, str(error))
    except HeadraceError as error:
        return failure(check, error)
    note = "commits are exclusive there"
    if exists:
        return good(check, f"{location} is the table of {name}, at version {table.snapshot().version}; {note}")
    if any(True for _ in store_at(location, probed.stores).list()):
        return doubtful(
            check, f"{location} holds files, but no table; {note}", "Make sure that nothing else lives there."
        )
    return good(check, f"{location} {possible}; {note}")


def _lost_table(table: PipelineTable, checkpoints: Checkpoints) -> Iterator[Finding]:
    """Report a table that is not there, though a run of the pipeline has written to it."""
    try:
        if table.exists():
            return
        lost = find_lost_table(checkpoints.store, table.location)
    except (HeadraceError, StoreError):
        # The checks of the table and of the checkpoints say it.
        return
    if lost is not None:
        yield wrong("table", lost.reason, lost.fix)


def _side_table(
    checked: _CheckedTable, table: PipelineTable, log: PipelineTable, pipeline: Pipeline
) -> Iterator[Finding]:
    """Report a table beside the log that was lost, and one that a start makes while others are left behind."""
    former = list[str]()
    try:
        if not log.exists():
            return
        snapshot = log.snapshot()
        lost = find_lost_side_table(table, checked.kind, snapshot, log.location)
        if table.location not in snapshot.side_table_ids and not table.exists():
            former = former_side_tables(pipeline, snapshot)
    except HeadraceError:
        # The checks of the tables say it.
        return
    if lost is not None:
        yield wrong(checked.check, lost.reason, lost.fix)
    if former:
        yield doubtful(
            checked.check,
            f"{table.location} is a new place: the log knows tables at {', '.join(former)}, which the configuration "
            "does not name. What they hold stays there, and `headrace audit` misses it",
            f"Name the former location, or move the table ({page_address('docs/TABLES.md')}).",
        )


def zone_data(pipeline: Pipeline, table: PipelineTable, now: datetime) -> Iterator[Finding]:
    """Compare the zones of buckets and clocks with those of the table's log. Says nothing where all is UTC."""
    data = [find_zone_data(zone) for zone in zones_of(pipeline)]
    try:
        recorded = table.snapshot().zone_data if data and table.exists() else {}
    except HeadraceError:
        # The check of the table says it.
        return
    changes = find_zone_changes(recorded, data, now)
    if changes:
        yield doubtful(
            "zone_data",
            "; ".join(change.phrase for change in changes),
            "A start goes by the data of this machine and logs the change. Rows of those spans that come later have "
            f"other labels than those before ({page_address('docs/BUCKETS.md')}).",
        )
    elif data:
        shown = ", ".join(f"{zone_data.zone} ({zone_data.version or 'unknown'})" for zone_data in data)
        yield good("zone_data", f"{shown}: {'as the table has it' if recorded else 'the table has none yet'}")


def _disk(pipeline: Pipeline) -> Finding:
    directory = existing_ancestor(pipeline.table.location)
    usage = shutil.disk_usage(directory)
    message = f"{show_size(usage.free)} of {show_size(usage.total)} free at {directory}"
    file_size = pipeline.roll.target_file_size
    if usage.free < file_size:
        return wrong("disk", f"{message}, less than one file ({show_size(file_size)})", "Make room there.")
    if usage.free < _FREE_SHARE_MIN * usage.total:
        return doubtful("disk", f"{message}: under {_FREE_SHARE_MIN:.0%}", "Make room there soon.")
    return good("disk", message)


def scratch(pipeline: Pipeline, row_bytes: float) -> Finding:
    """Look at the local disk that tasks spill to. `row_bytes`: of a row in memory, as the sample has them."""
    directory = Path((os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")[0])
    need = pipeline.commit.max_offsets * row_bytes
    free = shutil.disk_usage(existing_ancestor(str(directory))).free
    message = (
        f"the rows of a full batch ({pipeline.commit.max_offsets:,} offsets) are about {show_size(need)}; "
        f"{show_size(free)} are free at {directory}"
    )
    if free < need:
        return doubtful("spill", message, "Make room there, or set SPARK_LOCAL_DIRS, or lower commit.max_offsets.")
    return good("spill", message)
