"""How engines are told of an Iceberg table: the settings of its catalog, and a view with the names of other formats.

Iceberg reserves `_partition`, so the table's column is `_kafka_partition`; the view calls it as other formats do.
"""

from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import urlsplit

from headrace.writer.batch.staging.table_file import NAMES_IN_ICEBERG
from headrace.writer.config.sections.table import Catalog
from headrace.writer.core.errors import ConfigError
from headrace.writer.engines import bucket_access, sql
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.engines.types import SPARK, TRINO, Dialect
from headrace.writer.storage.locations import on_azure, on_s3

# It stands for a secret that the engine needs.
_PLACEHOLDER = "<secret>"
_NOT_BY_SQL = {
    "presto": "Presto was not tried with Iceberg tables: 0.287, which is tested with the other formats, knows no REST "
    "catalog; use trino or spark",
    "druid": "Druid takes files: a hook of type druid gives it those of each sealed bucket",
}
# A namespace and a table.
_TWO_LEVELS = 2
# Options of the catalog that clients in Java know by the same names.
_AS_IN_JAVA = ("scope", "audience", "resource", "prefix", "rest.signing-name")
_SPARK = "org.apache.iceberg.spark.SparkCatalog"


def statements(table: TableDescription, engine: str, name: str | None) -> list[str]:
    """Return the statements of an SQL engine, in order; `name`: of the view. Raises ConfigError."""
    catalog = _catalog(table)
    match engine:
        case "spark":
            base = _qualified_name((catalog.name, *table.identifier), SPARK)
            view = name or table.short_name
            settings = [f"SET `spark.sql.catalog.{catalog.name}{key}`={value}" for key, value in _spark(table, catalog)]
            return [*settings, f"CREATE OR REPLACE TEMPORARY VIEW {view} AS {_rows(table, base, SPARK)}"]
        case "duckdb":
            view = TRINO.name(name or table.short_name)
            setup, base = _duckdb(table, catalog)
            return [*setup, f"CREATE OR REPLACE VIEW {view} AS {_rows(table, base, TRINO)}"]
        case "trino":
            *namespace, short = table.identifier
            base = _qualified_name((catalog.name, ".".join(namespace), short), TRINO)
            view = name or _qualified_name((catalog.name, ".".join(namespace), f"{short}_view"), TRINO)
            return [f"CREATE OR REPLACE VIEW {view} AS {_rows(table, base, TRINO)}"]
    raise ConfigError(_NOT_BY_SQL[engine])


