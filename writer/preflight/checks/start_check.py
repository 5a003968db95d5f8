"""Checks all that a start needs, in the order in which a person mends it: file, servers, machine, pipelines.

Creates nothing but probe files, which it removes. A pipeline that runs is not disturbed.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from headrace.writer.clients import kafka_sample
from headrace.writer.clients.driver_endpoint import answers
from headrace.writer.clients.kafka import Cluster
from headrace.writer.config.loader import load
from headrace.writer.config.pipelines import Config
from headrace.writer.config.sections.registry import Registry
from headrace.writer.core.errors import ConfigError, HeadraceError
from headrace.writer.core.pages import page_address
from headrace.writer.core.text import plural
from headrace.writer.preflight.checks import host_checks, source_checks
from headrace.writer.preflight.checks.finding import Finding, failure, good, not_checked
from headrace.writer.preflight.checks.hook_check import check_hooks
from headrace.writer.preflight.checks.lifecycle_check import check_lifecycle
from headrace.writer.preflight.checks.login_check import check_logins
from headrace.writer.preflight.checks.retention_check import check_retention
from headrace.writer.preflight.checks.spark_login_check import check_spark_login, has_own_login
from headrace.writer.schemas.registry import GlueRegistry, SchemaSource, TwoRegistries, source
from headrace.writer.schemas.registry_client import without_user
from headrace.writer.storage.base import StoreError

_CHECKS_OF_ALL = ("broker", "registry", "checkpoints", "versions", "jars", "http", "scheduling")


@dataclass(frozen=True)
class Section:
    """The title of the findings that follow: of a file, or of a pipeline."""

    title: str


@dataclass(frozen=True)
class _Broker:
    """The broker, or why none can be asked."""

    finding: Finding
    cluster: Cluster | None = None
    reason: str = ""


@dataclass(frozen=True)
class _Registry:
    """The registry's schemas, or why there are none."""

    finding: Finding
    schemas: SchemaSource | None = None
    reason: str = ""


def check_start(
    path: Path, pipelines: list[str] | None, *, offline: bool, records: int, now: datetime
) -> Iterator[Section | Finding]:
    """Yield what each check finds, as soon as it is known. `records`: how many of each pipeline to sample; 0: none."""
    yield Section(str(path))
    try:
        config = without_catalog_retries(load(path))
        names = config.chosen(pipelines)
    except ConfigError as error:
        yield _file_finding(error)
        for check in _CHECKS_OF_ALL:
            yield not_checked(check, "the file cannot be used")
        return
    yield good("file", f"{plural(len(config.pipelines), 'pipeline')}: {', '.join(config.pipelines)}")
    yield from check_logins(path, config, names)
    broker = _check_broker(config, offline=offline)
    yield broker.finding
    registries = _check_registries(config, names, offline=offline)
    yield from dict.fromkeys(registry.finding for registry in registries.values())
    if has_own_login(config):
        yield check_spark_login(config, names, broker.reason)
    drivers: list[str] = []
    if not offline:
        drivers = [name for name in names if _has_driver(config, name)]
    locations = host_checks.ProbedLocations(config.stores, config.catalog_place)
    yield from host_checks.machine(config, drivers, locations, offline=offline)
    for name in names:
        settings = config.pipelines[name]
        registry = registries[name]
        systems = source_checks.ReachableSystems(broker.cluster, broker.reason, registry.schemas, registry.reason)
        yield Section(f"{name}: {settings.topics} → {settings.table.location}")
        for finding in _check_pipeline(name, config, systems, locations, records, now, offline=offline):
            yield replace(finding, pipeline=name)


def without_catalog_retries(config: Config) -> Config:
    """Return the configuration for a look at things: a catalog that does not answer is not asked again."""
    if config.catalog is None:
        return config
    return config.model_copy(update={"catalog": config.catalog.model_copy(update={"retry_timeout": timedelta(0)})})


def _file_finding(error: ConfigError) -> Finding:
    # An error of several lines has one for each fault, with its own fix.
    has_several_lines = "\n" in str(error)
    finding = Finding("file", "failed", str(error)) if has_several_lines else failure("file", error)
    if finding.fix:
        return finding
    return replace(finding, fix=f"Correct the file. {page_address('docs/REFERENCE.md')} lists every key.")


def _check_pipeline(
    name: str,
    config: Config,
    systems: source_checks.ReachableSystems,
    locations: host_checks.ProbedLocations,
    records: int,
    now: datetime,
    *,
    offline: bool,
) -> Iterator[Finding]:
    yield from source_checks.pipeline(name, config, systems, records, now)
    yield from host_checks.tables(name, config, locations, offline=offline)
    yield from host_checks.nesting(name, config, offline=offline, no_catalog=locations.no_catalog)
    yield from check_retention(name, config, now, offline=offline)
    yield from check_lifecycle(name, config, locations, offline=offline)
    yield from check_hooks(name, config, offline=offline)
    yield host_checks.running_driver(config, name, offline=offline)


def _has_driver(config: Config, name: str) -> bool:
    # That the checkpoints cannot be read, a check of its own says.
    with suppress(StoreError):
        return answers(config, name) is not None
    return False


def _check_broker(config: Config, *, offline: bool) -> _Broker:
    """Ask the broker whether it answers."""
    if offline:
        return _Broker(not_checked("broker", "--offline"), reason="--offline")
    try:
        cluster = kafka_sample.open_cluster(config.kafka)
        count = cluster.brokers()
    except HeadraceError as error:
        return _Broker(failure("broker", error), reason="no broker answers")
    verb = "answers" if count == 1 else "answer"
    return _Broker(good("broker", f"{plural(count, 'broker')} {verb} at {config.kafka.bootstrap_servers}"), cluster)


def _check_registries(config: Config, names: Sequence[str], *, offline: bool) -> dict[str, _Registry]:
    """Check the registry of each pipeline, by the pipeline's name; one that several share is asked once."""
    checked = list[tuple[Registry, _Registry]]()
    by_pipeline = dict[str, _Registry]()
    for name in names:
        settings = config.registry_of(name)
        registry = next((registry for other, registry in checked if other == settings), None)
        if registry is None:
            # Any topic will do.
            topic = next(iter(config.pipelines[name].topics.names), "headrace")
            registry = _check_registry(settings, topic, offline=offline)
            checked.append((settings, registry))
        by_pipeline[name] = registry
    return by_pipeline


def _check_registry(registry: Registry, topic: str, *, offline: bool) -> _Registry:
    """Ask the registry whether it answers, or read the schema files."""
    if offline and registry.has_registry:
        return _Registry(not_checked("registry", "--offline"), reason="--offline")
    try:
        schemas = source(registry)
        schemas.topic_schemas(topic)
        if isinstance(schemas, TwoRegistries):
            schemas.glue.topic_schemas(topic)
    except HeadraceError as error:
        reason = "no registry answers"
        if not registry.has_registry:
            reason = "a schema file cannot be read"
        return _Registry(failure("registry", error), reason=reason)
    if not registry.has_registry:
        needed = plural(len(registry.files), "schema file") if registry.files else "none is needed"
        return _Registry(good("registry", needed), schemas)
    answers: list[str] = []
    if registry.url is not None:
        answers.append(f"answers at {without_user(registry.url)}")
    if registry.glue is not None:
        answers.append(f"{GlueRegistry(registry.glue).name} answers")
    return _Registry(good("registry", ", ".join(answers)), schemas)
