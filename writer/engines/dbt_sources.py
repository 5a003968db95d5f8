"""A table as a source of dbt: its columns, their descriptions, and how fresh it is by its sealed buckets.

dbt renders every text of a YAML file as a Jinja template, so texts of ours are written such that it finds them again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Literal

import yaml

from headrace.writer.batch.staging.table_file import NAMES_IN_ICEBERG
from headrace.writer.config.yaml_text import TextDumper
from headrace.writer.core.errors import ConfigError
from headrace.writer.engines import iceberg, sql
from headrace.writer.engines.bucket_access import check_engine
from headrace.writer.engines.table_description import TableDescription
from headrace.writer.engines.types import DUCKDB, TRINO, Dialect

# Adapters of dbt, as they are called in its profiles.
Adapter = Literal["trino", "duckdb"]
# What dbt's models name in `source('lake', …)`.
SOURCE = "lake"
# What Trino calls a timestamp of a table, by its format.
_TRINO_TIMESTAMPS = {
    "delta": "timestamp(3) with time zone",
    "parquet": "timestamp(6)",
    "iceberg": "timestamp(6) with time zone",
}
_PROVENANCE = {
    "_topic": "Topic of the record.",
    "_incarnation": "Which topic of this name: a topic that was deleted and created anew counts one more.",
    "_partition": "Partition of the record.",
    "_offset": "Offset of the record in its partition.",
    "_kafka_time": "Timestamp of the record in Kafka.",
}
# Text that begins something in Jinja.
_JINJA = re.compile(r"\{(?=[{%#])")
_MINUTE = timedelta(minutes=1)
_PERIODS = (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", _MINUTE))


@dataclass(frozen=True)
class Descriptions:
    """What a table and its columns mean; columns by their names."""

    table: str = ""
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SealAge:
    """How old the end of the newest sealed bucket may be, measured now."""

    warn_after: timedelta
    error_after: timedelta


def seal_age(width: timedelta, delay: timedelta) -> SealAge:
    """Return the ages at which one bucket is due, and two. `delay`: from the end of a bucket to its seal, at most."""
    return SealAge(width + delay, 2 * width + delay)


def describe_source(
    table: TableDescription, adapter: Adapter, name: str | None, descriptions: Descriptions, age: SealAge | None
) -> dict[str, Any]:
    """Return the entry of `sources:` for one table. `age`: None where its buckets are not sealed by time.

    Raises ConfigError for a name that is no catalog.schema.table.
    """
    relation, meta = _locate(table, adapter, name)
    dialect = _dialect(table, adapter)
    config: dict[str, Any] = {"meta": {**meta, "headrace": _facts_of(table)}}
    query = None if age is None else _sealed_end_query(table, adapter, relation)
    if age is not None and query is not None:
        config["freshness"] = {"warn_after": _period(age.warn_after), "error_after": _period(age.error_after)}
        config["loaded_at_query"] = query
    entry: dict[str, Any] = {"name": table.short_name, "identifier": relation.table}
    if descriptions.table:
        entry["description"] = descriptions.table
    entry |= {"quoting": {"database": True, "schema": True, "identifier": True}, "config": config}
    entry["columns"] = list(_columns(table, dialect, descriptions))
    source: dict[str, Any] = {"name": SOURCE}
    if relation.catalog:
        source["database"] = relation.catalog
    source |= {"schema": relation.schema, "tables": [entry]}
    return source


def has_seal_query(table: TableDescription, adapter: Adapter) -> bool:
    """Return whether an adapter's engine sees which buckets of a table are sealed."""
    return adapter == "duckdb" or table.format != "parquet"


def dump_sources(sources: Iterable[Mapping[str, Any]]) -> str:
    """Return `sources.yml`: the tables of one database and schema together, and every text as dbt reads it back."""
    merged: dict[tuple[Any, Any], dict[str, Any]] = {}
    for source in sources:
        place = (source.get("database"), source["schema"])
        group = merged.setdefault(place, {**source, "tables": []})
        group["tables"] += source["tables"]
    document = {"version": 2, "sources": _escape_texts(list(merged.values()))}
    text: str = yaml.dump(document, Dumper=TextDumper, sort_keys=False, allow_unicode=True, width=120)
    return text


