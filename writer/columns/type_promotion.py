"""Which types take the values of which: Avro's promotions, and the wider types that columns may get. Pure."""

import pyarrow as pa

from headrace.writer.avro import schema as avro

_INT = pa.int32()
_LONG = pa.int64()
_FLOAT = pa.float32()
_DOUBLE = pa.float64()
# Avro 1.12, schema resolution; a date is an int to a reader that does not know dates. But bytes are no text here: they
# need not be UTF-8.
_PROMOTIONS = {
    _INT: (_LONG, _FLOAT, _DOUBLE),
    _LONG: (_FLOAT, _DOUBLE),
    _FLOAT: (_DOUBLE,),
    pa.string(): (pa.binary(),),
    pa.date32(): (_INT,),
}
# Column and value → what holds both exactly, and what readers make of the column's older files.
_WIDER = {
    (_INT, _LONG): _LONG,
    (_INT, _DOUBLE): _DOUBLE,
    (_INT, _FLOAT): _DOUBLE,
    (_FLOAT, _DOUBLE): _DOUBLE,
}


def can_promote(writer_type: pa.DataType, column_type: pa.DataType) -> bool:
    """Return whether a column of a type takes values of another as they are, or by Avro's promotion."""
    if writer_type == column_type or column_type in _PROMOTIONS.get(writer_type, ()):
        return True
    if not (pa.types.is_decimal(column_type) and pa.types.is_decimal(writer_type)):
        return False
    column_digits = column_type.precision - column_type.scale
    writer_digits = writer_type.precision - writer_type.scale
    return bool(writer_type.scale <= column_type.scale and writer_digits <= column_digits)


def wider_type(column_type: pa.DataType, writer_type: pa.DataType) -> pa.DataType | None:
    """Return the type that holds the values of both exactly; None when there is none."""
    return _WIDER.get((column_type, writer_type)) or _wider_decimal(column_type, writer_type)


def can_widen_in_iceberg(column_type: pa.DataType, wider: pa.DataType) -> bool:
    """Return whether Iceberg can give a column the wider type: int to long, float to double, more digits of a scale.

    https://iceberg.apache.org/spec/#schema-evolution
    """
    if pa.types.is_decimal(column_type):
        return bool(column_type.scale == wider.scale)
    if pa.types.is_float32(column_type):
        return True
    return bool(pa.types.is_integer(column_type) and pa.types.is_integer(wider))


def _wider_decimal(column_type: pa.DataType, writer_type: pa.DataType) -> pa.DataType | None:
    """Return the least decimal that holds the values of both; None when there is none."""
    if not (pa.types.is_decimal(column_type) and pa.types.is_decimal(writer_type)):
        return None
    scale = max(column_type.scale, writer_type.scale)
    digits = max(column_type.precision - column_type.scale, writer_type.precision - writer_type.scale)
    return pa.decimal128(digits + scale, scale) if digits + scale <= avro.DECIMAL_DIGITS_MAX else None
