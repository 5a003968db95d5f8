"""Checks the locations of a pipeline, or of its shadow, against other tables, before a start writes anything."""

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product

from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.pipelines import Config
from headrace.writer.core import logging
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.pages import page_address
from headrace.writer.storage.base import Store, StoreError, Unanswered
from headrace.writer.storage.locations import in_bucket, parse_location, store_at
from headrace.writer.storage.nesting import (
    METADATA,
    TABLE_MARKERS,
    Location,
    Nesting,
    Parts,
    enclosing_folders,
    find_nestings,
    is_iceberg,
    location_of,
    parts,
)
from headrace.writer.table.factory import main_table, side_table, table_names
from headrace.writer.table.log.foreign_writes import reading

FIX = (
    "Give each a folder of its own, side by side; inside a table only below a name that begins with _ or . "
    f"({page_address('docs/TABLES.md')})."
)
MOVE = (
    "It was there before, so it is opened, and vacuum leaves it alone. Move it with its history when there is time "
    f"({page_address('docs/TABLES.md')})."
)


@dataclass(frozen=True)
class LocationInspection:
    """Which locations of a pipeline lie inside tables around them, or around others.

    `unseen`: folders above, that the storage does not let be listed.
    """

    nestings: tuple[Nesting, ...]
    unseen: tuple[str, ...]


def inspect_locations(name: str, config: Config) -> LocationInspection:
    """Find which locations of a pipeline lie inside others, or around them. Raises CommitFailed."""
    with reading(config.pipelines[name].table.location):
        targets = target_locations(name, config)
        own = list(_own_locations(name, config, targets))
        others = list(_other_locations(name, config))
        # Locations of targets were looked at when they were made.
        target_forms = {form for location in targets for form in location_forms(location)}
        folders = _folders_above(name, own, target_forms)
        for location in (*own, *others):
            if not location.disposable:
                folders -= location.forms
        tables, unseen = _find_tables(sorted(folders), config)
    return LocationInspection(tuple(find_nestings([*own, *others, *tables])), tuple(unseen))


def _folders_above(name: str, own: Iterable[Location], target_forms: Collection[Parts]) -> set[Parts]:
    """Return the folders that a pipeline's own locations would lie inside if they were tables."""
    folders = set[Parts]()
    for location in own:
        for form in location.forms.difference(target_forms):
            # Runs lie below the folder of checkpoints.
            folders.update(enclosing_folders((*form, name) if location.disposable else form))
    return folders


def _find_tables(folders: Iterable[Parts], config: Config) -> tuple[list[Location], list[str]]:
    """Return which folders are tables, and the locations that cannot be listed. Raises Unanswered."""
    tables = []
    unseen = []
    for folder in folders:
        location = location_of(folder)
        try:
            if is_table(store_at(location, config.stores)):
                tables.append(Location(f"the table that is there at {location}", frozenset({folder})))
        except Unanswered:
            raise
        except StoreError:
            # Rights may begin below.
            unseen.append(location)
    return tables, unseen


def check_locations(name: str, config: Config) -> None:
    """Log what lies inside another and was there before. Raises ConfigError where it is new, CommitFailed."""
    inspection = inspect_locations(name, config)
    for nesting in inspection.nestings:
        if nesting.refused:
            raise ConfigError(f"{nesting}. {FIX}")
    for nesting in inspection.nestings:
        logging.warning(
            "location_inside_another", pipeline=name, location=nesting.inner.name, inside=nesting.outer.name
        )


def shadow_config(first: Config, other: Config, name: str, location: str) -> Config:
    """Return the configuration of a pipeline's shadow. `other`: what it is written by.

    Raises ConfigError where it would not be apart from what the first configuration has.
    """
    first.one_table(name)
    try:
        shadow_location = parse_location(location)
    except ValueError as error:
        raise ConfigError(f"the location of the shadow: {error}") from error
    if shadow_location == first.pipelines[name].table.location:
        raise ConfigError(
            f"{shadow_location} is the table of pipeline {name!r} itself; give its shadow another location."
        )
    other.chosen([name])
    catalog_name = None
    if other.pipelines[name].table.format == "iceberg":
        catalog_name = _shadow_name(first, other, name, shadow_location)
    shadow = other.at_shadow(name, shadow_location, catalog_name)
    check_apart(first, shadow)
    return shadow