def _escape_texts(value: Any) -> Any:
    """Return a document with each text such that Jinja gives the text."""
    if isinstance(value, str):
        return _JINJA.sub("{{ '{' }}", value)
    if isinstance(value, Mapping):
        return {key: _escape_texts(part) for key, part in value.items()}
    if isinstance(value, Sequence):
        return [_escape_texts(part) for part in value]
    return value


def _locate(table: TableDescription, adapter: Adapter, name: str | None) -> tuple[sql.Name, dict[str, Any]]:
    """Return the relation, with an empty catalog where the profile has it, and what the adapter reads of its `meta`."""
    if adapter == "duckdb":
        return _locate_in_duckdb(table, name)
    if name is not None:
        return sql.Name.of_option(name), {}
    if table.format == "iceberg":
        assert table.catalog is not None, "the configuration of an Iceberg table has a catalog"
        *namespace, identifier = table.identifier
        return sql.Name(table.catalog.name, ".".join(namespace), identifier), {}
    return sql.default_name(table), {}


def _locate_in_duckdb(table: TableDescription, name: str | None) -> tuple[sql.Name, dict[str, Any]]:
    if name is not None:
        raise ConfigError("dbt-duckdb reads the table at its location; leave --table out")
    if table.format == "iceberg" and table.catalog is not None and table.catalog.type == "rest":
        *namespace, identifier = table.identifier
        return sql.Name(table.catalog.name, ".".join(namespace), identifier), {}
    check_engine(table, "duckdb")
    rows = iceberg.scan(table) if table.format == "iceberg" else sql.duckdb_scan(table)
    # dbt-duckdb takes it for a format string: no location has braces.
    return sql.Name("", "main", table.short_name), {"external_location": rows}


def _dialect(table: TableDescription, adapter: Adapter) -> Dialect:
    if adapter == "duckdb":
        return DUCKDB
    return replace(TRINO, timestamp=_TRINO_TIMESTAMPS[table.format])


def _facts_of(table: TableDescription) -> dict[str, Any]:
    facts = {"pipeline": table.pipeline, "format": table.format, "location": table.location}
    return {**facts, "bucket_columns": list(table.bucket_columns)}


def _columns(table: TableDescription, dialect: Dialect, descriptions: Descriptions) -> Iterable[dict[str, Any]]:
    for column in table.ordered:
        name = column.name
        if table.format == "iceberg":
            name = NAMES_IN_ICEBERG.get(name, name)
        entry = {"name": name, "data_type": dialect.type(column.type), "quote": True}
        description = descriptions.columns.get(column.name) or _PROVENANCE.get(column.name)
        if column.name in table.bucket_columns:
            description = "Bucket of the row: the table is partitioned by it, so a filter on it reads few files."
        if description:
            entry["description"] = description
        yield entry


def _sealed_end_query(table: TableDescription, adapter: Adapter, relation: sql.Name) -> str | None:
    """Return the query of the end of the newest sealed bucket; None where the engine sees no seals."""
    if adapter == "duckdb":
        folders = "/".join(["*"] * len(table.bucket_columns))
        manifests = sql.literal(f"{table.location}/_headrace/sealed/{folders}/v*.json")
        columns = "columns = {'end': 'TIMESTAMPTZ'}"
        return f'SELECT max("end") FROM read_json({manifests}, {columns})'  # noqa: S608 - quoted
    if not has_seal_query(table, adapter):
        return None
    history, value = {
        "delta": ("$history", "element_at(operation_parameters, 'sealedEnd')"),
        "iceberg": ("$snapshots", "element_at(summary, 'headrace.sealed-end')"),
    }[table.format]
    names = (relation.catalog, relation.schema, f"{relation.table}{history}")
    return f"SELECT max(from_iso8601_timestamp({value})) FROM {'.'.join(map(TRINO.name, names))}"  # noqa: S608 - quoted


def _period(age: timedelta) -> dict[str, Any]:
    """Return a time as dbt writes it, in the largest unit that has no remainder, rounded up to minutes."""
    minutes = -(-age // _MINUTE) * _MINUTE
    period, unit = next((period, unit) for period, unit in _PERIODS if not minutes % unit)
    return {"count": minutes // unit, "period": period}