def trino_properties(table: TableDescription) -> list[str]:
    """Return the lines of the catalog's file in Trino, with `<secret>` for secrets. Raises ConfigError."""
    catalog = _catalog(table)
    properties = {"connector.name": "iceberg"}
    match catalog.type:
        case "rest":
            properties |= {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": catalog.uri or ""}
            if catalog.warehouse:
                properties["iceberg.rest-catalog.warehouse"] = catalog.warehouse
            if len(table.identifier) > _TWO_LEVELS:
                properties["iceberg.rest-catalog.nested-namespace-enabled"] = "true"
            properties |= dict(_trino_login(catalog))
        case "glue":
            properties |= {"iceberg.catalog.type": "glue"}
        case "sql":
            jdbc = "iceberg.jdbc-catalog"
            properties |= {
                "iceberg.catalog.type": "jdbc",
                f"{jdbc}.driver-class": "org.postgresql.Driver",
                f"{jdbc}.connection-url": _jdbc(catalog),
                f"{jdbc}.catalog-name": catalog.name,
                f"{jdbc}.default-warehouse-dir": table.location.rpartition("/")[0],
            }
            user = urlsplit(catalog.uri or "").username
            if user:
                properties[f"{jdbc}.connection-user"] = user
            if catalog.password:
                properties[f"{jdbc}.connection-password"] = _PLACEHOLDER
    if on_s3(table.location):
        properties["fs.native-s3.enabled"] = "true"
        if region := _region(table):
            properties["s3.region"] = region
        if table.stores.s3.endpoint:
            properties["s3.endpoint"] = table.stores.s3.endpoint
        if table.stores.s3.path_style:
            properties["s3.path-style-access"] = "true"
    properties |= bucket_access.trino_settings(table)
    return [f"{key}={value}" for key, value in properties.items()]


def scan(table: TableDescription) -> str:
    """Return the function call that reads a table in DuckDB without its catalog, as it is now."""
    return f"iceberg_scan({sql.literal(table.metadata)})"


def login_of(catalog: Catalog) -> Literal["sigv4", "token", "credential"] | None:
    """Return how clients of a REST catalog log in; None: they do not."""
    if catalog.options.get("rest.sigv4-enabled", "").lower() == "true":
        return "sigv4"
    if catalog.token:
        return "token"
    if catalog.credential:
        return "credential"
    return None


def _region(table: TableDescription) -> str:
    options = _catalog(table).options
    return options.get("rest.signing-region") or options.get("client.region") or table.stores.s3.region or ""


def _token_url(catalog: Catalog) -> str:
    """Return where clients get their tokens; by default at the catalog, which some engines want to be told."""
    return catalog.options.get("oauth2-server-uri") or f"{(catalog.uri or '').rstrip('/')}/v1/oauth/tokens"


def _trino_login(catalog: Catalog) -> Iterator[tuple[str, str]]:
    prefix = "iceberg.rest-catalog"
    options = catalog.options
    match login_of(catalog):
        # The region comes from s3.region.
        case "sigv4":
            yield f"{prefix}.sigv4-enabled", "true"
            if "rest.signing-name" in options:
                yield f"{prefix}.signing-name", options["rest.signing-name"]
        case "token":
            yield f"{prefix}.security", "OAUTH2"
            yield f"{prefix}.oauth2.token", _PLACEHOLDER
        case "credential":
            yield f"{prefix}.security", "OAUTH2"
            yield f"{prefix}.oauth2.credential", _PLACEHOLDER
            yield f"{prefix}.oauth2.server-uri", _token_url(catalog)
            if "scope" in options:
                yield f"{prefix}.oauth2.scope", options["scope"]


def _catalog(table: TableDescription) -> Catalog:
    assert table.catalog is not None, "the configuration of an Iceberg table has a catalog"
    return table.catalog


def _rows(table: TableDescription, base: str, dialect: Dialect) -> str:
    names = [
        (dialect.name(column.name), dialect.name(NAMES_IN_ICEBERG.get(column.name, column.name)))
        for column in table.ordered
    ]
    columns = ", ".join(name if name == iceberg_name else f"{iceberg_name} AS {name}" for name, iceberg_name in names)
    return f"SELECT {columns} FROM {base}"  # noqa: S608 - quoted


def _qualified_name(names: Sequence[str], dialect: Dialect) -> str:
    return ".".join(map(dialect.name, names))


def _jdbc(catalog: Catalog) -> str:
    """Return the catalog's database as Java names it, without a login. Raises ConfigError."""
    parts = urlsplit(catalog.uri or "")
    if not parts.scheme.startswith("postgresql"):
        raise ConfigError(
            f"engines in Java do not share a catalog in {parts.scheme.partition('+')[0]}: it is for one machine. Use a "
            "catalog of type rest or glue, or PostgreSQL; DuckDB reads the table without its catalog"
        )
    return f"jdbc:postgresql://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _spark(table: TableDescription, catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield the settings of the catalog; keys begin after its name."""
    yield "", _SPARK
    # Otherwise a session sees no commit that follows its first look at the table.
    yield ".cache-enabled", "false"
    match catalog.type:
        case "rest":
            yield ".type", "rest"
            yield ".uri", catalog.uri or ""
            if (login := login_of(catalog)) == "sigv4":
                yield ".rest.auth.type", "sigv4"
                yield ".rest.signing-region", _region(table)
            elif login is not None:
                yield ".rest.auth.type", "oauth2"
                yield f".{login}", _PLACEHOLDER
            if login == "credential":
                yield ".oauth2-server-uri", _token_url(catalog)
            yield from ((f".{key}", value) for key, value in catalog.options.items() if key in _AS_IN_JAVA)
        case "glue":
            yield ".type", "glue"
        case "sql":
            yield ".type", "jdbc"
            yield ".uri", _jdbc(catalog)
            user = urlsplit(catalog.uri or "").username
            if user:
                yield ".jdbc.user", user
            if catalog.password:
                yield ".jdbc.password", _PLACEHOLDER
    if catalog.warehouse:
        yield ".warehouse", catalog.warehouse
    if bucket_access.on_google(table.location):
        yield ".io-impl", "org.apache.iceberg.gcp.gcs.GCSFileIO"
        if table.stores.gcs.endpoint:
            yield ".gcs.service.host", table.stores.gcs.endpoint
    elif on_azure(table.location):
        bucket_access.azure_parts(table)
        yield ".io-impl", "org.apache.iceberg.azure.adlsv2.ADLSFileIO"


def _duckdb(table: TableDescription, catalog: Catalog) -> tuple[list[str], str]:
    """Return the statements that come first, and the expression to select from."""
    setup = [*sql.duckdb_setup(table), "INSTALL iceberg", "LOAD iceberg"]
    if catalog.type != "rest":
        return setup, scan(table)
    match login_of(catalog):
        case "token":
            setup.append(_duckdb_secret(f"TOKEN '{_PLACEHOLDER}'"))
            authorization = "SECRET catalog"
        case "credential":
            scope = sql.literal(catalog.options.get("scope", "catalog"))
            server = sql.literal(_token_url(catalog))
            client = f"CLIENT_ID '<id>', CLIENT_SECRET '{_PLACEHOLDER}'"
            setup.append(_duckdb_secret(f"{client}, OAUTH2_SCOPE {scope}, OAUTH2_SERVER_URI {server}"))
            authorization = "SECRET catalog"
        case "sigv4":
            authorization = "AUTHORIZATION_TYPE 'sigv4'"
            if on_s3(table.location):
                authorization += ", SECRET lake"
        case None:
            authorization = "AUTHORIZATION_TYPE 'none'"
    options = f"TYPE iceberg, ENDPOINT {sql.literal(catalog.uri or '')}, {authorization}"
    if len(table.identifier) > _TWO_LEVELS:
        options += ", SUPPORT_NESTED_NAMESPACES true"
    name = TRINO.name(catalog.name)
    *namespace, short = table.identifier
    attach = f"ATTACH {sql.literal(catalog.warehouse or '')} AS {name} ({options})"
    return [*setup, attach], f"{name}.{_qualified_name(('.'.join(namespace), short), TRINO)}"


def _duckdb_secret(options: str) -> str:
    return f"CREATE OR REPLACE SECRET catalog (TYPE iceberg, {options})"
