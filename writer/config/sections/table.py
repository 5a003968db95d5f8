"""The sections that describe one table: where it lies, its event time, its buckets, its files, its schemas."""

import re
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from headrace import bucketers
from headrace.writer.batch.bucketing import TimeRule
from headrace.writer.batch.staging.bucket_folders import HIVE_NULL, folder_bytes_max
from headrace.writer.config.base import ShortForm, Strict
from headrace.writer.config.safe_names import make_identifier
from headrace.writer.config.sections.record_format import ClockRule
from headrace.writer.core.catalog_table import RETRY_TIMEOUT, CatalogTable
from headrace.writer.core.pages import page_address
from headrace.writer.core.units import Duration, Size, duration, show_duration
from headrace.writer.storage.locations import parse_location

_HIVE_COLUMN = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
# Bytes that S3 copies before its client gives the request up.
_COPIED_MAX = 2**30
# The absolute path of a directory, or a folder of a bucket such as s3://bucket/folder.
Location = Annotated[str, AfterValidator(parse_location)]
TableFormat = Literal["delta", "parquet", "iceberg"]
# Names of Iceberg's metadata columns, and what `_partition` is called there.
ICEBERG_RESERVED = frozenset(
    ("_file", "_pos", "_deleted", "_spec_id", "_row_id", "_last_updated_sequence_number", "_kafka_partition")
)
Reader = Literal["trino", "presto", "druid", "spark", "duckdb"]


class EventTime(Strict):
    """Where an event's time stands, and which times are believed."""

    field: str = Field(description="column with the event time; nested with dots")
    unit: Literal["auto", "s", "ms", "us", "ns", "logical"] = Field("auto", description="unit of a plain number")
    max_age: Duration = Field(timedelta(days=365), description="older events are quarantined")
    max_ahead: Duration = Field(timedelta(days=1), description="events further in the future are quarantined")
    clocks: list[ClockRule] = Field(
        default_factory=list, description="sources whose clocks are not UTC; of the rules that fit, the first counts"
    )

    def rule(self, unit: str, origin: str = "") -> TimeRule:
        """Return the rule for a batch; `unit`: as configured or detected. `origin`: of a detected one."""
        if self.unit != "auto":
            origin = "as event_time.unit says"
        elif unit != "auto":
            origin = f"detected by {origin or 'an earlier batch'}; event_time.unit sets another"
        clocks = tuple(clock.clock for clock in self.clocks)
        if unit == "auto":
            origin = ""
        return TimeRule(self.field, unit, self.max_age, self.max_ahead, clocks, origin)


def _bucketer(spec: Any) -> dict[str, Any]:
    if not isinstance(spec, dict):
        raise ValueError(f"bucketer {spec!r} is no mapping; write {{type: event_time, width: 1 h}}")  # noqa: TRY004
    ready: dict[str, Any] = {key: duration(value) if key == "width" else value for key, value in spec.items()}
    if "parts" in ready:
        if not isinstance(ready["parts"], list):
            raise ValueError(f"'parts' is {ready['parts']!r}; make it a list of bucketers")
        ready["parts"] = [_bucketer(part) for part in ready["parts"]]
    # Raises ValueError with the fix.
    bucketers.build(ready)
    return ready


def layout(spec: dict[str, Any]) -> str:
    """Return in words how a bucket specification maps rows to buckets: what a table remembers of it."""
    shown = (
        f"{k} {show_duration(v) if isinstance(v, timedelta) else v}"
        for k, v in spec.items()
        if k not in ("type", "parts")
    )
    parts = " and ".join(layout(part) for part in spec.get("parts", []))
    return ", ".join([str(spec["type"]), *shown]) + (f" of {parts}" if parts else "")


_NO_HIVE = (
    "a Hive Metastore changes a table without a condition, so that of two writers one could undo the other's commit; "
    "use sql, rest or glue"
)
# Names of pyiceberg's options, and of headers, whose values are secrets.
_SECRET_OPTIONS = re.compile(
    r"(?i)(token|credential|password|secret([._-]?access[._-]?key)?|(private|api|account|sas)[._-]?(key|token))$"
    r"|^header\..*(auth|cookie|key|secret|token)"
)


