"""How engines are told of an Iceberg table: the settings of its catalog, and a view with the names of other formats.

Iceberg reserves `_partition`, so the table's column is `_kafka_partition`; the view calls it as other formats do.
"""

from collections.abc import Iterator, Sequence
from typing import Literal
from urllib.parse import urlsplit

from writer.batch.staging.table_file import NAMES_IN_ICEBERG
from writer.config.table_sections import Catalog
from writer.core.errors import ConfigError
from writer.engines import sql
from writer.engines.table_description import TableDescription
from writer.engines.types import SPARK, TRINO, Dialect
from writer.storage.locations import on_s3

_PLACEHOLDER = "<secret>"  # stands where an engine needs one
_NOT_BY_SQL = {
    "presto": "Presto was not tried with Iceberg tables: 0.287, which is tested with the other formats, knows no REST "
    "catalog; use trino or spark",
    "druid": "Druid takes files: a hook of type druid gives it those of each sealed bucket",
}
_TWO_LEVELS = 2  # namespace and table
_AS_IN_JAVA = ("scope", "audience", "resource", "prefix", "rest.signing-name")  # options
_SPARK = "org.apache.iceberg.spark.SparkCatalog"


def statements(table: TableDescription, engine: str, name: str | None) -> list[str]:
    """Return the statements of an SQL engine, in order; `name`: of the view. Raises ConfigError."""
    catalog = _catalog(table)
    match engine:
        case "spark":
            base = _dotted((catalog.name, *table.identifier), SPARK)
            view = name or table.pipeline.replace("-", "_")
            settings = [f"SET `spark.sql.catalog.{catalog.name}{key}`={value}" for key, value in _spark(table, catalog)]
            return [*settings, f"CREATE OR REPLACE TEMPORARY VIEW {view} AS {_rows(table, base, SPARK)}"]
        case "duckdb":
            view = TRINO.name(name or table.pipeline.replace("-", "_"))
            setup, base = _duckdb(table, catalog)
            return [*setup, f"CREATE OR REPLACE VIEW {view} AS {_rows(table, base, TRINO)}"]
        case "trino":
            *namespace, short = table.identifier
            base = _dotted((catalog.name, ".".join(namespace), short), TRINO)
            view = name or _dotted((catalog.name, ".".join(namespace), f"{short}_view"), TRINO)
            return [f"CREATE OR REPLACE VIEW {view} AS {_rows(table, base, TRINO)}"]
    raise ConfigError(_NOT_BY_SQL[engine])


def trino_properties(table: TableDescription) -> list[str]:
    """Return the lines of the catalog's file in Trino, with `<secret>` for secrets. Raises ConfigError."""
    catalog = _catalog(table)
    found = {"connector.name": "iceberg"}
    match catalog.type:
        case "rest":
            found |= {"iceberg.catalog.type": "rest", "iceberg.rest-catalog.uri": catalog.uri or ""}
            found |= {"iceberg.rest-catalog.warehouse": catalog.warehouse} if catalog.warehouse else {}
            nested = len(table.identifier) > _TWO_LEVELS
            found |= {"iceberg.rest-catalog.nested-namespace-enabled": "true"} if nested else {}
            found |= dict(_trino_login(catalog))
        case "glue":
            found |= {"iceberg.catalog.type": "glue"}
        case "sql":
            jdbc = "iceberg.jdbc-catalog"
            found |= {
                "iceberg.catalog.type": "jdbc", f"{jdbc}.driver-class": "org.postgresql.Driver",
                f"{jdbc}.connection-url": _jdbc(catalog), f"{jdbc}.catalog-name": catalog.name,
                f"{jdbc}.default-warehouse-dir": table.location.rpartition("/")[0],
                **({f"{jdbc}.connection-user": user} if (user := urlsplit(catalog.uri or "").username) else {}),
                **({f"{jdbc}.connection-password": _PLACEHOLDER} if catalog.password else {}),
            }  # fmt: skip
    if on_s3(table.location):
        s3 = {"s3.region": _region(table), "s3.endpoint": table.s3.endpoint}
        found |= {"fs.native-s3.enabled": "true", **{key: value for key, value in s3.items() if value}}
        found |= {"s3.path-style-access": "true"} if table.s3.path_style else {}
    return [f"{key}={value}" for key, value in found.items()]


