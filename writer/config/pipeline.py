"""One pipeline of the configuration file: the topics it reads and the tables it fills."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from headrace import bucketers
from headrace.writer.batch.record_columns import RecordColumns
from headrace.writer.batch.staging.raw_records import RAW_BUCKET
from headrace.writer.columns.resolution import Widening
from headrace.writer.columns.schema_plan import ColumnRules
from headrace.writer.config.base import Strict, did_you_mean
from headrace.writer.config.safe_names import LATE, make_identifier
from headrace.writer.config.sections.bucket_upkeep import Compact, Seal
from headrace.writer.config.sections.hooks import NAME, Hooks, HookSettings, check_fit_iceberg, destination_of, of_table
from headrace.writer.config.sections.record_format import Columns, Wire, check_formats
from headrace.writer.config.sections.record_rules import EventSpec, PrivacySection, specs_of
from headrace.writer.config.sections.registry import Registry, Subjects
from headrace.writer.config.sections.resource_limits import Commit, Limits, Memory, Scheduling
from headrace.writer.config.sections.routing import RouteSection, Target, fill_location, settings_of
from headrace.writer.config.sections.table import (
    ICEBERG_RESERVED,
    BucketSpec,
    EventTime,
    Roll,
    Schemas,
    Table,
    check_hive,
)
from headrace.writer.config.sections.topic_selection import TopicSelection, start_position
from headrace.writer.config.sections.value_fields import (
    check_bucket_fields,
    check_member,
    check_rules_of_members,
    check_tags,
    check_time_field,
)
from headrace.writer.core.pages import page_address
from headrace.writer.core.units import Duration, show_duration
from headrace.writer.formats.value_rules import FormatName, ValueRules
from headrace.writer.framing import wire_format
from headrace.writer.framing.wire_format import NO_WIRE
from headrace.writer.privacy.policy import CLEAR
from headrace.writer.privacy.protected_schema import ColumnUse, conflict
from headrace.writer.specs.spec import Spec

# An Arrow batch of a route is so many times larger: each schema and table in it costs as much as one whole batch.
_ROUTE_SCALE = 16
# Of the values in an Arrow batch, and in one of a route.
_BATCH_BYTES = 16 * 2**20
_ROUTE_BATCH_BYTES = 64 * 2**20


def _allow_one_name(schema: dict[str, Any]) -> None:
    """Let a JSON schema of a list take one item alone, too."""
    items = schema["items"]
    array = {key: schema.pop(key) for key in ("type", "items", "minItems")}
    schema["anyOf"] = [array, items]


class Pipeline(Strict):
    """One table and the topics that fill it."""

    topics: TopicSelection = Field(description="topics to read: their names, or a pattern")
    start: Any = Field(
        "earliest",
        description="where a new pipeline begins: earliest, latest, {timestamp: …}, {offsets: {topic: {0: 17}}}",
    )
    on_topic_recreated: Literal["start", "stop"] = Field(
        "start", description="a topic was deleted and created again: read the new one from its beginning, or stop"
    )
    on_data_loss: Literal["record", "stop"] = Field(
        "record",
        description="Kafka lost records. Those that the table does not have: record them as a gap, or stop; those that "
        "it has, where a log was cut: record them and go on as a further incarnation, or stop",
    )
    table: Table
    route: RouteSection | None = Field(
        None,
        description="tables that the records go to "
        f"({page_address('docs/ROUTING.md')}); `table` then holds the pipeline's log, no rows",
    )
    specs: dict[str, EventSpec] = Field(
        default_factory=dict,
        description="what becomes of records "
        f"({page_address('docs/SPECS.md')}), by the full name of the Avro record, or by a pattern "
        "with *, ? and […]. A name itself goes before patterns, of which the first counts",
    )
    privacy: PrivacySection | None = Field(
        None,
        description="which fields are hashed, masked, encrypted or dropped before anything else "
        f"({page_address('docs/PRIVACY.md')})",
    )
    formats: list[FormatName] = Field(
        default=["avro"],
        min_length=1,
        description="formats of the values, of which each value is read by its own: avro, json_schema, protobuf, json "
        f"with the columns of `columns.declared`, or raw ({page_address('docs/FORMATS.md')})",
        json_schema_extra=_allow_one_name,
    )
    wire: Wire = Wire.model_validate({})
    registry: Registry | None = Field(None, description="where its schemas come from, instead of the file's `registry`")
    subjects: Subjects | None = Field(
        None, description="how its producers name the subjects of their schemas, instead of `registry.subjects`"
    )
    columns: Columns = Columns.model_validate({})
    event_time: EventTime
    bucket: BucketSpec = Field(
        default_factory=lambda: {"type": "event_time", "width": timedelta(hours=1), "zone": "UTC"},
        description="how event times map to buckets: event_time, field, composite, or your own module:Class",
    )
    commit: Commit = Commit.model_validate({})
    roll: Roll = Roll.model_validate({})
    memory: Memory = Memory.model_validate({})
    scheduling: Scheduling = Scheduling.model_validate({})
    schemas: Schemas = Schemas.model_validate({})
    limits: Limits = Limits.model_validate({})
    retention: Duration | None = Field(
        None, description="buckets that ended longer ago are dropped from the table; default: every bucket stays"
    )
    seal: Seal = Seal.model_validate({})
    compact: Compact = Compact.model_validate({})
    hooks: Hooks = Field(
        default_factory=list, description=f"what is called when a bucket is sealed ({page_address('docs/HOOKS.md')})"
    )
    commit_offsets_to_group: str | None = Field(
        None,
        min_length=1,
        description="consumer group to which the committed offsets are written, for tools that show a group's lag",
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_all_of_raw_records(cls, raw: Any) -> Any:
        """Let a table of raw records have their keys and headers, unless the configuration says otherwise."""
        if not isinstance(raw, dict) or raw.get("formats") not in ("raw", ["raw"]):
            return raw
        columns = raw.get("columns")
        if not isinstance(columns, dict | None):
            return raw
        return {**raw, "columns": {"key": "binary", "headers": "_headers", **(columns or {})}}

    @field_validator("formats", mode="before")
    @classmethod
    def _list_formats(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _check_formats(self) -> "Pipeline":
        check_formats(self.formats, self.wire, self.columns)
        rules = self.value_rules
        if self.privacy is not None:
            check_tags(rules, [*self.privacy.tags, *self.privacy.attributes])
        paths = () if self.privacy is None else self.privacy.fields
        check_rules_of_members(rules, self.columns.record_columns.schema, specs=bool(self.specs), paths=paths)
        if self.route is not None and not isinstance(self.route.by, str) and self.route.by.field is not None:
            check_member(rules, "route.by.field", self.route.by.field)
        return self

    @field_validator("start")
    @classmethod
    def _position(cls, value: Any) -> Any:
        return start_position(value)

    @model_validator(mode="after")
    def _clocks_of_its_topics(self) -> "Pipeline":
        for clock in self.event_time.clocks:
            if clock.topic is not None and not self.topics.includes(clock.topic):
                raise ValueError(
                    f"event_time.clocks: the pipeline reads no topic {clock.topic!r}"
                    f"{did_you_mean(clock.topic, self.topics.names)}"
                )
        return self

    @model_validator(mode="after")
    def _private_columns(self) -> "Pipeline":
        if self.privacy is None:
            return self
        fields = self.privacy.policies.by_path
        for column in self.record_columns.names:
            if (action := fields.get((column,))) is None:
                raise ValueError(
                    f"privacy.fields: column {column!r} of keys or headers has no policy; give it one, or clear"
                )
            if action.kind == "drop":
                raise ValueError(f"privacy.fields.{column}: take the column out of `columns` to drop it")
        if self.privacy.policies.redacts and self.raw_place is not None:
            raise ValueError("table.raw keeps records, and privacy.dead_letters: redact none; leave one of them out")
        for use in self.uses:
            above = (use.path[:length] for length in range(len(use.path), 0, -1))
            action = next((fields[path] for path in above if path in fields), CLEAR)
            is_derived = use.behind_specs and any(spec.makes(use.path[0]) for spec in self.record_specs)
            if not is_derived and not use.allows(action):
                raise ValueError(conflict(use, action))
        return self

    @model_validator(mode="after")
    def _tables_fit(self) -> "Pipeline":
        check_table(self)
        for rule in self.route.targets if self.route else ():
            try:
                check_table(self.of_target(rule, rule))
            except ValueError as error:
                raise ValueError(f"route.targets.{rule}: {error}") from error
            if self.of_target(rule, rule).table.format == "iceberg" and self.route and self.route.has_one_name(rule):
                raise ValueError(
                    f"route.targets.{rule}: its tables would be one in the catalog; set a name such as s.{{name}}"
                )
            if (columns := self.of_target(rule, rule).columns).avro_key and columns != self.columns:
                raise ValueError(f"route.targets.{rule}: columns of a key with type avro are those of the pipeline")
        return self

    def of_target(self, rule: str, name: str) -> "Pipeline":
        """Return the settings of one table of the route: of the key `rule` of its targets, for a name."""
        assert self.route is not None, "only a route has targets"
        target = self.route.targets[rule]
        location = target.location_of(name)
        form = target.format or self.table.format
        in_catalog = target.catalog_name_of(name)
        # The table of a target lies in the namespace of the pipeline's table.
        if in_catalog is None and form == "iceberg" and self.table.name is not None:
            in_catalog = f"{self.table.name.rpartition('.')[0]}.{make_identifier(location.rpartition('/')[2])}"
        table = self.table.model_copy(
            update={
                "location": location,
                "format": form,
                "name": in_catalog,
                "dead_letters": self.dead_letters,
                "raw": None,
            }
        )
        # The late table of a target lies beside its table.
        seal = self.seal.model_copy(update={"late_table": None})
        hooks = [of_table(hook, name, fill_location) for hook in self._hooks_of(target)]
        own = {"seal": seal, **settings_of(target), "hooks": hooks, "table": table, "route": None}
        return self.model_copy(update=own)

    @property
    def needs_catalog(self) -> bool:
        """Whether a table of it is Iceberg's."""
        targets = self.route.targets.values() if self.route else ()
        return "iceberg" in (self.table.format, *(target.format for target in targets))

    def table_at(self, location: str) -> Table:
        """Return the settings of the table at a location, or beside one there: of a target that the route names.

        Those of the pipeline's own table for any other.
        """
        if self.route is not None:
            for rule, target_location in self.route.fixed.items():
                seal = self.route.targets[rule].seal
                late_location = (seal and seal.late_table) or target_location + LATE
                if location in (target_location, late_location):
                    return self.of_target(rule, rule).table
        return self.table

    def rule_of(self, name: str, location: str) -> str | None:
        """Return the key of the route's targets that fills a table; None: the configuration is another by now."""
        assert self.route is not None, "only a route has targets"
        rule = name if name in self.route.fixed else self.route.rule_of(name)
        if rule and self.of_target(rule, name).table.location == location:
            return rule
        return None

    def _hooks_of(self, target: Target) -> list[HookSettings]:
        """Return the hooks of a target's tables: its own, or else those of the pipeline."""
        if target.hooks is None:
            return self.hooks
        return target.hooks

    @model_validator(mode="after")
    def _check_hooks_differ(self) -> "Pipeline":
        if self.route is None:
            if wrong := next((hook.name for hook in self.hooks if NAME in (destination_of(hook) or "")), None):
                raise ValueError(f"hooks.{wrong}: {NAME} stands for a table of a route, and there is none")
            return self
        owners: dict[str, str] = {}
        for rule, target in self.route.targets.items():
            for hook in self._hooks_of(target):
                destination = destination_of(hook)
                if destination is None or NAME in destination:
                    continue
                others = ""
                if destination in owners:
                    others = f"{owners[destination]} and {rule}"
                elif rule not in self.route.fixed:
                    others = f"all tables of {rule}"
                if others:
                    raise ValueError(
                        f"hooks.{hook.name}: {destination} would be that of {others}; write {NAME} in it, or give each "
                        "target hooks of its own"
                    )
                owners[destination] = rule
        return self

    @property
    def compacts_at_seal(self) -> bool:
        """Rewrite a bucket before it is sealed: by default where readers see all files of a commit at once."""
        wanted = self.compact.at_seal
        if wanted is None:
            return self.table.format != "parquet"
        return wanted

    @property
    def column_rules(self) -> ColumnRules:
        """How the columns of the table may grow."""
        is_iceberg = self.table.format == "iceberg"
        widen: Widening = "any"
        reserved: frozenset[str] = frozenset()
        if is_iceberg:
            widen = "iceberg"
            reserved = ICEBERG_RESERVED
        if self.schemas.widen == "reject":
            widen = "none"
        return ColumnRules(widen, reserved, dotted_paths=is_iceberg)

    @property
    def value_rules(self) -> ValueRules:
        """The formats of the values, and how JSON fills columns."""
        columns = self.columns
        return ValueRules(tuple(self.formats), columns.declared, columns.undeclared, columns.misfit)

    @property
    def wire_of_values(self) -> wire_format.Wire | None:
        """The wire format of the values; None if it is to be detected."""
        return self.wire.fixed if self.value_rules.has_schemas else NO_WIRE

    @property
    def record_specs(self) -> tuple[Spec, ...]:
        """The event specs, as tasks get them."""
        return specs_of(self.specs)

    @property
    def record_columns(self) -> RecordColumns:
        """Columns of keys and headers, with their policies."""
        policies = () if self.privacy is None else self.privacy.policies.fields
        return replace(self.columns.record_columns, policies=policies)

    @property
    def uses(self) -> tuple[ColumnUse, ...]:
        """Columns that its table needs as they are; of a route, those of each target are its own."""
        if self.route is not None:
            return ()
        times = {self.event_time.field, *(clock.field for clock in self.event_time.clocks if clock.field)}
        columns = {
            "the event time, or decides over it": sorted(times),
            "what buckets are made of": bucket_fields(self.bucket),
            "a column that rows are put in order by": self.compact.sort_by,
        }
        if self.compact.dedupe:
            columns["a key of compact.dedupe"] = self.compact.dedupe.key
        uses = []
        for purpose, paths in columns.items():
            allows_hash = purpose.endswith("dedupe")
            for path in paths:
                names = tuple(path.split("."))
                uses.append(ColumnUse(names, purpose, allows_hash=allows_hash, behind_specs=path not in times))
        return tuple(uses)

    @property
    def arrow_batch_records(self) -> int:
        """Most records in one Arrow batch."""
        return self.memory.batch_records * (1 if self.route is None else _ROUTE_SCALE)

    @property
    def arrow_batch_bytes(self) -> int:
        """Most bytes of records in one Arrow batch that is read natively."""
        return _BATCH_BYTES if self.route is None else _ROUTE_BATCH_BYTES

    @property
    def dead_letters(self) -> str:
        """Location of the dead-letter table."""
        return self.table.dead_letters or self.table.location + "_dead_letters"

    @property
    def locations(self) -> list[str]:
        """Locations of all tables that it writes, but those that a route makes by names."""
        fixed = self.route.fixed if self.route else {}
        late = [self.of_target(rule, rule).late_table for rule in fixed] if self.route else [self.late_table]
        raw = [self.table.raw.location] if self.table.raw else []
        return [self.table.location, self.dead_letters, *raw, *fixed.values(), *filter(None, late)]

    @property
    def raw_place(self) -> str | None:
        """Location of the raw table; None where records are not kept."""
        if self.table.raw and self.table.raw.enabled:
            return self.table.raw.location
        return None

    @property
    def of_raw(self) -> "Pipeline | None":
        """The settings of the raw table, as of a table with buckets of its own; None: there is none."""
        if (raw := self.table.raw) is None:
            return None
        namespace, _, named = (self.table.name or "").rpartition(".")
        name = None
        if named:
            name = f"{namespace}.{make_identifier(raw.location.rpartition('/')[2])}"
        own = {
            "table": self.table.model_copy(update={"location": raw.location, "name": name, "raw": None}),
            "event_time": self.event_time.model_copy(update={"field": "_kafka_time", "unit": "logical", "clocks": []}),
            "bucket": RAW_BUCKET,
            "retention": raw.retention or self.retention,
            "route": None,
            "hooks": [],
            "seal": Seal.model_validate({"enabled": False}),
            "columns": Columns.model_validate({}),
            "compact": Compact.model_validate({"max_open_files": raw.max_open_files, "share": self.compact.share}),
        }
        return self.model_copy(update=own)

    @property
    def late_table(self) -> str | None:
        """Location of the table of late rows; None where late rows go elsewhere."""
        if self.route is not None or not self.seal.enabled:
            return None
        has_late_table = any(tier.policy == "late_table" for tier in self.seal.tiers)
        if has_late_table:
            return self.late_place
        return None

    @property
    def late_place(self) -> str:
        """Where the table of late rows lies, if there was ever one."""
        return self.seal.late_table or self.table.location + LATE