class Catalog(Strict):
    """The catalog that knows Iceberg tables by name."""

    type: Literal["sql", "rest", "glue"] = Field(
        description="sql: a database, SQLite for one machine; rest: Iceberg's REST protocol; glue: AWS Glue"
    )
    uri: str | None = Field(
        None, description="of sql: sqlite:////lake/catalog.db or postgresql+psycopg2://…; of rest: https://…"
    )
    name: str = Field(
        "headrace", min_length=1, description="name of the catalog, by which an SQL catalog knows its tables"
    )
    namespace: str = Field(
        "headrace", pattern=r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)*$", description="of tables without a `name` of their own"
    )
    warehouse: str | None = Field(
        None, min_length=1, description="of rest: the warehouse, where the catalog has several"
    )
    password: SecretStr | None = Field(None, description="of sql, of the user in `uri`; take it from `${env:NAME}`")
    token: SecretStr | None = Field(None, description="of rest: a bearer token; take it from `${env:NAME}`")
    credential: SecretStr | None = Field(
        None, description="of rest: id and secret of an OAuth 2 client, `id:secret`; take it from `${env:NAME}`"
    )
    options: dict[str, str] = Field(
        default_factory=dict,
        description="further settings of pyiceberg's client, such as oauth2-server-uri, scope, rest.sigv4-enabled, "
        "glue.region; no secrets",
    )
    log_location: Location | None = Field(
        None,
        description="location below which the logs of its tables lie, by the tables' names, where the catalog allows "
        "nothing but `data` and `metadata` below a table; default: in the tables' own folders "
        f"({page_address('docs/ICEBERG.md')})",
    )
    retry_timeout: Duration = Field(
        RETRY_TIMEOUT, description="how long a request that fails in passing is made again, at the pace it asks for"
    )

    @field_validator("type", mode="before")
    @classmethod
    def _no_hive(cls, value: Any) -> Any:
        if value == "hive":
            raise ValueError(_NO_HIVE)
        return value

    @model_validator(mode="after")
    def _whole(self) -> "Catalog":
        uri = self.uri or ""
        if urlsplit(uri).password is not None:
            raise ValueError("a password does not belong into 'uri'; write it as password: ${env:NAME}")
        if self.type == "sql" and (not uri or (uri.startswith("sqlite:") and not uri.startswith("sqlite:////"))):
            raise ValueError(
                "a catalog of type sql needs a 'uri' with an absolute path, such as sqlite:////lake/catalog.db"
            )
        if self.type == "rest" and not uri.startswith(("http://", "https://")):
            raise ValueError("a catalog of type rest needs a 'uri' such as https://catalog:8181")
        if self.password is not None and not (self.type == "sql" and urlsplit(uri).username):
            raise ValueError("'password' is of type sql, and of the user that 'uri' names")
        for name, value in self.options.items():
            if _SECRET_OPTIONS.search(name) or ("://" in value and urlsplit(value).password is not None):
                raise ValueError(
                    f"options.{name} would be a secret in plain text; use 'token' or 'credential', and for AWS its "
                    "environment variables, a profile or a role"
                )
        if self.type != "rest" and (self.token or self.credential or self.warehouse):
            raise ValueError(f"'token', 'credential' and 'warehouse' are of type rest, not {self.type}")
        return self

    @property
    def _full_uri(self) -> str | None:
        if self.uri is None or self.password is None:
            return self.uri
        parts = urlsplit(self.uri)
        login = f"{parts.username}:{quote(self.password.get_secret_value(), safe='')}"
        return parts._replace(netloc=f"{login}@{parts.netloc.rpartition('@')[2]}").geturl()

    def place(self, location: str, name: str | None, *, is_main: bool) -> CatalogTable:
        """Return the place of the table at a location. `name`: that the pipeline's own table, the main one, was given.

        Others, and one without a name, are called as their folders are.
        """
        namespace, _, own = (name or f"{self.namespace}.").rpartition(".")
        secrets = {"token": self.token, "credential": self.credential}
        properties = {key: value.get_secret_value() for key, value in secrets.items() if value is not None}
        texts = {"type": self.type, "uri": self._full_uri, "warehouse": self.warehouse}
        properties |= {key: value for key, value in texts.items() if value is not None} | self.options
        table = own if is_main and own else make_identifier(location.rpartition("/")[2])
        settings = tuple(sorted(properties.items()))
        log = self.log_location and "/".join([self.log_location, *namespace.split("."), table])
        return CatalogTable(self.name, tuple(namespace.split(".")), table, settings, self.retry_timeout, log)


# Namespace and table.
CATALOG_NAME = r"^[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)+$"


