"""The tables that a route fills: made when a name needs one, each with columns and an event-time unit of its own."""

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import bucketers
from writer.avro.schema_plan import RejectedSchema, SchemaPlan, WriterSchema
from writer.batch.plan import TaskPlan
from writer.batch.record_columns import RecordColumns
from writer.batch.route import Route
from writer.batch.task_report import NAMES_MAX, Report
from writer.commit.closed_buckets import closes, newly_closed
from writer.commit.privacy import protected_columns
from writer.commit.target_table import Target, check_ours, check_settings, may_pass, open_target
from writer.commit.task_plan import build_task_plan
from writer.config.pipelines import Config
from writer.config.safe_names import LATE, make_identifier
from writer.config.table_sections import layout
from writer.core import logging
from writer.core.errors import ConfigError, LimitReached
from writer.core.files import BucketKey, StagedFile
from writer.core.units import show_duration, show_size
from writer.privacy.record_sealing import RecordScreen
from writer.schemas.subjects import full_name
from writer.schemas.tracker import ASK_AGAIN, Schemas
from writer.storage.nesting import Parts
from writer.table import held_files
from writer.table.locations import location_forms
from writer.table.log.foreign_writes import CommitFailed, reading
from writer.table.log.snapshot import TargetRecord
from writer.table.pipeline_tables import Tables, TargetState
from writer.table.schema_evolution import ColumnTypeMismatch

_ASK_S = 30.0  # between two looks whether a table is back
_REFUSED_MAX = 1_000  # names that are remembered as having no table, before no further one is made


@dataclass(frozen=True)
class _Claim:
    """What a target has for itself: locations and names in the catalog, as engines tell them apart."""

    forms: frozenset[Parts]
    names: frozenset[str]


