"""The statements by which each engine is pointed at a table, from the table's own columns."""

import pyarrow as pa


def hive_type(kind: pa.DataType, *, timestamp: str) -> str:
    """Name a type as Trino's and Presto's Hive connectors do; `timestamp` is their word for microseconds in UTC."""
    names = {
        pa.bool_(): "boolean", pa.int32(): "integer", pa.int64(): "bigint", pa.float32(): "real",
        pa.float64(): "double", pa.string(): "varchar", pa.binary(): "varbinary", pa.date32(): "date",
    }  # fmt: skip
    if kind in names:
        return names[kind]
    if pa.types.is_timestamp(kind):
        return timestamp
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision}, {kind.scale})"
    if pa.types.is_struct(kind):
        fields = (f'"{field.name}" {hive_type(field.type, timestamp=timestamp)}' for field in kind)
        return f"row({', '.join(fields)})"
    if pa.types.is_map(kind):
        value = hive_type(kind.item_type, timestamp=timestamp)
        return f"map({hive_type(kind.key_type, timestamp=timestamp)}, {value})"
    assert pa.types.is_list(kind), kind
    return f"array({hive_type(kind.value_type, timestamp=timestamp)})"


def hive_table(name: str, columns: pa.Schema, buckets: list[str], location: str, *, timestamp: str) -> str:
    """An external table over a Parquet table's folders."""
    ordered = [field for field in columns if field.name not in buckets] + [columns.field(b) for b in buckets]
    listed = ", ".join(f'"{field.name}" {hive_type(field.type, timestamp=timestamp)}' for field in ordered)
    parts = ", ".join(f"'{bucket}'" for bucket in buckets)
    return (
        f"CREATE TABLE {name} ({listed}) WITH (external_location = '{location}', format = 'PARQUET',"
        f" partitioned_by = ARRAY[{parts}])"
    )