class Raw(ShortForm):
    """The raw table: every record as Kafka has it, beside the table.

    https://github.com/headrace/headrace/blob/main/docs/RAW.md
    """

    short: ClassVar[str] = "location"
    location: Location = Field(
        description="absolute path of the raw table's directory, or a folder of a bucket, such as s3://bucket/folder"
    )
    enabled: bool = Field(
        True, description="keep the records that come; false: what is there stays as long as its `retention` says"
    )
    retention: Duration | None = Field(
        None,
        description="days of Kafka's timestamps that ended longer ago are dropped; default: the pipeline's `retention`",
    )
    max_open_files: int | None = Field(100, ge=2, description="a day with more small files is merged; null: none is")

    @field_validator("retention")
    @classmethod
    def _whole_days(cls, value: timedelta | None) -> timedelta | None:
        if value is not None and value < timedelta(days=1):
            raise ValueError(f"days are dropped whole, so it is a day or more, not {show_duration(value)}")
        return value


class Table(Strict):
    """The table of a pipeline. A table belongs to exactly one pipeline."""

    location: Location = Field(
        description="absolute path of the table's directory, or a folder of a bucket, such as s3://bucket/folder"
    )
    format: TableFormat = Field(
        "delta",
        description="delta: Delta Lake; parquet: plain files in Hive's folders; iceberg: a table that a `catalog` "
        f"knows by name ({page_address('docs/TABLES.md')})",
    )
    name: str | None = Field(
        None,
        pattern=CATALOG_NAME,
        description="name in the catalog, such as shop.clicks; default: the catalog's "
        "namespace and the name of the folder. Tables beside it have the same namespace",
    )
    dead_letters: Location | None = Field(
        None, description="location of the dead-letter table; default: location + '_dead_letters'"
    )
    raw: Raw | None = Field(
        None, description="raw table, of the same format; default: records are not kept as Kafka has them"
    )
    checkpoint_interval: int = Field(50, ge=1, description="commits between two checkpoints of the table's log")
    orphan_retention: Duration = Field(
        timedelta(days=7),
        description="how old a file that no commit names must be for `headrace vacuum` to remove it; what was staged "
        "half as long ago is not committed any more",
    )
    readers: tuple[Reader, ...] = Field(
        ("trino", "presto", "druid", "spark", "duckdb"),
        description="engines that read it; `validate` says what they will not be able to "
        f"({page_address('docs/ENGINES.md')}). Presto "
        "was not tried with Iceberg tables",
    )
    entropy_bits: int = Field(
        0,
        ge=0,
        le=16,
        description="binary digits, drawn for each file, of a folder in front of its path: where S3 throttles a prefix",
    )

    @model_validator(mode="before")
    @classmethod
    def _readers_of_iceberg(cls, raw: Any) -> Any:
        is_iceberg = isinstance(raw, dict) and raw.get("format") == "iceberg"
        if is_iceberg:
            return {"readers": ["trino", "druid", "spark", "duckdb"], **raw}
        return raw

    @model_validator(mode="after")
    def _readers_know_the_format(self) -> "Table":
        if self.format == "iceberg" and "presto" in self.readers:
            raise ValueError(
                "table.readers: presto was not tried with Iceberg tables; leave it out, or use table.format: delta"
            )
        return self


BucketSpec = Annotated[dict[str, Any], AfterValidator(_bucketer)]


class Roll(Strict):
    """When a file is closed."""

    target_file_size: Size = Field(128 * 2**20, description="size at which a Parquet file is closed")


class Schemas(Strict):
    """What happens when a schema is not to be had, or needs a wider column."""

    unknown_id_timeout: Duration = Field(
        timedelta(minutes=5),
        description="how long an unknown schema id holds the batch before its records are dead letters",
    )
    widen: Literal["in_place", "reject"] = Field(
        "in_place",
        description="a schema has long where the column is int, or the like: give the column the wider type, or reject "
        "the schema's records, for readers such as Spark 3 that cannot read older files of a wider column",
    )


def check_hive(table: Table, roll: Roll, bucket: dict[str, Any]) -> None:
    """Raise ValueError where readers of Hive's folders could not read a table."""
    if table.entropy_bits:
        raise ValueError("table.entropy_bits would hide the buckets from readers of Hive's folders; leave it out")
    if roll.target_file_size > _COPIED_MAX:
        raise ValueError(
            "with table.format: parquet, roll.target_file_size is at most 1 GiB: one copy publishes a file"
        )
    columns = bucketers.build(bucket).columns
    length_max = folder_bytes_max(len(columns)) - len(f"={HIVE_NULL}")
    for column in columns:
        if len(column) > length_max:
            raise ValueError(
                f"bucket column {column[:20]!r}… has {len(column)} characters, and a folder has room for {length_max}; "
                "give it a shorter name (bucket.column)"
            )
        if not _HIVE_COLUMN.fullmatch(column):
            raise ValueError(
                f"bucket column {column!r} cannot name folders that readers look into; begin it with a letter, "
                "and use letters, digits and _ (bucket.column)"
            )
