"""How engines are told of an Iceberg table: the settings of its catalog, and a view with the names of other formats.

Iceberg reserves `_partition`, so the table's column is `_kafka_partition`; the view calls it as other formats do.
"""

from collections.abc import Iterator, Sequence
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
    "presto": "Presto 0.287 knows no catalog that headrace writes, so it finds no Iceberg table; use trino or spark",
    "druid": "Druid takes files: a hook of type druid gives it those of each sealed bucket",
}
_SPARK = "org.apache.iceberg.spark.SparkCatalog"


def statements(table: TableDescription, engine: str, name: str | None) -> list[str]:
    """Return the statements of an SQL engine, in order; `name`: of the view. Raises ConfigError."""
    catalog = _catalog(table)
    match engine:
        case "spark":
            base = _dotted((catalog.name, *table.identifier), SPARK)
            view = name or table.pipeline.replace("-", "_")
            settings = [f"SET `spark.sql.catalog.{catalog.name}{key}`={value}" for key, value in _spark(catalog)]
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
            key = "token" if catalog.token else "credential" if catalog.credential else None
            found |= (
                {"iceberg.rest-catalog.security": "OAUTH2", f"iceberg.rest-catalog.oauth2.{key}": _PLACEHOLDER}
                if key
                else {}
            )
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
    found |= {"fs.native-s3.enabled": "true"} if on_s3(table.location) else {}
    return [f"{key}={value}" for key, value in found.items()]


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


def _spark(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """Yield the settings of the catalog; keys begin after its name."""
    yield "", _SPARK
    yield ".cache-enabled", "false"  # else a session sees no commit that follows its first look at the table
    match catalog.type:
        case "rest":
            yield ".type", "rest"
            yield ".uri", catalog.uri or ""
            yield from ((f".{key}", _PLACEHOLDER) for key in ("token", "credential") if getattr(catalog, key))
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
    login = {"TOKEN": catalog.token, "CLIENT_ID '<id>', CLIENT_PLACEHOLDER": catalog.credential}
    given = next((key for key, value in login.items() if value), None)
    setup += [f"CREATE OR REPLACE SECRET catalog (TYPE iceberg, {given} '{_PLACEHOLDER}')"] if given else []
    how = "SECRET catalog" if given else "AUTHORIZATION_TYPE 'none'"
    attached = f"TYPE iceberg, ENDPOINT {sql.literal(catalog.uri or '')}, {how}"
    name = TRINO.name(catalog.name)
    *namespace, short = table.identifier
    return (
        [*setup, f"ATTACH {sql.literal(catalog.warehouse or '')} AS {name} ({attached})"],
        f"{name}.{_dotted(('.'.join(namespace), short), TRINO)}",
    )
