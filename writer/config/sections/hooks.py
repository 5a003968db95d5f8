"""Configuration sections `pipelines.*.hooks`: what is called when a bucket is sealed."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from headrace.writer.config.base import Strict, check_type
from headrace.writer.config.safe_names import make_identifier
from headrace.writer.core.units import Duration

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,62}")
_HTTP = re.compile(r"https?://[^/\s@]+(/\S*)?")
# Of a route's table, in the name that a hook gives it.
NAME = "{name}"
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class _Hook(Strict):
    """What every hook has."""

    name: str = Field("", description="name of the hook in `status`, metrics and commands; default: its type")
    start: Literal["latest", "earliest"] = Field(
        "latest",
        description="what a hook that is new to the table is told of: what is sealed from now on, or every sealed "
        "bucket",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_by_type(cls, raw: Any) -> Any:
        if isinstance(raw, dict):
            return {"name": raw.get("type"), **raw}
        return raw

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not _NAME.fullmatch(value):
            raise ValueError(f"hook name {value!r}: use lower-case letters, digits, - and _ (it becomes a folder)")
        return value


def _url(value: SecretStr) -> SecretStr:
    if not _HTTP.fullmatch(value.get_secret_value()):
        raise ValueError("'url' is no http:// or https:// URL without user and password; write https://host:port/path")
    return SecretStr(value.get_secret_value().rstrip("/"))


Url = Annotated[SecretStr, AfterValidator(_url)]


class _Login(_Hook):
    """A server that may require a login."""

    url: Url = Field(description="base URL of the server")
    user: str | None = Field(None, min_length=1, description="user name")
    password: SecretStr | None = Field(None, description="with `user`; take it from `${env:NAME}` or `${file:/path}`")
    token: SecretStr | None = Field(None, description="sent as `Authorization: Bearer`, instead of a password")

    @model_validator(mode="after")
    def _one_way(self) -> "_Login":
        if self.password is not None and (self.user is None or self.token is not None):
            raise ValueError("a 'password' needs a 'user' and goes without 'token'")
        return self


class Webhook(_Hook):
    """An HTTP server of your own."""

    type: Literal["webhook"] = Field(description="POST the manifest as JSON")
    url: Url = Field(description="where to POST; only its host is ever shown")
    secret: SecretStr | None = Field(
        None,
        min_length=8,
        description="sign by the Standard Webhooks scheme with this secret (`whsec_…`, or any text); take it from "
        "`${env:NAME}` or `${file:/path}`",
    )
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="further headers of the request")
    timeout: Duration = Field(timedelta(seconds=30), description="how long an answer may take")


class Druid(_Login):
    """Apache Druid."""

    type: Literal["druid"] = Field(description="ingest exactly the interval of the bucket, in place of what was there")
    datasource: str | None = Field(
        None,
        min_length=1,
        description="datasource; default: the pipeline's name, or that of a route's table, which {name} stands for",
    )
    at_once: int = Field(2, ge=1, description="most tasks of this hook that run at a time")
    input_source: dict[str, Any] = Field(
        default_factory=dict, description="keys added to the task's inputSource, such as `properties` for S3"
    )
    spec: dict[str, Any] = Field(
        default_factory=dict, description="keys laid over the task's spec, such as `tuningConfig: {maxRowsInMemory: …}`"
    )
    timeout: Duration = Field(timedelta(seconds=30), description="how long one answer may take; a task may take longer")


class _Sql(_Login):
    """A server that speaks the statement protocol."""

    table: str = Field(
        description="catalog.schema.table to register; {name} stands for the name of a route's table, as in "
        "`delta.lake.{name}`"
    )
    location: str | None = Field(
        None,
        min_length=1,
        description="the table's location as the server names it; default: as headrace does. Of a "
        "route's table with {name}, {namespace} and {full_name}, as in its own",
    )
    analyze: bool = Field(False, description="run ANALYZE on the table after each seal")
    timeout: Duration = Field(timedelta(minutes=10), description="how long one statement may take")

    @field_validator("table")
    @classmethod
    def _three_parts(cls, value: str) -> str:
        parts = value.replace(NAME, "x").split(".")
        if len(parts) != 3 or not all(_IDENTIFIER.fullmatch(part) for part in parts):  # noqa: PLR2004
            raise ValueError(f"table {value!r} is no catalog.schema.table; write it as delta.lake.clicks")
        return value


class Trino(_Sql):
    """Trino."""

    type: Literal["trino"] = Field(description="register the table; with table.format: parquet, its new partitions too")


class Presto(_Sql):
    """PrestoDB."""

    type: Literal["presto"] = Field(
        description="register the table; with table.format: parquet, its new partitions too"
    )


class Airflow(_Login):
    """Apache Airflow 3.2 or newer."""

    type: Literal["airflow"] = Field(description="create an asset event whose partition key is the bucket")
    password: SecretStr | None = Field(
        None,
        description="with `user`, Airflow's API gives a token for them; take it from `${env:NAME}` or `${file:/path}`",
    )
    asset: str = Field(
        min_length=1,
        description="URI or name of an asset that a DAG of Airflow has; {name} stands for the name of a route's table",
    )
    timeout: Duration = Field(timedelta(seconds=30), description="how long one answer may take")

    @model_validator(mode="after")
    def _has_a_password(self) -> "Airflow":
        if self.user is not None and self.password is None:
            raise ValueError("a 'user' of Airflow needs a 'password'")
        return self


class Dagster(_Login):
    """Dagster."""

    type: Literal["dagster"] = Field(
        description="report a materialisation of the bucket's partition; `headrace audit --report` reports a check"
    )
    token: SecretStr | None = Field(None, description="of a user of Dagster+, sent as `Dagster-Cloud-Api-Token`")
    asset: str = Field(
        description="key of an asset that a code location of Dagster has, as `lake/clicks`; {name} stands for the name "
        "of a route's table"
    )
    timeout: Duration = Field(timedelta(seconds=30), description="how long one answer may take")

    @field_validator("asset")
    @classmethod
    def _has_no_empty_part(cls, value: str) -> str:
        if not all(value.split("/")):
            raise ValueError(f"asset {value!r} has an empty part; write it as lake/clicks")
        return value


HookSettings = Annotated[
    Webhook | Druid | Trino | Presto | Airflow | Dagster,
    Field(discriminator="type"),
    check_type(Webhook, Druid, Trino, Presto, Airflow, Dagster),
]


def of_table(hook: HookSettings, name: str, filled: Callable[[str, str], str]) -> HookSettings:
    """Return the hook of one table of a route; `name`: what goes there, such as `com.shop.Click`.

    `filled` puts a name into a location, as where the table itself lies.
    """
    # SQL takes no name that begins with a digit without quotes.
    safe = re.sub(r"^(?=\d)", "_", make_identifier(name.rpartition(".")[2]))
    match hook:
        case Druid():
            return hook.model_copy(update={"datasource": (hook.datasource or NAME).replace(NAME, safe)})
        case Trino() | Presto():
            location = None
            if hook.location is not None:
                location = filled(hook.location, name)
            return hook.model_copy(update={"table": hook.table.replace(NAME, safe), "location": location})
        case Airflow() | Dagster():
            return hook.model_copy(update={"asset": hook.asset.replace(NAME, safe)})
    return hook


def destination_of(hook: HookSettings) -> str | None:
    """Return what a hook names at its server, which two tables cannot share; None: nothing."""
    match hook:
        case Druid():
            if hook.datasource:
                return f"datasource {hook.datasource}"
            return None
        case Trino() | Presto():
            return f"table {hook.table}"
        case Airflow() | Dagster():
            return f"asset {hook.asset}"
    return None


_NOT_FOR_ICEBERG = {
    "trino": "Trino finds an Iceberg table, and each commit, by its name in the catalog, so there is nothing to "
    "register; `headrace ddl` prints a view",
    "presto": "Presto was not tried with Iceberg tables",
}


def check_fit_iceberg(hooks: list[HookSettings]) -> None:
    """Raise ValueError for a hook that an Iceberg table has no use for."""
    for hook in hooks:
        if hook.type in _NOT_FOR_ICEBERG:
            raise ValueError(f"hooks.{hook.name}: {_NOT_FOR_ICEBERG[hook.type]}. Leave the hook out")


def _check_names_differ(hooks: list[HookSettings]) -> list[HookSettings]:
    """Raise ValueError if two hooks have one name, because their outboxes would be one."""
    names = [hook.name for hook in hooks]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"two hooks are named {twice!r}; give each its own 'name'")
    return hooks


Hooks = Annotated[list[HookSettings], AfterValidator(_check_names_differ)]