def _shadow_name(first: Config, other: Config, name: str, location: str) -> str | None:
    """Return the name of a shadow in the catalog; None where the first table is in none. Raises ConfigError."""
    if other.catalog and other.catalog.log_location:
        raise ConfigError(
            "catalog.log_location finds logs by the names of tables, which `headrace promote` changes: there is no "
            "shadow of such a table yet."
        )
    names = table_names(name, first)
    return names.full(names.find(location) or names.shadow) if names else None


def check_apart(config: Config, shadow: Config) -> None:
    """Raise ConfigError where a shadow would write in or around a location of any pipeline of the configuration."""
    occupied = list(_occupied_locations(config))
    shadow_locations = [location for pipeline in shadow.pipelines.values() for location in pipeline.locations]
    for location in (*shadow_locations, shadow.checkpoints):
        for description, other in occupied:
            if _overlap(location, other):
                raise ConfigError(
                    f"the shadow would write to {location}, and {other} is {description}: neither may be inside the "
                    "other. Give the shadow another --location."
                )


def _occupied_locations(config: Config) -> Iterator[tuple[str, str]]:
    """Yield all locations of a configuration, each after what lies there."""
    if config.catalog and config.catalog.log_location:
        yield "where logs of Iceberg tables lie", config.catalog.log_location
    for name, settings in config.pipelines.items():
        locations = [
            *_table_locations(settings),
            ("late table", settings.late_place),
            ("checkpoints", f"{config.checkpoints}/{name}"),
        ]
        locations += [("table of a target", location) for location in target_locations(name, config)]
        for kind, location in locations:
            yield f"the {kind} of pipeline {name!r}", location


def _overlap(first: str, second: str) -> bool:
    """Return whether one of two locations is the other one, or inside it."""
    pairs = product(location_forms(first), location_forms(second))
    return any(form[: len(other)] == other or other[: len(form)] == form for form, other in pairs)


def is_table(store: Store) -> bool:
    """Return whether a folder is a table's, of Delta, headrace or Iceberg. Raises StoreError."""
    return any(any(store.list(marker)) for marker in TABLE_MARKERS) or any(
        is_iceberg(name) for name in store.list(METADATA)
    )


def target_locations(name: str, config: Config) -> set[str]:
    """Return the locations of a route's tables that the pipeline's log knows: they may be away. Raises CommitFailed."""
    table = main_table(name, config)
    if config.pipelines[name].route is None or not table.exists():
        return set()
    return {location for location, record in table.snapshot().targets_by_location.items() if record.id}


def _own_locations(name: str, config: Config, targets: Collection[str]) -> Iterator[Location]:
    for kind, location in _table_locations(config.pipelines[name]):
        is_new = location not in targets and not side_table(name, config, location).exists()
        yield _describe_location(kind, name, location, own=True, new=is_new)
    runs = store_at(f"{config.checkpoints}/{name}", config.stores).list()
    # The others are a supervisor's, which comes before the driver.
    is_new = all(run.startswith("_") for run in runs)
    checkpoints = _describe_location("checkpoints", name, config.checkpoints, own=True, new=is_new)
    yield replace(checkpoints, disposable=True)


def _other_locations(name: str, config: Config) -> Iterator[Location]:
    for other, settings in config.pipelines.items():
        if other != name:
            for kind, location in _table_locations(settings):
                yield _describe_location(kind, other, location)


def _table_locations(settings: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield each table of a pipeline as its kind and its location."""
    yield "table", settings.table.location
    yield "dead-letter table", settings.dead_letters
    if settings.table.raw is not None:
        yield "raw table", settings.table.raw.location
    if settings.late_table is not None:
        yield "late table", settings.late_table
    if settings.route:
        for name, location in settings.route.fixed.items():
            yield f"target {name!r}", location


def _describe_location(kind: str, pipeline: str, location: str, *, own: bool = False, new: bool = False) -> Location:
    return Location(f"the {kind} of pipeline {pipeline!r} at {location}", location_forms(location), own, new)


def location_forms(location: str) -> frozenset[Parts]:
    """Return a location in the forms by which it is compared: as it is written, and with links resolved."""
    if in_bucket(location):
        return frozenset({parts(location)})
    return frozenset({parts(location), parts(os.path.realpath(location))})