class Targets:
    """All tables of one pipeline's route. `begin` after each start of the pipeline."""

    def __init__(self, name: str, config: Config, tables: Tables, schemas: Schemas) -> None:
        """`schemas`: the plan by which values are decoded."""
        settings = config.pipelines[name]
        assert settings.route is not None, "only a route has targets"
        self._pipeline, self._settings, self.section = name, settings, settings.route
        self._config, self._tables, self._schemas = config, tables, schemas
        self._targets = dict[str, Target]()
        self._epoch: int | None = None
        self._asked_s = dict[str, float]()  # when one of these was last looked at
        self._held = dict[str, str]()  # tables whose storage refused, by name, and what it said; or those are behind
        self._known = dict[int, TargetRecord]()  # as the log has them
        self._claims = dict[TargetRecord, _Claim]()  # of these
        self._raw_places: Sequence[str] = ()  # of raw tables, as the log has them
        self._made = dict[str, str | None]()  # names that matched a pattern of many tables; None: they get none
        self.refused = dict[str, str]()  # names that get none because they can be no table, and why
        self.beyond = set[str]()  # names that get none because as many were made as may be; NAMES_MAX at most
        others = [(one, place) for one, pipeline in config.pipelines.items() for place in pipeline.locations]
        places = [config.checkpoints, *(place for _, place in others)]
        places += [pipeline.late_place for pipeline in config.pipelines.values()]
        places += [config.catalog.log_location] if config.catalog and config.catalog.log_location else []
        # Locations, as engines tell them apart, and names in the catalog likewise.
        self._taken = {form for place in places for form in _forms(place)}
        self._taken_names = {place.key for one in others if (place := config.catalog_place(*one)) is not None}

    @property
    def needs_headers(self) -> bool:
        """Whether a record's headers decide where it goes, or fill a column."""
        columns = (target.settings.record_columns for target in self._targets.values())
        return self.section.by_key[0] == "header" or any(one.has_headers for one in columns)

    def begin(self, epoch: int | None) -> None:
        """Open the tables that the route names, and those that were made before. Raises Fenced, CommitFailed.

        `epoch`: of the start; None for a command, which works beside the writer.
        """
        self._epoch = epoch
        self._raw_places = self._tables.main.snapshot().raw_locations
        self._known = self._tables.main.add_targets(self._epoch, [self._record(n, n) for n in self.section.fixed])
        for record in self._known.values():
            rule = self._settings.rule_of(record.name, record.location)
            if rule is None:
                continue  # the configuration is another by now: its rows are applied, new ones go elsewhere
            try:
                self._open(rule, self._enter_late(rule, record))
            except ConfigError as error:
                if rule in self.section.fixed:
                    raise
                self._refuse(record.name, str(error))
            else:
                self._made |= {} if rule in self.section.fixed else {record.name: record.name}
        self._enter_ids()
        route = self.route()
        for schema_id, record_name in route.records.items() if route.by == "record" else ():
            if isinstance(found := route.target(record_name), str):
                self._admit(self._targets[found], schema_id)

    def route(self) -> Route:
        """Return the route as tasks follow it."""
        by, key = self.section.by_key
        rest = self.section.unrouted
        return Route(
            by, key, self.section.rules, dict(self._made), is_full=self._is_full, stops=rest == "stop",
            otherwise=None if rest in ("dead_letters", "stop") else rest, shut=self._shut(),
            records=record_names(self._schemas.plan),
        )  # fmt: skip

    def plans(self, of_pipeline: TaskPlan, closed: Mapping[int, datetime]) -> dict[str, TaskPlan]:
        """Return the plan of each table's rows in a batch; `closed`: how far buckets are closed, by target number."""
        held, log, s3 = self._refusing(), self._tables.main.store, self._config.s3.settings
        for target in self._targets.values():
            self._forget_changed(target)
        return {
            name: build_task_plan(
                target.settings, s3, target.plan, of_pipeline.wire, target.unit, now=of_pipeline.now,
                prefix=of_pipeline.prefix, incarnations=of_pipeline.incarnations, frontier=of_pipeline.frontier,
                record_columns=self._record_columns(target), topic=of_pipeline.topic,
                hidden=target.table.hidden, folder=target.table.folder,
                closed_until=closed.get(target.number) if closes(target.settings, target.bucketer) else None,
                number=target.number, may_refuse=name not in held, seen=of_pipeline.seen,
                held_location=log.path(held_files.held_folder(target.number)) if name in held else "",
            )
            for name, target in self._targets.items()
        }  # fmt: skip

    def learn_from(self, report: Report) -> None:
        """Make the tables that a batch needs, and admit the schemas that it met, to the tables that met them.

        Raises LimitReached where a record has no table and `unrouted` is stop; Fenced, CommitFailed.
        """
        if report.unknown_names:
            snapshot = self._tables.main.snapshot()
            self._known = snapshot.targets()  # another process may have made tables
            self._raw_places = snapshot.raw_locations
        beyond = [name for name in sorted(report.unknown_names) if not self._make(name)]
        self._note_beyond(beyond)
        self._enter_ids()
        for name, of_target in report.targets.items():
            if of_target.refused:
                self._held[name] = of_target.refused
            for schema_id in sorted(of_target.unknown_schemas):
                self._admit(self._targets[name], schema_id)

    def grow(self, *, is_staged: bool = False) -> None:
        """Give the tables the columns that rows have by now. Raises CommitFailed.

        They are kept at the log, too; one that refuses gets them from there before its next rows. `is_staged`: files
        have them already, so a table that refuses only now is an error.
        """
        log = self._tables.main
        for name, target in self._targets.items():
            columns = target.columns(self._record_columns(target))
            with reading(log.location):
                if target.kept is None or not columns.equals(target.kept, check_metadata=True):
                    held_files.save_columns(log.store, target.number, columns)
                    target.kept = columns
            try:
                is_grown = target.grown is not None and columns.equals(target.grown, check_metadata=True)
                if not is_grown and name not in self._refusing():
                    for table in filter(None, (target.table, target.late)):
                        table.grow(list(columns))
                    target.grown = columns
            except CommitFailed as error:
                if is_staged or isinstance(error.__cause__, ColumnTypeMismatch):
                    raise
                self._held[name] = str(error)

    def keep(self, report: Report) -> None:
        """Store the units that `auto` detected, so that a later batch uses the same, and names that got no table."""
        self._note_beyond(sorted(report.beyond_names))
        for name, of_target in report.targets.items():
            target = self._targets[name]
            if target.unit == "auto" and of_target.time_unit not in ("", "auto"):
                target.unit = of_target.time_unit

    def side_files(self, report: Report) -> dict[str, list[StagedFile]]:
        """Files that tasks staged for the targets, by the locations of these."""
        found = dict[str, list[StagedFile]]()
        for name, of_target in report.targets.items():
            target = self._targets[name]
            found |= {target.table.location: of_target.files} if of_target.files else {}
            found |= {target.settings.late_place: of_target.late_files} if of_target.late_files else {}
        return found

    def closed_between(
        self, report: Report, before: Mapping[int, datetime], after: Mapping[int, datetime]
    ) -> set[tuple[str, BucketKey]]:
        """Return the buckets of a report, by table, that are closed by `after`, and were not by `before`."""
        return {
            (name, bucket)
            for name, of_target in report.targets.items()
            if (target := self._targets[name])
            for bucket in newly_closed(
                of_target.files, target.bucketer, before.get(target.number), after.get(target.number)
            )
        }

    def states(self) -> dict[str, TargetState]:
        """Return how far the tables are, by name."""
        for name in list(self._held):
            self._try_again(name)
        current = {target.number for target in self._targets.values()}
        return self._tables.target_states(self._known.values(), current, self._held)

    def rejected(self) -> dict[int, RejectedSchema]:
        """Return the schemas that one of the tables rejects, by id."""
        return {schema_id: why for one in self._targets.values() for schema_id, why in one.rejected.items()}

    def forget_rejected(self, now_s: float) -> None:
        """Leave schemas that tables rejected a while ago to the next batch that meets them."""
        for target in self._targets.values():
            again_s = now_s - ASK_AGAIN.total_seconds()
            target.forget([schema_id for schema_id in target.rejected if target.asked_s[schema_id] <= again_s])

    @property
    def _is_full(self) -> bool:
        made = sum(target is not None for target in self._made.values())
        return made >= self.section.max_targets or len(self._made) >= self.section.max_targets + _REFUSED_MAX

    def _record_columns(self, target: Target) -> RecordColumns:
        if target.settings.columns == self._settings.columns:
            return self._schemas.record_columns
        return protected_columns(target.settings.record_columns, self._schemas.plan.privacy)

    def _record(self, rule: str, name: str) -> TargetRecord:
        """Return the record of a table: that of the log, if it has one."""
        settings = self._settings.of_target(rule, name)
        place, late = settings.table, settings.late_table or ""
        named, by = str(self._config.in_catalog(place) or ""), layout(settings.bucket)
        wanted = TargetRecord(name, place.location, place.format, late, layout=by, table=named)
        known = (one for one in self._known.values() if one[:2] == wanted[:2])
        return next(known, wanted)._replace(late=late)

    def _make(self, name: str) -> bool:
        """Make a table for a name, unless it may have none. False: there are enough, which the route knows then."""
        rule = self.section.rule_of(name) if name else None
        record = None if rule is None else self._record(rule, name)
        is_full = record is not None and self._is_full
        shown = self._shown(name) if name else name
        if rule is None or record is None:
            why = self.route().reason(shown)
        else:
            why = self._obstacle(rule, record)
            # The reason may name a place, which is called as the header's value is.
            why = "its place, or its name in the catalog, is another table's" if why and shown != name else why
        if self.section.unrouted == "stop" and (why or is_full):
            reason = why or f"route.max_targets is {self.section.max_targets}"
            raise LimitReached(
                f"pipeline {self._pipeline!r} has no table for {shown or 'a record'}: {reason}, and route.unrouted is "
                "stop. Nothing of the batch was committed. Add a target, or let such records be dead letters; "
                "`headrace preview` shows them."
            )
        if is_full:
            return False
        if why or record is None or rule is None:
            self._refuse(name, why)
            return True
        self._known = self._tables.main.add_targets(self._epoch, [record])
        self._open(rule, next(number for number, one in self._known.items() if one.location == record.location))
        self._made[name] = name
        logging.event("target_made", pipeline=self._pipeline, name=name, location=record.location)
        return True

    def _enter_late(self, rule: str, record: TargetRecord) -> int:
        """Enter the table of late rows of a target that has one by now. Returns the target's number.

        Raises ConfigError where it would lie at another table.
        """
        late = self._settings.of_target(rule, record.name).late_table or ""
        if rule not in self.section.fixed and late not in ("", record.late):
            others = [one for one in self._known.values() if one.number != record.number]
            if why := _meeting(late, self._taken_with(_claim(one, one.late) for one in others)):
                raise ConfigError(f"target {record.name!r} can have no table of late rows: {why}")
            self._known = self._tables.main.add_targets(self._epoch, [record._replace(late=late)])
        return record.number

    def _collision(self, rule: str, record: TargetRecord) -> str:
        """Return why a target would share a place, or a name in the catalog, with another table; empty: it does not."""
        own = (record.name, record.location)
        claims = [self._claim(one) for one in self._known.values() if (one.name, one.location) != own]
        taken = self._taken_with(claims)
        late_place = self._settings.of_target(rule, record.name).late_place
        if why := _meeting(record.location, taken) or _meeting(record.late or late_place, taken):
            return why
        names = self._taken_names.union(*(claim.names for claim in claims))
        shared = sorted(_claim(record, late_place).names & names)
        return f"{shared[0]} is another table's name in the catalog" if shared else ""

    def _taken_with(self, claims: Iterable[_Claim]) -> set[Parts]:
        """Return the places of all tables but those of targets, and of these claims."""
        raw = (_forms(place) for place in self._raw_places)
        return self._taken.union(*raw, *(claim.forms for claim in claims))

    def _claim(self, record: TargetRecord) -> _Claim:
        """Return what no other table may have, by a target that the log knows."""
        if record not in self._claims:
            rule = self._settings.rule_of(record.name, record.location)
            late = (
                f"{record.location}{LATE}" if rule is None else self._settings.of_target(rule, record.name).late_place
            )
            self._claims[record] = _claim(record, late)
        return self._claims[record]

    def _obstacle(self, rule: str, record: TargetRecord) -> str:
        """Return why a table cannot be made at a place; empty if it can. Raises CommitFailed."""
        if why := self._collision(rule, record):
            return why
        settings = self._settings.of_target(rule, record.name)
        try:
            with may_pass(record.name):
                table = self._tables.side(record.location, record)
                table.check(bucketers.build(settings.bucket).columns, layout(settings.bucket))
                check_ours(table, record, self._tables.main.location)
        except ConfigError as error:
            return str(error)
        except CommitFailed as error:  # its storage is away: the table is made when it answers
            logging.warning("target_away", pipeline=self._pipeline, target=record.name, reason=str(error))
        return ""

    def _note_beyond(self, names: Sequence[str]) -> None:
        shown = [self._shown(name) for name in names]
        if shown and not self.beyond:
            reason = f"route.max_targets is {self.section.max_targets}"
            logging.warning(
                "targets_beyond_max", pipeline=self._pipeline, names=len(shown), first=shown[0], reason=reason
            )
        self.beyond.update(shown[: NAMES_MAX - len(self.beyond)])

    def _refuse(self, name: str, why: str) -> None:
        shown = self._shown(name)
        self._made[name] = None
        self.refused[shown] = why
        logging.warning("target_refused", pipeline=self._pipeline, name=shown, reason=why)

    def _shown(self, name: str) -> str:
        """Return a name that gets no table as it may be said: where there is privacy, not that of a header."""
        hides = self.section.by_key[0] == "header" and self._schemas.plan.privacy is not None
        return RecordScreen(hides).text(name)

    def _open(self, rule: str, number: int) -> None:
        """Open a table, which is made if the log does not know one. Raises ConfigError when it is another's."""
        record = self._known[number]
        settings, made_by_name = self._settings.of_target(rule, record.name), rule not in self.section.fixed
        check_settings(record, settings, str(self._config.in_catalog(settings.table) or ""))
        target, why = open_target(record, settings, self._tables, may_wait=made_by_name)
        self._targets[record.name] = target
        self._held |= {record.name: why} if why else {}

    def _try_again(self, name: str) -> None:
        """Open a table again that refused, now and then. It is back when it has all that was committed for it."""
        target, now_s = self._targets[name], time.monotonic()
        if now_s < self._asked_s.get(name, 0.0) + _ASK_S:
            return
        self._asked_s[name] = now_s
        with suppress(CommitFailed, ConfigError, OSError):
            _, why = open_target(self._known[target.number], target.settings, self._tables)
            if not why:
                self._enter_ids([name])
                if not self._tables.pending_entries(target.table.location).entries:
                    del self._held[name]

    def _refusing(self) -> dict[str, str]:
        """Return the tables whose files wait at the log for now, by name, and what they said."""
        behind = self._tables.behind
        both = {name: (one.table.location, one.settings.late_place) for name, one in self._targets.items()}
        behind_now = {name: behind[place] for name, places in both.items() for place in places if place in behind}
        return {**self._held, **behind_now}

    def _shut(self) -> frozenset[str]:
        """Return the tables for which too much waits, by name. Raises LimitReached where that is a stop."""
        limits, found = self.section.held, set[str]()
        for name, why in self._refusing().items():
            target = self._targets[name]
            waiting = self._tables.pending_entries(target.table.location, target.settings.late_place)
            size, age = waiting.held_bytes, datetime.now(UTC) - waiting.since if waiting.since else timedelta(0)
            if size < limits.max_bytes and age < limits.max_age:
                continue
            if limits.on_limit == "stop":
                shown = show_duration(timedelta(seconds=round(age.total_seconds())))
                raise LimitReached(
                    f"the table of target {name!r} of pipeline {self._pipeline!r} refuses, and {show_size(size)} wait "
                    f"for it, the first for {shown} ({why}). Nothing is lost: repair its storage, then start again; or "
                    "raise route.held.max_bytes and max_age."
                )
            found.add(name)
        return frozenset(found)

    def _enter_ids(self, names: Iterable[str] | None = None) -> None:
        """Enter the ids of tables that were made, so that one that is made again is not taken for them.

        `names`: of which; None: of all that do not refuse.
        """
        chosen = [name for name in self._targets if name not in self._held] if names is None else names
        opened = [self._known[self._targets[name].number] for name in chosen]
        made = [record for record in opened if not record.id]
        if made:
            ids = {one.location: self._tables.side(one.location).snapshot().state.metadata["id"] for one in made}
            self._known = self._tables.main.add_targets(self._epoch, [o._replace(id=ids[o.location]) for o in made])

    def _forget_changed(self, target: Target) -> None:
        """Forget schemas whose ids mean others by now, because the records turned out to be framed in another way."""
        known = self._schemas.plan.schemas
        target.forget([n for n, text in target.texts.items() if getattr(known.get(n), "rows_text", text) != text])

    def _admit(self, target: Target, schema_id: int) -> None:
        """Let a schema fill the columns of a table, or reject it there."""
        known = self._schemas.plan.schemas[schema_id]
        assert isinstance(known, WriterSchema), "what is not decoded is not routed"
        found = target.admit(schema_id, known, self._schemas.plan.privacy, time.monotonic())
        about = {"pipeline": self._pipeline, "target": target.name, "schema_id": schema_id}
        if isinstance(found, RejectedSchema):
            logging.warning("schema_rejected", reason=found.reason, **about)
        else:
            logging.event("schema_admitted", decoder="native" if known.native else "single", **about)