def bucket_fields(bucket: Mapping[str, Any]) -> list[str]:
    """Return the columns of the record that a bucketer names: those of `field`, also inside a composite one."""
    own = [str(bucket["field"])] if isinstance(bucket.get("field"), str) else []
    parts = [part for value in bucket.values() if isinstance(value, list) for part in value]
    return [*own, *(name for part in parts if isinstance(part, Mapping) for name in bucket_fields(part))]


def zones_of(pipeline: Pipeline) -> list[str]:
    """Return the time zones by which rows of a pipeline get their buckets, those of all its tables; UTC is none."""
    tables = [] if pipeline.route is None else [pipeline.of_target(rule, rule) for rule in pipeline.route.targets]
    return sorted({zone for table in (pipeline, *tables) for zone in zones_of_table(table)})


def zones_of_table(settings: Pipeline) -> list[str]:
    """Return the time zones of one table's buckets and clocks; UTC is none."""
    clocks = {clock.zone for clock in settings.event_time.clocks if clock.zone}
    return sorted({*_bucket_zones(settings.bucket), *clocks} - {"UTC"})


def _bucket_zones(bucket: Mapping[str, Any]) -> list[str]:
    """Return the zones of a bucketer, also inside a composite one."""
    own = [str(bucket["zone"])] if bucket.get("type") == "event_time" and "zone" in bucket else []
    parts = bucket.get("parts", [])
    return [*own, *(zone for part in parts if isinstance(part, Mapping) for zone in _bucket_zones(part))]


