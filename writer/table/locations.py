"""Checks the locations of a pipeline, or of its shadow, against other tables, before a start writes anything."""

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

from writer.config.pipeline import Pipeline
from writer.config.pipelines import Config
from writer.core import logging
from writer.core.errors import ConfigError
from writer.storage.base import Store, StoreError, Unanswered
from writer.storage.locations import checked, on_s3, store_at
from writer.storage.nesting import (
    MARKS,
    METADATA,
    Location,
    Nesting,
    Parts,
    around,
    is_iceberg,
    location_of,
    nested,
    parts,
)
from writer.table.factory import main_table, side_table, table_names
from writer.table.log.foreign_writes import reading

FIX = (
    "Give each a folder of its own, side by side; inside a table only below a name that begins with _ or . "
    "(docs/TABLES.md)."
)
MOVE = (
    "It was there before, so it is opened, and vacuum leaves it alone. Move it with its history when there is time "
    "(docs/TABLES.md)."
)


@dataclass(frozen=True)
class KnownTables:
    """The tables around the locations of a pipeline."""

    nestings: tuple[Nesting, ...]
    unseen: tuple[str, ...]  # folders above, that the storage does not let be listed


def inspect(name: str, config: Config) -> KnownTables:
    """Find which locations of a pipeline lie inside others, or around them. Raises CommitFailed."""
    s3 = config.s3.settings
    with reading(config.pipelines[name].table.location):
        known = known_targets(name, config)
        own, others = list(_own(name, config, known)), list(_others(name, config))
        named = {form for one in (*own, *others) if not one.disposable for form in one.forms}
        apart = {form for place in known for form in _forms(place)}  # they were looked at when they were made
        forms = ((*form, name) if one.disposable else form for one in own for form in one.forms - apart)  # runs below
        above = {folder for form in forms for folder in around(form)} - named
        tables, unseen = [], []
        for folder in sorted(above):
            location = location_of(folder)
            try:
                if is_table(store_at(location, s3)):
                    tables.append(Location(f"the table that is there at {location}", frozenset({folder})))
            except Unanswered:
                raise
            except StoreError:  # rights may begin below
                unseen.append(location)
    return KnownTables(tuple(nested([*own, *others, *tables])), tuple(unseen))


def check(name: str, config: Config) -> None:
    """Log what lies inside another and was there before. Raises ConfigError where it is new, CommitFailed."""
    found = inspect(name, config)
    if refused := next((one for one in found.nestings if one.refused), None):
        raise ConfigError(f"{refused}. {FIX}")
    for one in found.nestings:
        logging.warning("location_inside_another", pipeline=name, location=one.inner.name, inside=one.outer.name)


def shadow_of(first: Config, other: Config, name: str, location: str) -> Config:
    """Return the configuration of a pipeline's shadow. `other`: what it is written by.

    Raises ConfigError where it would not be apart from what the first configuration has.
    """
    first.one_table(name)
    try:
        place = checked(location)
    except ValueError as error:
        raise ConfigError(f"the location of the shadow: {error}") from error
    if place == first.pipelines[name].table.location:
        raise ConfigError(f"{place} is the table of pipeline {name!r} itself; give its shadow another location.")
    other.chosen([name])
    in_catalog = None
    if other.pipelines[name].table.format == "iceberg":
        if other.catalog and other.catalog.log_location:
            raise ConfigError(
                "catalog.log_location finds logs by the names of tables, which `headrace promote` changes: there is no "
                "shadow of such a table yet."
            )
        if names := table_names(name, first):
            in_catalog = names.full(names.find(place) or names.shadow)
    made = other.at_shadow(name, place, in_catalog)
    check_apart(first, made)
    return made


def check_apart(config: Config, shadow: Config) -> None:
    """Raise ConfigError where a shadow would write at, in or around a place of any pipeline of the configuration."""
    log = config.catalog.log_location if config.catalog else None
    theirs = [("where logs of Iceberg tables lie", log)] if log else []
    for name, settings in config.pipelines.items():
        places = [
            *_tables(settings),
            ("late table", settings.late_place),
            ("checkpoints", f"{config.checkpoints}/{name}"),
        ]
        places += [("table of a target", place) for place in known_targets(name, config)]
        theirs += [(f"the {what} of pipeline {name!r}", place) for what, place in places]
    ours = [place for one in shadow.pipelines.values() for place in one.locations]
    for place in (*ours, shadow.checkpoints):
        for what, other in theirs:
            if any(a[: len(b)] == b or b[: len(a)] == a for a in _forms(place) for b in _forms(other)):
                raise ConfigError(
                    f"the shadow would write to {place}, and {other} is {what}: neither may be inside the other. Give "
                    "the shadow another --location."
                )


def is_table(store: Store) -> bool:
    """Return whether a folder is a table's, of Delta, headrace or Iceberg. Raises StoreError."""
    return any(any(store.list(mark)) for mark in MARKS) or any(is_iceberg(name) for name in store.list(METADATA))


def known_targets(name: str, config: Config) -> set[str]:
    """Return the places of a route's tables that the pipeline's log knows: they may be away. Raises CommitFailed."""
    table = main_table(name, config)
    if config.pipelines[name].route is None or not table.exists():
        return set()
    return {place for place, one in table.snapshot().target_places.items() if one.id}


def _own(name: str, config: Config, known: Collection[str]) -> Iterator[Location]:
    for what, place in _tables(config.pipelines[name]):
        new = place not in known and not side_table(name, config, place).exists()
        yield _location(what, name, place, own=True, new=new)
    runs = store_at(f"{config.checkpoints}/{name}", config.s3.settings).list()
    new = all(found.startswith("_") for found in runs)  # those are a supervisor's, which comes before the driver
    yield replace(_location("checkpoints", name, config.checkpoints, own=True, new=new), disposable=True)


def _others(name: str, config: Config) -> Iterator[Location]:
    for other, settings in config.pipelines.items():
        yield from (_location(what, other, place) for what, place in _tables(settings) if other != name)


def _tables(settings: Pipeline) -> Iterator[tuple[str, str]]:
    yield "table", settings.table.location
    yield "dead-letter table", settings.dead_letters
    if settings.table.raw is not None:
        yield "raw table", settings.table.raw.location
    if settings.late_table is not None:
        yield "late table", settings.late_table
    for name, location in (settings.route.fixed if settings.route else {}).items():
        yield f"target {name!r}", location


def _location(what: str, pipeline: str, location: str, *, own: bool = False, new: bool = False) -> Location:
    return Location(f"the {what} of pipeline {pipeline!r} at {location}", _forms(location), own, new)


def _forms(location: str) -> frozenset[Parts]:
    return frozenset({parts(location)} | (set() if on_s3(location) else {parts(os.path.realpath(location))}))
