"""Names of Arrow types in each engine, for columns that a statement must declare."""

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa

from headrace.writer.core.errors import ConfigError


@dataclass(frozen=True)
class Dialect:
    """How an engine writes types and names."""

    plain: dict[pa.DataType, str]
    timestamp: str
    # With {p} and {s}.
    decimal: str
    # With {0}.
    array: str
    # With {0} and {1}.
    map: str
    # With {0}, its members.
    struct: str
    # With {0}, its name, and {1}.
    member: str
    quote: str

    def name(self, name: str) -> str:
        """Write a name so that nothing in it means anything."""
        return f"{self.quote}{name.replace(self.quote, self.quote * 2)}{self.quote}"

    def type(self, kind: pa.DataType) -> str:
        """Write a type. Raises ConfigError for one that no table of ours has."""
        if pa.types.is_timestamp(kind):
            return self.timestamp
        if pa.types.is_decimal(kind):
            return self.decimal.format(p=kind.precision, s=kind.scale)
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return self.array.format(self.type(kind.value_type))
        if pa.types.is_map(kind):
            return self.map.format(self.type(kind.key_type), self.type(kind.item_type))
        if pa.types.is_struct(kind):
            members = (self.member.format(self.name(part.name), self.type(part.type)) for part in kind)
            return self.struct.format(", ".join(members))
        if kind not in self.plain:
            raise ConfigError(f"a column of type {kind} has no name in this engine; headrace writes no such column")
        return self.plain[kind]


def _plain(**names: str) -> dict[pa.DataType, str]:
    arrow: dict[str, Callable[[], pa.DataType]] = {
        "boolean": pa.bool_,
        "byte": pa.int8,
        "short": pa.int16,
        "integer": pa.int32,
        "long": pa.int64,
        "float": pa.float32,
        "double": pa.float64,
        "string": pa.string,
        "binary": pa.binary,
        "date": pa.date32,
    }
    return {make(): names[name] for name, make in arrow.items()}


_SQL = _plain(
    boolean="boolean",
    byte="tinyint",
    short="smallint",
    integer="integer",
    long="bigint",
    float="real",
    double="double",
    string="varchar",
    binary="varbinary",
    date="date",
)
TRINO = Dialect(
    _SQL, "timestamp(6)", "decimal({p},{s})", "array({0})", "map({0}, {1})", "row({0})", "{0} {1}", quote='"'
)
PRESTO = Dialect(_SQL, "timestamp", "decimal({p},{s})", "array({0})", "map({0}, {1})", "row({0})", "{0} {1}", quote='"')
DUCKDB = Dialect(
    _plain(
        boolean="BOOLEAN",
        byte="TINYINT",
        short="SMALLINT",
        integer="INTEGER",
        long="BIGINT",
        float="FLOAT",
        double="DOUBLE",
        string="VARCHAR",
        binary="BLOB",
        date="DATE",
    ),
    "TIMESTAMP WITH TIME ZONE",
    "DECIMAL({p},{s})",
    "{0}[]",
    "MAP({0}, {1})",
    "STRUCT({0})",
    "{0} {1}",
    quote='"',
)
SPARK = Dialect(
    _plain(
        boolean="BOOLEAN",
        byte="TINYINT",
        short="SMALLINT",
        integer="INT",
        long="BIGINT",
        float="FLOAT",
        double="DOUBLE",
        string="STRING",
        binary="BINARY",
        date="DATE",
    ),
    "TIMESTAMP",
    "DECIMAL({p},{s})",
    "ARRAY<{0}>",
    "MAP<{0}, {1}>",
    "STRUCT<{0}>",
    "{0}: {1}",
    quote="`",
)


def of_records(kind: pa.DataType) -> bool:
    """Return whether a column holds lists of records."""
    return bool(pa.types.is_list(kind) and pa.types.is_struct(kind.value_type))
