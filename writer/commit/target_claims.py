"""Checks that a table of a route shares no location, and no name in the catalog, with another table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.writer.config.pipelines import Config
from headrace.writer.config.safe_names import LATE, make_identifier
from headrace.writer.storage.nesting import Parts
from headrace.writer.table.locations import location_forms
from headrace.writer.table.log.snapshot import TargetRecord


@dataclass(frozen=True)
class _Claim:
    """What a target has for itself: locations and names in the catalog, as engines tell them apart."""

    locations: frozenset[Parts]
    names: frozenset[str]


class TargetClaims:
    """The locations, and the names in the catalog, that the tables of a configuration and of a route have."""

    def __init__(self, pipeline: str, config: Config) -> None:
        """`pipeline`: the one with the route."""
        self._settings = config.pipelines[pipeline]
        # Locations of raw tables, as the route's log has them.
        self.raw_locations: Sequence[str] = ()
        self._claims = dict[TargetRecord, _Claim]()
        locations = [config.checkpoints]
        self._names = set[str]()
        for name, settings in config.pipelines.items():
            locations += [*settings.locations, settings.late_place]
            for location in settings.locations:
                catalog_table = config.catalog_place(name, location)
                if catalog_table is not None:
                    self._names.add(catalog_table.key)
        if config.catalog and config.catalog.log_location:
            locations.append(config.catalog.log_location)
        self._locations = _all_forms(locations)

    def find_collision(self, rule: str, record: TargetRecord, records: Iterable[TargetRecord]) -> str:
        """Return why a target would share a location or a name with another table; empty: it does not.

        `rule`: that the target goes by. `records`: of the route's targets, as the log has them.
        """
        others = [other for other in records if (other.name, other.location) != (record.name, record.location)]
        claims = [self._claim(other) for other in others]
        taken_locations = self._taken_locations(claims)
        late_location = self._settings.of_target(rule, record.name).late_place
        for location in (record.location, record.late or late_location):
            if reason := _find_nesting(location, taken_locations):
                return reason
        taken_names = self._names.union(*(claim.names for claim in claims))
        shared_names = sorted(_make_claim(record, late_location).names & taken_names)
        if not shared_names:
            return ""
        return f"{shared_names[0]} is another table's name in the catalog"

    def find_late_collision(self, location: str, others: Iterable[TargetRecord]) -> str:
        """Return why no table of late rows may be at a location; empty: it may. `others`: the other targets."""
        claims = [_make_claim(other, other.late) for other in others]
        return _find_nesting(location, self._taken_locations(claims))

    def _taken_locations(self, claims: Iterable[_Claim]) -> set[Parts]:
        """Return the locations of all tables but those of targets, and of these claims."""
        return self._locations.union(_all_forms(self.raw_locations), *(claim.locations for claim in claims))

    def _claim(self, record: TargetRecord) -> _Claim:
        """Return what no other table may have, by a target that the log knows."""
        if record not in self._claims:
            rule = self._settings.rule_of(record.name, record.location)
            if rule is None:
                late_location = f"{record.location}{LATE}"
            else:
                late_location = self._settings.of_target(rule, record.name).late_place
            self._claims[record] = _make_claim(record, late_location)
        return self._claims[record]


def _make_claim(record: TargetRecord, late_location: str) -> _Claim:
    """Return what a target has for itself.

    `late_location`: of its late rows, also while it has no table for them; empty: nowhere.
    """
    locations = [record.location]
    if record.late or late_location:
        locations.append(record.late or late_location)
    names = list[str]()
    if record.table:
        namespace = record.table.rpartition(".")[0]
        late_names = [make_identifier(location.rpartition("/")[2]) for location in locations[1:]]
        names = [record.table, *(f"{namespace}.{late_name}" for late_name in late_names)]
    return _Claim(frozenset(_all_forms(locations)), frozenset(name.casefold() for name in names))


def _find_nesting(location: str, taken: Iterable[Parts]) -> str:
    """Return why no table may be at a location; empty: it may. `taken`: locations of others."""
    own_forms = _forms(location)
    if any(_is_nested(form, other) for other in taken for form in own_forms):
        return f"{location} is another table's, or lies inside or around one"
    return ""


def _is_nested(parts: Parts, others: Parts) -> bool:
    shorter = min(len(parts), len(others))
    return parts[:shorter] == others[:shorter]


def _all_forms(locations: Iterable[str]) -> set[Parts]:
    return set[Parts]().union(*map(_forms, locations))


def _forms(location: str) -> frozenset[Parts]:
    """Return a location as engines tell tables apart: with links resolved, too, and by small letters."""
    return frozenset(tuple(part.casefold() for part in form) for form in location_forms(location))