def _check_value_fields(settings: Pipeline) -> None:
    """Raise ValueError where the event time, or a bucket, goes by what is no column of values without a schema."""
    rules = settings.value_rules
    record_columns = settings.columns.record_columns.schema
    rule = settings.event_time
    check_time_field(rules, record_columns, rule.rule(rule.unit))
    # A spec may make the columns of buckets; a start compares them.
    if not settings.specs:
        check_bucket_fields(rules, record_columns, bucket_fields(settings.bucket))


def check_table(settings: Pipeline) -> None:
    """Raise ValueError where the settings of one table contradict each other."""
    # A route has the tables of its targets.
    if settings.route is None:
        _check_value_fields(settings)
    if settings.retention is not None:
        if not bucketers.goes_by_time(bucketers.build(settings.bucket)):
            raise ValueError("retention: buckets of this bucketer do not go by time, so they never grow old")
        if settings.retention < settings.event_time.max_age:
            age = show_duration(settings.event_time.max_age)
            raise ValueError(
                f"retention {show_duration(settings.retention)} is shorter than event_time.max_age {age}: events would "
                "come to buckets that were dropped. Set event_time.max_age to the retention or less; what is older is "
                "quarantined then."
            )
    if settings.compact.dedupe and not settings.compacts_at_seal:
        raise ValueError("compact.dedupe takes rows out when a bucket is sealed; set compact.at_seal: true")
    if settings.compact.dedupe and settings.compact.dedupe.window is not None:
        _check_window(settings, settings.compact.dedupe.window)
    if settings.table.format == "parquet":
        check_hive(settings.table, settings.roll, settings.bucket)
    if settings.table.format == "iceberg":
        check_fit_iceberg(settings.hooks)
        _check_iceberg_names(settings)
        _check_iceberg_locations(settings)
    if settings.table.name is not None and settings.table.format != "iceberg":
        raise ValueError(
            f"table.name is a name in a catalog, which a table of format {settings.table.format} does not have"
        )


