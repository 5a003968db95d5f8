"""The configuration file: schema, defaults, checks and reference documentation at once.

One YAML file, which `writer/config/loader.py` reads. Unknown keys fail with a suggestion; durations and sizes carry
units.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from pydantic import Field, PrivateAttr, model_validator

from headrace.writer.config.base import Strict, did_you_mean, with_defaults
from headrace.writer.config.pipeline import Pipeline
from headrace.writer.config.sections.connections import (
    S3,
    Autoscaler,
    Azure,
    Gcs,
    Http,
    Kafka,
    Notifications,
    OpenLineage,
    OpenTelemetry,
    Recovery,
    Spark,
    Supervisor,
)
from headrace.writer.config.sections.logins import OAuthSection
from headrace.writer.config.sections.record_rules import Keys
from headrace.writer.config.sections.registry import Registry
from headrace.writer.config.sections.resource_limits import Scheduling
from headrace.writer.config.sections.table import (
    Catalog,
    Location,
    Table,
)
from headrace.writer.config.sections.topic_selection import TopicSelection
from headrace.writer.core.catalog_table import CatalogTable
from headrace.writer.core.errors import ConfigError
from headrace.writer.core.units import Duration
from headrace.writer.framing.wire_format import NO_WIRE
from headrace.writer.privacy.path_policies import RecordPolicies
from headrace.writer.storage.bucket_locations import AZURE_SCHEMES, parse_bucket_location
from headrace.writer.storage.locations import in_bucket, on_s3
from headrace.writer.storage.nesting import Parts, lies_inside, parts
from headrace.writer.storage.settings import StoreSettings

_NAME = re.compile(r"^[a-z0-9][a-z0-9_-]{0,62}$")


class Config(Strict):
    """The whole file."""

    # Protected paths in the log of the table that this one replaces, by pipeline. It is no key of the file.
    _protected_before: dict[str, RecordPolicies] = PrivateAttr(default_factory=dict)

    kafka: Kafka
    registry: Registry = Field(
        default_factory=lambda: Registry.model_validate({}), description="needed where values or keys name a schema"
    )
    checkpoints: Location = Field(
        description="absolute path or s3:// location for Spark's checkpoints; disposable, the tables are the truth"
    )
    stop_timeout: Duration = Field(
        timedelta(minutes=2),
        description="how long a batch may still take once a stop was asked for (SIGTERM, a supervisor); then its tasks "
        "are cancelled, it is not committed, and the next start reads it again",
    )
    s3: S3 = S3.model_validate({})
    gcs: Gcs = Gcs.model_validate({})
    azure: Azure = Azure.model_validate({})
    catalog: Catalog | None = Field(None, description="of tables in Iceberg's format")
    keys: Keys | None = Field(None, description="keys of pipelines with `privacy`")
    spark: Spark = Spark.model_validate({})
    http: Http = Http.model_validate({})
    recovery: Recovery = Recovery.model_validate({})
    supervisor: Supervisor = Supervisor.model_validate({})
    autoscaler: Autoscaler = Autoscaler.model_validate({})
    notifications: Notifications = Notifications.model_validate({})
    openlineage: OpenLineage = OpenLineage.model_validate({})
    opentelemetry: OpenTelemetry = OpenTelemetry.model_validate({})
    defaults: dict[str, Any] = Field(
        default_factory=dict,
        description="what pipelines have that do not say otherwise, section by section; {pipeline} stands for the name",
    )
    pipelines: dict[str, Pipeline] = Field(min_length=1, description="pipelines by name; all run in one application")

    @model_validator(mode="before")
    @classmethod
    def _with_defaults(cls, raw: Any) -> Any:
        return with_defaults(raw, list(Pipeline.model_fields))

    @property
    def stores(self) -> StoreSettings:
        """How stores and tasks reach what lies in buckets, with what this process's environment adds."""
        return StoreSettings(self.s3.settings, self.gcs.settings, self.azure.settings)

    def registry_of(self, name: str) -> Registry:
        """Return where a pipeline's schemas come from: its own registry, or the file's, with its own subjects."""
        pipeline = self.pipelines[name]
        registry = pipeline.registry or self.registry
        if pipeline.subjects is None:
            return registry
        return registry.model_copy(update={"subjects": pipeline.subjects})

    @model_validator(mode="after")
    def _check_registries(self) -> "Config":
        for name, pipeline in self.pipelines.items():
            registry = self.registry_of(name)
            needs_schemas = pipeline.value_rules.has_schemas or pipeline.columns.avro_key is not None
            if needs_schemas and not registry.has_schemas:
                raise ValueError(
                    f"registry: pipelines.{name} reads records that name a schema; give the registry's url, or "
                    "files of schemas. For JSON without a schema, or records as they are, set its `formats`"
                )
            if pipeline.subjects is not None and not registry.has_registry:
                raise ValueError(f"pipelines.{name}.subjects goes with a registry; files belong to no subject")
            if registry.has_registry:
                self._check_wires(name, pipeline, registry)
        return self

    def _check_wires(self, name: str, pipeline: Pipeline, registry: Registry) -> None:
        """Raise ValueError where a wire format has ids of a registry that is not named."""
        wires = {"wire": pipeline.wire_of_values}
        if pipeline.columns.avro_key is not None:
            wires["columns.key.wire"] = pipeline.columns.avro_key.wire.fixed
        for setting, wire in wires.items():
            if wire is None:
                continue
            kinds = {single_wire.ids for single_wire in wire.all if single_wire != NO_WIRE}
            if "glue" in kinds and registry.glue is None:
                raise ValueError(
                    f"registry: pipelines.{name}.{setting} has ids of the AWS Glue Schema Registry; name it, such as "
                    "registry: {glue: {name: default-registry, region: eu-central-1}}"
                )
            others = sorted(kinds - {"glue", "fingerprint"})
            if others and registry.url is None:
                raise ValueError(
                    f"registry: pipelines.{name}.{setting} has {others[0]} ids, which AWS Glue's registry does not "
                    "know; give registry.url, too"
                )

    @model_validator(mode="after")
    def _executors_have_the_login(self) -> "Config":
        is_local = self.spark.master.partition("[")[0] == "local"
        if self.kafka.reader == "spark" and isinstance(self.kafka.security.login, OAuthSection) and not is_local:
            raise ValueError(
                f"kafka.reader: spark cannot have a login of type oauth with spark.master {self.spark.master}: Java "
                "gets tokens from the driver, on its machine alone. Leave out kafka.reader, so that each task asks for "
                "a token itself"
            )
        return self

    @model_validator(mode="after")
    def _records_of_topics(self) -> "Config":
        shared = list[TopicSelection]()
        for name, pipeline in self.pipelines.items():
            if pipeline.subjects is not None:
                pipeline.subjects.check_topics([pipeline.topics], f"pipelines.{name}.subjects")
            elif pipeline.registry is not None:
                pipeline.registry.subjects.check_topics([pipeline.topics], f"pipelines.{name}.registry.subjects")
            else:
                shared.append(pipeline.topics)
        self.registry.subjects.check_topics(shared, "registry.subjects")
        return self

    @model_validator(mode="after")
    def _names_and_places(self) -> "Config":
        for name in self.pipelines:
            if not _NAME.match(name):
                raise ValueError(
                    f"pipeline name {name!r}: use lower-case letters, digits, - and _ (it becomes a directory)"
                )
        owners: dict[Parts, str] = {}
        for name, pipeline in self.pipelines.items():
            for location in pipeline.locations:
                path = parts(location)
                if path in owners:
                    owner_names = f"pipeline {name!r}"
                    if owners[path] != name:
                        owner_names = f"pipelines {owners[path]!r} and {name!r}"
                    raise ValueError(f"{owner_names} would write two tables to {location}; give each its own location")
                owners[path] = name
        groups: dict[str, str] = {}
        for name, pipeline in self.pipelines.items():
            group = pipeline.commit_offsets_to_group
            if group is not None and (other := groups.setdefault(group, name)) != name:
                raise ValueError(
                    f"pipelines {other!r} and {name!r} would both mirror their offsets to group {group!r}; "
                    "give each its own"
                )
        return self

    @model_validator(mode="after")
    def _checkpoints_where_spark_writes(self) -> "Config":
        if in_bucket(self.checkpoints) and not on_s3(self.checkpoints):
            raise ValueError(
                # The chart says the same (helm/headrace/templates/_helpers.tpl).
                f"checkpoints: Spark's checkpoints cannot lie in {self.checkpoints}: Azure's connector was seen to "
                "read none of them, without an error, and Google's is not offered. Give the path of a volume, or an "
                "s3:// location. They are disposable: without them a start goes on at the tables' offsets"
            )
        return self

    @model_validator(mode="after")
    def _one_form_of_azure(self) -> "Config":
        """Refuse two forms of one account's locations: two tables could be one folder, and nothing would show it."""
        forms: dict[str, str] = {}
        for pipeline in self.pipelines.values():
            for location in pipeline.locations:
                scheme = location.partition("://")[0]
                if scheme not in AZURE_SCHEMES:
                    continue
                account = parse_bucket_location(location).account
                if account is None or account == self.azure.settings.account:
                    forms[scheme] = location
        if len(forms) > 1:
            raise ValueError(
                f"{forms['az']} and {forms['abfss']} lie in one account, {self.azure.settings.account}; write all of "
                "its locations in the same form"
            )
        return self

    @model_validator(mode="after")
    def _names_in_the_catalog(self) -> "Config":
        owners: dict[str, str] = {}
        log: Parts | None = None
        if self.catalog is not None and self.catalog.log_location:
            log = parts(self.catalog.log_location)
        for name, pipeline in self.pipelines.items():
            if not pipeline.needs_catalog:
                continue
            if self.catalog is None:
                raise ValueError(
                    f"pipelines.{name}.table.format: iceberg needs a section `catalog`, such as catalog: {{type: sql, "
                    "uri: 'sqlite:////lake/catalog.db'}"
                )
            for location in pipeline.locations:
                table = self.catalog_place(name, location)
                if log and (lies_inside(log, parts(location)) or lies_inside(parts(location), log)):
                    raise ValueError(
                        f"catalog.log_location: give it a folder beside the table at {location}, not in it"
                    )
                if table and (other := owners.setdefault(table.key, location)) != location:
                    raise ValueError(
                        f"{other} and {location} would both be table {table}; set table.name, or the name of a target"
                    )
        return self

    def catalog_place(self, name: str, location: str) -> CatalogTable | None:
        """Return the place in the catalog of a pipeline's table, or of one beside it; None of another format."""
        pipeline = self.pipelines[name]
        if pipeline.needs_catalog:
            return self.in_catalog(pipeline.table_at(location), location)
        return None

    def in_catalog(self, table: Table, location: str | None = None) -> CatalogTable | None:
        """Return the place in the catalog of a table, or of one beside it at a location; None of another format.

        Raises ConfigError where there is no catalog.
        """
        if table.format != "iceberg":
            return None
        if self.catalog is None:
            raise ConfigError(f"the table at {table.location} is Iceberg's, and the configuration has no `catalog`")
        return self.catalog.place(location or table.location, table.name, is_main=location in (None, table.location))

    @model_validator(mode="after")
    def _keys_of_privacy(self) -> "Config":
        for name, pipeline in self.pipelines.items():
            policies = pipeline.privacy and pipeline.privacy.policies
            if policies and self.keys is None and any(policies.needs(kind) for kind in ("hash", "encrypt")):
                raise ValueError(
                    f"pipelines.{name}.privacy hashes or encrypts (dead letters, too, unless dead_letters is redact), "
                    "and there is no section `keys`; add one, such as keys: {file: /etc/headrace/keys.json}"
                )
            if policies and policies.decrypts and self.registry_of(name).url is None:
                raise ValueError(f"pipelines.{name}.privacy.decrypt asks a registry for data keys; give registry.url")
        return self

    @model_validator(mode="after")
    def _pools_are_ours(self) -> "Config":
        equal = Scheduling.model_validate({})
        shares = [name for name, pipeline in self.pipelines.items() if pipeline.scheduling != equal]
        for key in ("spark.scheduler.mode", "spark.scheduler.allocation.file"):
            if shares and self.spark.conf.get(key, "FAIR").upper() != "FAIR":
                raise ValueError(
                    f"spark.conf sets {key}, so pipelines.{shares[0]}.scheduling would not count; leave one of them out"
                )
        return self

    @classmethod
    def json_schema(cls) -> dict[str, Any]:
        """Return the JSON schema of the file, for editors: durations and sizes are text, as they are in the file."""
        schema = cls.model_json_schema(mode="serialization")
        pipeline = schema["$defs"]["Pipeline"]
        schema["properties"]["defaults"] |= {"properties": pipeline["properties"], "additionalProperties": False}
        # The defaults may hold every key that a pipeline needs, and the pipeline is then empty.
        needed = {"properties": {"pipelines": {"additionalProperties": {"required": pipeline.pop("required")}}}}
        schema["anyOf"] = [{"required": ["defaults"]}, needed]
        pipelines = schema["properties"]["pipelines"]
        pipelines["additionalProperties"] = {"anyOf": [pipelines["additionalProperties"], {"type": "null"}]}
        return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": "headrace configuration"}

    def one(self, name: str | None) -> str:
        """Name of the pipeline that was asked for; of the only one, when none was. Raises ConfigError."""
        names = self.chosen([name] if name else None)
        if len(names) > 1:
            raise ConfigError(f"there are {len(names)} pipelines; say which: --pipeline {' or '.join(names)}")
        return names[0]

    def one_table(self, name: str) -> Pipeline:
        """Return the settings of a pipeline that fills one table. Raises ConfigError for one with a route."""
        if self.pipelines[name].route is not None:
            raise ConfigError(
                f"pipeline {name!r} has a route, and this command does not know the tables of one yet; nothing was done"
            )
        return self.pipelines[name]

    def at_raw(self, name: str) -> "Config":
        """Return the configuration where a pipeline has its raw table in place of its own. Raises ConfigError."""
        raw = self.pipelines[name].of_raw
        if raw is None:
            raise ConfigError(f"pipeline {name!r} has no raw table; set table.raw, or leave --raw out")
        return self.model_copy(update={"pipelines": {**self.pipelines, name: raw}})

    def at_shadow(self, name: str, location: str, in_catalog: str | None = None) -> "Config":
        """Return the configuration where a pipeline fills a second table at a location, and touches nothing else.

        All that it writes lies beside that location, or where this file says, if the location is its own. Nothing
        outside hears of it: no hook, receiver or consumer group. Its driver answers at any free port. `in_catalog`:
        name of an Iceberg table. Raises ConfigError for a pipeline with a route.
        """
        pipeline = self.one_table(name)
        table = pipeline.table.model_copy(update={"name": in_catalog or pipeline.table.name})
        seal = pipeline.seal
        if location != table.location:
            raw = table.raw and table.raw.model_copy(update={"location": f"{location}_raw"})
            table = table.model_copy(update={"location": location, "dead_letters": None, "raw": raw})
            seal = seal.model_copy(update={"late_table": None})
        shadow = pipeline.model_copy(
            update={"table": table, "seal": seal, "hooks": [], "commit_offsets_to_group": None}
        )
        sections = {
            "checkpoints": f"{location}_checkpoints",
            "pipelines": {name: shadow},
            "http": self.http.model_copy(update={"enabled": True, "port": 0}),
        }
        # A section by default sends nothing.
        for key in ("notifications", "openlineage", "opentelemetry"):
            sections[key] = type(getattr(self, key))()
        return self.model_copy(update=sections)

    def beginning(self, name: str, offsets: Mapping[str, Mapping[int, int]]) -> "Config":
        """Return the configuration where a new pipeline begins at these offsets, by topic and partition."""
        pipeline = self.pipelines[name].model_copy(update={"start": {"offsets": offsets}})
        return self.model_copy(update={"pipelines": {**self.pipelines, name: pipeline}})

    def after_protecting(self, name: str, paths: RecordPolicies) -> "Config":
        """Return the configuration where a new table of a pipeline protects what another one's log has as protected."""
        config = self.model_copy()
        config._protected_before = {**self._protected_before, name: paths}  # noqa: SLF001 - of this class
        return config

    def protected_before(self, name: str) -> RecordPolicies:
        """Return what the log of another table of a pipeline has as protected, beside that of its own."""
        return self._protected_before.get(name, {})

    def at_target(self, name: str, target: str | None) -> "Config":
        """Return the configuration where a pipeline has the table of a target in place of its own. Raises ConfigError.

        The same one where it has no route, and none is asked for.
        """
        pipeline = self.pipelines[name]
        route = pipeline.route
        if route is None and target is None:
            return self
        if route is None:
            raise ConfigError(f"pipeline {name!r} has no route, so there is no target {target!r}; leave --target out")
        if target is None:
            raise ConfigError(
                f"pipeline {name!r} fills many tables; say which: --target NAME ({', '.join(route.targets)})"
            )
        rule: str | None = target
        if target not in route.fixed:
            rule = route.rule_of(target)
        if rule is None:
            raise ConfigError(f"pipeline {name!r} has no target {target!r}{did_you_mean(target, list(route.fixed))}")
        return self.model_copy(update={"pipelines": {**self.pipelines, name: pipeline.of_target(rule, target)}})

    def chosen(self, only: Sequence[str] | None) -> list[str]:
        """Names of the pipelines that were asked for, each once, or of all. Raises ConfigError for an unknown one."""
        for name in only or []:
            if name not in self.pipelines:
                raise ConfigError(
                    f"the configuration has no pipeline {name!r}{did_you_mean(name, list(self.pipelines))}"
                )
        return list(dict.fromkeys(only or self.pipelines))