def record_names(plan: SchemaPlan) -> dict[int, str]:
    """Return the full name of each schema's record, by schema id."""
    names = {schema_id: full_name(one.text) for schema_id, one in plan.schemas.items() if isinstance(one, WriterSchema)}
    return {schema_id: name for schema_id, name in names.items() if name is not None}


def routed(plan: TaskPlan, targets: Targets, closed: Mapping[int, datetime]) -> TaskPlan:
    """Return the plan of tasks that fill the tables of a route; `closed`: how far buckets are closed, by number."""
    return replace(plan, route=targets.route(), targets=targets.plans(plan, closed))


def _claim(record: TargetRecord, late_place: str) -> _Claim:
    """Return what a target has for itself. `late_place`: of its late rows, also while it has none; empty: nowhere."""
    places = [record.location, *filter(None, [record.late or late_place])]
    names = list[str]()
    if record.table:
        namespace = record.table.rpartition(".")[0]
        names = [record.table, *(f"{namespace}.{make_identifier(place.rpartition('/')[2])}" for place in places[1:])]
    return _Claim(
        frozenset(form for place in places for form in _forms(place)), frozenset(name.casefold() for name in names)
    )


def _is_nested(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _meeting(place: str, taken: Iterable[Parts]) -> str:
    """Return why no table may be at a place; empty: it may. `taken`: places of others."""
    own = _forms(place)
    is_taken = any(_is_nested(form, other) for other in taken for form in own)
    return f"{place} is another table's, or lies inside or around one" if is_taken else ""


def _forms(location: str) -> frozenset[Parts]:
    """Return a location as engines tell tables apart: with links resolved, too, and by small letters."""
    return frozenset(tuple(part.casefold() for part in form) for form in location_forms(location))