def _named_columns(settings: Pipeline) -> Iterator[tuple[str, str]]:
    """Yield the key and the name of each column that the configuration names; fields of records name the others."""
    yield from (("bucket.column", name) for name in bucketers.build(settings.bucket).columns)
    if settings.columns.key is not None:
        yield "columns.key.name", settings.columns.key.name
    if settings.columns.headers is not None:
        yield "columns.headers", settings.columns.headers
    yield from ((f"columns.header_columns.{name}", name) for name in settings.columns.header_columns)
    for pattern, spec in settings.specs.items():
        yield from ((f"specs.{pattern}.rename.{field}", name) for field, name in spec.rename.items())
        yield from ((f"specs.{pattern}.derive.{name}", name) for name in spec.derive)


def _check_iceberg_names(settings: Pipeline) -> None:
    """Raise ValueError where a column would be called as one that Iceberg, or headrace in its tables, has already.

    So would `a.b` be beside a column `a` with the field `b`, which a later schema may bring.
    """
    for key, name in _named_columns(settings):
        if "." in name:
            raise ValueError(
                f"{key}: a name with a dot is that of a field within a column in an Iceberg table; instead of {name!r} "
                f"use {_plain_name(name)!r}"
            )
        if name.lower() in ICEBERG_RESERVED | {"_partition"}:
            whose = "Iceberg has"
            if name.lower().endswith("_partition"):
                whose = "headrace has"
            raise ValueError(
                f"{key}: {name!r} is the name of a column that {whose} in an Iceberg table; give yours another, such "
                f"as {_plain_name(name)!r}"
            )