def login_of(catalog: Catalog) -> Literal["sigv4", "token", "credential"] | None:
    """Return how clients of a REST catalog log in; None: they do not."""
    if catalog.options.get("rest.sigv4-enabled", "").lower() == "true":
        return "sigv4"
    return "token" if catalog.token else "credential" if catalog.credential else None


def _region(table: TableDescription) -> str:
    options = _catalog(table).options
    return options.get("rest.signing-region") or options.get("client.region") or table.s3.region or ""


def _token_url(catalog: Catalog) -> str:
    """Return where clients get their tokens; by default at the catalog, which some engines want to be told."""
    return catalog.options.get("oauth2-server-uri") or f"{(catalog.uri or '').rstrip('/')}/v1/oauth/tokens"


def _trino_login(catalog: Catalog) -> Iterator[tuple[str, str]]:
    rest, options = "iceberg.rest-catalog", catalog.options
    match login_of(catalog):
        case "sigv4":  # with s3.region
            yield f"{rest}.sigv4-enabled", "true"
            if "rest.signing-name" in options:
                yield f"{rest}.signing-name", options["rest.signing-name"]
        case "token":
            yield f"{rest}.security", "OAUTH2"
            yield f"{rest}.oauth2.token", _PLACEHOLDER
        case "credential":
            yield f"{rest}.security", "OAUTH2"
            yield f"{rest}.oauth2.credential", _PLACEHOLDER
            yield f"{rest}.oauth2.server-uri", _token_url(catalog)
            if "scope" in options:
                yield f"{rest}.oauth2.scope", options["scope"]


def _catalog(table: TableDescription) -> Catalog:
    assert table.catalog is not None, "the configuration of an Iceberg table has a catalog"
    return table.catalog


def _rows(table: TableDescription, base: str, dialect: Dialect) -> str:
    named = [
        (dialect.name(column.name), dialect.name(NAMES_IN_ICEBERG.get(column.name, column.name)))
        for column in table.ordered
    ]
    columns = ", ".join(ours if ours == theirs else f"{theirs} AS {ours}" for ours, theirs in named)
    return f"SELECT {columns} FROM {base}"  # noqa: S608 - quoted


def _dotted(names: Sequence[str], dialect: Dialect) -> str:
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
    yield ".cache-enabled", "false"  # else a session sees no commit that follows its first look at the table
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
            yield from ((".jdbc.user", user) for user in [urlsplit(catalog.uri or "").username] if user)
            yield from ((".jdbc.password", _PLACEHOLDER) for password in [catalog.password] if password)
    if catalog.warehouse:
        yield ".warehouse", catalog.warehouse


def _duckdb(table: TableDescription, catalog: Catalog) -> tuple[list[str], str]:
    """Return statements that come first, and what to select from."""
    setup = [*sql.duckdb_setup(table), "INSTALL iceberg", "LOAD iceberg"]
    if catalog.type != "rest":
        return setup, f"iceberg_scan({sql.literal(table.metadata)})"
    login, options = login_of(catalog), catalog.options
    secret = {"token": f"TOKEN '{_PLACEHOLDER}'", "credential": f"CLIENT_ID '<id>', CLIENT_SECRET '{_PLACEHOLDER}'"}
    if login == "credential":
        asked = {"OAUTH2_SCOPE": options.get("scope", "catalog"), "OAUTH2_SERVER_URI": _token_url(catalog)}
        secret[login] += "".join(f", {key} {sql.literal(value)}" for key, value in asked.items())
    setup += [f"CREATE OR REPLACE SECRET catalog (TYPE iceberg, {secret[login]})"] if login in secret else []
    signed = "AUTHORIZATION_TYPE 'sigv4'" + (", SECRET lake" if on_s3(table.location) else "")
    how = {"sigv4": signed, None: "AUTHORIZATION_TYPE 'none'"}
    attached = f"TYPE iceberg, ENDPOINT {sql.literal(catalog.uri or '')}, {how.get(login, 'SECRET catalog')}"
    attached += ", SUPPORT_NESTED_NAMESPACES true" if len(table.identifier) > _TWO_LEVELS else ""
    name = TRINO.name(catalog.name)
    *namespace, short = table.identifier
    return (
        [*setup, f"ATTACH {sql.literal(catalog.warehouse or '')} AS {name} ({attached})"],
        f"{name}.{_dotted(('.'.join(namespace), short), TRINO)}",
    )