def _check_iceberg_locations(settings: Pipeline) -> None:
    """Raise ValueError for az:// locations, which clients of Iceberg do not know: a table names its files in full."""
    for location in settings.locations:
        if location.startswith("az://"):
            container, _, folder = location.removeprefix("az://").partition("/")
            raise ValueError(
                f"{location}: clients of Iceberg know no az://, and its tables name their files in full; write it as "
                f"abfss://{container}@<account>.dfs.core.windows.net/{folder}"
            )


def _plain_name(name: str) -> str:
    """Return a name like this one that no format keeps for itself."""
    return name.replace(".", "_").lstrip("_") or "column"


def _check_window(settings: Pipeline, window: timedelta) -> None:
    """Raise ValueError where dedupe across buckets cannot be."""
    bucketer = bucketers.build(settings.bucket)
    length = show_duration(window)
    if not settings.seal.enabled:
        raise ValueError("compact.dedupe.window takes rows out when a bucket is sealed; leave seal.enabled at true")
    if not bucketers.goes_by_time(bucketer):
        raise ValueError("compact.dedupe.window: buckets of this bucketer do not go by time, so none is near another")
    if (width := _width(bucketer)) is not None and window < width:
        raise ValueError(
            f"compact.dedupe.window {length} is shorter than a bucket ({show_duration(width)}), within which rows are "
            "deduped anyway. Set it to how much later a repeat may come, or leave it out"
        )
    if settings.retention is not None and window > settings.retention:
        raise ValueError(
            f"compact.dedupe.window {length} is longer than retention {show_duration(settings.retention)}: what was "
            "dropped cannot be compared. Set it to the retention or less"
        )


def _width(bucketer: bucketers.Bucketer) -> timedelta | None:
    """Return how wide buckets are; None: a bucketer of another package does not say."""
    if isinstance(bucketer, bucketers.Composite):
        return next((width for part in bucketer.parts if (width := _width(part)) is not None), None)
    if isinstance(bucketer, bucketers.EventTime):
        return bucketer.width
    return None
